/* weights.c: finds every tensor of a family's table in an archive, whatever its naming convention, checks
 * existence, shape and storage, and binds each to its role as a view that undoes the file's layout. Tensor
 * data is neither read nor copied. A tensor that neither the table nor the list of known extras names is
 * refused: ignoring it would give answers of another model.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "model/family.h"

struct binding {
    struct segue_model *m;
    const struct sg_numbers *n;
    uint8_t *claimed; /* [tensors_n] 1: has a role or is skipped by name */
    segue_error *err;
};

const struct sg_bound *sg_model_weight(const struct segue_model *m, uint32_t layer, uint32_t role)
{
    const struct sg_tensor_row *row = sg_tensor_find(m->family, (enum sg_role)role);
    if (!row || !row->layers || layer > m->numbers->layers) layer = m->numbers->layers;
    return &m->weights[(size_t)layer * SG_ROLE_N + role];
}

/* --- names --- */

static void format_name(char *out, size_t cap, const char *prefix, const char *pattern, uint32_t layer)
{
    const char *mark = strstr(pattern, "%u");
    if (mark)
        snprintf(out, cap, "%s%.*s%u%s", prefix, (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(out, cap, "%s%s", prefix, pattern);
}

static const char *const prefixes[] = {"model.", "model.language_model.", "language_model.model.",
                                       "transformer.", ""};

/* Prefix of the body's names, by where the embedding is; NULL: nowhere. */
static const char *find_prefix(const struct sg_archive *a, const struct sg_tensor_row *embed)
{
    char name[256];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        format_name(name, sizeof name, prefixes[i], embed->hf, 0);
        if (sg_archive_find(a, name)) return prefixes[i];
    }
    return NULL;
}

/* Name of a row's tensor (or of its bias) in this file; "" when the convention has none. */
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
    size_t len = strlen(out);
    if (bias && len > 7 && !strcmp(out + len - 7, ".weight")) snprintf(out + len - 7, cap - len + 7, ".bias");
}

/* Parts of names that a text model need not have: image towers, layers that guess further tokens, buffers
 * that old files carry. */
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
    unsigned layer;
    return m->convention.gguf && sscanf(name, "blk.%u.", &layer) == 1 && layer >= n->layers &&
           layer - n->layers < n->predict_layers;
}

/* --- conventions --- */

/* MLX and straight layouts look like Hugging Face's; one tensor whose shape differs tells them apart. */
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
        m->convention.straight =
            m->convention.gguf || (t && t->rank == 2 && t->shape[0] == 3 * (uint64_t)n->width);
    }
}

/* Within a head: pair j's two rows stand side by side in the file, half a head apart here. */
static struct sg_perm halves(uint32_t head_width)
{
    return (struct sg_perm){.a = 2, .b = head_width / 2, .w = 1};
}

segue_status sg_fix_perms(const struct sg_family *f, const struct sg_numbers *n,
                          const struct sg_tensor_row *row, unsigned gguf, struct sg_perm *rows,
                          struct sg_perm *cols, segue_error *err)
{
    *rows = *cols = (struct sg_perm){0};
    if ((row->fix & SG_FIX_HALVES) && gguf && f->interleaved) *rows = halves(n->head_width);
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

/* Compares what the file has with what the numbers demand; the message shows both and the expression. */
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
                   "open model: %s: tensor %s has shape %s, %s%s%s = %ux%u was expected; the file is damaged "
                   "or its configuration belongs to another model",
                   b->m->archive->path, t->name, found, vector ? "" : row->rows, vector ? "" : " x ",
                   vector && row->rows ? row->rows : row->cols, rows, cols);
}

/* Quantised rows cannot be read column by column, so only plain storages may be transposed. */
static segue_status check_storage(const struct binding *b, const struct sg_tensor *t, int transposed)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    int plain = t->storage == SG_F32 || t->storage == SG_F16 || t->storage == SG_BF16;
    if (info && info->computable && (plain || !transposed)) return SEGUE_OK;
    return sg_fail(b->err, SEGUE_EUNSUPPORTED,
                   "open model: %s: tensor %s is stored as %s, which %s; take another file of this model",
                   b->m->archive->path, t->name, info ? info->name : "an unknown type",
                   transposed ? "cannot be read transposed" : "cannot be computed with");
}

