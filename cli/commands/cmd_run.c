/* cmd_run.c: `segue run`: one prompt in, one answer out. With --requests many prompts are answered (requests.c).
 * The answer is written to stdout token by token; with --json one object is printed at the end. Exit
 * 130 for an interrupted answer, whose text is still printed.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "plan/proof.h"
#include "term/flags.h"
#include "host/folders.h"
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/conversation.h"
#include "replay/recording.h"
#include "run/report.h"
#include "commands/requests.h"
#include "run/sessions.h"
#include "run/trace.h"

/* Everything that belongs to one run. */
struct run_job {
    struct args *args;
    struct placement placement;
    struct sampler sampler;
    struct prompt prompt;
    json_t *conversation; /* of --session, with the messages of this run; NULL: not used */
    struct answer answer;
    segue_session *session;
    const char *reuse_reason; /* replaces the value "first-use" of the session; NULL: keep it */
    uint64_t start_ns;        /* time of the request */
    struct trace trace;
    struct meter meter;
};

/* Print the report of the answer, or its error, and return the exit code. */
static int finish(struct run_job *j)
{
    struct answer *a = &j->answer;
    bool json = args_has(j->args, "json"), cancelled = a->finish && !strcmp(a->finish, "cancel");
    const int32_t *tokens;
    size_t n = segue_session_tokens(j->session, &tokens);
    struct report r = {&j->placement,
                       a,
                       j->prompt.ids,
                       j->prompt.n,
                       j->reuse_reason ? j->reuse_reason : sessions_reuse_reason(j->args),
                       j->sampler.sampling.seed,
                       !cancelled && !args_has(j->args, "quiet"),
                       0};
    if (json) r.measure_bandwidth = !cancelled;
    /* A continued state has no prompt of its own: report the tokens of the session that precede the
     * answer. */
    if (!j->prompt.given && n >= a->ids_n) {
        r.prompt_ids = tokens;
        r.prompt_n = n - a->ids_n;
    }
    segue_error err;
    machine_peak_bytes();
    /* An interrupted answer is printed like a complete one, with exit 130. */
    int code = cancelled ? EXIT_INTERRUPTED : EXIT_DONE;
    if (!a->finish) {
        a->err.status = a->status;
        code = out_exit_code(a->status, EXIT_UNAVAILABLE);
    }
    segue_status st = SEGUE_OK;
    if (json) {
        /* The report of a failed run has the fields known so far, plus the error. */
        json_t *o = report_json(&r);
        if (!a->finish) {
            json_t *failure = out_error_json(&a->err, EXIT_UNAVAILABLE);
            json_object_update(o, failure);
            json_decref(failure);
        }
        st = out_json(o, 0, &err);
    } else if (a->status != SEGUE_EIO && a->ids_n && (!a->text.len || a->text.data[a->text.len - 1] != '\n'))
        st = out_write("\n", 1, &err);
    if (st) code = out_exit_code(err.status, EXIT_UNAVAILABLE);
    if (!a->finish || st) { /* print the error line only once */
        out_json_errors(false);
        out_error(a->finish ? &err : &a->err, EXIT_UNAVAILABLE);
    } else if (!args_has(j->args, "quiet"))
        report_print_line(&r);
    return code;
}

/* A named session that does not exist yet starts empty; a missing file of --load is an error. */
static segue_status open_session(struct run_job *j, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    opts.context = (size_t)args_number(j->args, "context", 0);
    opts.plan = placement_plan(&j->placement);
    opts.sampling = &j->sampler.sampling;
    opts.adapters = j->placement.adapters;
    opts.adapters_n = j->placement.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoint_bytes(j->args);
    /* The session records intervals only if a trace was requested. */
    opts.intervals = trace_capacity(&j->trace);
    opts.no_store = args_has(j->args, "record");
    opts.verify_tokens = (size_t)args_number(j->args, "verify", 0);
    char *path = sessions_path(j->args);
    segue_status st;
    /* Reading the state needs the engine, so this comes after placement_open. */
    if (path && (args_has(j->args, "load") || folders_is_file(path)))
        st = sessions_load(&j->session, j->placement.engine, &opts, j->args, path, j->prompt.given, &j->reuse_reason, err);
    else
        st = segue_session_open(&j->session, j->placement.engine, &opts, err);
    free(path);
    if (st) return st;
    interrupt_watch(j->session);
    if (args_has(j->args, "record") && (st = record_begin(j->session, err))) return st;
    if (!j->prompt.given) return SEGUE_OK;
    return sessions_sync(j->session, j->prompt.ids, j->prompt.n, err);
}

