/* packfile.c: see packfile.h. An entry is a head, the hashes of its data's pieces, and from data_at on the data; numbers
 * as this machine writes them, since nobody else reads them: `order` refuses other machines' entries.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/packfile.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/store.h"

static const char PACK_MAGIC[8] = "SGPACK1", SEAL_MAGIC[8] = "SGSEAL1";
static const uint32_t ORDER = 0x01020304;
static const uint64_t SMALL = 4096, LARGE = 2u << 20;    /* data begins on a page, of large packs on a large one */

struct head {
    char magic[8];
    uint32_t order, layout;
    struct sg_hash key;
    struct sg_hash source;           /* of all bytes of the weights */
    struct sg_hash sums;             /* of the list of hashes that follows */
    uint64_t pieces_n, data_at, data_bytes;
    struct sg_hash self;             /* of all fields above */
};
struct seal {
    char magic[8];
    struct sg_hash key, source, stamp;
    struct sg_hash self;
};

static struct sg_hash head_hash(const struct head *h) { return sg_hash_bytes(h, offsetof(struct head, self), 2); }
static struct sg_hash seal_hash(const struct seal *s) { return sg_hash_bytes(s, offsetof(struct seal, self), 3); }
static int equal(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }

/* --- names and keys --- */

static struct sg_hash add(struct sg_hash h, const void *bytes, size_t n)
{
    return sg_hash_join(h, sg_hash_bytes(bytes, n, n));
}

static struct sg_hash add_tensor(struct sg_hash h, const struct sg_tensor *t)
{
    const uint64_t words[] = {t->storage, t->rows, t->cols, t->bytes, t->transposed,
                              t->row_perm.a, t->row_perm.b, t->row_perm.w, t->row_perm.first,
                              t->col_perm.a, t->col_perm.b, t->col_perm.w, t->col_perm.first,
                              t->affine.storage, t->affine.bits, t->affine.group};
    return add(add(h, t->name, strlen(t->name)), words, sizeof words);
}

struct sg_hash sg_pack_key(const struct sg_pack_set *set, const struct sg_sources *src, const struct sg_weight_cache *keep)
{
    const uint64_t words[] = {SG_PACK_LAYOUT, SG_GROUP, src->n, set->items_n, keep->weights.lo, keep->weights.hi};
    struct sg_hash h = {1, 0};
    h = add(h, words, sizeof words);
    for (uint32_t i = 0; i < src->n; i++) h = add_tensor(h, src->tensors[i]);
    for (uint32_t i = 0; i < set->items_n; i++) {
        const struct sg_packed *w = set->items[i];
        const uint64_t item[] = {w->at, w->rows, w->groups, w->k, w->kind, w->group_bytes};
        h = add(add(h, w->tensor->name, strlen(w->tensor->name)), item, sizeof item);
    }
    return h;
}

/* KEEP/cpu/KEY.ending; NULL: out of memory. */
static char *entry_path(const struct sg_weight_cache *keep, struct sg_hash key, const char *ending)
{
    char hex[33], name[64];
    sg_hash_hex(key, hex);
    snprintf(name, sizeof name, "cpu/%s.%s", hex, ending);
    return sg_path_join(keep->folder, name);
}

/* --- hashing by all threads --- */

uint32_t sg_pieces_cut(const void *data, uint64_t bytes, struct sg_piece *out)
{
    uint32_t n = 0;
    for (uint64_t at = 0; at < bytes; at += SG_PIECE_BYTES, n++) {
        uint64_t left = bytes - at;
        if (out)
            out[n] = (struct sg_piece){(const uint8_t *)data + at, left < SG_PIECE_BYTES ? (size_t)left : SG_PIECE_BYTES};
    }
    return n;
}

struct hashing { const struct sg_piece *pieces; struct sg_hash *out; int want, forget; };

static void hash_work(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    const struct hashing *h = arg;
    const struct sg_piece *p = &h->pieces[item];
    (void)stage;
    (void)thread;
    if (h->want) sg_map_touch(p->data, p->bytes);
    h->out[item] = sg_hash_bytes(p->data, p->bytes, p->bytes);
    if (h->forget) sg_map_forget(p->data, p->bytes);
}

