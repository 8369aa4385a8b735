/* record_log.c: see record_log.h. SPDX-License-Identifier: MIT */
#include "replay/record_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

segue_status record_log_open(struct record_log *log, const char *path, uint64_t bytes_max, segue_error *err)
{
    *log = (struct record_log){.path = path, .fd = -1, .bytes_max = bytes_max};
    pthread_mutex_init(&log->lock, NULL);
    segue_status st = record_create(path, err);
    errno = 0;
    if (!st && (log->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)) < 0)
        st = out_fail_errno(err, "writing the record", path, NULL);
    return st;
}

/* With the lock: all of the text or nothing, since a part in the middle of the file would make it unreadable. */
static bool append(struct record_log *log, const struct out_text *text)
{
    size_t done = 0;
    errno = 0;
    while (done < text->len) {
        ssize_t n = write(log->fd, text->data + done, text->len - done);
        if (n <= 0 && errno != EINTR) break;
        if (n > 0) done += (size_t)n;
    }
    if (done == text->len) return true;
    int why = errno;
    if (ftruncate(log->fd, (off_t)log->bytes)) why = errno;
    errno = why;
    return false;
}

void record_log_add(struct record_log *log, const struct record_source *source)
{
    struct out_text text = record_text_of(source);
    pthread_mutex_lock(&log->lock);
    if (!log->ended && log->bytes + text.len > log->bytes_max) {
        log->ended = true;
        out_note("recording ended: %s: the next record exceeds the bound of %llu MiB; later requests are not recorded", log->path,
                 (unsigned long long)(log->bytes_max >> 20));
    } else if (!log->ended && !append(log, &text)) {
        log->ended = true;
        out_note("recording ended: %s: %s; later requests are not recorded", log->path, strerror(errno));
    } else if (!log->ended) {
        log->bytes += text.len;
        log->records++;
    }
    pthread_mutex_unlock(&log->lock);
    free(text.data);
}

bool record_log_on(struct record_log *log) { return log && log->path && !log->ended; }

void record_log_close(struct record_log *log)
{
    if (!log->path) return;
    if (log->fd >= 0) close(log->fd);
    pthread_mutex_destroy(&log->lock);
}
