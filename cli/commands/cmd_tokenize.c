/* cmd_tokenize.c: `segue tokenize`: text to token ids and back, for one text or one JSON value per line.
 * Input from a flag, a file or standard input; output on stdout. Exit 4 if the model has no tokenizer.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "run/placement.h"
#include "run/prompt.h"

/* The flags --no-bos and --no-special as bits of segue.h. */
static unsigned text_flags(const struct args *args)
{
    return (args_has(args, "no-bos") ? SEGUE_TEXT_NO_BOS : 0u) |
           (args_has(args, "no-special") ? SEGUE_TEXT_NO_SPECIAL : 0u);
}

/* Append the text of the ids. The result may end in the middle of a UTF-8 character. */
static segue_status detokenize(const struct placement *p, const struct prompt *ids, unsigned flags,
                               struct out_text *text, segue_error *err)
{
    segue_status st;
    OUT_GROW(*text, st,
             segue_detokenize(p->model, ids->ids, ids->n, flags, text->data, text->cap, &text->len, err));
    return st;
}

/* The text of each token. A token that is part of a UTF-8 character is shown as U+FFFD. */
static json_t *pieces_json(const struct placement *p, const struct prompt *ids)
{
    json_t *list = json_array();
    segue_error ignored;
    for (size_t i = 0; i < ids->n; i++) {
        struct prompt one = {.ids = ids->ids + i, .n = 1};
        struct out_text text = {0};
        if (detokenize(p, &one, 0, &text, &ignored)) text.len = 0;
        json_array_append_new(list, out_string(text.data, text.len));
        free(text.data);
    }
    return list;
}

/* Print the ids: separated by commas, as JSON, or one per line with its text for --pieces. The text
 * is printed as a JSON string, so that white space is visible. */
static segue_status print_ids(const struct args *args, const struct placement *p, const struct prompt *ids,
                              segue_error *err)
{
    json_t *pieces = args_has(args, "pieces") ? pieces_json(p, ids) : NULL;
    if (args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "ids", out_id_list(ids->ids, ids->n));
        json_object_set_new(o, "tokens", json_integer((json_int_t)ids->n));
        if (pieces) json_object_set_new(o, "pieces", pieces);
        return out_json(o, 0, err);
    }
    struct out_text text = {0};
    for (size_t i = 0; i < ids->n; i++) {
        if (pieces) {
            /* With quotes and escapes, so that a newline or a leading space is visible. */
            char *piece = json_dumps(json_array_get(pieces, i), JSON_ENCODE_ANY | JSON_COMPACT);
            out_addf(&text, "%d %s\n", ids->ids[i], piece ? piece : "");
            free(piece);
        } else
            out_addf(&text, "%s%d", i ? "," : "", ids->ids[i]);
    }
    if (!pieces) out_addf(&text, "\n");
    json_decref(pieces);
    segue_status st = out_write(text.data ? text.data : "", text.len, err);
    free(text.data);
    return st;
}

/* --jsonl: convert one line: a JSON string to an array of ids, or the reverse with --detokenize.
 * number: of the line, for errors. */
static segue_status convert_line(const struct args *args, const struct placement *p, const char *line, size_t len,
                             size_t number, segue_error *err)
{
    bool reverse = args_has(args, "detokenize");
    /* Text may contain NUL bytes. */
    json_t *in = out_json_load(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), *out = NULL;
    struct prompt ids = {0};
    segue_status st = SEGUE_OK;
    if (reverse ? !json_is_array(in) : !json_is_string(in))
        st = out_fail(err, SEGUE_EFORMAT, "tokenize: line %zu: not a JSON %s; expected one per line", number,
                      reverse ? "array of ids" : "string");
    else if (reverse) {
        struct out_text text = {0};
        ids.ids = out_alloc((json_array_size(in) + 1) * sizeof *ids.ids);
        for (; ids.n < json_array_size(in); ids.n++) {
            /* A value that is not a token id becomes -1, which the library rejects. */
            json_int_t v = json_integer_value(json_array_get(in, ids.n));
            ids.ids[ids.n] = v < -1 || v > INT32_MAX ? -1 : (int32_t)v;
        }
        st = detokenize(p, &ids, text_flags(args), &text, err);
        if (!st) out = out_string(text.data, text.len);
        free(text.data);
    } else {
        st = prompt_tokenize(p->model, json_string_value(in), json_string_length(in), text_flags(args),
                             SIZE_MAX, &ids, err);
        if (!st) out = out_id_list(ids.ids, ids.n);
    }
    if (!st) {
        char *text = json_dumps(out, JSON_COMPACT | JSON_ENCODE_ANY);
        /* Buffered output, because a file may have millions of lines; flushed at the end. */
        if (!text || fputs(text, stdout) < 0 || fputc('\n', stdout) < 0)
            st = out_fail_errno(err, "writing the answer", "standard output", NULL);
        free(text);
    }
    json_decref(out);
    json_decref(in);
    prompt_free(&ids);
    return st;
}

/* --jsonl: convert every line of the input; empty lines are skipped. The first invalid line ends the
 * command. */
