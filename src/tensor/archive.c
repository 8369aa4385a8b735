/* archive.c: opens weights, recognising the format by content, not by name; looks up tensors and
 * metadata; identifies models. gguf.c, safetensors.c and llama2c.c read the formats.
 * SPDX-License-Identifier: MIT */
#include "tensor/archive.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "tensor/archive_build.h"

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* --- split models: files named PREFIX-00001-of-00003ENDING --- */

/* The value of five decimal digits; 0 when they are not digits. Parts count from 1. */
static uint32_t digits5(const char *s)
{
    uint32_t v = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return 0;
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    return v;
}

/* Parse the name of a part: returns the length of PREFIX and sets part number and count. *count = 0
 * when the name has another form. */
static size_t part_name(const char *path, const char *ending, uint32_t *no, uint32_t *count)
{
    size_t n = strlen(path), tail = 15 + strlen(ending); /* "-00001-of-00003" */
    const char *p = path + n - tail;
    *no = *count = 0;
    if (n <= tail || !ends_with(path, ending) || p[0] != '-' || strncmp(p + 6, "-of-", 4)) return 0;
    *no = digits5(p + 1);
    *count = *no ? digits5(p + 10) : 0;
    return n - tail;
}

/* EFORMAT unless this is part 1 of `wanted`: a later part alone contains only some of the tensors. */
static segue_status need_first_part(const char *path, uint32_t no, uint32_t count, uint32_t wanted,
                                    segue_error *err)
{
    if (no == 1 && count == wanted) return SEGUE_OK;
    if (!count)
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: it has %u parts, but its name does not end like NAME-00001-of-00003; rename the parts",
                       path, wanted);
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: %s: this is part %u of %u by its name, expected part 1 of %u; name the first part "
                   "and do not rename the parts",
                   path, no, count, wanted);
}

/* Open part i, counted from 0, which must be in the same folder under the expected name. */
static segue_status add_part(struct sg_build *b, const char *path, size_t prefix, uint32_t i, uint32_t count,
                             const char *ending, segue_error *err)
{
    struct sg_buf name = {0};
    uint32_t file, same;
    sg_buf_add(&name, path, prefix);
    sg_buf_printf(&name, "-%05u-of-%05u%s", i + 1, count, ending);
    segue_status s = name.failed ? sg_no_memory(path, prefix, err) : sg_build_file(b, name.data, &file, err);
    sg_buf_free(&name);
    if (s != SEGUE_OK) return s;
    if (b->a->format == SG_FORMAT_SAFETENSORS) return sg_safetensors_add(b, file, 0, err);
    SG_TRY(sg_gguf_add(b, file, i, &same, err));
    if (same == count) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT,
                   "open model: %s: it belongs to a set of %u parts, the first part to a set of %u; download them again",
                   b->a->files[file], same, count);
}

/* The header of a GGUF file tells whether it is split; the file name is only used to find the other
 * parts. */
static segue_status add_gguf(struct sg_build *b, uint32_t file, segue_error *err)
{
    const char *path = b->a->files[file];
    uint32_t parts, no, count;
    b->a->format = SG_FORMAT_GGUF;
    SG_TRY(sg_gguf_add(b, file, 0, &parts, err));
    /* A part in memory has no neighbours in a folder. */
    if (parts > 1) {
        size_t prefix = part_name(path, ".gguf", &no, &count);
        SG_TRY(need_first_part(path, no, count, parts, err));
        if (b->a->borrowed)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "open model: %s: one of %u parts cannot be opened from memory; open the file by its name", path,
                           parts);
        for (uint32_t i = 1; i < parts; i++)
            SG_TRY(add_part(b, b->a->files[0], prefix, i, parts, ".gguf", err));
    }
    return sg_gguf_check_split(b, err);
}

