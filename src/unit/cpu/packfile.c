/* packfile.c: reads and writes cached packs; see packfile.h. A file consists of a header, the hashes of
 * the data's pieces and, from data_at on, the data. Numbers are in the byte order of this machine;
 * BYTE_ORDER_MARK rejects files of other machines.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/packfile.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/store.h"
#include "tensor/coded.h"

static const char PACK_MAGIC[8] = "SGPACK1", STAMP_MAGIC[8] = "SGSEAL1";
static const uint32_t BYTE_ORDER_MARK = 0x01020304;
/* data starts on a page boundary, in large packs on a huge page boundary */
static const uint64_t PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2u << 20;

/* Start of an entry. key names the entry, source proves what it was packed from, sums and self protect
 * the file itself. */
struct pack_header {
    char magic[8];
    uint32_t order, layout;
    struct sg_hash key;
    struct sg_hash source;           /* hash of all source bytes */
    struct sg_hash sums;             /* hash of the list of piece hashes */
    uint64_t pieces_n, data_at, data_bytes;
    struct sg_hash self;             /* hash of all fields above */
};
/* Content of KEY.seal: the source files (by file id) for which the entry was last verified. */
struct verified_stamp {
    char magic[8];
    struct sg_hash key, source, stamp;
    struct sg_hash self;
};

static struct sg_hash head_hash(const struct pack_header *h) { return sg_hash_bytes(h, offsetof(struct pack_header, self), 2); }
static struct sg_hash stamp_hash(const struct verified_stamp *s)
{
    return sg_hash_bytes(s, offsetof(struct verified_stamp, self), 3);
}
static int hash_equal(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }

/* Appends bytes to a hash. */
static struct sg_hash hash_add(struct sg_hash h, const void *bytes, size_t n)
{
    return sg_hash_join(h, sg_hash_bytes(bytes, n, n));
}

/* Everything about a tensor that affects its packed form, except its data. */
static struct sg_hash hash_add_tensor(struct sg_hash h, const struct sg_tensor *t)
{
    const uint64_t words[] = {t->storage, t->rows, t->cols, t->bytes, t->transposed,
                              t->row_perm.a, t->row_perm.b, t->row_perm.w, t->row_perm.first,
                              t->col_perm.a, t->col_perm.b, t->col_perm.w, t->col_perm.first,
                              t->affine.storage, t->affine.bits, t->affine.group, sg_coded_key(t)};
    return hash_add(hash_add(h, t->name, strlen(t->name)), words, sizeof words);
}

/* All layout-relevant inputs: a changed layout, graph or weight set gives another key. */
struct sg_hash sg_pack_key(const struct sg_pack_set *set, const struct sg_weight_sources *src,
                           const struct sg_weight_cache *cache)
{
    /* the version of the layouts, the group size and the identity of the weights */
    const uint64_t words[] = {SG_PACK_LAYOUT, SG_GROUP, src->n, set->items_n, cache->weights.lo, cache->weights.hi};
    struct sg_hash h = {1, 0};
    h = hash_add(h, words, sizeof words);
    for (uint32_t i = 0; i < src->n; i++) h = hash_add_tensor(h, src->tensors[i]);
    for (uint32_t i = 0; i < set->items_n; i++) {
        const struct sg_packed_weight *w = set->items[i];
        const uint64_t item[] = {w->at, w->rows, w->groups, w->k, w->kind, w->group_bytes};
        h = hash_add(hash_add(h, w->tensor->name, strlen(w->tensor->name)), item, sizeof item);
    }
    return h;
}

/* FOLDER/cpu/KEY.ending; NULL: out of memory. */
static char *entry_path(const struct sg_weight_cache *cache, struct sg_hash key, const char *ending)
{
    char hex[33], name[64];
    sg_hash_hex(key, hex);
    snprintf(name, sizeof name, "cpu/%s.%s", hex, ending);
    return sg_path_join(cache->folder, name);
}

