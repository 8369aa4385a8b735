/* weights_id.c: see weights_id.h. An id is remembered under the rules of "Cached weights"
 * in docs/ARCHITECTURE.md.
 * SPDX-License-Identifier: MIT */
#include "model/weights_id.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/store.h"

/* Files up to INLINE_BYTES in total are hashed when the model is opened: about 10 ms. */
enum { INLINE_BYTES = 64 << 20, FOLDER_BYTES = 256 << 10 };
static const char MAGIC[8] = "SGWTID1";

struct sg_weights_id {
    const struct sg_archive *archive;
    struct sg_hash storage;      /* of the conversion's name; zero: none */
    pthread_mutex_t lock;        /* guards started, joined and the join itself */
    pthread_t thread;
    int started, joined;
    char *cache;                 /* NULL: nothing is remembered; set before the thread starts */
    atomic_int stop, done;       /* done: status, hash and err are final */
    segue_status status;
    struct sg_hash hash;
    segue_error err;
};

/* Content of CACHE/ids/KEY.id. */
struct remembered {
    char magic[8];
    struct sg_hash files;        /* sg_archive_file_id */
    struct sg_hash content;      /* sg_archive_hash */
    struct sg_hash self;         /* hash of all fields above */
};

static struct sg_hash self_hash(const struct remembered *r)
{
    return sg_hash_bytes(r, offsetof(struct remembered, self), 4);
}

static int hash_equal(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }

/* CACHE/ids; NULL: out of memory. */
static char *folder_of(const struct sg_weights_id *w) { return sg_path_join(w->cache, "ids"); }

static void name_of(struct sg_hash files, char out[40])
{
    char hex[33];
    sg_hash_hex(files, hex);
    snprintf(out, 40, "%s.id", hex);
}

/* 1: the id of exactly these files was remembered. */
static int recall(const struct sg_weights_id *w, struct sg_hash files, struct sg_hash *out)
{
    struct remembered r;
    struct sg_buf buf = {0};
    char name[40];
    name_of(files, name);
    char *folder = folder_of(w), *path = folder ? sg_path_join(folder, name) : NULL;
    int good = path && sg_folder_check_owner(folder, NULL) == SEGUE_OK &&
               sg_file_read_own(&buf, path, sizeof r, NULL) == SEGUE_OK && buf.len == sizeof r;
    if (good) memcpy(&r, buf.data, sizeof r);
    good = good && !memcmp(r.magic, MAGIC, 8) && hash_equal(r.files, files) && hash_equal(r.self, self_hash(&r));
    if (good) *out = r.content;
    if (good) sg_file_touch(path);
    sg_buf_free(&buf);
    sg_free(path);
    sg_free(folder);
    return good;
}

/* If it cannot be written, the files are hashed again at the next start; nothing else is lost. */
static void remember(const struct sg_weights_id *w, struct sg_hash files, struct sg_hash content)
{
    struct remembered r;
    char name[40];
    int lock;
    char *folder = folder_of(w);
    memset(&r, 0, sizeof r);
    memcpy(r.magic, MAGIC, 8);
    r.files = files;
    r.content = content;
    r.self = self_hash(&r);
    name_of(files, name);
    if (folder && sg_store_lock(folder, &lock, NULL) == SEGUE_OK) {
        if (sg_store_trim(folder, sizeof r, FOLDER_BYTES, NULL) == SEGUE_OK)
            (void)sg_file_write_in(folder, name, &r, sizeof r, NULL);
        sg_store_unlock(lock);
    }
    sg_free(folder);
}

/* Sets status, hash and err. Once per object: in the thread, in the first wait, or when the object is made. */
static void compute(struct sg_weights_id *w)
{
    struct sg_hash files;
    int exact = w->cache && sg_archive_file_id(w->archive, &files);
    if (!exact || !recall(w, files, &w->hash)) {
        w->status = sg_archive_hash(w->archive, &w->hash, &w->stop, &w->err);
        if (w->status == SEGUE_OK && exact) remember(w, files, w->hash);
    }
    if (w->storage.lo | w->storage.hi) w->hash = sg_hash_join(w->hash, w->storage);
    atomic_store(&w->done, 1);
}

static void *run(void *arg)
{
    compute(arg);
    return NULL;
}

segue_status sg_weights_id_new(struct sg_weights_id **out, const struct sg_archive *a, const char *storage, segue_error *err)
{
    struct sg_weights_id *w = sg_alloc(sizeof *w);
    if (!w || pthread_mutex_init(&w->lock, NULL)) {
        sg_free(w);
        return sg_no_memory("weights id", sizeof *w, err);
    }
    w->archive = a;
    atomic_init(&w->stop, 0);
    atomic_init(&w->done, 0);
    if (storage) w->storage = sg_hash_bytes(storage, strlen(storage), 0);
    if (sg_archive_bytes(a) <= INLINE_BYTES) compute(w);
    if (w->status != SEGUE_OK) {
        segue_status s = sg_fail(err, w->status, "%s", w->err.text);
        sg_weights_id_free(w);
        return s;
    }
    *out = w;
    return SEGUE_OK;
}

void sg_weights_id_begin(struct sg_weights_id *w, const char *cache)
{
    pthread_mutex_lock(&w->lock);
    if (!w->started && !atomic_load(&w->done)) {
        if (cache && !w->cache) w->cache = sg_strndup(cache, strlen(cache));
        /* without a thread the first wait computes */
        w->started = !pthread_create(&w->thread, NULL, run, w);
    }
    pthread_mutex_unlock(&w->lock);
}

int sg_weights_id_known(struct sg_weights_id *w, struct sg_hash *out)
{
    if (!atomic_load(&w->done) || w->status != SEGUE_OK) return 0;
    *out = w->hash;
    return 1;
}

segue_status sg_weights_id_wait(struct sg_weights_id *w, struct sg_hash *out, segue_error *err)
{
    pthread_mutex_lock(&w->lock);
    if (w->started && !w->joined) {
        pthread_join(w->thread, NULL);
        w->joined = 1;
    }
    if (!atomic_load(&w->done)) compute(w);
    pthread_mutex_unlock(&w->lock);
    if (w->status != SEGUE_OK) return sg_fail(err, w->status, "%s", w->err.text);
    *out = w->hash;
    return SEGUE_OK;
}

void sg_weights_id_free(struct sg_weights_id *w)
{
    if (!w) return;
    atomic_store(&w->stop, 1);
    if (w->started && !w->joined) pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    sg_free(w->cache);
    sg_free(w);
}
