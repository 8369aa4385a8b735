/* passlayout.c: layout of inputs and results; see pass.h.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

enum { PORTS = 8, NAME = 64 }; /* maximum ports per side; bytes of a port name */

/* Context of the pass. */
struct layout {
    uint32_t channels, columns; /* of ports become multiples of these */
};

static int64_t rounded(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
static int64_t channels_of(const struct layout *l, const struct sg_mil_type *t) { return rounded(t->dim[1], l->channels); }
static int64_t columns_of(const struct layout *l, const struct sg_mil_type *t) { return rounded(t->dim[3], l->columns); }

/* Elements of a padded port; all ports are fp16, so this orders them by bytes. */
static uint64_t size_of(const struct layout *l, const struct sg_mil_type *t)
{
    return (uint64_t)(channels_of(l, t) * columns_of(l, t));
}

/* Position of port i when the n ports are sorted by size, stably: the number of ports before it. values:
 * NULL for the parameters. falling: descending order. */
static uint32_t sort_position(const struct sg_mil_rewrite *r, const uint32_t *values, uint32_t n, uint32_t i, int descending)
{
    const struct layout *l = r->ctx;
    uint64_t bytes = size_of(l, &r->f.values[values ? values[i] : i].type);
    uint32_t pos = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t other = size_of(l, &r->f.values[values ? values[k] : k].type);
        pos += (descending ? other > bytes : other < bytes) || (other == bytes && k < i);
    }
    return pos;
}

/* Replaces the prefix before the first underscore by a letter. */
static void port_name(char out[NAME], char letter, const char *name)
{
    const char *role = strchr(name, '_');
    snprintf(out, NAME, "%c_%.60s", letter, role ? role + 1 : name);
}

/* Creates the inputs in their new order, then a slice for each padded one: all inputs must come before the
 * first operation. The old value is mapped to the unpadded slice, so the rest of the program does not
 * change. */
static void rewrite_params(struct sg_mil_rewrite *r)
{
    const struct layout *l = r->ctx;
    char name[NAME];
    uint32_t inputs[PORTS]; /* new value by old parameter */
    for (uint32_t pos = 0; pos < r->f.params_n; pos++)
        for (uint32_t i = 0; i < r->f.params_n; i++) {
            const struct sg_mil_value *v = &r->f.values[i];
            if (sort_position(r, NULL, r->f.params_n, i, 0) != pos) continue;
            port_name(name, (char)('a' + (int)pos), v->name);
            r->changes += strcmp(name, v->name) != 0 || pos != i;
            inputs[i] = sg_mil_build_input(&r->b, name, (enum sg_mil_dtype)v->type.dtype, 4,
                                           (int64_t[]){1, channels_of(l, &v->type), 1, columns_of(l, &v->type)});
        }
    for (uint32_t i = 0; i < r->f.params_n; i++) {
        const struct sg_mil_type *t = &r->f.values[i].type, *whole = sg_mil_build_type(&r->b, inputs[i]);
        int64_t begin[4] = {0}, size[4] = {1, t->dim[1], 1, t->dim[3]};
        r->map[i] = inputs[i];
        if (r->b.status || (whole->dim[1] == t->dim[1] && whole->dim[3] == t->dim[3])) continue;
        r->map[i] = sg_mil_build_slice(&r->b, inputs[i], 4, begin, size);
        r->changes++;
    }
}

/* Appends zeros to x [1, C, 1, S] along an axis up to n elements. name: of the result, or NULL. Returns x
 * when it is long enough already. */
static uint32_t pad_axis(struct sg_mil_rewrite *r, uint32_t x, int axis, int64_t n, const char *name)
{
    const struct sg_mil_type *t = sg_mil_build_type(&r->b, x);
    static const double zero;
    int64_t dim[4] = {1, t->dim[1], 1, t->dim[3]};
    if (r->b.status || dim[axis] == n) return x;
    dim[axis] = n - dim[axis];
    uint32_t parts[2] = {x, sg_mil_build_real_tensor(&r->b, SG_MIL_FP16, 4, dim, &zero, 1)};
    if (name) sg_mil_build_name(&r->b, name);
    r->changes++;
    return sg_mil_build_concat(&r->b, parts, 2, axis);
}

/* Pads each result, channels before columns, and sorts the results. The last operation of a result gets its
 * new name; a result that needs no padding but a new name is passed through identity. */
static void rewrite_results(struct sg_mil_rewrite *r, uint32_t *values)
{
    const struct layout *l = r->ctx;
    uint32_t n = r->f.returns_n, done[PORTS];
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_mil_value *v = &r->f.values[r->f.returns[i]];
        uint32_t pos = sort_position(r, r->f.returns, n, i, 1), x = values[i];
        char name[NAME];
        port_name(name, (char)('z' - (int)(n - 1 - pos)), v->name);
        r->changes += pos != i;
        int64_t channels = channels_of(l, &v->type), columns = columns_of(l, &v->type);
        int wide = columns != v->type.dim[3], deep = channels != v->type.dim[1];
        x = pad_axis(r, x, 1, channels, wide ? NULL : name);
        x = pad_axis(r, x, 3, columns, name);
        if (!wide && !deep && strcmp(name, v->name) != 0) {
            sg_mil_build_name(&r->b, name);
            x = sg_mil_build_unary(&r->b, "identity", x);
            r->changes++;
        }
        done[pos] = x;
    }
    memcpy(values, done, n * sizeof *values);
}

/* All ports of a function are checked before it is changed. */
segue_status sg_pass_layout(struct sg_mil_program *p, uint32_t channels, uint32_t columns, uint64_t *changes,
                            segue_error *err)
{
    static const struct sg_mil_pass pass = {.params = rewrite_params, .returns = rewrite_results};
    for (uint32_t k = 0; k < p->functions_n; k++) {
        const struct sg_mil_function *f = &p->functions[k];
        struct layout ctx = {channels, columns};
        if (f->params_n > PORTS || f->returns_n > PORTS)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "layout: %.60s: more than %d inputs or results; pack several into one",
                           f->name, PORTS);
        for (uint32_t i = 0; i < f->params_n + f->returns_n; i++) {
            const struct sg_mil_value *v = &f->values[i < f->params_n ? i : f->returns[i - f->params_n]];
            if (v->type.rank != 4 || v->type.dim[0] != 1 || v->type.dim[2] != 1 || v->type.buffer ||
                v->type.dtype != SG_MIL_FP16)
                return sg_fail(err, SEGUE_EUNSUPPORTED, "layout: %.60s: not an fp16 tensor [1, C, 1, S]; reshape it", v->name);
        }
        SG_TRY(sg_mil_rewrite(p, k, &pass, &ctx, changes, err));
    }
    return SEGUE_OK;
}
