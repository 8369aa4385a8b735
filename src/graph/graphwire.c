/* graphwire.c: serialises graphs. Ops, values and slots consist of 32-bit words only and are sent
 * as they are in memory: both processes run the same version of the library with the same byte
 * order, which the handshake between them verifies first.
 * SPDX-License-Identifier: MIT */
#include "graph/graphwire.h"

/* Limits for untrusted input. They bound memory and keep products of sizes from overflowing; real
 * models are far below. */
enum {
    OPS_MAX = 1 << 18,
    PORTS_MAX = 4096,
    SLOTS_MAX = 1 << 16,
    PAIRS_MAX = 1 << 16,
    WIDTH_MAX = 1 << 26,
    NAME_BYTES = 64,
    SLOT_NUMBERS_MAX = 1 << 28
};

_Static_assert(sizeof(struct sg_op) % 4 == 0 && _Alignof(struct sg_op) == 4, "ops are 32-bit words");
_Static_assert(sizeof(struct sg_value) == 16 && sizeof(struct sg_slot) == 24, "values and slots are 32-bit words");

/* Fails with EFORMAT. */
static segue_status refuse(segue_error *err, const char *what)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: graph: %s; the peer is damaged or hostile", what);
}

/* --- slots --- */

void sg_wire_slots_write(struct sg_buf *out, const struct sg_slot *slots, uint32_t n)
{
    sg_put_u32(out, n);
    sg_buf_add(out, slots, n * sizeof *slots);
}

/* 1 when the number of elements of a row, or of a whole recurrent slot, is within the limit. Later
 * products cannot overflow. */
static int slot_valid(const struct sg_slot *s)
{
    uint64_t n = s->heads > WIDTH_MAX || s->width > WIDTH_MAX ? UINT64_MAX : (uint64_t)s->heads * s->width;
    if ((unsigned)s->kind > SG_SLOT_DELTA || n > SLOT_NUMBERS_MAX) return 0;
    if (s->kind != SG_SLOT_DELTA) return 1;
    return s->depth <= SLOT_NUMBERS_MAX && n * s->depth <= SLOT_NUMBERS_MAX;
}

segue_status sg_wire_slots_read(struct sg_reader *in, uint32_t max, struct sg_slot **out, uint32_t *n,
                                segue_error *err)
{
    uint32_t count = sg_reader_u32(in);
    /* The count is compared with the bytes left before memory is allocated. */
    if (in->bad || count > max || count > SLOTS_MAX || count > in->left / sizeof **out)
        return refuse(err, "too many slots");
    struct sg_slot *slots = sg_alloc(count * sizeof *slots);
    if (!slots) return sg_no_memory("slots", count * sizeof *slots, err);
    sg_reader_array(in, slots, count, sizeof *slots);
    for (uint32_t i = 0; i < count; i++)
        if (!slot_valid(&slots[i])) {
            sg_free(slots);
            return refuse(err, "invalid shape of a slot");
        }
    *out = slots;
    *n = count;
    return SEGUE_OK;
}

/* --- writing --- */

/* A list of inputs or outputs. */
static void write_ports(struct sg_buf *out, const struct sg_port *ports, uint32_t n)
{
    sg_put_u32(out, n);
    for (uint32_t i = 0; i < n; i++) {
        sg_put_text(out, ports[i].name);
        sg_put_u32(out, (uint32_t)ports[i].value);
    }
}

/* The order of the parts is that of read_graph. */
void sg_wire_graph_write(struct sg_buf *out, const struct sg_graph *g, const uint32_t *ids)
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
    sg_wire_slots_write(out, g->slots, g->slots_n);
    write_ports(out, g->inputs, g->inputs_n);
    write_ports(out, g->outputs, g->outputs_n);
    sg_put_u32(out, g->ops_n);
    sg_buf_add(out, g->ops, g->ops_n * sizeof *g->ops);
}

/* --- reading --- */

/* Read a list of up to `max` items of `size` bytes into the graph's arena. `list` is the address of
 * the pointer to set; it is written with memcpy because its type varies. */
static segue_status read_list(struct sg_reader *in, struct sg_graph *g, uint32_t max, size_t size, void *list,
                              uint32_t *n, segue_error *err)
{
    uint32_t count = sg_reader_u32(in);
    if (in->bad || count > max || count > in->left / size) return refuse(err, "truncated list");
    void *items = sg_arena_alloc(&g->arena, count * size);
    if (!items) return sg_no_memory("graph", count * size, err);
    sg_reader_array(in, items, count, size);
    memcpy(list, &items, sizeof items);
    *n = count;
    return SEGUE_OK;
}

/* Tensors are sent as ids. */
static segue_status read_tensors(struct sg_reader *in, struct sg_graph *g, const struct sg_tensor *const *tensors,
                                 uint32_t tensors_n, segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    if (in->bad || n > in->left / 4) return refuse(err, "truncated list of tensors");
    g->tensors = sg_arena_alloc(&g->arena, n * sizeof *g->tensors);
    if (!g->tensors) return sg_no_memory("graph", n * sizeof *g->tensors, err);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_reader_u32(in);
        /* Only tensors that the sender registered before can be used. */
        if (id >= tensors_n || !tensors[id]) return refuse(err, "unknown tensor id");
        g->tensors[i] = tensors[id];
    }
    g->tensors_n = n;
    return SEGUE_OK;
}

