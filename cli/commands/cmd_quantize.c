/* cmd_quantize.c: `segue quantize`: write a model as a GGUF file of another data type. Includes an internal
 * header of the library, because segue.h cannot write model files (exception in tests/api/layers.sh).
 * The tensors are converted one by one, so memory use does not depend on the size of the model.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "model/quantize/export.h"
#include "model/quantize/imatrix.h"
#include "run/placement.h"
#include "term/progress.h"

/* The words of --type; each is the name of a mixture in the library. */
static const char types[] = "f32|f16|bf16|q8_0|q6_k|q5_k_m|q5_k_s|q5_k|q5_1|q5_0|q4_k_m|q4_k_s|q4_k|q4_1|q4_0|q3_k_l|q3_k_m|"
                            "q3_k_s|q3_k|q2_k|q2_k_s";

/* Figures of the written file. */
struct quantize_stats {
    uint64_t bytes;                /* of all tensors, without the header */
    uint32_t counts[SG_STORAGE_N]; /* tensors per data type */
    uint32_t requantized;          /* tensors whose source is quantised too, so that their error grows */
    json_t *fallbacks;             /* tensors whose rows do not divide into blocks of the type */
};

/* True if the storage keeps fewer bits per number than 16-bit floats. */
static bool is_quantised(enum sg_storage s) { return s > SG_BF16 && s <= SG_FP8; }

/* Add one written tensor to the figures and report a fallback. */
static void count_item(struct quantize_stats *t, const struct sg_export_item *item, bool quiet)
{
    const char *to = sg_storage_info(item->to)->name;
    t->bytes += item->bytes;
    t->counts[item->to]++;
    t->requantized += is_quantised(item->from) && is_quantised(item->to) && item->from != item->to;
    if (!item->fallback) return;
    json_array_append_new(t->fallbacks, json_pack("{s:s,s:s}", "name", item->name, "storage", to));
    if (!quiet) out_note("%s: the row length is not a multiple of the block size; written as %s", item->name, to);
}

/* Convert and write tensor by tensor. On an interrupt the temporary file is deleted when the export is
 * closed. */
static segue_status write_all(struct sg_export *e, struct quantize_stats *t, bool quiet, segue_error *err)
{
    struct progress progress;
    struct sg_export_item item;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "quantize", quiet);
    for (uint32_t i = 0; st == SEGUE_OK; i++) {
        progress_step(&progress, i, sg_export_count(e), false);
        /* An interrupt is noticed between two tensors. */
        st = interrupt_pending()
                 ? out_fail(err, SEGUE_ECANCELED, "quantize: interrupted: no file was written; run the command again")
                 : sg_export_next(e, &item, err);
        if (st == SEGUE_OK) count_item(t, &item, quiet);
    }
    progress_end(&progress);
    return st == SEGUE_END ? SEGUE_OK : st;
}

/* Print the result; returns the exit code. */
static int report(const struct quantize_stats *t, const char *path, const struct sg_export *e, bool json)
{
    /* Tensors per data type; types that do not occur are omitted. */
    json_t *storages = json_object();
    for (enum sg_storage s = SG_F32; s < SG_STORAGE_N; s++)
        if (t->counts[s]) json_object_set_new(storages, sg_storage_info(s)->name, json_integer(t->counts[s]));
    if (t->requantized && !json)
        out_note("%s: %u tensors were already quantised, so that errors add up; use a model with f16, bf16 or f32 weights", path,
                 t->requantized);
    if (json)
        return out_json_exit(json_pack("{s:s,s:I,s:i,s:i,s:o,s:O}", "path", path, "tensor_bytes", (json_int_t)t->bytes,
                                       "requantized", (int)t->requantized, "imatrix_tensors", (int)sg_export_important(e),
                                       "storages", storages, "fallbacks", t->fallbacks));
    out_note("%s: wrote %.1f MB of tensors", path, (double)t->bytes / 1e6);
    if (sg_export_important(e)) out_note("%s: %u tensors were weighted by the importance matrix", path, sg_export_important(e));
    json_decref(storages);
    return EXIT_DONE;
}

