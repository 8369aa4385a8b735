/* weights.c: finds every tensor of a family's table in an archive under any naming convention,
 * checks its shape and storage, and binds it to its role as a view that describes the file's
 * layout. Tensor data is neither read nor copied. A tensor that is neither in the table nor in the
 * list of known extras is refused, because ignoring it could give the results of another model.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "model/family.h"

/* The state of binding. */
struct binding {
    struct segue_model *m;
    const struct sg_numbers *n;
    uint8_t *claimed; /* [tensors_n] 1: bound to a role */
    segue_error *err;
};

const struct sg_bound *sg_model_weight(const struct segue_model *m, uint32_t layer, uint32_t role)
{
    const struct sg_tensor_row *row = sg_tensor_find(m->family, (enum sg_role)role);
    if (!row || !row->layers || layer > m->numbers->layers) layer = m->numbers->layers;
    return &m->weights[(size_t)layer * SG_ROLE_N + role];
}

/* --- names --- */

/* Write prefix and pattern to out, with %u in the pattern replaced by the layer. */
static void format_name(char *out, size_t cap, const char *prefix, const char *pattern, uint32_t layer)
{
    const char *slot = strstr(pattern, "%u");
    if (slot)
        snprintf(out, cap, "%s%.*s%u%s", prefix, (int)(slot - pattern), pattern, layer, slot + 2);
    else
        snprintf(out, cap, "%s%s", prefix, pattern);
}

/* Prefixes of the names of the transformer body in published files: plain models, image-and-text
 * models (two forms), GPT-2, and bodies saved without a head. */
static const char *const prefixes[] = {"model.", "model.language_model.", "language_model.model.",
                                       "transformer.", ""};

/* The prefix under which the embedding exists; NULL: none. */
static const char *find_prefix(const struct sg_archive *a, const struct sg_tensor_row *embed)
{
    char name[256];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        format_name(name, sizeof name, prefixes[i], embed->hf, 0);
        if (sg_archive_find(a, name)) return prefixes[i];
    }
    return NULL;
}

/* The name of a row's tensor (or of its bias) in this file; "" when the convention has none. A name
 * outside the body may have the prefix of image-and-text models. */
static void name_of(const struct segue_model *m, const struct sg_tensor_row *row, uint32_t layer, int bias,
                    char *out, size_t cap)
{
    const char *pattern = m->convention.gguf ? row->gguf : row->hf;
    out[0] = 0;
    if (!pattern) return;
    if (m->convention.gguf || *pattern != '/') {
        format_name(out, cap, m->convention.gguf ? "" : m->convention.prefix, pattern, layer);
    } else {
        format_name(out, cap, "", pattern + 1, layer);
        if (!sg_archive_find(m->archive, out)) {
            char wrapped[256];
            format_name(wrapped, sizeof wrapped, "language_model.", pattern + 1, layer);
            if (sg_archive_find(m->archive, wrapped)) snprintf(out, cap, "%s", wrapped);
        }
    }
    /* A bias has the name of its weight with another ending. */
    size_t len = strlen(out);
    if (bias && len > 7 && !strcmp(out + len - 7, ".weight")) snprintf(out + len - 7, cap - len + 7, ".bias");
}

/* 1 for tensors that a text model does not need: image towers, layers for multi-token prediction,
 * and buffers in files of old versions. */
static int is_extra(const struct segue_model *m, const struct sg_numbers *n, const char *name)
{
    static const char *const parts[] = {
        "visual.", "vision_tower.",       "vision_model.",    "multi_modal_projector.",
        "mtp.",    "rotary_emb.inv_freq", "attn.masked_bias", "rope.freqs"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *at = strstr(name, parts[i]);
        if (at && (at == name || at[-1] == '.')) return 1;
    }
    size_t len = strlen(name);
    if (len > 10 && !strcmp(name + len - 10, ".attn.bias")) return 1;
    /* GGUF stores the layers for multi-token prediction after the ordinary ones. */
    unsigned layer;
    return m->convention.gguf && sscanf(name, "blk.%u.", &layer) == 1 && layer >= n->layers &&
           layer - n->layers < n->predict_layers;
}

