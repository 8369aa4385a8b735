/* tiny.h: folders with tiny models of random weights, written by the test itself: a plain attention model,
 * one with a window, and a hybrid with recurrent layers. No tokenizer: they take and give ids. For equality
 * with itself only; what a family computes is held by the goldens. SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_TINY_H
#define SG_TESTS_TINY_H

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tensor/archive.h"

enum { TINY_VOCAB = 96, TINY_ITEMS = 96, TINY_MODELS = 3 };

struct tiny_part {
    const char *name; /* %d = layer */
    uint64_t shape[3];
    unsigned layers; /* bit i: layer i has it; 0: outside layers */
};

struct tiny_model {
    const char *name, *config;
    struct tiny_part parts[20];
};

static const struct tiny_model tiny_models[TINY_MODELS] = {
    {"llama",
     "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":96,\"hidden_size\":"
     "32,"
     "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
     "\"head_dim\":16,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"max_position_embeddings\":256,\"tie_word_embeddings\":"
     "true,"
     "\"hidden_act\":\"silu\",\"bos_token_id\":1,\"eos_token_id\":2}",
     {{"model.embed_tokens.weight", {96, 32}, 0},
      {"model.norm.weight", {32}, 0},
      {"model.layers.%d.input_layernorm.weight", {32}, 7},
      {"model.layers.%d.post_attention_layernorm.weight", {32}, 7},
      {"model.layers.%d.self_attn.q_proj.weight", {32, 32}, 7},
      {"model.layers.%d.self_attn.k_proj.weight", {16, 32}, 7},
      {"model.layers.%d.self_attn.v_proj.weight", {16, 32}, 7},
      {"model.layers.%d.self_attn.o_proj.weight", {32, 32}, 7},
      {"model.layers.%d.mlp.gate_proj.weight", {64, 32}, 7},
      {"model.layers.%d.mlp.up_proj.weight", {64, 32}, 7},
      {"model.layers.%d.mlp.down_proj.weight", {32, 64}, 7}}},
    {"gemma3",
     "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"],\"vocab_size\":96,\"hidden_"
     "size\":32,"
     "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
     "\"head_dim\":16,"
     "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":256,\"tie_word_embeddings\":true,\"query_pre_attn_"
     "scalar\":16,"
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"sliding_window\":8,\"layer_types\":[\"sliding_"
     "attention\","
     "\"sliding_attention\",\"full_attention\"],\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0,"
     "\"bos_token_id\":1,\"eos_token_id\":2}",
     {{"model.embed_tokens.weight", {96, 32}, 0},
      {"model.norm.weight", {32}, 0},
      {"model.layers.%d.input_layernorm.weight", {32}, 7},
      {"model.layers.%d.post_attention_layernorm.weight", {32}, 7},
      {"model.layers.%d.pre_feedforward_layernorm.weight", {32}, 7},
      {"model.layers.%d.post_feedforward_layernorm.weight", {32}, 7},
      {"model.layers.%d.self_attn.q_norm.weight", {16}, 7},
      {"model.layers.%d.self_attn.k_norm.weight", {16}, 7},
      {"model.layers.%d.self_attn.q_proj.weight", {32, 32}, 7},
      {"model.layers.%d.self_attn.k_proj.weight", {16, 32}, 7},
      {"model.layers.%d.self_attn.v_proj.weight", {16, 32}, 7},
      {"model.layers.%d.self_attn.o_proj.weight", {32, 32}, 7},
      {"model.layers.%d.mlp.gate_proj.weight", {64, 32}, 7},
      {"model.layers.%d.mlp.up_proj.weight", {64, 32}, 7},
      {"model.layers.%d.mlp.down_proj.weight", {32, 64}, 7}}},
    {"hybrid",
     "{\"model_type\":\"qwen3_5_text\",\"architectures\":[\"Qwen3_5ForCausalLM\"],\"vocab_size\":96,\"hidden_"
     "size\":32,"
     "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
     "\"head_dim\":32,"
     "\"layer_types\":[\"linear_attention\",\"linear_attention\",\"full_attention\"],\"linear_conv_kernel_"
     "dim\":4,"
     "\"linear_key_head_dim\":16,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_value_head_"
     "dim\":16,"
     "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":256,\"tie_word_embeddings\":true,\"hidden_act\":"
     "\"silu\","
     "\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\",\"partial_rotary_factor\":0.25,"
     "\"mrope_interleaved\":true,\"mrope_section\":[2,1,1]},\"eos_token_id\":2}",
     {{"model.embed_tokens.weight", {96, 32}, 0},
      {"model.norm.weight", {32}, 0},
      {"model.layers.%d.input_layernorm.weight", {32}, 7},
      {"model.layers.%d.post_attention_layernorm.weight", {32}, 7},
      {"model.layers.%d.linear_attn.A_log", {2}, 3},
      {"model.layers.%d.linear_attn.dt_bias", {2}, 3},
      {"model.layers.%d.linear_attn.conv1d.weight", {64, 1, 4}, 3},
      {"model.layers.%d.linear_attn.in_proj_qkv.weight", {64, 32}, 3},
      {"model.layers.%d.linear_attn.in_proj_z.weight", {32, 32}, 3},
      {"model.layers.%d.linear_attn.in_proj_a.weight", {2, 32}, 3},
      {"model.layers.%d.linear_attn.in_proj_b.weight", {2, 32}, 3},
      {"model.layers.%d.linear_attn.norm.weight", {16}, 3},
      {"model.layers.%d.linear_attn.out_proj.weight", {32, 32}, 3},
      {"model.layers.%d.self_attn.q_norm.weight", {32}, 4},
      {"model.layers.%d.self_attn.k_norm.weight", {32}, 4},
      {"model.layers.%d.self_attn.q_proj.weight", {128, 32}, 4},
      {"model.layers.%d.self_attn.k_proj.weight", {32, 32}, 4},
      {"model.layers.%d.self_attn.v_proj.weight", {32, 32}, 4},
      {"model.layers.%d.self_attn.o_proj.weight", {32, 64}, 4},
      {"model.layers.%d.mlp.*", {64, 32}, 7}}},
};