/* The header of a shard does not tell that it is one, so the file name decides. */
static segue_status add_safetensors(struct sg_build *b, uint32_t file, segue_error *err)
{
    uint32_t no, count;
    size_t prefix = part_name(b->a->files[file], ".safetensors", &no, &count);
    b->a->format = SG_FORMAT_SAFETENSORS;
    if (count > 1) SG_TRY(need_first_part(b->a->files[file], no, count, count, err));
    SG_TRY(sg_safetensors_add(b, file, 1, err));
    /* A single shard in memory is opened alone. */
    for (uint32_t i = 1; i < count && !b->a->borrowed; i++)
        SG_TRY(add_part(b, b->a->files[0], prefix, i, count, ".safetensors", err));
    return SEGUE_OK;
}

/* --- detecting the format --- */

/* 1 when the file starts with these n bytes. */
static int starts_with(const struct sg_map *map, const char *s, size_t n)
{
    return map->size >= n && !memcmp(map->data, s, n);
}

/* Recognise files that users often pass by mistake and say what to do. */
static segue_status unknown_file(const struct sg_map *map, const char *path, segue_error *err)
{
    const char *what = !map->size                   ? "empty; download it again"
                       : starts_with(map, "PK\3\4", 4)   ? "a PyTorch or zip file; convert it to safetensors"
                       : starts_with(map, "\x80\x02", 2) ? "a Python pickle; convert it to safetensors"
                       : starts_with(map, "version https://git-lfs", 23)
                           ? "a Git LFS pointer; download the file itself"
                       : starts_with(map, "tjgg", 4) || starts_with(map, "fmgg", 4) || starts_with(map, "lmgg", 4)
                           ? "an old GGML file; convert it to GGUF"
                       : starts_with(map, "<", 1) ? "a web page or XML; download the file itself"
                       : starts_with(map, "{", 1) ? "JSON; name the folder or the weight file"
                                             : "neither GGUF nor safetensors nor llama2.c; name a weight file";
    return sg_fail(err, SEGUE_EFORMAT, "open model: %s: it is %s", path, what);
}

/* GGUF has a magic number. safetensors is recognised by a plausible header length followed by a
 * brace. llama2.c is tried last, because its oldest files are only recognised by plausible numbers.
 * Files too short for their magic are passed to their reader, which reports them as truncated. */
static segue_status add_file(struct sg_build *b, uint32_t file, segue_error *err)
{
    const struct sg_map *map = &b->a->maps[file];
    const char *path = b->a->files[file];
    if (starts_with(map, "GGUF", 4)) return add_gguf(b, file, err);
    if (sg_safetensors_is(map) || (map->size && map->size < 10 && ends_with(path, ".safetensors")))
        return add_safetensors(b, file, err);
    b->a->format = SG_FORMAT_LLAMA2C;
    if (sg_llama2c_is(map)) return sg_llama2c_add(b, file, err);
    if (map->size < 4 && map->size && !memcmp(map->data, "GGUF", map->size)) return add_gguf(b, file, err);
    return unknown_file(map, path, err);
}

/* Map the file and add it by its format. */
static segue_status add_path(struct sg_build *b, const char *path, segue_error *err)
{
    uint32_t file;
    SG_TRY(sg_build_file(b, path, &file, err));
    return add_file(b, file, err);
}

/* --- folders --- */

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) sg_free(names[i]);
    sg_free(names);
}

/* Open all named files of a folder. The metadata is taken from the first one; the others repeat it. */
static segue_status add_shards(struct sg_build *b, const char *folder, char **names, size_t n,
                               segue_error *err)
{
    b->a->format = SG_FORMAT_SAFETENSORS;
    for (size_t i = 0; i < n; i++) {
        uint32_t file;
        char *path = sg_path_join(folder, names[i]);
        segue_status s = path ? sg_build_file(b, path, &file, err) : sg_no_memory(folder, 0, err);
        sg_free(path);
        if (s == SEGUE_OK) s = sg_safetensors_add(b, file, !file, err);
        if (s != SEGUE_OK) return s;
    }
    return SEGUE_OK;
}

/* Open the shards that an index lists; they are in the folder of the index. */
static segue_status add_index(struct sg_build *b, const char *path, segue_error *err)
{
    char **names, *folder;
    size_t n;
    SG_TRY(sg_safetensors_index(path, &names, &n, err));
    folder = sg_path_folder(path);
    segue_status s = folder ? add_shards(b, folder, names, n, err) : sg_no_memory(path, strlen(path), err);
    sg_free(folder);
    free_names(names, n);
    return s;
}

