/* lower.c: see lower.h: ports, packing, and what the files that lower single operations share.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lower.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "unit/ane/lower/lowerrange.h"
#include "unit/ane/passes/pass.h"

enum { FLAT_MAX = 65536 }; /* channels of a tensor that is only a shape between two others */

enum sg_ane_role sg_ane_role_of(const char *port)
{
    size_t n = strlen(port);
    if (n > 5 && !strcmp(port + n - 5, "_info")) return SG_ANE_INFO;
    if (n > 5 && !strcmp(port + n - 5, "_lora")) return SG_ANE_LORA;
    return n > 6 && !strcmp(port + n - 6, "_state") ? SG_ANE_STATE : SG_ANE_X;
}

/* --- parts of values --- */

uint32_t sg_ane_channels(struct sg_ane_lower *l, uint32_t x, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || (!at && n == t->dim[1])) return x;
    int64_t begin[4] = {0, at, 0, 0}, size[4] = {t->dim[0], n, t->dim[2], t->dim[3]};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

int sg_ane_shift(const struct sg_ane_lower *l, int32_t value) { return l->part->range ? l->part->range->value[value] : 0; }

uint32_t sg_ane_move_shift(struct sg_ane_lower *l, uint32_t x, int from, int to)
{
    return from == to ? x : SG_ANE_BIN("mul", x, SG_ANE_NUM(ldexp(1, from - to)));
}

uint32_t sg_ane_operand_lying(struct sg_ane_lower *l, const struct sg_operand *x)
{
    return sg_ane_channels(l, l->values[x->value], x->at, x->width);
}

uint32_t sg_ane_operand_at(struct sg_ane_lower *l, const struct sg_operand *x, int shift)
{
    return sg_ane_move_shift(l, sg_ane_operand_lying(l, x), sg_ane_shift(l, x->value), shift);
}

uint32_t sg_ane_operand(struct sg_ane_lower *l, const struct sg_operand *x) { return sg_ane_operand_at(l, x, 0); }

uint32_t sg_ane_zeros(struct sg_ane_lower *l, int64_t channels, int64_t rows, int64_t columns)
{
    static const double zero;
    return sg_mil_build_reals(&l->b, SG_MIL_FP16, 4, (int64_t[]){1, channels, rows, columns}, &zero, 1);
}

uint32_t sg_ane_weight(struct sg_ane_lower *l, const struct sg_weight *w, enum sg_ane_form form, uint32_t rank,
                       const int64_t *dim)
{
    return sg_ane_weights(l, w, 1, form, rank, dim);
}

uint32_t sg_ane_weights(struct sg_ane_lower *l, const struct sg_weight *w, uint32_t n, enum sg_ane_form form, uint32_t rank,
                        const int64_t *dim)
{
    struct sg_ane_stored *s;
    char name[32];
    if (l->b.status) return 0;
    l->b.status = sg_ane_blob_of(l->blobs, l->g, w, n, form, &s, &l->b.err);
    if (l->b.status) return 0;
    if (s->program != l->blobs->programs) {
        snprintf(name, sizeof name, "w%u", (unsigned)(s - l->blobs->list));
        s->value = sg_mil_build_blob(&l->b, name, SG_MIL_FP16, rank, dim, l->blobs->path, s->record);
        s->program = l->blobs->programs;
    }
    return s->value;
}

uint32_t sg_ane_pattern(struct sg_ane_lower *l, int64_t n, int (*keep)(int64_t i, int64_t j, int64_t arg), int64_t arg)
{
    double *v = l->b.status ? NULL : sg_alloc((size_t)(n * n) * sizeof *v);
    if (!v) {
        if (!l->b.status) l->b.status = sg_no_memory("a constant", (size_t)(n * n) * sizeof *v, &l->b.err);
        return 0;
    }
    for (int64_t i = 0; i < n * n; i++) v[i] = keep(i / n, i % n, arg);
    uint32_t c = sg_mil_build_reals(&l->b, SG_MIL_FP16, 4, (int64_t[]){1, 1, n, n}, v, (uint64_t)(n * n));
    sg_free(v);
    return c;
}

/* --- slots of numbers that are no rows --- */

/* The largest power of two that divides both: a width at which the channels of a state and the rows of a tensor
 * begin at the same places. */
static int64_t common(int64_t keys, int64_t last)
{
    int64_t g = 1;
    while (g < keys && last % (2 * g) == 0) g *= 2;
    return g;
}

uint32_t sg_ane_unpack(struct sg_ane_lower *l, int32_t slot, uint32_t rank, const int64_t *dim)
{
    int64_t keys = l->shape->keys, n = 1, g = common(keys, dim[rank - 1]);
    for (uint32_t i = 0; i < rank; i++) n *= dim[i];
    int64_t channels = (n + keys - 1) / keys, flat = channels * keys / g;
    if (flat > FLAT_MAX && !l->b.status)
        l->b.status = sg_fail(&l->b.err, SEGUE_EUNSUPPORTED,
                              "lower: layer %u: its memory of %lld numbers has no shape of %d channels; use another unit",
                              l->g->slots[slot].layer, (long long)n, FLAT_MAX);
    uint32_t x = sg_mil_build_reshape(&l->b, l->states[slot], 4, (int64_t[]){1, flat, 1, g});
    x = sg_ane_channels(l, x, 0, n / g);
    return sg_mil_build_reshape(&l->b, x, rank, dim);
}

void sg_ane_pack(struct sg_ane_lower *l, int32_t slot, uint32_t x, int64_t last)
{
    int64_t keys = l->shape->keys, g = common(keys, last), n = 1;
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dim[i];
    int64_t channels = (n + keys - 1) / keys, flat = channels * keys / g;
    x = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, n / g, 1, g});
    if (flat > n / g) {
        uint32_t both[2] = {x, sg_ane_zeros(l, flat - n / g, 1, g)};
        x = sg_mil_build_concat(&l->b, both, 2, 1);
    }
    l->updated[slot] = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, channels, 1, keys});
}