/* The view of a checked tensor with the file's layout undone. */
static segue_status make_view(const struct binding *b, const struct sg_tensor *t,
                              const struct sg_tensor_row *row, uint32_t rows, uint32_t cols, int bias,
                              const struct sg_tensor **out)
{
    const struct segue_model *m = b->m;
    struct sg_tensor *view = sg_arena_alloc(&b->m->arena, sizeof *view);
    if (!view) return sg_no_memory("tensor views", sizeof *view, b->err);
    int transposed = (row->fix & SG_FIX_CONV1D) && !m->convention.straight && !bias;
    struct sg_tensor turned = *t;
    if (transposed) turned.transposed = 1, turned.rows = t->cols, turned.cols = t->rows;
    SG_TRY(check_shape(b, &turned, row, rows, cols, bias || !row->rows));
    SG_TRY(check_storage(b, t, transposed));
    *view = turned;
    if (row->fix & SG_FIX_TAPS) {
        view->rank = 2;
        view->shape[0] = view->rows = rows;
        view->shape[1] = view->cols = cols;
        view->shape[2] = view->shape[3] = 0;
    }
    struct sg_perm row_perm, col_perm;
    SG_TRY(sg_fix_perms(m->family, b->n, row, m->convention.gguf, &row_perm, &col_perm, b->err));
    int vector = bias || !row->rows;
    if (row_perm.a && vector)
        view->col_perm = row_perm;
    else if (row_perm.a)
        view->row_perm = row_perm;
    if (col_perm.a && !bias) view->col_perm = col_perm;
    *out = view;
    return SEGUE_OK;
}

/* Finds the tensor named `name`; *out = NULL when it may be and is absent. */
static segue_status take(const struct binding *b, const struct sg_tensor_row *row, const char *name, int must,
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

/* Binds the weight of a role and the bias that goes with it. */
static segue_status bind_row(const struct binding *b, const struct sg_tensor_row *row, uint32_t layer)
{
    const struct sg_numbers *n = b->n;
    struct sg_bound *to = &b->m->weights[(size_t)layer * SG_ROLE_N + row->role];
    char name[256];
    int must = row->need == SG_NEED_MUST;
    if (row->role == SG_HEAD) must = n->tied == 0 && !b->m->convention.gguf;
    name_of(b->m, row, layer, 0, name, sizeof name);
    SG_TRY(take(b, row, name, must, 0, &to->weight));
    to->plus_one = (row->fix & SG_FIX_CENTRED) && !b->m->convention.gguf && !b->m->convention.mlx;
    if (row->bias == SG_BIAS_NONE || !to->weight) return SEGUE_OK;
    const struct sg_number_row *said = row->bias_if ? sg_number_find(b->m->family, row->bias_if) : NULL;
    must = row->bias == SG_BIAS_MUST || (said && sg_number_value(n, said) > 0);
    name_of(b->m, row, layer, 1, name, sizeof name);
    return take(b, row, name, must, 1, &to->bias);
}

/* Role by role, so that the first message names what comes first in a model. */
static segue_status bind_all(struct binding *b)
{
    for (enum sg_role role = SG_ROLE_NONE + 1; role < SG_ROLE_N; role++) {
        const struct sg_tensor_row *row = sg_tensor_find(b->m->family, role);
        if (!row) continue;
        if (!row->layers) SG_TRY(bind_row(b, row, b->n->layers));
        for (uint32_t i = 0; row->layers && i < b->n->layers; i++)
            if (row->layers & b->n->kinds[i]) SG_TRY(bind_row(b, row, i));
    }
    struct sg_bound *whole = &b->m->weights[(size_t)b->n->layers * SG_ROLE_N];
    /* A tied file may hold a copy of the embedding under the head's name; GGUF stores heads of their own
     * there. */
    if (!whole[SG_HEAD].weight || (b->n->tied == 1 && !b->m->convention.gguf))
        whole[SG_HEAD].weight = whole[SG_EMBED].weight;
    return SEGUE_OK;
}

/* A q_norm in a Llama, a second MLP, ...: computing without it would give fluent nonsense. */
static segue_status refuse_unclaimed(const struct binding *b)
{
    const struct sg_archive *a = b->m->archive;
    for (uint32_t i = 0; i < a->tensors_n; i++)
        if (!b->claimed[i] && !is_extra(b->m, b->n, a->tensors[i].name))
            return sg_fail(
                b->err, SEGUE_EUNSUPPORTED,
                "open model: %s: tensor %.120s is not known to family %s; use a model of a supported family",
                a->path, a->tensors[i].name, b->m->family->name);
    return SEGUE_OK;
}

segue_status sg_weights_bind(struct segue_model *m, const struct sg_numbers *n, segue_error *err)
{
    const struct sg_tensor_row *embed = sg_tensor_find(m->family, SG_EMBED);
    struct binding b = {.m = m, .n = n, .err = err};
    m->convention.prefix = m->convention.gguf ? "" : find_prefix(m->archive, embed);
    if (!m->convention.prefix)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s is missing under every known prefix; the file is "
                       "incomplete or no %s model",
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
