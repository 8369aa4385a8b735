/* gguf.c: reads GGUF version 2 and 3, single or split. Every length is compared with the bytes left
 * before it is used. Tensor data is located but not read. The meaning of keys is defined by the
 * model families.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "tensor/archive_build.h"

/* File layout, little endian:
 *   u32 "GGUF", u32 version, u64 number of tensors, u64 number of keys
 *   keys:     string name, u32 type, value
 *   tensors:  string name, u32 dimensions, u64 size of each (the contiguous one first), u32 type, u64 offset
 *   data:     starts at the next multiple of the alignment; tensor offsets are relative to it
 * A string is a u64 length and its bytes. An array is a u32 type, a u64 count and the elements. */
enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64, T_N };

/* Bytes of a value of each type; 0: variable size. */
static const uint8_t kind_bytes[T_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const kind_names[T_N] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                            "bool", "string", "array", "u64", "i64", "f64"};

/* A cursor over one file. at <= size always holds: check_left is called before every step. */
struct gguf_cursor {
    struct sg_build *b;
    uint32_t file;        /* index of the file in the archive */
    const char *path;     /* for messages */
    const uint8_t *data;  /* [size] the mapped file */
    uint64_t at, size;    /* next byte to read; size of the file */
    segue_error *err;
};

/* EFORMAT when fewer than `bytes` bytes are left. `what` names the object that is being read, for
 * the message. */
static segue_status check_left(struct gguf_cursor *r, uint64_t bytes, const char *what)
{
    if (bytes <= r->size - r->at) return SEGUE_OK;
    return sg_fail(
        r->err, SEGUE_EFORMAT,
        "open model: %s: %s at byte %llu needs %llu bytes, only %llu are left; the file is truncated or damaged, "
        "download it again",
        r->path, what, (unsigned long long)r->at, (unsigned long long)bytes,
        (unsigned long long)(r->size - r->at));
}

/* Consume an integer. */
static segue_status read_u32(struct gguf_cursor *r, uint32_t *v, const char *what)
{
    SG_TRY(check_left(r, 4, what));
    *v = sg_le32(r->data + r->at);
    r->at += 4;
    return SEGUE_OK;
}

static segue_status read_u64(struct gguf_cursor *r, uint64_t *v, const char *what)
{
    SG_TRY(check_left(r, 8, what));
    *v = sg_le64(r->data + r->at);
    r->at += 8;
    return SEGUE_OK;
}

/* Consume a string; *s points into the mapped file and is not NUL-terminated. */
static segue_status read_string(struct gguf_cursor *r, const char **s, uint64_t *n, const char *what)
{
    SG_TRY(read_u64(r, n, what));
    SG_TRY(check_left(r, *n, what));
    *s = (const char *)r->data + r->at;
    r->at += *n;
    return SEGUE_OK;
}

static int is_integer(uint32_t kind) { return kind <= T_I32 || kind == T_U64 || kind == T_I64; }

/* An integer or bool of GGUF type `kind` at p. A u64 above INT64_MAX wraps; read_value stores such
 * values as float. */
static int64_t integer_at(uint32_t kind, const uint8_t *p)
{
    switch (kind) {
    case T_I8: return (int8_t)p[0];
    case T_U16: return sg_le16(p);
    case T_I16: return (int16_t)sg_le16(p);
    case T_U32: return sg_le32(p);
    case T_I32: return (int32_t)sg_le32(p);
    case T_U64:
    case T_I64: return (int64_t)sg_le64(p);
    default: return p[0]; /* u8, bool */
    }
}

/* Any number as double. Integers above 2^53 are rounded. */
static double real_at(uint32_t kind, const uint8_t *p)
{
    double d;
    uint64_t bits;
    if (kind == T_F32) return sg_f32_of_bits(sg_le32(p));
    if (kind != T_F64) return kind == T_U64 ? (double)sg_le64(p) : (double)integer_at(kind, p);
    bits = sg_le64(p);
    memcpy(&d, &bits, 8);
    return d;
}