/* Widths are limited here; sg_graph_check validates the rest. */
static segue_status read_values(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    SG_TRY(read_list(in, g, OPS_MAX, sizeof *g->values, &g->values, &g->values_n, err));
    for (uint32_t i = 0; i < g->values_n; i++) {
        const struct sg_value *v = &g->values[i];
        if ((unsigned)v->kind > SG_VALUE_ROWS || v->wanted > 1 || v->width > WIDTH_MAX)
            return refuse(err, "invalid kind or width of a value");
    }
    return SEGUE_OK;
}

/* The tables are copied into the arena. */
static segue_status read_ropes(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    if (in->bad || n > in->left / 8) return refuse(err, "truncated list of rotary tables");
    g->ropes = sg_arena_alloc(&g->arena, n * sizeof *g->ropes);
    if (!g->ropes) return sg_no_memory("graph", n * sizeof *g->ropes, err);
    for (g->ropes_n = 0; g->ropes_n < n; g->ropes_n++) {
        struct sg_rope_table *t = &g->ropes[g->ropes_n];
        t->pairs = sg_reader_u32(in);
        sg_reader_array(in, &t->mscale, 1, 4);
        if (in->bad || t->pairs > PAIRS_MAX || t->pairs > in->left / 4)
            return refuse(err, "truncated rotary table");
        float *inverse = sg_arena_alloc(&g->arena, t->pairs * sizeof *inverse);
        if (!inverse) return sg_no_memory("graph", t->pairs * sizeof *inverse, err);
        sg_reader_array(in, inverse, t->pairs, sizeof *inverse);
        t->inverse = inverse;
    }
    return SEGUE_OK;
}

/* Copies the slots from the heap to the graph's arena. */
static segue_status read_slots(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    struct sg_slot *slots;
    uint32_t n;
    SG_TRY(sg_wire_slots_read(in, SLOTS_MAX, &slots, &n, err));
    g->slots = sg_arena_alloc(&g->arena, n * sizeof *g->slots);
    if (g->slots && n) memcpy(g->slots, slots, n * sizeof *slots);
    sg_free(slots);
    g->slots_n = n;
    return g->slots ? SEGUE_OK : sg_no_memory("graph", n * sizeof *slots, err);
}

/* A list of inputs or outputs. Values are validated by sg_graph_check. */
static segue_status read_ports(struct sg_reader *in, struct sg_graph *g, struct sg_port **ports, uint32_t *ports_n,
                               segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    char name[NAME_BYTES];
    if (in->bad || n > PORTS_MAX || n > in->left / 8) return refuse(err, "too many inputs or outputs");
    *ports = sg_arena_alloc(&g->arena, n * sizeof **ports);
    if (!*ports) return sg_no_memory("graph", n * sizeof **ports, err);
    for (*ports_n = 0; *ports_n < n; ++*ports_n) {
        struct sg_port *p = &(*ports)[*ports_n];
        sg_reader_text(in, name, sizeof name);
        if (in->bad) return refuse(err, "truncated or too long name");
        p->name = sg_arena_strndup(&g->arena, name, strlen(name));
        p->value = (int32_t)sg_reader_u32(in);
        if (!p->name) return sg_no_memory("graph", sizeof name, err);
    }
    return SEGUE_OK;
}

/* Checks all operands, also those that sg_graph_check ignores because the op does not use them:
 * units may copy them. */
static segue_status read_ops(struct sg_reader *in, struct sg_graph *g, segue_error *err)
{
    SG_TRY(read_list(in, g, OPS_MAX, sizeof *g->ops, &g->ops, &g->ops_n, err));
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= (int32_t)g->values_n) return refuse(err, "undefined operand");
    return SEGUE_OK;
}

/* Read all parts into g and validate the graph. */
static segue_status read_graph(struct sg_reader *in, struct sg_graph *g, const struct sg_tensor *const *tensors,
                         uint32_t tensors_n, segue_error *err)
{
    uint32_t *const numbers[] = {&g->layers, &g->layer_from, &g->layer_to, &g->vocab};
    for (int i = 0; i < 4; i++) *numbers[i] = sg_reader_u32(in);
    SG_TRY(read_tensors(in, g, tensors, tensors_n, err));
    SG_TRY(read_values(in, g, err));
    SG_TRY(read_ropes(in, g, err));
    SG_TRY(read_slots(in, g, err));
    SG_TRY(read_ports(in, g, &g->inputs, &g->inputs_n, err));
    SG_TRY(read_ports(in, g, &g->outputs, &g->outputs_n, err));
    SG_TRY(read_ops(in, g, err));
    if (in->bad) return refuse(err, "truncated");
    return sg_graph_check(g, err);
}

segue_status sg_wire_graph_read(struct sg_reader *in, const struct sg_tensor *const *tensors, uint32_t tensors_n,
                                struct sg_graph **out, segue_error *err)
{
    struct sg_graph *g = sg_alloc(sizeof *g);
    if (!g) return sg_no_memory("graph", sizeof *g, err);
    segue_status status = read_graph(in, g, tensors, tensors_n, err);
    if (status != SEGUE_OK) {
        sg_graph_free(g);
        return status;
    }
    *out = g;
    return SEGUE_OK;
}
