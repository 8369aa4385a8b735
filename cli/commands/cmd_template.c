/* cmd_template.c: `segue template`: render messages with a chat template, of a model or of a file.
 * Input: messages in JSON; output: the rendered text. Exit 4 for invalid messages and templates.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "run/placement.h"
#include "run/prompt.h"

/* Where the template comes from: a model, or the text of --template. */
struct template_source {
    struct placement placement; /* placement.model NULL: use text */
    struct out_text text;
    const char *bos, *eos;      /* of --bos and --eos, for a text */
};

/* Render one request. The template of a model uses the BOS and EOS of the model. */
static segue_status render(const struct template_source *s, const json_t *request, struct out_text *out,
                           segue_error *err)
{
    if (s->placement.model) return prompt_render(s->placement.model, request, out, err);
    /* 17 significant digits keep every double exact. */
    char *text = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text) return out_fail(err, SEGUE_EMEMORY, "chat template: request: out of memory; shorten the conversation");
    segue_status st;
    OUT_GROW(*out, st,
             segue_template_render(s->text.data, s->text.len, text, strlen(text), s->bos, s->eos, out->data,
                                   out->cap, &out->len, err));
    free(text);
    return st;
}

/* --jsonl: one request per line; one JSON string or one error object per line. All lines are processed; the exit code is
 * that of the first failure. */
static segue_status render_lines(const struct args *args, const struct template_source *s, segue_error *err)
{
    const char *path = args_text(args, "messages");
    struct out_text in = {0};
    segue_status st = prompt_file(path ? path : "-", &in, err), first_status = SEGUE_OK;
    segue_error line_err, first;
    for (char *at = in.data; !st && at && at < in.data + in.len;) {
        char *end = memchr(at, '\n', (size_t)(in.data + in.len - at));
        size_t len = end ? (size_t)(end - at) : (size_t)(in.data + in.len - at);
        /* Empty lines are skipped. */
        json_t *request = len ? out_json_load(at, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
        /* A list of messages is short for an object with "messages". */
        if (json_is_array(request)) {
            json_t *object = json_object();
            json_object_set_new(object, "messages", request);
            request = object;
        }
        if (len) {
            struct out_text text = {0};
            segue_status line_status = request ? render(s, request, &text, &line_err)
                                       : out_fail(&line_err, SEGUE_EFORMAT,
                                                  "template: a line of the input is not JSON; expected one "
                                                  "request per line");
            /* Keep the first failure for the line on stderr. */
            if (line_status && !first_status) first = line_err;
            if (line_status && !first_status) first_status = line_status;
            st = out_json(line_status ? out_error_json(&line_err, EXIT_BAD_INPUT) : out_string(text.data, text.len), 0, err);
            free(text.data);
        }
        json_decref(request);
        at = end ? end + 1 : NULL;
    }
    free(in.data);
    /* The error object was already printed as the output of its line. */
    if (!st && first_status) {
        *err = first;
        out_json_errors(false);
    }
    return st ? st : first_status;
}

/* One request; the result is printed byte by byte as rendered. */
static segue_status render_one(const struct args *args, const struct template_source *s, segue_error *err)
{
    const char *path = args_text(args, "messages");
    json_t *request = NULL;
    struct out_text text = {0};
    segue_status st = prompt_messages(path ? path : "-", &request, err);
    if (st) return st;
    prompt_set_thinking(request, args);
    st = render(s, request, &text, err);
    json_decref(request);
    if (!st && args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "text", out_string(text.data, text.len));
        st = out_json(o, 0, err);
    } else if (!st)
        st = out_write(text.data, text.len, err);
    free(text.data);
    return st;
}

/* Without --template the template of the model is used. */
static int run(struct args *args)
{
    struct template_source s = {.bos = args_text(args, "bos"), .eos = args_text(args, "eos")};
    segue_error err;
    segue_status st = SEGUE_OK;
    const char *file = args_text(args, "template");
    int code = EXIT_DONE;
    /* Otherwise one of the two would be ignored. */
    if (file && args_has(args, "model"))
        st = out_fail(&err, SEGUE_EARG, "template: --template and --model: two templates given; use one");
    else if (file)
        st = prompt_file(file, &s.text, &err);
    else
        code = placement_open_model(&s.placement, args);
    if (code) return code;
    if (!st) st = args_has(args, "jsonl") ? render_lines(args, &s, &err) : render_one(args, &s, &err);
    if (st) {
        /* A template that exceeds a bound is invalid input (exit 4), not a lack of memory (exit 5). */
        if (st == SEGUE_ELIMIT) err.status = SEGUE_EFORMAT;
        code = out_error(&err, EXIT_BAD_INPUT);
    }
    free(s.text.data);
    placement_close(&s.placement);
    return code;
}

/* Flags of template only. */
static const struct arg_def flag_defs[] = {
    {"template", 0, ARG_FILE, 0, "FILE", "of the model", 0, 0,
     "use a template file instead of the model's template"},
    {"messages", 0, ARG_FILE, 0, "FILE", "standard input", 0, 0,
     "request: a list of messages, or an object with messages, tools and other variables"},
    {"jsonl", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "read one request per line, write one JSON string per line"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "set by the template", 0, 0, "set enable_thinking"},
    {"bos", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "value of bos_token, with --template"},
    {"eos", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "value of eos_token, with --template"},
    ARG_END};
static const struct arg_group command_flags = {"Template", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_template = {.name = "template",
                                     .summary = "render messages with a chat template",
                                     .groups = groups,
                                     .example =
                                         "echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | segue template",
                                     .run = run,
                                     .about = "Renders a chat template with the given messages and prints the result "
                                              "without a final newline. Limits: 10000000 steps, nesting depth 200, 16 MB "
                                              "of output; a template that exceeds one is rejected with exit 4."};
