/* child.c: see child.h. The parent reads the JSON that the child writes to a pipe. SPDX-License-Identifier: MIT */
#include "ane/child.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ANSWER = 1 << 20 };

/* Write the JSON to the pipe and exit without running atexit handlers of the parent. */
static void child_main(int to, json_t *o)
{
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
static json_t *read_answer(int from, int limit_ms)
{
    char *text = out_alloc(MAX_ANSWER);
    size_t n = 0;
    uint64_t end = out_now_ns() + (uint64_t)limit_ms * 1000000u;
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

json_t *child_json(json_t *(*make)(const void *context), const void *context, int limit_ms)
{
    int ends[2], status;
    if (pipe(ends)) return NULL;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        child_main(ends[1], make(context));
    }
    close(ends[1]);
    json_t *o = pid > 0 ? read_answer(ends[0], limit_ms) : NULL;
    close(ends[0]);
    if (pid > 0) {
        /* Has no effect on a child that has exited; waitpid then only reaps it. */
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return o;
}
