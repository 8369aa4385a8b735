/* kv_layout.c: K and V blocks of SG_CHUNK rows in the order that attention reads them. Stores one
 * head's fp32 row, loads one head's chunk, and converts rows between the canonical layout
 * (docs/STATE.md) and the blocks.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/cpu/cpu_types.h"

enum { Q8 = SG_KV_Q8_BLOCK };

/* Index of element j of a row inside its head's part, in elements; for q8, index of a block's scale, in
 * scales. K interleaves 16 rows per column; V is row-major. */
static size_t elem_index(int key, uint32_t row, uint32_t j, uint32_t width)
{
    return key ? ((size_t)(row / 16) * width + j) * 16 + row % 16 : (size_t)row * width + j;
}
static size_t scale_index(int key, uint32_t row, uint32_t block, uint32_t blocks)
{
    return key ? ((size_t)(row / 16) * blocks + block) * 16 + row % 16 : (size_t)row * blocks + block;
}

/* Start of a head's part of the block that holds a row. */
static uint8_t *head_data(const struct sg_cpu_slot *m, uint64_t row, uint32_t head)
{
    return sg_kv_block_at(m, row)->data + head * m->head_bytes;
}

/* Copies one head of a row in canonical q8 form (scale, then up to 32 int8, per block) from or to the
 * block. */
static void q8_row(const struct sg_cpu_slot *m, uint64_t row, uint32_t head, uint8_t *canonical, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->core.slot.width, blocks = (width + Q8 - 1) / Q8;
    int key = m->core.slot.kind == SG_SLOT_K;
    uint8_t *data = head_data(m, row, head), *scales = data + (size_t)SG_CHUNK * width;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t n = width - b * Q8 < Q8 ? width - b * Q8 : Q8;
        uint8_t *scale = scales + 2 * scale_index(key, r, b, blocks);
        memcpy(store ? scale : canonical, store ? canonical : scale, 2);
        canonical += 2;
        for (uint32_t i = 0; i < n; i++, canonical++) {
            uint8_t *q = data + elem_index(key, r, b * Q8 + i, width);
            if (store) *q = *canonical;
            else *canonical = *q;
        }
    }
}

/* One head of a row, fp32. */
static void f32_row(const struct sg_cpu_slot *m, uint64_t row, uint32_t head, float *x, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->core.slot.width;
    float *data = (float *)(void *)head_data(m, row, head);
    int key = m->core.slot.kind == SG_SLOT_K;
    for (uint32_t j = 0; j < width; j++) {
        float *at = data + elem_index(key, r, j, width);
        if (store) *at = x[j];
        else x[j] = *at;
    }
}

/* One head of a row, f16 or bf16. A row of V is contiguous. */
static void half_row(const struct sg_cpu_slot *m, uint64_t row, uint32_t head, uint16_t *x, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->core.slot.width;
    uint16_t *data = (uint16_t *)(void *)head_data(m, row, head);
    if (m->core.slot.kind == SG_SLOT_V) {
        uint16_t *at = data + (size_t)r * width;
        memcpy(store ? at : x, store ? x : at, width * sizeof *x);
        return;
    }
    uint16_t *at = data + elem_index(1, r, 0, width);
    for (uint32_t j = 0; j < width; j++) {
        if (store) at[(size_t)j * 16] = x[j];
        else x[j] = at[(size_t)j * 16];
    }
}

/* Copies one head of a canonical row in the state's own storage from or to the block. */
static void row_copy(const struct sg_cpu_state *s, const struct sg_cpu_slot *m, uint64_t row,
                     uint32_t head, void *x, int store)
{
    if (s->core.storage == SG_Q8_0) q8_row(m, row, head, x, store);
    else if (s->core.storage == SG_F32) f32_row(m, row, head, x, store);
    else half_row(m, row, head, x, store);
}

