/* numbers.c: reads a family's hyperparameters from config.json or GGUF keys, computes those that
 * follow from others, checks all bounds, and evaluates the size expressions of tensor tables.
 * Memory is never allocated by a number that was not checked.
 * SPDX-License-Identifier: MIT */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

/* --- rows of the tables --- */

/* The last row of this name in all tables: a family's row replaces the shared one. The name has len
 * bytes and no NUL, because it may be part of a size expression. */
static const struct sg_number_row *find_row(const struct sg_family *f, const char *name, size_t len)
{
    const struct sg_number_row *found = NULL;
    for (size_t t = 0; f->numbers[t]; t++)
        for (const struct sg_number_row *r = f->numbers[t]; r->name; r++)
            if (!strncmp(r->name, name, len) && !r->name[len]) found = r;
    return found;
}

const struct sg_number_row *sg_number_find(const struct sg_family *f, const char *name)
{
    return find_row(f, name, strlen(name));
}

/* Skips rows that a later one replaces. */
const struct sg_number_row *sg_number_next(const struct sg_family *f, const struct sg_number_row *row)
{
    int passed = !row;
    for (size_t t = 0; f->numbers[t]; t++)
        for (const struct sg_number_row *r = f->numbers[t]; r->name; r++) {
            if (passed && sg_number_find(f, r->name) == r) return r;
            if (r == row) passed = 1;
        }
    return NULL;
}

/* memcpy, because the type of the field at the offset is only known from the row. */
double sg_number_value(const struct sg_numbers *n, const struct sg_number_row *row)
{
    const char *at = (const char *)n + row->at;
    uint32_t u;
    double d;
    memcpy(&u, at, sizeof u);
    if (row->kind != SG_NUMBER_REAL) return u;
    memcpy(&d, at, sizeof d);
    return d;
}

/* The counterpart of sg_number_value. */
static void store(struct sg_numbers *n, const struct sg_number_row *row, double value)
{
    uint32_t u = (uint32_t)value;
    char *at = (char *)n + row->at;
    if (row->kind == SG_NUMBER_REAL)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &u, sizeof u);
}

/* --- reading one number --- */

/* Names of activations in config.json. gelu_new and gelu_fast are the tanh approximation. */
static const struct {
    const char *name;
    enum sg_act act;
} acts[] = {
    {"silu", SG_ACT_SILU},
    {"swish", SG_ACT_SILU},
    {"gelu", SG_ACT_GELU},
    {"gelu_new", SG_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", SG_ACT_GELU_TANH},
    {"gelu_fast", SG_ACT_GELU_TANH},
    {"quick_gelu", SG_ACT_GELU_QUICK},
    {"relu", SG_ACT_RELU},
    {"relu2", SG_ACT_RELU2},
};

/* The activation of this name. */
static segue_status act_of(const char *text, const char *path, double *out, segue_error *err)
{
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i].name, text)) {
            *out = acts[i].act;
            return SEGUE_OK;
        }
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "open model: %s: activation \"%.40s\" is not supported; use a model with silu or gelu", path,
                   text);
}

/* Read a row from config.json; *found = 0 when absent. The configuration of image-and-text models
 * has the text model's values inside (text_config) and a few, such as tied embeddings, outside:
 * inside is searched first. */
static segue_status read_json(const struct sg_source *src, const struct sg_number_row *row, double *out,
                            int *found, segue_error *err)
{
    const json_t *objects[2] = {src->inner, src->outer};
    for (size_t p = 0; p < 2; p++)
        for (size_t k = 0; k < 2 && row->hf[k]; k++) {
            const json_t *o = objects[p];
            const char *key = row->hf[k], *text;
            int64_t count;
            int on;
            if (!json_object_get(o, key) || json_is_null(json_object_get(o, key))) continue;
            *found = 1;
            if (row->kind == SG_NUMBER_REAL) return sg_json_real(o, key, 0, out, src->path, err);
            if (row->kind == SG_NUMBER_ACT) {
                SG_TRY(sg_json_text(o, key, "", &text, src->path, err));
                return act_of(text, src->path, out, err);
            }
            if (row->kind == SG_NUMBER_FLAG) {
                SG_TRY(sg_json_bool(o, key, 0, &on, src->path, err));
                count = on;
            } else {
                SG_TRY(sg_json_int(o, key, 0, &count, src->path, err));
            }
            *out = (double)count;
            return SEGUE_OK;
        }
    return SEGUE_OK;
}

