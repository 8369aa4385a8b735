/* milconst.c: reads the constant arguments of an operation; see milinfer.h. Both the type rules and the
 * software NPU use these functions, so that they cannot disagree about axes, slices and convolution
 * geometry.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milinfer.h"

#include <string.h>

/* Results of these operations are part of the compiled program. */
int sg_mil_is_const_op(const struct sg_mil_op *op)
{
    return !strcmp(op->kind, "const") || !strncmp(op->kind, "constexpr_", 10);
}

/* A dequantize of a constant is one too: its numbers stay in 8 bits, and no handler runs. */
int sg_mil_is_const_value(const struct sg_mil_function *f, uint32_t value)
{
    uint32_t at = f->values[value].op;
    const struct sg_mil_op *op = at != SG_MIL_NONE ? &f->ops[at] : NULL;
    if (!op) return 0;
    return sg_mil_is_const_op(op) || (!strcmp(op->kind, "dequantize") && sg_mil_const_literal(f, op, "input"));
}

/* The operation that computes an argument; NULL: a constant in the text, a list, or an input of the function. */
static const struct sg_mil_op *source_of(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(op, name);
    uint32_t at = a && a->kind == SG_MIL_REF ? f->values[a->v.ref].op : SG_MIL_NONE;
    return at != SG_MIL_NONE ? &f->ops[at] : NULL;
}

int sg_mil_is_int8_product(const struct sg_mil_function *f, const struct sg_mil_op *op)
{
    const char *other = !strcmp(op->kind, "matmul") ? "y" : "weight";
    const struct sg_mil_op *x = source_of(f, op, "x"), *w = source_of(f, op, other);
    return x && w && !strcmp(x->kind, "dequantize") && !strcmp(w->kind, "dequantize");
}

const struct sg_mil_literal *sg_mil_const_literal(const struct sg_mil_function *f, const struct sg_mil_op *op,
                                                  const char *name)
{
    const struct sg_mil_arg *a = sg_mil_arg_find(op, name);
    return a ? sg_mil_arg_literal(f, a) : sg_mil_attr_find(op, name);
}

/* Works for scalars and vectors; a literal of one repeated number fills all elements. 2 * SG_MIL_DIMS is
 * the longest list that an operation takes: pad has two numbers per axis. */
int sg_mil_const_ints(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name, int64_t *out,
                      uint32_t *n)
{
    const struct sg_mil_literal *l = sg_mil_const_literal(f, op, name);
    *n = 0;
    if (!l || l->kind != SG_MIL_NUMBERS) return 0;
    uint64_t elements = l->type.rank ? sg_mil_elements(&l->type) : 1;
    if (elements > 2 * SG_MIL_DIMS) return 0;
    for (*n = 0; *n < elements; ++*n) out[*n] = sg_mil_literal_int(l, *n);
    return 1;
}

int64_t sg_mil_const_int(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name,
                         int64_t fallback)
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    return sg_mil_const_ints(f, op, name, v, &n) && n ? v[0] : fallback;
}

const char *sg_mil_const_text(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name)
{
    const struct sg_mil_literal *l = sg_mil_const_literal(f, op, name);
    return l && l->kind == SG_MIL_TEXT ? l->v.text : NULL;
}

/* An absent argument means all axes; a present one that cannot be read is an error, not the default. */
uint32_t sg_mil_const_axes(const struct sg_mil_function *f, const struct sg_mil_op *op, uint32_t rank)
{
    int64_t axes[2 * SG_MIL_DIMS];
    uint32_t n, set = 0;
    if (!sg_mil_const_ints(f, op, "axes", axes, &n)) return sg_mil_arg_find(op, "axes") ? 0 : (1u << rank) - 1;
    for (uint32_t i = 0; i < n; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
        if (axis < 0 || axis >= rank) return 0;
        set |= 1u << axis;
    }
    return set;
}