/* --- conventions --- */

/* MLX files, and GPT-2 files with linear layers, use the names of Hugging Face. They are recognised
 * by the shape of one tensor: a convolution [C, taps, 1], or a QKV matrix [3 * width, width]. */
static void find_convention(struct segue_model *m, const struct sg_family *f, const struct sg_numbers *n)
{
    char name[256];
    const struct sg_tensor_row *conv = sg_tensor_find(f, SG_DELTA_CONV), *qkv = sg_tensor_find(f, SG_QKV);
    for (uint32_t i = 0; conv && i < n->layers; i++) {
        if (n->kinds[i] != SG_LAYER_LINEAR) continue;
        name_of(m, conv, i, 0, name, sizeof name);
        const struct sg_tensor *t = sg_archive_find(m->archive, name);
        m->convention.mlx = !m->convention.gguf && t && t->rank == 3 && t->shape[2] == 1 && t->shape[1] > 1;
        break;
    }
    if (qkv && (qkv->fix & SG_FIX_CONV1D)) {
        name_of(m, qkv, 0, 0, name, sizeof name);
        const struct sg_tensor *t = sg_archive_find(m->archive, name);
        m->convention.conv1d_as_linear =
            m->convention.gguf || (t && t->rank == 2 && t->shape[0] == 3 * (uint64_t)n->width);
    }
}

/* Per head: the two rows of a rotary pair are adjacent in the file, but half a head apart in the
 * logical order. */
static struct sg_perm interleaved_perm(uint32_t head_width)
{
    return (struct sg_perm){.a = 2, .b = head_width / 2, .w = 1};
}

/* Tiling makes no difference when there is one value head per key head. */
segue_status sg_fix_perms(const struct sg_family *f, const struct sg_numbers *n,
                          const struct sg_tensor_row *row, unsigned gguf, struct sg_perm *rows,
                          struct sg_perm *cols, segue_error *err)
{
    *rows = *cols = (struct sg_perm){0};
    if ((row->fix & SG_FIX_INTERLEAVED) && gguf && f->interleaved) *rows = interleaved_perm(n->head_width);
    if (row->fix & SG_FIX_QUERY_GATE) *rows = (struct sg_perm){.a = 2, .b = n->heads, .w = n->head_width};
    if ((row->fix & (SG_FIX_TILED | SG_FIX_TILED_COLUMNS)) && gguf && n->value_heads != n->key_heads) {
        struct sg_perm tiles = {.a = n->key_heads, .b = n->value_heads / n->key_heads};
        SG_TRY(sg_size_of(f, n, row->group, &tiles.w, err));
        if (row->skip) SG_TRY(sg_size_of(f, n, row->skip, &tiles.first, err));
        *(row->fix & SG_FIX_TILED ? rows : cols) = tiles;
    }
    return SEGUE_OK;
}

/* --- one tensor --- */

/* Compare the shape in the file with the expected one. The message shows both, and the expression
 * with the names of the hyperparameters. */
static segue_status check_shape(const struct binding *b, const struct sg_tensor *t,
                                const struct sg_tensor_row *row, uint32_t rows, uint32_t cols, int vector)
{
    int fits;
    if (row->fix & SG_FIX_TAPS)
        fits = (t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols) ||
               (t->rank == 3 && t->shape[0] == rows && t->shape[b->m->convention.mlx ? 1 : 2] == cols &&
                t->shape[b->m->convention.mlx ? 2 : 1] == 1);
    else if (vector)
        fits = t->rank == 1 && t->cols == cols && t->rows == 1;
    else
        fits = (t->rank == 2 || (t->rank == 3 && (row->fix & SG_FIX_STACKED))) && t->rows == rows &&
               t->cols == cols;
    if (fits) return SEGUE_OK;
    char found[96] = "";
    for (uint32_t i = 0, at = 0; i < t->rank && i < 4; i++)
        at += (uint32_t)snprintf(found + at, sizeof found - at, "%s%llu", i ? "x" : "",
                                 (unsigned long long)t->shape[i]);
    return sg_fail(b->err, SEGUE_EFORMAT,
                   "open model: %s: tensor %s has shape %s, expected %s%s%s = %ux%u; the file is damaged "
                   "or its configuration belongs to another model",
                   b->m->archive->path, t->name, found, vector ? "" : row->rows, vector ? "" : " x ",
                   vector && row->rows ? row->rows : row->cols, rows, cols);
}