/* EFORMAT: a list with one item per layer has fewer items than the file says it has layers. */
static segue_status check_length(const struct sg_meta *m, const struct sg_source *src, segue_error *err)
{
    char key[160];
    int64_t layers;
    snprintf(key, sizeof key, "%s.block_count", src->arch ? src->arch : "");
    SG_TRY(sg_meta_int(src->archive, key, 0, &layers, err));
    if (layers <= 0 || m->v.a.n >= (uint64_t)layers) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s has %llu items for %lld layers; download the file again", src->path,
                   m->key, (unsigned long long)m->v.a.n, (long long)layers);
}

/* GGUF arrays with one number per layer. Supported if all numbers are equal, except zeros for
 * layers that do not use it. whole: counts have no fraction. */
static segue_status read_array(const struct sg_meta *m, const struct sg_source *src, int whole, double *out, segue_error *err)
{
    const char *path = src->path;
    double all = 0;
    SG_TRY(check_length(m, src, err));
    if (m->v.a.n > 65536 || m->item == SG_META_STRING || m->item == SG_META_ARRAY)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s is not a list of numbers; download the file again",
                       path, m->key);
    for (uint64_t i = 0; i < m->v.a.n; i++) {
        double one = sg_meta_item_float(m, i);
        if (whole && one != floor(one))
            return sg_fail(err, SEGUE_EFORMAT,
                           "open model: %s: %s has the item %g, expected whole numbers; download the file again", path, m->key,
                           one);
        if (one != 0 && all != 0 && one != all)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "open model: %s: %s differs between layers (%g and %g); use another model", path,
                           m->key, all, one);
        if (one != 0) all = one;
    }
    *out = all;
    return SEGUE_OK;
}

/* Read a row from GGUF keys; *found = 0 when absent. An array of bools is a flag per layer, which
 * read_kinds reads. */
static segue_status read_gguf(const struct sg_source *src, const struct sg_number_row *row, double *out,
                            int *found, segue_error *err)
{
    char key[160];
    int64_t count;
    int on;
    if (!row->gguf) return SEGUE_OK;
    snprintf(key, sizeof key, "%s.%s", src->arch, row->gguf);
    const struct sg_meta *m = sg_meta_find(src->archive, key);
    if (!m) return SEGUE_OK;
    *found =
        m->type != SG_META_ARRAY || m->item != SG_META_BOOL;
    if (!*found) return SEGUE_OK;
    if (m->type == SG_META_ARRAY) return read_array(m, src, row->kind != SG_NUMBER_REAL, out, err);
    if (row->kind == SG_NUMBER_REAL) return sg_meta_float(src->archive, key, 0, out, err);
    if (row->kind == SG_NUMBER_FLAG) {
        SG_TRY(sg_meta_bool(src->archive, key, 0, &on, err));
        count = on;
    } else {
        SG_TRY(sg_meta_int(src->archive, key, 0, &count, err));
    }
    *out = (double)count;
    return SEGUE_OK;
}

/* Fails because a value is out of bounds. The message has the key as the file spells it, so that
 * users can find it. Equal bounds mean that only one value is supported. */
static segue_status refuse(const struct sg_source *src, const struct sg_number_row *row, double value,
                           segue_error *err)
{
    const char *key = src->inner ? row->hf[0] : row->gguf;
    if (!key) key = row->name;
    if (row->max <= row->min)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "open model: %s: %s is %g, only %g is supported; use another model", src->path, key,
                       value, row->min);
    return sg_fail(
        err, SEGUE_EFORMAT,
        "open model: %s: %s is %g, expected %g to %g; correct or replace the file",
        src->path, key, value, row->min, row->max);
}

/* Read, check and store one row. Fallbacks are not checked: 0 may mean that the value is derived
 * later. */
static segue_status read_row(struct sg_numbers *n, const struct sg_source *src,
                             const struct sg_number_row *row, segue_error *err)
{
    double value = 0;
    int found = 0;
    SG_TRY(src->inner ? read_json(src, row, &value, &found, err) : read_gguf(src, row, &value, &found, err));
    if (!found && row->required)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s is missing; download the complete file", src->path,
                       src->inner ? row->hf[0] : row->gguf);
    if (!found) {
        store(n, row, row->fallback);
        return SEGUE_OK;
    }
    if (!(value >= row->min && value <= row->max)) return refuse(src, row, value, err);
    store(n, row, value);
    return SEGUE_OK;
}

/* --- derived numbers --- */

/* Defaults and relations that hold for all families. Divisors are not zero: their bounds were
 * checked. */