/* Element `axis` of a mask argument; a mask of one element counts for all axes, an absent one is 0. */
static int mask_bit(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name,
                    uint32_t axis)
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    return sg_mil_const_ints(f, op, name, v, &n) && (n == 1 ? v[0] != 0 : axis < n && v[axis] != 0);
}

/* Bounds as in NumPy: negative ones count from the end, begin_mask and end_mask ignore a bound, a negative
 * stride walks backwards, and an end outside the axis is clamped. squeeze_mask selects the single element
 * at begin. A begin outside the axis and an empty slice are rejected. */
int sg_mil_slice(const struct sg_mil_function *f, const struct sg_mil_op *op, const struct sg_mil_type *x,
                 int64_t *begin, int64_t *count, int64_t *step, uint32_t *squeezed)
{
    int64_t b[2 * SG_MIL_DIMS], e[2 * SG_MIL_DIMS], s[2 * SG_MIL_DIMS];
    uint32_t nb, ne, ns; /* b, e, s: begin, end and stride as written, and their counts */
    *squeezed = 0;
    if (!sg_mil_const_ints(f, op, "begin", b, &nb) || !sg_mil_const_ints(f, op, "end", e, &ne) || nb != x->rank ||
        ne != x->rank)
        return 0;
    if (!sg_mil_const_ints(f, op, "stride", s, &ns)) {
        if (sg_mil_arg_find(op, "stride")) return 0;
        for (ns = 0; ns < x->rank; ns++) s[ns] = 1;
    }
    if (ns != x->rank) return 0;
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t dim = x->dim[i];
        /* The limit on the stride keeps the sums below within 64 bits. */
        if (!s[i] || s[i] > dim || s[i] < -dim) return 0;
        int64_t from = b[i] < 0 ? b[i] + dim : b[i], to = e[i] < 0 ? e[i] + dim : e[i];
        if (mask_bit(f, op, "begin_mask", i)) from = s[i] > 0 ? 0 : dim - 1;
        if (mask_bit(f, op, "end_mask", i)) to = s[i] > 0 ? dim : -1;
        /* A squeezed axis has one element, whatever its end and stride are. */
        if (mask_bit(f, op, "squeeze_mask", i)) {
            *squeezed |= 1u << i;
            to = from + 1;
            s[i] = 1;
        }
        if (to > dim) to = dim;
        if (to < -1) to = -1; /* -1: a backward slice includes element 0 */
        if (from < 0 || from >= dim) return 0;
        /* Number of steps from `from` up to, but not including, `to`, rounded up. */
        begin[i] = from;
        step[i] = s[i];
        count[i] = s[i] > 0 ? (to - from + s[i] - 1) / s[i] : (from - to - s[i] - 1) / -s[i];
        if (count[i] < 1) return 0;
    }
    return 1;
}

/* Two integers of 1..65536, in the order (y, x); (1, 1) when the argument is absent. 0: anything else. */
static int const_pair(const struct sg_mil_function *f, const struct sg_mil_op *op, const char *name,
                      int64_t out[2])
{
    int64_t v[2 * SG_MIL_DIMS];
    uint32_t n;
    out[0] = out[1] = 1;
    if (!sg_mil_arg_find(op, name)) return 1;
    if (!sg_mil_const_ints(f, op, name, v, &n) || n != 2) return 0;
    out[0] = v[0];
    out[1] = v[1];
    return v[0] >= 1 && v[0] <= 65536 && v[1] >= 1 && v[1] <= 65536;
}

/* Padding "same" is chosen so that the output has ceil(in / stride) elements; an odd total puts the extra
 * element after the input, or before it for "same_lower". "custom" takes pad as (top, bottom, left, right). */