/* Open the only GGUF file of a folder, or the first part if the folder has exactly one split model. */
static segue_status add_only_gguf(struct sg_build *b, const char *folder, segue_error *err)
{
    char **names, *path = NULL;
    size_t n;
    uint32_t no = 0, count = 0;
    SG_TRY(sg_folder_list(folder, ".gguf", SG_FILES_MAX, &names, &n, err));
    if (n) part_name(names[0], ".gguf", &no, &count);
    segue_status s = SEGUE_OK;
    if (!n)
        s = sg_fail(err, SEGUE_EIO,
                    "open model: %s: the folder has no .safetensors and no .gguf file; name the weight file", folder);
    else if (n > 1 && !(no == 1 && count == n))
        s = sg_fail(err, SEGUE_EIO, "open model: %s: the folder has %zu .gguf files (%s, ...); name one of them",
                    folder, n, names[0]);
    else if (!(path = sg_path_join(folder, names[0]))) s = sg_no_memory(folder, strlen(folder), err);
    if (s == SEGUE_OK) s = add_path(b, path, err);
    sg_free(path);
    free_names(names, n);
    return s;
}

/* *path = FOLDER/NAME if that is a file, else NULL. The caller frees it. */
static segue_status file_inside(const char *folder, const char *name, char **path, segue_error *err)
{
    *path = sg_path_join(folder, name);
    if (!*path) return sg_no_memory(folder, strlen(folder), err);
    if (sg_path_kind(*path) == SG_PATH_FILE) return SEGUE_OK;
    sg_free(*path);
    *path = NULL;
    return SEGUE_OK;
}

/* Search order: index, model.safetensors, all *.safetensors, GGUF. */
static segue_status add_folder(struct sg_build *b, const char *folder, segue_error *err)
{
    char *path, **names;
    size_t n;
    SG_TRY(file_inside(folder, "model.safetensors.index.json", &path, err));
    int index = path != NULL;
    if (!index) SG_TRY(file_inside(folder, "model.safetensors", &path, err));
    if (path) {
        segue_status s = index ? add_index(b, path, err) : add_path(b, path, err);
        sg_free(path);
        return s;
    }
    SG_TRY(sg_folder_list(folder, ".safetensors", SG_FILES_MAX, &names, &n, err));
    if (!n) {
        free_names(names, n);
        return add_only_gguf(b, folder, err);
    }
    segue_status s = add_shards(b, folder, names, n, err);
    free_names(names, n);
    return s;
}

/* --- open and close --- */

/* An empty archive with its path. */
static segue_status new_archive(struct sg_archive **out, const char *path, segue_error *err)
{
    struct sg_archive *a = sg_alloc(sizeof *a);
    if (a) a->path = sg_strndup(path, strlen(path));
    if (!a || !a->path) {
        sg_free(a);
        return sg_no_memory(path, sizeof *a, err);
    }
    *out = a;
    return SEGUE_OK;
}

/* Complete the archive if s is OK. Takes ownership of b->a: it becomes *out or is closed. */
static segue_status finish_open(struct sg_archive **out, struct sg_build *b, segue_status s, segue_error *err)
{
    if (s == SEGUE_OK) s = sg_build_finish(b, err);
    if (s == SEGUE_OK) *out = b->a;
    else sg_archive_close(b->a);
    return s;
}

segue_status sg_archive_open(struct sg_archive **out, const char *path, segue_error *err)
{
    struct sg_build b = {0};
    SG_TRY(new_archive(&b.a, path, err));
    segue_status s = sg_path_kind(path) == SG_PATH_FOLDER         ? add_folder(&b, path, err)
                     : ends_with(path, ".safetensors.index.json") ? add_index(&b, path, err)
                                                                  : add_path(&b, path, err);
    return finish_open(out, &b, s, err);
}

