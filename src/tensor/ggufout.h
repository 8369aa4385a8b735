/* ggufout.h: writes GGUF version 3. Order of calls: the keys, sg_gguf_out_begin with the tensor
 * list, the data of the tensors in any order, sg_gguf_out_commit, sg_gguf_out_close. The file is
 * replaced atomically by the commit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_GGUFOUT_H
#define SG_TENSOR_GGUFOUT_H

#include "tensor/archive.h"

/* One tensor to write. */
struct sg_gguf_item {
    const char *name;
    enum sg_storage storage;     /* a type with a GGUF id */
    uint32_t rank;               /* number of dimensions */
    uint64_t shape[4];           /* in the order of PyTorch: the last one is contiguous */
    uint64_t bytes, offset;      /* set by begin: size, and offset from the start of the data section */
};

/* A GGUF file being written. Zero-initialise. */
struct sg_gguf_out {
    struct sg_buf keys;          /* the encoded key-value pairs */
    uint64_t keys_n;             /* number of pairs */
    struct sg_gguf_item *items;  /* [items_n] owned by the caller, used until close */
    uint32_t items_n;
    uint64_t data_at;            /* file offset of the data section */
    struct sg_file_out file;
};

/* Append one key; before begin. Errors are kept in keys.failed and reported by begin. */
void sg_gguf_key_u32(struct sg_gguf_out *o, const char *key, uint32_t v);
void sg_gguf_key_f32(struct sg_gguf_out *o, const char *key, float v);
void sg_gguf_key_bool(struct sg_gguf_out *o, const char *key, int v);
void sg_gguf_key_string(struct sg_gguf_out *o, const char *key, const char *text, size_t len);
/* Append a key with an array: one call with the count n, then exactly n calls of the put function
 * of the same type. */
void sg_gguf_key_string_array(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_string(struct sg_gguf_out *o, const char *text, size_t len);
void sg_gguf_key_i32_array(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_i32(struct sg_gguf_out *o, int32_t v);
void sg_gguf_key_f32_array(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_f32(struct sg_gguf_out *o, float v);
/* Append a key of another GGUF file with the same value. */
void sg_gguf_key_copy(struct sg_gguf_out *o, const struct sg_meta *m);

/* Lay out the data and write everything before it. EIO, EFORMAT (a shape that is not whole blocks),
 * EMEMORY. */
segue_status sg_gguf_out_begin(struct sg_gguf_out *o, const char *path, struct sg_gguf_item *items, uint32_t n,
                               segue_error *err);
/* Write n bytes of item i at offset `at` within its data. */
segue_status sg_gguf_out_data(struct sg_gguf_out *o, uint32_t i, uint64_t at, const void *bytes, size_t n,
                              segue_error *err);
/* Pad the data section and replace the target file. */
segue_status sg_gguf_out_commit(struct sg_gguf_out *o, segue_error *err);
void sg_gguf_out_close(struct sg_gguf_out *o);

#endif