/* Pieces have a fixed size, so the hashes do not depend on the number of threads. */
uint32_t sg_hash_pieces(const void *data, uint64_t bytes, struct sg_hash_piece *out)
{
    uint32_t n = 0;
    for (uint64_t at = 0; at < bytes; at += SG_HASH_PIECE_BYTES, n++) {
        uint64_t left = bytes - at;
        if (out)
            out[n] = (struct sg_hash_piece){(const uint8_t *)data + at,
                                            left < SG_HASH_PIECE_BYTES ? (size_t)left : SG_HASH_PIECE_BYTES};
    }
    return n;
}

/* Hashing of pieces by the pool. prefault: touch the pages first; drop_pages: release them afterwards. */
struct hash_job { const struct sg_hash_piece *pieces; struct sg_hash *out; int prefault, drop_pages; };

static void hash_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct hash_job *h = arg;
    const struct sg_hash_piece *p = &h->pieces[item];
    (void)stage;
    (void)thread;
    if (h->prefault) sg_map_populate(p->data, p->bytes);
    h->out[item] = sg_hash_bytes(p->data, p->bytes, p->bytes);
    if (h->drop_pages) sg_map_release(p->data, p->bytes);
}

static void hash_all(struct sg_cpu_unit *u, struct hash_job *h, uint32_t n)
{
    struct sg_job job = {.items = &n, .stages = 1, .work = hash_work, .arg = h};
    if (n) sg_pool_run(u->pool, &job);
}

/* One hash over the hashes of all source pieces. */
static struct sg_hash source_hash(const struct sg_weight_sources *src)
{
    size_t n = src->pieces_before[src->n];
    return sg_hash_bytes(src->hashes, n * sizeof *src->hashes, n);
}

/* 1: the entry was verified against these files before, and their file ids are exact, so they cannot
 * have changed since. */
static int stamp_matches(const struct sg_weight_cache *cache, struct sg_hash key, struct sg_hash source)
{
    struct sg_buf buf = {0};
    struct verified_stamp s;
    char *path = cache->exact ? entry_path(cache, key, "seal") : NULL;
    int good = path && sg_file_read_own(&buf, path, sizeof s, NULL) == SEGUE_OK && buf.len == sizeof s;
    if (good) memcpy(&s, buf.data, sizeof s);
    good = good && !memcmp(s.magic, STAMP_MAGIC, 8) && hash_equal(s.key, key) && hash_equal(s.source, source) &&
           hash_equal(s.stamp, cache->stamp) && hash_equal(s.self, stamp_hash(&s));
    sg_buf_free(&buf);
    sg_free(path);
    return good;
}

/* Writes a file atomically: to a temporary name, then renamed. */
static segue_status write_file(const char *path, const void *bytes, size_t n, segue_error *err)
{
    struct sg_file_out out;
    SG_TRY(sg_file_begin(&out, path, 0600, err));
    segue_status s = sg_file_put(&out, bytes, n, err);
    if (s == SEGUE_OK) s = sg_file_commit(&out, err);
    sg_file_close(&out);
    return s;
}

/* Under the lock. Only for exact file ids; otherwise the files are hashed again at the next start. */
static segue_status stamp_write(const struct sg_weight_cache *cache, struct sg_hash key, struct sg_hash source, segue_error *err)
{
    if (!cache->exact) return SEGUE_OK;
    struct verified_stamp s;
    /* padding bytes are hashed, too */
    memset(&s, 0, sizeof s);
    memcpy(s.magic, STAMP_MAGIC, 8);
    s.key = key;
    s.source = source;
    s.stamp = cache->stamp;
    s.self = stamp_hash(&s);
    char *path = entry_path(cache, key, "seal");
    if (!path) return sg_no_memory("stamp of packed weights", sizeof s, err);
    segue_status status = write_file(path, &s, sizeof s, err);
    sg_free(path);
    return status;
}

/* If the stamp cannot be written, the next start hashes the files again; nothing else is lost. */
static void stamp_refresh(const struct sg_weight_cache *cache, struct sg_hash key, struct sg_hash source)
{
    int lock;
    char *folder = sg_path_join(cache->folder, "cpu");
    if (folder && sg_store_lock(folder, &lock, NULL) == SEGUE_OK) {
        (void)stamp_write(cache, key, source, NULL);
        sg_store_unlock(lock);
    }
    sg_free(folder);
}

