// mxc_ops.cpp: see mxc.h: shapes, arithmetic, fused operations.
// SPDX-License-Identifier: MIT
#include <limits>

#include "unit/mlx/mxc_tape.hpp"

using namespace mxc;

namespace {

mx::array sigmoid_times(const mx::array &x, float factor, mx::Stream s)
{
    mx::array inner = factor == 1 ? x : mx::multiply(x, like(factor, x), s);
    return mx::multiply(x, mx::sigmoid(inner, s), s);
}

mx::array gelu(const mx::array &x, mx::Stream s)
{
    mx::array e = mx::erf(mx::multiply(x, like(0.70710678118654752, x), s), s);
    return mx::multiply(mx::multiply(like(0.5, x), x, s), mx::add(like(1, x), e, s), s);
}

// The terms in the order of mlx-lm's, so that 16-bit types round alike.
mx::array gelu_tanh(const mx::array &x, mx::Stream s)
{
    mx::array cube = mx::multiply(like(0.044715, x), mx::power(x, like(3, x), s), s);
    mx::array inner = mx::multiply(like(0.79788456080286536, x), mx::add(x, cube, s), s);
    return mx::multiply(mx::multiply(like(0.5, x), x, s), mx::add(like(1, x), mx::tanh(inner, s), s), s);
}

mx::array act_of(const mx::array &x, mxc_act act, mx::Stream s)
{
    switch (act) {
    case MXC_ACT_SILU: return sigmoid_times(x, 1, s);
    case MXC_ACT_GELU: return gelu(x, s);
    case MXC_ACT_GELU_TANH: return gelu_tanh(x, s);
    case MXC_ACT_GELU_QUICK: return sigmoid_times(x, 1.702f, s);
    case MXC_ACT_RELU: return mx::maximum(x, like(0, x), s);
    case MXC_ACT_RELU2: return mx::square(mx::maximum(x, like(0, x), s), s);
    case MXC_ACT_SIGMOID: return mx::sigmoid(x, s);
    case MXC_ACT_TANH: return mx::tanh(x, s);
    case MXC_ACT_SOFTPLUS: return mx::logaddexp(x, like(0, x), s);
    case MXC_ACT_EXP: return mx::exp(x, s);
    default: return x;
    }
}

// true where query row i of T may attend to key j of S: [T, S].
mx::array causal_mask(int rows, int keys, uint32_t window, mx::Stream s)
{
    mx::array q = mx::expand_dims(mx::arange(keys - rows, keys, 1, mx::int32, s), 1, s);
    mx::array k = mx::expand_dims(mx::arange(0, keys, 1, mx::int32, s), 0, s);
    mx::array mask = mx::greater_equal(q, k, s);
    if (!window) return mask;
    mx::array last = mx::subtract(q, mx::array(static_cast<int>(window)), s);
    return mx::logical_and(mask, mx::greater(k, last, s), s);
}

// Attention with softcap, which MLX has not fused: scores, tanh, mask, softmax, product. Grouped heads are one more axis.
mx::array attend_softcap(const mxc_tape *t, const mxc_attention *a, const std::optional<mx::array> &mask)
{
    mx::Stream s = t->device->stream;
    const mx::array &q = at(t, a->q), &k = at(t, a->k), &v = at(t, a->v);
    int heads = q.shape(1), kv = k.shape(1), rows = q.shape(2);
    mx::array q5 = mx::reshape(q, {1, kv, heads / kv, rows, q.shape(3)}, s);
    mx::array k5 = mx::expand_dims(k, 2, s), v5 = mx::expand_dims(v, 2, s);
    mx::array scores = mx::matmul(mx::multiply(q5, like(a->scale, q), s), mx::swapaxes(k5, -1, -2, s), s);
    scores = mx::multiply(mx::tanh(mx::multiply(scores, like(1.0 / a->softcap, q), s), s), like(a->softcap, q), s);
    if (mask) scores = mx::where(*mask, scores, like(-std::numeric_limits<float>::infinity(), q), s);
    if (a->sinks != MXC_NONE) {
        mx::array sinks = mx::reshape(at(t, a->sinks), {1, kv, heads / kv, 1, 1}, s);
        sinks = mx::broadcast_to(sinks, {1, kv, heads / kv, rows, 1}, s);
        mx::array weights = mx::softmax(mx::concatenate({scores, sinks}, -1, s), std::vector<int>{-1}, true, s);
        scores = mx::slice(weights, {0, 0, 0, 0, 0}, {1, kv, heads / kv, rows, k.shape(2)}, s);
    } else {
        scores = mx::softmax(scores, std::vector<int>{-1}, true, s);
    }
    return mx::reshape(mx::matmul(scores, v5, s), {1, heads, rows, v.shape(3)}, s);
}

} // namespace

