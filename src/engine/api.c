/* api.c: functions of segue.h for models, adapters, tokens and text. They check their arguments and call src/model and src/text;
 * pointers, sizes and ranges are not checked again below. include/segue.h describes the functions.
 * SPDX-License-Identifier: MIT */
#include "engine/sized.h"
#include "model/adapter.h"
#include "model/model.h"

/* Failures are numbered downwards from -1, so that -status is the index of its name. */
const char *segue_status_name(segue_status status)
{
    static const char *const failures[] = {"ok",   "argument", "memory", "io",       "format",  "unsupported",
                                           "unit", "lost",     "limit",  "canceled", "internal"};
    if (status == SEGUE_END) return "end";
    if (status > SEGUE_OK || status < SEGUE_EINTERNAL) return "unknown";
    return failures[-(int)status];
}

/* --- models --- */

segue_status segue_model_open(segue_model **out, const char *path, const segue_model_opts *opts,
                              segue_error *err)
{
    segue_model_opts o;
    if (!out || !path || !*path)
        return sg_fail(err, SEGUE_EARG, "model not opened: out or path missing; pass both");
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "model options", err));
    return sg_model_open(out, path, &o, err);
}

void segue_model_close(segue_model *model)
{
    if (model) sg_model_unref(model);
}

segue_status segue_model_info_get(const segue_model *model, segue_model_info *out, segue_error *err)
{
    if (!model) return sg_fail(err, SEGUE_EARG, "model info not read: the model is NULL; open one");
    segue_model_info info = model->info;
    struct sg_hash weights;
    if (sg_weights_id_known(model->weights_id, &weights)) sg_hash_hex(weights, info.weights_id);
    return sg_sized_out(out, &info, sizeof info, "model info", err);
}

segue_status segue_model_weights_id(const segue_model *model, const char *cache, char id[33], segue_error *err)
{
    struct sg_hash weights;
    if (!model || !id) return sg_fail(err, SEGUE_EARG, "weights not identified: model or id is NULL; pass both");
    sg_weights_id_begin(model->weights_id, cache && *cache ? cache : NULL);
    SG_TRY(sg_weights_id_wait(model->weights_id, &weights, err));
    sg_hash_hex(weights, id);
    return SEGUE_OK;
}

/* EARG for a pointer that must not be NULL. Optional buffers may be NULL if their capacity is 0. */
static segue_status null_argument(const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EARG, "%s: an argument is NULL; pass the object, the input and buffers for the result", what);
}

/* Copies the buffer to the caller: *len is the full length; ELIMIT if it exceeds cap. Frees the buffer in every case. */
static segue_status hand_out(struct sg_buf *b, segue_status status, char *text, size_t cap, size_t *len,
                             const char *what, segue_error *err)
{
    if (status == SEGUE_OK && b->failed)
        status = sg_fail(err, b->failed, "%s: out of memory for the text; free memory", what);
    if (status == SEGUE_OK) status = sg_text_out(b->data ? b->data : "", b->len, text, cap, len, what, err);
    sg_buf_free(b);
    return status;
}

segue_status segue_model_describe(const segue_model *model, segue_describe what, char *text, size_t cap, size_t *len,
                                  segue_error *err)
{
    struct sg_buf b = {0};
    if (!model || !len || (cap && !text)) return null_argument("model not described", err);
    if ((unsigned)what > SEGUE_DESCRIBE_TEMPLATE)
        return sg_fail(err, SEGUE_EARG, "model not described: form %d does not exist; use SEGUE_DESCRIBE_*", (int)what);
    return hand_out(&b, sg_model_describe(model, (int)what, &b, err), text, cap, len, "description of a model",
                    err);
}

/* --- adapters --- */

segue_status segue_adapter_open(segue_adapter **out, const segue_model *model, const char *path, float scale,
                                segue_error *err)
{
    if (!out || !model || !path || !*path) return null_argument("adapter not opened", err);
    /* Rejects NaN as well, for which every comparison is false. */
    if (!(scale > -1e6f && scale < 1e6f))
        return sg_fail(err, SEGUE_EARG, "adapter not opened: %s: scale %g is out of range; take one near 1",
                       path, (double)scale);
    return sg_adapter_open(out, model, path, scale, err);
}

void segue_adapter_close(segue_adapter *adapter)
{
    if (adapter) sg_adapter_unref(adapter);
}

/* --- text --- */

/* EUNSUPPORTED for models without a vocabulary, such as a folder without tokenizer.json; token ids still work. */
static segue_status need_tokenizer(const segue_model *model, const char *what, segue_error *err)
{
    if (model->tokenizer) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "%s: %s: it has no tokenizer; use token ids", what,
                   model->info.path);
}

segue_status segue_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                            int32_t *tokens, size_t cap, size_t *n, segue_error *err)
{
    if (!model || (len && !text) || (cap && !tokens) || !n) return null_argument("text not tokenized", err);
    SG_TRY(need_tokenizer(model, "text not tokenized", err));
    return sg_tokenize(model->tokenizer, text ? text : "", len, flags, tokens, cap, n, err);
}

segue_status segue_detokenize(const segue_model *model, const int32_t *tokens, size_t n, unsigned flags,
                              char *text, size_t cap, size_t *len, segue_error *err)
{
    if (!model || (n && !tokens) || (cap && !text) || !len) return null_argument("tokens not detokenized", err);
    SG_TRY(need_tokenizer(model, "tokens not detokenized", err));
    return sg_detokenize(model->tokenizer, tokens, n, flags, text, cap, len, err);
}

segue_status segue_text_next(const segue_model *model, segue_text *state, int32_t token, char *text,
                             size_t cap, size_t *len, segue_error *err)
{
    if (!model || !state || !text || !cap || !len || (state->stops_n && !state->stops))
        return null_argument("token not turned into text", err);
    if (state->size < sizeof *state)
        return sg_fail(err, SEGUE_EARG,
                       "token not turned into text: size of the state is not set; use SEGUE_INIT");
    /* The caller owns the state, so its fields are checked before they index memory. */
    if (state->priv.held > sizeof state->priv.bytes)
        return sg_fail(err, SEGUE_EARG,
                       "token not turned into text: the state is damaged; zero priv before the first call");
    SG_TRY(need_tokenizer(model, "token not turned into text", err));
    return sg_text_next(model->tokenizer, state, token, text, cap, len, err);
}