/* The only map is the caller's memory; sg_archive_close does not unmap it. */
segue_status sg_archive_open_memory(struct sg_archive **out, const uint8_t *bytes, size_t n, const char *name,
                                    segue_error *err)
{
    struct sg_build b = {0};
    SG_TRY(new_archive(&b.a, name, err));
    b.a->borrowed = 1;
    b.a->maps = sg_alloc(sizeof *b.a->maps);
    b.a->files = sg_alloc(sizeof *b.a->files);
    char *copy = sg_strndup(name, strlen(name));
    if (!b.a->maps || !b.a->files || !copy) {
        sg_free(copy);
        return finish_open(out, &b, sg_no_memory(name, strlen(name), err), err);
    }
    b.a->files_n = 1;
    b.a->files[0] = copy;
    b.a->maps[0] = (struct sg_map){.data = bytes, .size = n, .fd = -1};
    return finish_open(out, &b, add_file(&b, 0, err), err);
}

void sg_archive_close(struct sg_archive *a)
{
    if (!a) return;
    for (uint32_t i = 0; i < a->files_n; i++) {
        if (!a->borrowed) sg_map_close(&a->maps[i]);
        sg_free(a->files[i]);
    }
    sg_free(a->maps);
    sg_free(a->files);
    sg_free(a->tensors);
    sg_free(a->by_name);
    sg_free(a->meta);
    sg_free(a->meta_by_key);
    sg_arena_free(&a->arena);
    sg_free(a->path);
    sg_free(a);
}

/* --- lookup: binary search in the sorted index --- */

