/* refusals.c: configurations and files that must not open, or adapters that must not bind: each gives one
 * line that names object and reason, quickly and without much memory. The weights are those of the committed
 * tiny models; only what describes them is spoilt.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "model/family.h"
#include "model/tiny.h"

static char folder[] = "/tmp/segue-refusals-XXXXXX";

static void in_folder(char *out, size_t cap, const char *name) { snprintf(out, cap, "%s/%s", folder, name); }

static void put_text(const char *name, const char *text)
{
    char path[256];
    in_folder(path, sizeof path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

static void drop(const char *name)
{
    char path[256];
    in_folder(path, sizeof path, name);
    unlink(path);
}

/* folder/name leads to a file of the tiny set. */
static void lead(const char *name, const char *target)
{
    char path[256], to[1024];
    in_folder(path, sizeof path, name);
    snprintf(to, sizeof to, "%s/%s", tiny_folder(), target);
    unlink(path);
    assert_int_equal(symlink(to, path), 0);
}

/* The configuration of a tiny model with one member set to JSON text (NULL: removed). "a.b" goes into an
 * object. */
static void spoil_config(const char *model, const char *key, const char *json)
{
    char path[512];
    json_t *config = NULL, *o;
    snprintf(path, sizeof path, "%s/%s/config.json", tiny_folder(), model);
    assert_int_equal(sg_json_read(&config, path, 1 << 20, NULL), SEGUE_OK);
    o = config;
    char part[128];
    snprintf(part, sizeof part, "%s", key);
    char *last = part;
    for (char *dot; (dot = strchr(last, '.')); last = dot + 1) {
        *dot = 0;
        o = json_object_get(o, last);
        assert_non_null(o);
    }
    if (json)
        assert_int_equal(json_object_set_new(o, last, json_loads(json, JSON_DECODE_ANY, NULL)), 0);
    else
        json_object_del(o, last);
    char *text = json_dumps(config, 0);
    put_text("config.json", text);
    free(text);
    json_decref(config);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    lead("model.safetensors", path);
}

static segue_status open_folder(segue_error *err)
{
    struct segue_model *m = NULL;
    segue_status s = sg_model_open(&m, folder, NULL, err);
    sg_model_unref(m);
    return s;
}

static int failures;

/* Counts instead of stopping, so that one run shows every wrong message. */
static void expect(segue_status got, segue_status wanted, const segue_error *err, const char *words,
                   const char *what)
{
    int fits =
        got == wanted && strstr(err->text, words) && !strchr(err->text, '\n') && strchr(err->text, ';');
    if (fits) return;
    failures++;
    printf("%s: status %d, %d expected; \"%s\" should be one line with a remedy that says \"%s\"\n", what,
           got, wanted, err->text, words);
}

