/* store.h: a folder of files that may be deleted at any time: one writer at a time, bounded in size, the longest unused
 * go first. Readers need no lock: files come whole by renaming, and a mapped file outlives its name.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_STORE_H
#define SG_BASE_STORE_H

#include "base/err.h"

/* Makes the folder and takes its lock without waiting; the lock ends with unlock or with the process. EIO: the folder
 * cannot be made or written, or another process is writing there. */
segue_status sg_store_lock(const char *folder, int *lock, segue_error *err);
void sg_store_unlock(int lock);

/* Under the lock: what killed writers left is removed, then the files used longest ago, until what is left and `room`
 * more bytes are within `most`. A file NAME goes together with files that share its name up to the first dot. ELIMIT:
 * room alone is more. */
segue_status sg_store_trim(const char *folder, uint64_t room, uint64_t most, segue_error *err);
/* Note that a file was used now. A folder that cannot be written keeps its order; that is no failure. */
void sg_store_touch(const char *path);

#endif
