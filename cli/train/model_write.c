/* model_write.c: see model_write.h. Uses the library's readers and writers of files (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "train/model_write.h"

#include <stdlib.h>
#include <string.h>

#include "plan/probe_model.h"
#include "tensor/ggufout.h"

/* --- a shape to begin with --- */

static segue_status shape_of(const char *text, struct probe_shape *out, segue_error *err)
{
    static const struct {
        const char *name;
        struct probe_shape shape;
    } named[] = {{"stories15M", {.layers = 6, .width = 288, .ff = 768, .heads = 6, .kv_heads = 6}},
                 {"stories42M", {.layers = 8, .width = 512, .ff = 1376, .heads = 8, .kv_heads = 8}},
                 {"stories110M", {.layers = 12, .width = 768, .ff = 2048, .heads = 12, .kv_heads = 12}},
                 {"smollm2-135M", {.layers = 30, .width = 576, .ff = 1536, .heads = 9, .kv_heads = 3}}};
    unsigned layers, width, heads, kv, ff;
    char more;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (!strcmp(text, named[i].name)) {
            *out = named[i].shape;
            return SEGUE_OK;
        }
    bool read = strlen(text) < 64 && sscanf(text, "%9ux%9ux%9ux%9ux%9u%c", &layers, &width, &heads, &kv, &ff, &more) == 5;
    bool good = read && layers && layers <= 512 && width && width <= 65536 && !(width % 32) && ff && ff <= 1 << 20 &&
                !(ff % 32) && heads && kv && !(width % heads) && !(width / heads % 2) && !(heads % kv);
    if (!good)
        return out_fail(err, SEGUE_EARG, "train: --shape %.60s: give stories15M, stories42M, stories110M, smollm2-135M, or "
                        "LAYERSxWIDTHxHEADSxKVxFF with width and FF multiples of 32", text);
    *out = (struct probe_shape){.layers = layers, .width = width, .ff = ff, .heads = heads, .kv_heads = kv};
    return SEGUE_OK;
}

segue_status shape_write(const char *folder, const char *shape, const char *base, uint32_t vocab, char **path, segue_error *err)
{
    struct sg_archive *a = NULL;
    struct probe_shape s;
    segue_status st = shape_of(shape, &s, err);
    *path = out_printf("%s/shape.gguf", folder);
    s.vocab = vocab;
    if (!st) st = sg_archive_open(&a, base, err);
    if (!st && a->format != SG_FORMAT_GGUF)
        st = out_fail(err, SEGUE_EUNSUPPORTED, "train: --shape takes the tokenizer of a GGUF file, and %.200s is none; name "
                      "one with -m", base);
    if (!st) st = sg_make_folders(folder, err);
    if (!st) st = probe_model_write_with(*path, &s, SG_Q4_0, a, err);
    sg_archive_close(a);
    return st;
}

/* --- the result --- */

static bool plain(const struct sg_tensor *x)
{
    return x->storage == SG_F32 || x->storage == SG_F16 || x->storage == SG_BF16;
}

static segue_status check(const struct sg_archive *a, segue_error *err)
{
    if (a->format == SG_FORMAT_GGUF) return SEGUE_OK;
    if (a->format != SG_FORMAT_SAFETENSORS)
        return out_fail(err, SEGUE_EUNSUPPORTED, "train: %.200s: all weights of a llama2.c file cannot be written; convert it to "
                        "GGUF with segue quantize, or train an adapter", a->path);
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!plain(&a->tensors[i]) && strstr(a->tensors[i].name, "proj"))
            return out_fail(err, SEGUE_EUNSUPPORTED, "train: %.200s: %s is quantised, and all weights of such a folder cannot be "
                            "written; use its GGUF, or train an adapter", a->path, a->tensors[i].name);
    return SEGUE_OK;
}

segue_status model_can_write(const char *base, segue_error *err)
{
    struct sg_archive *a = NULL;
    segue_status st = sg_archive_open(&a, base, err);
    if (!st) st = check(a, err);
    sg_archive_close(a);
    return st;
}

/* The parameter of each tensor of the file. */
struct trained {
    const segue_trainer *trainer;
    const struct sg_archive *archive;
    int64_t *param; /* [tensors_n] -1: not trained */
};

static segue_status match(struct trained *m, segue_error *err)
{
    segue_trainer_info info = {.size = sizeof info};
    segue_status st = segue_trainer_info_get(m->trainer, &info, err);
    m->param = out_alloc((m->archive->tensors_n + 1) * sizeof *m->param);
    for (uint32_t i = 0; i < m->archive->tensors_n; i++) m->param[i] = -1;
    for (size_t k = 0; k < info.params_n && !st; k++) {
        segue_param_info p = {.size = sizeof p};
        st = segue_trainer_param_info(m->trainer, k, &p, err);
        const struct sg_tensor *x = st ? NULL : sg_archive_find(m->archive, p.tensor);
        if (!st && (!x || x->rows * x->cols != p.rows * p.cols))
            st = out_fail(err, SEGUE_EFORMAT, "train: %.200s: it does not contain %s any more; restore the file, then repeat",
                          m->archive->path, p.tensor);
        if (!st) m->param[x - m->archive->tensors] = (int64_t)k;
    }
    return st;
}

