/* gguf.c: reading GGUF version 2 and 3, whole or split. Every length is checked against the bytes that are
 * left before it is used; tensor bytes are placed, never touched. The meaning of keys is the families'
 * business.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "tensor/archive_build.h"

/* The file, little endian:
 *   u32 "GGUF", u32 version, u64 tensors, u64 keys
 *   keys:     string name, u32 type, value
 *   tensors:  string name, u32 dimensions, u64 size of each (the contiguous one first), u32 type, u64 offset
 *   data:     from the next multiple of the alignment on; offsets count from there
 * A string is a u64 length and its bytes; an array is a u32 type, a u64 count and the elements. */
enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64, T_N };

/* Of one value; 0 where it says its own length. */
static const uint8_t kind_bytes[T_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const kind_names[T_N] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                            "bool", "string", "array", "u64", "i64", "f64"};

/* Never moves back, and `at` never passes `size`: need() is asked before every step. */
struct reader {
    struct sg_build *b;
    uint32_t file;
    const char *path;
    const uint8_t *data;
    uint64_t at, size;
    segue_error *err;
};

/* `what` is the object that the bytes belong to: a key or tensor by name once it is known. */
static segue_status need(struct reader *r, uint64_t bytes, const char *what)
{
    if (bytes <= r->size - r->at) return SEGUE_OK;
    return sg_fail(
        r->err, SEGUE_EFORMAT,
        "open model: %s: %s at byte %llu takes %llu bytes, %llu are left; it is cut off or damaged, fetch it "
        "again",
        r->path, what, (unsigned long long)r->at, (unsigned long long)bytes,
        (unsigned long long)(r->size - r->at));
}

static segue_status take32(struct reader *r, uint32_t *v, const char *what)
{
    SG_TRY(need(r, 4, what));
    *v = sg_le32(r->data + r->at);
    r->at += 4;
    return SEGUE_OK;
}

static segue_status take64(struct reader *r, uint64_t *v, const char *what)
{
    SG_TRY(need(r, 8, what));
    *v = sg_le64(r->data + r->at);
    r->at += 8;
    return SEGUE_OK;
}

/* The bytes stay in the map and have no NUL. */
static segue_status take_string(struct reader *r, const char **s, uint64_t *n, const char *what)
{
    SG_TRY(take64(r, n, what));
    SG_TRY(need(r, *n, what));
    *s = (const char *)r->data + r->at;
    r->at += *n;
    return SEGUE_OK;
}

static int is_integer(uint32_t kind) { return kind <= T_I32 || kind == T_U64 || kind == T_I64; }

/* Any whole number or truth value. u64 beyond 2^63 wraps: read_value keeps such keys from being asked
 * this. */
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

/* Any number as a double; whole numbers beyond 2^53 are rounded. */
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

static enum sg_meta_type meta_type(uint32_t kind)
{
    return is_integer(kind)                 ? SG_META_INT
           : kind == T_F32 || kind == T_F64 ? SG_META_FLOAT
           : kind == T_BOOL                 ? SG_META_BOOL
           : kind == T_STRING               ? SG_META_STRING
                                            : SG_META_ARRAY;
}

/* Strings have no fixed width, so an array of them gets an index: without it, token i would cost i steps. */
static segue_status read_string_items(struct reader *r, struct sg_meta *m)
{
    uint64_t n = m->v.a.n, *at;
    r->b->strings += n;
    if (n > SG_STRINGS_MOST || r->b->strings > SG_STRINGS_MOST)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: %llu strings, %d in all arrays are read; the file is damaged",
                       r->path, m->key, (unsigned long long)n, SG_STRINGS_MOST);
    at = sg_arena_alloc(&r->b->a->arena, n * sizeof *at);
    if (!at) return sg_no_memory(r->path, n * sizeof *at, r->err);
    for (uint64_t i = 0; i < n; i++) {
        const char *s;
        uint64_t len;
        at[i] = (uint64_t)(r->data + r->at - m->v.a.data);
        SG_TRY(take_string(r, &s, &len, m->key));
    }
    m->v.a.at = at;
    return SEGUE_OK;
}