const struct sg_tensor *sg_archive_find(const struct sg_archive *a, const char *name)
{
    for (uint32_t low = 0, high = a->tensors_n; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        const struct sg_tensor *t = &a->tensors[a->by_name[middle]];
        int c = strcmp(name, t->name);
        if (!c) return t;
        if (c < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const struct sg_meta *sg_meta_find(const struct sg_archive *a, const char *key)
{
    for (uint32_t low = 0, high = a->meta_n; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        const struct sg_meta *m = &a->meta[a->meta_by_key[middle]];
        int c = strcmp(key, m->key);
        if (!c) return m;
        if (c < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* A key with a value of another type is an error, not an absent key: the fallback would hide a
 * damaged file. */
static segue_status wrong_kind(const struct sg_archive *a, const struct sg_meta *m, const char *wanted,
                               segue_error *err)
{
    static const char *const kinds[] = {"an integer", "a real number", "a boolean", "a string", "an array"};
    return sg_fail(err, SEGUE_EFORMAT,
                   "read model: %s: key %s is %s, expected %s; convert the model again", a->path,
                   m->key, kinds[m->type], wanted);
}

segue_status sg_meta_int(const struct sg_archive *a, const char *key, int64_t fallback, int64_t *out,
                         segue_error *err)
{
    const struct sg_meta *m = sg_meta_find(a, key);
    if (m && m->type != SG_META_INT) return wrong_kind(a, m, "an integer below 2^63", err);
    *out = m ? m->v.i : fallback;
    return SEGUE_OK;
}

segue_status sg_meta_float(const struct sg_archive *a, const char *key, double fallback, double *out,
                           segue_error *err)
{
    const struct sg_meta *m = sg_meta_find(a, key);
    if (m && m->type != SG_META_FLOAT && m->type != SG_META_INT) return wrong_kind(a, m, "a number", err);
    *out = !m ? fallback : m->type == SG_META_INT ? (double)m->v.i : m->v.f;
    return SEGUE_OK;
}

segue_status sg_meta_bool(const struct sg_archive *a, const char *key, int fallback, int *out,
                          segue_error *err)
{
    const struct sg_meta *m = sg_meta_find(a, key);
    if (m && m->type != SG_META_BOOL) return wrong_kind(a, m, "true or false", err);
    *out = m ? m->v.i != 0 : fallback;
    return SEGUE_OK;
}

segue_status sg_meta_string(const struct sg_archive *a, const char *key, const char **out, size_t *len,
                            segue_error *err)
{
    const struct sg_meta *m = sg_meta_find(a, key);
    if (m && m->type != SG_META_STRING) return wrong_kind(a, m, "a string", err);
    *out = m ? m->v.s.data : NULL;
    *len = m ? m->v.s.len : 0;
    return SEGUE_OK;
}

/* --- content hash --- */

/* A sample has PAGE bytes every STRIDE bytes. */
enum { PAGE = 4096, STRIDE = 1024 * 1024 };

/* Include the n bytes at p; the length is part of the hash. */
static struct sg_hash add_bytes(struct sg_hash h, const void *p, uint64_t n)
{
    return sg_hash_join(h, sg_hash_bytes(p, n, n));
}

/* The first PAGE bytes of every STRIDE, and the last PAGE bytes. */
static struct sg_hash add_sample(struct sg_hash h, const uint8_t *p, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += STRIDE) h = add_bytes(h, p + at, n - at < PAGE ? n - at : PAGE);
    return n > PAGE ? add_bytes(h, p + n - PAGE, PAGE) : h;
}

/* A sample of the tensor's data. The scales and biases of joined MLX tensors are no longer in the
 * list, so they are sampled here. */
static struct sg_hash add_tensor(struct sg_hash h, const struct sg_tensor *t)
{
    uint64_t size = t->affine.scales ? sg_storage_info(t->affine.storage)->bytes : 0;
    uint64_t groups = size ? t->rows * t->cols / t->affine.group : 0;
    h = add_sample(add_bytes(h, &t->bytes, sizeof t->bytes), t->data, t->bytes);
    if (groups) h = add_sample(h, t->affine.scales, groups * size);
    return groups && t->affine.biases ? add_sample(h, t->affine.biases, groups * size) : h;
}

int sg_archive_file_id(const struct sg_archive *a, struct sg_hash *out)
{
    int exact = a->files_n > 0;
    *out = (struct sg_hash){a->files_n, 0};
    for (uint32_t i = 0; i < a->files_n; i++) {
        const struct sg_file_id *s = &a->maps[i].id;
        const uint64_t words[5] = {s->device, s->inode, s->size, s->modified_ns, s->changed_ns};
        *out = add_bytes(*out, words, sizeof words);
        exact &= s->exact != 0;
    }
    return exact;
}

/* The part of each file before its first tensor, which contains names, shapes and metadata, then a sample of every tensor. Paths
 * are not included, so that copies of a model have equal hashes. */
struct sg_hash sg_archive_sample(const struct sg_archive *a)
{
    struct sg_hash h = {a->files_n, a->format};
    for (uint32_t i = 0; i < a->files_n; i++) {
        uint64_t header = a->maps[i].size;
        for (uint32_t k = 0; k < a->tensors_n; k++)
            if (a->tensors[k].file == i && a->tensors[k].offset < header) header = a->tensors[k].offset;
        h = add_bytes(h, a->maps[i].data, header);
    }
    for (uint32_t k = 0; k < a->tensors_n; k++) h = add_tensor(h, &a->tensors[k]);
    for (uint32_t k = 0; k < a->tensors_n; k++) /* the kernel read ahead around each sample: release those pages */
        if (a->tensors[k].mapped) sg_map_release(a->tensors[k].data, a->tensors[k].bytes);
    return h;
}

segue_status sg_archive_hash(const struct sg_archive *a, struct sg_hash *out, const atomic_int *stop, segue_error *err)
{
    *out = (struct sg_hash){a->files_n, a->format};
    for (uint32_t i = 0; i < a->files_n; i++) {
        const struct sg_map *map = &a->maps[i];
        struct sg_hash h;
        if (map->fd < 0)
            h = sg_hash_bytes(map->data, map->size, map->size);
        else
            SG_TRY(sg_hash_file(&h, map->fd, map->size, map->size, a->files[i], stop, err));
        *out = sg_hash_join(*out, h);
    }
    for (uint32_t i = 0; i < a->files_n; i++)
        if (sg_map_changed(&a->maps[i]))
            return sg_fail(err, SEGUE_EIO, "hash model: %s: the file changed after it was opened; open the model again",
                           a->files[i]);
    return SEGUE_OK;
}

uint64_t sg_archive_bytes(const struct sg_archive *a)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < a->files_n; i++) total += a->maps[i].size;
    return total;
}
