/* safetensors.c: reads and writes safetensors files: a JSON header, then the data without gaps or
 * overlaps. The header is scanned instead of parsed, because it may be 100 MB of untrusted text.
 * Also reads the list of shards of an index file; archive.c opens the shards.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "tensor/archive_build.h"
#include "tensor/json_scan.h"

/* File layout: u64 n, little endian; n bytes of JSON, padded with spaces; the data. The JSON is
 *  {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"KEY": "TEXT"}}
 * Offsets are relative to the start of the data. Keys may have any order, names any UTF-8, data any alignment, and tensors
 * may be empty. Gaps, overlaps and trailing bytes are errors. */

/* HEADER_MAX is the limit of the format; INDEX_MAX is far above any published index. */
enum { HEADER_MAX = 100000000, INDEX_MAX = 64 * 1024 * 1024 };

/* The dtypes with a storage type. Tensors of other dtypes open as SG_OTHER. */
static const struct {
    const char *name;
    enum sg_storage storage;
} dtypes[] = {
    {"F32", SG_F32}, {"F16", SG_F16}, {"BF16", SG_BF16}, {"F64", SG_F64},         {"I64", SG_I64},
    {"I32", SG_I32}, {"I16", SG_I16}, {"I8", SG_I8},     {"U64", SG_U64},         {"U32", SG_U32},
    {"U16", SG_U16}, {"U8", SG_U8},   {"BOOL", SG_BOOL}, {"F8_E4M3", SG_F8_E4M3}, {"F8_E5M2", SG_F8_E5M2},
};

/* Does not compare the header length with the file size, so that truncated files are recognised and
 * reported as such. */
int sg_safetensors_is(const struct sg_map *map)
{
    return map->size >= 10 && map->data[8] == '{' && sg_le64(map->data) <= HEADER_MAX;
}

/* The decoded object of one tensor. */
struct header_entry {
    char dtype[16];
    uint64_t shape[4], from, to; /* from, to: data_offsets */
    uint32_t rank;               /* number of dimensions, at most 4 */
    int seen_dtype, seen_shape, seen_offsets; /* to detect missing and duplicate keys */
};

/* Read an array of dimensions. If there are more than 4, the two leading ones are multiplied each
 * time another follows. */
static segue_status scan_shape(struct sg_json_scan *s, struct header_entry *e, segue_error *err)
{
    int first = 1, more;
    SG_TRY(sg_scan_char(s, '[', err));
    for (e->rank = 0;;) {
        uint64_t dim;
        SG_TRY(sg_scan_more(s, ']', &first, &more, err));
        if (!more) return SEGUE_OK;
        SG_TRY(sg_scan_uint(s, &dim, err));
        /* Fold the two leading dimensions to make space for one more. */
        if (e->rank == 4) {
            if (!sg_mul64(e->shape[0], e->shape[1], &e->shape[0]))
                return sg_scan_fail(s, "a shape whose size fits in 64 bits", err);
            memmove(e->shape + 1, e->shape + 2, 2 * sizeof *e->shape);
            e->rank = 3;
        }
        e->shape[e->rank++] = dim;
    }
}

/* Read [begin, end]. */
static segue_status scan_offsets(struct sg_json_scan *s, struct header_entry *e, segue_error *err)
{
    SG_TRY(sg_scan_char(s, '[', err));
    SG_TRY(sg_scan_uint(s, &e->from, err));
    SG_TRY(sg_scan_char(s, ',', err));
    SG_TRY(sg_scan_uint(s, &e->to, err));
    return sg_scan_char(s, ']', err);
}