/* The count is compared with the bytes left before it is multiplied, so nothing can wrap. Arrays of arrays
 * occur in no published model, and each level would multiply what a small file can cost. */
static segue_status read_array(struct reader *r, struct sg_meta *m)
{
    uint32_t kind;
    SG_TRY(take32(r, &kind, m->key));
    SG_TRY(take64(r, &m->v.a.n, m->key));
    if (kind >= T_N || kind == T_ARRAY)
        return sg_fail(r->err, kind == T_ARRAY ? SEGUE_EUNSUPPORTED : SEGUE_EFORMAT,
                       "open model: %s: key %s: an array of %s (type %u) is not read; %s", r->path, m->key,
                       kind == T_ARRAY ? "arrays" : "unknown things", kind,
                       kind == T_ARRAY ? "convert the model again without it" : "the file is damaged");
    uint64_t least = kind == T_STRING ? 8 : kind_bytes[kind];
    if (m->v.a.n > (r->size - r->at) / least)
        return sg_fail(
            r->err, SEGUE_EFORMAT,
            "open model: %s: key %s: %llu elements of type %s, but %llu bytes are left; it is cut off or "
            "damaged, fetch it again",
            r->path, m->key, (unsigned long long)m->v.a.n, kind_names[kind],
            (unsigned long long)(r->size - r->at));
    m->item = meta_type(kind);
    m->v.a.gguf_type = kind;
    m->v.a.data = r->data + r->at;
    if (kind == T_STRING) return read_string_items(r, m);
    r->at += m->v.a.n * least;
    return SEGUE_OK;
}

/* One value of a key; m->key is set. */
static segue_status read_value(struct reader *r, struct sg_meta *m, uint32_t kind)
{
    const char *s;
    uint64_t n;
    if (kind >= T_N)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: value of type %u, types 0 to %d exist; the file is damaged",
                       r->path, m->key, kind, T_N - 1);
    m->type = meta_type(kind);
    if (kind == T_ARRAY) return read_array(r, m);
    if (kind == T_STRING) {
        SG_TRY(take_string(r, &s, &n, m->key));
        m->v.s.data = s;
        m->v.s.len = n;
        return SEGUE_OK;
    }
    SG_TRY(need(r, kind_bytes[kind], m->key));
    const uint8_t *p = r->data + r->at;
    r->at += kind_bytes[kind];
    if (kind == T_BOOL && p[0] > 1)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: key %s: %u is neither false nor true; the file is damaged", r->path,
                       m->key, p[0]);
    if (kind == T_U64 && sg_le64(p) > INT64_MAX)
        m->type = SG_META_FLOAT; /* so that nobody reads it as negative */
    if (m->type == SG_META_FLOAT) m->v.f = real_at(kind, p);
    else m->v.i = integer_at(kind, p);
    return SEGUE_OK;
}

static segue_status read_keys(struct reader *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const char *s, *key;
        uint64_t len;
        uint32_t kind;
        struct sg_meta *m;
        SG_TRY(take_string(r, &s, &len, "a key"));
        SG_TRY(sg_build_name(r->b, r->file, "key", s, len, &key, r->err));
        SG_TRY(take32(r, &kind, key));
        SG_TRY(sg_build_meta(r->b, key, &m, r->err));
        SG_TRY(read_value(r, m, kind));
    }
    return SEGUE_OK;
}

