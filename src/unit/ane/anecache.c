/* anecache.c: see anecache.h. Numbers as this machine writes them: `order` refuses the entries of other machines.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/anecache.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/store.h"

enum { ORDER = 0x01020304, VERSION = 1, DATA_AT = 128 };

/* Header of an entry file; the data begins at DATA_AT. Fields are in native byte order, and
 * `order` detects entries of another machine. */
struct head {
    char magic[8];
    uint32_t order, version;
    struct sg_hash key, data;
    uint64_t bytes;
    struct sg_hash self;                 /* of all fields above */
};
static const char magic[8] = "segueANE";

static int equal(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }
static struct sg_hash head_hash(const struct head *h) { return sg_hash_bytes(h, offsetof(struct head, self), VERSION); }

struct sg_hash sg_ane_key(struct sg_hash key, const void *bytes, size_t n)
{
    return sg_hash_join(key, sg_hash_bytes(bytes, n, n));
}

segue_status sg_ane_cache_open(struct sg_ane_cache **out, const char *folder, uint64_t most, segue_error *err)
{
    struct sg_ane_cache *k = sg_alloc(sizeof *k);
    if (k) k->folder = sg_path_join(folder, "ane");
    if (!k || !k->folder) {
        sg_free(k);
        return sg_no_memory("name of the cache folder", strlen(folder), err);
    }
    k->most = most;
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

/* Hit and miss counters ignore the lists of source hashes. */
static int counted(const char *ending) { return strcmp(ending, "sources") != 0; }

/* Keeps the first problem for the report; later ones are dropped. */
static void tell(struct sg_ane_cache *k, const segue_error *err)
{
    if (atomic_load(&k->told)) return;
    snprintf(k->why, sizeof k->why, "%s", err->text);
    atomic_store(&k->told, 1);
}

/* --- reading --- */

/* Checks everything but the data. Entries owned by other users (except root) are not trusted.
 * NULL: valid. */
static const char *fault_of(const struct sg_map *map, struct sg_hash key, struct head *h)
{
    if (map->size < DATA_AT) return "it is cut off";
    memcpy(h, map->data, sizeof *h);
    if (map->stamp.owner != geteuid() && map->stamp.owner) return "it belongs to another user";
    if (memcmp(h->magic, magic, sizeof magic) || h->order != ORDER) return "it is no entry of this machine";
    if (h->version != VERSION) return "another version wrote it";
    if (!equal(h->self, head_hash(h)) || !equal(h->key, key)) return "its head is damaged";
    return h->bytes != map->size - DATA_AT ? "it is cut off" : NULL;
}

/* Content of a seal file: hash of the entry header and of the file's identity and dates. It states
 * that this very file was verified. */
static struct sg_hash seal_of(const struct head *h, const struct sg_file_id *s)
{
    const uint64_t words[] = {s->device, s->inode, s->size, s->modified_ns, s->changed_ns, s->owner};
    return sg_ane_key(h->self, words, sizeof words);
}

static int is_sealed(const char *seal_path, struct sg_hash seal)
{
    struct sg_buf buf = {0};
    int good = sg_file_read(&buf, seal_path, sizeof seal, NULL) == SEGUE_OK && buf.len == sizeof seal &&
               !memcmp(buf.data, &seal, sizeof seal);
    sg_buf_free(&buf);
    return good;
}

/* A seal that cannot be written only costs another verification at the next start. */
static int write_seal(const struct sg_ane_cache *k, const char *seal_path, struct sg_hash seal)
{
    struct sg_file_out out;
    int lock;
    if (sg_store_lock(k->folder, &lock, NULL) != SEGUE_OK) return 0;
    segue_status s = sg_file_begin(&out, seal_path, 0600, NULL);
    if (s == SEGUE_OK) {
        s = sg_file_put(&out, &seal, sizeof seal, NULL);
        if (s == SEGUE_OK) s = sg_file_commit(&out, NULL);
        sg_file_close(&out);
    }
    sg_store_unlock(lock);
    return s == SEGUE_OK;
}

/* Verifies the data by its hash unless a valid seal exists. Last-use time is recorded on the seal
 * if there is one, because touching the entry would change the dates that the seal covers. */
static const char *data_fault(struct sg_ane_cache *k, const struct sg_map *map, const struct head *h, const char *path)
{
    size_t n = strlen(path) + sizeof ".seal";
    char *seal_path = map->stamp.exact || k->young_too ? sg_alloc(n) : NULL;
    struct sg_hash seal = seal_of(h, &map->stamp);
    if (seal_path) snprintf(seal_path, n, "%s.seal", path);
    int sealed = seal_path && is_sealed(seal_path, seal), whole = sealed;
    if (!sealed) {
        sg_map_want(map);
        whole = equal(h->data, sg_hash_bytes(map->data + DATA_AT, (size_t)h->bytes, VERSION));
    }
    if (sealed) {
        sg_store_touch(seal_path);
        atomic_fetch_add(&k->sealed, 1);
    } else if (whole && !(seal_path && write_seal(k, seal_path, seal)))
        sg_store_touch(path);
    sg_free(seal_path);
    return whole ? NULL : "its data is damaged";
}

int sg_ane_cache_find(struct sg_ane_cache *k, struct sg_hash key, const char *ending, struct sg_ane_cache_entry *out)
{
    *out = (struct sg_ane_cache_entry){0};
    segue_error err = {0};
    char *path = k ? entry_path(k, key, ending) : NULL;
    if (!path) return 0;
    const char *fault = NULL;
    struct head h;
    int there = sg_path_kind(path) == SG_PATH_FILE && sg_map_open(&out->map, path, NULL) == SEGUE_OK;
    if (there && !(fault = fault_of(&out->map, key, &h))) fault = data_fault(k, &out->map, &h, path);
    if (there && fault) {
        sg_fail(&err, SEGUE_EFORMAT, "keep: %.300s: %s; it is replaced", path, fault);
        tell(k, &err);
        sg_map_close(&out->map);
    }
    if (there && !fault) {
        out->data = out->map.data + DATA_AT;
        out->bytes = (size_t)h.bytes;
        out->hash = h.data;
    }
    sg_free(path);
    if (counted(ending)) atomic_fetch_add(out->data ? &k->hits : &k->misses, 1);
    if (fault) atomic_fetch_add(&k->refused, 1);
    return out->data != NULL;
}

void sg_ane_cache_entry_close(struct sg_ane_cache_entry *e)
{
    if (e->data) sg_map_close(&e->map);
    *e = (struct sg_ane_cache_entry){0};
}

/* --- writing --- */

/* Writes the pieces, then hashes the temporary file, so that they need not be contiguous in
 * memory. The header is written last: until then it is zero and the entry invalid. */
static segue_status put_all(struct sg_file_out *out, struct head *h, const struct sg_ane_piece *pieces, uint32_t n,
                            segue_error *err)
{
    uint64_t at = DATA_AT;
    struct sg_map map;
    for (uint32_t i = 0; i < n; i++) {
        if (pieces[i].bytes) SG_TRY(sg_file_put_at(out, at, pieces[i].data, pieces[i].bytes, err));
        at += pieces[i].bytes;
    }
    char room[DATA_AT] = {0};
    SG_TRY(sg_file_put_at(out, 0, room, sizeof room, err));
    h->bytes = at - DATA_AT;
    SG_TRY(sg_map_open(&map, out->aside, err));
    int whole = map.size == at;
    if (whole) h->data = sg_hash_bytes(map.data + DATA_AT, (size_t)h->bytes, VERSION);
    sg_map_close(&map);
    if (!whole) return sg_fail(err, SEGUE_EIO, "keep: %.300s: the file changed while it was written; try again", out->path);
    h->self = head_hash(h);
    memcpy(room, h, sizeof *h);
    SG_TRY(sg_file_put_at(out, 0, room, sizeof room, err));
    return sg_file_commit(out, err);
}

/* Makes space in the folder, then writes and renames the entry. */
static segue_status write_entry(struct sg_ane_cache *k, struct sg_hash key, const char *path,
                                const struct sg_ane_piece *pieces, uint32_t n, segue_error *err)
{
    struct head h;
    struct sg_file_out out;
    uint64_t bytes = DATA_AT;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, magic, sizeof magic);
    h.order = ORDER;
    h.version = VERSION;
    h.key = key;
    for (uint32_t i = 0; i < n; i++) bytes += pieces[i].bytes;
    SG_TRY(sg_store_trim(k->folder, bytes, k->most, err));
    SG_TRY(sg_file_begin(&out, path, 0600, err));
    segue_status status = put_all(&out, &h, pieces, n, err);
    sg_file_close(&out);
    return status;
}

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
        tell(k, &err);
    else if (counted(ending))
        atomic_fetch_add(&k->written, 1);
    sg_free(path);
}