// --- shapes ---

mxc_ref mxc_cast(struct mxc_tape *t, mxc_ref x, enum mxc_type type)
{
    return append(t, "cast", [&] { return mx::astype(at(t, x), types[type], t->device->stream); });
}

mxc_ref mxc_reshape(struct mxc_tape *t, mxc_ref x, const uint32_t *shape, uint32_t dims)
{
    return append(t, "reshape", [&] { return mx::reshape(at(t, x), shape_of(shape, dims), t->device->stream); });
}

mxc_ref mxc_transpose(struct mxc_tape *t, mxc_ref x, const int *axes, uint32_t dims)
{
    return append(t, "transpose",
                  [&] { return mx::transpose(at(t, x), std::vector<int>(axes, axes + dims), t->device->stream); });
}

mxc_ref mxc_slice(struct mxc_tape *t, mxc_ref x, uint32_t axis, uint32_t from, uint32_t to)
{
    return append(t, "slice", [&] {
        const mx::array &a = at(t, x);
        mx::Shape start(a.ndim(), 0), stop = a.shape();
        start[axis] = static_cast<int>(from);
        stop[axis] = static_cast<int>(to);
        return mx::slice(a, start, stop, t->device->stream);
    });
}

mxc_ref mxc_copy(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "copy", [&] { return mx::contiguous(at(t, x), false, t->device->stream); });
}

mxc_ref mxc_concat(struct mxc_tape *t, const mxc_ref *x, uint32_t n, uint32_t axis)
{
    return append(t, "concatenate", [&] {
        std::vector<mx::array> list;
        for (uint32_t i = 0; i < n; i++) list.push_back(at(t, x[i]));
        return mx::concatenate(std::move(list), static_cast<int>(axis), t->device->stream);
    });
}

mxc_ref mxc_take(struct mxc_tape *t, mxc_ref x, mxc_ref indices, uint32_t axis)
{
    return append(t, "take", [&] { return mx::take(at(t, x), at(t, indices), static_cast<int>(axis), t->device->stream); });
}

mxc_ref mxc_put(struct mxc_tape *t, mxc_ref x, mxc_ref update, uint32_t axis, uint32_t from)
{
    return append(t, "update", [&] {
        const mx::array &a = at(t, x), &u = at(t, update);
        mx::Shape start(a.ndim(), 0), stop = a.shape();
        start[axis] = static_cast<int>(from);
        stop[axis] = static_cast<int>(from) + u.shape(static_cast<int>(axis));
        return mx::slice_update(a, u, start, stop, t->device->stream);
    });
}