static const struct {
    const char *model, *key, *json;
    segue_status status;
    const char *words;
} configs[] = {
    {"llama", "num_hidden_layers", "0", SEGUE_EFORMAT, "num_hidden_layers is 0"},
    {"llama", "num_hidden_layers", "-1", SEGUE_EFORMAT, "num_hidden_layers is -1"},
    {"llama", "num_hidden_layers", "1000000000", SEGUE_EFORMAT, "num_hidden_layers is 1e+09"},
    {"llama", "num_hidden_layers", "4000", SEGUE_EFORMAT, "model.layers.2.input_layernorm.weight is missing"},
    {"llama", "num_hidden_layers", "1", SEGUE_EUNSUPPORTED, "model.layers.1."},
    {"llama", "num_hidden_layers", "9223372036854775807", SEGUE_EFORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", "\"two\"", SEGUE_EFORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", "2.5", SEGUE_EFORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", "[2]", SEGUE_EFORMAT, "num_hidden_layers"},
    {"llama", "num_hidden_layers", NULL, SEGUE_EFORMAT, "num_hidden_layers is missing"},
    {"llama", "hidden_size", "33", SEGUE_EFORMAT, "shape 64x32"},
    {"llama", "hidden_size", "1048576", SEGUE_EFORMAT, "vocab x width = 64x1048576"},
    {"llama", "hidden_size", "4294967328", SEGUE_EFORMAT, "hidden_size"},
    {"llama", "vocab_size", "65", SEGUE_EFORMAT, "model.embed_tokens.weight has shape 64x32"},
    {"llama", "vocab_size", "0", SEGUE_EFORMAT, "vocab_size is 0"},
    {"llama", "intermediate_size", "65", SEGUE_EFORMAT, "mlp.gate_proj.weight"},
    {"llama", "num_attention_heads", "3", SEGUE_EFORMAT, "heads"},
    {"llama", "num_attention_heads", "0", SEGUE_EFORMAT, "num_attention_heads is 0"},
    {"llama", "num_key_value_heads", "3", SEGUE_EFORMAT, "4 heads are not divisible by 3 key-value heads"},
    {"llama", "num_key_value_heads", "4", SEGUE_EFORMAT, "k_proj.weight has shape 16x32"},
    {"llama", "head_dim", "65534", SEGUE_EFORMAT, "q_proj.weight"},
    {"llama", "head_dim", "9", SEGUE_EUNSUPPORTED, "rotated"},
    {"llama", "max_position_embeddings", "0", SEGUE_EFORMAT, "max_position_embeddings is 0"},
    {"llama", "rms_norm_eps", "-1", SEGUE_EFORMAT, "rms_norm_eps is -1"},
    {"llama", "rms_norm_eps", "\"nan\"", SEGUE_EFORMAT, "rms_norm_eps"},
    {"llama", "hidden_act", "\"mish\"", SEGUE_EUNSUPPORTED, "\"mish\""},
    {"llama", "num_local_experts", "8", SEGUE_EUNSUPPORTED, "num_local_experts is 8"},
    {"llama", "attention_bias", "true", SEGUE_EFORMAT, "q_proj.bias is missing"},
    {"llama", "tie_word_embeddings", "false", SEGUE_EFORMAT, "lm_head.weight is missing"},
    {"llama", "tie_word_embeddings", "1", SEGUE_EFORMAT, "tie_word_embeddings"},
    {"llama", "rope_parameters.rope_type", "\"longrope\"", SEGUE_EUNSUPPORTED, "\"longrope\""},
    {"llama", "rope_parameters.rope_type", "\"dynamic\"", SEGUE_EUNSUPPORTED, "\"dynamic\""},
    {"llama", "rope_parameters.rope_type", "\"linear\"", SEGUE_EFORMAT, "factor is 0"},
    {"llama", "rope_parameters.rope_theta", "0", SEGUE_EFORMAT, "theta is 0"},
    {"llama", "rope_parameters.rope_theta", "-5", SEGUE_EFORMAT, "theta is -5"},
    {"llama", "rope_parameters.rope_theta", "0.5", SEGUE_EFORMAT, "theta is 0.5"},
    {"llama", "rope_parameters", "5", SEGUE_EFORMAT, "rope_parameters is not an object"},
    {"llama", "rope_scaling", "5", SEGUE_EFORMAT, "rope_scaling is not an object"},
    {"llama", "rope_scaling", "{\"factor\":2.0}", SEGUE_EFORMAT, "no type"},
    {"llama_linear", "rope_parameters.factor", "1e-30", SEGUE_EFORMAT, "factor is 1e-30"},
    {"llama3", "rope_parameters.low_freq_factor", "1e-30", SEGUE_EFORMAT, "low_freq_factor is 1e-30"},
    {"llama", "layer_types", "[\"full_attention\",\"magic\"]", SEGUE_EUNSUPPORTED, "\"magic\" in layer_types"},
    {"llama", "layer_types", "[\"full_attention\"]", SEGUE_EFORMAT, "layer_types has 1 entries for 2 layers"},
    {"llama", "layer_types", "\"full_attention\"", SEGUE_EFORMAT, "layer_types is not a list"},
    {"llama", "quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}", SEGUE_EFORMAT, "quantization_config says gptq"},
    {"llama", "quantization_config", "{\"quant_method\":\"bitsandbytes\"}", SEGUE_EFORMAT, "says bitsandbytes"},
    {"llama3", "rope_parameters.high_freq_factor", "1.0", SEGUE_EFORMAT, "high_freq_factor"},
    {"llama3", "rope_parameters.factor", "0", SEGUE_EFORMAT, "factor is 0"},
    {"llama_yarn", "rope_parameters.beta_fast", "-1", SEGUE_EFORMAT, "beta_fast"},
    {"llama_yarn", "rope_parameters.original_max_position_embeddings", "0", SEGUE_EFORMAT,
     "original_max_position_embeddings"},
    {"llama", "model_type", "\"mamba\"", SEGUE_OK, ""}, /* architectures still say llama */
    {"qwen2", "model_type", "\"llama\"", SEGUE_OK, ""}, /* a llama with biases */
    {"llama", "model_type", "\"qwen2\"", SEGUE_EFORMAT, "q_proj.bias is missing"},
    {"llama", "model_type", "\"qwen3\"", SEGUE_EFORMAT, "q_norm.weight is missing"},
    {"qwen3", "model_type", "\"llama\"", SEGUE_EUNSUPPORTED, "_norm.weight is unknown in family llama"},
    {"gpt2", "n_positions", "65", SEGUE_EFORMAT, "wpe.weight has shape 64x32"},
    {"gpt2", "n_head", "5", SEGUE_EFORMAT, "width 32 is not divisible by 5 heads"},
    {"gpt2", "scale_attn_by_inverse_layer_idx", "true", SEGUE_EUNSUPPORTED,
     "scale_attn_by_inverse_layer_idx is 1"},
    {"gpt2", "n_inner", "127", SEGUE_EFORMAT, "c_fc.weight"},
    {"gemma3", "layer_types", "[\"full_attention\"]", SEGUE_EFORMAT,
     "layer_types has 1 entries for 3 layers"},
    {"gemma3", "layer_types", "[\"full_attention\",7,\"full_attention\"]", SEGUE_EUNSUPPORTED, "layer_types"},
    {"gemma3", "layer_types", "[\"full_attention\",\"linear_attention\",\"full_attention\"]",
     SEGUE_EUNSUPPORTED, "layer 1 has linear"},
    {"gemma3", "sliding_window", "-1", SEGUE_EFORMAT, "sliding_window is -1"},
    {"gemma3", "use_bidirectional_attention", "true", SEGUE_EUNSUPPORTED, "use_bidirectional_attention"},
    {"qwen3_5", "text_config.linear_num_value_heads", "3", SEGUE_EFORMAT, "3 value heads"},
    {"qwen3_5", "text_config.linear_num_value_heads", "0", SEGUE_EFORMAT, "linear_num_value_heads is 0"},
    {"qwen3_5", "text_config.linear_key_head_dim", "65536", SEGUE_EFORMAT, "in_proj_qkv.weight"},
    {"qwen3_5", "text_config.linear_conv_kernel_dim", "5", SEGUE_EFORMAT, "conv1d.weight"},
    {"qwen3_5", "text_config.attn_output_gate", "false", SEGUE_EUNSUPPORTED, "attn_output_gate"},
    {"qwen3_5", "text_config.rope_parameters.partial_rotary_factor", "2", SEGUE_EFORMAT,
     "partial_rotary_factor is 2"},
    {"qwen3_5", "text_config.rope_parameters.partial_rotary_factor", "0.01", SEGUE_EFORMAT, "0 columns"},
    {"qwen3_5", "text_config.layer_types",
     "[\"linear_attention\",\"linear_attention\",\"full_attention\",\"linear_attention\"]", SEGUE_EFORMAT,
     "is missing"},
    {"qwen3_5_mlx4", "quantization.bits", "7", SEGUE_EUNSUPPORTED, "7 bits"},
    {"qwen3_5_mlx4", "quantization.mode", "\"nvfp4\"", SEGUE_EFORMAT, "nvfp4"},
    {"qwen3_5_mlx4", "quantization.mode", "\"nvfp3\"", SEGUE_EUNSUPPORTED, "nvfp3"},
};

