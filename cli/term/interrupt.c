/* interrupt.c: see interrupt.h. The state is static because a signal has no argument to carry it.
 * SPDX-License-Identifier: MIT */
#include "term/interrupt.h"
#include "term/out.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { WATCHED = 256 };
static segue_session *volatile watched[WATCHED];
static volatile sig_atomic_t seen, held, json;

/* Only calls that are safe in a signal: cancel sets a flag, write and _exit go to the system. */
static void on_signal(int signal_number)
{
    (void)signal_number;
    bool any = held;
    seen = 1;
    for (int i = 0; i < WATCHED; i++)
        if (watched[i]) {
            segue_session_cancel(watched[i]);
            any = true;
        }
    if (!any) {
        static const char line[] =
            "segue: interrupted: by a signal: nothing was under way that could be kept\n";
        static const char object[] =
            "{\"error\":{\"code\":130,\"name\":\"canceled\",\"text\":\"interrupted\"}}\n";
        ssize_t n = write(2, line, sizeof line - 1);
        if (json) n = write(1, object, sizeof object - 1);
        (void)n;
        _exit(EXIT_INTERRUPTED);
    }
}

/* A mapped file that another program cut short: its pages are gone, and nothing can go on. */
static void on_vanished_page(int signal_number)
{
    (void)signal_number;
    static const char line[] =
        "segue: read: a mapped file: it became shorter while it was in use; restore the file and start again\n";
    static const char object[] = "{\"error\":{\"code\":1,\"name\":\"io\",\"text\":\"a mapped file became shorter\"}}\n";
    ssize_t n = write(2, line, sizeof line - 1);
    if (json) n = write(1, object, sizeof object - 1);
    (void)n;
    _exit(EXIT_INPUT_OUTPUT);
}

/* No SA_RESTART: a read of the terminal must end, too. */
void interrupt_begin(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    a.sa_handler = on_vanished_page;
    sigaction(SIGBUS, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
}

void interrupt_watch(segue_session *s)
{
    for (int i = 0; i < WATCHED; i++)
        if (!watched[i]) {
            watched[i] = s;
            return;
        }
}

void interrupt_unwatch(segue_session *s)
{
    for (int i = 0; i < WATCHED; i++)
        if (watched[i] == s) watched[i] = NULL;
}

void interrupt_json(bool on) { json = on; }

void interrupt_hold(bool hold) { held = hold; }

bool interrupt_seen(void) { return seen; }

void interrupt_forget(void) { seen = 0; }
