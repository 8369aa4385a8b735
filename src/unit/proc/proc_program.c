/* proc_program.c: programs. A request has the definitions of tensors that the child does not know yet, then the graphs. Programs
 * are listed in the unit, so that a restarted child can compile them again.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/proc/proc.h"

enum { WORK_BYTES = 64 << 20, PROGRAMS_MAX = 64 };   /* weights per unit of proc_time_limit; graphs of one compile */

/* Proportional to the weights, which the child may have to copy or repack. */
static uint64_t compile_limit(const struct sg_unit *u)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key) bytes += u->tensors[i].tensor.bytes;
    return proc_time_limit(u, bytes / WORK_BYTES + 1);
}

/* The weight cache: 0, or 1 and its fields. */
static void cache_put(struct sg_buf *b, const struct sg_weight_cache *k)
{
    sg_put_u32(b, k && k->folder);
    if (!k || !k->folder) return;
    sg_put_text(b, k->folder);
    const uint64_t words[] = {k->bytes_max, k->weights.lo, k->weights.hi, k->stamp.lo, k->stamp.hi};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sg_put_u64(b, words[i]);
    sg_put_u32(b, k->exact != 0);
}

/* Sends the graph with its tensors, as for a compile, and the index of the op. */
static segue_status query_op(struct sg_unit *u, const struct sg_graph *g, uint32_t op, segue_error *why)
{
    struct sg_reader in;
    uint32_t *ids = sg_alloc(g->tensors_n * sizeof *ids);
    if (!ids) return sg_no_memory("table", g->tensors_n * sizeof *ids, why);
    segue_status status = proc_tensors_place(u, g, ids, why);
    if (status == SEGUE_OK) {
        struct sg_buf *b = proc_request(u, PROC_FIRST);
        proc_tensors_write(u, b);
        cache_put(b, NULL);
        sg_put_u32(b, 1);
        sg_put_u32(b, SG_WIRE_PROGRAMS - 1); /* this number is reserved for the query */
        sg_wire_graph_write(b, g, ids);
        sg_put_u32(b, op);
        status = proc_call(u, PROC_FIRST, SG_WIRE_CAN, -1, compile_limit(u), &in, why);
    }
    sg_free(ids);
    proc_tensors_drop_unused(u);
    return status;
}

/* The parameter is const in struct sg_unit_ops; the query changes the tables of shared tensors only. */
segue_status proc_can(const struct sg_unit *unit, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    union { const struct sg_unit *in; struct sg_unit *out; } cast = {unit};
    struct sg_unit *u = cast.out;
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_is_lost(u, why);
    if (status == SEGUE_OK) status = query_op(u, g, (uint32_t)(op - g->ops), why);
    proc_leave(u, PROC_FIRST);
    return status;
}

/* --- programs --- */

/* Removes the program from the unit's list; its tensors lose a user. */
static void program_free(struct sg_unit *u, struct sg_program *p)
{
    struct sg_program **at = &u->programs;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    for (uint32_t i = 0; p->tensors && i < p->base.graph->tensors_n; i++)
        if (u->tensors[p->tensors[i]].users) u->tensors[p->tensors[i]].users--;
    union { const char *in; char *out; } folder = {p->keep.folder};
    u->program_ids[p->id] = 0;
    sg_free(folder.out);
    sg_free(p->tensors);
    sg_free(p);
}

/* This side of a program, with its tensors located, in the unit's list. */
static segue_status program_new(struct sg_unit *u, const struct sg_graph *g, const struct sg_weight_cache *keep,
                                struct sg_program **out, segue_error *err)
{
    uint32_t id;
    SG_TRY(proc_number(&u->program_ids, &u->program_ids_n, SG_WIRE_PROGRAMS - 1, &id, err));
    struct sg_program *p = sg_alloc(sizeof *p);
    uint32_t *ids = sg_alloc(g->tensors_n * sizeof *ids);
    char *folder = keep ? sg_strndup(keep->folder, strlen(keep->folder)) : NULL;
    segue_status status = p && ids && (folder || !keep) ? proc_tensors_place(u, g, ids, err)
                                                        : sg_no_memory("program", sizeof *p, err);
    if (status != SEGUE_OK) {
        u->program_ids[id] = 0;
        sg_free(folder);
        sg_free(p);
        sg_free(ids);
        return status;
    }
    *p = (struct sg_program){.base = {u->base.ops, u, g}, .id = id, .tensors = ids, .next = u->programs};
    if (keep) p->keep = *keep;
    p->keep.folder = folder;
    for (uint32_t i = 0; i < g->tensors_n; i++) u->tensors[ids[i]].users++;
    u->programs = p;
    *out = p;
    return SEGUE_OK;
}