/* The archive's type for a GGUF type. */
static enum sg_meta_type meta_type(uint32_t kind)
{
    return is_integer(kind)                 ? SG_META_INT
           : kind == T_F32 || kind == T_F64 ? SG_META_FLOAT
           : kind == T_BOOL                 ? SG_META_BOOL
           : kind == T_STRING               ? SG_META_STRING
                                            : SG_META_ARRAY;
}

/* Strings have variable length, so an array of n strings gets an index of n offsets: without
 * it, access to element i would take i steps. Advances the cursor to the end of the array. */
static segue_status read_string_items(struct gguf_cursor *r, struct sg_meta *m)
{
    uint64_t n = m->v.a.n, *at;
    r->b->strings += n;
    if (n > SG_STRINGS_MAX || r->b->strings > SG_STRINGS_MAX)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: %llu strings, the limit for all arrays is %d; the file is damaged",
                       r->path, m->key, (unsigned long long)n, SG_STRINGS_MAX);
    at = sg_arena_alloc(&r->b->a->arena, n * sizeof *at);
    if (!at) return sg_no_memory(r->path, n * sizeof *at, r->err);
    for (uint64_t i = 0; i < n; i++) {
        const char *s;
        uint64_t len;
        at[i] = (uint64_t)(r->data + r->at - m->v.a.data);
        SG_TRY(read_string(r, &s, &len, m->key));
    }
    m->v.a.at = at;
    return SEGUE_OK;
}

/* The count is compared with the bytes left before it is multiplied, so that no product can
 * overflow. Arrays of arrays are refused: no published model has them, and nesting would multiply
 * the work that a small hostile file can cause. */
static segue_status read_array(struct gguf_cursor *r, struct sg_meta *m)
{
    uint32_t kind;
    SG_TRY(read_u32(r, &kind, m->key));
    SG_TRY(read_u64(r, &m->v.a.n, m->key));
    if (kind >= T_N || kind == T_ARRAY)
        return sg_fail(r->err, kind == T_ARRAY ? SEGUE_EUNSUPPORTED : SEGUE_EFORMAT,
                       "open model: %s: key %s: arrays of %s (type %u) are not supported; %s", r->path, m->key,
                       kind == T_ARRAY ? "arrays" : "an unknown type", kind,
                       kind == T_ARRAY ? "convert the model again without this key" : "the file is damaged");
    uint64_t min_bytes = kind == T_STRING ? 8 : kind_bytes[kind]; /* of one element; an empty string is its length word */
    if (m->v.a.n > (r->size - r->at) / min_bytes)
        return sg_fail(
            r->err, SEGUE_EFORMAT,
            "open model: %s: key %s: %llu elements of type %s, but only %llu bytes are left; the file is truncated or "
            "damaged, download it again",
            r->path, m->key, (unsigned long long)m->v.a.n, kind_names[kind],
            (unsigned long long)(r->size - r->at));
    m->item = meta_type(kind);
    m->v.a.gguf_type = kind;
    m->v.a.data = r->data + r->at;
    if (kind == T_STRING) return read_string_items(r, m);
    r->at += m->v.a.n * min_bytes;
    return SEGUE_OK;
}