/* Called by the stage that appends keys and values, one call per head and row. */
enum sg_kv_fit sg_kv_store(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t row,
                           uint32_t head, const float *x)
{
    const struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    uint32_t width = m->core.slot.width;
    /* no conversion: scattered directly */
    if (s->core.storage == SG_F32) {
        uint32_t r = (uint32_t)(row % SG_CHUNK);
        float *data = (float *)(void *)head_data(m, row, head);
        for (uint32_t j = 0; j < width; j++) data[elem_index(m->core.slot.kind == SG_SLOT_K, r, j, width)] = x[j];
        return SG_KV_FITS;
    }
    _Alignas(16) uint16_t encoded[SG_HEAD_MAX + SG_HEAD_MAX / 8];
    if (width > SG_HEAD_MAX) return SG_KV_FITS;           /* refused by can and state_new */
    /* the common case uses the vector kernel; bf16 and q8 use the portable encoder */
    if (s->core.storage == SG_F16) {
        k->to_f16(x, width, encoded);
    } else {
        struct sg_slot one = m->core.slot;
        one.heads = 1;
        sg_slot_encode(&one, s->core.storage, x, encoded);
    }
    row_copy(s, m, row, head, encoded, 1);
    return sg_kv_fit(x, width, s->core.storage);
}

/* q8 keys -> fp32, whole groups of 16: [group][width][16], one scale per key and SG_KV_Q8_BLOCK
 * columns. */
static void load_q8_keys(const int8_t *q, const uint8_t *scales, uint32_t width, uint32_t keys, float *out)
{
    uint32_t blocks = (width + Q8 - 1) / Q8;
    for (uint32_t g = 0; g * 16 < keys; g++)
        for (uint32_t b = 0; b < blocks; b++, scales += 32) {
            uint32_t n = width - b * Q8 < Q8 ? width - b * Q8 : Q8;
            float d[16];
            for (int l = 0; l < 16; l++) d[l] = sg_f32_of_f16(sg_le16(scales + 2 * l));
            for (uint32_t j = 0; j < n; j++, q += 16, out += 16)
                for (int l = 0; l < 16; l++) out[l] = d[l] * (float)q[l];
        }
}

/* q8 values [keys][width] -> fp32 rows that are `step` floats apart. */
static void load_q8_values(const int8_t *q, const uint8_t *scales, uint32_t width, uint32_t keys, uint32_t step,
                           float *out)
{
    for (uint32_t r = 0; r < keys; r++, out += step)
        for (uint32_t from = 0; from < width; from += Q8, scales += 2) {
            uint32_t n = width - from < Q8 ? width - from : Q8;
            float d = sg_f32_of_f16(sg_le16(scales));
            for (uint32_t i = 0; i < n; i++, q++) out[from + i] = d * (float)*q;
        }
}

/* Valid until the state changes its blocks. */
const uint16_t *sg_kv_f16(const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk, uint32_t head)
{
    const struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    const void *data = sg_kv_block_at(m, chunk * SG_CHUNK)->data + head * m->head_bytes;
    return s->core.storage == SG_F16 ? data : NULL;
}

/* K in groups of 16 is contiguous and converted in one call. */
void sg_kv_load(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk,
                uint32_t head, uint32_t keys, float *out)
{
    const struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    uint32_t width = m->core.slot.width, key = m->core.slot.kind == SG_SLOT_K,
             step = key ? width : (width + 15) / 16 * 16;
    const uint8_t *data = sg_kv_block_at(m, chunk * SG_CHUNK)->data + head * m->head_bytes;
    if (s->core.storage == SG_Q8_0) {
        const uint8_t *scales = data + (size_t)SG_CHUNK * width;
        if (key) load_q8_keys((const int8_t *)data, scales, width, keys, out);
        else load_q8_values((const int8_t *)data, scales, width, keys, step, out);
        return;
    }
    /* score kernels read whole groups of 16 keys */
    uint32_t rows = key ? (keys + 15) / 16 * 16 : keys;
    uint32_t lines = step == width ? 1 : rows;       /* padded rows of V are converted one by one */
    size_t n = step == width ? (size_t)rows * width : width;
    for (uint32_t i = 0; i < lines; i++) {
        const void *from = data + (size_t)i * width * (s->core.storage == SG_F32 ? 4 : 2);
        float *to = out + (size_t)i * step;
        if (s->core.storage == SG_F32) memcpy(to, from, n * sizeof *to);
        else if (s->core.storage == SG_F16) k->of_f16(from, n, to);
        else k->of_bf16(from, n, to);
    }
}

/* Rows of one work item (one group of K), and the bytes up to which the calling thread does all the
 * work. */
enum { GROUP_ROWS = 16, SERIAL_BYTES = 32768 };