// The scale is the largest magnitude / 127, stored as fp16. Codes are computed with the scale before its rounding.
mxc_ref mxc_round_q8(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "round to q8", [&] {
        mx::Stream s = t->device->stream;
        const mx::array &a = at(t, x);
        mx::Shape shape = a.shape(), blocks = a.shape();
        int width = shape.back(), padded = (width + 31) / 32 * 32;
        blocks.back() = padded / 32;
        blocks.push_back(32);
        mx::array b =
            padded == width ? a : mx::pad(a, std::vector<int>{-1}, {0}, {padded - width}, mx::array(0.0f), "constant", s);
        b = mx::reshape(b, blocks, s);
        mx::array scale = mx::divide(mx::max(mx::abs(b, s), -1, true, s), mx::array(127.0f), s);
        mx::array divisor = mx::where(mx::equal(scale, mx::array(0.0f), s), mx::array(1.0f), scale, s);
        mx::array stored = mx::astype(mx::astype(scale, mx::float16, s), mx::float32, s);
        b = mx::multiply(mx::round(mx::divide(b, divisor, s), 0, s), stored, s);
        shape.back() = padded;
        b = mx::reshape(b, shape, s);
        shape.back() = width;
        return padded == width ? b : mx::slice(b, mx::Shape(shape.size(), 0), shape, s);
    });
}

// --- arithmetic ---

mxc_ref mxc_add(struct mxc_tape *t, mxc_ref x, mxc_ref y)
{
    return append(t, "add", [&] { return mx::add(at(t, x), at(t, y), t->device->stream); });
}

mxc_ref mxc_multiply(struct mxc_tape *t, mxc_ref x, mxc_ref y)
{
    return append(t, "multiply", [&] { return mx::multiply(at(t, x), at(t, y), t->device->stream); });
}

mxc_ref mxc_scale(struct mxc_tape *t, mxc_ref x, double value)
{
    return append(t, "scale", [&] { return mx::multiply(at(t, x), like(value, at(t, x)), t->device->stream); });
}

mxc_ref mxc_divide(struct mxc_tape *t, mxc_ref x, mxc_ref y)
{
    return append(t, "divide", [&] { return mx::divide(at(t, x), at(t, y), t->device->stream); });
}

mxc_ref mxc_activate(struct mxc_tape *t, mxc_ref x, enum mxc_act act)
{
    return append(t, "activate", [&] { return act_of(at(t, x), act, t->device->stream); });
}

mxc_ref mxc_softmax(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "softmax", [&] { return mx::softmax(at(t, x), std::vector<int>{-1}, true, t->device->stream); });
}

mxc_ref mxc_total(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "sum", [&] { return mx::sum(at(t, x), t->device->stream); });
}

mxc_ref mxc_sum(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "sum", [&] { return mx::sum(at(t, x), -1, true, t->device->stream); });
}

mxc_ref mxc_clip(struct mxc_tape *t, mxc_ref x, int32_t lowest, int32_t highest)
{
    return append(t, "clip", [&] {
        return mx::clip(at(t, x), mx::array(lowest, mx::int32), mx::array(highest, mx::int32), t->device->stream);
    });
}

mxc_ref mxc_argmax(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "argmax", [&] { return mx::argmax(at(t, x), -1, false, t->device->stream); });
}

mxc_ref mxc_order(struct mxc_tape *t, mxc_ref x)
{
    return append(t, "sort", [&] { return mx::argsort(at(t, x), -1, t->device->stream); });
}

mxc_ref mxc_take_along(struct mxc_tape *t, mxc_ref x, mxc_ref indices)
{
    return append(t, "take", [&] { return mx::take_along_axis(at(t, x), at(t, indices), -1, t->device->stream); });
}

mxc_ref mxc_linear(struct mxc_tape *t, mxc_ref x, mxc_ref w, mxc_ref bias)
{
    return append(t, "linear", [&] {
        mx::Stream s = t->device->stream;
        mx::array columns = mx::transpose(at(t, w), s);
        return bias == MXC_NONE ? mx::matmul(at(t, x), columns, s) : mx::addmm(at(t, bias), at(t, x), columns, 1, 1, s);
    });
}

mxc_ref mxc_linear_affine(struct mxc_tape *t, mxc_ref x, const struct mxc_affine *w)
{
    return append(t, "quantised linear", [&] {
        return mx::quantized_matmul(at(t, x), at(t, w->codes), at(t, w->scales), at(t, w->biases), true,
                                    static_cast<int>(w->group), static_cast<int>(w->bits), "affine", t->device->stream);
    });
}

