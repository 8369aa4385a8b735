/* pack.c: weights from the mapped file into the layouts of kernels.h, once per program set, by all threads.
 * Integers, scales and offsets are the file's own: nothing is rounded a second time, except where a column
 * order cuts through blocks; such a tensor is kept in fp32.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "unit/cpu/blocks.h"
#include "unit/cpu/packfile.h"

static const uint64_t HUGE_PAGE = 2u << 20;
static const size_t KEPT_LEAST = 1u << 20;   /* smaller packs are made faster than a file is synced */

/* 1: runs of n logical columns are runs of n stored columns. */
static int columns_whole(const struct sg_tensor *t, uint32_t n)
{
    const struct sg_perm *p = &t->col_perm;
    return !p->a || (p->w % n == 0 && p->first % n == 0);
}

static enum sg_pack kind_of(const struct sg_tensor *t)
{
    enum sg_pack kind = sg_block_kind(t);
    if (kind == SG_PACK_Q4K && !columns_whole(t, 256)) kind = SG_PACK_Q4F;
    if (kind == SG_PACK_Q6K && !columns_whole(t, 256)) kind = SG_PACK_Q8H;
    return kind < SG_PACK_F32 && (!columns_whole(t, 32) || t->cols % 32) ? SG_PACK_F32 : kind;
}

struct sg_packed *sg_pack_want(struct sg_pack_set *set, const struct sg_tensor *t, uint32_t at, uint32_t rows)
{
    for (uint32_t i = 0; i < set->items_n; i++)
        if (set->items[i]->tensor == t && set->items[i]->at == at && set->items[i]->rows == rows)
            return set->items[i];
    if (set->items_n == set->items_cap) {
        uint32_t cap = set->items_cap ? 2 * set->items_cap : 256;
        struct sg_packed **wider = sg_realloc(set->items, cap * sizeof(struct sg_packed *));
        if (!wider) return NULL;
        set->items = wider;
        set->items_cap = cap;
    }
    struct sg_packed *w = sg_arena_alloc(&set->arena, sizeof *w);
    if (!w) return NULL;
    w->tensor = t;
    w->at = at;
    w->rows = rows;
    w->k = (uint32_t)t->cols;
    w->groups = (rows + SG_GROUP - 1) / SG_GROUP;
    w->kind = kind_of(t);
    w->group_bytes = (size_t)w->k / sg_pack_block(w->kind) * sg_pack_block_bytes(w->kind);
    return set->items[set->items_n++] = w;
}

const float *sg_pack_vector(struct sg_pack_set *set, const struct sg_tensor *t)
{
    float *v = sg_arena_alloc(&set->arena, (size_t)(t->rows * t->cols) * sizeof *v);
    if (v) sg_tensor_read(t, v);
    return v;
}

/* --- filling, tensor by tensor --- */

static void put_f32(uint8_t *p, float x) { memcpy(p, &x, 4); }
static void put_u16(uint8_t *p, uint16_t x) { memcpy(p, &x, 2); }

static void place_q4k(uint8_t *group, uint32_t r, uint64_t b, const struct sg_block32 *in)
{
    uint8_t *block = group + b / 8 * sg_pack_block_bytes(SG_PACK_Q4K), *s = block + 64 + b % 8 * 32 + r,
            *v = block + 320 + b % 8 * 256;
    put_u16(block + 2 * r, in->half_d);
    put_u16(block + 32 + 2 * r, in->half_m);
    s[0] = in->scale[0];
    s[16] = in->min;
    for (uint32_t c = 0; c < 16; c++) v[c / 4 * 64 + r * 4 + c % 4] = (uint8_t)(in->q[c] | in->q[c + 16] << 4);
}

static void place_q6k(uint8_t *group, uint32_t r, uint64_t b, const struct sg_block32 *in)
{
    uint8_t *block = group + b / 8 * sg_pack_block_bytes(SG_PACK_Q6K), *s = block + 64 + b % 8 * 32 + r,
            *v = block + 320 + b % 8 * 384;
    put_u16(block + 2 * r, in->half_d);
    s[0] = in->scale[0];
    s[16] = in->scale[1];
    for (uint32_t c = 0; c < 16; c++)
        v[c / 4 * 64 + r * 4 + c % 4] = (uint8_t)((in->q[c] & 15) | (in->q[c + 16] & 15) << 4);
    for (uint32_t c = 0; c < 8; c++) {       /* chunks of 4 columns: c / 4, and 2, 4, 6 further on */
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 4; i++) bits |= (uint32_t)(in->q[c + 8 * i] >> 4) << 2 * i;
        v[256 + c / 4 * 64 + r * 4 + c % 4] = (uint8_t)bits;
    }
}