/* Read the object of one tensor. Unknown keys are skipped, as the format's reference library does. */
static segue_status scan_entry(struct sg_json_scan *s, struct header_entry *e, segue_error *err)
{
    int first = 1, more;
    SG_TRY(sg_scan_char(s, '{', err));
    for (;;) {
        char key[32];
        size_t n;
        SG_TRY(sg_scan_more(s, '}', &first, &more, err));
        if (!more) break;
        SG_TRY(sg_scan_string(s, key, sizeof key, &n, err));
        SG_TRY(sg_scan_char(s, ':', err));
        int *seen = !strcmp(key, "dtype")          ? &e->seen_dtype
                    : !strcmp(key, "shape")        ? &e->seen_shape
                    : !strcmp(key, "data_offsets") ? &e->seen_offsets
                                                   : NULL;
        if (seen && (*seen)++) return sg_scan_fail(s, "no duplicate key before this", err);
        if (!seen) SG_TRY(sg_scan_skip(s, err));
        else if (seen == &e->seen_dtype) SG_TRY(sg_scan_string(s, e->dtype, sizeof e->dtype, &n, err));
        else if (seen == &e->seen_shape) SG_TRY(scan_shape(s, e, err));
        else SG_TRY(scan_offsets(s, e, err));
    }
    if (!e->seen_dtype || !e->seen_shape || !e->seen_offsets)
        return sg_scan_fail(s, "dtype, shape and data_offsets before this", err);
    return SEGUE_OK;
}

/* Append the tensor to the archive. The size by its shape must equal the size by its offsets; for
 * SG_OTHER this cannot be checked. data_at: file offset of the data. */
static segue_status add_entry(struct sg_build *b, uint32_t file, const char *name, const struct header_entry *e,
                              uint64_t data_at, segue_error *err)
{
    const char *path = b->a->files[file], *name_copy;
    struct sg_tensor *t;
    if (e->to < e->from || e->to > UINT64_MAX - data_at)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: tensor %s: data_offsets %llu to %llu; the file is damaged", path,
                       name, (unsigned long long)e->from, (unsigned long long)e->to);
    SG_TRY(sg_build_name(b, file, "tensor", name, strlen(name), &name_copy, err));
    SG_TRY(sg_build_tensor(b, file, name_copy, &t, err));
    t->storage = SG_OTHER;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, e->dtype)) continue;
        t->storage = dtypes[i].storage;
        t->stored_as = dtypes[i].name;
    }
    if (t->storage == SG_OTHER)
        SG_TRY(sg_build_name(b, file, "dtype", e->dtype, strlen(e->dtype), &t->stored_as, err));
    t->rank = e->rank;
    memcpy(t->shape, e->shape, e->rank * sizeof *e->shape);
    t->offset = data_at + e->from;
    t->bytes = e->to - e->from;
    SG_TRY(sg_build_shape(b, t, err));
    if (t->bytes != e->to - e->from)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: tensor %s: its shape needs %llu bytes, its data_offsets span %llu; the file is "
            "damaged",
            path, name, (unsigned long long)t->bytes, (unsigned long long)(e->to - e->from));
    return sg_build_set_data(b, t, err);
}

/* Read __metadata__, whose values must be strings. keep 0: validate only. The decoded copy needs at
 * most the length of the encoded string, which a first scan measures. */
static segue_status scan_metadata(struct sg_build *b, uint32_t file, struct sg_json_scan *s, int keep,
                                  segue_error *err)
{
    int first = 1, more;
    SG_TRY(sg_scan_char(s, '{', err));
    for (;;) {
        char key[SG_NAME_MAX + 1];
        const char *name_copy;
        struct sg_meta *m;
        size_t n;
        SG_TRY(sg_scan_more(s, '}', &first, &more, err));
        if (!more) return SEGUE_OK;
        SG_TRY(sg_scan_string(s, key, sizeof key, &n, err));
        SG_TRY(sg_scan_char(s, ':', err));
        if (sg_scan_peek(s) != '"') return sg_scan_fail(s, "a string as metadata", err);
        size_t start = s->at;
        SG_TRY(sg_scan_skip(s, err));
        if (!keep) continue;
        size_t len = s->at - start; /* decoding escapes never makes a string longer */
        b->names += len;
        if (b->names > SG_NAMES_MAX) return sg_scan_fail(s, "metadata below the size limit", err);
        char *value = sg_arena_alloc(&b->a->arena, len);
        if (!value) return sg_no_memory(s->what, len, err);
        s->at = start;
        SG_TRY(sg_scan_string(s, value, len, &len, err));
        SG_TRY(sg_build_name(b, file, "key", key, n, &name_copy, err));
        SG_TRY(sg_build_meta(b, name_copy, &m, err));
        m->type = SG_META_STRING;
        m->v.s.data = value;
        m->v.s.len = len;
    }
}