/* Sizes are placed later, when the start of the data is known. */
static segue_status read_tensor_info(struct reader *r)
{
    const char *s, *name, *type;
    uint64_t len, ne[4] = {1, 1, 1, 1};
    uint32_t dims, id;
    struct sg_tensor *t;
    SG_TRY(take_string(r, &s, &len, "a tensor's name"));
    SG_TRY(sg_build_name(r->b, r->file, "tensor", s, len, &name, r->err));
    SG_TRY(take32(r, &dims, name));
    if (dims < 1 || dims > 4)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s: %u dimensions, 1 to 4 are allowed; the file is damaged",
                       r->path, name, dims);
    for (uint32_t i = 0; i < dims; i++) SG_TRY(take64(r, &ne[i], name));
    SG_TRY(take32(r, &id, name));
    SG_TRY(sg_build_tensor(r->b, r->file, name, &t, r->err));
    SG_TRY(take64(r, &t->offset, name));
    t->storage = sg_storage_of_ggml(id, &type);
    t->stored_as = type;
    if (t->storage == SG_STORAGE_N) {
        t->storage = SG_OTHER;
        if (!type) t->stored_as = sg_arena_printf(&r->b->a->arena, "type %u", id);
        if (!t->stored_as) return sg_no_memory(r->path, 16, r->err);
    }
    t->rank = dims;
    for (uint32_t i = 0; i < dims; i++) t->shape[i] = ne[dims - 1 - i];
    return sg_build_shape(r->b, t, r->err);
}

/* A type that is not read has no size here: it may reach to the next tensor, or to the end of the file. */
static segue_status place_all(struct reader *r, uint32_t from, uint64_t start)
{
    struct sg_archive *a = r->b->a;
    uint32_t n = a->tensors_n - from, *order;
    segue_status s = SEGUE_OK;
    SG_TRY(sg_build_by_offset(r->b, from, a->tensors_n, &order, r->err));
    for (uint32_t i = 0; s == SEGUE_OK && i < n; i++) {
        struct sg_tensor *t = &a->tensors[order[i]];
        const struct sg_tensor *before = i ? &a->tensors[order[i - 1]] : NULL;
        uint64_t after = i + 1 < n ? a->tensors[order[i + 1]].offset : r->size - start;
        if (before && before->offset - start + before->bytes > t->offset)
            s = sg_fail(r->err, SEGUE_EFORMAT,
                        "open model: %s: tensor %s ends at byte %llu of the data, but tensor %s begins at "
                        "%llu; the file is damaged",
                        r->path, before->name, (unsigned long long)(before->offset - start + before->bytes),
                        t->name, (unsigned long long)t->offset);
        if (t->offset > r->size - start) after = t->offset;
        if (t->storage == SG_OTHER) t->bytes = after > t->offset ? after - t->offset : 0;
        t->offset = t->offset > UINT64_MAX - start ? UINT64_MAX : t->offset + start;
        if (s == SEGUE_OK) s = sg_build_place(r->b, t, r->err);
    }
    sg_free(order);
    return s;
}

/* Infos first, then their places: only behind the last info is it known where the data begins. */
static segue_status read_tensors(struct reader *r, uint64_t n, uint64_t alignment)
{
    uint32_t from = r->b->a->tensors_n;
    for (uint64_t i = 0; i < n; i++) SG_TRY(read_tensor_info(r));
    uint64_t start = r->at + (alignment - r->at % alignment) % alignment;
    for (uint32_t i = from; i < r->b->a->tensors_n; i++) {
        const struct sg_tensor *t = &r->b->a->tensors[i];
        if (t->offset % alignment)
            return sg_fail(r->err, SEGUE_EFORMAT,
                           "open model: %s: tensor %s: offset %llu is no multiple of the alignment %llu; the "
                           "file is damaged",
                           r->path, t->name, (unsigned long long)t->offset, (unsigned long long)alignment);
    }
    if (!n) return SEGUE_OK;
    if (start > r->size)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: its data begins at byte %llu, but the file has %llu; it is cut off, "
                       "fetch it again",
                       r->path, (unsigned long long)start, (unsigned long long)r->size);
    return place_all(r, from, start);
}

/* A whole number among the keys from index `from` on; the list is not sorted yet. */
static segue_status find_number(struct reader *r, uint32_t from, const char *key, uint64_t fallback,
                                uint64_t *out)
{
    struct sg_archive *a = r->b->a;
    *out = fallback;
    for (uint32_t i = from; i < a->meta_n; i++) {
        const struct sg_meta *m = &a->meta[i];
        if (strcmp(m->key, key)) continue;
        if (m->type != SG_META_INT || m->v.i < 0)
            return sg_fail(r->err, SEGUE_EFORMAT,
                           "open model: %s: key %s is no whole number from 0 up; the file is damaged",
                           r->path, key);
        *out = (uint64_t)m->v.i;
    }
    return SEGUE_OK;
}

