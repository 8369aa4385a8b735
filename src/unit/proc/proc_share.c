/* proc_share.c: weights and programs. Weights are not sent: the process maps the model's files by descriptors lent to it,
 * so both read the same pages; tensors that lie in plain memory are copied once to memory that both see. Everything lent
 * is remembered, so that a fresh process can be given it again. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/file.h"
#include "unit/proc/proc.h"

enum { WORK_BYTES = 64 << 20, LORAS_KEPT = 64, ALIGN = 64, PROGRAMS_AT_ONCE = 64 };

segue_status proc_number(uint8_t **flags, uint32_t *n, uint32_t most, uint32_t *out, segue_error *err)
{
    uint32_t i = 0;
    while (i < *n && (*flags)[i]) i++;
    if (i == most) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %u of a kind at once; close some", most);
    if (i == *n) {
        uint32_t want = *n ? *n * 2 : 32;
        if (want > most) want = most;
        uint8_t *wider = sg_realloc(*flags, want);
        if (!wider) return sg_no_memory("table", want, err);
        memset(wider + *n, 0, want - *n);
        *flags = wider;
        *n = want;
    }
    (*flags)[i] = 1;
    *out = i;
    return SEGUE_OK;
}

/* --- regions --- */

/* The file that bytes lie in and that can be lent; NULL: plain memory. */
static const struct sg_map *map_of(const struct sg_tensor *t, const uint8_t *at, uint64_t bytes)
{
    for (uint32_t i = 0; i < t->maps_n; i++) {
        const struct sg_map *m = &t->maps[i];
        if (m->fd >= 0 && at >= m->data && at < m->data + m->size && bytes <= m->size - (size_t)(at - m->data)) return m;
    }
    return NULL;
}

static segue_status region_new(struct sg_unit *u, struct proc_region fresh, uint32_t *id, segue_error *err)
{
    uint32_t i = 0;
    while (i < u->regions_n && u->regions[i].data) i++;
    if (i == SG_WIRE_REGIONS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d files at once; close some models", i);
    if (i == u->regions_n) {
        struct proc_region *wider = sg_realloc(u->regions, (i + 1) * sizeof *wider);
        if (!wider) return sg_no_memory("table", (i + 1) * sizeof *wider, err);
        u->regions = wider;
        u->regions_n = i + 1;
    }
    u->regions[i] = fresh;
    *id = i;
    return SEGUE_OK;
}

static segue_status region_of_map(struct sg_unit *u, const struct sg_map *m, uint32_t *id, segue_error *err)
{
    for (uint32_t i = 0; i < u->regions_n; i++)
        if (u->regions[i].data == m->data && u->regions[i].size == m->size) {
            *id = i;
            return SEGUE_OK;
        }
    return region_new(u, (struct proc_region){.data = m->data, .size = m->size, .fd = m->fd, .own.fd = -1}, id, err);
}

static segue_status region_send(struct sg_unit *u, uint32_t id, segue_error *err)
{
    struct proc_region *r = &u->regions[id];
    struct sg_reader in;
    if (r->sent) return SEGUE_OK;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, id);
    sg_put_u64(b, r->size);
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_REGION, r->fd, 0, &in, err));
    r->sent = 1;
    return SEGUE_OK;
}

/* Regions that nothing lies in any more. The process may be lost; then it has none. */
static void regions_sweep(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->regions_n; i++) {
        struct proc_region *r = &u->regions[i];
        struct sg_reader in;
        if (!r->data || r->users) continue;
        if (r->sent) {
            sg_put_u32(proc_request(u, PROC_FIRST), i);
            proc_call(u, PROC_FIRST, SG_WIRE_REGION_DROP, -1, 0, &in, NULL);
        }
        sg_shared_free(&r->own);
        *r = (struct proc_region){.own.fd = -1};
    }
}

/* --- tensors --- */

/* The three places that a tensor points to. */
static const uint8_t *pointer_of(const struct sg_tensor *t, int spot)
{
    return spot == SG_SPOT_DATA ? t->data : spot == SG_SPOT_SCALES ? t->affine.scales : t->affine.biases;
}

/* The tensor's number if it was lent before and is still the same. */
static int known(const struct sg_unit *u, const struct sg_tensor *t, uint32_t *id)
{
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key == t && !memcmp(&u->tensors[i].tensor, t, sizeof *t)) {
            *id = i;
            return 1;
        }
    return 0;
}

