/* cmd_eval.c: `segue eval`: perplexity of a text, KL divergence of two models, dumps of intermediate values. A long
 * text is split into chunks of -c tokens as in llama-perplexity: every chunk is a new sequence (with BOS if the model
 * uses it), and its second half is scored.
 * Logits are computed in fp32; sums over positions are kept in double.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "term/interrupt.h"
#include "commands/kl_file.h"
#include "term/progress.h"
#include "run/prompt.h"
#include "run/report.h"

enum { LOGIT_ROWS = 32 }; /* rows of logits in memory at once */

/* The state of one evaluation. */
struct eval {
    const struct args *args;
    struct placement placement;
    struct prompt text;  /* ids of the whole text, or of the base file */
    size_t chunk_tokens; /* tokens per chunk */
    size_t chunks;
    size_t first_scored;           /* index in a chunk of the first logits row that counts */
    struct kl_file kl_out, kl_base; /* files of --kl-out and --kl-base */
    bool write_kl, compare_kl;
    double nll;        /* sum over the scored tokens, natural logarithm */
    size_t scored;     /* tokens that count */
    size_t same_top_n; /* positions at which both models have the same most likely token */
    double *kl;        /* [scored] KL divergence per position; NULL unless compare_kl */
    struct progress progress;
};

/* A new session with a context of `tokens` tokens. A signal cancels it. */
static segue_status open_session(struct eval *e, size_t tokens, segue_session **session, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    opts.context = tokens;
    opts.plan = placement_plan(&e->placement);
    opts.adapters = e->placement.adapters;
    opts.adapters_n = e->placement.adapters_n;
    segue_status st = segue_session_open(session, e->placement.engine, &opts, err);
    if (!st) interrupt_watch(*session);
    return st;
}

/* Write or compare n rows of logits[n][vocab]. Row i predicts token i + 1. */
static segue_status score_logits(struct eval *e, const float *logits, size_t n, segue_error *err)
{
    segue_status st = SEGUE_OK;
    for (size_t i = 0; i < n && !st; i++) {
        const float *row = logits + i * e->placement.info.vocab;
        bool same = false;
        double kl = 0;
        /* Both files can be open at once: compare with one model and write for the next. */
        if (e->write_kl) st = kl_file_write_row(&e->kl_out, row, err);
        if (st || !e->compare_kl) continue;
        st = kl_file_compare(&e->kl_base, row, &kl, &same, err);
        /* Position of this row among all scored rows. */
        e->kl = out_realloc(e->kl, (e->scored + i + 1) * sizeof *e->kl);
        e->kl[e->scored + i] = kl;
        e->same_top_n += same;
    }
    return st;
}

/* Score the chunk ids[chunk_tokens]. Positions before first_scored are computed as context only.
 * Logits are requested LOGIT_ROWS rows at a time, because a row has `vocab` floats. done: tokens of
 * earlier chunks, for the progress line. */
static segue_status score_chunk(struct eval *e, const int32_t *ids, size_t done, segue_error *err)
{
    size_t vocab = e->placement.info.vocab, last = e->chunk_tokens - 1;
    bool wants_logits = e->write_kl || e->compare_kl;
    float *logprobs = out_alloc(e->chunk_tokens * sizeof *logprobs);
    /* Logits are large (LOGIT_ROWS x vocab floats), so they are requested only for a comparison. */
    float *logits = wants_logits ? out_alloc(LOGIT_ROWS * vocab * sizeof *logits) : NULL;
    int32_t *chunk_ids = out_alloc(e->chunk_tokens * sizeof *chunk_ids);
    segue_session *session = NULL;
    memcpy(chunk_ids, ids, e->chunk_tokens * sizeof *chunk_ids);
    /* As in llama-perplexity, BOS replaces the first token of every chunk. */
    if (e->placement.info.add_bos && e->placement.info.bos >= 0 && e->chunks > 1) chunk_ids[0] = e->placement.info.bos;
    segue_status st = open_session(e, e->chunk_tokens, &session, err);
    for (size_t at = 0; at < e->chunk_tokens && !st;) {
        /* Tokens before first_scored need no logits, so they are computed in larger steps. */
        size_t n = at < e->first_scored && wants_logits ? e->first_scored - at : e->chunk_tokens - at;
        bool counts = at >= e->first_scored && at < last;
        /* At most 256 tokens per call, so that the progress line moves and an interrupt is noticed. */
        if (n > 256) n = 256;
        if (wants_logits && counts) n = last - at < LOGIT_ROWS ? last - at : LOGIT_ROWS;
        st = segue_session_score(session, chunk_ids + at, n, logprobs + at, counts && wants_logits ? logits : NULL,
                                 err);
        if (!st && counts && wants_logits) {
            st = score_logits(e, logits, n, err);
            e->scored += n;
        }
        at += n;
        progress_step(&e->progress, done + at, e->chunk_tokens * e->chunks, false);
    }
    /* logprobs[i] is the log-probability of token i given the tokens before it. */
    for (size_t i = e->first_scored + 1; i < e->chunk_tokens && !st; i++) e->nll -= logprobs[i];
    if (!st && !wants_logits) e->scored += last - e->first_scored;
    if (session) interrupt_unwatch(session);
    segue_session_close(session);
    free(chunk_ids);
    free(logits);
    free(logprobs);
    return st;
}