struct tiny_writer {
    struct sg_st_item items[TINY_ITEMS];
    char names[TINY_ITEMS][80];
    size_t n;
    uint32_t random;
};

static void tiny_add(struct tiny_writer *w, const char *name, int layer, const uint64_t shape[3])
{
    struct sg_st_item *item = &w->items[w->n];
    const char *number = strstr(name, "%d");
    if (number)
        snprintf(w->names[w->n], sizeof w->names[0], "%.*s%d%s", (int)(number - name), name, layer,
                 number + 2);
    else
        snprintf(w->names[w->n], sizeof w->names[0], "%s", name);
    size_t count = 1;
    *item = (struct sg_st_item){.name = w->names[w->n], .storage = SG_F32};
    for (; item->rank < 3 && shape[item->rank]; item->rank++)
        count *= item->shape[item->rank] = shape[item->rank];
    float *data = malloc(count * sizeof *data), scale = 1.5f / sqrtf((float)item->shape[item->rank - 1]);
    if (!data) abort();
    for (size_t i = 0; i < count; i++) {
        w->random = w->random * 1664525u + 1013904223u;
        data[i] = ((float)(w->random >> 8) * 0x1p-23f - 1.0f) * scale + (item->rank == 1 ? 1.0f : 0.0f);
    }
    item->data = data;
    w->n++;
}

/* Writes FOLDER/config.json and FOLDER/model.safetensors; 1 when it worked. */
static int tiny_write(const struct tiny_model *m, const char *folder, uint32_t seed)
{
    static struct tiny_writer w;
    char path[2048];
    w.n = 0;
    w.random = seed;
    for (const struct tiny_part *p = m->parts; p < m->parts + 20 && p->name; p++) {
        if (!p->layers) tiny_add(&w, p->name, 0, p->shape);
        for (int layer = 0; layer < 8; layer++) {
            static const char *const mlp[3] = {"model.layers.%d.mlp.gate_proj.weight",
                                               "model.layers.%d.mlp.up_proj.weight",
                                               "model.layers.%d.mlp.down_proj.weight"};
            const uint64_t down[3] = {p->shape[1], p->shape[0], 0};
            if (!(p->layers >> layer & 1)) continue;
            if (p->name[strlen(p->name) - 1] != '*')
                tiny_add(&w, p->name, layer, p->shape);
            else
                for (int i = 0; i < 3; i++) tiny_add(&w, mlp[i], layer, i < 2 ? p->shape : down);
        }
    }
    if (sg_make_folders(folder, NULL) != SEGUE_OK) return 0;
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    if (!f) return 0;
    int ok = fputs(m->config, f) >= 0;
    ok = fclose(f) == 0 && ok;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    ok = ok && sg_safetensors_write(path, w.items, w.n, NULL) == SEGUE_OK;
    for (size_t i = 0; i < w.n; i++) free((void *)(uintptr_t)w.items[i].data);
    return ok;
}

static inline const char *tiny_folder(char *out, size_t cap, const char *test, const char *model)
{
    const char *base = getenv("TMPDIR"),
               *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* syncs are slow */
    snprintf(out, cap, "%s/segue-%s-%ld/%s", base && *base ? base : memory, test, (long)getpid(), model);
    return out;
}

/* Removes a folder of files, such as a prefix store. */
static inline void tiny_empty(const char *folder)
{
    char path[2048];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

static inline void tiny_remove(const char *test)
{
    char path[2048], folder[512];
    for (int i = 0; i < TINY_MODELS; i++) {
        tiny_folder(folder, sizeof folder, test, tiny_models[i].name);
        snprintf(path, sizeof path, "%s/config.json", folder);
        unlink(path);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        unlink(path);
        rmdir(folder);
    }
    tiny_folder(folder, sizeof folder, test, "");
    rmdir(folder);
}

#endif