static segue_status tensor_new(struct sg_unit *u, const struct sg_tensor *t, uint32_t *id, segue_error *err)
{
    uint32_t i = 0;
    while (i < u->tensors_n && u->tensors[i].key) i++;
    if (i == SG_WIRE_TENSORS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d tensors at once; close some models", i);
    if (i == u->tensors_n) {
        uint32_t want = i + i / 2 + 64;
        struct proc_tensor *wider = sg_realloc(u->tensors, want * sizeof *wider);
        if (!wider) return sg_no_memory("table", want * sizeof *wider, err);
        memset(wider + i, 0, (want - i) * sizeof *wider);
        u->tensors = wider;
        u->tensors_n = want;
    }
    struct proc_tensor *p = &u->tensors[i];
    *p = (struct proc_tensor){.key = t, .tensor = *t};
    for (int k = 0; k < SG_SPOTS; k++) p->spots[k].region = UINT32_MAX;
    *id = i;
    return SEGUE_OK;
}

/* Spots that lie in files; *loose grows by the bytes of those that do not. */
static segue_status place_in_files(struct sg_unit *u, struct proc_tensor *p, uint64_t *loose, segue_error *err)
{
    uint64_t bytes[SG_SPOTS];
    sg_tensor_extent(&p->tensor, bytes);
    for (int k = 0; k < SG_SPOTS; k++) {
        const uint8_t *at = pointer_of(&p->tensor, k);
        if (!bytes[k]) continue;
        const struct sg_map *m = map_of(&p->tensor, at, bytes[k]);
        if (!m) {
            *loose += (bytes[k] + ALIGN - 1) / ALIGN * ALIGN;
            continue;
        }
        SG_TRY(region_of_map(u, m, &p->spots[k].region, err));
        p->spots[k].at = (uint64_t)(at - m->data);
        u->regions[p->spots[k].region].users++;
    }
    return SEGUE_OK;
}

/* The others of all new tensors go to one piece of shared memory. */
static segue_status place_loose(struct sg_unit *u, const uint32_t *ids, uint32_t n, uint64_t loose, segue_error *err)
{
    struct proc_region r = {.own.fd = -1};
    uint32_t region;
    uint64_t at = 0;
    if (!loose) return SEGUE_OK;
    SG_TRY(sg_shared_new(&r.own, (size_t)loose, err));
    r.data = r.own.data;
    r.size = r.own.size;
    r.fd = r.own.fd;
    segue_status status = region_new(u, r, &region, err);
    if (status != SEGUE_OK) {
        sg_shared_free(&r.own);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct proc_tensor *p = &u->tensors[ids[i]];
        uint64_t bytes[SG_SPOTS];
        sg_tensor_extent(&p->tensor, bytes);
        for (int k = 0; k < SG_SPOTS; k++) {
            if (!bytes[k] || p->spots[k].region != UINT32_MAX) continue;
            memcpy(r.own.data + at, pointer_of(&p->tensor, k), (size_t)bytes[k]);
            p->spots[k] = (struct sg_spot){region, at};
            u->regions[region].users++;
            at += (bytes[k] + ALIGN - 1) / ALIGN * ALIGN;
        }
    }
    return SEGUE_OK;
}

static void tensor_forget(struct sg_unit *u, uint32_t id)
{
    struct proc_tensor *p = &u->tensors[id];
    for (int k = 0; k < SG_SPOTS; k++)
        if (p->spots[k].region != UINT32_MAX) u->regions[p->spots[k].region].users--;
    *p = (struct proc_tensor){0};
}

/* Numbers for a graph's tensors; new ones are placed, but not sent yet. */
static segue_status tensors_place(struct sg_unit *u, const struct sg_graph *g, uint32_t *ids, segue_error *err)
{
    uint32_t *fresh = sg_alloc(g->tensors_n * sizeof *fresh), fresh_n = 0;
    uint64_t loose = 0;
    segue_status status = fresh ? SEGUE_OK : sg_no_memory("table", g->tensors_n * sizeof *fresh, err);
    for (uint32_t i = 0; i < g->tensors_n && status == SEGUE_OK; i++) {
        if (known(u, g->tensors[i], &ids[i])) continue;
        status = tensor_new(u, g->tensors[i], &ids[i], err);
        if (status == SEGUE_OK) fresh[fresh_n++] = ids[i];
        if (status == SEGUE_OK) status = place_in_files(u, &u->tensors[ids[i]], &loose, err);
    }
    if (status == SEGUE_OK) status = place_loose(u, fresh, fresh_n, loose, err);
    for (uint32_t i = 0; i < u->regions_n && status == SEGUE_OK; i++)
        if (u->regions[i].data) status = region_send(u, i, err);
    while (status != SEGUE_OK && fresh_n) tensor_forget(u, fresh[--fresh_n]);
    sg_free(fresh);
    return status;
}

/* Tensors that no program reads. `sent` ones are taken from the process too. */
static void tensors_sweep(struct sg_unit *u)
{
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    struct sg_reader in;
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) n += u->tensors[i].key && !u->tensors[i].users && u->tensors[i].sent;
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < u->tensors_n; i++) {
        if (!u->tensors[i].key || u->tensors[i].users) continue;
        if (u->tensors[i].sent) sg_put_u32(b, i);
        tensor_forget(u, i);
    }
    if (n) proc_call(u, PROC_FIRST, SG_WIRE_TENSOR_DROP, -1, 0, &in, NULL);
    regions_sweep(u);
}

