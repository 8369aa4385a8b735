/* ggufout.c: see ggufout.h. The file layout is described in gguf.c.
 * SPDX-License-Identifier: MIT */
#include "tensor/ggufout.h"

#include <string.h>

#include "base/bytes.h"
#include "base/num.h"

/* ALIGNMENT of the data section and of each tensor, the default of the format. T_*: GGUF type ids. */
enum { ALIGNMENT = 32, T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

/* A GGUF string: u64 length and the bytes. */
static void put_text(struct sg_buf *b, const char *text, size_t len)
{
    sg_put_u64(b, len);
    sg_buf_add(b, text, len);
}

/* Start a key-value pair: name and type; the value follows. */
static void key(struct sg_gguf_out *o, const char *name, uint32_t type)
{
    put_text(&o->keys, name, strlen(name));
    sg_put_u32(&o->keys, type);
    o->keys_n++;
}

/* Start a key with an array of n elements of type `item`. */
static void array(struct sg_gguf_out *o, const char *name, uint32_t item, uint64_t n)
{
    key(o, name, T_ARRAY);
    sg_put_u32(&o->keys, item);
    sg_put_u64(&o->keys, n);
}

void sg_gguf_key_u32(struct sg_gguf_out *o, const char *name, uint32_t v)
{
    key(o, name, T_U32);
    sg_put_u32(&o->keys, v);
}

void sg_gguf_key_f32(struct sg_gguf_out *o, const char *name, float v)
{
    key(o, name, T_F32);
    sg_put_u32(&o->keys, sg_bits_of_f32(v));
}

void sg_gguf_key_bool(struct sg_gguf_out *o, const char *name, int v)
{
    key(o, name, T_BOOL);
    sg_buf_add(&o->keys, v ? "\1" : "\0", 1);
}

void sg_gguf_key_string(struct sg_gguf_out *o, const char *name, const char *text, size_t len)
{
    key(o, name, T_STRING);
    put_text(&o->keys, text, len);
}

void sg_gguf_key_string_array(struct sg_gguf_out *o, const char *name, uint64_t n) { array(o, name, T_STRING, n); }
void sg_gguf_put_string(struct sg_gguf_out *o, const char *text, size_t len) { put_text(&o->keys, text, len); }
void sg_gguf_key_i32_array(struct sg_gguf_out *o, const char *name, uint64_t n) { array(o, name, T_I32, n); }
void sg_gguf_put_i32(struct sg_gguf_out *o, int32_t v) { sg_put_u32(&o->keys, (uint32_t)v); }
void sg_gguf_key_f32_array(struct sg_gguf_out *o, const char *name, uint64_t n) { array(o, name, T_F32, n); }
void sg_gguf_put_f32(struct sg_gguf_out *o, float v) { sg_put_u32(&o->keys, sg_bits_of_f32(v)); }

/* `bytes` has the size of each GGUF type; strings have variable size and are copied one by one. */
static void copy_array(struct sg_gguf_out *o, const struct sg_meta *m)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    array(o, m->key, m->v.a.gguf_type, m->v.a.n);
    if (m->v.a.gguf_type != T_STRING) {
        sg_buf_add(&o->keys, m->v.a.data, (size_t)m->v.a.n * bytes[m->v.a.gguf_type]);
        return;
    }
    for (uint64_t i = 0; i < m->v.a.n; i++) {
        size_t len;
        const char *text = sg_meta_item_string(m, i, &len);
        put_text(&o->keys, text, len);
    }
}

/* sg_meta does not keep the width of integers. They are written with 32 bits, which readers of the
 * format expect, as i32 if negative and u32 otherwise. */
void sg_gguf_key_copy(struct sg_gguf_out *o, const struct sg_meta *m)
{
    switch (m->type) {
    case SG_META_INT:
        key(o, m->key, m->v.i < 0 ? T_I32 : T_U32);
        sg_put_u32(&o->keys, (uint32_t)m->v.i);
        break;
    case SG_META_FLOAT: sg_gguf_key_f32(o, m->key, (float)m->v.f); break;
    case SG_META_BOOL: sg_gguf_key_bool(o, m->key, m->v.i != 0); break;
    case SG_META_STRING: sg_gguf_key_string(o, m->key, m->v.s.data, m->v.s.len); break;
    case SG_META_ARRAY: copy_array(o, m); break;
    }
}

/* v rounded up to ALIGNMENT. */
static uint64_t aligned(uint64_t v) { return (v + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Compute size and offset of each item, in list order. */
static segue_status layout_items(struct sg_gguf_out *o, segue_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < o->items_n; i++) {
        struct sg_gguf_item *t = &o->items[i];
        uint64_t rows = 1;
        for (uint32_t k = 0; k + 1 < t->rank; k++) rows *= t->shape[k];
        SG_TRY(sg_storage_row_bytes(t->storage, t->rank ? t->shape[t->rank - 1] : 1, &t->bytes, err));
        t->bytes *= rows;
        t->offset = at;
        at = aligned(at + t->bytes);
    }
    return SEGUE_OK;
}

/* The offsets of all tensors are known in advance, so their data can be written in any order
 * later. */
segue_status sg_gguf_out_begin(struct sg_gguf_out *o, const char *path, struct sg_gguf_item *items, uint32_t n,
                               segue_error *err)
{
    struct sg_buf head = {0};
    o->items = items;
    o->items_n = n;
    SG_TRY(layout_items(o, err));
    sg_buf_add(&head, "GGUF", 4);
    sg_put_u32(&head, 3);
    sg_put_u64(&head, n);
    sg_put_u64(&head, o->keys_n);
    sg_buf_add(&head, o->keys.data ? o->keys.data : "", o->keys.len);
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_gguf_item *t = &items[i];
        put_text(&head, t->name, strlen(t->name));
        sg_put_u32(&head, t->rank);
        /* GGUF lists the contiguous dimension first. */
        for (uint32_t k = t->rank; k--;) sg_put_u64(&head, t->shape[k]);
        sg_put_u32(&head, (uint32_t)sg_storage_info(t->storage)->ggml);
        sg_put_u64(&head, t->offset);
    }
    o->data_at = aligned(head.len);
    segue_status s = SEGUE_OK;
    if (head.failed || o->keys.failed) s = sg_no_memory(path, head.len, err);
    if (s == SEGUE_OK) s = sg_file_begin(&o->file, path, 0644, err);
    if (s == SEGUE_OK) s = sg_file_put(&o->file, head.data, head.len, err);
    sg_buf_free(&head);
    return s;
}

segue_status sg_gguf_out_data(struct sg_gguf_out *o, uint32_t i, uint64_t at, const void *bytes, size_t n,
                              segue_error *err)
{
    return sg_file_put_at(&o->file, o->data_at + o->items[i].offset + at, bytes, n, err);
}

segue_status sg_gguf_out_commit(struct sg_gguf_out *o, segue_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    if (o->items_n) { /* readers expect padding after the last tensor too */
        const struct sg_gguf_item *t = &o->items[o->items_n - 1];
        SG_TRY(sg_gguf_out_data(o, o->items_n - 1, t->bytes, zeros, (size_t)(aligned(t->bytes) - t->bytes), err));
    }
    return sg_file_commit(&o->file, err);
}

/* Before a commit this deletes the temporary file. */
void sg_gguf_out_close(struct sg_gguf_out *o)
{
    sg_buf_free(&o->keys);
    if (o->file.path) sg_file_close(&o->file);
    *o = (struct sg_gguf_out){.file = {.fd = -1}};
}