/* The text is never passed through the chat template. */
static segue_status read_text(struct eval *e, segue_error *err)
{
    const char *ids = args_text(e->args, "ids"), *file = args_text(e->args, "file"),
               *prompt = args_text(e->args, "prompt");
    struct out_text text = {0};
    /* At most one source; none is needed with --kl-base, whose file contains the tokens. */
    if ((ids != NULL) + (file != NULL) + (prompt != NULL) > 1)
        return out_fail(err, SEGUE_EARG, "eval: more than one text given; use one of -f, -p and --ids");
    if (ids) return prompt_ids(ids, e->placement.info.vocab, &e->text, err);
    if (!file && !prompt) return SEGUE_OK;
    if (!e->placement.info.has_tokenizer)
        return out_fail(err, SEGUE_EUNSUPPORTED, "eval: %.200s: the model has no tokenizer; give --ids",
                        e->placement.path);
    segue_status st = SEGUE_OK;
    if (file)
        st = prompt_file(file, &text, err);
    else
        out_addf(&text, "%s", prompt);
    if (!st) st = prompt_tokenize(e->placement.model, text.data, text.len, 0, SIZE_MAX, &e->text, err);
    free(text.data);
    return st;
}

/* Set chunk size and count from -c, or from the base file, whose tokens then replace the text. Opens the files of
 * --kl-base and --kl-out. */
static segue_status split_chunks(struct eval *e, segue_error *err)
{
    const char *kl_base = args_text(e->args, "kl-base"), *kl_out = args_text(e->args, "kl-out");
    size_t n = e->text.n, chunk_size = (size_t)args_number(e->args, "context", 512);
    int32_t vocab = (int32_t)e->placement.info.vocab;
    if (kl_base) {
        segue_status st = kl_file_open(&e->kl_base, kl_base, vocab, err);
        if (st) return st;
        e->compare_kl = true;
        if (args_has(e->args, "context") && chunk_size != (size_t)e->kl_base.chunk_tokens)
            return out_fail(err, SEGUE_EARG, "flag --context: %zu: the base logits have chunks of %d tokens; remove -c",
                            chunk_size, (int)e->kl_base.chunk_tokens);
        /* A text given too must be the one of the base file. */
        size_t all = (size_t)e->kl_base.chunk_tokens * (size_t)e->kl_base.chunks;
        if (e->text.given && (n < all || memcmp(e->text.ids, e->kl_base.tokens, all * sizeof *e->text.ids) != 0))
            return out_fail(err, SEGUE_EFORMAT,
                            "base logits: %.200s: computed from another text; remove -f and --ids", kl_base);
        e->text.ids = out_realloc(e->text.ids, all * sizeof *e->text.ids);
        memcpy(e->text.ids, e->kl_base.tokens, all * sizeof *e->text.ids);
        e->chunk_tokens = (size_t)e->kl_base.chunk_tokens;
        e->chunks = (size_t)e->kl_base.chunks;
    } else if (n < 2)
        return out_fail(err, SEGUE_EARG, "eval: fewer than two tokens; give a text with -f, -p or --ids");
    else {
        /* A short text is one chunk. The rest of a long one, less than a chunk, is not scored. */
        e->chunk_tokens = n < chunk_size ? n : chunk_size;
        e->chunks = n / e->chunk_tokens;
    }
    if (e->chunk_tokens < 2)
        return out_fail(err, SEGUE_EARG, "eval: a chunk of %zu tokens is too short; raise -c", e->chunk_tokens);
    size_t limit = (size_t)args_number(e->args, "limit", 0);
    /* The file of --kl-out then contains the scored chunks only. */
    if (limit && limit < e->chunks) e->chunks = limit;
    e->write_kl = kl_out != NULL;
    /* The format of base logits stores second halves only, so a comparison scores those, too. */
    e->first_scored = e->chunks > 1 || e->write_kl || e->compare_kl ? e->chunk_tokens / 2 : 0;
    if (e->write_kl)
        return kl_file_create(&e->kl_out, kl_out, (int32_t)e->chunk_tokens, vocab, (int32_t)e->chunks, e->text.ids, err);
    return SEGUE_OK;
}

/* Write the intermediate values of a single chunk. A separate session, because the graphs of a dump
 * output every value and are slower. */
static segue_status write_dump(struct eval *e, segue_error *err)
{
    const char *path = args_text(e->args, "dump");
    if (!path) return SEGUE_OK;
    if (e->chunks > 1)
        return out_fail(err, SEGUE_EARG,
                        "eval: --dump works on one chunk, the text has %zu tokens; raise -c or shorten the text",
                        e->text.n);
    segue_session *session = NULL;
    segue_status st = open_session(e, e->chunk_tokens, &session, err);
    if (!st) st = segue_session_dump(session, e->text.ids, e->chunk_tokens, path, err);
    if (session) interrupt_unwatch(session);
    segue_session_close(session);
    return st;
}

