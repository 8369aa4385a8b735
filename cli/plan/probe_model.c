/* probe_model.c: see probe_model.h. SPDX-License-Identifier: MIT */
#include "plan/probe_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tensor/ggufout.h"
#include "term/out.h"

/* Rows that differ; the others repeat them. */
enum { ROWS = 16, PER_LAYER = 9, CONTEXT = 32768 };

static void put_keys(struct sg_gguf_out *o, const struct probe_shape *s)
{
    sg_gguf_key_string(o, "general.architecture", "llama", 5);
    sg_gguf_key_u32(o, "llama.block_count", s->layers);
    sg_gguf_key_u32(o, "llama.context_length", CONTEXT);
    sg_gguf_key_u32(o, "llama.embedding_length", s->width);
    sg_gguf_key_u32(o, "llama.feed_forward_length", s->ff);
    sg_gguf_key_u32(o, "llama.attention.head_count", s->heads);
    sg_gguf_key_u32(o, "llama.attention.head_count_kv", s->kv_heads);
    sg_gguf_key_u32(o, "llama.vocab_size", s->vocab);
    sg_gguf_key_u32(o, "llama.rope.dimension_count", s->width / s->heads);
    sg_gguf_key_f32(o, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    sg_gguf_key_f32(o, "llama.rope.freq_base", 10000);
}

/* Fill items and names (64 bytes each); returns their number. */
static uint32_t list_tensors(struct sg_gguf_item *items, char (*names)[64], const struct probe_shape *s, enum sg_storage storage)
{
    uint32_t n = 0, kv = s->width / s->heads * s->kv_heads;
    const struct {
        const char *name;
        uint32_t rows, cols;
    } layer[PER_LAYER] = {{"attn_norm", 0, s->width},    {"attn_q", s->width, s->width},      {"attn_k", kv, s->width},
                          {"attn_v", kv, s->width},      {"attn_output", s->width, s->width}, {"ffn_norm", 0, s->width},
                          {"ffn_gate", s->ff, s->width}, {"ffn_up", s->ff, s->width},         {"ffn_down", s->width, s->ff}};
    for (uint32_t i = 0; i < s->layers * PER_LAYER + 2; i++) {
        uint32_t k = i % PER_LAYER, rows = layer[k].rows, cols = layer[k].cols;
        if (i == s->layers * PER_LAYER) rows = s->vocab, cols = s->width;
        if (i == s->layers * PER_LAYER + 1) rows = 0, cols = s->width;
        if (i >= s->layers * PER_LAYER)
            snprintf(names[i], 64, "%s.weight", rows ? "token_embd" : "output_norm");
        else
            snprintf(names[i], 64, "blk.%u.%s.weight", i / PER_LAYER, layer[k].name);
        items[n++] = (struct sg_gguf_item){.name = names[i],
                                           .storage = rows ? storage : SG_F32,
                                           .rank = rows ? 2 : 1,
                                           .shape = {rows ? rows : cols, cols}};
    }
    return n;
}

/* One tensor: ROWS random rows in turn; norms are ones. */
static segue_status put_tensor(struct sg_gguf_out *o, uint32_t i, const struct sg_gguf_item *item, uint64_t *random,
                               segue_error *err)
{
    uint64_t cols = item->shape[item->rank - 1], rows = item->rank > 1 ? item->shape[0] : 1, bytes;
    SG_TRY(sg_storage_row_bytes(item->storage, cols, &bytes, err));
    float *row = out_alloc(cols * sizeof *row);
    char *block = out_alloc(ROWS * bytes);
    segue_status st = SEGUE_OK;
    for (int r = 0; r < ROWS && !st; r++) {
        for (uint64_t c = 0; c < cols; c++) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            row[c] = item->rank > 1 ? ((float)(*random >> 40) / 8388608.0f - 1) * 0.05f : 1;
        }
        st = sg_quant_row(item->storage, row, NULL, cols, block + (uint64_t)r * bytes, err);
    }
    for (uint64_t at = 0; at < rows && !st; at += ROWS)
        st = sg_gguf_out_data(o, i, at * bytes, block, (rows - at < ROWS ? rows - at : ROWS) * bytes, err);
    free(row);
    free(block);
    return st;
}

segue_status probe_model_write(const char *path, const struct probe_shape *s, enum sg_storage storage, segue_error *err)
{
    struct sg_gguf_out o = {0};
    uint32_t n = s->layers * PER_LAYER + 2;
    uint64_t random = 1;
    struct sg_gguf_item *items = out_alloc(n * sizeof *items);
    char(*names)[64] = out_alloc(n * sizeof *names);
    put_keys(&o, s);
    n = list_tensors(items, names, s, storage);
    segue_status st = sg_gguf_out_begin(&o, path, items, n, err);
    for (uint32_t i = 0; i < n && !st; i++) st = put_tensor(&o, i, &items[i], &random, err);
    if (!st) st = sg_gguf_out_commit(&o, err);
    sg_gguf_out_close(&o);
    free(items);
    free(names);
    return st;
}
