/* cmd_quantize.c: `segue quantize`: a model written as GGUF in another storage. The one command beside inspect that looks
 * behind the public header: a program that makes files needs the writer.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "model/export.h"
#include "run/placement.h"
#include "term/progress.h"

static const char types[] = "f32|f16|bf16|q8_0|q6_k|q5_1|q5_0|q4_k|q4_1|q4_0";

static enum sg_storage storage_of(const char *name)
{
    for (enum sg_storage s = SG_F32; s < SG_STORAGE_N; s++)
        if (!strcmp(sg_storage_info(s)->name, name)) return s;
    return SG_STORAGE_N;
}

struct quantize_stats {
    uint64_t bytes;
    uint32_t counts[SG_STORAGE_N];
    json_t *fallbacks;
};

static void count_item(struct quantize_stats *t, const struct sg_export_item *item, bool quiet)
{
    const char *to = sg_storage_info(item->to)->name;
    t->bytes += item->bytes;
    t->counts[item->to]++;
    if (!item->fallback) return;
    json_array_append_new(t->fallbacks, json_pack("{s:s,s:s}", "name", item->name, "storage", to));
    if (!quiet) out_note("%s: its rows do not divide into blocks of the type; written as %s", item->name, to);
}

static segue_status write_all(struct sg_export *e, struct quantize_stats *t, bool quiet, segue_error *err)
{
    struct progress progress;
    struct sg_export_item item;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "quantize", quiet);
    for (uint32_t i = 0; st == SEGUE_OK; i++) {
        progress_step(&progress, i, sg_export_count(e), false);
        st = interrupt_pending() ? out_fail(err, SEGUE_ECANCELED, "quantize: interrupted: nothing was written; start again")
                              : sg_export_next(e, &item, err);
        if (st == SEGUE_OK) count_item(t, &item, quiet);
    }
    progress_end(&progress);
    return st == SEGUE_END ? SEGUE_OK : st;
}

static int report(const struct quantize_stats *t, const char *path, bool json)
{
    json_t *storages = json_object();
    for (enum sg_storage s = SG_F32; s < SG_STORAGE_N; s++)
        if (t->counts[s]) json_object_set_new(storages, sg_storage_info(s)->name, json_integer(t->counts[s]));
    if (json)
        return out_json_exit(json_pack("{s:s,s:I,s:o,s:O}", "path", path, "tensor_bytes", (json_int_t)t->bytes, "storages",
                                       storages, "fallbacks", t->fallbacks));
    out_note("%s: %.1f MB of tensors", path, (double)t->bytes / 1e6);
    json_decref(storages);
    return EXIT_DONE;
}

static int run(struct args *args)
{
    struct placement p;
    segue_error err;
    struct sg_export *e = NULL;
    struct quantize_stats quantize_stats = {0};
    const char *out = args_text(args, "output"), *type = args_text(args, "type");
    bool json = args_has(args, "json");
    if (!out || !type) {
        out_fail(&err, SEGUE_EARG, "quantize: %s is missing; give -o OUT.gguf and --type TYPE", out ? "--type" : "-o");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    int code = placement_open_model(&p, args);
    if (code) return code;
    quantize_stats.fallbacks = json_array();
    segue_status st = sg_export_open(&e, p.model, out, storage_of(type), &err);
    if (!st) st = write_all(e, &quantize_stats, json, &err);
    code = st ? out_error(&err, EXIT_BAD_INPUT) : report(&quantize_stats, out, json);
    json_decref(quantize_stats.fallbacks);
    sg_export_close(e);
    placement_close(&p);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "OUT.gguf", NULL, 0, 0, "output file"},
    {"type", 0, ARG_CHOICE, 0, types, NULL, 0, 0, "data type of the matrices"},
    ARG_END};
static const struct arg_group command_flags = {"What", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_quantize = {
    .name = "quantize", .summary = "convert a model to a GGUF file of another data type", .groups = groups,
    .example = "segue quantize -m model.gguf -o model-q8.gguf --type q8_0", .run = run,
    .about = "Reads any model that segue opens and writes a GGUF whose matrices have the type; vectors, convolutions and "
             "position tables stay f32, and the head (or the embedding that serves as one) takes q6_k beside 4- and 5-bit "
             "types. Rows that do not divide into blocks take the type that llama.cpp takes, and are listed. Tokenizer and chat "
             "template go along. The file appears only when it is whole."};
