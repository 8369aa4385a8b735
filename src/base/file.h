/* file.h: files and paths. Files are read through mappings; they are written to a temporary file
 * that is synced and renamed over the target, so that after a crash either the old or the new
 * contents exist.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_FILE_H
#define SG_BASE_FILE_H

#include "base/buf.h"

/* Identifies the contents of a file without reading them. If two ids of a file are equal and both
 * are exact, the contents are the same. exact means that the file system records every change in
 * ctime, which programs cannot set back, and that the last change is older than SG_FILE_ID_SETTLE_S
 * seconds: a later write then gets a different ctime, even a write through a mapping, which is
 * dated with a delay. */
enum { SG_FILE_ID_SETTLE_S = 60 };
struct sg_file_id {
    uint64_t device, inode, size;         /* as stat reports them; size in bytes */
    uint64_t modified_ns, changed_ns;     /* mtime and ctime, nanoseconds since 1970 */
    uint32_t owner;                       /* user id */
    uint32_t mode;                        /* permission bits, as in st_mode */
    uint32_t exact;                       /* 1: as defined above */
};
/* The rule for `exact`: kind is statfs's f_type, changed_ns the file's ctime, now_ns the wall
 * clock. */
int sg_file_id_is_exact(uint64_t kind, uint64_t changed_ns, uint64_t now_ns);

/* A file mapped read-only. Empty files have data = "", size 0 and fd -1. */
struct sg_map {
    const uint8_t *data;         /* [size] */
    size_t size;                 /* bytes */
    struct sg_file_id id;        /* taken when the file was opened; zeros: the memory is not a file */
    int fd;                      /* owned, open until sg_map_close, so that the file can be sent to another process; -1: none */
};
segue_status sg_map_open(struct sg_map *out, const char *path, segue_error *err);   /* EIO, EMEMORY */
void sg_map_close(struct sg_map *map);
/* 1: the file has another size or other dates than when it was mapped. */
int sg_map_changed(const struct sg_map *map);
/* Drop the pages of bytes [p, p + n) of a mapping from memory. They are read from the file again on
 * the next access. */
void sg_map_release(const void *p, size_t n);
/* Start reading the whole file into the page cache, with huge pages where the system supports them.
 * Does not wait. */
void sg_map_prefetch(const struct sg_map *map);
/* Enter the pages of bytes [p, p + n) into the page table at once, instead of by one page fault
 * each. Linux only. */
void sg_map_populate(const void *p, size_t n);

/* Read a regular file of at most `limit` bytes into out, replacing its contents. EIO; ELIMIT when
 * it is larger; EMEMORY. */
segue_status sg_file_read(struct sg_buf *out, const char *path, size_t limit, segue_error *err);

/* --- whose file it is: what segue wrote for itself is read back only from this user --- */

/* EIO: another user than the effective one or root owns the file, or others than its owner may write to it. `path` names it in
 * the message. For files that segue itself wrote: caches, stored states, sessions. */
segue_status sg_file_check_owner(const struct sg_file_id *id, const char *path, segue_error *err);
/* The same for a folder. EIO also when there is none. */
segue_status sg_folder_check_owner(const char *path, segue_error *err);
/* sg_file_read with this check on the opened file. */
segue_status sg_file_read_own(struct sg_buf *out, const char *path, size_t limit, segue_error *err);

/* A file being written, under the temporary name PATH.tmp-PID-RANDOM. sg_file_commit syncs it and
 * renames it to PATH; sg_file_close without a commit deletes it. Call sg_file_close in either case. */
struct sg_file_out {
    char *path, *tmp_path;       /* owned; tmp_path is NULL after the commit */
    int fd;                      /* open for writing; -1: closed */
    uint64_t written;            /* bytes written by sg_file_put, which is the offset of the next one */
};
/* Create the temporary file with permission bits `mode`. EIO, EMEMORY. */
segue_status sg_file_begin(struct sg_file_out *out, const char *path, unsigned mode, segue_error *err);
/* Append n bytes, or write n bytes at `offset`; a gap reads as zeros. */
segue_status sg_file_put(struct sg_file_out *out, const void *bytes, size_t n, segue_error *err);
segue_status sg_file_put_at(struct sg_file_out *out, uint64_t offset, const void *bytes, size_t n, segue_error *err);
segue_status sg_file_commit(struct sg_file_out *out, segue_error *err);
void sg_file_close(struct sg_file_out *out);
/* Write the whole file FOLDER/NAME this way, mode 0644. */
segue_status sg_file_write_in(const char *folder, const char *name, const void *bytes, size_t n, segue_error *err);

/* Size in bytes and time of last modification (nanoseconds since 1970). For a folder the time is
 * that of the last added or removed name. EIO: it does not exist or is not accessible. */
segue_status sg_file_stat(const char *path, uint64_t *bytes, uint64_t *changed_ns, segue_error *err);
void sg_file_remove(const char *path);   /* ignores errors */
void sg_file_touch(const char *path);    /* set the modification time to now; ignores errors */
/* 1: `name` is the temporary name of a process that no longer runs, see struct sg_file_out. */
int sg_file_abandoned(const char *name);
/* Remove all permissions of group and others from the folder. EIO, also when it belongs to another user. */
segue_status sg_folder_private(const char *path, segue_error *err);

enum { SG_PATH_NONE, SG_PATH_FILE, SG_PATH_FOLDER, SG_PATH_OTHER };
/* SG_PATH_NONE when nothing is accessible under the path. Follows symbolic links. */
int sg_path_kind(const char *path);
/* FOLDER/NAME with exactly one slash in between. The caller frees it with sg_free. NULL: out of
 * memory. */
char *sg_path_join(const char *folder, const char *name);
/* The path itself if it is a folder, else the folder that contains it ("." if the path has no
 * slash). The caller frees it with sg_free. NULL: out of memory. */
char *sg_path_folder(const char *path);
/* The names in a folder that end in `ending` and do not start with a dot, sorted. ELIMIT: there are
 * more than `max`. The caller frees each name and the list with sg_free. */
segue_status sg_folder_list(const char *path, const char *ending, size_t max, char ***names, size_t *n,
                            segue_error *err);
segue_status sg_make_folders(const char *path, segue_error *err);    /* like mkdir -p; new folders get mode 0700 */
/* The folder for segue's files. which = "cache": $SEGUE_HOME/cache, else $XDG_CACHE_HOME/segue,
 * else ~/.cache/segue. which = "data": the same with XDG_DATA_HOME and ~/.local/share/segue. The
 * caller frees it with sg_free. NULL: out of memory. */
char *sg_home(const char *which);

#ifdef SEGUE_FAULTS
void sg_fault_write(uint64_t nth);   /* development builds: the n-th write from now on fails with ENOSPC; 0 = none */
#endif

#endif