static void hash_all(struct sg_cpu_unit *u, struct hashing *h, uint32_t n)
{
    struct sg_job job = {.items = &n, .stages = 1, .work = hash_work, .arg = h};
    if (n) sg_pool_run(u->pool, &job);
}

static struct sg_hash source_hash(const struct sg_sources *src)
{
    size_t n = src->before[src->n];
    return sg_hash_bytes(src->hashes, n * sizeof *src->hashes, n);
}

/* --- seals --- */

/* 1: this entry was found to hold these files' bytes, and they cannot have changed since. */
static int sealed(const struct sg_weight_cache *keep, struct sg_hash key, struct sg_hash source)
{
    struct sg_buf buf = {0};
    struct seal s;
    char *path = keep->exact ? entry_path(keep, key, "seal") : NULL;
    int good = path && sg_file_read(&buf, path, sizeof s, NULL) == SEGUE_OK && buf.len == sizeof s;
    if (good) memcpy(&s, buf.data, sizeof s);
    good = good && !memcmp(s.magic, SEAL_MAGIC, 8) && equal(s.key, key) && equal(s.source, source) &&
           equal(s.stamp, keep->stamp) && equal(s.self, seal_hash(&s));
    sg_buf_free(&buf);
    sg_free(path);
    return good;
}

static segue_status whole_file(const char *path, const void *bytes, size_t n, segue_error *err)
{
    struct sg_file_out out;
    SG_TRY(sg_file_begin(&out, path, 0600, err));
    segue_status s = sg_file_put(&out, bytes, n, err);
    if (s == SEGUE_OK) s = sg_file_commit(&out, err);
    sg_file_close(&out);
    return s;
}

/* Under the lock. Young files get none: they are hashed again next time. */
static segue_status seal_write(const struct sg_weight_cache *keep, struct sg_hash key, struct sg_hash source, segue_error *err)
{
    if (!keep->exact) return SEGUE_OK;
    struct seal s;
    memset(&s, 0, sizeof s);
    memcpy(s.magic, SEAL_MAGIC, 8);
    s.key = key;
    s.source = source;
    s.stamp = keep->stamp;
    s.self = seal_hash(&s);
    char *path = entry_path(keep, key, "seal");
    if (!path) return sg_no_memory("seal of packed weights", sizeof s, err);
    segue_status status = whole_file(path, &s, sizeof s, err);
    sg_free(path);
    return status;
}

/* A seal that cannot be written costs time at the next start and nothing else. */
static void seal_again(const struct sg_weight_cache *keep, struct sg_hash key, struct sg_hash source)
{
    int lock;
    char *folder = sg_path_join(keep->folder, "cpu");
    if (folder && sg_store_lock(folder, &lock, NULL) == SEGUE_OK) {
        (void)seal_write(keep, key, source, NULL);
        sg_store_unlock(lock);
    }
    sg_free(folder);
}

/* --- reading --- */

static segue_status refused(const char *path, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "map packed weights: %s: %s; it is replaced", path, why);
}

static segue_status head_check(const struct sg_map *map, const char *path, struct sg_hash key, uint64_t total,
                               struct head *h, segue_error *err)
{
    uint64_t pieces = sg_pieces_cut(NULL, total, NULL);
    if (map->size < sizeof *h) return refused(path, "it is cut off", err);
    memcpy(h, map->data, sizeof *h);
    if (map->stamp.owner != geteuid() && map->stamp.owner) return refused(path, "it belongs to another user", err);
    if (memcmp(h->magic, PACK_MAGIC, 8) || h->order != ORDER) return refused(path, "it is no entry of this machine", err);
    if (h->layout != SG_PACK_LAYOUT) return refused(path, "it has the layouts of another version", err);
    if (!equal(h->self, head_hash(h))) return refused(path, "its head is damaged", err);
    if (!equal(h->key, key) || h->data_bytes != total || h->pieces_n != pieces)
        return refused(path, "it holds other weights", err);
    if (h->data_at % SMALL || h->data_at < sizeof *h + pieces * sizeof(struct sg_hash) || h->data_at > map->size ||
        map->size - h->data_at != total)
        return refused(path, "it is cut off", err);
    if (!equal(h->sums, sg_hash_bytes(map->data + sizeof *h, pieces * sizeof(struct sg_hash), pieces)))
        return refused(path, "its head is damaged", err);
    return SEGUE_OK;
}

