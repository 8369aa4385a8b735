/* reward_program.c: see reward_program.h. Both pipes are served by one poll, so that a program that writes before it has read
 * everything does not block. SPDX-License-Identifier: MIT */
#include "train/reward_program.h"
#include "term/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096, GRACE_MS = 2000, SLICE_MS = 200 };
static const double LARGEST = 1e6;

/* In a process group of its own: ^C on the terminal reaches segue only, and processes that the program starts end with it. */
static void child(const char *command, int in, int out)
{
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    dup2(in, 0);
    dup2(out, 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

segue_status reward_program_open(struct reward_program *r, const char *command, int timeout_ms, segue_error *err)
{
    int in[2], out[2];
    *r = (struct reward_program){.command = command, .timeout_ms = timeout_ms};
    if (pipe(in)) return out_fail_errno(err, "train: reward program", command, NULL);
    if (pipe(out)) {
        close(in[0]), close(in[1]);
        return out_fail_errno(err, "train: reward program", command, NULL);
    }
    /* The ends that stay here are closed in the child by exec. */
    fcntl(in[1], F_SETFD, FD_CLOEXEC), fcntl(out[0], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) child(command, in[0], out[1]);
    close(in[0]), close(out[1]);
    if (pid < 0) {
        close(in[1]), close(out[0]);
        return out_fail_errno(err, "train: reward program", command, NULL);
    }
    setpgid(pid, pid); /* here too, so that the group exists when this function returns */
    r->pid = pid, r->to = in[1], r->from = out[0];
    fcntl(r->to, F_SETFL, O_NONBLOCK);
    fcntl(r->from, F_SETFL, O_NONBLOCK);
    return SEGUE_OK;
}

void reward_program_close(struct reward_program *r)
{
    int status;
    if (r->pid) {
        /* Before its pipes are closed, which it would complain about. Without effect on a group that has ended. */
        kill(-r->pid, SIGKILL);
        close(r->to), close(r->from);
        waitpid(r->pid, &status, 0);
    }
    free(r->unread.data);
    *r = (struct reward_program){0};
}

/* --- failures --- */

static segue_status ended(struct reward_program *r, size_t done, size_t n, segue_error *err)
{
    char how[64] = "closed its output";
    int status;
    for (int i = 0; r->pid && i < GRACE_MS; i++) { /* its end follows that of its output */
        if (waitpid(r->pid, &status, WNOHANG) == r->pid) {
            if (WIFSIGNALED(status)) snprintf(how, sizeof how, "ended by signal %d", WTERMSIG(status));
            else snprintf(how, sizeof how, "ended with %d", WEXITSTATUS(status));
            close(r->to), close(r->from);
            kill(-r->pid, SIGKILL);
            r->pid = 0;
            break;
        }
        poll(NULL, 0, 1);
    }
    return out_fail(err, SEGUE_EIO, "reward program %.100s: %s after %zu of %zu numbers; mend it", r->command, how, done, n);
}

static segue_status lied(const struct reward_program *r, const char *line, size_t len, size_t at, segue_error *err)
{
    char shown[41];
    snprintf(shown, sizeof shown, "%.*s", (int)(len < 40 ? len : 40), line);
    out_clean(shown, strlen(shown), true);
    return out_fail(err, SEGUE_EFORMAT, "reward program %.100s: answer %zu: \"%s\" is no number from -1e6 to 1e6; write one per "
                    "line", r->command, at + 1, shown);
}

/* --- input and output --- */

/* Whole lines of the unread output as numbers. */
static segue_status take_numbers(struct reward_program *r, double *scores, size_t n, size_t *done, segue_error *err)
{
    size_t used = 0;
    segue_status st = SEGUE_OK;
    while (*done < n && !st) {
        const char *line = r->unread.data + used, *stop = r->unread.data ? memchr(line, '\n', r->unread.len - used) : NULL;
        if (!stop) break;
        char *after;
        double v = strtod(line, &after);
        bool none = after == line;
        while (after < stop && *after && strchr(" \t\r", *after)) after++;
        if (none || after != stop || !isfinite(v) || fabs(v) > LARGEST) st = lied(r, line, (size_t)(stop - line), *done, err);
        else scores[(*done)++] = v;
        used = (size_t)(stop - r->unread.data) + 1;
    }
    if (used) memmove(r->unread.data, r->unread.data + used, r->unread.len -= used);
    if (!st && *done < n && r->unread.len > LINE_MAX_BYTES) st = lied(r, r->unread.data, r->unread.len, *done, err);
    return st;
}

/* What there is, appended to unread. END: closed. */
static segue_status read_some(struct reward_program *r, segue_error *err)
{
    char block[4096];
    ssize_t got = read(r->from, block, sizeof block);
    if (got > 0) out_add(&r->unread, block, (size_t)got);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return SEGUE_OK;
    return got ? out_fail_errno(err, "train: reading from the reward program", r->command, NULL) : SEGUE_END;
}

segue_status reward_program_score(struct reward_program *r, const struct out_text *lines, double *scores, size_t n,
                                  segue_error *err)
{
    size_t sent = 0, done = 0, before = 0;
    uint64_t last = out_now_ns();
    segue_status st = read_some(r, err); /* what it wrote unasked */
    if (!st && r->unread.len) st = lied(r, r->unread.data, r->unread.len, 0, err);
    while (!st && done < n) {
        struct pollfd wait[2] = {{.fd = r->from, .events = POLLIN}, {.fd = sent < lines->len ? r->to : -1, .events = POLLOUT}};
        int64_t left = r->timeout_ms - (int64_t)((out_now_ns() - last) / 1000000u);
        int ready = left > 0 ? poll(wait, 2, left < SLICE_MS ? (int)left : SLICE_MS) : 0;
        if (!ready && interrupt_pending())
            return out_fail(err, SEGUE_ECANCELED, "reward program %.100s: interrupted at answer %zu", r->command, done + 1);
        if (left <= 0)
            return out_fail(err, SEGUE_EIO, "reward program %.100s: no number for answer %zu within %d s; mend it, or raise "
                            "--reward-timeout", r->command, done + 1, r->timeout_ms / 1000);
        if (wait[1].revents) {
            ssize_t wrote = write(r->to, lines->data + sent, lines->len - sent);
            if (wrote > 0) sent += (size_t)wrote;
            else if (errno != EAGAIN && errno != EINTR) sent = lines->len; /* the end of its output tells why */
        }
        if (wait[0].revents) st = read_some(r, err);
        segue_status parsed = st < 0 ? st : take_numbers(r, scores, n, &done, err);
        if (parsed) return parsed;
        if (done != before) before = done, last = out_now_ns();
    }
    if (st == SEGUE_END && done < n) return ended(r, done, n, err);
    if (st > 0) st = SEGUE_OK; /* it may end after the last number; the next call tells */
    if (!st && r->unread.len) st = lied(r, r->unread.data, r->unread.len, n, err);
    return st;
}
