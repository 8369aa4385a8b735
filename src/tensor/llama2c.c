/* llama2c.c: reads the .bin files of llama2.c: legacy, version 1 (fp32) and version 2 (int8
 * groups). The files contain no names. Tensors get the names of a Hugging Face llama model. q and k
 * get a row permutation, because llama2.c rotates adjacent pairs of rows where Hugging Face rotates
 * halves. All sizes follow from the seven numbers of the header and must add up to the file size
 * exactly.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "tensor/archive_build.h"

/* File layouts:
 *  legacy  7 x i32; embedding; the weights of each kind for all layers; final norm; two rotary tables; [classifier]; fp32
 *  v1      magic, version, 7 x i32, u8 shared, zeros up to 256; norms, embedding, matrices by kind; fp32
 *  v2      as v1 with the i32 group size at byte 37; norms in fp32, each matrix as int8 followed by its scales
 * The seven are dim, hidden, layers, heads, key-value heads, vocabulary size, context length. */
enum { MAGIC = 0x616b3432, HEADER_BYTES = 256, LAYERS_MAX = 1024 };

/* The decoded header. */
struct header {
    uint32_t version; /* 0 = legacy */
    int64_t dim, hidden, layers, heads, kv_heads, vocab, length;
    uint64_t shared, group; /* 1: the embedding is also the classifier; version 2: numbers per scale */
};

/* The state of reading one file. */
struct llama2c_reader {
    struct sg_build *b;
    uint32_t file;
    struct header h;
    uint64_t at; /* file offset of the next tensor */
    segue_error *err;
};

static int64_t int_at(const uint8_t *p) { return (int32_t)sg_le32(p); }

/* Legacy files have no magic: these bounds, wide for models and narrow for random bytes, detect
 * them. They also keep every product of sizes below 2^63. */
static int header_plausible(const struct header *h)
{
    return h->dim > 0 && h->dim <= 1 << 20 && h->hidden > 0 && h->hidden <= 1 << 22 && h->layers > 0 &&
           h->layers <= LAYERS_MAX && h->heads > 0 && h->heads <= h->dim && h->dim % h->heads == 0 &&
           h->dim / h->heads % 2 == 0 && h->kv_heads > 0 && h->kv_heads <= h->heads &&
           h->heads % h->kv_heads == 0 && h->vocab > 0 && h->vocab <= 1 << 24 && h->length > 0 &&
           h->length <= 1 << 28;
}

/* Decode the header; 0 when the file is too short for one. */
static int read_header(const struct sg_map *map, struct header *h)
{
    const uint8_t *p = map->data;
    *h = (struct header){0};
    if (map->size < 28) return 0;
    if (sg_le32(p) == MAGIC) {
        if (map->size < HEADER_BYTES || !sg_le32(p + 4)) return 0;
        h->version = sg_le32(p + 4);
        h->shared = p[36];
        if (h->version == 2) h->group = sg_le32(p + 37);
        p += 8;
    }
    h->dim = int_at(p);
    h->hidden = int_at(p + 4);
    h->layers = int_at(p + 8);
    h->heads = int_at(p + 12);
    h->kv_heads = int_at(p + 16);
    h->vocab = int_at(p + 20);
    h->length = int_at(p + 24);
    if (!h->version) { /* legacy: a negative vocabulary size means that the file has a separate classifier */
        h->shared = h->vocab > 0;
        if (h->vocab < 0) h->vocab = -h->vocab;
    }
    return 1;
}

int sg_llama2c_is(const struct sg_map *map)
{
    struct header h;
    if (map->size >= 4 && sg_le32(map->data) == MAGIC) return 1;
    return read_header(map, &h) && header_plausible(&h);
}

/* Append a tensor [rows, cols] (rows 0: a vector) stored at r->at, and advance r->at. plain 1: fp32
 * also in version 2. */
