/* graphwire.c: a graph as bytes. Ops, values and slots consist of 32-bit words only, so they are sent as they lie in
 * memory; both sides are the same version of this library on machines of the same byte order, which the greeting of a
 * unit says first.
 * SPDX-License-Identifier: MIT */
#include "graph/graphwire.h"

enum {
    OPS_MOST = 1 << 18,
    PORTS_MOST = 4096,
    SLOTS_MOST = 1 << 16,
    PAIRS_MOST = 1 << 16,
    WIDTH_MOST = 1 << 26,
    NAME_MOST = 64,
    SLOT_NUMBERS_MOST = 1 << 28
};

_Static_assert(sizeof(struct sg_op) % 4 == 0 && _Alignof(struct sg_op) == 4, "ops are 32-bit words");
_Static_assert(sizeof(struct sg_value) == 16 && sizeof(struct sg_slot) == 24, "values and slots are 32-bit words");

static segue_status refuse(segue_error *err, const char *what)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: graph: %s; the other side is damaged or hostile", what);
}

/* --- slots --- */

void sg_wire_slots_put(struct sg_buf *out, const struct sg_slot *slots, uint32_t n)
{
    sg_put_u32(out, n);
    sg_buf_add(out, slots, n * sizeof *slots);
}

/* Numbers of one row, or of the whole of a recurrent slot, stay below a bound: products are safe behind it. */
static int slot_sound(const struct sg_slot *s)
{
    uint64_t n = s->heads > WIDTH_MOST || s->width > WIDTH_MOST ? UINT64_MAX : (uint64_t)s->heads * s->width;
    if ((unsigned)s->kind > SG_SLOT_DELTA || n > SLOT_NUMBERS_MOST) return 0;
    if (s->kind != SG_SLOT_DELTA) return 1;
    return s->depth <= SLOT_NUMBERS_MOST && n * s->depth <= SLOT_NUMBERS_MOST;
}

segue_status sg_wire_slots_take(struct sg_reader *in, uint32_t most, struct sg_slot **out, uint32_t *n,
                                segue_error *err)
{
    uint32_t count = sg_take_u32(in);
    if (in->bad || count > most || count > SLOTS_MOST || count > in->left / sizeof **out)
        return refuse(err, "too many slots");
    struct sg_slot *slots = sg_alloc(count * sizeof *slots);
    if (!slots) return sg_no_memory("slots", count * sizeof *slots, err);
    sg_take_into(in, slots, count, sizeof *slots);
    for (uint32_t i = 0; i < count; i++)
        if (!slot_sound(&slots[i])) {
            sg_free(slots);
            return refuse(err, "a slot of an absurd shape");
        }
    *out = slots;
    *n = count;
    return SEGUE_OK;
}

/* --- out --- */

static void ports_put(struct sg_buf *out, const struct sg_port *ports, uint32_t n)
{
    sg_put_u32(out, n);
    for (uint32_t i = 0; i < n; i++) {
        sg_put_text(out, ports[i].name);
        sg_put_u32(out, (uint32_t)ports[i].value);
    }
}

void sg_wire_graph_put(struct sg_buf *out, const struct sg_graph *g, const uint32_t *ids)
{
    const uint32_t numbers[] = {g->layers, g->layer_from, g->layer_to, g->vocab};
    for (int i = 0; i < 4; i++) sg_put_u32(out, numbers[i]);
    sg_put_u32(out, g->tensors_n);
    for (uint32_t i = 0; i < g->tensors_n; i++) sg_put_u32(out, ids[i]);
    sg_put_u32(out, g->values_n);
    sg_buf_add(out, g->values, g->values_n * sizeof *g->values);
    sg_put_u32(out, g->ropes_n);
    for (uint32_t i = 0; i < g->ropes_n; i++) {
        sg_put_u32(out, g->ropes[i].pairs);
        sg_buf_add(out, &g->ropes[i].mscale, 4);
        sg_buf_add(out, g->ropes[i].inverse, g->ropes[i].pairs * sizeof(float));
    }
    sg_wire_slots_put(out, g->slots, g->slots_n);
    ports_put(out, g->inputs, g->inputs_n);
    ports_put(out, g->outputs, g->outputs_n);
    sg_put_u32(out, g->ops_n);
    sg_buf_add(out, g->ops, g->ops_n * sizeof *g->ops);
}

/* --- in --- */

/* A list of n items of `size` bytes each in the graph's arena. */
static segue_status list_take(struct sg_reader *in, struct sg_graph *g, uint32_t most, size_t size, void *list,
                              uint32_t *n, segue_error *err)
{
    uint32_t count = sg_take_u32(in);
    if (in->bad || count > most || count > in->left / size) return refuse(err, "a list that is cut off");
    void *items = sg_arena_alloc(&g->arena, count * size);
    if (!items) return sg_no_memory("graph", count * size, err);
    sg_take_into(in, items, count, size);
    memcpy(list, &items, sizeof items);
    *n = count;
    return SEGUE_OK;
}