/* --- the request --- */

/* Definitions of all tensors that were not sent, then graphs. */
static void tensors_put(struct sg_unit *u, struct sg_buf *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) n += u->tensors[i].key && !u->tensors[i].sent;
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < u->tensors_n; i++) {
        const struct proc_tensor *p = &u->tensors[i];
        if (!p->key || p->sent) continue;
        sg_put_u32(b, i);
        sg_wire_tensor_put(b, &p->tensor, p->spots);
    }
}

static void tensors_are_sent(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key) u->tensors[i].sent = 1;
}

/* Placing weights takes the longer, the more there are. */
static uint64_t compile_limit(const struct sg_unit *u)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++)
        if (u->tensors[i].key) bytes += u->tensors[i].tensor.bytes;
    return proc_time_limit(u, bytes / WORK_BYTES + 1);
}

static void keep_put(struct sg_buf *b, const struct sg_weight_cache *k)
{
    sg_put_u32(b, k && k->folder);
    if (!k || !k->folder) return;
    sg_put_text(b, k->folder);
    const uint64_t words[] = {k->most, k->weights.lo, k->weights.hi, k->stamp.lo, k->stamp.hi};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sg_put_u64(b, words[i]);
    sg_put_u32(b, k->exact != 0);
}

static segue_status can_here(struct sg_unit *u, const struct sg_graph *g, uint32_t op, segue_error *why)
{
    struct sg_reader in;
    uint32_t *ids = sg_alloc(g->tensors_n * sizeof *ids);
    if (!ids) return sg_no_memory("table", g->tensors_n * sizeof *ids, why);
    segue_status status = tensors_place(u, g, ids, why);
    if (status == SEGUE_OK) {
        struct sg_buf *b = proc_request(u, PROC_FIRST);
        tensors_put(u, b);
        keep_put(b, NULL);
        sg_put_u32(b, 1);
        sg_put_u32(b, SG_WIRE_PROGRAMS - 1); /* a number that no program gets */
        sg_wire_graph_put(b, g, ids);
        sg_put_u32(b, op);
        status = proc_call(u, PROC_FIRST, SG_WIRE_CAN, -1, compile_limit(u), &in, why);
    }
    sg_free(ids);
    tensors_sweep(u);
    return status;
}

/* The table says const: asking changes what is lent, not what the unit is. */
segue_status proc_can(const struct sg_unit *unit, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    union { const struct sg_unit *in; struct sg_unit *out; } own = {unit};
    struct sg_unit *u = own.out;
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_is_lost(u, why);
    if (status == SEGUE_OK) status = can_here(u, g, (uint32_t)(op - g->ops), why);
    proc_leave(u, PROC_FIRST);
    return status;
}

/* --- programs --- */

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