static segue_status derive(struct sg_numbers *n, const struct sg_source *src, segue_error *err)
{
    if (!n->kv_heads) n->kv_heads = n->heads;
    if (!n->head_width) {
        if (n->width % n->heads)
            return sg_fail(err, SEGUE_EFORMAT,
                           "open model: %s: width %u is not divisible by %u heads; correct or replace the file",
                           src->path, n->width, n->heads);
        n->head_width = n->width / n->heads;
    }
    if (!n->value_width) n->value_width = n->head_width;
    if (!(n->attention_scalar > 0)) n->attention_scalar = n->head_width;
    if (!(n->embed_scale > 0)) n->embed_scale = 1;
    if (n->heads % n->kv_heads)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: %u heads are not divisible by %u key-value heads; correct or replace the file",
            src->path, n->heads, n->kv_heads);
    if (n->predict_layers >= n->layers)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: %u of %u layers are prediction layers; correct or replace the file", src->path,
                       n->predict_layers, n->layers);
    /* The prediction layers are the last ones and are not loaded. */
    n->layers -= n->predict_layers;
    return SEGUE_OK;
}

/* The kind of layer i by the rule that the file gives instead of a list. No family has more than
 * one rule. */
static enum sg_layer_kind kind_by_rule(const struct sg_numbers *n, uint32_t i)
{
    if (n->full_every) return (i + 1) % n->full_every ? SG_LAYER_LINEAR : SG_LAYER_FULL;
    if (!n->window) return SG_LAYER_FULL;
    if (n->window_every) return (i + 1) % n->window_every ? SG_LAYER_SLIDING : SG_LAYER_FULL;
    return i >= n->window_from ? SG_LAYER_SLIDING : SG_LAYER_FULL;
}

/* An entry of layer_types in config.json. */
static segue_status kind_by_name(const struct sg_source *src, const json_t *name, uint8_t *out,
                                 segue_error *err)
{
    static const struct {
        const char *name;
        enum sg_layer_kind kind;
    } kinds[] = {{"full_attention", SG_LAYER_FULL},
                 {"sliding_attention", SG_LAYER_SLIDING},
                 {"linear_attention", SG_LAYER_LINEAR}};
    const char *text = json_is_string(name) ? json_string_value(name) : "(not a string)";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, text)) {
            *out = (uint8_t)kinds[i].kind;
            return SEGUE_OK;
        }
    return sg_fail(
        err, SEGUE_EUNSUPPORTED,
        "open model: %s: \"%.40s\" in layer_types is not supported; use a model with full, sliding or linear attention",
        src->path, text);
}

/* The GGUF array with one bool per layer, 1 for sliding layers; NULL: absent. */
static const struct sg_meta *find_pattern(const struct sg_source *src)
{
    char key[160];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", src->arch ? src->arch : "");
    const struct sg_meta *m = src->inner ? NULL : sg_meta_find(src->archive, key);
    return m && m->type == SG_META_ARRAY && m->item == SG_META_BOOL ? m : NULL;
}

/* Refuse kinds that the family's layer function cannot build. */
static segue_status check_kind(const struct sg_numbers *n, const struct sg_family *f,
                               const struct sg_source *src, uint32_t i, segue_error *err)
{
    if (n->kinds[i] == SG_LAYER_SLIDING && !n->window)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: layer %u has a sliding window of unknown size; correct or replace the file",
                       src->path, i);
    if (n->kinds[i] == SG_LAYER_LINEAR && !sg_number_find(f, "full_every"))
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "open model: %s: layer %u has linear attention, which is not supported for family %s; use another "
                       "model",
                       src->path, i, f->name);
    return SEGUE_OK;
}

