/* archive_build.h: how the readers fill an archive: bounded growth, checked names, sorted lists at the end.
 * For the files of this folder only.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_ARCHIVE_BUILD_H
#define SG_TENSOR_ARCHIVE_BUILD_H

#include "tensor/archive.h"

/* Together they keep a hostile header below 64 MB; the largest published checkpoints stay below half of
 * each. */
enum {
    SG_TENSORS_MOST = 131072,
    SG_META_MOST = 65536,
    SG_STRINGS_MOST = 2 * 1024 * 1024, /* items of arrays of strings, all arrays together */
    SG_NAMES_MOST = 12 * 1024 * 1024,  /* bytes of names, keys and unescaped strings */
    SG_NAME_MOST = 1024,
    SG_FILES_MOST = 1024,
};

struct sg_build {
    struct sg_archive *a;
    uint32_t tensors_cap, meta_cap;
    uint64_t strings; /* of arrays, so far */
    size_t names;     /* bytes, so far */
};

/* Map one more file; *file is its index. */
segue_status sg_build_file(struct sg_build *b, const char *path, uint32_t *file, segue_error *err);
/* Room for n more, in one step; readers that know the number call it first. */
segue_status sg_build_reserve(struct sg_build *b, uint32_t tensors, uint32_t meta, segue_error *err);
/* A checked, NUL-terminated copy of a name out of the file: no control characters, valid UTF-8, bounded. */
segue_status sg_build_name(struct sg_build *b, uint32_t file, const char *what, const char *s, size_t n,
                           const char **out, segue_error *err);
segue_status sg_build_tensor(struct sg_build *b, uint32_t file, const char *name, struct sg_tensor **out,
                             segue_error *err);
segue_status sg_build_meta(struct sg_build *b, const char *key, struct sg_meta **out, segue_error *err);
/* rows, cols and bytes from storage and shape; overflow is refused. The bytes of SG_OTHER stay as they
 * are. */
segue_status sg_build_shape(struct sg_build *b, struct sg_tensor *t, segue_error *err);
/* Refuse bytes [t->offset, +t->bytes) outside the file; else set t->data. */
segue_status sg_build_place(struct sg_build *b, struct sg_tensor *t, segue_error *err);
/* Indices of the tensors [from, to) sorted by offset, then by size; memory of sg_alloc. */
segue_status sg_build_by_offset(struct sg_build *b, uint32_t from, uint32_t to, uint32_t **out,
                                segue_error *err);
/* Sort the lists; duplicate names and keys are refused. */
segue_status sg_build_finish(struct sg_build *b, segue_error *err);

/* a * b; 0 when it does not fit. */
int sg_mul64(uint64_t a, uint64_t b, uint64_t *out);

/* The readers: the headers of one mapped file into the archive. */
int sg_safetensors_is(const struct sg_map *map);
segue_status sg_safetensors_add(struct sg_build *b, uint32_t file, int keep_meta, segue_error *err);
/* The file names in the weight_map of an index file, sorted, each once. Free each and the list with
 * sg_free. */
segue_status sg_safetensors_index(const char *path, char ***files, size_t *n, segue_error *err);
/* `part` counts from 0 and must be the file's split.no; *parts gets split.count (1 for whole files). */
segue_status sg_gguf_add(struct sg_build *b, uint32_t file, uint32_t part, uint32_t *parts, segue_error *err);
/* After all parts: split.tensors.count. */
segue_status sg_gguf_check_split(struct sg_build *b, segue_error *err);
int sg_llama2c_is(const struct sg_map *map);
segue_status sg_llama2c_add(struct sg_build *b, uint32_t file, segue_error *err);

#endif
