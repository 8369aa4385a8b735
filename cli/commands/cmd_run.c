/* cmd_run.c: `segue run`: the main job. One prompt in, one answer out; with --requests, many (requests.c).
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "task/folders.h"
#include "term/interrupt.h"
#include "task/machine.h"
#include "task/report.h"
#include "commands/requests.h"
#include "task/sessions.h"
#include "bench/trace.h"

struct job {
    struct args *args;
    struct place place;
    struct choice choice;
    struct prompt prompt;
    struct answer answer;
    segue_session *session;
    const char *reuse_reason; /* when the session knows no better one than first-use */
    uint64_t begun_ns;
    struct trace trace;
    struct meter meter;
};

/* The answer is there; say what it was and how it went. */
static int finish(struct job *j)
{
    struct answer *a = &j->answer;
    bool json = args_has(j->args, "json"), cancelled = a->finish && !strcmp(a->finish, "cancel");
    const int32_t *tokens;
    size_t n = segue_session_tokens(j->session, &tokens);
    struct report r = {&j->place,
                       a,
                       j->prompt.ids,
                       j->prompt.n,
                       j->reuse_reason ? j->reuse_reason : sessions_reason(j->args),
                       j->choice.sampling.seed,
                       !cancelled && !args_has(j->args, "quiet")};
    if (json) r.measure_roof = !cancelled;
    if (!j->prompt.given && n >= a->ids_n) {
        r.prompt_ids = tokens;
        r.prompt_n = n - a->ids_n;
    }
    segue_error err;
    machine_peak_bytes();
    int code = cancelled ? EXIT_INTERRUPTED : EXIT_DONE;
    if (!a->finish) {
        a->err.status = a->status;
        code = out_exit_code(a->status, EXIT_NOT_HERE);
    }
    segue_status st = SEGUE_OK;
    if (json) {
        json_t *o = report_json(&r);
        if (!a->finish) {
            json_t *failure = out_error_json(&a->err, EXIT_NOT_HERE);
            json_object_update(o, failure);
            json_decref(failure);
        }
        st = out_json(o, 0, &err);
    } else if (a->status != SEGUE_EIO && a->ids_n && (!a->text.len || a->text.data[a->text.len - 1] != '\n'))
        st = out_write("\n", 1, &err);
    if (st) code = out_exit_code(err.status, EXIT_NOT_HERE);
    if (!a->finish || st) { /* a failure is one line */
        out_json_errors(false);
        out_error(a->finish ? &err : &a->err, EXIT_NOT_HERE);
    } else if (!args_has(j->args, "quiet"))
        report_line(&r);
    return code;
}

/* A named session that is not there yet starts empty; --load of a missing file fails. */
static segue_status open_session(struct job *j, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    opts.context = (size_t)args_number(j->args, "context", 0);
    opts.plan = place_plan(&j->place);
    opts.sampling = &j->choice.sampling;
    opts.adapters = j->place.adapters;
    opts.adapters_n = j->place.adapters_n;
    opts.checkpoint_bytes = sessions_checkpoints(j->args);
    opts.spans = trace_spans(&j->trace);
    opts.verify_rows = (size_t)args_number(j->args, "verify", 0);
    char *path = sessions_path(j->args);
    segue_status st;
    if (path && (args_has(j->args, "load") || folders_is_file(path)))
        st = sessions_load(&j->session, j->place.engine, &opts, j->args, path, j->prompt.given, &j->reuse_reason, err);
    else
        st = segue_session_open(&j->session, j->place.engine, &opts, err);
    free(path);
    if (st) return st;
    interrupt_watch(j->session);
    if (!j->prompt.given) return SEGUE_OK;
    return sessions_follow(j->session, j->prompt.ids, j->prompt.n, err);
}

/* What the library takes when no -c is given; here for refusing a huge prompt early. */
static size_t context_limit(const struct args *args, const segue_model_info *info)
{
    size_t most = info->context && info->context < 4096 ? info->context : 4096;
    return (size_t)args_number(args, "context", (double)most);
}

/* EUNSUPPORTED is about files (exit 4) until the session stands, and about this build (exit 3) from then on.
 */