/* --- ports: as the part has them; the pass over the layout makes surfaces of them --- */

static uint32_t input(struct sg_ane_lower *l, const char *name, int64_t channels, int64_t columns)
{
    return sg_mil_build_input(&l->b, name, SG_MIL_FP16, 4, (int64_t[]){1, channels, 1, columns});
}

static uint32_t first_columns(struct sg_ane_lower *l, uint32_t x)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || t->dim[3] == l->s) return x;
    int64_t begin[4] = {0}, size[4] = {1, t->dim[1], 1, l->s};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

static int64_t slot_channels(const struct sg_ane_lower *l, uint32_t i)
{
    return (int64_t)sg_ane_slot_channels(&l->g->slots[l->part->slots[i]], l->shape->keys);
}

static void open_ports(struct sg_ane_lower *l)
{
    int64_t width = 0, channels = 0, at = 0;
    uint32_t state = SG_MIL_NONE;
    for (uint32_t i = 0; i < l->part->in_n; i++) width += l->g->values[l->part->in[i]].width;
    for (uint32_t i = 0; i < l->part->slots_n; i++) channels += slot_channels(l, i);
    uint32_t x = input(l, "in_x", width, l->s);
    if (l->info->channels) l->info_port = input(l, "in_info", l->info->channels, l->shape->columns);
    if (l->part->slots_n) state = input(l, "in_state", channels, l->shape->keys);
    int64_t lora = l->shape->rank ? (int64_t)sg_ane_lora_channels(l->g, l->part) : 0;
    if (lora) l->lora = input(l, "in_lora", lora, l->shape->rank);
    if (l->info->channels) l->info_rows = first_columns(l, l->info_port);
    for (uint32_t i = 0; i < l->part->in_n; i++) {
        width = l->g->values[l->part->in[i]].width;
        l->values[l->part->in[i]] = sg_ane_channels(l, x, at, width);
        at += width;
    }
    at = 0;
    for (uint32_t i = 0; i < l->part->slots_n; i++) {
        l->states[l->part->slots[i]] = sg_ane_channels(l, state, at, slot_channels(l, i));
        at += slot_channels(l, i);
    }
}

/* Values along the channels. */
static uint32_t join(struct sg_ane_lower *l, const uint32_t *list, uint32_t n, const char *name)
{
    sg_mil_build_name(&l->b, name);
    return n > 1 ? sg_mil_build_concat(&l->b, list, n, 1) : SG_ANE_UN("identity", list[0]);
}

static segue_status close_ports(struct sg_ane_lower *l, uint32_t *list, segue_error *err)
{
    uint32_t n = 1, returns[2] = {0};
    for (uint32_t i = 0; i < l->part->out_n; i++) list[i] = l->values[l->part->out[i]];
    returns[0] = join(l, list, l->part->out_n, "to_out");
    for (uint32_t i = 0; i < l->part->slots_n; i++) list[i] = l->updated[l->part->slots[i]];
    if (l->part->slots_n) returns[n++] = join(l, list, l->part->slots_n, "to_state");
    return sg_mil_build_end(&l->b, returns, n, err);
}

/* --- the walk --- */

static uint32_t lower_op(struct sg_ane_lower *l, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_ATTEND: return sg_ane_lower_attend(l, op);
    case SG_OP_CONV: return sg_ane_lower_conv(l, op);
    case SG_OP_DELTA: return sg_ane_lower_delta(l, op);
    default: return sg_ane_lower_rows(l, op);
    }
}

static segue_status walk(struct sg_ane_lower *l, uint32_t *list, segue_error *err)
{
    open_ports(l);
    for (uint32_t i = 0; i < l->part->ops_n && !l->b.status; i++) {
        const struct sg_op *op = &l->g->ops[l->part->ops[i]];
        if (!l->b.status) l->b.status = sg_ane_can_lower(l->g, op, &l->b.err);
        l->values[op->out] = lower_op(l, op);
    }
    return close_ports(l, list, err);
}

segue_status sg_ane_lower(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                          const struct sg_ane_info *info, const struct sg_ane_shape *shape,
                          struct sg_ane_blobs *blobs, segue_error *err)
{
    struct sg_ane_lower l = {.g = g, .part = part, .info = info, .shape = shape, .blobs = blobs,
                             .s = shape->rows == 1 ? 1 : shape->columns};
    struct sg_mil_program *p = sg_mil_program_new(SG_MIL_VERBOSE);
    uint32_t *room = sg_alloc((2 * (size_t)g->values_n + 3 * (size_t)g->slots_n + (size_t)g->ops_n + 4) * sizeof *room);
    if (!p || !room) {
        sg_mil_program_free(p);
        sg_free(room);
        return sg_no_memory("a program", 0, err);
    }
    for (int i = 0; i < SG_ANE_KINDS; i++) l.place[i] = SG_MIL_NONE;
    l.values = room;
    l.sliced = room + g->values_n;
    for (uint32_t i = 0; i < g->ops_n; i++) l.sliced[i] = SG_MIL_NONE;
    l.states = l.sliced + g->ops_n;
    l.updated = l.states + g->slots_n;
    blobs->programs++;
    sg_mil_build_begin(&l.b, p, "main", NULL);
    segue_status status = walk(&l, l.updated + g->slots_n, err);
    if (status == SEGUE_OK) status = sg_passes(p, SG_ANE_PAD, err);
    sg_free(room);
    if (status == SEGUE_OK)
        *out = p;
    else
        sg_mil_program_free(p);
    return status;
}