/* The data of the tensors from index `from` on, sorted by offset, must fill the file from position
 * `at` to its end exactly. */
static segue_status check_tiling(struct sg_build *b, uint32_t file, uint32_t from, uint64_t at,
                                 segue_error *err)
{
    struct sg_archive *a = b->a;
    const char *path = a->files[file];
    uint32_t *order;
    segue_status s = SEGUE_OK;
    SG_TRY(sg_build_by_offset(b, from, a->tensors_n, &order, err));
    for (uint32_t i = 0; s == SEGUE_OK && i < a->tensors_n - from; i++) {
        const struct sg_tensor *t = &a->tensors[order[i]];
        if (t->offset != at)
            s = sg_fail(err, SEGUE_EFORMAT,
                        "open model: %s: tensor %s: its data starts at byte %llu, but %s byte %llu; the file "
                        "is damaged",
                        path, t->name, (unsigned long long)t->offset,
                        t->offset < at ? "the previous tensor ends at" : "there is a gap from",
                        (unsigned long long)at);
        at = t->offset + t->bytes;
    }
    sg_free(order);
    if (s == SEGUE_OK && at != a->maps[file].size)
        s = sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: the tensors end at byte %llu, the file has %zu bytes; it is damaged, download it again",
            path, (unsigned long long)at, a->maps[file].size);
    return s;
}

/* Read one file or one shard. The tensors are checked against each other here; sg_build_finish
 * finds names that occur in several shards. */
segue_status sg_safetensors_add(struct sg_build *b, uint32_t file, int keep_meta, segue_error *err)
{
    const struct sg_map map = b->a->maps[file];
    const char *path = b->a->files[file];
    uint64_t n = map.size >= 8 ? sg_le64(map.data) : 0;
    /* The shortest valid header is "{}". */
    if (map.size < 10 || n > HEADER_MAX || n < 2 || n > map.size - 8)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: not a safetensors file: header of %llu bytes (limit %d), file of %zu bytes; "
            "download it again",
            path, (unsigned long long)n, HEADER_MAX, map.size);
    struct sg_json_scan s = {(const char *)map.data + 8, n, 0, path, 8};
    uint32_t before = b->a->tensors_n;
    int first = 1, more, had_metadata = 0;
    SG_TRY(sg_scan_char(&s, '{', err));
    for (;;) {
        char name[SG_NAME_MAX + 1];
        struct header_entry e = {0};
        size_t len;
        SG_TRY(sg_scan_more(&s, '}', &first, &more, err));
        if (!more) break;
        SG_TRY(sg_scan_string(&s, name, sizeof name, &len, err));
        /* \u0000 in a name would make different names equal for strcmp. */
        if (strlen(name) != len) return sg_scan_fail(&s, "a name without \\u0000 before this", err);
        SG_TRY(sg_scan_char(&s, ':', err));
        if (!strcmp(name, "__metadata__")) {
            if (had_metadata++) return sg_scan_fail(&s, "a single __metadata__", err);
            SG_TRY(scan_metadata(b, file, &s, keep_meta, err));
            continue;
        }
        SG_TRY(scan_entry(&s, &e, err));
        SG_TRY(add_entry(b, file, name, &e, 8 + n, err));
    }
    if (sg_scan_peek(&s) || s.at != s.len)
        return sg_scan_fail(&s, "only spaces up to the end of the header", err);
    return check_tiling(b, file, before, 8 + n, err);
}

/* --- the index file of a sharded model --- */

/* 1 for a file name without a folder: an index must not refer to files outside of its folder. */
static int name_is_plain(const char *s, size_t n)
{
    if (!n || n > 255 || strlen(s) != n || s[0] == '.') return 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '/' || s[i] == '\\' || (unsigned char)s[i] < 0x20) return 0;
    return 1;
}

