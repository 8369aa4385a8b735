/* archive.h: a named list of mapped tensors and of key-value facts: one type for safetensors (single,
 * sharded), GGUF (single, split) and llama2.c .bin. Read-only after open; any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_ARCHIVE_H
#define SG_TENSOR_ARCHIVE_H

#include <jansson.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tensor/tensor.h"

enum sg_meta_type { SG_META_INT, SG_META_FLOAT, SG_META_BOOL, SG_META_STRING, SG_META_ARRAY };

/* One fact of a file. Strings point into the map and are NOT NUL-terminated. */
struct sg_meta {
    const char *key;             /* NUL-terminated */
    enum sg_meta_type type;
    enum sg_meta_type item;      /* of arrays */
    union {
        int64_t i;
        double f;
        struct { const char *data; size_t len; } s;
        struct {
            uint64_t n;
            const uint8_t *data;     /* the raw elements in the map */
            uint32_t gguf_type;      /* of the elements */
            const uint64_t *at;      /* of strings: offset of each one's length word from data */
        } a;
    } v;
};

enum sg_format { SG_FORMAT_SAFETENSORS, SG_FORMAT_GGUF, SG_FORMAT_LLAMA2C };

struct sg_archive {
    enum sg_format format;
    char *path;                  /* as given */
    struct sg_map *maps;         /* [files_n] */
    char **files;                /* [files_n] */
    uint32_t files_n;
    struct sg_tensor *tensors;   /* [tensors_n], in file order */
    uint32_t tensors_n;
    uint32_t *by_name;           /* [tensors_n] sorted by name */
    struct sg_meta *meta;        /* [meta_n]; GGUF keys, safetensors __metadata__, llama2.c header numbers */
    uint32_t meta_n;
    uint32_t *meta_by_key;       /* [meta_n] sorted by key */
    struct sg_arena arena;
    uint32_t borrowed;           /* 1: maps[0] is the caller's memory, see sg_archive_open_memory */
};

/* One file (by content, not by its name's ending) or the weights of a folder: index file, else
 * model.safetensors, else every *.safetensors, else the only .gguf. Split GGUFs and shards are opened with
 * their first part. EIO, EFORMAT (offset and both numbers), EUNSUPPORTED, EMEMORY. Maps everything, touches
 * headers only. */
segue_status sg_archive_open(struct sg_archive **out, const char *path, segue_error *err);
/* One whole file that lies in memory, which must outlive the archive; for tests and fuzzing. */
segue_status sg_archive_open_memory(struct sg_archive **out, const uint8_t *bytes, size_t n, const char *name,
                                    segue_error *err);
void sg_archive_close(struct sg_archive *a);

const struct sg_tensor *sg_archive_find(const struct sg_archive *a, const char *name);   /* NULL: none */
const struct sg_meta *sg_meta_find(const struct sg_archive *a, const char *key);
/* Fallback when the key is absent. EFORMAT when it is there and of another kind (names key). Any GGUF integer
 * width. */
segue_status sg_meta_int(const struct sg_archive *a, const char *key, int64_t fallback, int64_t *out,
                         segue_error *err);
segue_status sg_meta_float(const struct sg_archive *a, const char *key, double fallback, double *out,
                           segue_error *err);
segue_status sg_meta_bool(const struct sg_archive *a, const char *key, int fallback, int *out,
                          segue_error *err);
/* *out = NULL, *len = 0 when absent. */
segue_status sg_meta_string(const struct sg_archive *a, const char *key, const char **out, size_t *len,
                            segue_error *err);
/* Element i of an array; the caller checked i < n. Int also reads bools, float also reads ints. */
int64_t sg_meta_item_int(const struct sg_meta *m, uint64_t i);
double sg_meta_item_float(const struct sg_meta *m, uint64_t i);
const char *sg_meta_item_string(const struct sg_meta *m, uint64_t i, size_t *len);

/* MLX quantisation: X.weight (U32) + X.scales + X.biases become one SG_AFFINE tensor X.weight; scales and
 * biases leave the list. Bits and group come from config.json ("quantization", per-module overrides) or, with
 * config NULL or silent, from the shapes where they allow one reading only. Other modes than affine are
 * refused by name. Does nothing to an archive without such triples. EFORMAT, EUNSUPPORTED, EMEMORY; the
 * archive is unchanged then. */
segue_status sg_archive_join_affine(struct sg_archive *a, const json_t *config, segue_error *err);

/* Content hash of every tensor's bytes, or, for files over 64 MiB, of headers, sizes and a fixed sample of
 * pages of every tensor (first, last and every 1 MiB): enough to tell two models apart, not to detect
 * damage. */
struct sg_hash sg_archive_hash(const struct sg_archive *a);
/* Hash of places, sizes and dates of all files when they were mapped. 1: exact (base/file.h): the same files with the same
 * stamp hold the same bytes. */
int sg_archive_file_id(const struct sg_archive *a, struct sg_hash *out);

/* --- writing safetensors: header from the list, then the data in list order --- */
struct sg_st_item {
    const char *name;
    enum sg_storage storage;     /* F32 F16 BF16 I32 I64 U8 */
    uint32_t rank;
    uint64_t shape[4];
    const void *data;
};
segue_status sg_safetensors_write(const char *path, const struct sg_st_item *items, size_t n,
                                  segue_error *err);

#endif