static void configurations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        segue_error err = {0};
        spoil_config(configs[i].model, configs[i].key, configs[i].json);
        if (!strncmp(configs[i].model, "qwen3_5_mlx4", 12) && configs[i].json[0] != '7') {
            /* the same words stand twice in these files */
            char path[256];
            json_t *o = NULL;
            in_folder(path, sizeof path, "config.json");
            assert_int_equal(sg_json_read(&o, path, 1 << 20, NULL), SEGUE_OK);
            json_object_set(o, "quantization_config", json_object_get(o, "quantization"));
            char *text = json_dumps(o, 0);
            put_text("config.json", text);
            free(text);
            json_decref(o);
        }
        segue_status s = open_folder(&err);
        if (configs[i].status == SEGUE_OK) {
            if (s != SEGUE_OK) printf("%s %s: %s\n", configs[i].model, configs[i].key, err.text);
            failures += s != SEGUE_OK;
            continue;
        }
        char what[160];
        snprintf(what, sizeof what, "%s %s = %s", configs[i].model, configs[i].key,
                 configs[i].json ? configs[i].json : "(none)");
        expect(s, configs[i].status, &err, configs[i].words, what);
    }
    assert_int_equal(failures, 0);
}

static void folders(void **state)
{
    (void)state;
    segue_error err = {0};
    drop("config.json");
    lead("model.safetensors", "llama/model.safetensors");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "no config.json next to the weights", "bare weights");
    put_text("config.json", "[]");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "not a JSON object", "a list");
    put_text("config.json", "{}");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "model_type is missing", "an empty object");
    put_text("config.json", "{\"model_type\":\"mamba2\"}");
    expect(open_folder(&err), SEGUE_EUNSUPPORTED, &err, "\"mamba2\"", "another family");
    put_text("config.json", "{\"model_type\":");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "line 1", "half a file");
    spoil_config("llama", "x", "1");
    put_text("generation_config.json", "{\"temperature\":\"hot\"}");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "temperature", "a damaged generation_config.json");
    static const struct { const char *text, *words; } ranges[] = {
        {"{\"temperature\":-0.5}", "temperature is -0.5"}, {"{\"top_p\":7}", "top_p is 7"}, {"{\"min_p\":1.5}", "min_p is 1.5"},
        {"{\"repetition_penalty\":1e9}", "repetition_penalty is 1e+09"}, {"{\"top_k\":-7}", "top_k is -7"},
        {"{\"top_k\":99999999999}", "top_k is 99999999999"}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        put_text("generation_config.json", ranges[i].text);
        expect(open_folder(&err), SEGUE_EFORMAT, &err, ranges[i].words, ranges[i].text);
    }
    drop("generation_config.json");
    assert_int_equal(sg_model_open(&(struct segue_model *){NULL}, "/nonexistent/model", NULL, &err),
                     SEGUE_EIO);
    assert_int_equal(sg_model_open(&(struct segue_model *){NULL}, NULL, NULL, &err), SEGUE_EARG);
    lead("model.safetensors", "gpt2/model.safetensors");
    expect(open_folder(&err), SEGUE_EFORMAT, &err, "embed_tokens.weight is missing",
           "weights of another model");
    assert_int_equal(failures, 0);
}