/* Arguments of one conversion of rows; an item is a group of 16 rows of one head. */
struct kv_copy {
    const struct sg_cpu_state *s;
    const struct sg_cpu_slot *m;
    uint64_t from, to, first_group;
    enum sg_storage storage;
    uint8_t *canonical;
    size_t row_bytes, head_step; /* bytes of a canonical row, and of one head in it */
    int store;
};

/* Transposes 4 x 4 numbers of 2 bytes: four lines <-> four columns, in 64-bit words. Steps are in
 * bytes. */
static void transpose_4x4(const uint8_t *in, size_t in_step, uint8_t *out, size_t out_step)
{
    static const uint64_t EVEN = 0x0000ffff0000ffffu, ODD = 0xffff0000ffff0000u, LOW = 0xffffffffu;
    uint64_t a, b, c, d;
    memcpy(&a, in, 8);
    memcpy(&b, in + in_step, 8);
    memcpy(&c, in + 2 * in_step, 8);
    memcpy(&d, in + 3 * in_step, 8);
    /* two butterfly steps: first pairs of 16 bits, then pairs of 32 bits */
    uint64_t ab = (a & EVEN) | (b & EVEN) << 16, ab1 = (a >> 16 & EVEN) | (b & ODD), cd = (c & EVEN) | (d & EVEN) << 16,
             cd1 = (c >> 16 & EVEN) | (d & ODD);
    uint64_t r[4] = {(ab & LOW) | cd << 32, (ab1 & LOW) | cd1 << 32, ab >> 32 | (cd & ~LOW), ab1 >> 32 | (cd1 & ~LOW)};
    for (int i = 0; i < 4; i++) memcpy(out + (size_t)i * out_step, &r[i], 8);
}

/* 16 keys of 2 or 4 bytes per element: [width][16] in the block, row-major with `step` bytes outside. */
static void keys_copy(uint8_t *block, uint32_t width, size_t elem_bytes, uint8_t *canonical, size_t step, int store)
{
    uint32_t j = 0;
    /* 4 x 4 transposes for 2-byte numbers */
    for (; elem_bytes == 2 && j + 4 <= width; j += 4)
        for (uint32_t r = 0; r < GROUP_ROWS; r += 4) {
            uint8_t *inside = block + ((size_t)j * GROUP_ROWS + r) * 2, *outside = canonical + r * step + (size_t)j * 2;
            if (store) transpose_4x4(outside, step, inside, (size_t)GROUP_ROWS * 2);
            else transpose_4x4(inside, (size_t)GROUP_ROWS * 2, outside, step);
        }
    /* remaining columns, and all columns of 4-byte numbers */
    for (; j < width; j++)
        for (uint32_t r = 0; r < GROUP_ROWS; r++) {
            uint8_t *inside = block + ((size_t)j * GROUP_ROWS + r) * elem_bytes, *outside = canonical + r * step + j * elem_bytes;
            memcpy(store ? inside : outside, store ? outside : inside, elem_bytes);
        }
}

/* Copies a whole group in the state's own storage; returns 0 if the storages differ or it is q8. */
static int group_copy(const struct kv_copy *p, uint64_t row, uint32_t head, uint8_t *canonical)
{
    const struct sg_cpu_slot *m = p->m;
    uint32_t width = m->core.slot.width;
    size_t elem_bytes = p->s->core.storage == SG_F32 ? 4 : 2;
    uint8_t *block = head_data(m, row, head) + row % SG_CHUNK * width * elem_bytes;
    if (p->storage != p->s->core.storage || p->storage == SG_Q8_0) return 0;
    if (m->core.slot.kind == SG_SLOT_K) {
        keys_copy(block, width, elem_bytes, canonical, p->row_bytes, p->store);
        return 1;
    }
    for (uint32_t r = 0; r < GROUP_ROWS; r++, block += width * elem_bytes, canonical += p->row_bytes)
        memcpy(p->store ? block : canonical, p->store ? canonical : block, width * elem_bytes);
    return 1;
}

