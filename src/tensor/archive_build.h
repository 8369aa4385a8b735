/* archive_build.h: what the format readers share to fill an archive: lists with bounded growth,
 * validation of names, shapes and offsets, and the final sorting. Private to this folder.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_ARCHIVE_BUILD_H
#define SG_TENSOR_ARCHIVE_BUILD_H

#include "tensor/archive.h"

/* Limits for untrusted headers. Together they bound the memory that a header can make segue
 * allocate to 64 MB; the largest published checkpoints stay below half of each. */
enum {
    SG_TENSORS_MAX = 131072,
    SG_META_MAX = 65536,
    SG_STRINGS_MAX = 2 * 1024 * 1024, /* elements of all arrays of strings together */
    SG_NAMES_MAX = 12 * 1024 * 1024,  /* bytes of all names, keys and decoded strings together */
    SG_NAME_MAX = 1024,               /* bytes of one name or key */
    SG_FILES_MAX = 1024,              /* shards of one model */
};

/* An archive under construction. */
struct sg_build {
    struct sg_archive *a;           /* owned by the caller of the readers */
    uint32_t tensors_cap, meta_cap; /* allocated entries of a->tensors and a->meta */
    uint64_t strings;               /* used part of SG_STRINGS_MAX */
    size_t names;                   /* used part of SG_NAMES_MAX */
};

/* Map one more file; *file is its index in a->maps. EIO, ELIMIT, EMEMORY. */
segue_status sg_build_file(struct sg_build *b, const char *path, uint32_t *file, segue_error *err);
/* Make space for n more entries in one step. Optional: for readers that know the counts. EFORMAT
 * above the limits. */
segue_status sg_build_reserve(struct sg_build *b, uint32_t tensors, uint32_t meta, segue_error *err);
/* Copy a name from the file into the arena, NUL-terminated. EFORMAT unless it has 1 to SG_NAME_MAX
 * bytes of valid UTF-8 without control characters. `what` names the kind of name in messages. */
segue_status sg_build_name(struct sg_build *b, uint32_t file, const char *what, const char *s, size_t n,
                           const char **out, segue_error *err);
/* Append a zeroed tensor or metadata value with this name. The pointer is valid until the next one
 * is appended. */
segue_status sg_build_tensor(struct sg_build *b, uint32_t file, const char *name, struct sg_tensor **out,
                             segue_error *err);
segue_status sg_build_meta(struct sg_build *b, const char *key, struct sg_meta **out, segue_error *err);
/* Compute t->rows, cols and bytes from storage and shape. EFORMAT when a product overflows or a row
 * is not a whole number of blocks. For SG_OTHER, t->bytes is left unchanged. */
segue_status sg_build_shape(struct sg_build *b, struct sg_tensor *t, segue_error *err);
/* Set t->data from t->offset and t->bytes. EFORMAT when the range exceeds the file. */
segue_status sg_build_set_data(struct sg_build *b, struct sg_tensor *t, segue_error *err);
/* Indices of the tensors [from, to), sorted by offset and then by size. The caller frees *out with
 * sg_free. */
segue_status sg_build_by_offset(struct sg_build *b, uint32_t from, uint32_t to, uint32_t **out,
                                segue_error *err);
/* Sort the lists by name. EFORMAT for duplicate names and keys. */
segue_status sg_build_finish(struct sg_build *b, segue_error *err);

/* *out = a * b; returns 0 when the product exceeds 64 bits. */
int sg_mul64(uint64_t a, uint64_t b, uint64_t *out);

/* The readers. X_is: 1 if the file looks like format X. X_add: read the headers of mapped file
 * `file` into the archive. */
int sg_safetensors_is(const struct sg_map *map);
/* keep_meta 0: check __metadata__ but do not store it. */
segue_status sg_safetensors_add(struct sg_build *b, uint32_t file, int keep_meta, segue_error *err);
/* The file names in the weight_map of a safetensors index, sorted, without duplicates. The caller
 * frees each name and the list with sg_free. */
segue_status sg_safetensors_index(const char *path, char ***files, size_t *n, segue_error *err);
/* `part` counts from 0 and must equal the file's split.no. *parts gets split.count; 1 for files
 * that are not split. */
segue_status sg_gguf_add(struct sg_build *b, uint32_t file, uint32_t part, uint32_t *parts, segue_error *err);
/* After all parts were added: compare the number of tensors with split.tensors.count. */
segue_status sg_gguf_check_split(struct sg_build *b, segue_error *err);
int sg_llama2c_is(const struct sg_map *map);
segue_status sg_llama2c_add(struct sg_build *b, uint32_t file, segue_error *err);

#endif