/* The storage must be readable. Only plain storages can be transposed: a column of quantised blocks
 * cannot be read. */
static segue_status check_storage(const struct binding *b, const struct sg_tensor *t, int transposed)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    int plain = t->storage == SG_F32 || t->storage == SG_F16 || t->storage == SG_BF16;
    if (info && info->computable && (plain || !transposed)) return SEGUE_OK;
    return sg_fail(b->err, SEGUE_EUNSUPPORTED,
                   "open model: %s: tensor %s uses %s, which %s; use another file of this model",
                   b->m->archive->path, t->name, info ? info->name : "an unknown type",
                   transposed ? "cannot be read transposed" : "is not supported");
}

/* Make the view of a tensor: a copy of its descriptor with transposition, permutations and the
 * two-dimensional shape of convolutions. bias: the row describes its weight. A permutation of rows
 * applies to the elements of a vector. */
static segue_status make_view(const struct binding *b, const struct sg_tensor *t,
                              const struct sg_tensor_row *row, uint32_t rows, uint32_t cols, int bias,
                              const struct sg_tensor **out)
{
    const struct segue_model *m = b->m;
    struct sg_tensor *view = sg_arena_alloc(&b->m->arena, sizeof *view);
    if (!view) return sg_no_memory("tensor views", sizeof *view, b->err);
    int transposed = (row->fix & SG_FIX_CONV1D) && !m->convention.conv1d_as_linear && !bias;
    struct sg_tensor oriented = *t;
    if (transposed) oriented.transposed = 1, oriented.rows = t->cols, oriented.cols = t->rows;
    /* The shape is checked after the transposition, the storage as the file has it. */
    SG_TRY(check_shape(b, &oriented, row, rows, cols, bias || !row->rows));
    SG_TRY(check_storage(b, t, transposed));
    *view = oriented;
    if (row->fix & SG_FIX_TAPS) {
        view->rank = 2;
        view->shape[0] = view->rows = rows;
        view->shape[1] = view->cols = cols;
        view->shape[2] = view->shape[3] = 0;
    }
    struct sg_perm row_perm, col_perm;
    SG_TRY(sg_fix_perms(m->family, b->n, row, m->convention.gguf, &row_perm, &col_perm, b->err));
    int vector = bias || !row->rows;
    /* A vector is a single row: what permutes the rows of its matrix permutes its columns. */
    if (row_perm.a && vector)
        view->col_perm = row_perm;
    else if (row_perm.a)
        view->row_perm = row_perm;
    if (col_perm.a && !bias) view->col_perm = col_perm;
    *out = view;
    return SEGUE_OK;
}

/* Find the tensor `name` and make its view. *out = NULL when it is absent and not required. */
static segue_status bind_tensor(const struct binding *b, const struct sg_tensor_row *row, const char *name, int must,
                         int bias, const struct sg_tensor **out)
{
    const struct sg_archive *a = b->m->archive;
    const struct sg_tensor *t = *name ? sg_archive_find(a, name) : NULL;
    uint32_t rows = 1, cols;
    *out = NULL;
    if (!t && must && *name)
        return sg_fail(b->err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s is missing; the file is incomplete or its configuration "
                       "belongs to another model",
                       a->path, name);
    if (!t) return SEGUE_OK;
    SG_TRY(sg_size_of(b->m->family, b->n, bias && row->rows ? row->rows : row->cols, &cols, b->err));
    if (!bias && row->rows) SG_TRY(sg_size_of(b->m->family, b->n, row->rows, &rows, b->err));
    b->claimed[t - a->tensors] = 1;
    return make_view(b, t, row, rows, cols, bias, out);
}

/* Bind weight and bias of a row in one layer. The head is required unless it may be the embedding;
 * GGUF files omit it then. */
