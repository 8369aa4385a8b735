// mxc.cpp: see mxc.h: devices, tapes, data, closures. Every function catches all exceptions.
// SPDX-License-Identifier: MIT
#include <cstring>
#include <limits>
#include <new>
#include <variant>

#include "mlx/primitives.h"
#include "unit/mlx/mxc_tape.hpp"

using namespace mxc;

namespace {

// Recursion is as deep as the graph of one op: the operands of earlier ones are listed already.
void list(mxc_tape *t, const mx::array &x, bool last, mxc_list_fn *each, void *context)
{
    if (!x.has_primitive() || !t->listed.insert(x.id()).second) return;
    for (const mx::array &sibling : x.siblings()) t->listed.insert(sibling.id()); // results of one primitive count once
    for (const mx::array &in : x.inputs()) list(t, in, false, each, context);
    each(context, x.primitive().name(), type_of(x), last);
}

} // namespace

// --- devices ---

int mxc_gpu_present(void)
{
    try {
        return mx::is_available(mx::Device(mx::Device::gpu)) ? 1 : 0;
    } catch (...) {
        return 0;
    }
}

const char *mxc_version(void)
{
    try {
        return mx::version();
    } catch (...) {
        return "";
    }
}

void mxc_device_facts(int gpu, char *name, size_t cap, uint64_t *memory)
{
    name[0] = 0;
    *memory = 0;
    try {
        const mx::Device device(gpu ? mx::Device::gpu : mx::Device::cpu); // named: the facts are a reference
        const auto &info = mx::device_info(device);
        auto found = info.find("device_name");
        if (found != info.end() && std::holds_alternative<std::string>(found->second))
            std::snprintf(name, cap, "%s", std::get<std::string>(found->second).c_str());
        found = info.find("memory_size");
        if (found == info.end()) found = info.find("total_memory");
        if (found != info.end() && std::holds_alternative<size_t>(found->second)) *memory = std::get<size_t>(found->second);
    } catch (...) {
        name[0] = 0;
    }
}

struct mxc_device *mxc_device_new(int gpu, char *text)
{
    text[0] = 0;
    try {
        return new mxc_device{mx::new_stream(mx::Device(gpu ? mx::Device::gpu : mx::Device::cpu))};
    } catch (const std::exception &e) {
        std::snprintf(text, MXC_TEXT, "%s", e.what());
    } catch (...) {
        std::snprintf(text, MXC_TEXT, "unknown exception");
    }
    return nullptr;
}

void mxc_device_free(struct mxc_device *d)
{
    if (!d) return;
    try {
        mx::synchronize(d->stream);
        mx::clear_streams();
    } catch (...) { // nothing can be reported here, and the device is not used again
    }
    delete d;
}

// --- tapes and held arrays ---

struct mxc_tape *mxc_tape_new(struct mxc_device *d)
{
    mxc_tape *t = new (std::nothrow) mxc_tape();
    if (t) t->device = d;
    return t;
}

void mxc_tape_free(struct mxc_tape *t) { delete t; }

void mxc_tape_clear(struct mxc_tape *t)
{
    t->arrays.clear();
    t->listed.clear();
    t->failed = false;
}

const char *mxc_error(const struct mxc_tape *t) { return t->failed ? t->text : nullptr; }

uint64_t mxc_count(const struct mxc_tape *t) { return t->arrays.size(); }

struct mxc_held *mxc_keep(struct mxc_tape *t, mxc_ref x)
{
    if (t->failed) return nullptr;
    try {
        return new mxc_held{at(t, x)};
    } catch (const std::exception &e) {
        fail(t, "keep", e.what());
    }
    return nullptr;
}

struct mxc_held *mxc_share(const struct mxc_held *h)
{
    try {
        return new mxc_held{h->array};
    } catch (...) {
        return nullptr;
    }
}

void mxc_release(struct mxc_held *h) { delete h; }

uint64_t mxc_held_bytes(const struct mxc_held *h) { return h ? h->array.nbytes() : 0; }

