/* store.h: an on-disk cache: one folder of files that may be deleted at any time. One writer at a
 * time, bounded in size, least recently used files are evicted first. Readers need no lock: files
 * appear complete by rename, and a mapped file stays readable after it is deleted.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_STORE_H
#define SG_BASE_STORE_H

#include "base/err.h"

/* Create the folder and lock it for writing, without waiting. *lock is a descriptor for
 * sg_store_unlock; the lock is also released when the process ends. EIO: the folder cannot be
 * created or written, belongs to another user or is writable for others, or another process holds the lock. */
segue_status sg_store_lock(const char *folder, int *lock, segue_error *err);
void sg_store_unlock(int lock);

/* With the lock held: delete the temporary files of interrupted writers, then evict the least
 * recently used files until the remaining bytes plus `reserve` are at most `max`. Files that share
 * the name up to the first dot form one entry and are evicted together. ELIMIT: reserve > max. */
segue_status sg_store_trim(const char *folder, uint64_t reserve, uint64_t max, segue_error *err);


#endif
