/* serve_objects.c: regions, tensors, programs and adapters of the peer. Use counts keep an object alive while another one refers
 * to it. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>

#include "unit/proc/server.h"

enum { GRAPHS_MAX = 64, LORA_RANK_MAX = 1 << 16, PAIRS_MAX = 1 << 18, FOLDER_MAX = 4096, WHY_MAX = 256 };

/* --- regions --- */

/* The memory is mapped read-only. */
segue_status sg_serve_region(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    uint64_t size = sg_reader_u64(in);
    struct sg_shared memory;
    SG_TRY(sg_shared_map(&memory, fd, (size_t)size, 0, err));
    segue_status status = sg_reader_done(in) ? SEGUE_OK : sg_server_reject(err, "a region: damaged");
    if (status == SEGUE_OK)
        status = sg_server_table_grow(&v->regions, &v->regions_n, id, SG_WIRE_REGIONS, sizeof *v->regions, err);
    if (status == SEGUE_OK && v->regions[id].memory.data) status = sg_server_reject(err, "a region: its number is in use");
    if (status != SEGUE_OK) {
        sg_shared_free(&memory);
        return status;
    }
    v->regions[id] = (struct sg_server_region){.memory = memory};
    return SEGUE_OK;
}

/* Refused while a tensor refers to it: the peer drops tensors first. */
segue_status sg_serve_region_drop(struct sg_server *v, struct sg_reader *in, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    if (!sg_reader_done(in) || id >= v->regions_n || !v->regions[id].memory.data || v->regions[id].users)
        return sg_server_reject(err, "a region to drop: unknown, or in use");
    sg_shared_free(&v->regions[id].memory);
    return SEGUE_OK;
}

/* --- tensors --- */

/* Its regions lose a user. */
static void tensor_free(struct sg_server *v, uint32_t id)
{
    struct sg_server_tensor *t = v->tensors[id];
    for (int i = 0; i < SG_LOCS; i++)
        if (t->regions[i] != UINT32_MAX) v->regions[t->regions[i]].users--;
    sg_arena_free(&t->arena);
    sg_free(t);
    v->tensors[id] = NULL;
}

/* The region that contains a pointer, which sg_wire_tensor_read has checked; UINT32_MAX for NULL. */
static uint32_t region_of(const struct sg_server *v, const void *p)
{
    const uint8_t *at = p;
    for (uint32_t i = 0; p && i < v->regions_n; i++) {
        const struct sg_shared *m = &v->regions[i].memory;
        if (m->data && at >= m->data && at < m->data + m->size) return i;
    }
    return UINT32_MAX;
}

/* Decodes one tensor; locations are checked against the regions. */
static segue_status tensor_new(struct sg_server *v, const struct sg_wire_region *regions, struct sg_reader *in,
                               uint32_t *made, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    SG_TRY(sg_server_table_grow(&v->tensors, &v->tensors_n, id, SG_WIRE_TENSORS, sizeof *v->tensors, err));
    if (v->tensors[id]) return sg_server_reject(err, "a tensor: its number is in use");
    struct sg_server_tensor *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("tensor", sizeof *t, err);
    segue_status status = sg_wire_tensor_read(in, regions, v->regions_n, &t->arena, &t->tensor, err);
    if (status != SEGUE_OK) {
        sg_arena_free(&t->arena);
        sg_free(t);
        return status;
    }
    const void *const at[SG_LOCS] = {t->tensor.data, t->tensor.affine.scales, t->tensor.affine.biases,
                                   t->tensor.coded.order};
    for (int i = 0; i < SG_LOCS; i++) {
        t->regions[i] = region_of(v, at[i]);
        if (t->regions[i] != UINT32_MAX) v->regions[t->regions[i]].users++;
    }
    t->id = id;
    t->tensor.mapped = 1;    /* regions are shared mappings */
    v->tensors[id] = t;
    *made = id;
    return SEGUE_OK;
}

/* New tensors of a request; their numbers go to *made, so that a failure can free them. */
static segue_status tensors_new(struct sg_server *v, struct sg_reader *in, uint32_t **made, uint32_t *made_n,
                                segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    /* A tensor takes at least 64 bytes of the request, which bounds the allocation. */
    if (in->bad || n > in->left / 64) return sg_server_reject(err, "a list of tensors: truncated");
    *made = sg_arena_alloc(&v->scratch, n * sizeof **made);
    struct sg_wire_region *regions = sg_arena_alloc(&v->scratch, (v->regions_n + 1) * sizeof *regions);
    if (!*made || !regions) return sg_no_memory("tensors", n * sizeof **made, err);
    /* Regions that were dropped have data NULL, so that no location in them is valid. */
    for (uint32_t i = 0; i < v->regions_n; i++)
        regions[i] = (struct sg_wire_region){v->regions[i].memory.data, v->regions[i].memory.size};
    for (*made_n = 0; *made_n < n; ++*made_n) SG_TRY(tensor_new(v, regions, in, &(*made)[*made_n], err));
    return SEGUE_OK;
}