/* Read the value of key m->key into m. */
static segue_status read_value(struct gguf_cursor *r, struct sg_meta *m, uint32_t kind)
{
    const char *s;
    uint64_t n;
    if (kind >= T_N)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: unknown value type %u, valid are 0 to %d; the file is damaged",
                       r->path, m->key, kind, T_N - 1);
    m->type = meta_type(kind);
    if (kind == T_ARRAY) return read_array(r, m);
    if (kind == T_STRING) {
        SG_TRY(read_string(r, &s, &n, m->key));
        m->v.s.data = s;
        m->v.s.len = n;
        return SEGUE_OK;
    }
    SG_TRY(check_left(r, kind_bytes[kind], m->key));
    const uint8_t *p = r->data + r->at;
    r->at += kind_bytes[kind];
    if (kind == T_BOOL && p[0] > 1)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: %u is not a boolean; the file is damaged", r->path,
                       m->key, p[0]);
    if (kind == T_U64 && sg_le64(p) > INT64_MAX)
        m->type = SG_META_FLOAT; /* as int64 it would be negative */
    if (m->type == SG_META_FLOAT) m->v.f = real_at(kind, p);
    else m->v.i = integer_at(kind, p);
    return SEGUE_OK;
}

/* The n key-value pairs after the header. */
static segue_status read_keys(struct gguf_cursor *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const char *s, *key;
        uint64_t len;
        uint32_t kind;
        struct sg_meta *m;
        SG_TRY(read_string(r, &s, &len, "a key"));
        SG_TRY(sg_build_name(r->b, r->file, "key", s, len, &key, r->err));
        SG_TRY(read_u32(r, &kind, key));
        SG_TRY(sg_build_meta(r->b, key, &m, r->err));
        SG_TRY(read_value(r, m, kind));
    }
    return SEGUE_OK;
}

/* One entry of the tensor list. t->offset is still relative to the data section; set_all_data makes
 * it absolute. GGUF lists dimensions with the contiguous one first, sg_tensor.shape has it last. */
static segue_status read_tensor_info(struct gguf_cursor *r)
{
    const char *s, *name, *type;
    uint64_t len, ne[4] = {1, 1, 1, 1};
    uint32_t dims, id;
    struct sg_tensor *t;
    SG_TRY(read_string(r, &s, &len, "a tensor's name"));
    SG_TRY(sg_build_name(r->b, r->file, "tensor", s, len, &name, r->err));
    SG_TRY(read_u32(r, &dims, name));
    if (dims < 1 || dims > 4)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s: %u dimensions, allowed are 1 to 4; the file is damaged",
                       r->path, name, dims);
    for (uint32_t i = 0; i < dims; i++) SG_TRY(read_u64(r, &ne[i], name));
    SG_TRY(read_u32(r, &id, name));
    SG_TRY(sg_build_tensor(r->b, r->file, name, &t, r->err));
    SG_TRY(read_u64(r, &t->offset, name));
    t->storage = sg_storage_of_ggml(id, &type);
    t->stored_as = type;
    /* An unsupported type does not prevent opening: it is reported when the tensor is used. */
    if (t->storage == SG_STORAGE_N) {
        t->storage = SG_OTHER;
        if (!type) t->stored_as = sg_arena_printf(&r->b->a->arena, "type %u", id);
        if (!t->stored_as) return sg_no_memory(r->path, 16, r->err);
    }
    t->rank = dims;
    for (uint32_t i = 0; i < dims; i++) t->shape[i] = ne[dims - 1 - i];
    return sg_build_shape(r->b, t, r->err);
}

/* Locate the data of the tensors from index `from` on, whose offsets count from file position
 * `start`. EFORMAT when two overlap or one exceeds the file. The size of an unsupported type is
 * unknown: it extends to the next tensor or to the end of the file. */
