/* file.h: files. Reading maps; writing goes aside, is synced and renamed, so that the old file or the new one is there.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_FILE_H
#define SG_BASE_FILE_H

#include "base/buf.h"

/* Which bytes a file held when it was opened: of one file, two equal stamps that are exact mean the same bytes. exact: the
 * file system dates every change (a date that no program can set back), and the last one lies SG_FILE_ID_SETTLE_S behind,
 * so that no writer hides behind the same date, not even one that writes through a mapping. */
enum { SG_FILE_ID_SETTLE_S = 60 };
struct sg_file_id {
    uint64_t device, inode, size, modified_ns, changed_ns;
    uint32_t owner;              /* user id */
    uint32_t exact;
};
/* 1: a file system of this kind (statfs) and a change that long ago are enough for a exact stamp. */
int sg_file_id_is_exact(uint64_t kind, uint64_t changed_ns, uint64_t now_ns);

/* A file mapped read-only. Zero-size files map as data = "" and size 0. */
struct sg_map {
    const uint8_t *data;
    size_t size;
    struct sg_file_id stamp;       /* zero: memory that is no file */
    int fd;                  /* open for as long as the map, so that another process can be lent the file; -1: none */
};
segue_status sg_map_open(struct sg_map *out, const char *path, segue_error *err);   /* EIO names path and reason */
void sg_map_close(struct sg_map *map);
/* Bytes [p, p + n) of a mapped file are not needed for now: their memory may go; they are read again when touched. */
void sg_map_forget(const void *p, size_t n);
/* All of a map is wanted soon: read it ahead, in large pages where the system can. */
void sg_map_want(const struct sg_map *map);
/* Bytes [p, p + n) are touched next: map their pages in one go. */
void sg_map_touch(const void *p, size_t n);

/* Read a whole file of at most limit bytes. EIO; ELIMIT when it is larger. Replaces the buffer's content. */
segue_status sg_file_read(struct sg_buf *out, const char *path, size_t limit, segue_error *err);

/* Written aside (PATH.tmp-PID-N), synced, renamed over PATH by commit; close without commit removes it. */
struct sg_file_out {
    char *path, *aside;
    int fd;
    uint64_t written;
};
segue_status sg_file_begin(struct sg_file_out *out, const char *path, unsigned mode, segue_error *err);
segue_status sg_file_put(struct sg_file_out *out, const void *bytes, size_t n, segue_error *err);
segue_status sg_file_put_at(struct sg_file_out *out, uint64_t offset, const void *bytes, size_t n, segue_error *err);
segue_status sg_file_commit(struct sg_file_out *out, segue_error *err);
void sg_file_close(struct sg_file_out *out);
/* A whole file FOLDER/NAME that way, mode 0644. */
segue_status sg_file_write_in(const char *folder, const char *name, const void *bytes, size_t n, segue_error *err);

/* Bytes of a file, and when it was changed last; for a folder, when a name in it was. EIO: it is not there. */
segue_status sg_file_look(const char *path, uint64_t *bytes, uint64_t *changed_ns, segue_error *err);
void sg_file_remove(const char *path);   /* as far as it can be */
void sg_file_touch(const char *path);    /* changed now */
/* 1: the name is of a file written aside (as above) by a process that is no more. */
int sg_file_abandoned(const char *name);
/* Nobody but the owner may enter the folder. */
segue_status sg_folder_private(const char *path, segue_error *err);

enum { SG_PATH_NONE, SG_PATH_FILE, SG_PATH_FOLDER, SG_PATH_OTHER };
int sg_path_kind(const char *path);
/* Join with one slash; memory of sg_alloc. NULL: out of memory. */
char *sg_path_join(const char *folder, const char *name);
/* Names in a folder that end in `ending`, sorted; hidden ones are left out. At most `most`, else ELIMIT. Free each name
 * and the list with sg_free. */
segue_status sg_folder_list(const char *path, const char *ending, size_t most, char ***names, size_t *n,
                            segue_error *err);
segue_status sg_make_folders(const char *path, segue_error *err);    /* mkdir -p, mode 0700 for new ones */
/* "cache" -> $SEGUE_HOME/cache or $XDG_CACHE_HOME/segue or ~/.cache/segue; "data" likewise with XDG_DATA_HOME and
 * ~/.local/share/segue. Memory of sg_alloc; NULL: out of memory. */
char *sg_home(const char *which);

#ifdef SEGUE_FAULTS
void sg_fault_write(uint64_t nth);   /* development builds: the n-th write fails as if the disk were full */
#endif

#endif