static segue_status add_tensor(struct llama2c_reader *r, const char *name, uint64_t rows, uint64_t cols, int plain)
{
    struct sg_tensor *t;
    const char *name_copy = sg_arena_strndup(&r->b->a->arena, name, strlen(name));
    if (!name_copy) return sg_no_memory(r->b->a->path, strlen(name), r->err);
    SG_TRY(sg_build_tensor(r->b, r->file, name_copy, &t, r->err));
    int grouped = r->h.version == 2 && !plain;
    t->storage = grouped ? SG_Q8_GROUP : SG_F32;
    t->stored_as = sg_storage_info(t->storage)->name;
    t->rank = rows ? 2 : 1;
    t->shape[0] = rows ? rows : cols;
    t->shape[1] = rows ? cols : 0;
    t->offset = r->at;
    SG_TRY(sg_build_shape(r->b, t, r->err));
    SG_TRY(sg_build_set_data(r->b, t, r->err));
    r->at += t->bytes;
    if (!grouped) return SEGUE_OK;
    /* Version 2: one fp32 scale per group of numbers directly after the codes. */
    uint64_t numbers = t->rows * t->cols, scales = numbers / r->h.group * 4;
    const struct sg_map *map = &r->b->a->maps[r->file];
    if (numbers % r->h.group || scales > map->size - r->at)
        return sg_fail(
            r->err, SEGUE_EFORMAT,
            "open model: %s: tensor %s: %llu numbers in groups of %llu need %llu bytes of scales, only %llu are "
            "left; the file is damaged",
            r->b->a->path, name, (unsigned long long)numbers, (unsigned long long)r->h.group,
            (unsigned long long)scales, (unsigned long long)(map->size - r->at));
    t->affine.scales = map->data + r->at;
    t->affine.storage = SG_F32;
    t->affine.group = (uint32_t)r->h.group;
    r->at += scales;
    return SEGUE_OK;
}

/* An early export script of llama2.c wrote all scales after all codes, in a file of the same size.
 * Such files are detected by scales outside [0, 1): the first 64 of each tensor are checked. */
static segue_status check_scales(struct llama2c_reader *r)
{
    const struct sg_archive *a = r->b->a;
    for (uint32_t i = 0; i < a->tensors_n; i++) {
        const struct sg_tensor *t = &a->tensors[i];
        uint64_t n = t->storage == SG_Q8_GROUP ? t->bytes / t->affine.group : 0;
        for (uint64_t k = 0; k < n && k < 64; k++) {
            float scale = sg_f32_of_bits(sg_le32((const uint8_t *)t->affine.scales + 4 * k));
            if (scale >= 0 && scale < 1) continue;
            return sg_fail(
                r->err, SEGUE_EFORMAT,
                "open model: %s: tensor %s: scale %llu is %g, expected 0 to 1; the file may be of an early export "
                "script with another layout, export it again",
                a->path, t->name, (unsigned long long)k, (double)scale);
        }
    }
    return SEGUE_OK;
}

/* One of the nine kinds of weights of a layer. */
struct part {
    const char *name;
    uint64_t rows, cols;
    int64_t heads; /* not 0 for q and k, whose rows are in interleaved order */
};

/* Append the tensor of this kind for every layer: the files store each kind consecutively. */
static segue_status add_layers(struct llama2c_reader *r, const struct part *part)
{
    for (int64_t layer = 0; layer < r->h.layers; layer++) {
        struct sg_buf name = {0};
        sg_buf_printf(&name, "model.layers.%lld.%s.weight", (long long)layer, part->name);
        segue_status s = name.failed ? sg_no_memory(r->b->a->path, 64, r->err)
                                     : add_tensor(r, name.data, part->rows, part->cols, !part->rows);
        sg_buf_free(&name);
        if (s != SEGUE_OK) return s;
        if (part->heads) {
            /* Pair j of a head is stored in rows 2j and 2j + 1, its logical rows are j and j +
             * half. */
            uint32_t half = (uint32_t)(r->h.dim / r->h.heads / 2);
            r->b->a->tensors[r->b->a->tensors_n - 1].row_perm = (struct sg_perm){.a = 2, .b = half, .w = 1};
        }
    }
    return SEGUE_OK;
}