/* Columns [32*b, ...) of row r of a group. */
static void place(const struct sg_packed *w, uint8_t *group, uint32_t r, uint64_t b,
                  const struct sg_block32 *in)
{
    size_t bytes = sg_pack_block_bytes(w->kind);
    if (w->kind == SG_PACK_Q4K) {
        place_q4k(group, r, b, in);
        return;
    }
    if (w->kind == SG_PACK_Q6K) {
        place_q6k(group, r, b, in);
        return;
    }
    if (w->kind == SG_PACK_Q8H) {
        for (uint32_t h = 0; h < 2; h++) {
            uint8_t *block = group + (2 * b + h) * bytes;
            put_f32(block + 4 * r, in->d[h]);
            put_f32(block + 64 + 4 * r, in->m[h]);
            for (uint32_t c = 0; c < 16; c++) block[128 + c / 4 * 64 + r * 4 + c % 4] = in->q[h * 16 + c];
        }
        return;
    }
    uint8_t *block = group + b * bytes, *v = block + 128;
    if (w->kind == SG_PACK_Q4F || w->kind == SG_PACK_Q8F) {
        put_f32(block + 4 * r, in->d[0]);
        put_f32(block + 64 + 4 * r, in->m[0]);
    } else {
        put_u16(block + 2 * r, in->half_d);
        if (w->kind == SG_PACK_Q4M) put_u16(block + 32 + 2 * r, in->half_m);
        v = block + (w->kind == SG_PACK_Q4M ? 64 : 32);
    }
    if (w->kind == SG_PACK_Q8 || w->kind == SG_PACK_Q8F)
        for (uint32_t c = 0; c < 32; c++) v[c / 4 * 64 + r * 4 + c % 4] = in->q[c];
    else
        for (uint32_t c = 0; c < 16; c++)
            v[c / 4 * 64 + r * 4 + c % 4] = (uint8_t)(in->q[c] | in->q[c + 16] << 4);
}

static void fill_group(const struct sg_packed *w, uint32_t g, float *room)
{
    const struct sg_tensor *t = w->tensor;
    uint8_t *group = w->data + g * w->group_bytes;
    for (uint32_t r = 0; r < SG_GROUP && g * SG_GROUP + r < w->rows; r++) {
        uint64_t row = (uint64_t)w->at + g * SG_GROUP + r;
        if (w->kind < SG_PACK_F32) {
            uint64_t stored = sg_perm_stored(&t->row_perm, row);
            for (uint64_t b = 0; b < w->k / 32; b++) {
                struct sg_block32 block;
                sg_block_read(t, stored, sg_perm_stored(&t->col_perm, b * 32) / 32, &block);
                place(w, group, r, b, &block);
            }
            continue;
        }
        sg_tensor_row(t, row, 0, w->k, room);
        for (uint32_t c = 0; c < w->k; c++) {
            size_t at = (size_t)c * SG_GROUP + r;
            if (w->kind == SG_PACK_F32) put_f32(group + 4 * at, room[c]);
            else
                put_u16(group + 2 * at,
                        w->kind == SG_PACK_F16 ? sg_f16_of_f32(room[c]) : sg_bf16_of_f32(room[c]));
        }
    }
}

enum { PIECE = 4 };                  /* groups of one item of work */
enum { HASH, PACK, HASH_AGAIN, CHECK, STAGES };

/* One tensor on its way. Its bytes are hashed before and after they are packed: a file that changes meanwhile must not
 * be kept under the hash of either content. */
struct fill {
    const struct sg_pack_set *set;
    struct sg_sources *src;
    struct sg_packed **sorted;       /* [items_n] by tensor */
    uint64_t *before;                /* [items_n + 1] groups of all sorted items before this one */
    uint8_t **rooms;                 /* [threads] one fp32 row each */
    uint32_t tensor, first, end;     /* its place among the sources, its sorted items */
    uint64_t rows;                   /* stored rows of one item of CHECK */
    atomic_ullong bad_row;
};

static void fill_groups(const struct fill *f, uint32_t item, uint32_t thread)
{
    uint64_t from = f->before[f->first] + (uint64_t)item * PIECE, to = from + PIECE;
    for (uint64_t n = from; n < to && n < f->before[f->end]; n++) {
        uint32_t lo = f->first, hi = f->end;
        while (hi - lo > 1) {
            uint32_t mid = (lo + hi) / 2;
            if (f->before[mid] <= n) lo = mid;
            else hi = mid;
        }
        fill_group(f->sorted[lo], (uint32_t)(n - f->before[lo]), (float *)(void *)f->rooms[thread]);
    }
}