static int answer(struct job *j)
{
    segue_error err;
    int unsupported = EXIT_REFUSED;
    bool json = args_has(j->args, "json"),
         goes_on = args_has(j->args, "load") || args_has(j->args, "session");
    segue_status st =
        prompt_read(&j->prompt, j->args, &j->place, context_limit(j->args, &j->place.info), &err);
    if (!st && !j->prompt.given && !goes_on)
        st = out_fail(&err, SEGUE_EARG, "run: no prompt: give -p TEXT, -f FILE, --ids or --messages");
    if (!st && j->prompt.given && j->prompt.n == 0)
        st = out_fail(&err, SEGUE_EARG, "run: the prompt is empty: no token to start from; give a text");
    if (!st) st = choice_read(&j->choice, j->args, &j->place.info, &err);
    if (!st) {
        unsupported = args_has(j->args, "load") ? EXIT_REFUSED : EXIT_NOT_HERE;
        st = open_session(j, &err);
    }
    if (st) return out_error(&err, unsupported);
    answer_begin(&j->answer, &j->place, j->args, j->session, j->begun_ns, !json);
    answer_meter(&j->answer, &j->meter);
    if (j->prompt.given) j->answer.waiting = sessions_waiting(j->session);
    answer_run(&j->answer);
    interrupt_hold(true);
    int code = finish(j);
    if (j->answer.finish && (args_has(j->args, "save") || args_has(j->args, "session"))) {
        st = sessions_save(j->args, j->session, &err);
        out_json_errors(false);
        if (st) code = out_error(&err, EXIT_NOT_HERE);
    }
    return code;
}

static int run(struct args *args)
{
    struct job j = {.args = args};
    segue_error err;
    if (args_has(args, "session") && !folders_plain_name(args_text(args, "session"))) {
        out_fail(&err, SEGUE_EARG,
                 "flag --session: \"%.80s\": no plain name; leave out slashes and leading dots",
                 args_text(args, "session"));
        return out_error(&err, EXIT_NOT_HERE);
    }
    int code = place_open(&j.place, args, 0);
    if (code) return code;
    code = meter_open(&j.meter, args, &j.place);
    if (!code && j.meter.name && args_has(args, "requests")) {
        out_fail(&err, SEGUE_EARG, "flag --meter: with --requests: answers overlap, their energy cannot be told apart");
        code = out_error(&err, EXIT_NOT_HERE);
    }
    if (code) {
        place_close(&j.place);
        return code;
    }
    trace_begin(&j.trace, args);
    j.begun_ns = out_now_ns();
    code = args_has(args, "requests") ? requests_run(args, &j.place, &j.trace) : answer(&j);
    trace_take(&j.trace, &j.place, j.session, 0);
    if (trace_end(&j.trace, &j.place, &err) && !code) code = out_error(&err, EXIT_NOT_HERE);
    if (j.session) interrupt_unwatch(j.session);
    answer_free(&j.answer);
    prompt_free(&j.prompt);
    choice_free(&j.choice);
    segue_session_close(j.session);
    place_close(&j.place);
    return code;
}

static const struct arg_def own_defs[] = {
    {"requests", 0, ARG_FILE, ARG_MINOR, "FILE.jsonl", NULL, 0, 0,
     "answer one request a line (keys: long flags with _, and id), one JSON object a line out, in order"},
    {"parallel", 0, ARG_COUNT, ARG_MINOR, "N", "4", 1, 256, "requests worked on at once"},
    ARG_END};
static const struct arg_group own = {"Requests", own_defs};
static const struct arg_group *const groups[] = {
    &flags_prompt, &flags_generation, &flags_model,  &flags_units, &flags_engine, &flags_state,
    &own,          &flags_reports,    &flags_output, NULL};
const struct command cmd_run = {.name = "run",
                                .summary = "answer a prompt",
                                .groups = groups,
                                .example = "segue run -p 'Why is the sky blue?' -n 64 --seed 1",
                                .run = run,
                                .about = "Reads a prompt, applies the model's chat template, and writes the "
                                         "answer to standard output as it comes. The "
                                         "closing line on standard error says how many tokens there were, "
                                         "the time to the first one, tokens per second "
                                         "of each phase, memory traffic and its share of what this machine "
                                         "streams, memory taken, and the units that "
                                         "ran. An interrupt stops the answer: exit 130, what was written "
                                         "stays, and --json still prints its object."};