/* Stops at the first invalid number; earlier ones of the list are freed then. */
segue_status sg_serve_tensor_drop(struct sg_server *v, struct sg_reader *in, segue_error *err)
{
    uint32_t n = sg_reader_u32(in);
    if (in->bad || n > in->left / 4) return sg_server_reject(err, "tensors to drop: truncated");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_reader_u32(in);
        if (id >= v->tensors_n || !v->tensors[id] || v->tensors[id]->users)
            return sg_server_reject(err, "a tensor to drop: unknown, or in use");
        tensor_free(v, id);
    }
    return SEGUE_OK;
}

/* --- programs --- */

/* Also frees a graph without a program, after a failure. */
static void program_free(struct sg_server *v, struct sg_server_program *p)
{
    if (p->program) v->ops->discard(p->program);
    for (uint32_t i = 0; p->graph && p->tensors && i < p->graph->tensors_n; i++) v->tensors[p->tensors[i]]->users--;
    if (p->graph) sg_graph_free(p->graph);
    sg_free(p->tensors);
    *p = (struct sg_server_program){0};
}

/* Reads a graph and counts the use of its tensors. */
static segue_status graph_read(struct sg_server *v, struct sg_reader *in, const struct sg_tensor *const *tensors,
                               struct sg_server_program *p, segue_error *err)
{
    SG_TRY(sg_wire_graph_read(in, tensors, v->tensors_n, &p->graph, err));
    uint32_t n = p->graph->tensors_n;
    uint32_t *ids = sg_alloc(n * sizeof *ids);
    if (!ids) return sg_no_memory("program", n * sizeof *ids, err);
    for (uint32_t i = 0; i < n; i++) {
        /* the tensor is the first member of the table entry */
        const struct sg_server_tensor *t = (const struct sg_server_tensor *)(const void *)p->graph->tensors[i];
        uint32_t id = t->id;
        ids[i] = id;
        v->tensors[id]->users++;
    }
    p->tensors = ids;
    return SEGUE_OK;
}

/* The weight cache that the peer names; in the scratch arena. *keep = NULL: none. */
static segue_status cache_read(struct sg_server *v, struct sg_reader *in, struct sg_weight_cache **keep, segue_error *err)
{
    char folder[FOLDER_MAX];
    *keep = NULL;
    if (!sg_reader_u32(in)) return SEGUE_OK;
    sg_reader_text(in, folder, sizeof folder);
    struct sg_weight_cache *k = sg_arena_alloc(&v->scratch, sizeof *k);
    if (!k || !(k->folder = sg_arena_strndup(&v->scratch, folder, strlen(folder))))
        return sg_no_memory("folder", sizeof folder, err);
    k->bytes_max = sg_reader_u64(in);
    k->weights.lo = sg_reader_u64(in);
    k->weights.hi = sg_reader_u64(in);
    k->stamp.lo = sg_reader_u64(in);
    k->stamp.hi = sg_reader_u64(in);
    k->exact = sg_reader_u32(in) == 1;
    *keep = k;
    return in->bad || !folder[0] ? sg_server_reject(err, "a cache folder: no name") : SEGUE_OK;
}

/* Programs of all graphs, or none. */
static segue_status compile_all(struct sg_server *v, struct sg_server_program *fresh, uint32_t n,
                                const struct sg_weight_cache *keep, segue_error *err)
{
    const struct sg_graph *graphs[GRAPHS_MAX];
    struct sg_program *programs[GRAPHS_MAX] = {NULL};
    for (uint32_t i = 0; i < n; i++) {
        graphs[i] = fresh[i].graph;
        for (uint32_t k = 0; k < graphs[i]->ops_n; k++) SG_TRY(v->ops->can(v->unit, graphs[i], &graphs[i]->ops[k], err));
    }
    SG_TRY(v->ops->compile(v->unit, graphs, n, keep, programs, err));
    for (uint32_t i = 0; i < n; i++) fresh[i].program = programs[i];
    return SEGUE_OK;
}