static segue_status program_new(struct sg_unit *u, const struct sg_graph *g, const struct sg_weight_cache *keep,
                                struct sg_program **out, segue_error *err)
{
    uint32_t id;
    SG_TRY(proc_number(&u->program_ids, &u->program_ids_n, SG_WIRE_PROGRAMS - 1, &id, err));
    struct sg_program *p = sg_alloc(sizeof *p);
    uint32_t *ids = sg_alloc(g->tensors_n * sizeof *ids);
    char *folder = keep ? sg_strndup(keep->folder, strlen(keep->folder)) : NULL;
    segue_status status = p && ids && (folder || !keep) ? tensors_place(u, g, ids, err)
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

static segue_status compile_here(struct sg_unit *u, struct sg_program *const *programs, uint32_t n, segue_error *err)
{
    struct sg_reader in;
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    tensors_put(u, b);
    keep_put(b, &programs[0]->keep);
    sg_put_u32(b, n);
    for (uint32_t i = 0; i < n; i++) {
        sg_put_u32(b, programs[i]->id);
        sg_wire_graph_put(b, programs[i]->base.graph, programs[i]->tensors);
    }
    SG_TRY(proc_call(u, PROC_FIRST, SG_WIRE_COMPILE, -1, compile_limit(u), &in, err));
    tensors_are_sent(u);
    for (uint32_t i = 0; i < n; i++) {
        sg_take_text(&in, programs[i]->kept, sizeof programs[i]->kept);
        sg_take_text(&in, programs[i]->why, sizeof programs[i]->why);
        atomic_store(&programs[i]->compiles, sg_take_u64(&in));
    }
    return sg_reader_done(&in) ? SEGUE_OK : proc_lose(u, "it answered nonsense", err);
}

uint64_t proc_compiles(const struct sg_program *p) { return atomic_load(&p->compiles); }

/* What the process said, in the words of this library; others are none. */
const char *proc_kept(const struct sg_program *p, const char **why)
{
    static const char *const words[] = {"mapped", "written", "anew"};
    if (why) *why = p->why[0] ? p->why : NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(p->kept, words[i])) return words[i];
    return NULL;
}

/* Every graph is checked here as well: what cannot be sent must not be tried. */
segue_status proc_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                          struct sg_program **programs, segue_error *err)
{
    uint32_t made = 0;
    if (!n || n > PROGRAMS_AT_ONCE)
        return sg_fail(err, SEGUE_EARG, "compile: proc: %u graphs: 1 to %d are taken at once", n, PROGRAMS_AT_ONCE);
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_is_lost(u, err);
    while (status == SEGUE_OK && made < n) {
        status = program_new(u, graphs[made], keep, &programs[made], err);
        if (status == SEGUE_OK) made++;
    }
    if (status == SEGUE_OK) status = compile_here(u, programs, n, err);
    if (status != SEGUE_OK) {
        while (made) {
            program_free(u, programs[--made]);
            programs[made] = NULL;
        }
        tensors_sweep(u);
    }
    proc_leave(u, PROC_FIRST);
    return status;
}

static void lora_drop(struct sg_unit *u, uint32_t number)
{
    struct sg_reader in;
    u->loras[number] = (struct proc_lora){0};
    sg_put_u32(proc_request(u, PROC_FIRST), number);
    proc_call(u, PROC_FIRST, SG_WIRE_LORA_DROP, -1, 0, &in, NULL);
}

void proc_discard(struct sg_program *p)
{
    if (!p) return;
    struct sg_unit *u = p->base.unit;
    struct sg_reader in;
    proc_enter(u, PROC_FIRST);
    for (uint32_t i = 0; i < u->loras_n; i++)
        if (u->loras[i].id && u->loras[i].program == p->id) lora_drop(u, i);
    sg_put_u32(proc_request(u, PROC_FIRST), p->id);
    proc_call(u, PROC_FIRST, SG_WIRE_DISCARD, -1, 0, &in, NULL);
    program_free(u, p);
    tensors_sweep(u);
    proc_leave(u, PROC_FIRST);
}

void proc_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    struct sg_unit *u = p->base.unit;
    struct sg_reader in;
    uint64_t three[3] = {0};
    proc_enter(u, PROC_FIRST);
    sg_put_u32(proc_request(u, PROC_FIRST), p->id);
    if (proc_call(u, PROC_FIRST, SG_WIRE_FOOTPRINT, -1, 0, &in, NULL) == SEGUE_OK)
        for (int i = 0; i < 3; i++) three[i] = sg_take_u64(&in);
    proc_leave(u, PROC_FIRST);
    if (own) *own = three[0];
    if (read) *read = three[1];
    if (scratch) *scratch = three[2];
}