mxc_ref mxc_use(struct mxc_tape *t, const struct mxc_held *h)
{
    return append(t, "use", [&] {
        if (!h) throw std::runtime_error("an array is absent");
        return h->array;
    });
}

void mxc_forget(struct mxc_tape *t, mxc_ref x)
{
    if (x >= 0 && static_cast<size_t>(x) < t->arrays.size()) t->arrays[static_cast<size_t>(x)].reset();
}

void mxc_list(struct mxc_tape *t, mxc_ref x, mxc_list_fn *each, void *context)
{
    if (t->failed) return;
    try {
        list(t, at(t, x), true, each, context);
    } catch (const std::exception &e) {
        fail(t, "list", e.what());
    } catch (...) {
        fail(t, "list", "unknown exception");
    }
}

// --- data ---

mxc_ref mxc_from(struct mxc_tape *t, const void *data, enum mxc_type type, const uint32_t *shape, uint32_t dims)
{
    return append(t, "copy data", [&] {
        mx::Shape dimensions = shape_of(shape, dims);
        switch (type) {
        case MXC_F16: return mx::array(static_cast<const mx::float16_t *>(data), dimensions, mx::float16);
        case MXC_BF16: return mx::array(static_cast<const mx::bfloat16_t *>(data), dimensions, mx::bfloat16);
        case MXC_U32: return mx::array(static_cast<const uint32_t *>(data), dimensions, mx::uint32);
        case MXC_I32: return mx::array(static_cast<const int32_t *>(data), dimensions, mx::int32);
        default: return mx::array(static_cast<const float *>(data), dimensions, mx::float32);
        }
    });
}

mxc_ref mxc_column(struct mxc_tape *t, const float *numbers, enum mxc_type type, uint32_t n)
{
    return append(t, "copy data", [&] { return mx::array(numbers, mx::Shape{static_cast<int>(n), 1, 1}, types[type]); });
}

mxc_ref mxc_zeros(struct mxc_tape *t, enum mxc_type type, const uint32_t *shape, uint32_t dims)
{
    return append(t, "zeros", [&] { return mx::zeros(shape_of(shape, dims), types[type], t->device->stream); });
}

enum mxc_type mxc_type_of(const struct mxc_tape *t, mxc_ref x)
{
    if (x < 0 || static_cast<size_t>(x) >= t->arrays.size() || !t->arrays[static_cast<size_t>(x)]) return MXC_F32;
    return type_of(*t->arrays[static_cast<size_t>(x)]);
}

uint32_t mxc_dim(const struct mxc_tape *t, mxc_ref x, uint32_t axis)
{
    if (x < 0 || static_cast<size_t>(x) >= t->arrays.size() || !t->arrays[static_cast<size_t>(x)]) return 0;
    return static_cast<uint32_t>(t->arrays[static_cast<size_t>(x)]->shape(static_cast<int>(axis)));
}

int mxc_eval(struct mxc_tape *t, const mxc_ref *x, uint32_t n)
{
    if (t->failed) return 0;
    try {
        std::vector<mx::array> list;
        for (uint32_t i = 0; i < n; i++)
            if (x[i] != MXC_NONE) list.push_back(at(t, x[i]));
        mx::eval(std::move(list));
        return 1;
    } catch (const std::exception &e) {
        fail(t, "evaluate", e.what());
    } catch (...) {
        fail(t, "evaluate", "unknown exception");
    }
    return 0;
}

int mxc_issue(struct mxc_tape *t, const mxc_ref *x, uint32_t n)
{
    if (t->failed) return 0;
    try {
        std::vector<mx::array> list;
        for (uint32_t i = 0; i < n; i++)
            if (x[i] != MXC_NONE) list.push_back(at(t, x[i]));
        mx::async_eval(std::move(list));
        return 1;
    } catch (const std::exception &e) {
        fail(t, "evaluate", e.what());
    } catch (...) {
        fail(t, "evaluate", "unknown exception");
    }
    return 0;
}