/* One request for n programs; the child compiles all or none. */
static segue_status compile_remote(struct sg_unit *u, struct sg_program *const *programs, uint32_t n, segue_error *err)
{
    struct sg_reader in;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    proc_tensors_write(u, b);
    cache_put(b, &programs[0]->keep);
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < n; i++) {
        sg_put_u32(b, programs[i]->id);
        sg_wire_graph_write(b, programs[i]->base.graph, programs[i]->tensors);
    }
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_COMPILE, -1, compile_limit(u), &in, err));
    proc_tensors_mark_sent(u);
    for (uint32_t i = 0; i < n; i++) {
        sg_reader_text(&in, programs[i]->kept, sizeof programs[i]->kept);
        sg_reader_text(&in, programs[i]->why, sizeof programs[i]->why);
        atomic_store(&programs[i]->compiles, sg_reader_u64(&in));
    }
    return sg_reader_done(&in) ? SEGUE_OK : proc_lose(u, "it sent an invalid reply", err);
}

uint64_t proc_compiles(const struct sg_program *p) { return atomic_load(&p->compiles); }

/* Only the texts that this library defines are passed on. */
const char *proc_kept(const struct sg_program *p, const char **why)
{
    static const char *const known[] = {"mapped", "written", "repacked"};
    if (why) *why = p->why[0] ? p->why : NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(p->kept, known[i])) return known[i];
    return NULL;
}

/* Graphs are checked before they are sent. */
segue_status proc_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                          struct sg_program **programs, segue_error *err)
{
    uint32_t made = 0;
    if (!n || n > PROGRAMS_MAX)
        return sg_fail(err, SEGUE_EARG, "compile: proc: %u graphs; 1 to %d are supported", n, PROGRAMS_MAX);
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_is_lost(u, err);
    while (status == SEGUE_OK && made < n) {
        status = program_new(u, graphs[made], keep, &programs[made], err);
        if (status == SEGUE_OK) made++;
    }
    if (status == SEGUE_OK) status = compile_remote(u, programs, n, err);
    if (status != SEGUE_OK) {
        while (made) {
            program_free(u, programs[--made]);
            programs[made] = NULL;
        }
        proc_tensors_drop_unused(u);
    }
    proc_leave(u, PROC_FIRST);
    return status;
}

/* The program's adapters and unused tensors are dropped in the child as well. */
void proc_discard(struct sg_program *p)
{
    if (!p) return;
    struct sg_unit *u = p->base.unit;
    struct sg_reader in;
    proc_enter(u, PROC_FIRST);
    proc_loras_drop(u, p->id);
    sg_put_u32(proc_request(u, PROC_FIRST), p->id);
    proc_call(u, PROC_FIRST, SG_WIRE_DISCARD, -1, 0, &in, NULL);
    program_free(u, p);
    proc_tensors_drop_unused(u);
    proc_leave(u, PROC_FIRST);
}

/* Zeros when the unit is lost. */
void proc_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    struct sg_unit *u = p->base.unit;
    struct sg_reader in;
    uint64_t three[3] = {0};
    proc_enter(u, PROC_FIRST);
    sg_put_u32(proc_request(u, PROC_FIRST), p->id);
    if (proc_call(u, PROC_FIRST, SG_WIRE_FOOTPRINT, -1, 0, &in, NULL) == SEGUE_OK)
        for (int i = 0; i < 3; i++) three[i] = sg_reader_u64(&in);
    proc_leave(u, PROC_FIRST);
    if (own) *own = three[0];
    if (read) *read = three[1];
    if (scratch) *scratch = three[2];
}

/* Adapters are sent again when a run uses them. */
segue_status proc_share_again(struct sg_unit *u, segue_error *err)
{
    for (uint32_t i = 0; i < u->loras_n; i++) u->loras[i] = (struct proc_lora){0};
    SG_TRY(proc_regions_share_again(u, err));
    for (struct sg_program *p = u->programs; p; p = p->next) SG_TRY(compile_remote(u, &p, 1, err));
    return SEGUE_OK;
}