/* EFORMAT: the entry is not used, and is replaced after packing. */
static segue_status fail_refused(const char *path, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "map packed weights: %s: %s; packing again", path, why);
}

/* What another user can write could change at any time. */
static segue_status owner_check(const struct sg_map *map, const char *path, segue_error *err)
{
    segue_error why = {0};
    char *folder = sg_path_folder(path);
    if (!folder) return sg_no_memory("name of packed weights", 0, err);
    segue_status s = sg_folder_check_owner(folder, &why);
    if (s == SEGUE_OK) s = sg_file_check_owner(&map->id, path, &why);
    sg_free(folder);
    return s == SEGUE_OK ? s : sg_fail(err, SEGUE_EFORMAT, "%s", why.text);
}

/* Validates the header before anything that it points to is read: magic, version, hashes, bounds. */
static segue_status head_check(const struct sg_map *map, const char *path, struct sg_hash key, uint64_t total,
                               struct pack_header *h, segue_error *err)
{
    uint64_t pieces = sg_hash_pieces(NULL, total, NULL);
    if (map->size < sizeof *h) return fail_refused(path, "the file is truncated", err);
    memcpy(h, map->data, sizeof *h);
    if (memcmp(h->magic, PACK_MAGIC, 8) || h->order != BYTE_ORDER_MARK)
        return fail_refused(path, "not a pack of this machine", err);
    if (h->layout != SG_PACK_LAYOUT) return fail_refused(path, "written by another version", err);
    if (!hash_equal(h->self, head_hash(h))) return fail_refused(path, "the header is corrupt", err);
    if (!hash_equal(h->key, key) || h->data_bytes != total || h->pieces_n != pieces)
        return fail_refused(path, "packed from other weights", err);
    /* all offsets must lie inside the file, without overflow */
    if (h->data_at % PAGE_BYTES || h->data_at < sizeof *h + pieces * sizeof(struct sg_hash) || h->data_at > map->size ||
        map->size - h->data_at != total)
        return fail_refused(path, "the file is truncated", err);
    if (!hash_equal(h->sums, sg_hash_bytes(map->data + sizeof *h, pieces * sizeof(struct sg_hash), pieces)))
        return fail_refused(path, "the header is corrupt", err);
    return SEGUE_OK;
}

/* Compares every byte with the hashes in the header. This also loads the pages, which the first token
 * needs anyway. */
static segue_status data_check(struct sg_cpu_unit *u, const struct sg_map *map, const char *path, const struct pack_header *h,
                               segue_error *err)
{
    size_t n = (size_t)h->pieces_n;
    struct sg_hash_piece *pieces = sg_alloc(n * sizeof *pieces);
    struct sg_hash *found = sg_alloc(n * sizeof *found);
    segue_status s = SEGUE_OK;
    if (pieces && found) {
        sg_map_prefetch(map);
        sg_hash_pieces(map->data + h->data_at, h->data_bytes, pieces);
        struct hash_job work = {pieces, found, 1, 0};
        hash_all(u, &work, (uint32_t)n);
        if (memcmp(found, map->data + sizeof *h, n * sizeof *found)) s = fail_refused(path, "the data is corrupt", err);
    } else {
        s = sg_no_memory("hashes of packed weights", n * sizeof *pieces, err);
    }
    sg_free(pieces);
    sg_free(found);
    return s;
}

