/* pack.c: converts weights from the mapped model file into the layouts of kernels.h, once per program
 * set, with all threads. Integers, scales and offsets are those of the file; nothing is rounded a
 * second time. A tensor whose column permutation cuts through quantisation blocks is stored in fp32
 * instead.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "unit/cpu/blocks.h"
#include "unit/cpu/packfile.h"

/* Alignment of large packs, so that huge pages can back them. */
static const uint64_t HUGE_PAGE = 2u << 20;
static const size_t CACHE_MIN_BYTES = 1u << 20;   /* smaller packs are created faster than a cache file is synced to disk */

/* 1: every run of n consecutive columns is consecutive in the file, too. */
static int columns_aligned(const struct sg_tensor *t, uint32_t n)
{
    const struct sg_perm *p = &t->col_perm;
    return !p->a || (p->w % n == 0 && p->first % n == 0);
}

/* The layout for a tensor. K-quant blocks need 256 aligned columns; otherwise a layout with blocks of
 * 32 or 16 is used, and fp32 if even that does not fit. */
static enum sg_pack kind_of(const struct sg_tensor *t)
{
    enum sg_pack kind = sg_block_kind(t);
    /* a permutation splits the block of 256: multiply the scales out */
    if (kind == SG_PACK_Q4K && !columns_aligned(t, 256)) kind = SG_PACK_Q4F;
    if (kind == SG_PACK_Q6K && !columns_aligned(t, 256)) kind = SG_PACK_Q8H;
    return kind < SG_PACK_F32 && (!columns_aligned(t, 32) || t->cols % 32) ? SG_PACK_F32 : kind;
}

/* Linear search: a model has some hundred items, and this runs once per compilation. */
struct sg_packed_weight *sg_pack_request(struct sg_pack_set *set, const struct sg_tensor *t, uint32_t at, uint32_t rows)
{
    for (uint32_t i = 0; i < set->items_n; i++)
        if (set->items[i]->tensor == t && set->items[i]->at == at && set->items[i]->rows == rows)
            return set->items[i];
    if (set->items_n == set->items_cap) {
        uint32_t cap = set->items_cap ? 2 * set->items_cap : 256;
        struct sg_packed_weight **wider = sg_realloc(set->items, cap * sizeof(struct sg_packed_weight *));
        if (!wider) return NULL;
        set->items = wider;
        set->items_cap = cap;
    }
    struct sg_packed_weight *w = sg_arena_alloc(&set->arena, sizeof *w);
    if (!w) return NULL;
    w->tensor = t;
    w->at = at;
    w->rows = rows;
    w->k = (uint32_t)t->cols;
    w->groups = (rows + SG_GROUP - 1) / SG_GROUP;
    w->kind = kind_of(t);
    /* k is a multiple of the block here, see kind_of */
    w->group_bytes = (size_t)w->k / sg_pack_block_cols(w->kind) * sg_pack_block_bytes(w->kind);
    return set->items[set->items_n++] = w;
}

const float *sg_pack_vector(struct sg_pack_set *set, const struct sg_tensor *t)
{
    float *v = sg_arena_alloc(&set->arena, (size_t)(t->rows * t->cols) * sizeof *v);
    if (v) sg_tensor_read(t, v);
    return v;
}

static void put_f32(uint8_t *p, float x) { memcpy(p, &x, 4); }
static void put_u16(uint8_t *p, uint16_t x) { memcpy(p, &x, 2); }

/* Block b (32 columns) of row r in the Q4K layout: super-scales f16, scale and minimum u8, nibbles. */
static void put_q4k(uint8_t *group, uint32_t r, uint64_t b, const struct sg_block32 *in)
{
    uint8_t *block = group + b / 8 * sg_pack_block_bytes(SG_PACK_Q4K), *s = block + 64 + b % 8 * 32 + r,
            *v = block + 320 + b % 8 * 256;
    put_u16(block + 2 * r, in->half_d);
    put_u16(block + 32 + 2 * r, in->half_m);
    s[0] = in->scale[0];
    s[16] = in->min;
    /* nibbles: column c low, column c + 16 high, so that unpacking is a mask and a shift */
    for (uint32_t c = 0; c < 16; c++) v[c / 4 * 64 + r * 4 + c % 4] = (uint8_t)(in->q[c] | in->q[c + 16] << 4);
}