/* IN [OUT] TYPE [THREADS] as operands, as llama-quantize takes them; the number of threads has no effect. Without OUT the name is
 * that of IN with the type. */
static segue_status take_operands(struct args *args, segue_error *err)
{
    size_t n = args->operands_n;
    const char *last = n ? args->operands[n - 1] : "";
    if (n > 2 && strspn(last, "0123456789") == strlen(last)) n--;
    if (!n) return SEGUE_OK;
    if (n < 2 || n > 3 || args_has(args, "model") || args_has(args, "output") || args_has(args, "type"))
        return out_fail(err, SEGUE_EARG, "quantize: %.80s: wrong arguments; expected IN [OUT] TYPE, or -m, -o and --type",
                        args->operands[0]);
    const char *in = args->operands[0], *type = args->operands[n - 1];
    size_t stem = strlen(in);
    if (stem > 5 && !strcmp(in + stem - 5, ".gguf")) stem -= 5;
    char *made = out_printf("%.*s-%s.gguf", (int)stem, in, type);
    segue_status st = args_set(args, "model", in, err);
    if (!st) st = args_set(args, "type", type, err);
    if (!st) st = args_set(args, "output", n == 3 ? args->operands[1] : made, err);
    free(made);
    return st;
}

/* Both flags are required. SEGUE_EUNSUPPORTED concerns the input file (exit 4). */
static int run(struct args *args)
{
    struct placement p;
    segue_error err;
    if (take_operands(args, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    struct sg_export *e = NULL;
    struct quantize_stats stats = {0};
    const char *out = args_text(args, "output"), *type = args_text(args, "type"), *importance = args_text(args, "imatrix");
    struct sg_imatrix *matrix = NULL;
    bool json = args_has(args, "json");
    if (!out || !type) {
        out_fail(&err, SEGUE_EARG, "quantize: %s missing; give -o OUT.gguf and --type TYPE", out ? "--type" : "-o");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    int code = placement_open_model(&p, args);
    if (code) return code;
    stats.fallbacks = json_array();
    segue_status st = importance ? sg_imatrix_open(&matrix, importance, &err) : SEGUE_OK;
    if (!st) st = sg_export_open(&e, p.model, out, sg_mixture_find(type), matrix, &err);
    if (!st) st = write_all(e, &stats, json, &err);
    code = st ? out_error(&err, EXIT_BAD_INPUT) : report(&stats, out, e, json);
    json_decref(stats.fallbacks);
    sg_export_close(e);
    sg_imatrix_close(matrix);
    placement_close(&p);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "OUT.gguf", NULL, 0, 0, "output file"},
    {"type", 0, ARG_CHOICE, 0, types, NULL, 0, 0, "data type of the matrices"},
    {"imatrix", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "importance matrix, of segue imatrix or llama-imatrix"},
    ARG_END};
static const struct arg_group command_flags = {"Output file", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_quantize = {
    .name = "quantize", .summary = "convert a model to a GGUF file of another data type",
    .operands = "[IN [OUT] TYPE]", .operands_max = 4, .groups = groups,
    .example = "segue quantize -m model.gguf -o model-q8.gguf --type q8_0", .run = run,
    .about = "Reads any model that segue can open and writes a GGUF file whose matrices have the type of --type. Vectors, "
             "convolutions and position tables stay f32. With types of fewer than 6 bits the output head (or the tied "
             "embedding) is written as q6_k. The types q2_k, and those that end in _s, _m or _l, are mixtures: the same "
             "matrices get more bits as in llama-quantize. IN, OUT and TYPE may be given without flags, as there. A matrix "
             "whose row length is not a multiple of the block size is written with the fallback type of llama.cpp and "
             "listed. With --imatrix, errors count by how strongly each column is used: the file is made by segue imatrix or "
             "by llama-imatrix (GGUF or .dat). The tokenizer and the chat template are copied. The file gets its name when it "
             "is complete."};