/* A sorted list without duplicates; owns the strings. */
struct names {
    char **list;
    size_t n;
};

/* Insert a copy of the name unless it is present. Binary search: a weight map has an entry for each
 * of up to 100,000 tensors, but few different files. */
static segue_status add_file_name(struct names *names, const char *name, const char *path, segue_error *err)
{
    size_t low = 0, high = names->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int c = strcmp(name, names->list[middle]);
        if (!c) return SEGUE_OK;
        if (c < 0) high = middle;
        else low = middle + 1;
    }
    if (names->n == SG_FILES_MAX)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: more than %d files; the index is damaged", path,
                       SG_FILES_MAX);
    char **list = sg_realloc(names->list, (names->n + 1) * sizeof *list);
    if (!list) return sg_no_memory(path, sizeof *list, err);
    names->list = list;
    char *copy = sg_strndup(name, strlen(name));
    if (!copy) return sg_no_memory(path, strlen(name), err);
    memmove(list + low + 1, list + low, (names->n - low) * sizeof *list);
    list[low] = copy;
    names->n++;
    return SEGUE_OK;
}

/* Read the object {"TENSOR": "FILE", ...}. Only the set of files is kept: the headers of the shards
 * tell which tensors they contain. */
static segue_status scan_weight_map(struct sg_json_scan *s, struct names *names, segue_error *err)
{
    int first = 1, more;
    SG_TRY(sg_scan_char(s, '{', err));
    for (;;) {
        char name[SG_NAME_MAX + 1], file[SG_NAME_MAX + 1];
        size_t n;
        SG_TRY(sg_scan_more(s, '}', &first, &more, err));
        if (!more) return SEGUE_OK;
        SG_TRY(sg_scan_string(s, name, sizeof name, &n, err));
        SG_TRY(sg_scan_char(s, ':', err));
        SG_TRY(sg_scan_string(s, file, sizeof file, &n, err));
        if (!name_is_plain(file, n))
            return sg_fail(err, SEGUE_EFORMAT,
                           "open model: %s: tensor %s is mapped to \"%s\", which is not a plain file name; the "
                           "index is damaged",
                           s->what, name, file);
        SG_TRY(add_file_name(names, file, s->what, err));
    }
}

/* Read the top-level object of an index: weight_map is used, all else is skipped. */
static segue_status scan_index(struct sg_json_scan *s, struct names *names, segue_error *err)
{
    int first = 1, more, seen = 0;
    SG_TRY(sg_scan_char(s, '{', err));
    for (;;) {
        char key[64];
        size_t n;
        SG_TRY(sg_scan_more(s, '}', &first, &more, err));
        if (!more) break;
        SG_TRY(sg_scan_string(s, key, sizeof key, &n, err));
        SG_TRY(sg_scan_char(s, ':', err));
        int ours = !strcmp(key, "weight_map");
        if (ours && seen++) return sg_scan_fail(s, "a single weight_map", err);
        SG_TRY(ours ? scan_weight_map(s, names, err) : sg_scan_skip(s, err));
    }
    if (sg_scan_peek(s) || s->at != s->len) return sg_scan_fail(s, "the end of the file", err);
    if (names->n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: %s: it has no weight_map or an empty one; download the index again", s->what);
}

/* The index is mapped instead of read: it may be large, and is scanned once. */
segue_status sg_safetensors_index(const char *path, char ***files, size_t *n, segue_error *err)
{
    struct sg_map map;
    struct names names = {0};
    SG_TRY(sg_map_open(&map, path, err));
    struct sg_json_scan s = {(const char *)map.data, map.size, 0, path, 0};
    segue_status status = SEGUE_OK;
    if (map.size > INDEX_MAX)
        status = sg_fail(err, SEGUE_EFORMAT,
                         "open model: %s: an index of %zu bytes, the limit is %d; download it again", path,
                         map.size, INDEX_MAX);
    if (status == SEGUE_OK) status = scan_index(&s, &names, err);
    sg_map_close(&map);
    if (status == SEGUE_OK) {
        *files = names.list;
        *n = names.n;
        return SEGUE_OK;
    }
    for (size_t i = 0; i < names.n; i++) sg_free(names.list[i]);
    sg_free(names.list);
    return status;
}

/* --- writing --- */

/* Append s as a JSON string. */
static void put_string(struct sg_buf *buf, const char *s)
{
    sg_buf_puts(buf, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') sg_buf_printf(buf, "\\%c", *s);
        else if ((unsigned char)*s < 0x20) sg_buf_printf(buf, "\\u%04x", (unsigned)(unsigned char)*s);
        else sg_buf_add(buf, s, 1);
    }
    sg_buf_puts(buf, "\"");
}

/* Size and dtype of an item. EUNSUPPORTED when safetensors cannot store it, EARG when the size
 * overflows. */
static segue_status item_bytes(const char *path, const struct sg_st_item *it, uint64_t *bytes,
                               const char **dtype, segue_error *err)
{
    *dtype = NULL;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].storage == it->storage) *dtype = dtypes[i].name;
    if (!*dtype || it->rank > 4)
        return sg_fail(
            err, SEGUE_EUNSUPPORTED,
            "write safetensors: %s: tensor %s: type %s with %u dimensions cannot be stored; convert it first", path,
            it->name, sg_storage_info(it->storage)->name, it->rank);
    *bytes = sg_storage_info(it->storage)->bytes;
    for (uint32_t i = 0; i < it->rank; i++)
        if (!sg_mul64(*bytes, it->shape[i], bytes))
            return sg_fail(err, SEGUE_EARG,
                           "write safetensors: %s: tensor %s: its shape overflows; correct the shape", path,
                           it->name);
    return SEGUE_OK;
}