/* Compares the sources with the entry: by stamp if it is valid, otherwise by hashing all source bytes. */
static segue_status source_check(struct sg_cpu_unit *u, struct sg_weight_sources *src, const struct sg_weight_cache *cache,
                                 const struct pack_header *h, const char *path, segue_error *err)
{
    /* cheap: no source byte is read */
    if (stamp_matches(cache, h->key, h->source)) return SEGUE_OK;
    /* pages of a mapped model are dropped after hashing; other sources live in memory only */
    int mapped = src->n != 0;
    for (uint32_t i = 0; i < src->n; i++) mapped = mapped && src->tensors[i]->mapped;
    struct hash_job work = {src->pieces, src->hashes, 0, mapped};
    hash_all(u, &work, src->pieces_before[src->n]);
    if (!hash_equal(source_hash(src), h->source)) return fail_refused(path, "the model file has changed", err);
    /* the sources match: the next start can rely on their file ids */
    if (cache->exact) stamp_refresh(cache, h->key, h->source);
    return SEGUE_OK;
}

/* The mapping is kept in set->map only if all checks pass. */
segue_status sg_packfile_map(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_weight_sources *src,
                             const struct sg_weight_cache *cache, uint64_t total, const uint8_t **data, segue_error *err)
{
    struct sg_hash key = sg_pack_key(set, src, cache);
    struct sg_map map;
    struct pack_header h;
    char *path = entry_path(cache, key, "pack");
    if (!path) return sg_no_memory("name of packed weights", 0, err);
    segue_status s = sg_path_kind(path) == SG_PATH_NONE ? SEGUE_EIO : sg_map_open(&map, path, err);
    if (s != SEGUE_OK) {
        sg_free(path);
        return s;
    }
    s = owner_check(&map, path, err);
    if (s == SEGUE_OK) s = head_check(&map, path, key, total, &h, err);
    if (s == SEGUE_OK) s = source_check(u, src, cache, &h, path, err);
    if (s == SEGUE_OK) s = data_check(u, &map, path, &h, err);
    if (s == SEGUE_OK) {
        /* marks the entry as recently used, for the trimming of the folder */
        sg_file_touch(path);
        set->map = map;
        *data = map.data + h.data_at;
    } else {
        sg_map_close(&map);
    }
    sg_free(path);
    return s;
}

/* Header, hashes and data; commit renames the file into place. */
static segue_status entry_put(struct sg_file_out *out, const struct pack_header *h, const struct sg_hash *sums,
                              const uint8_t *data, segue_error *err)
{
    SG_TRY(sg_file_put_at(out, 0, h, sizeof *h, err));
    SG_TRY(sg_file_put_at(out, sizeof *h, sums, (size_t)h->pieces_n * sizeof *sums, err));
    /* large writes at aligned offsets let the file system use large folios in the page cache */
    for (uint64_t at = 0; at < h->data_bytes; at += HUGE_PAGE_BYTES)
        SG_TRY(sg_file_put_at(out, h->data_at + at, data + at,
                              (size_t)(h->data_bytes - at < HUGE_PAGE_BYTES ? h->data_bytes - at : HUGE_PAGE_BYTES), err));
    return sg_file_commit(out, err);
}

/* Fills the header; its own hash comes last. */
static void head_fill(struct pack_header *h, struct sg_hash key, const struct sg_weight_sources *src, const struct sg_hash *sums,
                      uint32_t n, uint64_t total)
{
    /* a small pack would waste most of a huge page */
    uint64_t page = total >= 2 * HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : PAGE_BYTES;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, PACK_MAGIC, 8);
    h->order = BYTE_ORDER_MARK;
    h->layout = SG_PACK_LAYOUT;
    h->key = key;
    h->source = source_hash(src);
    h->sums = sg_hash_bytes(sums, n * sizeof *sums, n);
    h->pieces_n = n;
    h->data_at = (sizeof *h + n * sizeof *sums + page - 1) / page * page;
    h->data_bytes = total;
    h->self = head_hash(h);
}

/* Under the lock. Old entries are removed first, so that the folder never exceeds its limit. */
static segue_status entry_write(const struct sg_weight_cache *cache, const char *folder, const struct pack_header *h,
                                const struct sg_hash *sums, const uint8_t *data, segue_error *err)
{
    /* evicts least recently used entries */
    SG_TRY(sg_store_trim(folder, h->data_at + h->data_bytes + sizeof(struct verified_stamp), cache->bytes_max, err));
    char *path = entry_path(cache, h->key, "pack");
    if (!path) return sg_no_memory("name of packed weights", 0, err);
    struct sg_file_out out;
    segue_status s = sg_file_begin(&out, path, 0600, err);
    if (s == SEGUE_OK) {
        s = entry_put(&out, h, sums, data, err);
        sg_file_close(&out);
    }
    sg_free(path);
    /* without a stamp the next start hashes the sources again */
    if (s == SEGUE_OK) (void)stamp_write(cache, h->key, h->source, NULL);
    return s;
}