/* Set n->kinds: from layer_types or the GGUF pattern if present, else by the rules. */
static segue_status read_kinds(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                               struct sg_arena *arena, segue_error *err)
{
    const json_t *types = src->inner ? json_object_get(src->inner, "layer_types") : NULL;
    const struct sg_meta *pattern = n->window ? find_pattern(src) : NULL;
    /* Some files list types for models that have one kind only: the list is then checked, but not used. */
    int listed = json_is_array(types), used = listed && (n->window || n->full_every);
    if (types && !listed && !json_is_null(types))
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: layer_types is not a list; correct or replace the file", src->path);
    if (pattern) SG_TRY(check_length(pattern, src, err));
    if (listed && json_array_size(types) != n->layers)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: layer_types has %zu entries for %u layers; correct or replace the file",
            src->path, json_array_size(types), n->layers);
    if (!(n->kinds = sg_arena_alloc(arena, n->layers))) return sg_no_memory("layer kinds", n->layers, err);
    for (uint32_t i = 0; i < n->layers; i++) {
        n->kinds[i] = (uint8_t)kind_by_rule(n, i);
        if (pattern) n->kinds[i] = sg_meta_item_int(pattern, i) ? SG_LAYER_SLIDING : SG_LAYER_FULL;
        uint8_t kind = n->kinds[i];
        if (listed) SG_TRY(kind_by_name(src, json_array_get(types, i), &kind, err));
        if (used) n->kinds[i] = kind;
        SG_TRY(check_kind(n, f, src, i, err));
    }
    return SEGUE_OK;
}

/* Order: the family's derived numbers may change the input of the general rules; kinds need the
 * window; rotary tables need the kinds' numbers. GGUF has no vocabulary size: it is the number of
 * rows of the embedding, or of tokens in a file without tensors. */
segue_status sg_numbers_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                             struct sg_arena *arena, segue_error *err)
{
    for (const struct sg_number_row *row = NULL; (row = sg_number_next(f, row));)
        SG_TRY(read_row(n, src, row, err));
    /* GGUF has no key for the vocabulary size. */
    const struct sg_tensor_row *embed = sg_tensor_find(f, SG_EMBED);
    const struct sg_tensor *table = !src->inner ? sg_archive_find(src->archive, embed->gguf) : NULL;
    const struct sg_meta *tokens = !src->inner && !table ? sg_meta_find(src->archive, "tokenizer.ggml.tokens") : NULL;
    if (table && table->rows <= (1u << 24)) n->vocab = (uint32_t)table->rows;
    if (tokens && tokens->type == SG_META_ARRAY && !n->vocab && tokens->v.a.n <= (1u << 24)) n->vocab = (uint32_t)tokens->v.a.n;
    if (!n->vocab)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: vocab_size is missing; download the complete file",
                       src->path);
    if (f->derive) SG_TRY(f->derive(n, !src->inner, err));
    SG_TRY(derive(n, src, err));
    if (sg_number_find(f, "use_window") && !n->use_window) n->window = 0;
    SG_TRY(read_kinds(n, f, src, arena, err));
    return f->learned_positions ? SEGUE_OK : sg_rotary_read(n, f, src, arena, err);
}

/* --- size expressions --- */

/* EFORMAT: a size does not fit in 32 bits. */
static segue_status bad_size(const char *expression, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: size %s: exceeds 32 bits; the file's hyperparameters are invalid, replace it",
                   expression);
}

/* Read a factor at *p, digits or the name of a hyperparameter, and advance *p. */
static segue_status factor(const struct sg_family *f, const struct sg_numbers *n, const char **p,
                           uint64_t *out, segue_error *err)
{
    const char *from = *p;
    while (isalnum((unsigned char)**p) || **p == '_') ++*p;
    if (isdigit((unsigned char)*from)) {
        *out = strtoull(from, NULL, 10);
        return SEGUE_OK;
    }
    const struct sg_number_row *row = find_row(f, from, (size_t)(*p - from));
    if (!row || row->kind == SG_NUMBER_REAL)
        return sg_fail(err, SEGUE_EINTERNAL, "open model: size %s: unknown hyperparameter of family %s; report this",
                       from, f->name);
    *out = (uint64_t)sg_number_value(n, row);
    return SEGUE_OK;
}

/* Grammar: products and quotients of factors, joined by '+', evaluated from left to right, without
 * parentheses. */
segue_status sg_size_of(const struct sg_family *f, const struct sg_numbers *n, const char *expression,
                        uint32_t *out, segue_error *err)
{
    uint64_t sum = 0, product, next;
    const char *p = expression ? expression : "1";
    for (;; p++) {
        SG_TRY(factor(f, n, &p, &product, err));
        while (*p == '*' || *p == '/') {
            char op = *p++;
            SG_TRY(factor(f, n, &p, &next, err));
            /* Both operands fit in 32 bits, so the check before the multiplication is exact. */
            if (op == '/' ? !next : (next && product > UINT32_MAX / next)) return bad_size(expression, err);
            product = op == '/' ? product / next : product * next;
        }
        sum += product;
        if (sum > UINT32_MAX) return bad_size(expression, err);
        if (*p != '+') break;
    }
    *out = (uint32_t)sum;
    return SEGUE_OK;
}