/* Every byte against the hashes of the head; this also brings the pages in, which the first token needs. */
static segue_status data_check(struct sg_cpu_unit *u, const struct sg_map *map, const char *path, const struct head *h,
                               segue_error *err)
{
    size_t n = (size_t)h->pieces_n;
    struct sg_piece *pieces = sg_alloc(n * sizeof *pieces);
    struct sg_hash *found = sg_alloc(n * sizeof *found);
    segue_status s = SEGUE_OK;
    if (pieces && found) {
        sg_map_want(map);
        sg_pieces_cut(map->data + h->data_at, h->data_bytes, pieces);
        struct hashing work = {pieces, found, 1, 0};
        hash_all(u, &work, (uint32_t)n);
        if (memcmp(found, map->data + sizeof *h, n * sizeof *found)) s = refused(path, "its data is damaged", err);
    } else {
        s = sg_no_memory("hashes of packed weights", n * sizeof *pieces, err);
    }
    sg_free(pieces);
    sg_free(found);
    return s;
}

static segue_status source_check(struct sg_cpu_unit *u, struct sg_sources *src, const struct sg_weight_cache *keep,
                                 const struct head *h, const char *path, segue_error *err)
{
    if (sealed(keep, h->key, h->source)) return SEGUE_OK;
    int mapped = src->n != 0;
    for (uint32_t i = 0; i < src->n; i++) mapped = mapped && src->tensors[i]->mapped;
    struct hashing work = {src->pieces, src->hashes, 0, mapped};
    hash_all(u, &work, src->before[src->n]);
    if (!equal(source_hash(src), h->source)) return refused(path, "the model's file has changed", err);
    if (keep->exact) seal_again(keep, h->key, h->source);
    return SEGUE_OK;
}

segue_status sg_packfile_map(struct sg_pack_set *set, struct sg_cpu_unit *u, struct sg_sources *src,
                             const struct sg_weight_cache *keep, uint64_t total, const uint8_t **data, segue_error *err)
{
    struct sg_hash key = sg_pack_key(set, src, keep);
    struct sg_map map;
    struct head h;
    char *path = entry_path(keep, key, "pack");
    if (!path) return sg_no_memory("name of packed weights", 0, err);
    segue_status s = sg_path_kind(path) == SG_PATH_NONE ? SEGUE_EIO : sg_map_open(&map, path, err);
    if (s != SEGUE_OK) {
        sg_free(path);
        return s;
    }
    s = head_check(&map, path, key, total, &h, err);
    if (s == SEGUE_OK) s = source_check(u, src, keep, &h, path, err);
    if (s == SEGUE_OK) s = data_check(u, &map, path, &h, err);
    if (s == SEGUE_OK) {
        sg_store_touch(path);
        set->map = map;
        *data = map.data + h.data_at;
    } else {
        sg_map_close(&map);
    }
    sg_free(path);
    return s;
}

/* --- writing --- */

static segue_status entry_put(struct sg_file_out *out, const struct head *h, const struct sg_hash *sums,
                              const uint8_t *data, segue_error *err)
{
    SG_TRY(sg_file_put_at(out, 0, h, sizeof *h, err));
    SG_TRY(sg_file_put_at(out, sizeof *h, sums, (size_t)h->pieces_n * sizeof *sums, err));
    /* large writes at aligned places leave large pages in the page cache where the file system has them */
    for (uint64_t at = 0; at < h->data_bytes; at += LARGE)
        SG_TRY(sg_file_put_at(out, h->data_at + at, data + at,
                              (size_t)(h->data_bytes - at < LARGE ? h->data_bytes - at : LARGE), err));
    return sg_file_commit(out, err);
}

static void head_fill(struct head *h, struct sg_hash key, const struct sg_sources *src, const struct sg_hash *sums,
                      uint32_t n, uint64_t total)
{
    uint64_t page = total >= 2 * LARGE ? LARGE : SMALL;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, PACK_MAGIC, 8);
    h->order = ORDER;
    h->layout = SG_PACK_LAYOUT;
    h->key = key;
    h->source = source_hash(src);
    h->sums = sg_hash_bytes(sums, n * sizeof *sums, n);
    h->pieces_n = n;
    h->data_at = (sizeof *h + n * sizeof *sums + page - 1) / page * page;
    h->data_bytes = total;
    h->self = head_hash(h);
}

