/* progress.c: see progress.h. Redrawn at most ten times a second; NO_COLOR keeps it plain.
 * SPDX-License-Identifier: MIT */
#include "progress.h"
#include "out.h"

#include <stdlib.h>
#include <unistd.h>

void progress_begin(struct progress *p, const char *what, bool quiet)
{
    *p = (struct progress){.what = what, .begun_ns = out_now_ns(), .on = !quiet && isatty(2)};
}

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