/* Reads n graphs and the numbers of their programs. */
static segue_status graphs_read(struct sg_server *v, struct sg_reader *in, struct sg_server_program *fresh,
                                uint32_t *ids, uint32_t n, segue_error *err)
{
    const struct sg_tensor **tensors = sg_arena_alloc(&v->scratch, (v->tensors_n + 1) * sizeof *tensors);
    if (!tensors) return sg_no_memory("graph", v->tensors_n * sizeof *tensors, err);
    for (uint32_t i = 0; i < v->tensors_n; i++) tensors[i] = v->tensors[i] ? &v->tensors[i]->tensor : NULL;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = sg_reader_u32(in);
        SG_TRY(sg_server_table_grow(&v->programs, &v->programs_n, ids[i], SG_WIRE_PROGRAMS, sizeof *v->programs, err));
        /* The peer chooses the numbers; two graphs of a request must not have the same one. */
        int taken = v->programs[ids[i]].program != NULL;
        for (uint32_t k = 0; k < i; k++) taken |= ids[k] == ids[i];
        if (taken) return sg_server_reject(err, "a program: its number is in use");
        SG_TRY(graph_read(v, in, tensors, &fresh[i], err));
    }
    return SEGUE_OK;
}

/* The outcome of the weight cache, as two texts. */
static void cache_status_write(struct sg_server *v, const struct sg_program *p, struct sg_buf *out)
{
    const char *why = NULL, *kept = v->ops->kept ? v->ops->kept(p, &why) : NULL;
    char text[WHY_MAX];
    snprintf(text, sizeof text, "%s", why ? why : "");
    sg_put_text(out, kept ? kept : "");
    sg_put_text(out, text);
}

/* The common part of both requests; `fresh` owns graphs and programs until they are entered in the table. */
static segue_status compile_or_can(struct sg_server *v, struct sg_reader *in, struct sg_server_program *fresh, int can,
                                   struct sg_buf *out, segue_error *err)
{
    struct sg_weight_cache *keep;
    SG_TRY(cache_read(v, in, &keep, err));
    uint32_t n = sg_reader_u32(in), ids[GRAPHS_MAX];
    if (in->bad || !n || n > GRAPHS_MAX || (can && n != 1)) return sg_server_reject(err, "graphs: none, or too many");
    SG_TRY(graphs_read(v, in, fresh, ids, n, err));
    uint32_t op = can ? sg_reader_u32(in) : 0;
    if (!sg_reader_done(in)) return sg_server_reject(err, "graphs: damaged");
    if (can) {
        if (op >= fresh[0].graph->ops_n) return sg_server_reject(err, "an op: unknown number");
        return v->ops->can(v->unit, fresh[0].graph, &fresh[0].graph->ops[op], err);
    }
    SG_TRY(compile_all(v, fresh, n, keep, err));
    for (uint32_t i = 0; i < n; i++) {
        cache_status_write(v, fresh[i].program, out);
        sg_put_u64(out, sg_program_compiles(fresh[i].program));
        v->programs[ids[i]] = fresh[i];
        fresh[i] = (struct sg_server_program){0};
    }
    return SEGUE_OK;
}

/* After a failure, or a query (can), the tensors of the request are freed again. */
segue_status sg_serve_compile(struct sg_server *v, struct sg_reader *in, int can, struct sg_buf *out, segue_error *err)
{
    struct sg_server_program fresh[GRAPHS_MAX] = {{0}};
    uint32_t *made = NULL, made_n = 0;
    segue_status status = tensors_new(v, in, &made, &made_n, err);
    if (status == SEGUE_OK) status = compile_or_can(v, in, fresh, can, out, err);
    for (uint32_t i = 0; i < GRAPHS_MAX; i++) program_free(v, &fresh[i]);
    if (can || status != SEGUE_OK)
        while (made_n) tensor_free(v, made[--made_n]);
    return status;
}

/* Runs of the program have ended: the first connection handles one request at a time. */
segue_status sg_serve_discard(struct sg_server *v, struct sg_reader *in, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    if (!sg_reader_done(in) || id >= v->programs_n || !v->programs[id].program)
        return sg_server_reject(err, "a program to discard: unknown");
    program_free(v, &v->programs[id]);
    return SEGUE_OK;
}

segue_status sg_serve_footprint(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    uint64_t own = 0, read = 0, scratch = 0;
    if (!sg_reader_done(in) || id >= v->programs_n || !v->programs[id].program)
        return sg_server_reject(err, "a program: unknown");
    v->ops->footprint(v->programs[id].program, &own, &read, &scratch);
    sg_put_u64(out, own);
    sg_put_u64(out, read);
    sg_put_u64(out, scratch);
    return SEGUE_OK;
}

/* --- adapters --- */

/* Also frees an adapter that was read in part. */
static void lora_free(struct sg_server *v, struct sg_server_lora *l)
{
    for (uint32_t i = 0; l->tensors && i < l->lora.pairs_n; i++) v->tensors[l->tensors[i]]->users--;
    sg_shared_free(&l->memory);
    sg_free(l->pairs);
    sg_free(l->tensors);
    *l = (struct sg_server_lora){.memory.fd = -1};
}

