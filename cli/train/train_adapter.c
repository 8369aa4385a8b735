/* train_adapter.c: see train_adapter.h. Uses the library's readers and writers of files (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "train/train_adapter.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tensor/ggufout.h"
#include "train/train_files.h"

segue_status adapter_form_of(const char *name, const char *base, enum adapter_form *out, segue_error *err)
{
    static const char *const names[] = {"peft", "mlx", "gguf"};
    struct sg_archive *a = NULL;
    *out = ADAPTER_AS_PEFT;
    while (name && *out < ADAPTER_AS_GGUF && strcmp(name, names[*out])) ++*out;
    if (*out != ADAPTER_AS_GGUF) return SEGUE_OK;
    segue_status st = sg_archive_open(&a, base, err);
    if (!st && a->format != SG_FORMAT_GGUF)
        st = out_fail(err, SEGUE_EUNSUPPORTED, "train: %.200s: a GGUF adapter has the tensor names of a GGUF model; train its "
                      "GGUF, or use --adapter-form peft", base);
    sg_archive_close(a);
    return st;
}

/* --- PEFT --- */

/* "model.layers.0.self_attn.q_proj" of a parameter of that module. */
static char *module_of(const char *name)
{
    size_t n = strlen(name), end = n > 7 && !strcmp(name + n - 7, ".weight") ? n - 7 : n;
    return out_printf("%.*s", (int)end, name);
}

/* Add a word to the list, once. */
static void add_once(json_t *list, const char *word)
{
    size_t i;
    json_t *known;
    json_array_foreach(list, i, known) if (!strcmp(json_string_value(known), word)) return;
    json_array_append_new(list, json_string(word));
}

static segue_status add_peft(struct file_tensors *list, json_t *targets, const segue_trainer *t, size_t i, segue_error *err)
{
    segue_param_info p = {.size = sizeof p};
    segue_status st = segue_trainer_param_info(t, i, &p, err);
    if (st) return st;
    char *module = module_of(p.hf_name), *dot = strrchr(module, '.');
    float *data = file_tensors_add(list, out_printf("base_model.model.%s.lora_%s.weight", module,
                                                    p.part == SEGUE_PARAM_LORA_A ? "A" : "B"), p.rows, p.cols);
    add_once(targets, dot ? dot + 1 : module);
    free(module);
    return segue_trainer_param_get(t, i, SEGUE_PARAM_VALUE, SEGUE_ORDER_HF, data, p.rows * p.cols, err);
}

static json_t *peft_config(const segue_trainer_info *info, const char *base, json_t *targets)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:s, s:b, s:b, s:O}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
                     "base_model_name_or_path", base, "r", (int)info->lora_rank, "lora_alpha",
                     (double)info->lora_scale * info->lora_rank, "lora_dropout", 0.0, "bias", "none", "fan_in_fan_out", 0,
                     "inference_mode", 1, "target_modules", targets);
}

/* --- MLX --- */

/* mlx-lm's name of a module: its models of language and vision have the language model in front, GPT-2 has "model". */
static char *mlx_module_of(const char *hf_name)
{
    static const char both[] = "model.language_model.", gpt2[] = "transformer.";
    char *module = module_of(hf_name), *out;
    if (!strncmp(module, both, sizeof both - 1)) out = out_printf("language_model.model.%s", module + sizeof both - 1);
    else if (!strncmp(module, gpt2, sizeof gpt2 - 1)) out = out_printf("model.%s", module + sizeof gpt2 - 1);
    else return module;
    free(module);
    return out;
}

/* The part behind the number of the layer; of a module outside of the layers, all. */
static const char *key_of(const char *module)
{
    for (const char *at = strchr(module, '.'); at; at = strchr(at + 1, '.')) {
        size_t digits = strspn(at + 1, "0123456789");
        if (digits && at[1 + digits] == '.') return at + 2 + digits;
    }
    return module;
}

/* MLX multiplies x A B: both matrices are stored transposed. */
static segue_status add_mlx(struct file_tensors *list, json_t *targets, const segue_trainer *t, size_t i, segue_error *err)
{
    segue_param_info p = {.size = sizeof p};
    segue_status st = segue_trainer_param_info(t, i, &p, err);
    if (st) return st;
    char *module = mlx_module_of(p.hf_name);
    float *data = file_tensors_add(list, out_printf("%s.lora_%s", module, p.part == SEGUE_PARAM_LORA_A ? "a" : "b"), p.cols,
                                   p.rows);
    float *straight = out_alloc(p.rows * p.cols * sizeof *straight);
    add_once(targets, key_of(module));
    st = segue_trainer_param_get(t, i, SEGUE_PARAM_VALUE, SEGUE_ORDER_HF, straight, p.rows * p.cols, err);
    for (size_t r = 0; r < p.rows; r++)
        for (size_t c = 0; c < p.cols; c++) data[c * p.rows + r] = straight[r * p.cols + c];
    free(straight);
    free(module);
    return st;
}