static segue_status tokenize_lines(const struct args *args, const struct placement *p, segue_error *err)
{
    const char *path = args_text(args, "file");
    struct out_text in = {0};
    segue_status st = prompt_file(path ? path : "-", &in, err);
    size_t number = 0;
    for (char *s = in.data; !st && s && *s; number++) {
        /* The last line need not end with a newline. */
        char *end = memchr(s, '\n', (size_t)(in.data + in.len - s));
        size_t len = end ? (size_t)(end - s) : (size_t)(in.data + in.len - s);
        if (len) st = convert_line(args, p, s, len, number + 1, err);
        s = end ? end + 1 : NULL;
    }
    free(in.data);
    return st ? st : out_write("", 0, err);
}

/* --detokenize: ids from --ids, -p, -f or standard input. */
static segue_status detokenize_input(const struct args *args, const struct placement *p, segue_error *err)
{
    struct prompt ids = {0};
    struct out_text text = {0}, in = {0};
    const char *list = args_text(args, "ids");
    segue_status st = SEGUE_OK;
    /* Without --ids the text of the input is parsed as a list of ids. */
    if (!list) {
        const char *path = args_text(args, "file");
        if (args_has(args, "prompt"))
            out_addf(&in, "%s", args_text(args, "prompt"));
        else
            st = prompt_file(path ? path : "-", &in, err);
        list = in.data;
    }
    if (!st) st = prompt_ids(list, p->info.vocab, &ids, err);
    if (!st) st = detokenize(p, &ids, text_flags(args), &text, err);
    if (!st && args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "text", out_string(text.data, text.len));
        st = out_json(o, 0, err);
    } else if (!st)
        st = out_write(text.data, text.len, err);
    free(in.data);
    free(text.data);
    prompt_free(&ids);
    return st;
}

/* Text from -p, -f or standard input. */
static segue_status tokenize_input(const struct args *args, const struct placement *p, segue_error *err)
{
    const char *prompt = args_text(args, "prompt"), *path = args_text(args, "file");
    struct out_text in = {0};
    struct prompt ids = {0};
    segue_status st = SEGUE_OK;
    if (prompt)
        out_addf(&in, "%s", prompt);
    else
        st = prompt_file(path ? path : "-", &in, err);
    if (!st) st = prompt_tokenize(p->model, in.data, in.len, text_flags(args), SIZE_MAX, &ids, err);
    if (!st) st = print_ids(args, p, &ids, err);
    free(in.data);
    prompt_free(&ids);
    return st;
}

/* More than one source of the text is an error, because one of them would be ignored. */
static segue_status check_sources(const struct args *args, segue_error *err)
{
    static const char *const sources[] = {"prompt", "file", "ids"};
    const char *given = NULL;
    for (size_t i = 0; i < 3; i++) {
        if (!args_has(args, sources[i])) continue;
        if (given) return out_fail(err, SEGUE_EARG, "tokenize: --%s and --%s: two texts given; use one", given, sources[i]);
        given = sources[i];
    }
    if (args_has(args, "ids") && !args_has(args, "detokenize"))
        return out_fail(err, SEGUE_EARG, "flag --ids: only with --detokenize; add it");
    if (args_has(args, "jsonl") && (args_has(args, "prompt") || args_has(args, "ids")))
        return out_fail(err, SEGUE_EARG, "flag --jsonl: reads --file or standard input; remove --%s", given);
    return SEGUE_OK;
}

/* Only the tokenizer of the model is needed: no unit is opened and no weights are read. */
static int run(struct args *args)
{
    struct placement p;
    segue_error err;
    if (check_sources(args, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    int code = placement_open_model(&p, args);
    if (code) return code;
    segue_status st;
    if (!p.info.has_tokenizer)
        st = out_fail(&err, SEGUE_EUNSUPPORTED,
                      "tokenize: %.300s: the model has no tokenizer; choose another model", p.path);
    else if (args_has(args, "jsonl"))
        st = tokenize_lines(args, &p, &err);
    else
        st = args_has(args, "detokenize") ? detokenize_input(args, &p, &err) : tokenize_input(args, &p, &err);
    if (st) code = out_error(&err, EXIT_BAD_INPUT);
    placement_close(&p);
    return code;
}

/* Flags of tokenize only. */
static const struct arg_def flag_defs[] = {
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "text to tokenize"},
    {"file", 'f', ARG_FILE, 0, "FILE", "standard input", 0, 0, "read the text from a file"},
    {"ids", 0, ARG_TEXT, 0, "1,2,3|@FILE", NULL, 0, 0, "token ids, with --detokenize"},
    {"jsonl", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "read one JSON string per line, write one array of ids per line"},
    {"pieces", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "print the text of each token"},
    {"no-special", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0,
     "treat special tokens in the text as plain text; with --detokenize omit them"},
    {"no-bos", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "do not add BOS and EOS tokens"},
    {"detokenize", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "convert token ids to text"},
    ARG_END};
static const struct arg_group command_flags = {"Text", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_tokenize = {
    .name = "tokenize",
    .summary = "convert text to token ids and back",
    .groups = groups,
    .example = "segue tokenize -p 'Hello world' --pieces",
    .run = run,
    .about = "Prints the token ids of a text, separated by commas; with --json an object with ids and tokens (their "
             "number). With --jsonl it reads one JSON string per line and writes one array of ids per line."};