/* The length word and the JSON, padded with spaces so that the data starts at a multiple of 8. */
static segue_status write_header(struct sg_buf *buf, const char *path, const struct sg_st_item *items,
                                 size_t n, segue_error *err)
{
    uint64_t at = 0, bytes;
    const char *dtype;
    sg_buf_add(buf, "\0\0\0\0\0\0\0\0{", 9);
    for (size_t i = 0; i < n; i++) {
        const struct sg_st_item *it = &items[i];
        SG_TRY(item_bytes(path, it, &bytes, &dtype, err));
        if (i) sg_buf_puts(buf, ",");
        put_string(buf, it->name);
        sg_buf_printf(buf, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
        for (uint32_t k = 0; k < it->rank; k++)
            sg_buf_printf(buf, k ? ",%llu" : "%llu", (unsigned long long)it->shape[k]);
        sg_buf_printf(buf, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)(at + bytes));
        at += bytes;
    }
    sg_buf_puts(buf, "}");
    while (!buf->failed && buf->len % 8) sg_buf_puts(buf, " ");
    if (buf->failed) return sg_no_memory(path, buf->len, err);
    /* The length word, reserved at the start, does not count itself. */
    for (int i = 0; i < 8; i++) buf->data[i] = (char)((uint64_t)(buf->len - 8) >> (8 * i));
    return SEGUE_OK;
}

/* Atomic: when writing fails, for example because the disk is full, an existing file is unchanged. */
segue_status sg_safetensors_write(const char *path, const struct sg_st_item *items, size_t n,
                                  segue_error *err)
{
    struct sg_buf header = {0};
    struct sg_file_out out;
    segue_status s = write_header(&header, path, items, n, err);
    if (s == SEGUE_OK) s = sg_file_begin(&out, path, 0644, err);
    if (s != SEGUE_OK) {
        sg_buf_free(&header);
        return s;
    }
    s = sg_file_put(&out, header.data, header.len, err);
    for (size_t i = 0; s == SEGUE_OK && i < n; i++) {
        uint64_t bytes = 0;
        const char *dtype;
        s = item_bytes(path, &items[i], &bytes, &dtype, err);
        if (s == SEGUE_OK) s = sg_file_put(&out, items[i].data, bytes, err);
    }
    if (s == SEGUE_OK) s = sg_file_commit(&out, err);
    sg_file_close(&out);
    sg_buf_free(&header);
    return s;
}
