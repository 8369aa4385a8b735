/* pack.c: weights from the mapped file into the layouts of kernels.h, once per program set, by all threads.
 * Integers, scales and offsets are the file's own: nothing is rounded a second time, except where a column
 * order cuts through blocks; such a tensor is kept in fp32.
 * SPDX-License-Identifier: MIT */
#include <string.h>
#include <sys/mman.h>

#include "base/num.h"
#include "unit/cpu/blocks.h"
#include "unit/cpu/cpu_types.h"

static const uint64_t HUGE_PAGE = 2u << 20;

/* 1: runs of 32 logical columns are runs of 32 stored columns. */
static int columns_whole(const struct sg_tensor *t)
{
    const struct sg_perm *p = &t->col_perm;
    return !p->a || (p->w % 32 == 0 && p->first % 32 == 0);
}

static enum sg_pack kind_of(const struct sg_tensor *t)
{
    enum sg_pack kind = sg_block_kind(t);
    return kind < SG_PACK_F32 && (!columns_whole(t) || t->cols % 32) ? SG_PACK_F32 : kind;
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

/* --- filling --- */

struct fill {
    const struct sg_pack_set *set;
    uint64_t *before;                /* [items_n + 1] groups of all items before this one */
    uint8_t **rooms;                 /* [threads] one fp32 row each */
};

static void put_f32(uint8_t *p, float x) { memcpy(p, &x, 4); }
static void put_u16(uint8_t *p, uint16_t x) { memcpy(p, &x, 2); }

/* Columns [32*b, ...) of row r of a group. */
static void place(const struct sg_packed *w, uint8_t *group, uint32_t r, uint64_t b,
                  const struct sg_block32 *in)
{
    size_t bytes = sg_pack_block_bytes(w->kind);
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

static void fill_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct fill *f = arg;
    (void)stage;
    for (uint64_t n = (uint64_t)item * PIECE;
         n < ((uint64_t)item + 1) * PIECE && n < f->before[f->set->items_n]; n++) {
        uint32_t lo = 0, hi = f->set->items_n;
        while (hi - lo > 1) {
            uint32_t mid = (lo + hi) / 2;
            if (f->before[mid] <= n) lo = mid;
            else hi = mid;
        }
        fill_group(f->set->items[lo], (uint32_t)(n - f->before[lo]), (float *)(void *)f->rooms[thread]);
    }
}

/* Addresses in one block of memory; a group of 16 rows never crosses items. */
static segue_status memory_of(struct sg_pack_set *set, segue_error *err)
{
    size_t total = 0, bytes;
    for (uint32_t i = 0; i < set->items_n; i++) {
        SG_TRY(sg_mul(set->items[i]->groups, set->items[i]->group_bytes, &bytes, "packed weights", err));
        if (total + bytes < total) return sg_no_memory("packed weights", SIZE_MAX, err);
        total += (bytes + 63) / 64 * 64;
    }
    size_t align = total > HUGE_PAGE ? HUGE_PAGE : 64;
    set->memory = sg_alloc(total + align);
    if (!set->memory) return sg_no_memory("packed weights", total, err);
    uint8_t *p = (uint8_t *)set->memory + (align - (uintptr_t)set->memory % align) % align;
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE) (void)madvise(p, total, MADV_HUGEPAGE);  /* fewer page walks in decode */
#endif
    for (uint32_t i = 0; i < set->items_n; i++) {
        set->items[i]->data = p;
        p += (set->items[i]->groups * set->items[i]->group_bytes + 63) / 64 * 64;
    }
    set->bytes = total + set->arena.total;
    return SEGUE_OK;
}

segue_status sg_pack_fill(struct sg_pack_set *set, struct sg_cpu_unit *u, segue_error *err)
{
    SG_TRY(memory_of(set, err));
    uint32_t threads = sg_pool_threads(u->pool), widest = 1;
    for (uint32_t i = 0; i < set->items_n; i++)
        if (set->items[i]->kind >= SG_PACK_F32 && set->items[i]->k > widest) widest = set->items[i]->k;
    struct fill f = {.set = set, .before = sg_alloc((set->items_n + 1) * sizeof *f.before)};
    f.rooms = sg_alloc(threads * sizeof *f.rooms);
    float *room = sg_alloc((size_t)threads * widest * sizeof *room);
    segue_status status = SEGUE_OK;
    if (!f.before || !f.rooms || !room) {
        status = sg_no_memory("packing weights", (size_t)threads * widest * sizeof *room, err);
    } else {
        for (uint32_t j = 0; j < threads; j++) f.rooms[j] = (uint8_t *)(room + (size_t)j * widest);
        for (uint32_t i = 0; i < set->items_n; i++) f.before[i + 1] = f.before[i] + set->items[i]->groups;
        uint32_t items = (uint32_t)((f.before[set->items_n] + PIECE - 1) / PIECE);
        struct sg_job job = {.items = &items, .stages = 1, .work = fill_work, .arg = &f};
        if (items) sg_pool_run(u->pool, &job);
    }
    sg_free(room);
    sg_free(f.rooms);
    sg_free(f.before);
    return status;
}

void sg_pack_unref(struct sg_pack_set *set)
{
    if (!set || atomic_fetch_sub(&set->refs, 1u) != 1) return;
    sg_free(set->memory);
    sg_free(set->items);
    sg_arena_free(&set->arena);
    sg_free(set);
}