static segue_status tensors_take(struct sg_reader *in, struct sg_graph *g, const struct sg_tensor *const *tensors,
                                 uint32_t tensors_n, segue_error *err)
{
    uint32_t n = sg_take_u32(in);
    if (in->bad || n > in->left / 4) return refuse(err, "a list of tensors that is cut off");
    g->tensors = sg_arena_alloc(&g->arena, n * sizeof *g->tensors);
    if (!g->tensors) return sg_no_memory("graph", n * sizeof *g->tensors, err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_take_u32(in);
        if (id >= tensors_n || !tensors[id]) return refuse(err, "a tensor that nobody named");
        g->tensors[i] = tensors[id];
    }
    g->tensors_n = n;
    return SEGUE_OK;
}

static segue_status values_take(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    SG_TRY(list_take(in, g, OPS_MOST, sizeof *g->values, &g->values, &g->values_n, err));
    for (uint32_t i = 0; i < g->values_n; i++) {
        const struct sg_value *v = &g->values[i];
        if ((unsigned)v->kind > SG_VALUE_ROWS || v->wanted > 1 || v->width > WIDTH_MOST)
            return refuse(err, "a value of an absurd shape");
    }
    return SEGUE_OK;
}

static segue_status ropes_take(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    uint32_t n = sg_take_u32(in);
    if (in->bad || n > in->left / 8) return refuse(err, "rotary tables that are cut off");
    g->ropes = sg_arena_alloc(&g->arena, n * sizeof *g->ropes);
    if (!g->ropes) return sg_no_memory("graph", n * sizeof *g->ropes, err);
    for (g->ropes_n = 0; g->ropes_n < n; g->ropes_n++) {
        struct sg_rope_table *t = &g->ropes[g->ropes_n];
        t->pairs = sg_take_u32(in);
        sg_take_into(in, &t->mscale, 1, 4);
        if (in->bad || t->pairs > PAIRS_MOST || t->pairs > in->left / 4)
            return refuse(err, "a rotary table that is cut off");
        float *inverse = sg_arena_alloc(&g->arena, t->pairs * sizeof *inverse);
        if (!inverse) return sg_no_memory("graph", t->pairs * sizeof *inverse, err);
        sg_take_into(in, inverse, t->pairs, sizeof *inverse);
        t->inverse = inverse;
    }
    return SEGUE_OK;
}

static segue_status slots_take(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    struct sg_slot *slots;
    uint32_t n;
    SG_TRY(sg_wire_slots_take(in, SLOTS_MOST, &slots, &n, err));
    g->slots = sg_arena_alloc(&g->arena, n * sizeof *g->slots);
    if (g->slots && n) memcpy(g->slots, slots, n * sizeof *slots);
    sg_free(slots);
    g->slots_n = n;
    return g->slots ? SEGUE_OK : sg_no_memory("graph", n * sizeof *slots, err);
}

static segue_status ports_take(struct sg_reader *in, struct sg_graph *g, struct sg_port **ports, uint32_t *ports_n,
                               segue_error *err)
{
    uint32_t n = sg_take_u32(in);
    char name[NAME_MOST];
    if (in->bad || n > PORTS_MOST || n > in->left / 8) return refuse(err, "too many inputs or outputs");
    *ports = sg_arena_alloc(&g->arena, n * sizeof **ports);
    if (!*ports) return sg_no_memory("graph", n * sizeof **ports, err);
    for (*ports_n = 0; *ports_n < n; ++*ports_n) {
        struct sg_port *p = &(*ports)[*ports_n];
        sg_take_text(in, name, sizeof name);
        if (in->bad) return refuse(err, "a name that is too long");
        p->name = sg_arena_strndup(&g->arena, name, strlen(name));
        p->value = (int32_t)sg_take_u32(in);
        if (!p->name) return sg_no_memory("graph", sizeof name, err);
    }
    return SEGUE_OK;
}

/* Indices that the rules of a graph do not look at because its op does not use them. */
static segue_status ops_take(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    SG_TRY(list_take(in, g, OPS_MOST, sizeof *g->ops, &g->ops, &g->ops_n, err));
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= (int32_t)g->values_n) return refuse(err, "an operand that nobody defined");
    return SEGUE_OK;
}

static segue_status take(struct sg_reader *in, struct sg_graph *g, const struct sg_tensor *const *tensors,
                         uint32_t tensors_n, segue_error *err)
{
    uint32_t *const numbers[] = {&g->layers, &g->layer_from, &g->layer_to, &g->vocab};
    for (int i = 0; i < 4; i++) *numbers[i] = sg_take_u32(in);
    SG_TRY(tensors_take(in, g, tensors, tensors_n, err));
    SG_TRY(values_take(in, g, err));
    SG_TRY(ropes_take(in, g, err));
    SG_TRY(slots_take(in, g, err));
    SG_TRY(ports_take(in, g, &g->inputs, &g->inputs_n, err));
    SG_TRY(ports_take(in, g, &g->outputs, &g->outputs_n, err));
    SG_TRY(ops_take(in, g, err));
    if (in->bad) return refuse(err, "it is cut off");
    return sg_graph_check(g, err);
}

segue_status sg_wire_graph_take(struct sg_reader *in, const struct sg_tensor *const *tensors, uint32_t tensors_n,
                                struct sg_graph **out, segue_error *err)
{
    struct sg_graph *g = sg_alloc(sizeof *g);
    if (!g) return sg_no_memory("graph", sizeof *g, err);
    segue_status status = take(in, g, tensors, tensors_n, err);
    if (status != SEGUE_OK) {
        sg_graph_free(g);
        return status;
    }
    *out = g;
    return SEGUE_OK;
}