/* rows x cols floats at an offset of the adapter's memory; NULL: out of bounds. */
static const float *matrix_read(struct sg_reader *in, const struct sg_shared *m, uint64_t rows, uint64_t cols)
{
    uint64_t at = sg_reader_u64(in);
    /* Before the product, which could overflow. */
    if (cols && rows > ((uint64_t)1 << 40) / cols) return NULL;
    uint64_t bytes = rows * cols * sizeof(float);
    if (in->bad || at % sizeof(float) || at > m->size || bytes > m->size - at) return NULL;
    return (const float *)(const void *)(m->data + at);
}

/* Order for qsort and sg_lora_find: by address. */
static int by_tensor(const void *a, const void *b)
{
    const struct sg_lora_pair *x = a, *y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Pairs are sorted by tensor for sg_lora_find; a tensor may occur once. */
static segue_status pairs_read(struct sg_server *v, struct sg_reader *in, struct sg_server_lora *l, uint32_t n,
                               segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = sg_reader_u32(in), rank = sg_reader_u32(in);
        if (id >= v->tensors_n || !v->tensors[id] || !rank || rank > LORA_RANK_MAX)
            return sg_server_reject(err, "an adapter: unknown tensor or invalid rank");
        const struct sg_tensor *t = &v->tensors[id]->tensor;
        const float *a = matrix_read(in, &l->memory, rank, t->cols), *b = matrix_read(in, &l->memory, t->rows, rank);
        if (!a || !b) return sg_server_reject(err, "an adapter: matrix outside of its memory");
        l->pairs[i] = (struct sg_lora_pair){t, rank, a, b};
        l->tensors[i] = id;
        l->lora.pairs_n++;
        v->tensors[id]->users++;
    }
    if (!sg_reader_done(in)) return sg_server_reject(err, "an adapter: damaged");
    if (n) qsort(l->pairs, n, sizeof *l->pairs, by_tensor);
    for (uint32_t i = 1; i < n; i++)
        if (l->pairs[i].tensor == l->pairs[i - 1].tensor) return sg_server_reject(err, "an adapter: duplicate tensor");
    return SEGUE_OK;
}

segue_status sg_serve_lora(struct sg_server *v, struct sg_reader *in, int fd, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    uint64_t size = sg_reader_u64(in);
    uint32_t n = sg_reader_u32(in);
    struct sg_server_lora l = {.memory.fd = -1};
    SG_TRY(sg_shared_map(&l.memory, fd, (size_t)size, 0, err));
    segue_status status = in->bad || n > PAIRS_MAX || n > in->left / 8
                              ? sg_server_reject(err, "an adapter: truncated")
                              : sg_server_table_grow(&v->loras, &v->loras_n, id, SG_WIRE_LORAS, sizeof *v->loras, err);
    if (status == SEGUE_OK && v->loras[id].pairs) status = sg_server_reject(err, "an adapter: its number is in use");
    if (status == SEGUE_OK) {
        l.pairs = sg_alloc(n * sizeof *l.pairs);
        l.tensors = sg_alloc(n * sizeof *l.tensors);
        status = l.pairs && l.tensors ? pairs_read(v, in, &l, n, err) : sg_no_memory("adapter", n * sizeof *l.pairs, err);
    }
    if (status != SEGUE_OK) {
        lora_free(v, &l);
        return status;
    }
    l.lora.id = ++v->lora_ids;
    l.lora.pairs = l.pairs;
    v->loras[id] = l;
    return SEGUE_OK;
}

segue_status sg_serve_lora_drop(struct sg_server *v, struct sg_reader *in, segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    if (!sg_reader_done(in) || id >= v->loras_n || !v->loras[id].pairs)
        return sg_server_reject(err, "an adapter to drop: unknown");
    lora_free(v, &v->loras[id]);
    return SEGUE_OK;
}

/* Users before what they use: adapters, programs, tensors, regions. */
void sg_serve_objects_free(struct sg_server *v)
{
    for (uint32_t i = 0; i < v->loras_n; i++)
        if (v->loras[i].pairs) lora_free(v, &v->loras[i]);
    for (uint32_t i = 0; i < v->programs_n; i++) program_free(v, &v->programs[i]);
    for (uint32_t i = 0; i < v->tensors_n; i++)
        if (v->tensors[i]) tensor_free(v, i);
    for (uint32_t i = 0; i < v->regions_n; i++)
        if (v->regions[i].memory.data) sg_shared_free(&v->regions[i].memory);
    sg_free(v->loras);
    sg_free(v->programs);
    sg_free(v->tensors);
    sg_free(v->regions);
}
