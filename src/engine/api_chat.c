/* api_chat.c: functions of segue.h for chat templates. A request in JSON (messages, tools, flags) becomes the variables of the
 * template. Rendering has limits of steps and memory, because templates come from model files and are not trusted.
 * SPDX-License-Identifier: MIT */
#include "model/model.h"
#include "tensor/json.h"
#include "text/chat_content.h"
#include "text/chat_request.h"

enum { REQUEST_MAX = 64 << 20 }; /* bytes of JSON; bounds memory and time of a hostile request */

/* Renders t with the request. adapt: change message contents that the template cannot read. bos, eos: texts of the tokens that
 * templates may print. text, cap, len as in segue_chat_format. EFORMAT: the request is invalid, or the template fails; ELIMIT:
 * the request or the rendering exceeds a limit. */
static segue_status render(const struct sg_template *t, int adapt, const char *request, size_t request_len,
                           const char *bos, const char *eos, char *text, size_t cap, size_t *len,
                           segue_error *err)
{
    json_t *asked = NULL, *vars = NULL;
    struct sg_buf b = {0};
    if (request_len > REQUEST_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "chat not rendered: request of %zu bytes: at most %d; shorten it",
                       request_len, REQUEST_MAX);
    SG_TRY(sg_json_parse(&asked, request, request_len, "request of a chat", err));
    segue_status status = sg_chat_request(asked, bos, eos, &vars, err);
    if (status == SEGUE_OK && adapt) status = sg_chat_content(t, vars, bos, eos, err);
    if (status == SEGUE_OK) status = sg_template_render(t, vars, -1, NULL, &b, err);
    if (status == SEGUE_OK)
        status = sg_text_out(b.data ? b.data : "", b.len, text, cap, len, "rendered chat", err);
    json_decref(vars);
    json_decref(asked);
    sg_buf_free(&b);
    return status;
}

segue_status segue_chat_format(const segue_model *model, const char *request, size_t request_len, char *text,
                               size_t cap, size_t *len, segue_error *err)
{
    struct sg_tokenizer_info info = {.bos_text = "", .eos_text = ""};
    if (!model || !request || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG,
                       "chat not rendered: an argument is NULL; pass model, request and len");
    /* A template that does not parse must not prevent the use of the model, so its error is kept until a chat needs it. */
    if (model->chat_error.status != SEGUE_OK)
        return sg_fail(err, model->chat_error.status, "%s", model->chat_error.text);
    if (!model->chat)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "chat not rendered: %s: it has no chat template; pass the prompt unchanged",
                       model->info.path);
    if (model->tokenizer) sg_tokenizer_info_get(model->tokenizer, &info);
    return render(model->chat, 1, request, request_len, info.bos_text, info.eos_text, text, cap, len, err);
}

segue_status segue_template_render(const char *source, size_t source_len, const char *request,
                                   size_t request_len, const char *bos, const char *eos, char *text,
                                   size_t cap, size_t *len, segue_error *err)
{
    struct sg_template *t = NULL;
    if (!source || !request || !len || (cap && !text))
        return sg_fail(err, SEGUE_EARG,
                       "chat not rendered: an argument is NULL; pass template, request and len");
    SG_TRY(sg_template_open(&t, source, source_len, "template", err));
    segue_status status = render(t, 0, request, request_len, bos, eos, text, cap, len, err);
    sg_template_close(t);
    return status;
}