/* Block b (32 columns) of row r in the Q6K layout: super-scale f16, two scales s8, nibbles, then the
 * high bits. */
static void put_q6k(uint8_t *group, uint32_t r, uint64_t b, const struct sg_block32 *in)
{
    uint8_t *block = group + b / 8 * sg_pack_block_bytes(SG_PACK_Q6K), *s = block + 64 + b % 8 * 32 + r,
            *v = block + 320 + b % 8 * 384;
    put_u16(block + 2 * r, in->half_d);
    s[0] = in->scale[0];
    s[16] = in->scale[1];
    for (uint32_t c = 0; c < 16; c++)
        v[c / 4 * 64 + r * 4 + c % 4] = (uint8_t)((in->q[c] & 15) | (in->q[c + 16] & 15) << 4);
    for (uint32_t c = 0; c < 8; c++) {       /* chunks of 4 columns: chunk c / 4 and those 2, 4 and 6 further on share a byte */
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 4; i++) bits |= (uint32_t)(in->q[c + 8 * i] >> 4) << 2 * i;
        v[256 + c / 4 * 64 + r * 4 + c % 4] = (uint8_t)bits;
    }
}

/* Writes columns [32*b, 32*b + 32) of row r of a group in the layout of the weight's kind. */
static void put_block(const struct sg_packed_weight *w, uint8_t *group, uint32_t r, uint64_t b,
                  const struct sg_block32 *in)
{
    size_t bytes = sg_pack_block_bytes(w->kind);
    if (w->kind == SG_PACK_Q4K) {
        put_q4k(group, r, b, in);
        return;
    }
    if (w->kind == SG_PACK_Q6K) {
        put_q6k(group, r, b, in);
        return;
    }
    if (w->kind == SG_PACK_Q8H) {
        /* two blocks of 16 columns */
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

/* Packs one group of 16 rows. Rows beyond the tensor stay zero. row_buf: one fp32 row. */
static void pack_group(const struct sg_packed_weight *w, uint32_t g, float *row_buf)
{
    const struct sg_tensor *t = w->tensor;
    uint8_t *group = w->data + g * w->group_bytes;
    for (uint32_t r = 0; r < SG_GROUP && g * SG_GROUP + r < w->rows; r++) {
        uint64_t row = (uint64_t)w->at + g * SG_GROUP + r;
        /* quantised kinds: 32 columns at a time */
        if (w->kind < SG_PACK_F32) {
            /* undo the permutations of the file format */
            uint64_t stored = sg_perm_stored(&t->row_perm, row);
            for (uint64_t b = 0; b < w->k / 32; b++) {
                struct sg_block32 block;
                sg_block_read(t, stored, sg_perm_stored(&t->col_perm, b * 32) / 32, &block);
                put_block(w, group, r, b, &block);
            }
            continue;
        }
        sg_tensor_row(t, row, 0, w->k, row_buf);
        for (uint32_t c = 0; c < w->k; c++) {
            size_t at = (size_t)c * SG_GROUP + r;
            if (w->kind == SG_PACK_F32) put_f32(group + 4 * at, row_buf[c]);
            else
                put_u16(group + 2 * at,
                        w->kind == SG_PACK_F16 ? sg_f16_of_f32(row_buf[c]) : sg_bf16_of_f32(row_buf[c]));
        }
    }
}

enum { ITEM_GROUPS = 4 };                  /* groups per item of work */
/* Stages of the job that packs one tensor. */
enum { HASH, PACK, HASH_AGAIN, CHECK, STAGES };

/* Packing of one tensor at a time. The source bytes are hashed before and after packing: if the file
 * changes in between, the result must not be cached under either hash. */
struct packing {
    const struct sg_pack_set *set;
    struct sg_weight_sources *src;
    struct sg_packed_weight **sorted;       /* [items_n] by tensor, then by row */
    uint64_t *groups_before;                /* [items_n + 1] groups of all earlier sorted items */
    uint8_t **row_bufs;                 /* [threads] one fp32 row each */
    uint32_t tensor, first, end;     /* index of the tensor among the sources; its sorted items [first, end) */
    uint64_t rows;                   /* stored rows per item of CHECK */
    atomic_ullong bad_row;
};

/* One item of PACK: ITEM_GROUPS groups, found by binary search among the tensor's items. */
static void pack_groups(const struct packing *f, uint32_t item, uint32_t thread)
{
    uint64_t from = f->groups_before[f->first] + (uint64_t)item * ITEM_GROUPS, to = from + ITEM_GROUPS;
    for (uint64_t n = from; n < to && n < f->groups_before[f->end]; n++) {
        uint32_t lo = f->first, hi = f->end;
        while (hi - lo > 1) {
            uint32_t mid = (lo + hi) / 2;
            if (f->groups_before[mid] <= n) lo = mid;
            else hi = mid;
        }
        pack_group(f->sorted[lo], (uint32_t)(n - f->groups_before[lo]), (float *)(void *)f->row_bufs[thread]);
    }
}

/* One item of CHECK: finds rows with NaN or infinity; the lowest such row is reported. */
static void check_finite(struct packing *f, uint32_t item)
{
    const struct sg_tensor *t = f->src->tensors[f->tensor];
    uint64_t rows = sg_tensor_stored_rows(t), from = item * f->rows, bad,
             to = from + f->rows < rows ? from + f->rows : rows;
    if (sg_tensor_finite_rows(t, from, to, &bad)) return;
    unsigned long long least = atomic_load(&f->bad_row);
    /* atomic minimum */
    while (bad < least && !atomic_compare_exchange_weak(&f->bad_row, &least, bad)) {}
}

/* Pool callback: dispatches by stage. */
static void pack_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct packing *f = arg;
    if (stage == PACK) {
        pack_groups(f, item, thread);
    } else if (stage == CHECK) {
        check_finite(f, item);
    } else {
        uint32_t i = f->src->pieces_before[f->tensor] + item;
        const struct sg_hash_piece *p = &f->src->pieces[i];
        (stage == HASH ? f->src->hashes : f->src->hashes_after)[i] = sg_hash_bytes(p->data, p->bytes, p->bytes);
    }
}

/* Packs one tensor, then drops its file pages, so that the file and the packed copy are never both in
 * memory completely. */
static segue_status pack_tensor(struct packing *f, struct sg_cpu_unit *u, int hash, segue_error *err)
{
    const struct sg_tensor *t = f->src->tensors[f->tensor];
    uint64_t rows = sg_tensor_stored_rows(t), groups = f->groups_before[f->end] - f->groups_before[f->first];
    uint32_t pieces = f->src->pieces_before[f->tensor + 1] - f->src->pieces_before[f->tensor], items[STAGES] = {0};
    /* CHECK items cover about as many bytes as hash pieces */
    f->rows = pieces ? (rows + pieces - 1) / pieces : rows;
    atomic_store(&f->bad_row, UINT64_MAX);
    /* hashes only if the result will be cached */
    items[HASH] = items[HASH_AGAIN] = hash ? pieces : 0;
    items[PACK] = (uint32_t)((groups + ITEM_GROUPS - 1) / ITEM_GROUPS);
    items[CHECK] = f->rows ? (uint32_t)((rows + f->rows - 1) / f->rows) : 0;
    struct sg_job job = {.items = items, .stages = STAGES, .work = pack_work, .arg = f};
    sg_pool_run(u->pool, &job);
    struct sg_region regions[SG_REGIONS];
    /* the pages can be read from the file again */
    for (uint32_t r = sg_tensor_regions(t, regions); t->mapped && r--;) sg_map_release(regions[r].data, regions[r].bytes);
    uint64_t bad = atomic_load(&f->bad_row);
    return bad == UINT64_MAX ? SEGUE_OK : sg_tensor_fail_not_finite(t, bad, err);
}

/* Order of the sorted items. */
static int by_tensor(const void *x, const void *y)
{
    const struct sg_packed_weight *a = *(struct sg_packed_weight *const *)x, *b = *(struct sg_packed_weight *const *)y;
    uintptr_t p = (uintptr_t)a->tensor, q = (uintptr_t)b->tensor;
    return p < q ? -1 : p > q ? 1 : a->at < b->at ? -1 : a->at > b->at;
}

/* First sorted item whose tensor address is not below t; after: above t. */
static uint32_t items_bound(const struct packing *f, const struct sg_tensor *t, int after)
{
    uint32_t lo = 0, hi = f->set->items_n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        uintptr_t p = (uintptr_t)f->sorted[mid]->tensor, q = (uintptr_t)t;
        if (after ? p <= q : p < q) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Sorts the items by tensor and packs tensor by tensor. ECANCELED: the unit's progress function asked to stop. */
static segue_status pack_all(struct packing *f, struct sg_cpu_unit *u, int hash, segue_error *err)
{
    const struct sg_pack_set *set = f->set;
    uint32_t threads = sg_pool_threads(u->pool), widest = 1;
    for (uint32_t i = 0; i < set->items_n; i++)
        if (set->items[i]->kind >= SG_PACK_F32 && set->items[i]->k > widest) widest = set->items[i]->k;
    f->groups_before = sg_alloc((set->items_n + 1) * sizeof *f->groups_before);
    f->sorted = sg_alloc(set->items_n * sizeof *f->sorted);
    f->row_bufs = sg_alloc(threads * sizeof *f->row_bufs);
    float *row_buf = sg_alloc((size_t)threads * widest * sizeof *row_buf);
    segue_status s = SEGUE_OK;
    uint64_t done = 0;
    if (!f->groups_before || !f->sorted || !f->row_bufs || !row_buf) {
        s = sg_no_memory("packing weights", (size_t)threads * widest * sizeof *row_buf, err);
    } else {
        for (uint32_t j = 0; j < threads; j++) f->row_bufs[j] = (uint8_t *)(row_buf + (size_t)j * widest);
        for (uint32_t i = 0; i < set->items_n; i++) f->sorted[i] = set->items[i];
        if (set->items_n) qsort(f->sorted, set->items_n, sizeof *f->sorted, by_tensor);
        for (uint32_t i = 0; i < set->items_n; i++) f->groups_before[i + 1] = f->groups_before[i] + f->sorted[i]->groups;
    }
    for (f->tensor = 0; f->tensor < f->src->n && s == SEGUE_OK; f->tensor++) {
        f->first = items_bound(f, f->src->tensors[f->tensor], 0);
        f->end = items_bound(f, f->src->tensors[f->tensor], 1);
        s = pack_tensor(f, u, hash, err);
        done += f->src->tensors[f->tensor]->bytes;
        if (s == SEGUE_OK && sg_progress_stop(u->progress, done))
            s = sg_fail(err, SEGUE_ECANCELED, "compile: cpu: canceled while packing weights");
    }
    sg_free(row_buf);
    sg_free(f->row_bufs);
    sg_free(f->sorted);
    sg_free(f->groups_before);
    return s;
}

/* Items are stored consecutively in the order of their requests, which depends only on the program; a
 * cached pack relies on this. */
static uint64_t item_bytes(const struct sg_packed_weight *w) { return ((uint64_t)w->groups * w->group_bytes + 63) / 64 * 64; }

/* Total bytes of all items; EMEMORY on overflow. */
static segue_status set_bytes(const struct sg_pack_set *set, size_t *total, segue_error *err)
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

/* Mapped data is read-only; the items never write after packing. */
static void items_set_data(struct sg_pack_set *set, const uint8_t *data)
{
    uint8_t *p;
    memcpy(&p, &data, sizeof p);
    for (uint32_t i = 0; i < set->items_n; i++) {
        set->items[i]->data = p;
        p += item_bytes(set->items[i]);
    }
}

/* Allocates the packed data, zeroed. */
static segue_status set_alloc(struct sg_pack_set *set, size_t total, segue_error *err)
{
    /* small packs need no huge pages */
    size_t align = total > HUGE_PAGE ? HUGE_PAGE : 64;
    set->memory = sg_alloc(total + align);
    if (!set->memory) return sg_no_memory("packed weights", total, err);
    uint8_t *p = (uint8_t *)set->memory + (align - (uintptr_t)set->memory % align) % align;
    sg_huge_pages(p, total);
    items_set_data(set, p);
    set->bytes += total;
    return SEGUE_OK;
}

/* Packs, and writes the result to the cache if there is one. A failure to write is reported through
 * cache_why only. */
static segue_status pack_weights(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_weight_sources *src,
                             const struct sg_weight_cache *cache, size_t total, segue_error *err)
{
    struct packing f = {.set = set, .src = src};
    SG_TRY(set_alloc(set, total, err));
    SG_TRY(pack_all(&f, u, cache != NULL, err));
    if (!cache) return SEGUE_OK;
    segue_error why;
    segue_status s;
    /* the file changed while it was packed */
    if (memcmp(src->hashes, src->hashes_after, src->pieces_before[src->n] * sizeof *src->hashes_after))
        s = sg_fail(&why, SEGUE_EIO,
                    "cache packed weights: the model file changed while it was read; continuing without the cache");
    else
        s = sg_packfile_write(set, u, src, cache, total, set->items[0]->data, &why);
    if (s == SEGUE_EMEMORY) return sg_fail(err, s, "%s", why.text);
    if (s == SEGUE_OK) set->cache_result = "written";
    else set->cache_why = why;
    return SEGUE_OK;
}

/* Tries the cache first. EIO without a file means that there is no entry yet, which is not worth a
 * message. */
segue_status sg_pack_fill(struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_graph *const *graphs,
                          uint32_t n, const struct sg_weight_cache *cache, segue_error *err)
{
    struct sg_weight_sources src;
    size_t total;
    const uint8_t *data;
    SG_TRY(set_bytes(set, &total, err));
    SG_TRY(sg_weight_sources_list(&src, graphs, n, err));
    set->bytes = set->arena.total;
    /* reported as packed again */
    if (cache && total < CACHE_MIN_BYTES) {
        set->cache_result = "repacked";
        cache = NULL;
    }
    segue_status s = cache ? sg_packfile_map(set, u, &src, cache, total, &data, &set->cache_why) : SEGUE_EIO;
    if (s == SEGUE_OK) {
        items_set_data(set, data);
        set->cache_result = "mapped";
    } else if (s == SEGUE_EMEMORY) {
        s = sg_fail(err, s, "%s", set->cache_why.text);
    } else {
        /* no entry yet is the normal first start */
        if (s == SEGUE_EIO && cache) set->cache_why.text[0] = 0;
        s = pack_weights(set, u, &src, cache, total, err);
    }
    sg_weight_sources_free(&src);
    return s;
}

/* Frees or unmaps the data with the last reference. */
void sg_pack_unref(struct sg_pack_set *set)
{
    if (!set || atomic_fetch_sub(&set->refs, 1u) != 1) return;
    sg_free(set->memory);
    sg_map_close(&set->map);
    sg_free(set->items);
    sg_arena_free(&set->arena);
    sg_free(set);
}