int mxc_wait(struct mxc_tape *t, const struct mxc_held *h)
{
    if (t->failed) return 0;
    try {
        mx::array(h->array).eval();
        return 1;
    } catch (const std::exception &e) {
        fail(t, "evaluate", e.what());
    } catch (...) {
        fail(t, "evaluate", "unknown exception");
    }
    return 0;
}

int mxc_read(struct mxc_tape *t, mxc_ref x, void *out, size_t bytes)
{
    if (t->failed) return 0;
    try {
        mx::array dense = at(t, x);
        dense.eval();
        if (!dense.flags().row_contiguous) { // after everything that was issued before
            dense = mx::contiguous(dense, false, t->device->stream);
            dense.eval();
        }
        if (dense.nbytes() != bytes) throw std::runtime_error("the array has another size");
        std::memcpy(out, dense.data<char>(), bytes);
        return 1;
    } catch (const std::exception &e) {
        fail(t, "read", e.what());
    } catch (...) {
        fail(t, "read", "unknown exception");
    }
    return 0;
}

int mxc_read_number(struct mxc_tape *t, mxc_ref x, float *out)
{
    uint32_t bits = 0;
    enum mxc_type type = mxc_type_of(t, x);
    if (!mxc_read(t, x, &bits, type == MXC_F32 ? sizeof(float) : sizeof(uint16_t))) return 0;
    uint16_t half = static_cast<uint16_t>(bits);
    mx::float16_t f16;
    mx::bfloat16_t bf16;
    std::memcpy(&f16, &half, sizeof half);
    std::memcpy(&bf16, &half, sizeof half);
    if (type == MXC_F32) std::memcpy(out, &bits, sizeof bits);
    else *out = type == MXC_F16 ? static_cast<float>(f16) : static_cast<float>(bf16);
    return 1;
}

void mxc_free_unused(void)
{
    try {
        mx::clear_cache();
    } catch (...) { // it stays in use
    }
}

// 0 times a number is 0, or NaN if the number is not finite.
mxc_ref mxc_flag(struct mxc_tape *t, mxc_ref x, mxc_ref before)
{
    return append(t, "range", [&] {
        mx::Stream s = t->device->stream;
        mx::array zero = mx::astype(mx::sum(mx::multiply(at(t, x), like(0, at(t, x)), s), s), mx::float32, s);
        return before == MXC_NONE ? zero : mx::add(zero, at(t, before), s);
    });
}

uint64_t mxc_count_infinite(struct mxc_tape *t, mxc_ref x)
{
    if (t->failed) return 0;
    try {
        mx::Stream s = t->device->stream;
        mx::array n = mx::sum(mx::astype(mx::logical_not(mx::isfinite(at(t, x), s), s), mx::uint32, s), s);
        return n.item<uint32_t>();
    } catch (const std::exception &e) {
        fail(t, "range", e.what());
    } catch (...) {
        fail(t, "range", "unknown exception");
    }
    return 0;
}

// --- memory ---

// Lengths of MLX's axes are int: rows of LINE numbers reach 128 GiB.
constexpr int LINE = 16;

struct mxc_memory {
    mx::array numbers; // fp32 [lines, LINE], with room to begin at a multiple of 64 bytes
    size_t skip;       // bytes before it
};

int mxc_unified(const struct mxc_device *d)
{
    try {
        return d->stream.device == mx::Device::cpu || mx::metal::is_available();
    } catch (...) {
        return 0;
    }
}

struct mxc_memory *mxc_memory_new(size_t bytes, void **address)
{
    try {
        constexpr size_t line = LINE * sizeof(float);
        size_t lines = bytes / line + 2;
        if (lines > static_cast<size_t>(std::numeric_limits<int>::max())) return nullptr;
        mx::array numbers(mx::allocator::malloc(lines * line), mx::Shape{static_cast<int>(lines), LINE}, mx::float32);
        size_t skip = (64 - reinterpret_cast<std::uintptr_t>(numbers.data<char>()) % 64) % 64;
        *address = numbers.data<char>() + skip;
        return new mxc_memory{numbers, skip};
    } catch (...) {
        return nullptr;
    }
}

