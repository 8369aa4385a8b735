/* cpukv.c: K and V in blocks of SG_CHUNK rows, in the order that attention reads: one head's row between fp32,
 * the canonical layout (docs/STATE.md) and the block, and one head's chunk as attention takes it.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/cpu/cpu_types.h"

enum { Q8 = SG_KV_RUN };

/* Offset of number j of a row in its head's part, in numbers; q8: of its block's scale, in scales. */
static size_t number_at(int key, uint32_t row, uint32_t j, uint32_t width)
{
    return key ? ((size_t)(row / 16) * width + j) * 16 + row % 16 : (size_t)row * width + j;
}
static size_t scale_at(int key, uint32_t row, uint32_t block, uint32_t blocks)
{
    return key ? ((size_t)(row / 16) * blocks + block) * 16 + row % 16 : (size_t)row * blocks + block;
}

static uint8_t *head_of(const struct sg_slot_memory *m, uint64_t row, uint32_t head)
{
    return m->blocks[row / SG_CHUNK]->data + head * m->head_bytes;
}

/* A row in the canonical form of storage q8 <-> the block. */
static void q8_row(const struct sg_slot_memory *m, uint64_t row, uint32_t head, uint8_t *canonical, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->slot.width, blocks = (width + Q8 - 1) / Q8;
    int key = m->slot.kind == SG_SLOT_K;
    uint8_t *data = head_of(m, row, head), *scales = data + (size_t)SG_CHUNK * width;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t n = width - b * Q8 < Q8 ? width - b * Q8 : Q8;
        uint8_t *scale = scales + 2 * scale_at(key, r, b, blocks);
        memcpy(store ? scale : canonical, store ? canonical : scale, 2);
        canonical += 2;
        for (uint32_t i = 0; i < n; i++, canonical++) {
            uint8_t *q = data + number_at(key, r, b * Q8 + i, width);
            if (store) *q = *canonical;
            else *canonical = *q;
        }
    }
}

static void f32_row(const struct sg_slot_memory *m, uint64_t row, uint32_t head, float *x, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->slot.width;
    float *data = (float *)(void *)head_of(m, row, head);
    int key = m->slot.kind == SG_SLOT_K;
    for (uint32_t j = 0; j < width; j++) {
        float *at = data + number_at(key, r, j, width);
        if (store) *at = x[j];
        else x[j] = *at;
    }
}

static void half_row(const struct sg_slot_memory *m, uint64_t row, uint32_t head, uint16_t *x, int store)
{
    uint32_t r = (uint32_t)(row % SG_CHUNK), width = m->slot.width;
    uint16_t *data = (uint16_t *)(void *)head_of(m, row, head);
    if (m->slot.kind == SG_SLOT_V) {
        uint16_t *at = data + (size_t)r * width;
        memcpy(store ? at : x, store ? x : at, width * sizeof *x);
        return;
    }
    uint16_t *at = data + number_at(1, r, 0, width);
    for (uint32_t j = 0; j < width; j++) {
        if (store) at[(size_t)j * 16] = x[j];
        else x[j] = at[(size_t)j * 16];
    }
}

/* A canonical row of the state's own storage, one head <-> the block. */
static void row_move(const struct sg_cpu_state *s, const struct sg_slot_memory *m, uint64_t row,
                     uint32_t head, void *x, int store)
{
    if (s->kv == SG_Q8_0) q8_row(m, row, head, x, store);
    else if (s->kv == SG_F32) f32_row(m, row, head, x, store);
    else half_row(m, row, head, x, store);
}

enum { ROW_PIECE = 512 };

void sg_kv_store(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t row,
                 uint32_t head, const float *x)
{
    const struct sg_slot_memory *m = &s->slots[slot];
    uint32_t width = m->slot.width;
    if (s->kv == SG_F32) {
        uint32_t r = (uint32_t)(row % SG_CHUNK);
        float *data = (float *)(void *)head_of(m, row, head);
        for (uint32_t j = 0; j < width; j++) data[number_at(m->slot.kind == SG_SLOT_K, r, j, width)] = x[j];
        return;
    }
    _Alignas(16) uint16_t room[ROW_PIECE + ROW_PIECE / 8];
    if (width > ROW_PIECE) return;           /* refused by can */
    if (s->kv == SG_F16) {
        k->to_f16(x, width, room);
    } else {
        struct sg_slot one = m->slot;
        one.heads = 1;
        sg_slot_encode(&one, s->kv, x, room);
    }
    row_move(s, m, row, head, room, 1);
}

/* Whole groups of 16 keys: [group][width][16], a scale for every SG_KV_RUN numbers of each key. */
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

/* Values [keys][width], into rows `step` apart. */
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

const uint16_t *sg_kv_f16(const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk, uint32_t head)
{
    const struct sg_slot_memory *m = &s->slots[slot];
    const void *data = m->blocks[chunk]->data + head * m->head_bytes;
    return s->kv == SG_F16 ? data : NULL;
}

void sg_kv_load(const struct sg_kernels *k, const struct sg_cpu_state *s, uint32_t slot, uint64_t chunk,
                uint32_t head, uint32_t keys, float *out)
{
    const struct sg_slot_memory *m = &s->slots[slot];
    uint32_t width = m->slot.width, key = m->slot.kind == SG_SLOT_K,
             step = key ? width : (width + 15) / 16 * 16;
    const uint8_t *data = m->blocks[chunk]->data + head * m->head_bytes;
    if (s->kv == SG_Q8_0) {
        const uint8_t *scales = data + (size_t)SG_CHUNK * width;
        if (key) load_q8_keys((const int8_t *)data, scales, width, keys, out);
        else load_q8_values((const int8_t *)data, scales, width, keys, step, out);
        return;
    }
    uint32_t rows = key ? (keys + 15) / 16 * 16 : keys;
    uint32_t lines = step == width ? 1 : rows;       /* padded rows of V go one by one */
    size_t n = step == width ? (size_t)rows * width : width;
    for (uint32_t i = 0; i < lines; i++) {
        const void *from = data + (size_t)i * width * (s->kv == SG_F32 ? 4 : 2);
        float *to = out + (size_t)i * step;
        if (s->kv == SG_F32) memcpy(to, from, n * sizeof *to);
        else if (s->kv == SG_F16) k->of_f16(from, n, to);
        else k->of_bf16(from, n, to);
    }
}

void sg_kv_row_pass(const struct sg_cpu_state *s, const struct sg_slot_memory *m, uint64_t row,
                    enum sg_storage storage, uint8_t *canonical, float *wide, uint8_t *own_row, int store)
{
    struct sg_slot one = m->slot;
    one.heads = 1;
    size_t step = sg_slot_row_bytes(&one, s->kv);
    uint8_t *mine = storage == s->kv ? canonical : own_row;
    if (store && mine == own_row) {
        sg_slot_decode(&m->slot, storage, canonical, wide);
        sg_slot_encode(&m->slot, s->kv, wide, own_row);
    }
    for (uint32_t h = 0; h < m->slot.heads; h++) {
        /* rows of a caller may lie at any address; blocks want aligned numbers */
        _Alignas(16) uint16_t room[2 * ROW_PIECE + ROW_PIECE / 8];
        memcpy(room, mine + h * step, step);
        row_move(s, m, row, h, room, store);
        if (!store) memcpy(mine + h * step, room, step);
    }
    if (!store && mine == own_row) {
        sg_slot_decode(&m->slot, s->kv, own_row, wide);
        sg_slot_encode(&m->slot, storage, wide, canonical);
    }
}
