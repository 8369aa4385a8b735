/* anecache.c: entries of the cache folder: find, verify, write. See anecache.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/anecache.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/store.h"

enum { ORDER = 0x01020304, VERSION = 1, DATA_AT = 128 };     /* DATA_AT: offset of the data, a multiple of 64 */

/* Header of an entry file. Fields are in native byte order. `order` is ORDER: entries of a machine with another byte order are
 * refused. */
struct entry_header {
    char magic[8];
    uint32_t order, version;
    struct sg_hash key, data;            /* data: hash of the data */
    uint64_t bytes;                      /* of the data */
    struct sg_hash self;                 /* hash of all fields above */
};
static const char magic[8] = "segueANE";

static int equal(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }
static struct sg_hash head_hash(const struct entry_header *h)
{
    return sg_hash_bytes(h, offsetof(struct entry_header, self), VERSION);
}

/* The length is hashed too, so that two calls do not give the key of one call with both parts. */
struct sg_hash sg_ane_key(struct sg_hash key, const void *bytes, size_t n)
{
    return sg_hash_join(key, sg_hash_bytes(bytes, n, n));
}

/* The folder is created by the first write. */
segue_status sg_ane_cache_open(struct sg_ane_cache **out, const char *folder, uint64_t bytes_max, segue_error *err)
{
    struct sg_ane_cache *k = sg_alloc(sizeof *k);
    if (k) k->folder = sg_path_join(folder, "ane");
    if (!k || !k->folder) {
        sg_free(k);
        return sg_no_memory("name of the cache folder", strlen(folder), err);
    }
    k->bytes_max = bytes_max;
    *out = k;
    return SEGUE_OK;
}

void sg_ane_cache_close(struct sg_ane_cache *k)
{
    if (!k) return;
    sg_free(k->folder);
    sg_free(k);
}

/* <folder>/<key in hex>.<ending>; to be freed by the caller. NULL: out of memory. */
static char *entry_path(const struct sg_ane_cache *k, struct sg_hash key, const char *ending)
{
    char hex[33], name[64];
    sg_hash_hex(key, hex);
    snprintf(name, sizeof name, "%s.%.16s", hex, ending);
    return sg_path_join(k->folder, name);
}

/* 1: hits, misses and writes of this kind count. A list of source hashes saves no compile. */
static int is_counted(const char *ending) { return strcmp(ending, "sources") != 0; }

/* Records the first problem for the report; later ones are dropped. The flag is set last: readers load it first. */
static void note_problem(struct sg_ane_cache *k, const segue_error *err)
{
    if (atomic_load(&k->has_problem)) return;
    snprintf(k->why, sizeof k->why, "%s", err->text);
    atomic_store(&k->has_problem, 1);
}

/* --- reading --- */

/* Checks everything but owner and data and copies the header to *h. NULL: valid. */
static const char *header_fault(const struct sg_map *map, struct sg_hash key, struct entry_header *h)
{
    if (map->size < DATA_AT) return "it is truncated";
    memcpy(h, map->data, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) || h->order != ORDER) return "it is not an entry of this kind of machine";
    if (h->version != VERSION) return "another version of segue wrote it";
    if (!equal(h->self, head_hash(h)) || !equal(h->key, key)) return "its header is damaged";
    return h->bytes != map->size - DATA_AT ? "it is truncated" : NULL;
}

/* Content of a stamp file: hash of the entry's header and of the identity and dates of its file. As long as they are the same,
 * the file has the contents that were verified. */
static struct sg_hash verified_stamp(const struct entry_header *h, const struct sg_file_id *s)
{
    const uint64_t words[] = {s->device, s->inode, s->size, s->modified_ns, s->changed_ns, s->owner};
    return sg_ane_key(h->self, words, sizeof words);
}

/* 1: the stamp file has this content. */
static int is_verified(const char *stamp_path, struct sg_hash stamp)
{
    struct sg_buf buf = {0};
    int good = sg_file_read_own(&buf, stamp_path, sizeof stamp, NULL) == SEGUE_OK && buf.len == sizeof stamp &&
               !memcmp(buf.data, &stamp, sizeof stamp);
    sg_buf_free(&buf);
    return good;
}

/* 1: written. Without a stamp the entry is verified again at the next start. */
static int write_stamp(const struct sg_ane_cache *k, const char *stamp_path, struct sg_hash stamp)
{
    struct sg_file_out out;
    int lock;
    if (sg_store_lock(k->folder, &lock, NULL) != SEGUE_OK) return 0;
    segue_status s = sg_file_begin(&out, stamp_path, 0600, NULL);
    if (s == SEGUE_OK) {
        s = sg_file_put(&out, &stamp, sizeof stamp, NULL);
        if (s == SEGUE_OK) s = sg_file_commit(&out, NULL);
        sg_file_close(&out);
    }
    sg_store_unlock(lock);
    return s == SEGUE_OK;
}

/* Verifies the data by its hash unless a valid stamp exists. NULL: undamaged. A stamp is written only when the file's identity
 * is exact: its dates are old enough that a later change must show in them. The time of the last use is recorded on the stamp,
 * if there is one, because touching the entry would change the dates that the stamp covers. */