/* GGUF keys, patched in place: the number behind the key's name and type. */
static const struct {
    const char *model, *key;
    uint32_t bits;
    segue_status status;
    const char *words;
} keys[] = {
    {"llama", "llama.attention.layer_norm_rms_epsilon", 0x7fc00000, SEGUE_EFORMAT,
     "layer_norm_rms_epsilon is nan"},
    {"llama", "llama.attention.layer_norm_rms_epsilon", 0x7f800000, SEGUE_EFORMAT,
     "layer_norm_rms_epsilon is inf"},
    {"llama", "llama.block_count", 0, SEGUE_EFORMAT, "block_count is 0"},
    {"llama", "llama.block_count", 0xffffffff, SEGUE_EFORMAT, "block_count is 4.29497e+09"},
    {"llama", "llama.block_count", 3, SEGUE_EFORMAT, "blk.2.attn_norm.weight is missing"},
    {"llama", "llama.block_count", 1, SEGUE_EUNSUPPORTED, "blk.1."},
    {"llama", "llama.context_length", 0, SEGUE_EFORMAT, "context_length is 0"},
    {"llama", "llama.embedding_length", 64, SEGUE_EFORMAT, "token_embd.weight has shape 64x32"},
    {"llama", "llama.attention.head_count", 0, SEGUE_EFORMAT, "head_count is 0"},
    {"llama", "llama.attention.head_count_kv", 3, SEGUE_EFORMAT, "3 key-value heads"},
    {"llama", "llama.rope.freq_base", 0x7fc00000, SEGUE_EFORMAT, "theta is nan"},
    {"llama", "llama.rope.dimension_count", 4, SEGUE_EUNSUPPORTED, "4 of 8 columns are rotated"},
    {"llama", "llama.rope.dimension_count", 0, SEGUE_EFORMAT, "dimension_count is 0"},
    {"llama_linear", "llama.rope.scaling.factor", 0, SEGUE_EFORMAT, "factor is 0"},
    {"qwen3_5_asym", "qwen35.ssm.time_step_rank", 3, SEGUE_EFORMAT, "3 value heads"},
    {"qwen3_5_asym", "qwen35.ssm.inner_size", 8, SEGUE_EFORMAT, "attn_qkv.weight"},
    {"qwen3_5_asym", "qwen35.full_attention_interval", 0, SEGUE_EFORMAT, "full_attention_interval is 0"},
    {"qwen3_5_asym", "qwen35.full_attention_interval", 2, SEGUE_EFORMAT, "is missing"},
    {"gemma3/model-switches.gguf", "gemma3.block_count", 4, SEGUE_EFORMAT, "sliding_window_pattern has 3 items for 4 layers"},
    {"llama", "llama.rope.freq_base", 0x3f000000, SEGUE_EFORMAT, "theta is 0.5"},
    {"gpt2", "gpt2.context_length", 63, SEGUE_EFORMAT, "position_embd.weight"},
    {"gpt2", "general.architecture", 0x7473616d, SEGUE_EFORMAT, "architecture"},
};

static void gguf_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct sg_buf file = {0};
        struct segue_model *m = NULL;
        segue_error err = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/%s%s", tiny_folder(), keys[i].model, strchr(keys[i].model, '/') ? "" : "/model.gguf");
        assert_int_equal(sg_file_read(&file, path, 1 << 20, NULL), SEGUE_OK);
        size_t len = strlen(keys[i].key);
        for (size_t at = 0; at + len + 8 < file.len; at++)
            if (!memcmp(file.data + at, keys[i].key, len) && file.data[at - 8] == (char)len)
                for (int b = 0; b < 4; b++)
                    file.data[at + len + 4 + (size_t)b] = (char)(keys[i].bits >> 8 * b);
        in_folder(path, sizeof path, "model.gguf");
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
        fclose(f);
        sg_buf_free(&file);
        segue_status s = sg_model_open(&m, path, NULL, &err);
        sg_model_unref(m);
        expect(s, keys[i].status, &err, keys[i].words, keys[i].key);
    }
    drop("model.gguf");
    assert_int_equal(failures, 0);
}