/* The library's default context, needed here to reject a huge prompt early. */
static size_t context_limit(const struct args *args, const segue_model_info *info)
{
    /* The same default as in the library: the limit of the model, at most 4096. */
    size_t limit = info->context && info->context < 4096 ? info->context : 4096;
    return (size_t)args_number(args, "context", (double)limit);
}

/* The operand is the prompt; - is standard input, which is also read if it is no terminal and no prompt is given. An empty
 * one, as /dev/null, is no prompt. */
static segue_status take_input(struct args *args, segue_error *err)
{
    const char *operand = args->operands_n ? args->operands[0] : NULL;
    bool dash = operand && !strcmp(operand, "-"), given = args_has(args, "prompt") || args_has(args, "file");
    if (args_has(args, "ids") || args_has(args, "messages")) given = true;
    if (operand && !dash && args_has(args, "prompt"))
        return out_fail(err, SEGUE_EARG, "run: \"%.80s\": two prompts given; use one of the argument and -p", operand);
    if (operand && !dash) return args_set(args, "prompt", operand, err);
    if (dash && args_has(args, "file")) return out_fail(err, SEGUE_EARG, "run: -: two files given; remove - or --file");
    if (dash) return args_set(args, "file", "-", err);
    if (given || args_has(args, "load") || isatty(0)) return SEGUE_OK;
    int first = getc(stdin);
    if (first == EOF) return SEGUE_OK;
    ungetc(first, stdin);
    return args_set(args, "file", "-", err);
}

/* The conversation of --session, to which the prompt is appended. Ids have no messages. */
static segue_status open_conversation(struct run_job *j, segue_error *err)
{
    if (!args_has(j->args, "session") || args_has(j->args, "ids") || !j->placement.info.has_tokenizer) return SEGUE_OK;
    return conversation_of_session(j->args, &j->conversation, err);
}

/* Save the state, and the conversation with the answer. An answer without a prompt continues the last one. */
static segue_status save_session(struct run_job *j, segue_error *err)
{
    segue_status st = sessions_save(j->args, j->session, err);
    if (st || !j->conversation) return st;
    json_t *last = json_array_get(j->conversation, json_array_size(j->conversation) - 1);
    const char *role = json_string_value(json_object_get(last, "role")), *text = j->answer.text.data ? j->answer.text.data : "";
    if (!j->prompt.given && role && !strcmp(role, "assistant")) {
        const char *before = json_string_value(json_object_get(last, "content"));
        char *whole = out_printf("%s%s", before ? before : "", text);
        json_object_set_new(last, "content", out_string(whole, strlen(whole)));
        free(whole);
    } else
        json_array_append_new(j->conversation, prompt_message("assistant", text, j->answer.text.len));
    return conversation_save_session(j->args, j->conversation, err);
}

/* What the run's own units used between two times; seconds 0: no meter of theirs, or too few samples. */
static struct energy_use used_between(struct meter *m, uint64_t from, uint64_t to)
{
    struct meter_phase phase = {0};
    char why[128];
    if (!m->live || m->own || to <= from) return (struct energy_use){0};
    meter_add(m, from, to, 1, &phase);
    return energy_refusal(&phase.use, why, sizeof why) ? (struct energy_use){0} : phase.use;
}

/* The calibration learns from answers long enough to tell a token's time. */
enum { LEARN_TOKENS = 16 };

/* What the answer took, for the plan. Tokens of a restored session, or found in the prefix store, are before those that were
 * computed. */