/* Both counts are bounded by the bytes left before room for them is asked for. */
static segue_status read_header(struct reader *r, uint64_t *tensors, uint64_t *keys)
{
    uint32_t magic, version;
    SG_TRY(take32(r, &magic, "the magic"));
    SG_TRY(take32(r, &version, "the version"));
    if (magic != 0x46554747u)
        return sg_fail(r->err, SEGUE_EFORMAT,
                       "open model: %s: begins with 0x%08x, a GGUF with 0x46554747; fetch it again", r->path,
                       magic);
    if (version != 2 && version != 3)
        return sg_fail(r->err, SEGUE_EUNSUPPORTED,
                       "open model: %s: GGUF version %u%s, 2 and 3 are read; convert the model again",
                       r->path, version & 0xffffu ? version : version >> 24,
                       version & 0xffffu ? "" : " in big-endian order");
    SG_TRY(take64(r, tensors, "the number of tensors"));
    SG_TRY(take64(r, keys, "the number of keys"));
    /* A tensor takes at least 8+1+4+8+4+8 bytes, a key 8+1+4+1. */
    if (*tensors > (r->size - r->at) / 33 || *keys > (r->size - r->at) / 14)
        return sg_fail(
            r->err, SEGUE_EFORMAT,
            "open model: %s: %llu tensors and %llu keys do not fit in the %llu bytes left; it is cut off or "
            "damaged, fetch it again",
            r->path, (unsigned long long)*tensors, (unsigned long long)*keys,
            (unsigned long long)(r->size - r->at));
    uint64_t most = UINT32_MAX;
    return sg_build_reserve(r->b, (uint32_t)(*tensors < most ? *tensors : most),
                            (uint32_t)(*keys < most ? *keys : most), r->err);
}

/* Each part of a split file is a GGUF of its own with its own infos; the numbers split.no and split.count tie
 * it to the others. */
segue_status sg_gguf_add(struct sg_build *b, uint32_t file, uint32_t part, uint32_t *parts, segue_error *err)
{
    struct sg_archive *a = b->a;
    struct reader r = {b, file, a->files[file], a->maps[file].data, 0, a->maps[file].size, err};
    uint64_t tensors, keys, alignment, no, count;
    uint32_t meta_from = a->meta_n;
    SG_TRY(read_header(&r, &tensors, &keys));
    SG_TRY(read_keys(&r, keys));
    SG_TRY(find_number(&r, meta_from, "general.alignment", 32, &alignment));
    if (!alignment || alignment & (alignment - 1) || alignment > UINT32_MAX)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: key general.alignment: %llu is no power of two; the file is damaged",
                       r.path, (unsigned long long)alignment);
    SG_TRY(find_number(&r, meta_from, "split.no", 0, &no));
    SG_TRY(find_number(&r, meta_from, "split.count", 1, &count));
    if (no != part || count > SG_FILES_MOST)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: it calls itself part %llu of %llu, part %u of at most %d was expected; open the "
            "first part and keep the names of all",
            r.path, (unsigned long long)no + 1, (unsigned long long)count, part + 1, SG_FILES_MOST);
    *parts = count ? (uint32_t)count : 1;
    if (part) a->meta_n = meta_from; /* the first part speaks for all */
    return read_tensors(&r, tensors, alignment);
}

segue_status sg_gguf_check_split(struct sg_build *b, segue_error *err)
{
    struct reader r = {.b = b, .path = b->a->path, .err = err};
    uint64_t all;
    SG_TRY(find_number(&r, 0, "split.tensors.count", b->a->tensors_n, &all));
    if (all == b->a->tensors_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: %s: key split.tensors.count is %llu, the parts hold %u; fetch them again",
                   b->a->path, (unsigned long long)all, b->a->tensors_n);
}

/* --- items of arrays --- */

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