static segue_status set_all_data(struct gguf_cursor *r, uint32_t from, uint64_t start)
{
    struct sg_archive *a = r->b->a;
    uint32_t n = a->tensors_n - from, *order;
    segue_status s = SEGUE_OK;
    SG_TRY(sg_build_by_offset(r->b, from, a->tensors_n, &order, r->err));
    for (uint32_t i = 0; s == SEGUE_OK && i < n; i++) {
        struct sg_tensor *t = &a->tensors[order[i]];
        const struct sg_tensor *before = i ? &a->tensors[order[i - 1]] : NULL;
        /* The start of the next tensor, which bounds the size of a tensor of unknown type. */
        uint64_t after = i + 1 < n ? a->tensors[order[i + 1]].offset : r->size - start;
        if (before && before->offset - start + before->bytes > t->offset)
            s = sg_fail(r->err, SEGUE_EFORMAT,
                        "open model: %s: tensor %s ends at byte %llu of the data, but tensor %s starts at "
                        "%llu; the file is damaged",
                        r->path, before->name, (unsigned long long)(before->offset - start + before->bytes),
                        t->name, (unsigned long long)t->offset);
        /* Invalid offsets are reported by sg_build_set_data; here they must not wrap around. */
        if (t->offset > r->size - start) after = t->offset;
        if (t->storage == SG_OTHER) t->bytes = after > t->offset ? after - t->offset : 0;
        t->offset = t->offset > UINT64_MAX - start ? UINT64_MAX : t->offset + start;
        if (s == SEGUE_OK) s = sg_build_set_data(r->b, t, r->err);
    }
    sg_free(order);
    return s;
}

/* All entries are read first: the data section starts after the last one, at a multiple of the
 * alignment. */
static segue_status read_tensors(struct gguf_cursor *r, uint64_t n, uint64_t alignment)
{
    uint32_t from = r->b->a->tensors_n;
    for (uint64_t i = 0; i < n; i++) SG_TRY(read_tensor_info(r));
    /* Padding up to the next multiple of the alignment, none if r->at is one already. */
    uint64_t start = r->at + (alignment - r->at % alignment) % alignment;
    for (uint32_t i = from; i < r->b->a->tensors_n; i++) {
        const struct sg_tensor *t = &r->b->a->tensors[i];
        if (t->offset % alignment)
            return sg_fail(r->err, SEGUE_EFORMAT,
                           "open model: %s: tensor %s: offset %llu is not a multiple of the alignment %llu; the "
                           "file is damaged",
                           r->path, t->name, (unsigned long long)t->offset, (unsigned long long)alignment);
    }
    if (!n) return SEGUE_OK;
    if (start > r->size)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: its data starts at byte %llu, but the file has %llu bytes; it is truncated, "
                       "download it again",
                       r->path, (unsigned long long)start, (unsigned long long)r->size);
    return set_all_data(r, from, start);
}

/* A non-negative integer among the keys from index `from` on; the last one if the key is repeated.
 * Linear, because the list is not sorted yet. */
static segue_status find_number(struct gguf_cursor *r, uint32_t from, const char *key, uint64_t fallback,
                                uint64_t *out)
{
    struct sg_archive *a = r->b->a;
    *out = fallback;
    for (uint32_t i = from; i < a->meta_n; i++) {
        const struct sg_meta *m = &a->meta[i];
        if (strcmp(m->key, key)) continue;
        if (m->type != SG_META_INT || m->v.i < 0)
            return sg_fail(r->err, SEGUE_EFORMAT,
                           "open model: %s: key %s is not a non-negative integer; the file is damaged",
                           r->path, key);
        *out = (uint64_t)m->v.i;
    }
    return SEGUE_OK;
}

/* Both counts are compared with the bytes left before space for them is reserved. */
static segue_status read_header(struct gguf_cursor *r, uint64_t *tensors, uint64_t *keys)
{
    uint32_t magic, version;
    SG_TRY(read_u32(r, &magic, "the magic"));
    SG_TRY(read_u32(r, &version, "the version"));
    if (magic != 0x46554747u)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: starts with 0x%08x, a GGUF file with 0x46554747; download it again", r->path,
                       magic);
    if (version != 2 && version != 3)
        return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                       "open model: %s: GGUF version %u%s, supported are 2 and 3; convert the model again",
                       r->path, version & 0xffffu ? version : version >> 24,
                       version & 0xffffu ? "" : " in big-endian order");
    SG_TRY(read_u64(r, tensors, "the number of tensors"));
    SG_TRY(read_u64(r, keys, "the number of keys"));
    /* A tensor entry has at least 8+1+4+8+4+8 bytes, a key 8+1+4+1. */
    if (*tensors > (r->size - r->at) / 33 || *keys > (r->size - r->at) / 14)
        return sg_fail(
            r->err, SEGUE_EFORMAT,
            "open model: %s: %llu tensors and %llu keys do not fit in the %llu bytes left; the file is truncated or "
            "damaged, download it again",
            r->path, (unsigned long long)*tensors, (unsigned long long)*keys,
            (unsigned long long)(r->size - r->at));
    uint64_t max = UINT32_MAX;
    return sg_build_reserve(r->b, (uint32_t)(*tensors < max ? *tensors : max),
                            (uint32_t)(*keys < max ? *keys : max), r->err);
}

