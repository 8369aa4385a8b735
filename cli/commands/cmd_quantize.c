/* cmd_quantize.c: `segue quantize`: a model written as GGUF in another storage. The one command beside inspect that looks
 * behind the public header: a program that makes files needs the writer.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "model/export.h"
#include "task/placement.h"
#include "term/progress.h"

static const char types[] = "f32|f16|bf16|q8_0|q6_k|q5_1|q5_0|q4_k|q4_1|q4_0";

static enum sg_storage storage_of(const char *name)
{
    for (enum sg_storage s = SG_F32; s < SG_STORAGE_N; s++)
        if (!strcmp(sg_storage_info(s)->name, name)) return s;
    return SG_STORAGE_N;
}

struct tally {
    uint64_t bytes;
    uint32_t counts[SG_STORAGE_N];
    json_t *fallbacks;
};

static void note_item(struct tally *t, const struct sg_export_item *item, bool quiet)
{
    const char *to = sg_storage_info(item->to)->name;
    t->bytes += item->bytes;
    t->counts[item->to]++;
    if (!item->fallback) return;
    json_array_append_new(t->fallbacks, json_pack("{s:s,s:s}", "name", item->name, "storage", to));
    if (!quiet) out_note("%s: its rows do not divide into blocks of the type; written as %s", item->name, to);
}

static segue_status write_all(struct sg_export *e, struct tally *t, bool quiet, segue_error *err)
{
    struct progress bar;
    struct sg_export_item item;
    segue_status st = SEGUE_OK;
    progress_begin(&bar, "quantize", quiet);
    for (uint32_t i = 0; st == SEGUE_OK; i++) {
        progress_step(&bar, i, sg_export_count(e), false);
        st = interrupt_seen() ? out_fail(err, SEGUE_ECANCELED, "quantize: interrupted: nothing was written; start again")
                              : sg_export_next(e, &item, err);
        if (st == SEGUE_OK) note_item(t, &item, quiet);
    }
    progress_end(&bar);
    return st == SEGUE_END ? SEGUE_OK : st;
}

static int report(const struct tally *t, const char *path, bool json)
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
    struct place p;
    segue_error err;
    struct sg_export *e = NULL;
    struct tally tally = {0};
    const char *out = args_text(args, "output"), *type = args_text(args, "type");
    bool json = args_has(args, "json");
    if (!out || !type) {
        out_fail(&err, SEGUE_EARG, "quantize: %s is missing; give -o OUT.gguf and --type TYPE", out ? "--type" : "-o");
        return out_error(&err, EXIT_NOT_HERE);
    }
    int code = place_open_model(&p, args);
    if (code) return code;
    tally.fallbacks = json_array();
    segue_status st = sg_export_open(&e, p.model, out, storage_of(type), &err);
    if (!st) st = write_all(e, &tally, json, &err);
    code = st ? out_error(&err, EXIT_REFUSED) : report(&tally, out, json);
    json_decref(tally.fallbacks);
    sg_export_close(e);
    place_close(&p);
    return code;
}

static const struct arg_def own_defs[] = {
    {"output", 'o', ARG_FILE, 0, "OUT.gguf", NULL, 0, 0, "the file to write"},
    {"type", 0, ARG_CHOICE, 0, types, NULL, 0, 0, "storage of the matrices"},
    ARG_END};
static const struct arg_group own = {"What", own_defs};
static const struct arg_group *const groups[] = {&own, &flags_model, &flags_output, NULL};
const struct command cmd_quantize = {
    .name = "quantize", .summary = "write a model as GGUF in another storage", .groups = groups,
    .example = "segue quantize -m model.gguf -o model-q8.gguf --type q8_0", .run = run,
    .about = "Reads any model that segue opens and writes a GGUF whose matrices have the type; vectors, convolutions and "
             "position tables stay f32, and the head (or the embedding that serves as one) takes q6_k beside 4- and 5-bit "
             "types. Rows that do not divide into blocks take the type that llama.cpp takes, and are listed. Tokenizer and chat "
             "template go along. The file appears only when it is whole."};
