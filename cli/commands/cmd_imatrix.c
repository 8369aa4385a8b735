/* cmd_imatrix.c: `segue imatrix`: compute an importance matrix for quantize. Includes internal headers of the library, because
 * segue.h gives no activations (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "engine/importance.h"
#include "run/placement.h"
#include "run/prompt.h"
#include "term/progress.h"

/* One computation. */
struct imatrix_job {
    const struct args *args;
    struct placement placement;
    struct prompt text;
    segue_unit *unit;
    struct sg_importance *sums;
    size_t chunk, chunks;
};

static segue_status read_text(struct imatrix_job *m, segue_error *err)
{
    const char *file = args_text(m->args, "file"), *prompt = args_text(m->args, "prompt");
    struct out_text text = {0};
    if (!file == !prompt)
        return out_fail(err, SEGUE_EARG, "imatrix: %s; give one of -f FILE and -p TEXT", file ? "two texts" : "no text");
    if (!m->placement.info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "imatrix: %.200s: the model has no tokenizer; use one that has",
                        m->placement.path);
    segue_status st = file ? prompt_file(file, &text, err) : SEGUE_OK;
    if (!file) out_addf(&text, "%s", prompt);
    if (!st) st = prompt_tokenize(m->placement.model, text.data, text.len, 0, SIZE_MAX, &m->text, err);
    free(text.data);
    if (st) return st;
    m->chunk = (size_t)args_number(m->args, "context", 512);
    if (m->text.n < m->chunk) m->chunk = m->text.n;
    m->chunks = m->chunk ? m->text.n / m->chunk : 0;
    size_t limit = (size_t)args_number(m->args, "chunks", 0);
    if (limit && limit < m->chunks) m->chunks = limit;
    return m->chunk >= 2 ? SEGUE_OK : out_fail(err, SEGUE_EARG, "imatrix: fewer than two tokens; give a longer text");
}

/* Every chunk is a separate sequence, whose first token is BOS if the model uses it, as with llama-imatrix. */
static segue_status run_chunks(struct imatrix_job *m, segue_error *err)
{
    struct progress progress;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "imatrix: chunks", args_has(m->args, "json"));
    for (size_t i = 0; i < m->chunks && !st; i++) {
        int32_t *ids = m->text.ids + i * m->chunk;
        if (m->placement.info.add_bos && m->placement.info.bos >= 0) ids[0] = m->placement.info.bos;
        progress_step(&progress, i, m->chunks, false);
        st = interrupt_pending()
                 ? out_fail(err, SEGUE_ECANCELED, "imatrix: interrupted: no file was written; run the command again")
                 : sg_importance_add(m->sums, ids, (uint32_t)m->chunk, err);
    }
    progress_end(&progress);
    return st;
}

static int report(const struct imatrix_job *m, const char *out)
{
    if (args_has(m->args, "json"))
        return out_json_exit(json_pack("{s:s,s:I,s:I,s:I}", "path", out, "chunks", (json_int_t)m->chunks, "context",
                                       (json_int_t)m->chunk, "tokens", (json_int_t)(m->chunk * m->chunks)));
    out_note("%s: importance of %zu tokens in %zu chunks", out, m->chunk * m->chunks, m->chunks);
    return EXIT_DONE;
}

static int run(struct args *args)
{
    struct imatrix_job m = {.args = args};
    segue_error err;
    const char *out = args_text(args, "output"), *file = args_text(args, "file");
    if (!out) {
        out_fail(&err, SEGUE_EARG, "imatrix: -o missing; give -o OUT.gguf");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    int code = placement_open_model(&m.placement, args), unsupported = EXIT_BAD_INPUT;
    if (code) return code;
    segue_status st = read_text(&m, &err);
    if (!st) unsupported = EXIT_UNAVAILABLE;
    if (!st) st = placement_open_unit(&m.unit, args_text(args, "unit"), (unsigned)args_number(args, "threads", 0), &err);
    if (!st) st = sg_importance_open(&m.sums, m.placement.model, m.unit, (uint32_t)m.chunk, &err);
    interrupt_defer(true);
    if (!st) st = run_chunks(&m, &err);
    if (!st)
        st = sg_importance_write(m.sums, out, file ? file : "-p", (uint32_t)m.chunks, (uint32_t)m.chunk, &err);
    code = st ? out_error(&err, unsupported) : report(&m, out);
    sg_importance_close(m.sums);
    segue_unit_close(m.unit);
    prompt_free(&m.text);
    placement_close(&m.placement);
    return code;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "OUT.gguf", NULL, 0, 0, "output file"},
    {"file", 'f', ARG_FILE, 0, "FILE", NULL, 0, 0, "text file; - is standard input"},
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the text itself"},
    {"context", 'c', ARG_COUNT, 0, "N", "512", 2, 65536, "tokens per chunk"},
    {"chunks", 0, ARG_COUNT, 0, "N", "all", 1, 16777216, "use at most N chunks"},
    {"unit", 0, ARG_UNIT, 0, "SPEC", "the fastest", 0, 0, "unit that computes"},
    {"threads", 't', ARG_COUNT, 0, "N", "all cores", 1, 1024, "threads of the unit cpu"},
    ARG_END};
static const struct arg_group command_flags = {"Importance matrix", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_model, &flags_output, NULL};
const struct command cmd_imatrix = {
    .name = "imatrix", .summary = "compute an importance matrix for quantize", .groups = groups,
    .example = "segue imatrix -m model.gguf -f README.md -o imatrix.gguf", .run = run,
    .about = "Runs a text through the model and writes, for every matrix of the layers, the mean square of each input column, "
             "in the GGUF format of llama-imatrix, which llama-quantize reads too. The text is cut into chunks of -c tokens. Use "
             "the unquantised model and 50,000 tokens or more of the text that the model is for; "
             "quantize --imatrix reads the file."};