mxc_ref mxc_decode(struct mxc_tape *t, const struct mxc_affine *w)
{
    return append(t, "dequantise", [&] {
        return mx::dequantize(at(t, w->codes), at(t, w->scales), at(t, w->biases), static_cast<int>(w->group),
                              static_cast<int>(w->bits), "affine", std::nullopt, std::nullopt, t->device->stream);
    });
}

// The product of each row with each of its experts is a product with one row: [T, e, 1, k] x [k, n].
mxc_ref mxc_linear_experts(struct mxc_tape *t, mxc_ref x, mxc_ref w, mxc_ref which)
{
    return append(t, "linear of experts", [&] {
        mx::Stream s = t->device->stream;
        mx::Dtype type = at(t, x).dtype(), with = s.device == mx::Device::cpu ? mx::float32 : type; // the CPU has fp32 only
        mx::array weights = mx::astype(mx::swapaxes(at(t, w), -1, -2, s), with, s);
        mx::array rows = mx::astype(mx::expand_dims(at(t, x), -2, s), with, s);
        mx::array y = mx::gather_mm(rows, weights, std::nullopt, at(t, which), false, s);
        return mx::astype(mx::squeeze(y, -2, s), type, s);
    });
}

mxc_ref mxc_affine_experts(struct mxc_tape *t, mxc_ref x, const struct mxc_affine *w, mxc_ref which)
{
    return append(t, "quantised linear of experts", [&] {
        mx::Stream s = t->device->stream;
        mx::array y = mx::gather_qmm(mx::expand_dims(at(t, x), -2, s), at(t, w->codes), at(t, w->scales), at(t, w->biases),
                                     std::nullopt, at(t, which), true, static_cast<int>(w->group), static_cast<int>(w->bits),
                                     "affine", std::nullopt, false, s);
        return mx::squeeze(y, -2, s);
    });
}

// --- fused operations ---

mxc_ref mxc_rms_norm(struct mxc_tape *t, mxc_ref x, mxc_ref weight, float eps)
{
    return append(t, "rms norm", [&] { return mx::fast::rms_norm(at(t, x), maybe(t, weight), eps, t->device->stream); });
}

mxc_ref mxc_layer_norm(struct mxc_tape *t, mxc_ref x, mxc_ref weight, mxc_ref bias, float eps)
{
    return append(t, "layer norm", [&] {
        return mx::fast::layer_norm(at(t, x), maybe(t, weight), maybe(t, bias), eps, t->device->stream);
    });
}

mxc_ref mxc_rope(struct mxc_tape *t, mxc_ref x, mxc_ref periods, uint32_t pairs, uint32_t offset)
{
    return append(t, "rope", [&] {
        return mx::fast::rope(at(t, x), static_cast<int>(2 * pairs), false, std::nullopt, 1.0f, static_cast<int>(offset),
                              at(t, periods), t->device->stream);
    });
}

mxc_ref mxc_rope_at(struct mxc_tape *t, mxc_ref x, mxc_ref periods, uint32_t pairs, mxc_ref positions)
{
    return append(t, "rope", [&] {
        return mx::fast::rope(at(t, x), static_cast<int>(2 * pairs), false, std::nullopt, 1.0f, at(t, positions), at(t, periods),
                              t->device->stream);
    });
}

mxc_ref mxc_attend(struct mxc_tape *t, const struct mxc_attention *a)
{
    return append(t, "attention", [&] {
        mx::Stream s = t->device->stream;
        int rows = at(t, a->q).shape(2), keys = at(t, a->k).shape(2);
        uint32_t window = a->window && static_cast<int>(a->window) < keys ? a->window : 0;
        std::optional<mx::array> mask;
        if (window || (a->softcap > 0 && rows > 1)) mask = causal_mask(rows, keys, window, s);
        if (a->softcap > 0) return attend_softcap(t, a, mask);
        return mx::fast::scaled_dot_product_attention(at(t, a->q), at(t, a->k), at(t, a->v), a->scale,
                                                      mask || rows == 1 ? "" : "causal", mask, maybe(t, a->sinks), false, s);
    });
}

