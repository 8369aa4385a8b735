/* cmd_eval.c: `segue eval`: how likely a text is to a model, what every layer gave, how far two models are
 * apart. Long texts are cut into chunks of -c tokens as llama-perplexity does: each begins anew (with BOS
 * where the model wants one) and the second half of it counts. SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "commands/klfile.h"
#include "term/progress.h"
#include "task/prompt.h"
#include "task/report.h"

enum { PIECE = 32 }; /* rows whose logits are held at once */

struct eval {
    const struct args *args;
    struct place place;
    struct prompt text;
    size_t rows, chunks, first; /* tokens of a chunk; the first row that counts */
    struct klfile out, base;
    bool writes, compares;
    double nll;
    size_t scored, equal;
    double *kl; /* [scored] */
    struct progress progress;
};

/* Each chunk is a sequence of its own. */
static segue_status open_session(struct eval *e, size_t rows, segue_session **session, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    opts.context = rows;
    opts.plan = place_plan(&e->place);
    opts.adapters = e->place.adapters;
    opts.adapters_n = e->place.adapters_n;
    segue_status st = segue_session_open(session, e->place.engine, &opts, err);
    if (!st) interrupt_watch(*session);
    return st;
}

/* Rows [from, from + n) gave logits; row i speaks of token i + 1. */
static segue_status take_rows(struct eval *e, const float *logits, size_t n, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < n && !st; i++) {
        const float *row = logits + i * e->place.info.vocab;
        bool same = false;
        double kl = 0;
        if (e->writes) st = klfile_put(&e->out, row, err);
        if (st || !e->compares) continue;
        st = klfile_compare(&e->base, row, &kl, &same, err);
        e->kl = out_realloc(e->kl, (e->scored + i + 1) * sizeof *e->kl);
        e->kl[e->scored + i] = kl;
        e->equal += same;
    }
    return st;
}

/* One chunk: rows before `first` are read only; of the others the next token's log-probability counts. */
static segue_status chunk(struct eval *e, const int32_t *ids, size_t done, segue_error *err)
{
    size_t vocab = e->place.info.vocab, last = e->rows - 1;
    bool wants_logits = e->writes || e->compares;
    float *logprobs = out_alloc(e->rows * sizeof *logprobs);
    float *logits = wants_logits ? out_alloc(PIECE * vocab * sizeof *logits) : NULL;
    int32_t *own = out_alloc(e->rows * sizeof *own);
    segue_session *session = NULL;
    memcpy(own, ids, e->rows * sizeof *own);
    if (e->place.info.add_bos && e->place.info.bos >= 0 && e->chunks > 1) own[0] = e->place.info.bos;
    segue_status st = open_session(e, e->rows, &session, err);
    for (size_t at = 0; at < e->rows && !st;) {
        size_t n = at < e->first && wants_logits ? e->first - at : e->rows - at;
        bool counts = at >= e->first && at < last;
        if (n > 256) n = 256;
        if (wants_logits && counts) n = last - at < PIECE ? last - at : PIECE;
        st = segue_session_score(session, own + at, n, logprobs + at, counts && wants_logits ? logits : NULL,
                                 err);
        if (!st && counts && wants_logits) {
            st = take_rows(e, logits, n, err);
            e->scored += n;
        }
        at += n;
        progress_step(&e->progress, done + at, e->rows * e->chunks, false);
    }
    for (size_t i = e->first + 1; i < e->rows && !st; i++) e->nll -= logprobs[i];
    if (!st && !wants_logits) e->scored += last - e->first;
    if (session) interrupt_unwatch(session);
    segue_session_close(session);
    free(own);
    free(logits);
    free(logprobs);
    return st;
}

