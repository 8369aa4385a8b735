/* progress.c: see progress.h. Redrawn at most ten times a second; NO_COLOR keeps it plain.
 * SPDX-License-Identifier: MIT */
#include "term/progress.h"
#include "term/out.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

void progress_begin(struct progress *p, const char *what, bool quiet)
{
    *p = (struct progress){.what = what, .begun_ns = out_now_ns(), .on = !quiet && isatty(2)};
}

/* The rest is guessed from the mean speed so far. */
void progress_step(struct progress *p, uint64_t done, uint64_t of, bool bytes)
{
    uint64_t now = out_now_ns();
    if (!p->on || now - p->begun_ns < 1000000000u || now - p->shown_ns < 100000000u) return;
    p->shown_ns = now;
    p->shown = true;
    const char *colour = getenv("NO_COLOR");
    bool plain = colour && *colour;
    double unit = bytes ? 1e6 : 1, s = (double)(now - p->begun_ns) / 1e9;
    fprintf(stderr, "\r%s%s: %.*f%s", plain ? "" : "\033[2m", p->what, bytes ? 1 : 0, (double)done / unit,
            bytes ? " MB" : "");
    if (of)
        fprintf(stderr, " of %.*f (%.0f %%, %.0f s left)", bytes ? 1 : 0, (double)of / unit,
                100.0 * (double)done / (double)of, done ? s * (double)(of - done) / (double)done : 0.0);
    fprintf(stderr, "%s   ", plain ? "" : "\033[0m");
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->shown) fprintf(stderr, "\r%78s\r", "");
    p->on = false;
}

struct progress_wait {
    struct progress line;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
};

/* Sleeps until the work ends, and shows the line when that takes longer than a second. */
static void *watch(void *of)
{
    struct progress_wait *w = of;
    struct timespec when;
    clock_gettime(CLOCK_REALTIME, &when);
    when.tv_sec += 1;
    pthread_mutex_lock(&w->lock);
    while (!w->ended && pthread_cond_timedwait(&w->changed, &w->lock, &when) == 0) {}
    if (!w->ended) {
        fprintf(stderr, "\r%s ...", w->line.what);
        fflush(stderr);
        w->line.shown = true;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct progress_wait *progress_wait_begin(const char *what, bool quiet)
{
    if (quiet || !isatty(2)) return NULL;
    struct progress_wait *w = out_alloc(sizeof *w);
    sigset_t all, before;
    w->line.what = what;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    /* Signals are the main thread's: a read that waits there must be woken by them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&w->thread, NULL, watch, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) return w;
    free(w);
    return NULL;
}

void progress_wait_end(struct progress_wait *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    progress_end(&w->line);
    free(w);
}
