/* cmd_ane_probe.c: `segue ane-probe`: tests of the Neural Engine of a Mac. Each test runs in a child process, because
 * a wrong call may crash or hang. Exit 3 on other machines.
 * The parent collects the JSON objects that the children write to a pipe.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "term/flags.h"
#include "term/out.h"
#include "unit/ane/apple/apple.h"
#include "unit/ane/tools/probe.h"

/* Time limit of one test, and size limit of its JSON text. */
enum { TIMEOUT_MS = 150000, MAX_ANSWER = 65536 };

/* The methods of the private framework that segue uses: expected and found type encodings. */
static json_t *methods_json(const struct sg_apple_api *api)
{
    struct sg_apple_method m;
    json_t *list = json_array();
    for (size_t i = 0; sg_apple_method_at(api, i, &m); i++) {
        json_t *o = json_pack("{s:s,s:s,s:s,s:b}", "class", m.class, "selector", m.selector, "expected",
                              m.expected, "equal", m.equal);
        if (m.found)
            json_object_set_new(o, "found", json_string(m.found));
        else
            out_null(o, "found", "the class or method does not exist on this system");
        json_array_append_new(list, o);
    }
    return list;
}

/* In a child: 0 describes the hardware and the methods, n runs test n - 1. Errors become an error object. */
static json_t *probe_json(size_t question)
{
    struct sg_apple_api api;
    segue_error err;
    char architecture[32];
    uint32_t engines, cores;
    /* Not a Mac, or a system without the private framework. */
    if (sg_apple_api_here(&api, &err)) return out_error_json(&err, EXIT_UNAVAILABLE);
    if (!question) {
        sg_apple_describe(&api, architecture, &engines, &cores);
        return json_pack("{s:s,s:i,s:i,s:o}", "architecture", architecture, "engines", (int)engines, "cores",
                         (int)cores, "methods", methods_json(&api));
    }
    struct sg_ane_device *d;
    struct sg_probe_answer a;
    if (sg_apple_open(&d, &api, NULL, &err) || sg_probe_run(d, question - 1, &a, &err))
        return out_error_json(&err, EXIT_UNAVAILABLE);
    json_t *o = json_pack("{s:s,s:s,s:b,s:s}", "name", sg_probe_name(question - 1), "question",
                          sg_probe_question(question - 1), "settled", (int)a.settled, "verdict", a.verdict);
    /* Some tests measure a value, such as dispatch_us. */
    if (a.value_name) json_object_set_new(o, a.value_name, out_real(a.value));
    sg_ane_ops_of(d)->close(d);
    return o;
}

/* Write the JSON to the pipe and exit without running atexit handlers of the parent. */
static void child_main(int to, size_t question)
{
    json_t *o = probe_json(question);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    /* A write to a pipe may be partial. */
    for (size_t done = 0, n = text ? strlen(text) : 0; done < n;) {
        ssize_t wrote = write(to, text + done, n - done);
        if (wrote <= 0) break;
        done += (size_t)wrote;
    }
    _exit(0);
}

/* Read the JSON that a child writes; NULL if it died or exceeded the time limit. */
static json_t *read_answer(int from)
{
    char *text = out_alloc(MAX_ANSWER);
    size_t n = 0;
    uint64_t end = out_now_ns() + (uint64_t)TIMEOUT_MS * 1000000u;
    for (;;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        uint64_t now = out_now_ns();
        /* The pipe reports its end when the child exits. */
        if (now >= end || poll(&p, 1, (int)((end - now) / 1000000u) + 1) <= 0) break;
        ssize_t got = read(from, text + n, MAX_ANSWER - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    /* Incomplete text is not valid JSON, so a child that died is detected here. */
    json_t *o = out_json_load(text, n, 0, NULL);
    free(text);
    return o;
}

/* Run one test in a child process. The child is killed afterwards in any case, because it may hang. */
static json_t *run_in_child(size_t question)
{
    int ends[2], status;
    if (pipe(ends)) return NULL;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        child_main(ends[1], question);
    }
    close(ends[1]);
    json_t *o = pid > 0 ? read_answer(ends[0]) : NULL;
    close(ends[0]);
    if (pid > 0) {
        /* Has no effect on a child that has exited; waitpid then only reaps it. */
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return o;
}

/* The entry of a test whose process failed. */
static json_t *no_answer(size_t question)
{
    return json_pack("{s:s,s:s,s:b,s:s}", "name", sg_probe_name(question - 1), "question",
                     sg_probe_question(question - 1), "settled", 0, "verdict",
                     "the process died or exceeded the time limit");
}

/* The result of each test is also printed as a line on stderr. */
static int run(struct args *args)
{
    segue_error err;
    /* Even finding the framework happens in a child: loading it may crash. */
    json_t *report = run_in_child(0), *error = report ? json_object_get(report, "error") : NULL;
    if (!report || error) {
        const char *text = error ? json_string_value(json_object_get(error, "text"))
                                 : "ane-probe: the process that searches the Neural Engine died; see docs/ANE.md";
        out_fail(&err, SEGUE_EUNIT, "%s", text ? text : "");
        json_decref(report);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *answers = json_array();
    /* A failed test does not stop the others. */
    for (size_t i = 1; i <= sg_probe_count(); i++) {
        json_t *one = run_in_child(i);
        if (!one) one = no_answer(i);
        const char *verdict = json_string_value(json_object_get(one, "verdict"));
        out_note("%s: %s", sg_probe_name(i - 1), verdict ? verdict : "no answer");
        json_array_append_new(answers, one);
    }
    json_object_set_new(report, "answers", answers);
    /* The file is indented, the output of --json is one line. */
    const char *path = args_text(args, "output");
    if (path && json_dump_file(report, path, JSON_INDENT(2))) {
        json_decref(report);
        out_fail_errno(&err, "writing the report", path, "check the disk");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    if (args_has(args, "json")) return out_json_exit(report);
    json_decref(report);
    return EXIT_DONE;
}

static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "FILE.json", NULL, 0, 0, "write the report to FILE.json"}, ARG_END};
static const struct arg_group command_flags = {"Report", flag_defs};
static const struct arg_group *const groups[] = {&command_flags, &flags_output, NULL};
const struct command cmd_ane_probe = {
    .name = "ane-probe",
    .summary = "test the Neural Engine of a Mac and report its behavior",
    .groups = groups,
    .example = "segue ane-probe -o report.json",
    .run = run,
    .about = "Runs small programs on the Neural Engine of a Mac, each test in a separate process, and reports the "
             "results: which methods the private framework has, whether concat and rsqrt compile, in which order "
             "surfaces are bound, whether patched weights take effect, and the time of a dispatch. Nothing is installed "
             "or changed. Exit 3 on other machines. docs/ANE.md describes the private interface."};