/* Never through the chat template: a text is scored as it is. */
static segue_status read_text(struct eval *e, segue_error *err)
{
    const char *ids = args_text(e->args, "ids"), *file = args_text(e->args, "file"),
               *prompt = args_text(e->args, "prompt");
    struct out_text text = {0};
    if ((ids != NULL) + (file != NULL) + (prompt != NULL) > 1)
        return out_fail(err, SEGUE_EARG, "eval: more than one text given; give one of -f, -p and --ids");
    if (ids) return prompt_ids(ids, e->place.info.vocab, &e->text, err);
    if (!file && !prompt) return SEGUE_OK;
    if (!e->place.info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "eval: %.200s: the model has no tokenizer; give --ids",
                        e->place.path);
    segue_status st = SEGUE_OK;
    if (file)
        st = prompt_file(file, &text, err);
    else
        out_addf(&text, "%s", prompt);
    if (!st) st = prompt_tokenize(e->place.model, text.data, text.len, 0, SIZE_MAX, &e->text, err);
    free(text.data);
    return st;
}

/* Cut the text into chunks, by -c or by the base file. */
static segue_status cut(struct eval *e, segue_error *err)
{
    const char *base = args_text(e->args, "kl-base"), *out = args_text(e->args, "kl-out");
    size_t n = e->text.n, wanted = (size_t)args_number(e->args, "context", 512);
    int32_t vocab = (int32_t)e->place.info.vocab;
    if (base) {
        segue_status st = klfile_open(&e->base, base, vocab, err);
        if (st) return st;
        e->compares = true;
        size_t all = (size_t)e->base.rows * (size_t)e->base.chunks;
        if (e->text.given && (n < all || memcmp(e->text.ids, e->base.tokens, all * sizeof *e->text.ids) != 0))
            return out_fail(err, SEGUE_EFORMAT,
                            "base logits: %.200s: made of another text; leave -f and --ids out", base);
        e->text.ids = out_realloc(e->text.ids, all * sizeof *e->text.ids);
        memcpy(e->text.ids, e->base.tokens, all * sizeof *e->text.ids);
        e->rows = (size_t)e->base.rows;
        e->chunks = (size_t)e->base.chunks;
    } else if (n < 2)
        return out_fail(err, SEGUE_EARG, "eval: fewer than two tokens; give a text with -f, -p or --ids");
    else {
        e->rows = n < wanted ? n : wanted;
        e->chunks = n / e->rows;
    }
    if (e->rows < 2)
        return out_fail(err, SEGUE_EARG, "eval: a chunk of %zu tokens says nothing; raise -c", e->rows);
    size_t most = (size_t)args_number(e->args, "limit", 0);
    if (most && most < e->chunks) e->chunks = most;
    e->writes = out != NULL;
    e->first = e->chunks > 1 || e->writes || e->compares ? e->rows / 2 : 0;
    if (e->writes)
        return klfile_create(&e->out, out, (int32_t)e->rows, vocab, (int32_t)e->chunks, e->text.ids, err);
    return SEGUE_OK;
}

/* In a session apart: the graphs of a dump give every value and are slower, but the engine has them either
 * way.
 * */
