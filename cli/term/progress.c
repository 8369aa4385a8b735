/* progress.c: progress line, see progress.h. Redrawn at most ten times per second; dimmed unless NO_COLOR is set.
 * SPDX-License-Identifier: MIT */
#include "term/progress.h"
#include "term/out.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Nothing is printed before progress_step, so that a short operation stays silent. */
void progress_begin(struct progress *p, const char *what, bool quiet)
{
    *p = (struct progress){.what = what, .start_ns = out_now_ns(), .enabled = !quiet && isatty(2)};
}

/* The remaining time is extrapolated from the mean speed since the start. */
void progress_step(struct progress *p, uint64_t done, uint64_t total, bool bytes)
{
    uint64_t now = out_now_ns();
    if (!p->enabled || now - p->start_ns < 1000000000u || now - p->shown_ns < 100000000u) return;
    p->shown_ns = now;
    p->visible = true;
    const char *colour = getenv("NO_COLOR");
    bool plain = colour && *colour;
    char what[80]; /* names of files come from servers */
    snprintf(what, sizeof what, "%s", p->what);
    what[out_clean(what, strlen(what), true)] = 0;
    double unit = bytes ? 1e6 : 1, s = (double)(now - p->start_ns) / 1e9;
    fprintf(stderr, "\r%s%s: %.*f%s", plain ? "" : "\033[2m", what, bytes ? 1 : 0, (double)done / unit,
            bytes ? " MB" : "");
    if (total)
        fprintf(stderr, " of %.*f (%.0f %%, %.0f s left)", bytes ? 1 : 0, (double)total / unit,
                100.0 * (double)done / (double)total, done ? s * (double)(total - done) / (double)done : 0.0);
    fprintf(stderr, "%s%s%s   ", *p->detail ? ", " : "", p->detail, plain ? "" : "\033[0m");
    fflush(stderr);
}

void progress_detail(struct progress *p, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(p->detail, sizeof p->detail, format, list);
    va_end(list);
}

/* Overwrites the line with blanks. The line has no newline, so the next output starts in its first column. */
void progress_end(struct progress *p)
{
    if (p->visible) fprintf(stderr, "\r%*s\r", *p->detail ? 140 : 78, "");
    p->enabled = false;
}

/* State shared between the calling thread and the thread that shows the line; the lock guards done and line.visible. */
struct progress_wait {
    struct progress line;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
};

/* Thread: waits for the end of the call and shows the line if that takes more than one second. */
static void *show_after_delay(void *total)
{
    struct progress_wait *w = total;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 1;
    pthread_mutex_lock(&w->lock);
    while (!w->done && pthread_cond_timedwait(&w->changed, &w->lock, &deadline) == 0) {}
    if (!w->done) {
        fprintf(stderr, "\r%s ...", w->line.what);
        fflush(stderr);
        w->line.visible = true;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The label must stay valid until progress_wait_end. */
struct progress_wait *progress_wait_begin(const char *what, bool quiet)
{
    if (quiet || !isatty(2)) return NULL;
    struct progress_wait *w = out_alloc(sizeof *w);
    sigset_t all, before;
    w->line.what = what;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    /* Block all signals in the new thread: they must interrupt a blocking read in the main thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&w->thread, NULL, show_after_delay, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) return w;
    free(w);
    return NULL;
}

/* The thread is woken, joined, and then the line is cleared. */
void progress_wait_end(struct progress_wait *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    progress_end(&w->line);
    free(w);
}
