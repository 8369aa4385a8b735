/* cmd_template.c: `segue template`: the bytes that a chat template renders.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "task/placement.h"
#include "task/prompt.h"

struct source {
    struct place place;   /* with a model */
    struct out_text text; /* with --template FILE */
    const char *bos, *eos;
};

/* By the model's own template with its BOS and EOS, or by the file's with those of the flags. */
static segue_status render(const struct source *s, const json_t *request, struct out_text *out,
                           segue_error *err)
{
    if (s->place.model) return prompt_render(s->place.model, request, out, err);
    char *text = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text) return out_fail(err, SEGUE_EMEMORY, "chat template: request: out of memory; shorten it");
    segue_status st;
    OUT_GROW(*out, st,
             segue_template_render(s->text.data, s->text.len, text, strlen(text), s->bos, s->eos, out->data,
                                   out->cap, &out->len, err));
    free(text);
    return st;
}

/* One request a line in; one JSON string, or one error object, a line out. */
static segue_status lines(const struct args *args, const struct source *s, segue_error *err)
{
    const char *path = args_text(args, "messages");
    struct out_text in = {0};
    segue_status st = prompt_file(path ? path : "-", &in, err), worst = SEGUE_OK;
    segue_error why, first;
    for (char *at = in.data; !st && at && at < in.data + in.len;) {
        char *end = memchr(at, '\n', (size_t)(in.data + in.len - at));
        size_t len = end ? (size_t)(end - at) : (size_t)(in.data + in.len - at);
        json_t *request = len ? json_loadb(at, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
        if (json_is_array(request)) {
            json_t *object = json_object();
            json_object_set_new(object, "messages", request);
            request = object;
        }
        if (len) {
            struct out_text text = {0};
            segue_status one = request ? render(s, request, &text, &why)
                                       : out_fail(&why, SEGUE_EFORMAT,
                                                  "template: a line of the input: not JSON; give "
                                                  "one request a line");
            if (one && !worst) first = why;
            if (one && !worst) worst = one;
            st = out_json(one ? out_error_json(&why, EXIT_REFUSED) : out_string(text.data, text.len), 0, err);
            free(text.data);
        }
        json_decref(request);
        at = end ? end + 1 : NULL;
    }
    free(in.data);
    if (!st && worst) {
        *err = first;
        out_json_errors(false);
    }
    return st ? st : worst;
}

static segue_status once(const struct args *args, const struct source *s, segue_error *err)
{
    const char *path = args_text(args, "messages");
    json_t *request = NULL;
    struct out_text text = {0};
    segue_status st = prompt_messages(path ? path : "-", &request, err);
    if (st) return st;
    prompt_think(request, args);
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

static int run(struct args *args)
{
    struct source s = {.bos = args_text(args, "bos"), .eos = args_text(args, "eos")};
    segue_error err;
    segue_status st = SEGUE_OK;
    const char *file = args_text(args, "template");
    int code = EXIT_DONE;
    if (file && args_has(args, "model"))
        st = out_fail(&err, SEGUE_EARG, "template: --template and --model: two templates; give one");
    else if (file)
        st = prompt_file(file, &s.text, &err);
    else
        code = place_open_model(&s.place, args);
    if (code) return code;
    if (!st) st = args_has(args, "jsonl") ? lines(args, &s, &err) : once(args, &s, &err);
    if (st) {
        /* A template that loops or grows is a refused input, not a lack of room. */
        if (st == SEGUE_ELIMIT) err.status = SEGUE_EFORMAT;
        code = out_error(&err, EXIT_REFUSED);
    }
    free(s.text.data);
    place_close(&s.place);
    return code;
}

static const struct arg_def own_defs[] = {
    {"template", 0, ARG_FILE, 0, "FILE", "the model's own", 0, 0,
     "a template in a file instead of a model's"},
    {"messages", 0, ARG_FILE, 0, "FILE", "standard input", 0, 0,
     "the request: a list of messages, or an object with messages, tools and other variables"},
    {"jsonl", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "one request a line in, one JSON string a line out"},
    {"think", 0, ARG_CHOICE, 0, "on|off", "the template's", 0, 0, "set enable_thinking"},
    {"bos", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "bos_token, with --template"},
    {"eos", 0, ARG_TEXT, 0, "TEXT", NULL, 0, 0, "eos_token, with --template"},
    ARG_END};
static const struct arg_group own = {"Template", own_defs};
static const struct arg_group *const groups[] = {&own, &flags_model, &flags_output, NULL};
const struct command cmd_template = {.name = "template",
                                     .summary = "show what a chat template makes of messages",
                                     .groups = groups,
                                     .example =
                                         "echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | segue template",
                                     .run = run,
                                     .about = "Renders a chat template with messages and prints the bytes. "
                                              "Bounds: 10000000 steps, depth 200, 16 MB of "
                                              "output; beyond them the template is refused with exit 4."};
