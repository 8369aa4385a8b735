/* api_chat.c: the doors to chat templates: a request in JSON becomes the template's variables.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "model/model.h"
#include "tensor/json.h"

enum { REQUEST_MAX = 64 << 20 };

static segue_status set_text(json_t *vars, const char *key, const char *text, segue_error *err)
{
    if (json_object_get(vars, key)) return SEGUE_OK; /* what the request says stands */
    if (json_object_set_new(vars, key, json_string(text ? text : "")) == 0) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "chat not rendered: %s: it is no UTF-8 text; the tokenizer is damaged", key);
}

static segue_status fill_vars(json_t *vars, const char *bos, const char *eos, segue_error *err)
{
    if (!json_is_object(vars) || !json_is_array(json_object_get(vars, "messages")))
        return sg_fail(err, SEGUE_EFORMAT, "chat not rendered: request: no list \"messages\" in it; write {\"messages\":[...]}");
    SG_TRY(set_text(vars, "bos_token", bos, err));
    SG_TRY(set_text(vars, "eos_token", eos, err));
    if (json_object_get(vars, "add_generation_prompt")) return SEGUE_OK;
    return json_object_set_new(vars, "add_generation_prompt", json_true()) == 0
               ? SEGUE_OK
               : sg_no_memory("request of a chat", sizeof(void *), err);
}

static segue_status render(const struct sg_template *t, const char *request, size_t request_len, const char *bos,
                           const char *eos, char *text, size_t cap, size_t *len, segue_error *err)
{
    json_t *vars = NULL;
    struct sg_buf b = {0};
    if (request_len > REQUEST_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "chat not rendered: request of %zu bytes: at most %d; shorten it", request_len,
                       REQUEST_MAX);
    SG_TRY(sg_json_parse(&vars, request, request_len, "request of a chat", err));
    segue_status status = fill_vars(vars, bos, eos, err);
    if (status == SEGUE_OK) status = sg_template_render(t, vars, -1, NULL, &b, err);
    if (status == SEGUE_OK) status = sg_text_out(b.data ? b.data : "", b.len, text, cap, len, "rendered chat", err);
    json_decref(vars);
    sg_buf_free(&b);
    return status;
}

segue_status segue_chat_format(const segue_model *model, const char *request, size_t request_len, char *text, size_t cap,
                               size_t *len, segue_error *err)
{
    struct sg_tokenizer_info info = {.bos_text = "", .eos_text = ""};
    if (!model || !request || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG, "chat not rendered: an argument is NULL; pass model, request and a place");
    if (!model->chat)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "chat not rendered: %s: it has no chat template; give the prompt as it is",
                       model->info.path);
    if (model->tokenizer) sg_tokenizer_info_get(model->tokenizer, &info);
    return render(model->chat, request, request_len, info.bos_text, info.eos_text, text, cap, len, err);
}

segue_status segue_template_render(const char *source, size_t source_len, const char *request, size_t request_len,
                                   const char *bos, const char *eos, char *text, size_t cap, size_t *len, segue_error *err)
{
    struct sg_template *t = NULL;
    if (!source || !request || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG, "chat not rendered: an argument is NULL; pass template, request and a place");
    SG_TRY(sg_template_open(&t, source, source_len, "template", err));
    segue_status status = render(t, request, request_len, bos, eos, text, cap, len, err);
    sg_template_close(t);
    return status;
}
