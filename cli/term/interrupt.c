/* interrupt.c: signal handling, see interrupt.h. The state is static because a signal handler receives no user
 * pointer.
 * SPDX-License-Identifier: MIT */
#include "term/interrupt.h"
#include "term/out.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SESSIONS = 256 };
/* Sessions that a signal cancels; NULL: free entry. Written by the main thread, read by the handler. */
static segue_session *volatile sessions[MAX_SESSIONS];
/* A signal arrived; a signal does not end the process; the error is printed as JSON too. */
static volatile sig_atomic_t pending, deferred, json;

/* Async-signal-safe calls only: segue_session_cancel sets a flag, write and _exit are system calls. */
static void on_signal(int signal_number)
{
    (void)signal_number;
    bool handled = deferred;
    pending = 1;
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i]) {
            segue_session_cancel(sessions[i]);
            handled = true;
        }
    if (!handled) {
        static const char line[] =
            "segue: interrupted by a signal before an answer was started\n";
        static const char object[] =
            "{\"error\":{\"code\":130,\"name\":\"canceled\",\"text\":\"interrupted\"}}\n";
        ssize_t n = write(2, line, sizeof line - 1);
        if (json) n = write(1, object, sizeof object - 1);
        (void)n;
        _exit(EXIT_INTERRUPTED);
    }
}

/* SIGBUS: another program truncated a mapped file, for example the model. Its pages are gone, so the process must
 * end. */
static void on_sigbus(int signal_number)
{
    (void)signal_number;
    static const char line[] =
        "segue: read failed: a mapped file: truncated while in use; restore the file and run again\n";
    static const char object[] =
        "{\"error\":{\"code\":1,\"name\":\"io\",\"text\":\"a mapped file was truncated while in use\"}}\n";
    ssize_t n = write(2, line, sizeof line - 1);
    if (json) n = write(1, object, sizeof object - 1);
    (void)n;
    _exit(EXIT_INPUT_OUTPUT);
}

/* Without SA_RESTART, so that a signal also interrupts a read from the terminal. */
void interrupt_init(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    a.sa_handler = on_sigbus;
    sigaction(SIGBUS, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
    sigaction(SIGXFSZ, &a, NULL); /* a file beyond the limit of ulimit -f is an error of the write */
}

/* A signal between the test and the assignment is not lost: it sets `pending`, which the generation loop reads after
 * every token. */
void interrupt_watch(segue_session *s)
{
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (!sessions[i]) {
            sessions[i] = s;
            return;
        }
}

/* Call it before the session is closed, because the handler uses the pointer. */
void interrupt_unwatch(segue_session *s)
{
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i] == s) sessions[i] = NULL;
}

void interrupt_json(bool on) { json = on; }

void interrupt_defer(bool defer) { deferred = defer; }

bool interrupt_pending(void) { return pending; }

void interrupt_clear(void) { pending = 0; }