static struct follow_run measured_run(struct run_job *j)
{
    const struct answer *a = &j->answer;
    const segue_stats *b = &a->at_begin, *f = &a->at_first, *e = &a->at_end;
    if (!a->first_ns) return (struct follow_run){0};
    double n = (double)(f->tokens_in - b->tokens_in), decoded = (double)(e->tokens_out - f->tokens_out);
    double held = (double)segue_session_tokens(j->session, NULL) - (double)(e->tokens_out - b->tokens_out) - n;
    double start = held > 0 ? held : 0;
    struct follow_run run = {.start = start,
                             .n = n,
                             .first_ms = (double)(a->first_ns - a->start_ns) * 1e-6,
                             .depth = start + n + decoded / 2,
                             .output = decoded + 1};
    if (f->tokens_reused == b->tokens_reused) run.prefill_ms = (double)(f->prefill_ns - b->prefill_ns) * 1e-6;
    if (decoded > 0) run.token_ms = (double)(e->decode_ns - f->decode_ns) * 1e-6 / decoded;
    struct energy_use prefill = used_between(&j->meter, a->start_ns, a->first_ns),
                      decode = used_between(&j->meter, a->first_ns, a->end_ns),
                      all = used_between(&j->meter, a->start_ns, a->end_ns);
    if (prefill.seconds > 0) run.prefill_w = prefill.joules[0] / prefill.seconds;
    if (decode.seconds > 0) run.step_w = decode.joules[0] / decode.seconds;
    if (all.seconds > 0) run.joules = all.joules[0];
    return run;
}

/* SEGUE_EUNSUPPORTED concerns files (exit 4) until the session is open, and units or features (exit 3) afterwards. */
static int answer(struct run_job *j)
{
    segue_error err;
    int unsupported = EXIT_BAD_INPUT;
    /* A loaded state can continue without a prompt. */
    bool json = args_has(j->args, "json"),
         resumes = args_has(j->args, "load") || args_has(j->args, "session");
    segue_status st = take_input(j->args, &err);
    if (!st) st = open_conversation(j, &err);
    if (!st)
        st = prompt_read(&j->prompt, j->args, &j->placement, j->conversation,
                         context_limit(j->args, &j->placement.info), &err);
    if (!st && !j->prompt.given && !resumes)
        st = out_fail(&err, SEGUE_EARG,
                      "run: prompt missing; give it as an argument, on standard input, or with -p, -f, --ids or --messages");
    if (!st && j->prompt.given && j->prompt.n == 0)
        st = out_fail(&err, SEGUE_EARG, "run: the prompt is empty; give at least one token");
    if (!st) st = sampler_read(&j->sampler, j->args, &j->placement.info, &err);
    if (!st) st = sampler_constrain(&j->sampler, j->args, j->placement.model, &err);
    if (!st) {
        /* With --load the cause is the file, otherwise a missing unit or feature. */
        unsupported = args_has(j->args, "load") ? EXIT_BAD_INPUT : EXIT_UNAVAILABLE;
        st = open_session(j, &err);
    }
    if (st) return out_error(&err, unsupported);
    answer_begin(&j->answer, &j->placement, j->args, j->session, j->start_ns, !json);
    answer_set_meter(&j->answer, &j->meter);
    if (args_has(j->args, "keep")) answer_set_keep(&j->answer, (size_t)args_number(j->args, "keep", 0));
    if (j->prompt.given) j->answer.prompt_pending = sessions_pending(j->session);
    answer_run(&j->answer);
    interrupt_defer(true);
    struct follow_run measured = measured_run(j);
    if (j->placement.follow) follow_prove(j->placement.follow, &measured);
    int code = finish(j);
    bool learns = j->placement.follow && !code && measured.output > LEARN_TOKENS;
    if (j->placement.follow && !json && !args_has(j->args, "quiet")) proof_say(j->placement.follow, learns);
    if (learns) follow_learn(j->placement.follow, &measured);
    if (j->answer.finish && args_has(j->args, "record")) {
        struct record_source source = {.args = j->args, .placement = &j->placement, .session = j->session,
                                       .sampling = &j->sampler.sampling, .prompt = {j->prompt.ids, j->prompt.n},
                                       .answer = {j->answer.ids, j->answer.ids_n}};
        st = record_write(args_text(j->args, "record"), &source, &err);
        if (st) code = out_error(&err, EXIT_UNAVAILABLE);
    }
    /* A failed run does not overwrite a saved state. */
    if (j->answer.finish && (args_has(j->args, "save") || args_has(j->args, "session"))) {
        st = save_session(j, &err);
        out_json_errors(false);
        if (st) code = out_error(&err, EXIT_UNAVAILABLE);
    }
    return code;
}