/* Under the lock. Room is made first, so that the folder never holds more than it may. */
static segue_status entry_write(const struct sg_weight_cache *keep, const char *folder, const struct head *h,
                                const struct sg_hash *sums, const uint8_t *data, segue_error *err)
{
    SG_TRY(sg_store_trim(folder, h->data_at + h->data_bytes + sizeof(struct seal), keep->most, err));
    char *path = entry_path(keep, h->key, "pack");
    if (!path) return sg_no_memory("name of packed weights", 0, err);
    struct sg_file_out out;
    segue_status s = sg_file_begin(&out, path, 0600, err);
    if (s == SEGUE_OK) {
        s = entry_put(&out, h, sums, data, err);
        sg_file_close(&out);
    }
    sg_free(path);
    if (s == SEGUE_OK) (void)seal_write(keep, h->key, h->source, NULL);    /* without it the next start hashes again */
    return s;
}

segue_status sg_packfile_write(const struct sg_pack_set *set, struct sg_cpu_unit *u, const struct sg_sources *src,
                               const struct sg_weight_cache *keep, uint64_t total, const uint8_t *data, segue_error *err)
{
    uint32_t n = sg_pieces_cut(NULL, total, NULL);
    struct sg_piece *pieces = sg_alloc(n * sizeof *pieces);
    struct sg_hash *sums = sg_alloc(n * sizeof *sums);
    char *folder = sg_path_join(keep->folder, "cpu");
    int lock;
    segue_status s = SEGUE_OK;
    if (!pieces || !sums || !folder) s = sg_no_memory("hashes of packed weights", n * sizeof *pieces, err);
    if (s == SEGUE_OK) s = sg_store_lock(folder, &lock, err);
    if (s == SEGUE_OK) {
        struct head h;
        struct hashing work = {pieces, sums, 0, 0};
        sg_pieces_cut(data, total, pieces);
        hash_all(u, &work, n);
        head_fill(&h, sg_pack_key(set, src, keep), src, sums, n, total);
        s = entry_write(keep, folder, &h, sums, data, err);
        sg_store_unlock(lock);
    }
    sg_free(pieces);
    sg_free(sums);
    sg_free(folder);
    return s;
}

/* --- the bytes of the weights --- */

segue_status sg_sources_list(struct sg_sources *out, const struct sg_graph *const *graphs, uint32_t n,
                             segue_error *err)
{
    struct sg_region regions[3];
    uint32_t pieces = 0, t = 0;
    *out = (struct sg_sources){0};
    for (uint32_t g = 0; g < n; g++) {
        out->n += graphs[g]->tensors_n;
        for (uint32_t i = 0; i < graphs[g]->tensors_n; i++)
            for (uint32_t r = sg_tensor_regions(graphs[g]->tensors[i], regions); r--;)
                pieces += sg_pieces_cut(NULL, regions[r].bytes, NULL);
    }
    out->tensors = sg_alloc(out->n * sizeof *out->tensors);
    out->before = sg_alloc((out->n + 1) * sizeof *out->before);
    out->pieces = sg_alloc(pieces * sizeof *out->pieces);
    out->hashes = sg_alloc(pieces * sizeof *out->hashes);
    out->again = sg_alloc(pieces * sizeof *out->again);
    if (!out->tensors || !out->before || !out->pieces || !out->hashes || !out->again) {
        sg_sources_free(out);
        return sg_no_memory("pieces of the weights", pieces * sizeof *out->pieces, err);
    }
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t i = 0; i < graphs[g]->tensors_n; i++, t++) {
            uint32_t regions_n = sg_tensor_regions(graphs[g]->tensors[i], regions);
            out->tensors[t] = graphs[g]->tensors[i];
            out->before[t + 1] = out->before[t];
            for (uint32_t r = 0; r < regions_n; r++)
                out->before[t + 1] += sg_pieces_cut(regions[r].data, regions[r].bytes, out->pieces + out->before[t + 1]);
        }
    return SEGUE_OK;
}

void sg_sources_free(struct sg_sources *s)
{
    sg_free(s->tensors);
    sg_free(s->before);
    sg_free(s->pieces);
    sg_free(s->hashes);
    sg_free(s->again);
    *s = (struct sg_sources){0};
}