static void fill_check(struct fill *f, uint32_t item)
{
    const struct sg_tensor *t = f->src->tensors[f->tensor];
    uint64_t rows = sg_tensor_stored_rows(t), from = item * f->rows, bad,
             to = from + f->rows < rows ? from + f->rows : rows;
    if (sg_tensor_finite_rows(t, from, to, &bad)) return;
    unsigned long long least = atomic_load(&f->bad_row);
    while (bad < least && !atomic_compare_exchange_weak(&f->bad_row, &least, bad)) {}
}

static void fill_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct fill *f = arg;
    if (stage == PACK) {
        fill_groups(f, item, thread);
    } else if (stage == CHECK) {
        fill_check(f, item);
    } else {
        uint32_t i = f->src->before[f->tensor] + item;
        const struct sg_piece *p = &f->src->pieces[i];
        (stage == HASH ? f->src->hashes : f->src->again)[i] = sg_hash_bytes(p->data, p->bytes, p->bytes);
    }
}

/* The pages of its file are dropped before the next one comes. */
static segue_status fill_tensor(struct fill *f, struct sg_cpu_unit *u, int hash, segue_error *err)
{
    const struct sg_tensor *t = f->src->tensors[f->tensor];
    uint64_t rows = sg_tensor_stored_rows(t), groups = f->before[f->end] - f->before[f->first];
    uint32_t pieces = f->src->before[f->tensor + 1] - f->src->before[f->tensor], items[STAGES] = {0};
    f->rows = pieces ? (rows + pieces - 1) / pieces : rows;
    atomic_store(&f->bad_row, UINT64_MAX);
    items[HASH] = items[HASH_AGAIN] = hash ? pieces : 0;
    items[PACK] = (uint32_t)((groups + PIECE - 1) / PIECE);
    items[CHECK] = f->rows ? (uint32_t)((rows + f->rows - 1) / f->rows) : 0;
    struct sg_job job = {.items = items, .stages = STAGES, .work = fill_work, .arg = f};
    sg_pool_run(u->pool, &job);
    struct sg_region regions[3];
    for (uint32_t r = sg_tensor_regions(t, regions); t->mapped && r--;) sg_map_forget(regions[r].data, regions[r].bytes);
    uint64_t bad = atomic_load(&f->bad_row);
    return bad == UINT64_MAX ? SEGUE_OK : sg_tensor_not_finite(t, bad, err);
}

static int by_tensor(const void *x, const void *y)
{
    const struct sg_packed *a = *(struct sg_packed *const *)x, *b = *(struct sg_packed *const *)y;
    uintptr_t p = (uintptr_t)a->tensor, q = (uintptr_t)b->tensor;
    return p < q ? -1 : p > q ? 1 : a->at < b->at ? -1 : a->at > b->at;
}