/* Each part of a split model is a complete GGUF with its own tensor list. split.no and split.count
 * give its position. Only the metadata of the first part is kept. */
segue_status sg_gguf_add(struct sg_build *b, uint32_t file, uint32_t part, uint32_t *parts, segue_error *err)
{
    struct sg_archive *a = b->a;
    struct gguf_cursor r = {b, file, a->files[file], a->maps[file].data, 0, a->maps[file].size, err};
    uint64_t tensors, keys, alignment, no, count;
    uint32_t meta_from = a->meta_n;
    SG_TRY(read_header(&r, &tensors, &keys));
    SG_TRY(read_keys(&r, keys));
    SG_TRY(find_number(&r, meta_from, "general.alignment", 32, &alignment));
    if (!alignment || alignment & (alignment - 1) || alignment > UINT32_MAX)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: key general.alignment: %llu is not a power of two; the file is damaged",
                       r.path, (unsigned long long)alignment);
    /* Part numbers in the file count from 0. */
    SG_TRY(find_number(&r, meta_from, "split.no", 0, &no));
    SG_TRY(find_number(&r, meta_from, "split.count", 1, &count));
    if (no != part || count > SG_FILES_MAX)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: this is part %llu of %llu, expected part %u of at most %d; open the first part and do not "
            "rename the parts",
            r.path, (unsigned long long)no + 1, (unsigned long long)count, part + 1, SG_FILES_MAX);
    *parts = count ? (uint32_t)count : 1;
    if (part) a->meta_n = meta_from; /* drop this part's keys */
    return read_tensors(&r, tensors, alignment);
}

segue_status sg_gguf_check_split(struct sg_build *b, segue_error *err)
{
    struct gguf_cursor r = {.b = b, .path = b->a->path, .err = err};
    uint64_t all;
    SG_TRY(find_number(&r, 0, "split.tensors.count", b->a->tensors_n, &all));
    if (all == b->a->tensors_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: %s: key split.tensors.count is %llu, the parts have %u tensors; download them again",
                   b->a->path, (unsigned long long)all, b->a->tensors_n);
}

/* --- elements of arrays, declared in archive.h --- */

/* Types that cannot be converted give 0; callers check the element type if it matters. */
int64_t sg_meta_item_int(const struct sg_meta *m, uint64_t i)
{
    uint32_t kind = m->v.a.gguf_type;
    if (kind >= T_N || !kind_bytes[kind] || kind == T_F32 || kind == T_F64) return 0;
    return integer_at(kind, m->v.a.data + i * kind_bytes[kind]);
}

double sg_meta_item_float(const struct sg_meta *m, uint64_t i)
{
    uint32_t kind = m->v.a.gguf_type;
    return kind < T_N && kind_bytes[kind] ? real_at(kind, m->v.a.data + i * kind_bytes[kind]) : 0;
}

const char *sg_meta_item_string(const struct sg_meta *m, uint64_t i, size_t *len)
{
    if (m->v.a.gguf_type != T_STRING) {
        *len = 0;
        return "";
    }
    const uint8_t *p = m->v.a.data + m->v.a.at[i];
    *len = sg_le64(p);
    return (const char *)p + 8;
}