/* All tensors in the order of the file. Versions 1 and 2 store all norms first. */
static segue_status add_all(struct llama2c_reader *r)
{
    const struct header *h = &r->h;
    uint64_t dim = (uint64_t)h->dim, hidden = (uint64_t)h->hidden, vocab = (uint64_t)h->vocab;
    uint64_t kv = dim / (uint64_t)h->heads * (uint64_t)h->kv_heads;
    const struct part parts[] = {
        {"input_layernorm", 0, dim, 0},
        {"self_attn.q_proj", dim, dim, h->heads},
        {"self_attn.k_proj", kv, dim, h->kv_heads},
        {"self_attn.v_proj", kv, dim, 0},
        {"self_attn.o_proj", dim, dim, 0},
        {"post_attention_layernorm", 0, dim, 0},
        {"mlp.gate_proj", hidden, dim, 0},
        {"mlp.down_proj", dim, hidden, 0},
        {"mlp.up_proj", hidden, dim, 0},
    };
    /* In all versions, each kind of weight is stored for all layers before the next kind. */
    int legacy = !h->version;
    if (legacy) {
        SG_TRY(add_tensor(r, "model.embed_tokens.weight", vocab, dim, 0));
        for (int i = 0; i < 9; i++) SG_TRY(add_layers(r, &parts[i]));
        SG_TRY(add_tensor(r, "model.norm.weight", 0, dim, 1));
        r->at += (uint64_t)h->length * (dim / (uint64_t)h->heads / 2) * 2 * 4; /* skip the cosine and sine tables */
    } else {
        SG_TRY(add_layers(r, &parts[0]));
        SG_TRY(add_layers(r, &parts[5]));
        SG_TRY(add_tensor(r, "model.norm.weight", 0, dim, 1));
        SG_TRY(add_tensor(r, "model.embed_tokens.weight", vocab, dim, 0));
        for (int i = 0; i < 9; i++)
            if (parts[i].rows) SG_TRY(add_layers(r, &parts[i]));
    }
    return h->shared ? SEGUE_OK : add_tensor(r, "lm_head.weight", vocab, dim, 0);
}

/* Store the header fields as metadata: these files have no config.json. */
static segue_status add_numbers(struct llama2c_reader *r)
{
    const struct header *h = &r->h;
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"llama2c.version", h->version},        {"llama2c.dim", h->dim},
        {"llama2c.hidden_dim", h->hidden},      {"llama2c.n_layers", h->layers},
        {"llama2c.n_heads", h->heads},          {"llama2c.n_kv_heads", h->kv_heads},
        {"llama2c.vocab_size", h->vocab},       {"llama2c.seq_len", h->length},
        {"llama2c.shared", (int64_t)h->shared}, {"llama2c.group_size", (int64_t)h->group},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sg_meta *m;
        SG_TRY(sg_build_meta(r->b, numbers[i].key, &m, r->err));
        m->type = SG_META_INT;
        m->v.i = numbers[i].value;
    }
    return SEGUE_OK;
}

/* The exact size is the only check that can detect a legacy file whose header does not match its
 * data. */
segue_status sg_llama2c_add(struct sg_build *b, uint32_t file, segue_error *err)
{
    const struct sg_map *map = &b->a->maps[file];
    const char *path = b->a->files[file];
    struct llama2c_reader r = {.b = b, .file = file, .err = err};
    if (!read_header(map, &r.h))
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: a llama2.c header has %d bytes and a version of at least 1, the file has "
                       "%zu bytes; download it again",
                       path, HEADER_BYTES, map->size);
    if (r.h.version > 2)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "open model: %s: llama2.c version %u, supported are 0 to 2; export it again", path,
                       r.h.version);
    if (!header_plausible(&r.h) || (r.h.version == 2 && (!r.h.group || r.h.group > 1 << 20)))
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: implausible llama2.c header: dim %lld, hidden %lld, layers %lld, heads "
                       "%lld/%lld, vocabulary %lld, length %lld, group %llu; the file is damaged",
                       path, (long long)r.h.dim, (long long)r.h.hidden, (long long)r.h.layers,
                       (long long)r.h.heads, (long long)r.h.kv_heads, (long long)r.h.vocab,
                       (long long)r.h.length, (unsigned long long)r.h.group);
    r.at = r.h.version ? HEADER_BYTES : 28;
    SG_TRY(add_numbers(&r));
    SG_TRY(add_all(&r));
    if (r.at != map->size)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: its header describes %llu bytes, the file has %zu; it is damaged or "
                       "not a llama2.c file",
                       path, (unsigned long long)r.at, map->size);
    return r.h.version == 2 ? check_scales(&r) : SEGUE_OK;
}