static segue_status bind_row(const struct binding *b, const struct sg_tensor_row *row, uint32_t layer)
{
    const struct sg_numbers *n = b->n;
    struct sg_bound *to = &b->m->weights[(size_t)layer * SG_ROLE_N + row->role];
    char name[256];
    int must = row->need == SG_NEED_MUST;
    if (row->role == SG_HEAD) must = n->tied == 0 && !b->m->convention.gguf;
    name_of(b->m, row, layer, 0, name, sizeof name);
    SG_TRY(bind_tensor(b, row, name, must, 0, &to->weight));
    to->plus_one = (row->fix & SG_FIX_MINUS_ONE) && !b->m->convention.gguf && !b->m->convention.mlx;
    if (row->bias == SG_BIAS_NONE || !to->weight) return SEGUE_OK;
    const struct sg_number_row *flag = row->bias_if ? sg_number_find(b->m->family, row->bias_if) : NULL;
    must = row->bias == SG_BIAS_MUST || (flag && sg_number_value(n, flag) > 0);
    name_of(b->m, row, layer, 1, name, sizeof name);
    return bind_tensor(b, row, name, must, 1, &to->bias);
}

/* In the order of the roles, so that the first error concerns the first part of the model. */
static segue_status bind_all(struct binding *b)
{
    for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
        const struct sg_tensor_row *row = sg_tensor_find(b->m->family, role);
        if (!row) continue;
        if (!row->layers) SG_TRY(bind_row(b, row, b->n->layers));
        for (uint32_t i = 0; row->layers && i < b->n->layers; i++)
            if (row->layers & b->n->kinds[i]) SG_TRY(bind_row(b, row, i));
    }
    /* Weights outside the layers are in the entry after the last layer. */
    struct sg_bound *whole = &b->m->weights[(size_t)b->n->layers * SG_ROLE_N];
    /* Files with a tied head may contain a copy of the embedding as head, which is ignored; a head
     * in a GGUF is always separate. */
    if (!whole[SG_HEAD].weight || (b->n->tied == 1 && !b->m->convention.gguf))
        whole[SG_HEAD].weight = whole[SG_EMBED].weight;
    return SEGUE_OK;
}

/* For example head norms in a llama model or a second MLP: without them the model would produce
 * plausible but wrong text. */
static segue_status refuse_unclaimed(const struct binding *b)
{
    const struct sg_archive *a = b->m->archive;
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!b->claimed[i] && !is_extra(b->m, b->n, a->tensors[i].name))
            return sg_fail(
                b->err, SEGUE_EUNSUPPORTED,
                "open model: %s: tensor %.120s is unknown in family %s; use a model of a supported family",
                a->path, a->tensors[i].name, b->m->family->name);
    return SEGUE_OK;
}

segue_status sg_weights_bind(struct segue_model *m, const struct sg_numbers *n, segue_error *err)
{
    const struct sg_tensor_row *embed = sg_tensor_find(m->family, SG_EMBED);
    struct binding b = {.m = m, .n = n, .err = err};
    /* GGUF has fixed names; others are found by the name of the embedding, which every model has. */
    m->convention.prefix = m->convention.gguf ? "" : find_prefix(m->archive, embed);
    if (!m->convention.prefix)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s is missing under every known prefix; the file is "
                       "incomplete or not a %s model",
                       m->archive->path, embed->hf, m->family->name);
    size_t bytes;
    SG_TRY(sg_mul(((size_t)n->layers + 1) * SG_ROLE_N, sizeof *m->weights, &bytes, "layers", err));
    if (!(m->weights = sg_arena_alloc(&m->arena, bytes))) return sg_no_memory("tensor roles", bytes, err);
    if (!(b.claimed = sg_alloc(m->archive->tensors_n)))
        return sg_no_memory("tensor list", m->archive->tensors_n, err);
    find_convention(m, m->family, n);
    segue_status s = bind_all(&b);
    if (s == SEGUE_OK) s = refuse_unclaimed(&b);
    sg_free(b.claimed);
    return s;
}