segue_status sg_mil_conv_geometry(const struct sg_mil_function *f, const struct sg_mil_op *op,
                                  struct sg_mil_conv *c, segue_error *err)
{
    const struct sg_mil_type *x = sg_mil_arg_type(f, sg_mil_arg_find(op, "x"));
    const struct sg_mil_type *w = sg_mil_arg_type(f, sg_mil_arg_find(op, "weight"));
    int64_t pad[2 * SG_MIL_DIMS] = {0};
    uint32_t n;
    if (!x || !w || x->rank != 4 || w->rank != 4)
        return sg_fail(err, SEGUE_EFORMAT, "conv reads x [N, C, H, W] and weight [O, I, h, w]");
    if (!const_pair(f, op, "strides", c->stride) || !const_pair(f, op, "dilations", c->dilation))
        return sg_fail(err, SEGUE_EFORMAT,
                       "strides and dilations must be two constants from 1 to 65536 each");
    c->groups = sg_mil_const_int(f, op, "groups", 1);
    if (c->groups < 1 || x->dim[1] % c->groups || w->dim[0] % c->groups || w->dim[1] != x->dim[1] / c->groups)
        return sg_fail(err, SEGUE_EFORMAT, "%d input channels do not match a weight for %d channels in %lld groups",
                       (int)x->dim[1], (int)w->dim[1], (long long)c->groups);
    const char *kind = sg_mil_const_text(f, op, "pad_type");
    if (!kind) kind = "valid";
    int same = !strcmp(kind, "same") || !strcmp(kind, "same_lower"), custom = !strcmp(kind, "custom");
    if (!same && !custom && strcmp(kind, "valid") != 0)
        return sg_fail(err, SEGUE_EFORMAT, "pad_type \"%.20s\" is not valid, same, same_lower or custom", kind);
    if (custom && (!sg_mil_const_ints(f, op, "pad", pad, &n) || n != 4))
        return sg_fail(err, SEGUE_EFORMAT, "pad_type custom needs pad with four constants");
    for (uint32_t i = 0; i < 2; i++) {
        int64_t in = x->dim[2 + i], before = pad[2 * i], after = pad[2 * i + 1];
        c->kernel[i] = w->dim[2 + i];
        int64_t extent = (c->kernel[i] - 1) * c->dilation[i] + 1; /* input elements that the kernel covers */
        /* Padding of this axis, before and after. */
        if (same) {
            int64_t total = ((in + c->stride[i] - 1) / c->stride[i] - 1) * c->stride[i] + extent - in;
            if (total < 0) total = 0;
            before = kind[4] ? total - total / 2 : total / 2; /* kind[4]: "same_lower" */
            after = total - before;
        } else if (!custom)
            before = after = 0;
        if (before < 0 || after < 0 || before > 65536 || after > 65536 || in + before + after < extent)
            return sg_fail(err, SEGUE_EFORMAT,
                           "a kernel that covers %lld elements does not fit a padded input of %lld",
                           (long long)extent, (long long)(in + before + after));
        c->before[i] = before;
        c->out[i] = (in + before + after - extent) / c->stride[i] + 1;
    }
    return SEGUE_OK;
}

/* Reads "ab,bc->ac"; spaces are skipped. A letter may occur once per operand: diagonals are not supported. */
int sg_mil_einsum_parse(const struct sg_mil_function *f, const struct sg_mil_op *op, struct sg_mil_einsum *e)
{
    const char *s = sg_mil_const_text(f, op, "equation");
    memset(e, 0, sizeof *e);
    if (!s) return 0;
    /* The three letter groups and the text that must follow each. */
    char *parts[3] = {e->in[0], e->in[1], e->out};
    static const char *const ends[3] = {",", "->", ""};
    for (int i = 0; i < 3; i++) {
        uint32_t n = 0;
        for (; (*s >= 'a' && *s <= 'z') || *s == ' '; s++) {
            if (*s == ' ') continue;
            if (n == SG_MIL_DIMS || strchr(parts[i], *s)) return 0; /* too many letters, or one twice */
            parts[i][n++] = *s;
        }
        size_t skip = strlen(ends[i]);
        if (strncmp(s, ends[i], skip) != 0) return 0;
        s += skip;
    }
    return !*s;
}