/* Files of a vocabulary alone are published as GGUF: version 3, no tensors, one key of type 8, string. */
static void gguf_without_weights(void **state)
{
    static const char file[] = "GGUF\3\0\0\0" "\0\0\0\0\0\0\0\0" "\1\0\0\0\0\0\0\0" "\24\0\0\0\0\0\0\0"
                               "general.architecture" "\10\0\0\0" "\5\0\0\0\0\0\0\0" "llama";
    struct segue_model *m = NULL;
    segue_error err = {0};
    char path[256];
    (void)state;
    in_folder(path, sizeof path, "model.gguf");
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(file, 1, sizeof file - 1, f), sizeof file - 1);
    fclose(f);
    segue_status s = sg_model_open(&m, path, NULL, &err);
    sg_model_unref(m);
    expect(s, SEGUE_EFORMAT, &err, "no weights", "vocabulary alone");
    drop("model.gguf");
    assert_int_equal(failures, 0);
}

/* A tokenizer with more tokens than rows belongs to another model; fewer are padding. */
static void vocabularies(void **state)
{
    (void)state;
    char text[8192];
    for (int tokens = 60; tokens <= 70; tokens += 10) {
        size_t at =
            (size_t)snprintf(text, sizeof text, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
        for (int i = 0; i < tokens; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s\"%c%c\":%d", i ? "," : "", 'a' + i / 26,
                                   'a' + i % 26, i);
        snprintf(text + at, sizeof text - at,
                 "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
                 ",\"decoder\":{\"type\":\"ByteLevel\"}}");
        segue_error err = {0};
        spoil_config("llama", "x", "1");
        put_text("tokenizer.json", text);
        segue_status s = open_folder(&err);
        if (tokens == 60 && s != SEGUE_OK) fail_msg("%s", err.text);
        if (tokens == 70)
            expect(s, SEGUE_EFORMAT, &err, "70 tokens, but the embedding only 64 rows", "vocabulary");
    }
    drop("tokenizer.json");
    assert_int_equal(failures, 0);
}

/* A tokenizer.bin of 64 tokens: the first three, then one byte each. tokN.bin is nearer than tokenizer.bin.
 */
static void bin_tokenizer(void **state)
{
    (void)state;
    uint8_t bytes[1024] = {1, 0, 0, 0};
    size_t at = 4;
    for (int i = 0; i < 64; i++) {
        const char *text = i == 0   ? "<unk>"
                           : i == 1 ? "\n<s>\n"
                           : i == 2 ? "\n</s>\n"
                                    : (char[2]){(char)(' ' + i), 0};
        uint8_t len = (uint8_t)strlen(text);
        bytes[at + 4] = len; /* the score before it is 0 */
        memcpy(bytes + at + 8, text, len);
        at += 8u + len;
    }
    char path[512];
    segue_error err = {0};
    lead("v1.bin", "llama_mha/v1.bin");
    for (int k = 0; k < 2; k++) {
        struct segue_model *m = NULL;
        in_folder(path, sizeof path, k ? "tok64.bin" : "tokenizer.bin");
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, at, f), at);
        fclose(f);
        if (k) put_text("tokenizer.bin", "rubbish that must not be read");
        in_folder(path, sizeof path, "v1.bin");
        if (sg_model_open(&m, path, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
        assert_int_equal(m->info.has_tokenizer, 1);
        assert_string_equal(m->info.tokenizer_kind, "spm");
        assert_int_equal(m->info.stops_n, 1);
        sg_model_unref(m);
    }
    drop("tok64.bin");
    struct segue_model *m = NULL;
    segue_status s = sg_model_open(&m, path, NULL, &err);
    expect(s, SEGUE_EFORMAT, &err, "tokenizer.bin", "a damaged tokenizer.bin");
    segue_model_opts no_text = {.size = sizeof no_text, .no_text = 1};
    assert_int_equal(sg_model_open(&m, path, &no_text, &err), SEGUE_OK);
    assert_int_equal(m->info.has_tokenizer, 0);
    sg_model_unref(m);
    drop("v1.bin");
    drop("tokenizer.bin");
    assert_int_equal(failures, 0);
}

static void expect_template(const char *source)
{
    struct segue_model *m = NULL;
    segue_error err = {0};
    if (sg_model_open(&m, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (source) assert_string_equal(m->template_source, source);
    if (!source) assert_null(m->template_source);
    sg_model_unref(m);
}

/* The file before the configuration, of a list the default; one that cannot be parsed is kept with its error.
 */
static void templates(void **state)
{
    (void)state;
    struct segue_model *m = NULL;
    spoil_config("llama", "x", "1");
    expect_template(NULL);
    put_text("tokenizer_config.json", "{\"chat_template\":7}");
    assert_int_equal(sg_model_open(&m, folder, NULL, NULL), SEGUE_OK);
    assert_true(m->chat_error.status == SEGUE_EFORMAT && strstr(m->chat_error.text, "chat_template is not a text"));
    sg_model_unref(m);
    put_text("tokenizer_config.json", "{\"chat_template\":\"one\"}");
    expect_template("one");
    put_text("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},"
                                      "{\"name\":\"default\",\"template\":\"two\"}]}");
    expect_template("two");
    put_text("chat_template.jinja", "three");
    expect_template("three");
    put_text("chat_template.jinja", "{% if %}");
    expect_template("{% if %}");
    assert_int_equal(sg_model_open(&m, folder, NULL, NULL), SEGUE_OK);
    assert_null(m->chat);
    assert_int_equal(m->info.has_template, 0);
    assert_int_equal(m->chat_error.status, SEGUE_EFORMAT);
    sg_model_unref(m);
    drop("chat_template.jinja");
    drop("tokenizer_config.json");
}

/* What generation_config.json and config.json say about stopping and sampling. */
static void defaults(void **state)
{
    (void)state;
    struct segue_model *m = NULL;
    segue_error err = {0};
    spoil_config("llama", "eos_token_id", "[5, 6, 5]");
    put_text("generation_config.json",
             "{\"eos_token_id\":[7,5,-1,99999999],\"temperature\":0.5,\"top_p\":0.9,\"top_k\":20}");
    if (sg_model_open(&m, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(m->info.stops_n, 3);
    assert_int_equal(m->info.stops[0], 7);
    assert_int_equal(m->info.eos, 7);
    assert_int_equal(m->info.top_k, 20);
    assert_true(m->info.temperature == 0.5f && m->info.top_p == 0.9f && m->info.min_p < 0);
    assert_false(m->info.has_tokenizer);
    sg_model_unref(m);
    drop("generation_config.json");
}

/* Old and new spelling of the rotary settings give one table. */
static void old_spelling(void **state)
{
    (void)state;
    static const char *const models[] = {"llama3", "llama_yarn", "llama_linear"};
    for (size_t i = 0; i < 3; i++) {
        struct segue_model *now = NULL, *old = NULL;
        char path[512];
        segue_error err = {0};
        snprintf(path, sizeof path, "%s/%s", tiny_folder(), models[i]);
        assert_int_equal(sg_model_open(&now, path, NULL, NULL), SEGUE_OK);
        json_t *config = NULL;
        snprintf(path, sizeof path, "%s/%s/config.json", tiny_folder(), models[i]);
        assert_int_equal(sg_json_read(&config, path, 1 << 20, NULL), SEGUE_OK);
        json_t *rope = json_incref(json_object_get(config, "rope_parameters"));
        json_object_del(config, "rope_parameters");
        json_object_set(config, "rope_theta", json_object_get(rope, "rope_theta"));
        json_object_del(rope, "rope_theta");
        json_object_set(rope, "type", json_object_get(rope, "rope_type"));
        json_object_del(rope, "rope_type");
        json_object_set_new(config, "rope_scaling", rope);
        char *text = json_dumps(config, 0);
        put_text("config.json", text);
        free(text);
        json_decref(config);
        snprintf(path, sizeof path, "%s/model.safetensors", models[i]);
        lead("model.safetensors", path);
        if (sg_model_open(&old, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
        const struct sg_rotary *a = &now->numbers->rotary[0], *b = &old->numbers->rotary[0];
        assert_int_equal(a->pairs, b->pairs);
        assert_memory_equal(a->inverse, b->inverse, a->pairs * sizeof(float));
        assert_true(a->mscale == b->mscale);
        assert_string_equal(now->info.shape_id, old->info.shape_id);
        sg_model_unref(old);
        sg_model_unref(now);
    }
}

/* Gemma 3 as it was published first: two bases, a pattern instead of a list, most numbers left out. */
static void old_gemma(void **state)
{
    (void)state;
    struct segue_model *now = NULL, *old = NULL;
    char path[512];
    segue_error err = {0};
    snprintf(path, sizeof path, "%s/gemma3", tiny_folder());
    assert_int_equal(sg_model_open(&now, path, NULL, NULL), SEGUE_OK);
    put_text("config.json",
             "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":32,"
             "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":1,\"head_dim\":16,\"vocab_size\":64,\"sliding_window\":8,"
             "\"sliding_window_pattern\":3,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}}");
    lead("model.safetensors", "gemma3_wrapped/model.safetensors");
    if (sg_model_open(&old, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < 2; i++)
        assert_memory_equal(now->numbers->rotary[i].inverse, old->numbers->rotary[i].inverse,
                            8 * sizeof(float));
    assert_memory_equal(now->numbers->kinds, old->numbers->kinds, 3);
    assert_int_equal(old->info.context, 131072);
    assert_string_equal(now->info.shape_id, old->info.shape_id);
    sg_model_unref(old);
    sg_model_unref(now);
}

/* Names that are no UTF-8 must not make the description fail. */
static void odd_names(void **state)
{
    (void)state;
    struct segue_model *m = NULL;
    struct sg_buf text = {0};
    json_t *o = NULL;
    char from[512], path[512];
    snprintf(from, sizeof from, "%s/llama_mha/v1.bin", tiny_folder());
    in_folder(path, sizeof path, "\xff\xfe.bin");
    assert_int_equal(symlink(from, path), 0);
    assert_int_equal(sg_model_open(&m, path, NULL, NULL), SEGUE_OK);
    assert_int_equal(sg_model_describe(m, SEGUE_DESCRIBE_JSON, &text, NULL), SEGUE_OK);
    assert_int_equal(sg_json_parse(&o, text.data, text.len, "inspect", NULL), SEGUE_OK);
    assert_string_equal(json_string_value(json_object_get(o, "name")), "??.bin");
    json_decref(o);
    sg_buf_free(&text);
    sg_model_unref(m);
    unlink(path);
}

static void ranges_of_layers(void **state)
{
    (void)state;
    struct segue_model *m = NULL;
    struct sg_graph *g = NULL;
    char path[512];
    segue_error err = {0};
    snprintf(path, sizeof path, "%s/qwen3_5", tiny_folder());
    assert_int_equal(sg_model_open(&m, path, NULL, NULL), SEGUE_OK);
    struct sg_graph_request first = {.to = 2}, rest = {.from = 2, .head = 1}, bad = {.from = 3, .to = 3},
                         far = {.to = 5};
    assert_int_equal(sg_model_graph(m, &first, &g, &err), SEGUE_OK);
    assert_string_equal(g->inputs[0].name, "tokens");
    assert_true(sg_graph_output(g, "hidden.2") >= 0 && sg_graph_output(g, "logits") < 0);
    assert_int_equal(g->slots_n, 4);
    sg_graph_free(g);
    assert_int_equal(sg_model_graph(m, &rest, &g, &err), SEGUE_OK);
    assert_string_equal(g->inputs[0].name, "rows");
    assert_true(sg_graph_output(g, "logits") >= 0);
    assert_int_equal(g->layer_to, 4);
    sg_graph_free(g);
    assert_int_equal(sg_model_graph(m, &bad, &g, &err), SEGUE_EARG);
    assert_int_equal(sg_model_graph(m, &far, &g, &err), SEGUE_EARG);
    sg_model_unref(m);
}

/* The object of `inspect`, and one shape id for all formats of one model. */
static void descriptions(void **state)
{
    (void)state;
    static const char *const files[] = {"llama_mha", "llama_mha/model.gguf", "llama_mha/legacy.bin"};
    static const char *const members[] = {"path",    "family",  "format",    "shape_id",      "weights_id",
                                          "numbers", "tensors", "tokenizer", "template_hash", "memory"};
    char shape[33] = "";
    for (size_t i = 0; i < 3; i++) {
        struct segue_model *m = NULL;
        struct sg_buf text = {0};
        json_t *o = NULL;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", tiny_folder(), files[i]);
        assert_int_equal(sg_model_open(&m, path, NULL, NULL), SEGUE_OK);
        assert_int_equal(sg_model_describe(m, SEGUE_DESCRIBE_JSON, &text, NULL), SEGUE_OK);
        assert_int_equal(sg_json_parse(&o, text.data, text.len, "inspect", NULL), SEGUE_OK);
        for (size_t k = 0; k < sizeof members / sizeof *members; k++)
            assert_non_null(json_object_get(o, members[k]));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "numbers"), "layers")), 2);
        assert_int_equal(
            json_integer_value(json_object_get(json_object_get(o, "memory"), "state_token_bytes")),
            2 * 2 * 4 * 8 * 2);
        const char *id = json_string_value(json_object_get(o, "shape_id"));
        if (i) assert_string_equal(id, shape);
        snprintf(shape, sizeof shape, "%s", id);
        text.len = 0;
        assert_int_equal(sg_model_describe(m, SEGUE_DESCRIBE_GRAPH, &text, NULL), SEGUE_OK);
        assert_non_null(strstr(text.data, "attend"));
        assert_int_equal(sg_model_describe(m, SEGUE_DESCRIBE_TEMPLATE, &text, NULL), SEGUE_EUNSUPPORTED);
        assert_int_equal(sg_model_describe(m, 77, &text, NULL), SEGUE_EARG);
        sg_buf_free(&text);
        json_decref(o);
        sg_model_unref(m);
    }
}

/* --- adapters --- */

static const struct {
    const char *key, *json, *words;
} peft[] = {
    {"use_dora", "true", "use_dora"},
    {"bias", "\"all\"", "bias"},
    {"modules_to_save", "[\"lm_head\"]", "lm_head"},
    {"peft_type", "\"IA3\"", "IA3"},
    {"lora_alpha", "\"x\"", "lora_alpha"},
    {"alpha_pattern", "{\"down_proj\":\"x\"}", "down_proj"},
    {"alpha_pattern", "{\"layers.[0-9]+.mlp\":1}", "regular expressions"},
};

static segue_status open_adapter(const char *model, const char *path, segue_error *err)
{
    struct segue_model *m = NULL;
    struct segue_adapter *a = NULL;
    char base[512];
    snprintf(base, sizeof base, "%s/%s", tiny_folder(), model);
    assert_int_equal(sg_model_open(&m, base, NULL, NULL), SEGUE_OK);
    segue_status s = sg_adapter_open(&a, m, path, 1, err);
    sg_adapter_unref(a);
    sg_model_unref(m);
    return s;
}

static void adapters(void **state)
{
    (void)state;
    char path[512];
    json_t *config = NULL;
    segue_error err = {0};
    snprintf(path, sizeof path, "%s/lora/llama/peft/adapter_config.json", tiny_folder());
    drop("model.safetensors");
    lead("adapter_model.safetensors", "lora/llama/peft/adapter_model.safetensors");
    for (size_t i = 0; i < sizeof peft / sizeof *peft; i++) {
        assert_int_equal(sg_json_read(&config, path, 1 << 20, NULL), SEGUE_OK);
        json_object_set_new(config, peft[i].key, json_loads(peft[i].json, JSON_DECODE_ANY, NULL));
        char *text = json_dumps(config, 0);
        put_text("adapter_config.json", text);
        free(text);
        json_decref(config);
        expect(open_adapter("llama", folder, &err), SEGUE_EFORMAT, &err, peft[i].words, peft[i].key);
    }
    drop("adapter_config.json");
    expect(open_adapter("llama", folder, &err), SEGUE_EFORMAT, &err, "adapter_config.json",
           "no configuration");
    snprintf(path, sizeof path, "%s/lora/llama/peft", tiny_folder());
    expect(open_adapter("llama3", path, &err), SEGUE_EFORMAT, &err, "expected", "another shape");
    expect(open_adapter("gpt2", path, &err), SEGUE_EFORMAT, &err, "no matching weight", "another family");
    snprintf(path, sizeof path, "%s/lora/llama/adapter.gguf", tiny_folder());
    expect(open_adapter("qwen2", path, &err), SEGUE_EFORMAT, &err, "general.architecture", "another family");
    snprintf(path, sizeof path, "%s/llama/model.gguf", tiny_folder());
    expect(open_adapter("llama", path, &err), SEGUE_EFORMAT, &err, "adapter.type", "a model");
    drop("adapter_model.safetensors");
    assert_int_equal(failures, 0);
}

#ifdef SEGUE_FAULTS
/* Every allocation of an open, a graph and an adapter fails once; nothing leaks (the sanitizer looks) or
 * crashes. */
static void allocations(void **state)
{
    (void)state;
    char base[512], path[512];
    snprintf(base, sizeof base, "%s/qwen3_5_asym", tiny_folder());
    snprintf(path, sizeof path, "%s/lora/qwen3_5_asym/peft", tiny_folder());
    segue_status s = SEGUE_EMEMORY;
    for (uint64_t n = 1; s == SEGUE_EMEMORY; n++) {
        struct segue_model *m = NULL;
        struct segue_adapter *a = NULL;
        struct sg_buf text = {0};
        segue_error err = {0};
        sg_fault_alloc(n);
        s = sg_model_open(&m, base, NULL, &err);
        if (s == SEGUE_OK) s = sg_adapter_open(&a, m, path, 1, &err);
        if (s == SEGUE_OK) s = sg_model_describe(m, SEGUE_DESCRIBE_JSON, &text, &err);
        if (s == SEGUE_OK) s = sg_model_describe(m, SEGUE_DESCRIBE_GRAPH, &text, &err);
        sg_fault_alloc(0);
        if (s != SEGUE_OK && s != SEGUE_EMEMORY) fail_msg("allocation %u: %s", (unsigned)n, err.text);
        sg_buf_free(&text);
        sg_adapter_unref(a);
        sg_model_unref(m);
    }
}
#endif

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    drop("config.json");
    drop("model.safetensors");
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef SEGUE_FAULTS
        cmocka_unit_test(allocations),
#endif
        cmocka_unit_test(configurations),   cmocka_unit_test(folders),       cmocka_unit_test(gguf_keys),
        cmocka_unit_test(gguf_without_weights),
        cmocka_unit_test(vocabularies),     cmocka_unit_test(defaults),      cmocka_unit_test(old_spelling),
        cmocka_unit_test(ranges_of_layers), cmocka_unit_test(bin_tokenizer), cmocka_unit_test(templates),
        cmocka_unit_test(old_gemma),        cmocka_unit_test(odd_names),     cmocka_unit_test(descriptions),
        cmocka_unit_test(adapters),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