mxc_ref mxc_convolve(struct mxc_tape *t, mxc_ref x, mxc_ref weight)
{
    return append(t, "convolution", [&] {
        return mx::conv1d(at(t, x), at(t, weight), 1, 0, 1, at(t, x).shape(2), t->device->stream);
    });
}

namespace {

// One row, where MLX has no kernel for the rule (the CPU, CUDA): its own composition would cut every operand into rows, and
// store the decayed memory. Here MLX fuses all but the two sums into two kernels. Value heads that share a key head are one more
// axis, along which q and k are not copied; the new state keeps it, since a kernel whose result is reshaped is not fused further.
std::vector<mx::array> delta_row(const mxc_tape *t, const mxc_ref qkv[3], mxc_ref decay, mxc_ref beta, mxc_ref state)
{
    mx::Stream s = t->device->stream;
    const mx::array &whole = at(t, state), &v = at(t, qkv[2]);
    int heads = whole.shape(1), dv = whole.shape(2), dk = whole.shape(3);
    int keys = static_cast<int>(at(t, qkv[0]).size()) / dk, times = heads / keys;
    auto shaped = [&](const mx::array &x, bool of_key, int rows, int columns) {
        mx::Shape shape{1, keys};
        if (times > 1) shape.push_back(of_key ? 1 : times);
        shape.push_back(rows);
        shape.push_back(columns);
        return mx::reshape(x, shape, s);
    };
    mx::array q = shaped(at(t, qkv[0]), true, 1, dk), k = shaped(at(t, qkv[1]), true, 1, dk);
    mx::array memory = shaped(whole, false, dv, dk), kept = shaped(at(t, decay), false, 1, 1);
    mx::array known = mx::sum(mx::multiply(memory, mx::multiply(kept, k, s), s), -1, true, s);
    mx::array change = mx::subtract(shaped(v, false, dv, 1), known, s);
    change = mx::multiply(change, shaped(at(t, beta), false, 1, 1), s);
    mx::array next = mx::add(mx::multiply(memory, kept, s), mx::multiply(k, change, s), s);
    mx::array y = mx::sum(mx::multiply(next, q, s), -1, false, s);
    return {mx::reshape(y, v.shape(), s), next};
}

std::vector<mx::array> delta_rows(const mxc_tape *t, const mxc_ref qkv[3], mxc_ref decay, mxc_ref beta, mxc_ref state)
{
    mx::Stream s = t->device->stream;
    const mx::array &memory = at(t, state), &v = at(t, qkv[2]);
    int rows = v.shape(0), heads = memory.shape(1), dv = memory.shape(2), dk = memory.shape(3);
    auto by_row = [&](mxc_ref x, mx::Shape shape) { return mx::reshape(at(t, x), shape, s); };
    int keys = static_cast<int>(at(t, qkv[0]).size()) / (rows * dk);
    std::vector<mx::array> both = mx::fast::gated_delta_update(
        by_row(qkv[0], {1, rows, keys, dk}), by_row(qkv[1], {1, rows, keys, dk}), by_row(qkv[2], {1, rows, heads, dv}),
        by_row(decay, {1, rows, heads}), by_row(beta, {1, rows, heads}), memory, std::nullopt, s);
    return {mx::reshape(both[0], v.shape(), s), both[1]};
}

} // namespace

mxc_ref mxc_delta(struct mxc_tape *t, const mxc_ref qkv[3], mxc_ref decay, mxc_ref beta, mxc_ref state, mxc_ref *next)
{
    mx::array *last = nullptr;
    std::vector<mx::array> both;
    mxc_ref out = append(t, "delta rule", [&] {
        bool row = at(t, qkv[2]).shape(0) == 1 && !mx::metal::is_available();
        both = row ? delta_row(t, qkv, decay, beta, state) : delta_rows(t, qkv, decay, beta, state);
        last = &both[1];
        return both[0];
    });
    *next = append(t, "delta rule", [&] { return *last; });
    return out;
}