static json_t *mlx_config(const segue_trainer_info *info, const char *base, json_t *targets)
{
    return json_pack("{s:s, s:s, s:i, s:{s:i, s:f, s:f, s:O}}", "fine_tune_type", "lora", "model", base, "num_layers",
                     (int)info->layers, "lora_parameters", "rank", (int)info->lora_rank, "scale", (double)info->lora_scale,
                     "dropout", 0.0, "keys", targets);
}

/* --- folders --- */

static segue_status write_folder(const char *folder, const segue_trainer *t, const char *base, bool mlx, segue_error *err)
{
    struct file_tensors list = {0};
    segue_trainer_info info = {.size = sizeof info};
    json_t *targets = json_array();
    segue_status st = segue_trainer_info_get(t, &info, err);
    for (size_t i = 0; i < info.params_n && !st; i++) st = (mlx ? add_mlx : add_peft)(&list, targets, t, i, err);
    json_t *config = (mlx ? mlx_config : peft_config)(&info, base, targets);
    char *path = out_printf("%s/%s.safetensors", folder, mlx ? "adapters" : "adapter_model");
    char *text = json_dumps(config, JSON_INDENT(2));
    if (!st && !text) st = out_fail(err, SEGUE_EMEMORY, "train: %.200s: no memory for the configuration", folder);
    if (!st) st = sg_make_folders(folder, err);
    if (!st) st = sg_safetensors_write(path, list.items, list.n, err);
    if (!st) st = sg_file_write_in(folder, "adapter_config.json", text, strlen(text), err);
    free(path);
    free(text);
    json_decref(config);
    json_decref(targets);
    file_tensors_free(&list);
    return st;
}

/* --- GGUF --- */

static segue_status add_gguf(struct file_tensors *list, const segue_trainer *t, size_t i, segue_error *err)
{
    segue_param_info p = {.size = sizeof p};
    segue_status st = segue_trainer_param_info(t, i, &p, err);
    if (st) return st;
    float *data = file_tensors_add(list, out_printf("%s.lora_%s", p.tensor, p.part == SEGUE_PARAM_LORA_A ? "a" : "b"), p.rows,
                                   p.cols);
    return segue_trainer_param_get(t, i, SEGUE_PARAM_VALUE, SEGUE_ORDER_FILE, data, p.rows * p.cols, err);
}

static void put_keys(struct sg_gguf_out *out, const struct sg_archive *a, const segue_trainer_info *info)
{
    for (uint32_t i = 0; i < a->meta_n; i++)
        if (!strcmp(a->meta[i].key, "general.architecture")) sg_gguf_key_copy(out, &a->meta[i]);
    sg_gguf_key_string(out, "general.type", "adapter", 7);
    sg_gguf_key_string(out, "adapter.type", "lora", 4);
    sg_gguf_key_f32(out, "adapter.lora.alpha", info->lora_scale * (float)info->lora_rank);
}

static segue_status write_list(const char *path, const struct sg_archive *a, const struct file_tensors *list,
                               const segue_trainer_info *info, segue_error *err)
{
    struct sg_gguf_out out = {.file.fd = -1};
    struct sg_gguf_item *items = out_alloc((list->n + 1) * sizeof *items);
    for (size_t i = 0; i < list->n; i++) {
        items[i] = (struct sg_gguf_item){.name = list->items[i].name, .storage = SG_F32, .rank = 2};
        memcpy(items[i].shape, list->items[i].shape, sizeof items[i].shape);
    }
    put_keys(&out, a, info);
    segue_status st = sg_gguf_out_begin(&out, path, items, (uint32_t)list->n, err);
    for (uint32_t i = 0; i < list->n && !st; i++)
        st = sg_gguf_out_data(&out, i, 0, list->items[i].data, (size_t)(items[i].shape[0] * items[i].shape[1]) * sizeof(float),
                              err);
    if (!st) st = sg_gguf_out_commit(&out, err);
    sg_gguf_out_close(&out);
    free(items);
    return st;
}

static segue_status write_gguf(const char *folder, const segue_trainer *t, const char *base, segue_error *err)
{
    struct file_tensors list = {0};
    struct sg_archive *a = NULL;
    segue_trainer_info info = {.size = sizeof info};
    char *path = out_printf("%s/adapter.gguf", folder);
    segue_status st = segue_trainer_info_get(t, &info, err);
    if (!st) st = sg_archive_open(&a, base, err);
    for (size_t i = 0; i < info.params_n && !st; i++) st = add_gguf(&list, t, i, err);
    if (!st) st = sg_make_folders(folder, err);
    if (!st) st = write_list(path, a, &list, &info, err);
    sg_archive_close(a);
    file_tensors_free(&list);
    free(path);
    return st;
}

segue_status adapter_write(const char *folder, const segue_trainer *t, const char *base, enum adapter_form form,
                           segue_error *err)
{
    return form == ADAPTER_AS_GGUF ? write_gguf(folder, t, base, err)
                                   : write_folder(folder, t, base, form == ADAPTER_AS_MLX, err);
}
