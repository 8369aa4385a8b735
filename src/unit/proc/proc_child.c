/* proc_child.c: the child process: finding the command, starting it, ending it. docs/UNITS.md describes how the command is found;
 * $PATH is not searched. SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE                  /* dladdr */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit/proc/proc.h"

extern char **environ;

enum { EXIT_LIMIT_NS = 2000000000, POLL_NS = 2000000 };

/* --- finding the command --- */

/* 1: a regular file that this user may execute. */
static int is_program(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* The command next to a file, or where install and build trees have it relative to libraries and tests. */
static int find_near(const char *file, char *out, size_t cap)
{
    static const char *const places[] = {"segue", "../bin/segue", "../../bin/segue", "../segue"};
    const char *slash = strrchr(file, '/');
    if (!slash) return 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int n = snprintf(out, cap, "%.*s/%s", (int)(slash - file), file, places[i]);
        if (n > 0 && (size_t)n < cap && is_program(out)) return 1;
    }
    return 0;
}

/* The file that contains this code: the shared library, or the program linked with the static one. */
static int this_file(char *out, size_t cap)
{
    Dl_info info;
    static const char anchor = 0;
    char *whole = dladdr(&anchor, &info) && info.dli_fname && strchr(info.dli_fname, '/') ? realpath(info.dli_fname, NULL)
                                                                                       : NULL;
    if (!whole) return 0;
    size_t n = strlen(whole);
    if (n < cap) memcpy(out, whole, n + 1);
    free(whole);
    return n < cap;
}

/* $SEGUE_COMMAND, else next to this library or program. EUNIT. */
static segue_status find_program(char *out, size_t cap, segue_error *err)
{
    const char *named = getenv("SEGUE_COMMAND");
    char file[PATH_MAX];
    if (named && *named) {
        if (strlen(named) < cap && is_program(named)) {
            memcpy(out, named, strlen(named) + 1);
            return SEGUE_OK;
        }
        return sg_fail(err, SEGUE_EUNIT,
                       "unit not opened: proc: $SEGUE_COMMAND is %.200s, which is not a program; set it to the path of segue",
                       named);
    }
    if (this_file(file, sizeof file) && find_near(file, out, cap)) return SEGUE_OK;
    ssize_t n = readlink("/proc/self/exe", file, sizeof file - 1);
    if (n > 0) {
        file[n] = 0;
        if (find_near(file, out, cap)) return SEGUE_OK;
    }
    return sg_fail(err, SEGUE_EUNIT,
                   "unit not opened: proc: the command segue was not found near this program or library; set "
                   "SEGUE_COMMAND to its path");
}

/* --- starting --- */

/* A separate process group, so that Ctrl-C at the terminal reaches the parent only. The first connection is the child's standard
 * input; its standard output is /dev/null, since the parent's output may be data. */
static int spawn(pid_t *pid, const char *program, int first)
{
    char name[] = "segue", flag[] = "--serve-unit", *const argv[] = {name, flag, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    /* The child gets default signal handlers and an empty mask, whatever the host program has set. */
    sigemptyset(&none);
    sigfillset(&all);
    int code = posix_spawn_file_actions_init(&actions);
    if (code) return code;
    code = posix_spawnattr_init(&attr);
    if (code) {
        posix_spawn_file_actions_destroy(&actions);
        return code;
    }
    code = posix_spawn_file_actions_adddup2(&actions, first, 0);
    if (!code) code = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (!code) code = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!code) code = posix_spawnattr_setpgroup(&attr, 0);
    if (!code) code = posix_spawnattr_setsigmask(&attr, &none);
    if (!code) code = posix_spawnattr_setsigdefault(&attr, &all);
    if (!code) code = posix_spawn(pid, program, &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

segue_status proc_spawn(struct proc_child *c, int *second, segue_error *err)
{
    char program[PATH_MAX];
    int one[2], two[2];
    pid_t pid = 0;
    SG_TRY(find_program(program, sizeof program, err));
    SG_TRY(sg_channel_pair(one, err));
    segue_status status = sg_channel_pair(two, err);
    if (status != SEGUE_OK) {
        close(one[0]);
        close(one[1]);
        return status;
    }
    int code = spawn(&pid, program, one[1]);
    /* The child's descriptor must be closed here: otherwise the connection would stay open after the child exits. */
    close(one[1]);
    if (code) {
        close(one[0]);
        close(two[0]);
        close(two[1]);
        return sg_fail(err, SEGUE_EUNIT, "unit not opened: proc: %.300s cannot be started: %s", program, strerror(code));
    }
    *c = (struct proc_child){.pid = pid, .page.fd = -1, .areas = {{.fd = -1}, {.fd = -1}}};
    sg_channel_init(&c->channels[0], one[0]);
    sg_channel_init(&c->channels[1], two[0]);
    *second = two[1];
    return SEGUE_OK;
}

/* --- ending --- */

/* 1: the child exited and was reaped, here or elsewhere. */
static int has_exited(pid_t pid)
{
    int ignored;
    pid_t got;
    do got = waitpid(pid, &ignored, WNOHANG);
    while (got < 0 && errno == EINTR);
    return got == pid || (got < 0 && errno == ECHILD);
}

void proc_kill(struct proc_child *c)
{
    if (c->pid > 0) kill(c->pid, SIGKILL);
}

/* The child exits when its connections close. */
void proc_end(struct proc_child *c)
{
    for (int i = 0; i < 2; i++) sg_channel_close(&c->channels[i]);
    if (c->pid > 0) {
        uint64_t until = sg_now_ns() + EXIT_LIMIT_NS;
        while (!has_exited(c->pid)) {
            if (sg_now_ns() > until) kill(c->pid, SIGKILL);
            sg_pause_ns(POLL_NS);
        }
    }
    c->pid = 0;
    sg_shared_free(&c->page);
    for (int i = 0; i < 2; i++) sg_shared_free(&c->areas[i]);
}
