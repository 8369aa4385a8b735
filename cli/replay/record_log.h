/* record_log.h: the file of serve --record, to which the requests of all threads are appended, up to a bound.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_RECORD_LOG_H
#define SEGUE_CLI_RECORD_LOG_H

#include <pthread.h>
#include <stdatomic.h>
#include "replay/recording.h"

struct record_log {
    const char *path; /* of the caller; NULL: nothing is recorded */
    pthread_mutex_t lock;
    int fd;
    uint64_t bytes, bytes_max;
    size_t records;
    atomic_bool ended; /* the bound was reached, or a write failed: later requests are not recorded */
};

/* An empty private file instead of one that was there. bytes_max: at most RECORD_BYTES, which is what replay reads. */
segue_status record_log_open(struct record_log *log, const char *path, uint64_t bytes_max, segue_error *err);
/* Append the record of an answer. If it exceeds the bound or cannot be written, nothing is added, the recording ends, and a line
 * on stderr has the reason. Any thread. */
void record_log_add(struct record_log *log, const struct record_source *source);
/* Whether the next request is to be recorded. log: NULL is allowed. */
bool record_log_on(struct record_log *log);
void record_log_close(struct record_log *log);

#endif
