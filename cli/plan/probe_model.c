/* probe_model.c: see probe_model.h. SPDX-License-Identifier: MIT */
#include "plan/probe_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tensor/ggufout.h"
#include "term/out.h"

/* ROWS rows differ, the others repeat them. DELTA: rows and columns of a delta matrix. */
enum { ROWS = 16, PER_LAYER = 14, CONTEXT = 32768, DELTA = 128, TAPS = 4 };

static void put_count(struct sg_gguf_out *o, const char *family, const char *key, uint32_t n)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", family, key);
    sg_gguf_key_u32(o, name, n);
}

static void put_real(struct sg_gguf_out *o, const char *family, const char *key, float v)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", family, key);
    sg_gguf_key_f32(o, name, v);
}

static uint32_t head_width(const struct probe_shape *s) { return s->head_width ? s->head_width : s->width / s->heads; }

static void put_keys(struct sg_gguf_out *o, const struct probe_shape *s)
{
    const char *family = s->delta_heads ? "qwen35" : "llama";
    sg_gguf_key_string(o, "general.architecture", family, strlen(family));
    put_count(o, family, "block_count", s->layers);
    put_count(o, family, "context_length", CONTEXT);
    put_count(o, family, "embedding_length", s->width);
    put_count(o, family, "feed_forward_length", s->ff);
    put_count(o, family, "attention.head_count", s->heads);
    put_count(o, family, "attention.head_count_kv", s->kv_heads);
    put_count(o, family, "vocab_size", s->vocab);
    put_count(o, family, "rope.dimension_count", head_width(s));
    if (s->head_width) put_count(o, family, "attention.key_length", s->head_width);
    put_real(o, family, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_real(o, family, "rope.freq_base", 10000);
    if (!s->delta_heads) return;
    put_count(o, family, "attention.key_length", s->width / s->heads);
    put_count(o, family, "full_attention_interval", s->layers + 1); /* none */
    put_count(o, family, "ssm.conv_kernel", TAPS);
    put_count(o, family, "ssm.state_size", DELTA);
    put_count(o, family, "ssm.group_count", s->delta_heads);
    put_count(o, family, "ssm.time_step_rank", s->delta_heads);
    put_count(o, family, "ssm.inner_size", s->delta_heads * DELTA);
}

/* rows 0: a vector. */
struct shape_row {
    const char *name;
    uint32_t rows, cols;
};

/* The tensors of a layer; returns their number. */
static uint32_t layer_rows(struct shape_row out[PER_LAYER], const struct probe_shape *s)
{
    uint32_t q = head_width(s) * s->heads, kv = head_width(s) * s->kv_heads, d = s->delta_heads, inner = d * DELTA;
    const struct shape_row full[] =
        {{"attn_norm.weight", 0, s->width},    {"attn_q.weight", q, s->width},             {"attn_k.weight", kv, s->width},
         {"attn_v.weight", kv, s->width},      {"attn_output.weight", s->width, q},        {"ffn_norm.weight", 0, s->width},
         {"ffn_gate.weight", s->ff, s->width}, {"ffn_up.weight", s->ff, s->width},         {"ffn_down.weight", s->width, s->ff}};
    const struct shape_row delta[PER_LAYER] = {{"attn_norm.weight", 0, s->width},
                                               {"attn_qkv.weight", 3 * inner, s->width},
                                               {"attn_gate.weight", inner, s->width},
                                               {"ssm_alpha.weight", d, s->width},
                                               {"ssm_beta.weight", d, s->width},
                                               {"ssm_conv1d.weight", 3 * inner, TAPS},
                                               {"ssm_a", 0, d},
                                               {"ssm_dt.bias", 0, d},
                                               {"ssm_norm.weight", 0, DELTA},
                                               {"ssm_out.weight", s->width, inner},
                                               {"post_attention_norm.weight", 0, s->width},
                                               {"ffn_gate.weight", s->ff, s->width},
                                               {"ffn_up.weight", s->ff, s->width},
                                               {"ffn_down.weight", s->width, s->ff}};
    uint32_t n = d ? PER_LAYER : sizeof full / sizeof *full;
    memcpy(out, d ? delta : full, n * sizeof *out);
    return n;
}

/* Fill items and names (64 bytes each); returns their number. */
static uint32_t list_tensors(struct sg_gguf_item *items, char (*names)[64], const struct probe_shape *s, enum sg_storage storage)
{
    struct shape_row layer[PER_LAYER];
    uint32_t n = 0, per_layer = layer_rows(layer, s), body = s->layers * per_layer;
    const struct shape_row ends[2] = {{"token_embd.weight", s->vocab, s->width}, {"output_norm.weight", 0, s->width}};
    for (uint32_t i = 0; i < body + 2; i++) {
        const struct shape_row *r = i < body ? &layer[i % per_layer] : &ends[i - body];
        if (i < body)
            snprintf(names[i], 64, "blk.%u.%s", i / per_layer, r->name);
        else
            snprintf(names[i], 64, "%s", r->name);
        items[n++] = (struct sg_gguf_item){.name = names[i],
                                           .storage = r->rows && r->cols > TAPS ? storage : SG_F32,
                                           .rank = r->rows ? 2 : 1,
                                           .shape = {r->rows ? r->rows : r->cols, r->cols}};
    }
    return n;
}

/* One tensor: ROWS random rows in turn; vectors are ones, decays minus one. */
static segue_status put_tensor(struct sg_gguf_out *o, uint32_t i, const struct sg_gguf_item *item, uint64_t *random,
                               segue_error *err)
{
    uint64_t cols = item->shape[item->rank - 1], rows = item->rank > 1 ? item->shape[0] : 1, bytes;
    SG_TRY(sg_storage_row_bytes(item->storage, cols, &bytes, err));
    float *row = out_alloc(cols * sizeof *row);
    char *block = out_alloc(ROWS * bytes);
    float constant = strstr(item->name, "ssm_a") ? -1 : 1;
    segue_status st = SEGUE_OK;
    for (int r = 0; r < ROWS && !st; r++) {
        for (uint64_t c = 0; c < cols; c++) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            row[c] = item->rank > 1 ? ((float)(*random >> 40) / 8388608.0f - 1) * 0.05f : constant;
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
    return probe_model_write_with(path, s, storage, NULL, err);
}

segue_status probe_model_write_with(const char *path, const struct probe_shape *s, enum sg_storage storage,
                                    const struct sg_archive *tokenizer, segue_error *err)
{
    struct sg_gguf_out o = {0};
    uint32_t n = s->layers * PER_LAYER + 2;
    uint64_t random = 1;
    struct sg_gguf_item *items = out_alloc(n * sizeof *items);
    char(*names)[64] = out_alloc(n * sizeof *names);
    put_keys(&o, s);
    for (uint32_t i = 0; tokenizer && i < tokenizer->meta_n; i++)
        if (!strncmp(tokenizer->meta[i].key, "tokenizer.", 10)) sg_gguf_key_copy(&o, &tokenizer->meta[i]);
    n = list_tensors(items, names, s, storage);
    segue_status st = sg_gguf_out_begin(&o, path, items, n, err);
    for (uint32_t i = 0; i < n && !st; i++) st = put_tensor(&o, i, &items[i], &random, err);
    if (!st) st = sg_gguf_out_commit(&o, err);
    sg_gguf_out_close(&o);
    free(items);
    free(names);
    return st;
}

segue_status probe_folder_open(struct probe_folder *out, const char *command, segue_error *err)
{
    const char *tmp = getenv("TMPDIR");
    *out = (struct probe_folder){.folder = out_printf("%s/segue-%s-XXXXXX", tmp && *tmp ? tmp : "/tmp", command)};
    if (mkdtemp(out->folder)) {
        out->path = out_printf("%s/model.gguf", out->folder);
        return SEGUE_OK;
    }
    segue_status st = out_fail_errno(err, command, out->folder, "check TMPDIR");
    probe_folder_close(out);
    return st;
}

void probe_folder_close(struct probe_folder *f)
{
    if (f->path) {
        unlink(f->path);
        rmdir(f->folder);
    }
    free(f->path);
    free(f->folder);
    *f = (struct probe_folder){0};
}