/* Hashes the packed data, then writes the entry under the folder's lock. */
segue_status sg_packfile_write(const struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_weight_sources *src,
                               const struct sg_weight_cache *cache, uint64_t total, const uint8_t *data, segue_error *err)
{
    uint32_t n = sg_hash_pieces(NULL, total, NULL);
    struct sg_hash_piece *pieces = sg_alloc(n * sizeof *pieces);
    struct sg_hash *sums = sg_alloc(n * sizeof *sums);
    char *folder = sg_path_join(cache->folder, "cpu");
    int lock;
    segue_status s = SEGUE_OK;
    if (!pieces || !sums || !folder) s = sg_no_memory("hashes of packed weights", n * sizeof *pieces, err);
    if (s == SEGUE_OK) s = sg_store_lock(folder, &lock, err);
    if (s == SEGUE_OK) {
        struct pack_header h;
        struct hash_job work = {pieces, sums, 0, 0};
        sg_hash_pieces(data, total, pieces);
        hash_all(u, &work, n);
        head_fill(&h, sg_pack_key(set, src, cache), src, sums, n, total);
        s = entry_write(cache, folder, &h, sums, data, err);
        sg_store_unlock(lock);
    }
    sg_free(pieces);
    sg_free(sums);
    sg_free(folder);
    return s;
}

/* Two passes over all tensors: count the pieces, then list them. */
segue_status sg_weight_sources_list(struct sg_weight_sources *out, const struct sg_graph *const *graphs, uint32_t n,
                             segue_error *err)
{
    struct sg_region regions[SG_REGIONS];
    uint32_t pieces = 0, t = 0;
    *out = (struct sg_weight_sources){0};
    for (uint32_t g = 0; g < n; g++) {
        out->n += graphs[g]->tensors_n;
        for (uint32_t i = 0; i < graphs[g]->tensors_n; i++)
            for (uint32_t r = sg_tensor_regions(graphs[g]->tensors[i], regions); r--;)
                pieces += sg_hash_pieces(NULL, regions[r].bytes, NULL);
    }
    out->tensors = sg_alloc(out->n * sizeof *out->tensors);
    out->pieces_before = sg_alloc((out->n + 1) * sizeof *out->pieces_before);
    out->pieces = sg_alloc(pieces * sizeof *out->pieces);
    out->hashes = sg_alloc(pieces * sizeof *out->hashes);
    out->hashes_after = sg_alloc(pieces * sizeof *out->hashes_after);
    if (!out->tensors || !out->pieces_before || !out->pieces || !out->hashes || !out->hashes_after) {
        sg_weight_sources_free(out);
        return sg_no_memory("pieces of the weights", pieces * sizeof *out->pieces, err);
    }
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t i = 0; i < graphs[g]->tensors_n; i++, t++) {
            uint32_t regions_n = sg_tensor_regions(graphs[g]->tensors[i], regions);
            out->tensors[t] = graphs[g]->tensors[i];
            out->pieces_before[t + 1] = out->pieces_before[t];
            for (uint32_t r = 0; r < regions_n; r++)
                out->pieces_before[t + 1] += sg_hash_pieces(regions[r].data, regions[r].bytes,
                                                            out->pieces + out->pieces_before[t + 1]);
        }
    return SEGUE_OK;
}

void sg_weight_sources_free(struct sg_weight_sources *s)
{
    sg_free(s->tensors);
    sg_free(s->pieces_before);
    sg_free(s->pieces);
    sg_free(s->hashes);
    sg_free(s->hashes_after);
    *s = (struct sg_weight_sources){0};
}