/* First sorted item whose tensor stands at t or behind it. */
static uint32_t items_from(const struct fill *f, const struct sg_tensor *t, int behind)
{
    uint32_t lo = 0, hi = f->set->items_n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        uintptr_t p = (uintptr_t)f->sorted[mid]->tensor, q = (uintptr_t)t;
        if (behind ? p <= q : p < q) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static segue_status fill_all(struct fill *f, struct sg_cpu_unit *u, int hash, segue_error *err)
{
    const struct sg_pack_set *set = f->set;
    uint32_t threads = sg_pool_threads(u->pool), widest = 1;
    for (uint32_t i = 0; i < set->items_n; i++)
        if (set->items[i]->kind >= SG_PACK_F32 && set->items[i]->k > widest) widest = set->items[i]->k;
    f->before = sg_alloc((set->items_n + 1) * sizeof *f->before);
    f->sorted = sg_alloc(set->items_n * sizeof *f->sorted);
    f->rooms = sg_alloc(threads * sizeof *f->rooms);
    float *room = sg_alloc((size_t)threads * widest * sizeof *room);
    segue_status s = SEGUE_OK;
    if (!f->before || !f->sorted || !f->rooms || !room) {
        s = sg_no_memory("packing weights", (size_t)threads * widest * sizeof *room, err);
    } else {
        for (uint32_t j = 0; j < threads; j++) f->rooms[j] = (uint8_t *)(room + (size_t)j * widest);
        for (uint32_t i = 0; i < set->items_n; i++) f->sorted[i] = set->items[i];
        if (set->items_n) qsort(f->sorted, set->items_n, sizeof *f->sorted, by_tensor);
        for (uint32_t i = 0; i < set->items_n; i++) f->before[i + 1] = f->before[i] + f->sorted[i]->groups;
    }
    for (f->tensor = 0; f->tensor < f->src->n && s == SEGUE_OK; f->tensor++) {
        f->first = items_from(f, f->src->tensors[f->tensor], 0);
        f->end = items_from(f, f->src->tensors[f->tensor], 1);
        s = fill_tensor(f, u, hash, err);
    }
    sg_free(room);
    sg_free(f->rooms);
    sg_free(f->sorted);
    sg_free(f->before);
    return s;
}

/* --- memory --- */

/* Items lie one behind the other in the order in which they were wanted, which the program alone decides. */
static uint64_t item_bytes(const struct sg_packed *w) { return ((uint64_t)w->groups * w->group_bytes + 63) / 64 * 64; }

static segue_status bytes_of(const struct sg_pack_set *set, size_t *total, segue_error *err)
{
    size_t bytes;
    *total = 0;
    for (uint32_t i = 0; i < set->items_n; i++) {
        SG_TRY(sg_mul(set->items[i]->groups, set->items[i]->group_bytes, &bytes, "packed weights", err));
        if (bytes > SIZE_MAX / 2 - *total) return sg_no_memory("packed weights", SIZE_MAX, err);
        *total += (bytes + 63) / 64 * 64;
    }
    return SEGUE_OK;
}

/* Nobody writes to mapped ones. */
static void items_place(struct sg_pack_set *set, const uint8_t *data)
{
    uint8_t *p;
    memcpy(&p, &data, sizeof p);
    for (uint32_t i = 0; i < set->items_n; i++) {
        set->items[i]->data = p;
        p += item_bytes(set->items[i]);
    }
}

static segue_status memory_of(struct sg_pack_set *set, size_t total, segue_error *err)
{
    size_t align = total > HUGE_PAGE ? HUGE_PAGE : 64;
    set->memory = sg_alloc(total + align);
    if (!set->memory) return sg_no_memory("packed weights", total, err);
    uint8_t *p = (uint8_t *)set->memory + (align - (uintptr_t)set->memory % align) % align;
    sg_huge_pages(p, total);
    items_place(set, p);
    set->bytes += total;
    return SEGUE_OK;
}

/* --- all of it --- */

static segue_status pack_new(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_sources *src,
                             const struct sg_weight_cache *keep, size_t total, segue_error *err)
{
    struct fill f = {.set = set, .src = src};
    SG_TRY(memory_of(set, total, err));
    SG_TRY(fill_all(&f, u, keep != NULL, err));
    if (!keep) return SEGUE_OK;
    segue_error why;
    segue_status s;
    if (memcmp(src->hashes, src->again, src->before[src->n] * sizeof *src->again))
        s = sg_fail(&why, SEGUE_EIO, "keep packed weights: the model's file changed while it was read; it goes on without");
    else
        s = sg_packfile_write(set, u, src, keep, total, set->items[0]->data, &why);
    if (s == SEGUE_EMEMORY) return sg_fail(err, s, "%s", why.text);
    if (s == SEGUE_OK) set->kept = "written";
    else set->kept_why = why;
    return SEGUE_OK;
}

segue_status sg_pack_fill(struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_graph *const *graphs,
                          uint32_t n, const struct sg_weight_cache *keep, segue_error *err)
{
    struct sg_sources src;
    size_t total;
    const uint8_t *data;
    SG_TRY(bytes_of(set, &total, err));
    SG_TRY(sg_sources_list(&src, graphs, n, err));
    set->bytes = set->arena.total;
    if (keep && total < KEPT_LEAST) {
        set->kept = "anew";
        keep = NULL;
    }
    segue_status s = keep ? sg_packfile_map(set, u, &src, keep, total, &data, &set->kept_why) : SEGUE_EIO;
    if (s == SEGUE_OK) {
        items_place(set, data);
        set->kept = "mapped";
    } else if (s == SEGUE_EMEMORY) {
        s = sg_fail(err, s, "%s", set->kept_why.text);
    } else {
        if (s == SEGUE_EIO && keep) set->kept_why.text[0] = 0;
        s = pack_new(set, u, &src, keep, total, err);
    }
    sg_sources_free(&src);
    return s;
}

void sg_pack_unref(struct sg_pack_set *set)
{
    if (!set || atomic_fetch_sub(&set->refs, 1u) != 1) return;
    sg_free(set->memory);
    sg_map_close(&set->map);
    sg_free(set->items);
    sg_arena_free(&set->arena);
    sg_free(set);
}
