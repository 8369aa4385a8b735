// mxc_tape.hpp: what the C++ files of the unit share: a tape and how a function of mxc.h appends to it.
// SPDX-License-Identifier: MIT
#ifndef SG_UNIT_MLX_MXC_TAPE_HPP
#define SG_UNIT_MLX_MXC_TAPE_HPP

#include "unit/mlx/mxc.h"

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "mlx/mlx.h"

namespace mx = mlx::core;

struct mxc_device {
    mx::Stream stream;
    bool fuses = false; // new closures are fused as for a GPU
};

struct mxc_closure {
    std::function<std::vector<mx::array>(const std::vector<mx::array> &)> call;
};

struct mxc_held {
    mx::array array;
};

struct mxc_tape {
    mxc_device *device;
    std::vector<std::optional<mx::array>> arrays;
    bool failed = false;
    char text[MXC_TEXT] = "";
    std::unordered_set<std::uintptr_t> listed; // of mxc_list
};

namespace mxc {

inline const mx::Dtype types[] = {mx::float32, mx::float16, mx::bfloat16, mx::uint32, mx::int32, mx::bool_};

inline void fail(mxc_tape *t, const char *what, const char *why)
{
    if (t->failed) return;
    t->failed = true;
    std::snprintf(t->text, sizeof t->text, "%s: %s", what, why);
}

inline const mx::array &at(const mxc_tape *t, mxc_ref x)
{
    if (x < 0 || static_cast<size_t>(x) >= t->arrays.size() || !t->arrays[static_cast<size_t>(x)])
        throw std::runtime_error("an operand is absent");
    return *t->arrays[static_cast<size_t>(x)];
}

inline std::optional<mx::array> maybe(const mxc_tape *t, mxc_ref x)
{
    return x == MXC_NONE ? std::nullopt : std::optional<mx::array>(at(t, x));
}

inline mx::Shape shape_of(const uint32_t *shape, uint32_t dims)
{
    mx::Shape out;
    for (uint32_t i = 0; i < dims; i++) out.push_back(static_cast<int>(shape[i]));
    return out;
}

// Appends the result of f; after a failure nothing is computed.
template <typename F>
mxc_ref append(mxc_tape *t, const char *what, F &&f) noexcept
{
    if (t->failed) return MXC_NONE;
    try {
        t->arrays.emplace_back(f());
        return static_cast<mxc_ref>(t->arrays.size() - 1);
    } catch (const std::exception &e) {
        fail(t, what, e.what());
    } catch (...) {
        fail(t, what, "unknown exception");
    }
    return MXC_NONE;
}

inline mxc_type type_of(const mx::array &x)
{
    for (int i = 0; i <= MXC_BOOL; i++)
        if (x.dtype() == types[i]) return static_cast<mxc_type>(i);
    return MXC_F32;
}

// A number as an array of the type of x, so that x keeps its type.
inline mx::array like(double value, const mx::array &x) { return mx::array(static_cast<float>(value), x.dtype()); }

} // namespace mxc

#endif
