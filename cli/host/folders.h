/* folders.h: locations of models, sessions and caches, and file system helpers.
 * Returned paths are allocated; the caller frees them.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FOLDERS_H
#define SEGUE_CLI_FOLDERS_H

#include <time.h>

#include "term/args.h"
#include "term/out.h"

/* The data, cache or configuration folder of segue; which is "data", "cache" or "config". $SEGUE_HOME/WHICH if set, else
 * $XDG_DATA_HOME/segue, $XDG_CACHE_HOME/segue or $XDG_CONFIG_HOME/segue, else ~/.local/share/segue, ~/.cache/segue or
 * ~/.config/segue. Never below the current folder, unless SEGUE_HOME says so. */
char *folders_home(const char *which);
/* folders_home(which)/name; name may contain slashes. */
char *folders_path(const char *which, const char *name);
/* Create a folder and its parents, with mode 0700. */
segue_status folders_make(const char *path, segue_error *err);
/* SEGUE_EIO: the folder or file belongs to another user, or others may write to it. For files that segue itself wrote. */
segue_status folders_check_owner(const char *path, segue_error *err);
/* True for a regular file, also through a symbolic link. */
bool folders_is_file(const char *path);
bool folders_is_folder(const char *path);
/* Add the bytes and the number of files below path to *bytes and *files. Symbolic links are not followed. */
void folders_usage(const char *path, uint64_t *bytes, size_t *files);
/* folders_usage of the files whose name ends with suffix. */
void folders_usage_suffix(const char *path, const char *suffix, uint64_t *bytes, size_t *files);
/* The present time on the clock of file times. */
struct timespec folders_now(void);
/* folders_usage of the cache entries that were written or read since then: files with one name up to its first dot, of which one
 * was changed. Who reads an entry sets the time of one of its files. */
void folders_usage_since(const char *path, struct timespec since, uint64_t *bytes);
/* Remove the content of path, and path itself if remove_self. Symbolic links are removed, never followed. */
segue_status folders_remove(const char *path, bool remove_self, segue_error *err);
/* True if name is a single path component that is safe to create: no slash, no leading dot, no control characters. */
bool folders_plain_name(const char *name);
/* True if every component of a relative path is a plain name. */
bool folders_plain_path(const char *path);
/* Path of the snapshot of a Hugging Face id (OWNER/NAME) in the local cache of huggingface_hub; NULL if it is not
 * there. revision NULL: main. */
char *folders_hub_snapshot(const char *id, const char *revision);

#endif