/* A constraint holds for what follows the last appended token, and would begin anew where tokens are dropped. */
static segue_status check_keep(const struct args *args, segue_error *err)
{
    static const char *const others[] = {"requests", "record", "grammar", "json-schema", "regex"};
    for (size_t i = 0; args_has(args, "keep") && i < sizeof others / sizeof *others; i++)
        if (args_has(args, others[i]))
            return out_fail(err, SEGUE_EARG, "flag --keep: cannot be combined with --%s; remove one of them", others[i]);
    return SEGUE_OK;
}

/* Energy cannot be attributed to single answers of --requests, because they overlap. */
static int run(struct args *args)
{
    struct run_job j = {.args = args};
    segue_error err;
    /* The name becomes part of a path, so it is checked before anything is opened. */
    if (args_has(args, "session") && !folders_plain_name(args_text(args, "session"))) {
        out_fail(&err, SEGUE_EARG,
                 "flag --session: \"%.80s\": not a plain name; remove slashes and leading dots",
                 args_text(args, "session"));
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    if (args->operands_n && args_has(args, "requests")) {
        out_fail(&err, SEGUE_EARG, "run: \"%.80s\": a prompt cannot be combined with --requests; remove one of them",
                 args->operands[0]);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    if (args_has(args, "record") && record_check_flags(args, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    if (check_keep(args, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    int code = placement_open(&j.placement, args, args_has(args, "record") ? record_placement_flags(args) : 0);
    if (code) return code;
    code = meter_open(&j.meter, args, &j.placement);
    if (!code && j.meter.name && args_has(args, "requests")) {
        out_fail(&err, SEGUE_EARG,
                 "flag --meter: cannot be combined with --requests, because the answers overlap; remove one of them");
        code = out_error(&err, EXIT_UNAVAILABLE);
    }
    if (code) {
        meter_close(&j.meter);
        placement_close(&j.placement);
        return code;
    }
    trace_begin(&j.trace, args);
    j.start_ns = out_now_ns();
    code = args_has(args, "requests") ? requests_run(args, &j.placement, &j.trace) : answer(&j);
    /* The trace is in the session. requests_run has already appended those of its sessions. */
    trace_append(&j.trace, &j.placement, j.session, 0);
    if (trace_end(&j.trace, &j.placement, &err) && !code) code = out_error(&err, EXIT_UNAVAILABLE);
    if (j.session) interrupt_unwatch(j.session);
    json_decref(j.conversation);
    answer_free(&j.answer);
    prompt_free(&j.prompt);
    sampler_free(&j.sampler);
    segue_session_close(j.session);
    meter_close(&j.meter);
    placement_close(&j.placement);
    return code;
}

/* Flags of run only. */
static const struct arg_def flag_defs[] = {
    {"requests", 0, ARG_FILE, ARG_ADVANCED, "FILE.jsonl", NULL, 0, 0,
     "answer one JSON request per line (keys: long flag names with _, and id); one JSON reply per line, in order"},
    {"parallel", 0, ARG_COUNT, ARG_ADVANCED, "N", "4", 1, 256, "requests processed at the same time"},
    {"verify-every", 0, ARG_COUNT, ARG_ADVANCED, "K", "1", 1, 1 << 30, "with --requests and --verify: check one request in K"},
    {"keep", 0, ARG_COUNT, ARG_ADVANCED, "N", NULL, 0, 2147483647.0,
     "when the context is full, drop half of the tokens after the first N"},
    ARG_END};
static const struct arg_group command_flags = {"Requests", flag_defs};
static const struct arg_group *const groups[] = {
    &flags_prompt, &flags_generation, &flags_model,  &flags_units, &flags_engine, &flags_state,
    &command_flags,          &flags_reports,    &flags_output, NULL};
const struct command cmd_run = {.name = "run",
                                .summary = "generate an answer to a prompt",
                                .operands = "[PROMPT|-]",
                                .operands_max = 1,
                                .groups = groups,
                                .example = "segue run -p 'Why is the sky blue?' -n 64 --seed 1",
                                .run = run,
                                .about = "Applies the model's chat template to a prompt and writes the answer to "
                                         "standard output while it is generated. A summary line on standard error "
                                         "reports the number of tokens, the time to the first token, tokens per second "
                                         "of both phases, the memory bandwidth used and its share of the bandwidth "
                                         "of this machine, the memory of the process, and the units that ran. "
                                         "An interrupt stops the answer with exit 130; the text so far remains, and "
                                         "--json still prints its object."};