static segue_status dump(struct eval *e, segue_error *err)
{
    const char *path = args_text(e->args, "dump");
    if (!path) return SEGUE_OK;
    if (e->chunks > 1)
        return out_fail(err, SEGUE_EARG,
                        "eval: --dump takes one chunk, the text has %zu tokens; raise -c or shorten it",
                        e->text.n);
    segue_session *session = NULL;
    segue_status st = open_session(e, e->rows, &session, err);
    if (!st) st = segue_session_dump(session, e->text.ids, e->rows, path, err);
    if (session) interrupt_unwatch(session);
    segue_session_close(session);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* kl_p99 interpolates between neighbours, as llama-perplexity's percentile does. */
static void put_kl(const struct eval *e, json_t *o)
{
    double sum = 0, at = 0.99 * (double)(e->scored - 1);
    for (size_t i = 0; i < e->scored; i++) sum += e->kl[i];
    qsort(e->kl, e->scored, sizeof *e->kl, ascending);
    size_t below = (size_t)at, above = below + 1 < e->scored ? below + 1 : below;
    json_object_set_new(o, "kl_mean", out_real(sum / (double)e->scored));
    json_object_set_new(o, "kl_p99",
                        out_real(e->kl[below] + (at - (double)below) * (e->kl[above] - e->kl[below])));
    json_object_set_new(o, "kl_max", out_real(e->kl[e->scored - 1]));
    json_object_set_new(o, "same_top", out_real((double)e->equal / (double)e->scored));
}

static int print(const struct eval *e)
{
    json_t *o = json_object();
    double nll = e->nll / (double)e->scored;
    json_object_set_new(o, "tokens", json_integer((json_int_t)e->scored));
    json_object_set_new(o, "nll", out_real(nll));
    json_object_set_new(o, "perplexity", out_real(exp(nll)));
    json_object_set_new(o, "input_tokens", json_integer((json_int_t)(e->rows * e->chunks)));
    json_object_set_new(o, "chunks", json_integer((json_int_t)e->chunks));
    json_object_set_new(o, "context", json_integer((json_int_t)e->rows));
    json_object_set_new(o, "model", report_model_json(&e->place));
    if (e->compares) put_kl(e, o);
    if (args_has(e->args, "json")) return out_json_exit(o);
    printf("tokens     %zu of %zu, in %zu chunks of %zu\nnll        %.6f\nperplexity %.6f\n", e->scored,
           e->rows * e->chunks, e->chunks, e->rows, nll, exp(nll));
    if (e->compares)
        printf("kl_mean    %.6g\nkl_p99     %.6g\nsame_top   %.4f\n",
               json_real_value(json_object_get(o, "kl_mean")), json_real_value(json_object_get(o, "kl_p99")),
               json_real_value(json_object_get(o, "same_top")));
    json_decref(o);
    return EXIT_DONE;
}

static int run(struct args *args)
{
    struct eval e = {.args = args};
    segue_error err;
    int code = place_open(&e.place, args, args_has(args, "dump") ? PLACE_KEEP_VALUES : 0),
        unsupported = EXIT_REFUSED;
    if (code) return code;
    progress_begin(&e.progress, "eval: tokens", args_has(args, "quiet"));
    segue_status st = read_text(&e, &err);
    if (!st) st = cut(&e, &err);
    if (!st) unsupported = EXIT_NOT_HERE;
    if (!st) st = dump(&e, &err);
    for (size_t i = 0; i < e.chunks && !st; i++) st = chunk(&e, e.text.ids + i * e.rows, i * e.rows, &err);
    if (!st && e.writes) st = klfile_commit(&e.out, &err);
    progress_end(&e.progress);
    code = st ? out_error(&err, unsupported) : print(&e);
    klfile_close(&e.out);
    klfile_close(&e.base);
    free(e.kl);
    prompt_free(&e.text);
    place_close(&e.place);
    return code;
}

static const struct arg_def own_defs[] = {
    {"file", 'f', ARG_FILE, 0, "FILE", NULL, 0, 0, "the text; - is standard input"},
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "the text itself"},
    {"ids", 0, ARG_TEXT, 0, "1,2,3|@FILE", NULL, 0, 0, "the text as token ids"},
    {"context", 'c', ARG_COUNT, 0, "N", "512", 2, 16777216, "tokens of a chunk; its second half counts"},
    {"limit", 0, ARG_COUNT, 0, "N", "all", 1, 16777216, "at most N chunks"},
    {"dump", 0, ARG_FILE, 0, "OUT.safetensors", NULL, 0, 0, "write tokens, logits, hidden states and caches"},
    {"kl-out", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "write base logits in llama-perplexity's format"},
    {"kl-base", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "compare with base logits: kl_mean, kl_p99, same_top"},
    {"quiet", 'q', ARG_SWITCH, 0, NULL, NULL, 0, 0, "no progress on stderr"},
    ARG_END};
static const struct arg_group own = {"Text", own_defs};
static const struct arg_group *const groups[] = {&own,          &flags_model,  &flags_units,
                                                 &flags_engine, &flags_output, NULL};
const struct command cmd_eval = {.name = "eval",
                                 .summary =
                                     "perplexity of a text, divergence of two models, dumps of every layer",
                                 .groups = groups,
                                 .example = "segue eval -f README.md -c 256 --limit 2",
                                 .run = run,
                                 .about = "Scores a text: tokens that counted, mean negative log-likelihood "
                                          "(natural logarithm) and perplexity. A text of "
                                          "at most -c tokens counts whole; a longer one, and one that is "
                                          "compared, is cut into chunks of which the second "
                                          "half counts, as llama-perplexity does, so figures and files can "
                                          "be exchanged with it. No chat template is "
                                          "applied."};
