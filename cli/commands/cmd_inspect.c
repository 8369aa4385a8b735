/* cmd_inspect.c: `segue inspect`: metadata of a model file. The weights are read for their id only, once per file.
 * The text output is built from the JSON description of the library.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "host/folders.h"
#include "term/flags.h"
#include "term/progress.h"
#include "run/placement.h"

/* Text or JSON that the library produces; what: SEGUE_DESCRIBE_*. JSON contains the weights id, which is looked up in the
 * cache folder first. */
static segue_status describe(const segue_model *model, int what, struct out_text *text, segue_error *err)
{
    segue_status st = SEGUE_OK;
    char id[33], *cache = what == SEGUE_DESCRIBE_JSON ? folders_home("cache") : NULL;
    struct progress_wait *wait = cache ? progress_wait_begin("reading the weights for their id", false) : NULL;
    if (cache) st = segue_model_weights_id(model, cache, id, err);
    progress_wait_end(wait);
    free(cache);
    if (st) return st;
    OUT_GROW(*text, st, segue_model_describe(model, what, text->data, text->cap, &text->len, err));
    return st;
}

/* A string field of the description; "-" if it is missing. */
static const char *string_field(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "-";
}

/* Line with the number of tensors per data type, in the order of the file. */
static void add_storage_counts(struct out_text *t, const json_t *tensors)
{
    json_t *counts = json_object();
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const char *storage = string_field(json_array_get(tensors, i), "storage");
        /* A JSON object keeps the order of insertion. */
        json_object_set_new(counts, storage,
                            json_integer(1 + json_integer_value(json_object_get(counts, storage))));
    }
    const char *name;
    json_t *n;
    out_addf(t, "tensors    %zu:", json_array_size(tensors));
    json_object_foreach(counts, name, n)
        out_addf(t, " %" JSON_INTEGER_FORMAT " %s", json_integer_value(n), name);
    out_addf(t, "\n");
    json_decref(counts);
}

/* The text output: one line per group, hyperparameters wrapped at 100 columns. Long lists of numbers
 * are omitted. */
static void print_summary(struct out_text *t, const json_t *o, const segue_model_info *info)
{
    /* Hyperparameters under the names of the file format. */
    const json_t *numbers = json_object_get(o, "numbers"), *tokenizer = json_object_get(o, "tokenizer");
    out_addf(t, "path       %s\nfamily     %s\nformat     %s, mostly %s\n", string_field(o, "path"),
             string_field(o, "family"), string_field(o, "format"), info->storage ? info->storage : "-");
    out_addf(t, "shape_id   %s\nweights_id %s\nnumbers   ", info->shape_id, string_field(o, "weights_id"));
    const char *name;
    json_t *v;
    size_t column = 11;
    json_object_foreach((json_t *)(uintptr_t)numbers, name, v)
    {
        /* Arrays, such as one number per layer, are printed if they are short. */
        char *value = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (value && strlen(value) < 60) {
            if (column + strlen(name) + strlen(value) + 2 > 100) out_addf(t, "\n          "), column = 10;
            out_addf(t, " %s=%s", name, value);
            column += strlen(name) + strlen(value) + 2;
        }
        free(value);
    }
    out_addf(t, "\n");
    add_storage_counts(t, json_object_get(o, "tensors"));
    if (json_is_object(tokenizer))
        out_addf(t, "tokenizer  %s, %s, %u tokens, bos %d, eos %d, chat template %s\n",
                 string_field(tokenizer, "kind"), string_field(tokenizer, "pre"), info->vocab, info->bos, info->eos,
                 info->has_template ? "yes" : "no");
    else
        out_addf(t, "tokenizer  none: use token ids\n");
    out_addf(t, "memory     weights %.1f MB, state %.1f MB + %.1f kB per token\n",
             (double)info->weight_bytes / 1e6, (double)info->state_fixed_bytes / 1e6,
             (double)info->state_token_bytes / 1e3);
}

/* Build the text from the JSON description, so that both have the same content. tensors: append one
 * line per tensor. */
static segue_status describe_as_text(const struct placement *p, bool tensors, struct out_text *out, segue_error *err)
{
    struct out_text json = {0};
    segue_status st = describe(p->model, SEGUE_DESCRIBE_JSON, &json, err);
    json_t *o = st ? NULL : json_loadb(json.data, json.len, 0, NULL);
    free(json.data);
    if (st) return st;
    if (!o)
        return out_fail(err, SEGUE_EINTERNAL, "inspect: %.300s: the library returned invalid JSON; report this as a bug",
                        p->path);
    print_summary(out, o, &p->info);
    const json_t *list = json_object_get(o, "tensors");
    for (size_t i = 0; tensors && i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        /* Dimensions as a JSON list, for example [2048,576]. */
        char *shape = json_dumps(json_object_get(t, "shape"), JSON_COMPACT | JSON_ENCODE_ANY);
        out_addf(out, "%-6s %-18s %s\n", string_field(t, "storage"), shape ? shape : "-", string_field(t, "name"));
        free(shape);
    }
    json_decref(o);
    return SEGUE_OK;
}

/* --graph and --template replace the summary by one text. */
static int run(struct args *args)
{
    struct placement p;
    segue_error err;
    struct out_text text = {0};
    int code = placement_open_model(&p, args);
    if (code) return code;
    /* --graph takes precedence over --template. */
    bool json = args_has(args, "json"), graph = args_has(args, "graph"),
         template = args_has(args, "template");
    segue_status st;
    if (graph || template) {
        st = describe(p.model, graph ? SEGUE_DESCRIBE_GRAPH : SEGUE_DESCRIBE_TEMPLATE, &text, &err);
        if (!st && json) {
            json_t *o = json_object();
            json_object_set_new(o, graph ? "graph" : "template", out_string(text.data, text.len));
            st = out_json(o, 0, &err);
            text.len = 0;
        }
    } else if (json)
        st = describe(p.model, SEGUE_DESCRIBE_JSON, &text, &err);
    else
        st = describe_as_text(&p, args_has(args, "tensors"), &text, &err);
    if (!st && text.len) {
        /* Templates often have no final newline. */
        if (text.data[text.len - 1] != '\n') out_add(&text, "\n", 1);
        st = out_write(text.data, text.len, &err);
    }
    if (st) code = out_error(&err, EXIT_BAD_INPUT);
    free(text.data);
    placement_close(&p);
    return code;
}

/* Flags of inspect only. */
static const struct arg_def flag_defs[] = {
    {"tensors", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "list every tensor"},
    {"graph", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "print the operations of the graph, one per line"},
    {"template", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "print the source of the chat template"},
    ARG_END};
static const struct arg_group command_flags = {"Selection", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_inspect = {.name = "inspect",
                                    .summary = "show the metadata of a model file",
                                    .groups = groups,
                                    .example = "segue inspect --tensors",
                                    .run = run,
                                    .about = "Prints the family, format, hyperparameters, tensors, tokenizer and memory "
                                             "needs of a model. The id of the weights covers every byte; it is "
                                             "computed once per file and remembered in the cache folder."};