static const char *data_fault(struct sg_ane_cache *k, const struct sg_map *map, const struct entry_header *h, const char *path)
{
    size_t n = strlen(path) + sizeof ".seal";
    char *stamp_path = map->id.exact || k->verify_young ? sg_alloc(n) : NULL;
    struct sg_hash stamp = verified_stamp(h, &map->id);
    if (stamp_path) snprintf(stamp_path, n, "%s.seal", path);
    int verified = stamp_path && is_verified(stamp_path, stamp), whole = verified;
    /* The whole entry is read here, so it is requested from the disk at once. */
    if (!verified) {
        sg_map_prefetch(map);
        whole = equal(h->data, sg_hash_bytes(map->data + DATA_AT, (size_t)h->bytes, VERSION));
    }
    if (verified) {
        sg_file_touch(stamp_path);
        atomic_fetch_add(&k->verified, 1);
    } else if (whole && !(stamp_path && write_stamp(k, stamp_path, stamp)))
        sg_file_touch(path);
    sg_free(stamp_path);
    return whole ? NULL : "its data is damaged";
}

/* An entry with a fault is reported as a miss; the write of the new contents replaces it. */
int sg_ane_cache_find(struct sg_ane_cache *k, struct sg_hash key, const char *ending, struct sg_ane_cache_entry *out)
{
    *out = (struct sg_ane_cache_entry){0};
    segue_error err = {0};
    char *path = k ? entry_path(k, key, ending) : NULL;
    if (!path) return 0;
    const char *fault = NULL;
    segue_error foreign;
    struct entry_header h;
    int exists = sg_path_kind(path) == SG_PATH_FILE && sg_map_open(&out->map, path, NULL) == SEGUE_OK;
    if (exists && (sg_folder_check_owner(k->folder, &foreign) || sg_file_check_owner(&out->map.id, path, &foreign)))
        fault = foreign.text;
    if (exists && !fault && !(fault = header_fault(&out->map, key, &h))) fault = data_fault(k, &out->map, &h, path);
    if (exists && fault) {
        sg_fail(&err, SEGUE_EFORMAT, "weight cache: %.300s: %s; it is written again", path, fault);
        note_problem(k, &err);
        sg_map_close(&out->map);
    }
    if (exists && !fault) {
        out->data = out->map.data + DATA_AT;
        out->bytes = (size_t)h.bytes;
        out->hash = h.data;
    }
    sg_free(path);
    if (is_counted(ending)) atomic_fetch_add(out->data ? &k->hits : &k->misses, 1);
    if (fault) atomic_fetch_add(&k->refused, 1);
    return out->data != NULL;
}

void sg_ane_cache_entry_close(struct sg_ane_cache_entry *e)
{
    if (e->data) sg_map_close(&e->map);
    *e = (struct sg_ane_cache_entry){0};
}

/* --- writing --- */

/* Writes the pieces one after the other, then hashes the temporary file, since the pieces are not contiguous in memory. The
 * header is written last: until then it is zero and the entry invalid. The commit renames the file. */
static segue_status write_pieces(struct sg_file_out *out, struct entry_header *h, const struct sg_ane_piece *pieces, uint32_t n,
                            segue_error *err)
{
    uint64_t at = DATA_AT;
    struct sg_map map;
    for (uint32_t i = 0; i < n; i++) {
        if (pieces[i].bytes) SG_TRY(sg_file_put_at(out, at, pieces[i].data, pieces[i].bytes, err));
        at += pieces[i].bytes;
    }
    char header_bytes[DATA_AT] = {0};
    SG_TRY(sg_file_put_at(out, 0, header_bytes, sizeof header_bytes, err));
    h->bytes = at - DATA_AT;
    SG_TRY(sg_map_open(&map, out->tmp_path, err));
    int whole = map.size == at;
    if (whole) h->data = sg_hash_bytes(map.data + DATA_AT, (size_t)h->bytes, VERSION);
    sg_map_close(&map);
    if (!whole)
        return sg_fail(err, SEGUE_EIO, "weight cache: %.300s: the file changed while it was written; try again", out->path);
    h->self = head_hash(h);
    memcpy(header_bytes, h, sizeof *h);
    SG_TRY(sg_file_put_at(out, 0, header_bytes, sizeof header_bytes, err));
    return sg_file_commit(out, err);
}

/* Evicts the least recently used entries until the folder holds at most bytes_max with the new one, then writes it. */
static segue_status write_entry(struct sg_ane_cache *k, struct sg_hash key, const char *path,
                                const struct sg_ane_piece *pieces, uint32_t n, segue_error *err)
{
    struct entry_header h;
    struct sg_file_out out;
    uint64_t bytes = DATA_AT;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, magic, sizeof magic);
    h.order = ORDER;
    h.version = VERSION;
    h.key = key;
    for (uint32_t i = 0; i < n; i++) bytes += pieces[i].bytes;
    SG_TRY(sg_store_trim(k->folder, bytes, k->bytes_max, err));
    SG_TRY(sg_file_begin(&out, path, 0600, err));
    segue_status status = write_pieces(&out, &h, pieces, n, err);
    sg_file_close(&out);
    return status;
}

/* The lock of the folder allows one writer at a time, of all processes. */
void sg_ane_cache_write(struct sg_ane_cache *k, struct sg_hash key, const char *ending, const struct sg_ane_piece *pieces,
                       uint32_t n)
{
    segue_error err = {0};
    int lock;
    if (!k) return;
    char *path = entry_path(k, key, ending);
    segue_status status = path ? sg_store_lock(k->folder, &lock, &err) : sg_no_memory("name of an entry", 0, &err);
    if (status == SEGUE_OK) {
        status = write_entry(k, key, path, pieces, n, &err);
        sg_store_unlock(lock);
    }
    if (status != SEGUE_OK)
        note_problem(k, &err);
    else if (is_counted(ending))
        atomic_fetch_add(&k->written, 1);
    sg_free(path);
}