/* Regions, tensors and programs as they are remembered. */
segue_status proc_lend_again(struct sg_unit *u, segue_error *err)
{
    for (uint32_t i = 0; i < u->regions_n; i++) u->regions[i].sent = 0;
    for (uint32_t i = 0; i < u->tensors_n; i++) u->tensors[i].sent = 0;
    for (uint32_t i = 0; i < u->loras_n; i++) u->loras[i] = (struct proc_lora){0};
    for (uint32_t i = 0; i < u->regions_n; i++)
        if (u->regions[i].data) SG_TRY(region_send(u, i, err));
    for (struct sg_program *p = u->programs; p; p = p->next) SG_TRY(compile_here(u, &p, 1, err));
    return SEGUE_OK;
}

/* --- adapters --- */

/* A free number, or that of the adapter that was not used for the longest time and not by this run. */
static segue_status lora_number(struct sg_unit *u, uint32_t *number, segue_error *err)
{
    uint32_t i = 0, oldest = UINT32_MAX;
    for (; i < u->loras_n && u->loras[i].id; i++)
        if (u->loras[i].used < u->runs && (oldest == UINT32_MAX || u->loras[i].used < u->loras[oldest].used)) oldest = i;
    if (i == u->loras_n && i >= LORAS_KEPT && oldest != UINT32_MAX) {
        lora_drop(u, oldest);
        i = oldest;
    }
    if (i == SG_WIRE_LORAS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d adapters in one run; use fewer", i);
    if (i == u->loras_n) {
        struct proc_lora *wider = sg_realloc(u->loras, (i + 1) * sizeof *wider);
        if (!wider) return sg_no_memory("table", (i + 1) * sizeof *wider, err);
        wider[i] = (struct proc_lora){0};
        u->loras = wider;
        u->loras_n = i + 1;
    }
    *number = i;
    return SEGUE_OK;
}

/* Pairs whose tensor the program reads; *bytes = of their matrices. */
static uint32_t pairs_of(const struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, struct sg_buf *b,
                         uint8_t *to, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < p->base.graph->tensors_n; i++) {
        const struct sg_tensor *t = u->tensors[p->tensors[i]].key;
        const struct sg_lora_pair *pair = sg_lora_find(l, t);
        int again = 0;
        for (uint32_t k = 0; k < i && !again; k++) again = p->tensors[k] == p->tensors[i];
        if (!pair || again) continue;
        uint64_t a = (uint64_t)pair->rank * t->cols * sizeof(float), z = (uint64_t)pair->rank * t->rows * sizeof(float);
        if (to) memcpy(to + *bytes, pair->a, (size_t)a);
        if (to) memcpy(to + *bytes + a, pair->b, (size_t)z);
        if (b) {
            sg_put_u32(b, p->tensors[i]);
            sg_put_u32(b, pair->rank);
            sg_put_u64(b, *bytes);
            sg_put_u64(b, *bytes + a);
        }
        *bytes += a + z;
        n++;
    }
    return n;
}

segue_status proc_lora_number(struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, uint32_t *number,
                              segue_error *err)
{
    struct sg_reader in;
    struct sg_shared memory;
    uint64_t bytes;
    for (uint32_t i = 0; i < u->loras_n; i++)
        if (u->loras[i].id == l->id && u->loras[i].program == p->id) {
            u->loras[i].used = u->runs;
            *number = i;
            return SEGUE_OK;
        }
    SG_TRY(lora_number(u, number, err));
    uint32_t n = pairs_of(u, p, l, NULL, NULL, &bytes);
    SG_TRY(sg_shared_new(&memory, bytes ? (size_t)bytes : 1, err));
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, *number);
    sg_put_u64(b, memory.size);
    sg_put_u32(b, n);
    pairs_of(u, p, l, b, memory.data, &bytes);
    segue_status status = proc_call(u, PROC_FIRST, SG_WIRE_LORA, memory.fd, 0, &in, err);
    sg_shared_free(&memory);
    if (status == SEGUE_OK) u->loras[*number] = (struct proc_lora){l->id, p->id, u->runs};
    return status;
}

void proc_lend_free(struct sg_unit *u)
{
    for (uint32_t i = 0; i < u->regions_n; i++) sg_shared_free(&u->regions[i].own);
    sg_free(u->regions);
    sg_free(u->tensors);
    sg_free(u->program_ids);
    sg_free(u->loras);
}