/* Order for qsort. */
static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Set kl_mean, kl_p99, kl_max and same_top. kl_p99 interpolates between neighbours, as the
 * percentile of llama-perplexity does. Sorts e->kl. */
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
    json_object_set_new(o, "same_top", out_real((double)e->same_top_n / (double)e->scored));
}

/* Print the figures as text or JSON; returns the exit code. */
static int print_result(const struct eval *e)
{
    json_t *o = json_object();
    /* Mean over the scored tokens; the perplexity is its exponential. */
    double nll = e->nll / (double)e->scored;
    json_object_set_new(o, "tokens", json_integer((json_int_t)e->scored));
    json_object_set_new(o, "nll", out_real(nll));
    json_object_set_new(o, "perplexity", out_real(exp(nll)));
    json_object_set_new(o, "input_tokens", json_integer((json_int_t)(e->chunk_tokens * e->chunks)));
    json_object_set_new(o, "chunks", json_integer((json_int_t)e->chunks));
    json_object_set_new(o, "context", json_integer((json_int_t)e->chunk_tokens));
    json_object_set_new(o, "model", report_model_json(&e->placement));
    if (e->compare_kl) put_kl(e, o);
    if (args_has(e->args, "json")) return out_json_exit(o);
    printf("tokens     %zu of %zu, in %zu chunks of %zu\nnll        %.6f\nperplexity %.6f\n", e->scored,
           e->chunk_tokens * e->chunks, e->chunks, e->chunk_tokens, nll, exp(nll));
    if (e->compare_kl)
        printf("kl_mean    %.6g\nkl_p99     %.6g\nsame_top   %.4f\n",
               json_real_value(json_object_get(o, "kl_mean")), json_real_value(json_object_get(o, "kl_p99")),
               json_real_value(json_object_get(o, "same_top")));
    json_decref(o);
    return EXIT_DONE;
}

/* SEGUE_EUNSUPPORTED is about files until the text is read, and about units afterwards. */
static int run(struct args *args)
{
    struct eval e = {.args = args};
    segue_error err;
    int code = placement_open(&e.placement, args, args_has(args, "dump") ? PLACEMENT_KEEP_VALUES : 0),
        unsupported = EXIT_BAD_INPUT;
    if (code) return code;
    progress_begin(&e.progress, "eval: tokens", args_has(args, "quiet"));
    segue_status st = read_text(&e, &err);
    if (!st) st = split_chunks(&e, &err);
    if (!st) unsupported = EXIT_UNAVAILABLE;
    if (!st) st = write_dump(&e, &err);
    for (size_t i = 0; i < e.chunks && !st; i++) st = score_chunk(&e, e.text.ids + i * e.chunk_tokens, i * e.chunk_tokens, &err);
    if (!st && e.write_kl) st = kl_file_commit(&e.kl_out, &err);
    progress_end(&e.progress);
    code = st ? out_error(&err, unsupported) : print_result(&e);
    kl_file_close(&e.kl_out);
    kl_file_close(&e.kl_base);
    free(e.kl);
    prompt_free(&e.text);
    placement_close(&e.placement);
    return code;
}

/* Flags of eval only. */
static const struct arg_def flag_defs[] = {
    {"file", 'f', ARG_FILE, 0, "FILE", NULL, 0, 0, "text file; - is standard input"},
    {"prompt", 'p', ARG_TEXT, 0, "TEXT", NULL, 0, 0, "text to score"},
    {"ids", 0, ARG_TEXT, 0, "1,2,3|@FILE", NULL, 0, 0, "text as token ids"},
    {"context", 'c', ARG_COUNT, 0, "N", "512", 2, 16777216, "tokens per chunk; the second half of each is scored"},
    {"limit", 0, ARG_COUNT, 0, "N", "all", 1, 16777216, "score at most N chunks"},
    {"dump", 0, ARG_FILE, 0, "OUT.safetensors", NULL, 0, 0,
     "write tokens, logits, hidden states and KV caches of every layer to a file"},
    {"kl-out", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "write base logits in llama-perplexity's format"},
    {"kl-base", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "compare with base logits: print kl_mean, kl_p99 and same_top"},
    {"quiet", 'q', ARG_SWITCH, 0, NULL, NULL, 0, 0, "print no progress on stderr"},
    ARG_END};
static const struct arg_group command_flags = {"Text", flag_defs};
static const struct arg_group *const groups[] = {&command_flags,          &flags_model,  &flags_units,
                                                 &flags_engine, &flags_output, NULL};
const struct command cmd_eval = {.name = "eval",
                                 .summary =
                                     "compute perplexity, KL divergence of two models, or dump every layer",
                                 .groups = groups,
                                 .example = "segue eval -f README.md -c 256 --limit 2",
                                 .run = run,
                                 .about = "Scores a text and prints the number of scored tokens, the mean negative "
                                          "log-likelihood (natural logarithm) and the perplexity. A text of at most "
                                          "-c tokens is scored as a whole. A longer text, or one that is compared, is split into "
                                          "chunks of which the second half is scored, as in llama-perplexity, so results and "
                                          "files are compatible with it. No chat template is applied."};