void mxc_memory_free(struct mxc_memory *m) { delete m; }

// Of an array that is computed already: no axis of another array has to be as long as the memory.
mxc_ref mxc_of_memory(struct mxc_tape *t, const struct mxc_memory *m, size_t offset, enum mxc_type type, const uint32_t *shape,
                      uint32_t dims)
{
    return append(t, "share memory", [&] {
        size_t n = 1, longest = 1;
        mx::Strides strides(dims, 1);
        for (uint32_t i = dims; i-- > 0;) {
            strides[i] = static_cast<int64_t>(n);
            n *= shape[i];
            if (shape[i] > longest) longest = shape[i];
        }
        if (offset > m->numbers.nbytes() - m->skip || n * types[type].size() > m->numbers.nbytes() - m->skip - offset)
            throw std::runtime_error("beyond the memory");
        mx::array numbers(shape_of(shape, dims), types[type], nullptr, {});
        numbers.copy_shared_buffer(m->numbers, strides, {true, true, longest == n}, n,
                                   static_cast<int64_t>((m->skip + offset) / types[type].size()));
        numbers.set_status(mx::array::Status::available);
        return numbers;
    });
}

// --- closures ---

namespace {

std::vector<mx::array> build(mxc_device *d, mxc_build_fn *f, void *context, uint32_t out_n, const std::vector<mx::array> &in)
{
    mxc_tape t;
    t.device = d;
    std::vector<mxc_ref> from(in.size()), to(out_n, MXC_NONE);
    for (size_t i = 0; i < in.size(); i++) {
        t.arrays.emplace_back(in[i]);
        from[i] = static_cast<mxc_ref>(i);
    }
    if (!f(context, &t, from.data(), static_cast<uint32_t>(from.size()), to.data(), out_n))
        throw std::runtime_error(t.failed ? t.text : "no memory");
    std::vector<mx::array> out;
    for (mxc_ref x : to) out.push_back(at(&t, x));
    return out;
}

} // namespace

struct mxc_closure *mxc_closure_new(struct mxc_device *d, mxc_build_fn *f, void *context, uint32_t out_n)
{
    try {
        std::function<std::vector<mx::array>(const std::vector<mx::array> &)> plain =
            [=](const std::vector<mx::array> &in) { return build(d, f, context, out_n, in); };
        int gpu = mxc_gpu_present();
        if (gpu && d->stream.device == mx::Device::cpu) return new mxc_closure{plain};
        mx::set_compile_mode(gpu || d->fuses ? mx::CompileMode::enabled : mx::CompileMode::no_fuse);
        return new mxc_closure{mx::compile(plain)};
    } catch (...) {
        return nullptr;
    }
}

void mxc_fuse(struct mxc_device *d) { d->fuses = true; }

void mxc_closure_free(struct mxc_closure *c) { delete c; }

int mxc_closure_call(struct mxc_tape *t, struct mxc_closure *c, const mxc_ref *in, uint32_t in_n, mxc_ref *out, uint32_t out_n)
{
    if (t->failed) return 0;
    try {
        std::vector<mx::array> from;
        for (uint32_t i = 0; i < in_n; i++) from.push_back(at(t, in[i]));
        std::vector<mx::array> to = c->call(from);
        if (to.size() != out_n) throw std::runtime_error("a closure has another number of outputs");
        for (uint32_t i = 0; i < out_n; i++) {
            t->arrays.emplace_back(to[i]);
            out[i] = static_cast<mxc_ref>(t->arrays.size() - 1);
        }
        return 1;
    } catch (const std::exception &e) {
        fail(t, "compiled step", e.what());
    } catch (...) {
        fail(t, "compiled step", "unknown exception");
    }
    return 0;
}
