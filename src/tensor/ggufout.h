/* ggufout.h: writing GGUF version 3: keys first, then the list of tensors, then their bytes in list order. The file is written
 * aside, synced and renamed; it never exists half-written.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_GGUFOUT_H
#define SG_TENSOR_GGUFOUT_H

#include "tensor/archive.h"

struct sg_gguf_item {
    const char *name;
    enum sg_storage storage;
    uint32_t rank;
    uint64_t shape[4];           /* as Hugging Face writes it: the last one is contiguous */
    uint64_t bytes, offset;      /* filled by begin */
};

struct sg_gguf_out {
    struct sg_buf keys;
    uint64_t keys_n;
    struct sg_gguf_item *items;  /* [items_n], of the caller, alive until close */
    uint32_t items_n;
    uint64_t data_at;
    struct sg_file_out file;
};

/* Keys, before begin. A failure is remembered in keys.failed. */
void sg_gguf_key_count(struct sg_gguf_out *o, const char *key, uint32_t v);
void sg_gguf_key_real(struct sg_gguf_out *o, const char *key, float v);
void sg_gguf_key_switch(struct sg_gguf_out *o, const char *key, int v);
void sg_gguf_key_text(struct sg_gguf_out *o, const char *key, const char *text, size_t len);
/* Arrays: begin_*, then exactly n items. */
void sg_gguf_key_texts(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_text(struct sg_gguf_out *o, const char *text, size_t len);
void sg_gguf_key_counts(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_count(struct sg_gguf_out *o, int32_t v);
void sg_gguf_key_reals(struct sg_gguf_out *o, const char *key, uint64_t n);
void sg_gguf_put_real(struct sg_gguf_out *o, float v);
/* A key of another GGUF, as it is. */
void sg_gguf_key_copy(struct sg_gguf_out *o, const struct sg_meta *m);

segue_status sg_gguf_out_begin(struct sg_gguf_out *o, const char *path, struct sg_gguf_item *items, uint32_t n,
                               segue_error *err);
/* Bytes [at, at + n) of item i. */
segue_status sg_gguf_out_data(struct sg_gguf_out *o, uint32_t i, uint64_t at, const void *bytes, size_t n,
                              segue_error *err);
segue_status sg_gguf_out_commit(struct sg_gguf_out *o, segue_error *err);
void sg_gguf_out_close(struct sg_gguf_out *o);

#endif