/* Copies one head of one row, converting through fp32 when the storages differ. */
static void row_convert(const struct kv_copy *p, uint64_t row, uint32_t head, uint8_t *canonical)
{
    struct sg_slot one = p->m->core.slot;
    one.heads = 1;
    float wide[SG_HEAD_MAX];
    /* canonical rows may have any alignment; the row functions need aligned numbers */
    _Alignas(16) uint16_t encoded[2 * SG_HEAD_MAX + SG_HEAD_MAX / 8];
    size_t step = sg_slot_row_bytes(&one, p->s->core.storage);
    int same = p->storage == p->s->core.storage;
    if (p->store && same) memcpy(encoded, canonical, step);
    if (p->store && !same) {
        sg_slot_decode(&one, p->storage, canonical, wide);
        sg_slot_encode(&one, p->s->core.storage, wide, encoded);
    }
    row_copy(p->s, p->m, row, head, encoded, p->store);
    if (!p->store && same) memcpy(canonical, encoded, step);
    if (!p->store && !same) {
        sg_slot_decode(&one, p->s->core.storage, encoded, wide);
        sg_slot_encode(&one, p->storage, wide, canonical);
    }
}

/* Zeroes one group of one head in an uncleared block. */
static void group_clear(const struct kv_copy *p, uint64_t row, uint32_t head)
{
    const struct sg_cpu_slot *m = p->m;
    size_t width = m->core.slot.width, blocks = (width + Q8 - 1) / Q8, at = row % SG_CHUNK;
    size_t elem_bytes = p->s->core.storage == SG_F32 ? 4 : p->s->core.storage == SG_Q8_0 ? 1 : 2;
    uint8_t *data = head_data(m, row, head);
    memset(data + at * width * elem_bytes, 0, GROUP_ROWS * width * elem_bytes);
    if (elem_bytes == 1) memset(data + SG_CHUNK * width + at * blocks * 2, 0, GROUP_ROWS * blocks * 2);
}

/* One item: a whole group at once if possible, otherwise row by row. */
static void group_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct kv_copy *p = arg;
    uint32_t heads = p->m->core.slot.heads, head = item % heads;
    uint64_t begin = (p->first_group + item / heads) * GROUP_ROWS, end = begin + GROUP_ROWS,
             row = begin > p->from ? begin : p->from, to = end < p->to ? end : p->to;
    (void)stage;
    (void)thread;
    int whole = row == begin && to == end;
    /* parts of an uncleared group that are not stored must read as zeros */
    if (p->store && !whole && sg_kv_block_at(p->m, begin)->uncleared) group_clear(p, begin, head);
    if (row >= to) return;
    uint8_t *canonical = p->canonical + (size_t)(row - p->from) * p->row_bytes + head * p->head_step;
    if (whole && group_copy(p, row, head, canonical)) return;
    for (; row < to; row++, canonical += p->row_bytes) row_convert(p, row, head, canonical);
}

void sg_kv_rows_copy(const struct sg_cpu_state *s, const struct sg_cpu_slot *m, uint64_t from, uint64_t to,
                     enum sg_storage storage, uint8_t *canonical, int store)
{
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)s->core.base.unit;
    struct sg_slot one = m->core.slot;
    one.heads = 1;
    struct kv_copy p = {.s = s, .m = m, .from = from, .to = to, .storage = storage, .canonical = canonical, .store = store};
    p.row_bytes = sg_slot_row_bytes(&m->core.slot, storage);
    p.head_step = sg_slot_row_bytes(&one, storage);
    if (from >= to) return;
    /* storing into uncleared blocks must cover each block completely: unit is then a whole block */
    uint64_t unit = store ? SG_CHUNK : GROUP_ROWS, first = from / unit * unit, end = (to + unit - 1) / unit * unit;
    p.first_group = first / GROUP_ROWS;
    uint32_t items = (uint32_t)((end - first) / GROUP_ROWS) * m->core.slot.heads;
    struct sg_job job = {.items = &items, .stages = 1, .work = group_work, .arg = &p};
    /* trylock: a running pass keeps the pool; then this thread copies alone */
    if ((to - from) * p.row_bytes > SERIAL_BYTES && !pthread_mutex_trylock(&u->work)) {
        sg_pool_run(u->pool, &job);
        pthread_mutex_unlock(&u->work);
    } else {
        for (uint32_t i = 0; i < items; i++) group_work(&p, 0, i, 0);
    }
    /* now every byte of these blocks is defined */
    for (uint64_t c = first / SG_CHUNK; store && c < end / SG_CHUNK; c++) sg_kv_block_at(m, c * SG_CHUNK)->uncleared = 0;
}