static segue_status values(const struct trained *m, uint32_t i, float **out, segue_error *err)
{
    size_t n = (size_t)(m->archive->tensors[i].rows * m->archive->tensors[i].cols);
    *out = out_alloc(n * sizeof **out);
    return segue_trainer_param_get(m->trainer, (size_t)m->param[i], SEGUE_PARAM_VALUE, SEGUE_ORDER_FILE, *out, n, err);
}

/* --- GGUF --- */

static void copy_keys(struct sg_gguf_out *out, const struct sg_archive *a)
{
    static const char *const of_the_file[] = {"general.file_type", "general.alignment", "split.no", "split.count",
                                              "split.tensors.count"};
    for (uint32_t i = 0; i < a->meta_n; i++) {
        bool skip = false;
        for (size_t k = 0; k < sizeof of_the_file / sizeof *of_the_file; k++) skip |= !strcmp(a->meta[i].key, of_the_file[k]);
        if (!skip) sg_gguf_key_copy(out, &a->meta[i]);
    }
    sg_gguf_key_u32(out, "general.file_type", 0);
}

static segue_status put_tensors(struct sg_gguf_out *out, const struct trained *m, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (uint32_t i = 0; i < m->archive->tensors_n && !st; i++) {
        const struct sg_tensor *x = &m->archive->tensors[i];
        float *data = NULL;
        if (m->param[i] < 0) st = sg_gguf_out_data(out, i, 0, x->data, (size_t)x->bytes, err);
        else st = values(m, i, &data, err);
        if (data && !st) st = sg_gguf_out_data(out, i, 0, data, (size_t)(x->rows * x->cols) * sizeof *data, err);
        free(data);
    }
    return st;
}

static segue_status write_gguf(const char *path, const struct trained *m, segue_error *err)
{
    uint32_t n = m->archive->tensors_n;
    struct sg_gguf_item *items = out_alloc((n + 1) * sizeof *items);
    struct sg_gguf_out out = {.file.fd = -1};
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_tensor *x = &m->archive->tensors[i];
        items[i] = (struct sg_gguf_item){.name = x->name, .storage = m->param[i] < 0 ? x->storage : SG_F32, .rank = x->rank};
        memcpy(items[i].shape, x->shape, sizeof items[i].shape);
    }
    copy_keys(&out, m->archive);
    segue_status st = sg_gguf_out_begin(&out, path, items, n, err);
    if (!st) st = put_tensors(&out, m, err);
    if (!st) st = sg_gguf_out_commit(&out, err);
    sg_gguf_out_close(&out);
    free(items);
    return st;
}

/* --- a folder as Hugging Face's --- */

static segue_status write_safetensors(const char *path, const struct trained *m, segue_error *err)
{
    uint32_t n = m->archive->tensors_n;
    struct sg_st_item *items = out_alloc((n + 1) * sizeof *items);
    float **data = out_alloc((n + 1) * sizeof *data);
    segue_status st = SEGUE_OK;
    for (uint32_t i = 0; i < n; i++) data[i] = NULL;
    for (uint32_t i = 0; i < n && !st; i++) {
        const struct sg_tensor *x = &m->archive->tensors[i];
        items[i] = (struct sg_st_item){.name = x->name, .storage = x->storage, .rank = x->rank, .data = x->data};
        memcpy(items[i].shape, x->shape, sizeof items[i].shape);
        if (m->param[i] < 0) continue;
        st = values(m, i, &data[i], err);
        items[i].storage = SG_F32;
        items[i].data = data[i];
    }
    if (!st) st = sg_safetensors_write(path, items, n, err);
    for (uint32_t i = 0; i < n; i++) free(data[i]);
    free(data);
    free(items);
    return st;
}

/* Files that describe the model and its tokenizer, where the base has them. */
static segue_status copy_files(const char *folder, const char *base, segue_error *err)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model",
                                        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                                        "merges.txt", "chat_template.jinja", "chat_template.json"};
    char *from = sg_path_folder(base);
    segue_status st = from ? SEGUE_OK : out_fail(err, SEGUE_EMEMORY, "train: %.200s: no memory for its files", base);
    for (size_t i = 0; i < sizeof names / sizeof *names && !st; i++) {
        char *path = out_printf("%s/%s", from, names[i]);
        struct sg_map map;
        if (sg_path_kind(path) == SG_PATH_FILE) {
            st = sg_map_open(&map, path, err);
            if (!st) st = sg_file_write_in(folder, names[i], map.data, map.size, err);
            if (!st) sg_map_close(&map);
        }
        free(path);
    }
    sg_free(from);
    return st;
}

segue_status model_write(const char *folder, const segue_trainer *t, const char *base, char **path, segue_error *err)
{
    struct sg_archive *a = NULL;
    struct trained m = {.trainer = t};
    segue_status st = sg_archive_open(&a, base, err);
    bool gguf = !st && a->format == SG_FORMAT_GGUF;
    char *file = out_printf("%s/model.%s", folder, gguf ? "gguf" : "safetensors");
    m.archive = a;
    if (!st) st = match(&m, err);
    if (!st) st = sg_make_folders(folder, err);
    if (!st && !gguf) st = copy_files(folder, base, err);
    if (!st) st = gguf ? write_gguf(file, &m, err) : write_safetensors(file, &m, err);
    free(m.param);
    sg_archive_close(a);
    *path = st || !gguf ? out_printf("%s", folder) : file;
    if (*path != file) free(file);
    return st;
}
