/* archive.h: an opened weight file: a list of named tensors and of named metadata values, the same
 * for safetensors (single or sharded), GGUF (single or split) and llama2.c .bin. Immutable after
 * opening, so all threads may read it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_ARCHIVE_H
#define SG_TENSOR_ARCHIVE_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tensor/tensor.h"

enum sg_meta_type { SG_META_INT, SG_META_FLOAT, SG_META_BOOL, SG_META_STRING, SG_META_ARRAY };

/* One metadata value. Strings point into the mapped file or the archive's arena and are NOT
 * NUL-terminated. */
struct sg_meta {
    const char *key;             /* NUL-terminated */
    enum sg_meta_type type;
    enum sg_meta_type item;      /* arrays: type of the elements */
    union {
        int64_t i;               /* INT; BOOL as 0 or 1 */
        double f;                /* FLOAT; also unsigned integers above INT64_MAX */
        struct { const char *data; size_t len; } s;
        struct {
            uint64_t n;              /* number of elements */
            const uint8_t *data;     /* the elements as the file stores them, in the mapped file */
            uint32_t gguf_type;      /* GGUF type id of the elements */
            const uint64_t *at;      /* [n] arrays of strings: offset from data of each element's length word; in the arena */
        } a;
    } v;
};

enum sg_format { SG_FORMAT_SAFETENSORS, SG_FORMAT_GGUF, SG_FORMAT_LLAMA2C };

/* An opened archive. It owns everything that its members point to. */
struct sg_archive {
    enum sg_format format;
    char *path;                  /* as given to sg_archive_open */
    struct sg_map *maps;         /* [files_n] the mapped files */
    char **files;                /* [files_n] their paths */
    uint32_t files_n;            /* 1, or the number of shards */
    struct sg_tensor *tensors;   /* [tensors_n] in the order of the files' headers */
    uint32_t tensors_n;
    uint32_t *by_name;           /* [tensors_n] indices into tensors, sorted by name */
    struct sg_meta *meta;        /* [meta_n] GGUF keys, safetensors __metadata__, or llama2.c header fields */
    uint32_t meta_n;
    uint32_t *meta_by_key;       /* [meta_n] indices into meta, sorted by key */
    struct sg_arena arena;       /* names, decoded strings, string indices */
    uint32_t borrowed;           /* 1: maps[0] is the caller's memory, see sg_archive_open_memory */
};

/* Open a file, whose format is detected from its content, or the weights of a folder: the
 * safetensors index, else model.safetensors, else all *.safetensors, else the only .gguf. For
 * shards and split GGUFs, name the first part. All files are mapped, only headers are read. EIO,
 * EFORMAT (with offsets), EUNSUPPORTED, ELIMIT, EMEMORY. */
segue_status sg_archive_open(struct sg_archive **out, const char *path, segue_error *err);
/* Open the n bytes of one complete file in memory, which must outlive the archive. For tests and
 * fuzzing. */
segue_status sg_archive_open_memory(struct sg_archive **out, const uint8_t *bytes, size_t n, const char *name,
                                    segue_error *err);
void sg_archive_close(struct sg_archive *a);

/* Look up by exact name, in O(log n); NULL when absent. */
const struct sg_tensor *sg_archive_find(const struct sg_archive *a, const char *name);
const struct sg_meta *sg_meta_find(const struct sg_archive *a, const char *key);
/* Typed access: `fallback` when the key is absent, EFORMAT when its value has another type. Accepts
 * every GGUF integer width; sg_meta_float also accepts integers. */
segue_status sg_meta_int(const struct sg_archive *a, const char *key, int64_t fallback, int64_t *out,
                         segue_error *err);
segue_status sg_meta_float(const struct sg_archive *a, const char *key, double fallback, double *out,
                           segue_error *err);
segue_status sg_meta_bool(const struct sg_archive *a, const char *key, int fallback, int *out,
                          segue_error *err);
/* *out = NULL and *len = 0 when absent. */
segue_status sg_meta_string(const struct sg_archive *a, const char *key, const char **out, size_t *len,
                            segue_error *err);
/* Element i of an array; the caller checked i < m->v.a.n. _int also reads bools, _float also reads
 * integers; other types give 0 or "". */
int64_t sg_meta_item_int(const struct sg_meta *m, uint64_t i);
double sg_meta_item_float(const struct sg_meta *m, uint64_t i);
const char *sg_meta_item_string(const struct sg_meta *m, uint64_t i, size_t *len);

/* Join the tensors of quantised modules of a safetensors archive into one tensor X.weight each; the others leave the list.
 * MLX: U32 codes with scales (and biases). AutoAWQ, AutoGPTQ: qweight, qzeros, scales, g_idx. compressed-tensors:
 * weight_packed, weight_scale, ...; FP8 with weight_scale or weight_scale_inv. Bits and group sizes come from config.json
 * ("quantization" or "quantization_config") where the shapes do not tell them. Does nothing to other archives. EFORMAT,
 * EUNSUPPORTED, EMEMORY; the archive is unchanged then. */
segue_status sg_archive_join(struct sg_archive *a, const json_t *config, segue_error *err);

/* A hash of the headers, the sizes and a fixed sample of each tensor (first page, last page, one page per MiB). It selects
 * entries of caches quickly but does not prove equality: two models may share it. */
struct sg_hash sg_archive_sample(const struct sg_archive *a);
/* Identifies a model by content: a hash of every byte of all files. Reads all files. EIO: a file cannot be read, or changed
 * since it was opened. ECANCELED: *stop became 1; stop may be NULL. EMEMORY. */
segue_status sg_archive_hash(const struct sg_archive *a, struct sg_hash *out, const atomic_int *stop, segue_error *err);
uint64_t sg_archive_bytes(const struct sg_archive *a);   /* sizes of all files */
/* A hash of the ids of all files (base/file.h). Returns 1 when all ids are exact: equal hashes then
 * imply equal bytes. */
int sg_archive_file_id(const struct sg_archive *a, struct sg_hash *out);

/* One tensor for sg_safetensors_write. */
struct sg_st_item {
    const char *name;
    enum sg_storage storage;     /* any type that safetensors has a dtype for */
    uint32_t rank;               /* number of dimensions, at most 4 */
    uint64_t shape[4];           /* the last one is contiguous */
    const void *data;            /* all numbers, little endian */
};
/* Write a safetensors file: the header, then the data in the order of the list. Replaces the file
 * atomically. */
segue_status sg_safetensors_write(const char *path, const struct sg_st_item *items, size_t n,
                                  segue_error *err);

#endif
