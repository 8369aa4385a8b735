/* prefixdisk.c: the store's files. One folder serves all models and processes. A file is a state file of one prefix together
 * with the checkpoints of shorter ones. Other processes add and remove files at any time, so a file is used only when its
 * checksums are right, its tokens are the expected ones, and it was made by the same unit, kernels, library version and
 * weights.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/store/prefixstore.h"

enum {
    FILES_MAX = 65536,  /* entries of the folder that are read */
    FILES_KEPT = 4096,  /* state files that are kept */
    NAME_WEIGHTS = 16   /* leading characters of a file name: from the engine's sample_id */
};
static const char suffix[] = ".state";
static const double half_life_ns = 7 * 86400e9; /* the value of a file is halved after this time without use */

static char *path_of(const struct sg_store *s, const char *name) { return sg_path_join(s->folder, name); }

/* --- reading the folder --- */

static struct sg_store_file *known_file(const struct sg_store *s, const char *name)
{
    struct sg_store_file *f = s->files;
    while (f && strcmp(f->name, name) != 0) f = f->next;
    return f;
}

static struct sg_store_file *file_new(struct sg_store *s, const char *name)
{
    struct sg_store_file *f = sg_alloc(sizeof *f);
    if (!f || !(f->name = sg_strndup(name, strlen(name)))) {
        sg_free(f);
        return NULL;
    }
    f->next = s->files;
    s->files = f;
    return f;
}

/* Adds the entry of the file's state (checkpoint 0) or of its checkpoint number n (n + 1). */
static void add_entry(struct sg_store *s, struct sg_store_file *file, struct sg_store_class *class,
                  const struct sg_statefile *f, uint32_t checkpoint)
{
    uint64_t rows = checkpoint ? f->checkpoints[checkpoint - 1].rows : f->head.rows;
    struct sg_store_entry *e = sg_store_get_entry(s, class, sg_statefile_tokens(f), rows);
    if (!e || e->file) return;
    e->file = file;
    e->file_checkpoint = checkpoint;
    e->has_logits |= (checkpoint ? f->checkpoints[checkpoint - 1].logits_at : f->head.logits_at) != 0;
    if (!e->prefill_ns) e->prefill_ns = (uint64_t)((double)f->head.read_ns * (double)rows / (double)f->head.rows);
}

/* Adds the entries of a file of this model. The name selects candidates; the id of all weight bytes decides, so the first file
 * waits until it is known. States of another library version are not used, because its kernels may round
 * differently; `stale` remembers that there are some. */
static void add_file(struct sg_store *s, const char *name, const struct sg_statefile *f, const char weights_id[33])
{
    const segue_model_info *info = &s->engine->model->info;
    if (memcmp(f->head.shape_id, info->shape_id, 32) != 0 || memcmp(f->head.weights_id, weights_id, 32) != 0) return;
    struct sg_state_origin origin = {.adapters = f->head.adapters};
    memcpy(origin.unit, f->head.unit, sizeof origin.unit);
    memcpy(origin.kernels, f->head.kernels, sizeof origin.kernels);
    struct sg_store_class *class = sg_store_get_class(s, &origin);
    if (!class) return;
    if (f->head.library != segue_version()) {
        class->stale = 1;
        return;
    }
    struct sg_store_file *file = known_file(s, name) ? NULL : file_new(s, name);
    for (uint32_t p = 0; file && p <= f->head.checkpoints_n; p++) add_entry(s, file, class, f, p);
}

/* Reads the header of a file of the folder, without the lock. A file of a newer format counts as stale. */
static void read_header(struct sg_store *s, const char *name)
{
    struct sg_statefile f;
    char weights_id[33], *path = path_of(s, name);
    if (!path) return;
    if (sg_statefile_peek(&f, path, NULL) == SEGUE_OK) {
        int ours = sg_file_check_owner(&f.map.id, path, NULL) == SEGUE_OK &&
                   sg_engine_weights_id(s->engine, weights_id, NULL) == SEGUE_OK;
        pthread_mutex_lock(&s->lock);
        if (ours) add_file(s, name, &f, weights_id);
        pthread_mutex_unlock(&s->lock);
        sg_statefile_close(&f);
    } else {
        pthread_mutex_lock(&s->lock);
        for (struct sg_store_class *c = s->classes; c; c = c->next) c->stale |= f.head.version > SG_STATE_VERSION;
        pthread_mutex_unlock(&s->lock);
    }
    sg_free(path);
}

/* One name of the folder, without the lock. Temporary files of dead writers are removed. */
static void scan_name(struct sg_store *s, const char *name)
{
    size_t len = strlen(name), end = sizeof suffix - 1;
    char *path = sg_file_abandoned(name) ? path_of(s, name) : NULL;
    if (path) sg_file_remove(path);
    sg_free(path);
    if (len <= end || strcmp(name + len - end, suffix) != 0 || strncmp(name, s->engine->sample_id, NAME_WEIGHTS) != 0) return;
    pthread_mutex_lock(&s->lock);
    int known = known_file(s, name) != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!known) read_header(s, name);
}

int sg_store_folder_changed(const struct sg_store *s)
{
    uint64_t bytes, changed;
    return sg_file_stat(s->folder, &bytes, &changed, NULL) == SEGUE_OK && changed != s->seen_ns;
}

/* Does nothing while the folder's modification time is unchanged. Two threads do not scan at once, and both see the result. */
void sg_store_scan(struct sg_store *s)
{
    char **names = NULL;
    size_t n = 0;
    uint64_t bytes, changed;
    while (s->scanning) pthread_cond_wait(&s->changed, &s->lock);
    if (sg_file_stat(s->folder, &bytes, &changed, NULL) != SEGUE_OK || changed == s->seen_ns) return;
    s->scanning = 1;
    pthread_mutex_unlock(&s->lock);
    segue_status status = sg_folder_list(s->folder, "", FILES_MAX, &names, &n, NULL);
    for (size_t i = 0; status == SEGUE_OK && i < n; i++) {
        scan_name(s, names[i]);
        sg_free(names[i]);
    }
    sg_free(names);
    pthread_mutex_lock(&s->lock);
    if (status == SEGUE_OK) s->seen_ns = changed;
    s->scanning = 0;
    pthread_cond_broadcast(&s->changed);
}

/* Drops a file from the index, and its entries that are not in memory. remove: also deletes it. */
static void forget_file(struct sg_store *s, struct sg_store_file *file, int remove)
{
    char *path = remove ? path_of(s, file->name) : NULL;
    struct sg_store_file **at = &s->files;
    if (path) sg_file_remove(path);
    sg_free(path);
    for (struct sg_store_entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        if (e->file != file) continue;
        e->file = NULL;
        if (!e->checkpoint) sg_store_remove_entry(s, e);
    }
    while (*at != file) at = &(*at)->next;
    *at = file->next;
    sg_free(file->name);
    sg_free(file);
}

/* --- reading a state --- */

/* What reading needs of an entry, so that the lock is not held meanwhile. */
struct source {
    char *name, *path;
    const struct sg_state_origin *origin; /* of the class, which stays */
    int32_t *tokens;                      /* [n] */
    size_t n;
    uint32_t checkpoint; /* sg_store_entry.file_checkpoint */
};

static void source_free(struct source *from)
{
    sg_free(from->name);
    sg_free(from->path);
    sg_free(from->tokens);
}

/* With the lock held. 0: out of memory. */
static int source_of(const struct sg_store *s, const struct sg_store_entry *e, struct source *from)
{
    *from = (struct source){.origin = &e->class->origin, .n = e->node->depth, .checkpoint = e->file_checkpoint};
    from->name = sg_strndup(e->file->name, strlen(e->file->name));
    from->path = path_of(s, e->file->name);
    from->tokens = sg_alloc(from->n * sizeof *from->tokens);
    if (from->tokens) sg_tree_tokens(e->node, from->tokens);
    if (from->name && from->path && from->tokens) return 1;
    source_free(from);
    return 0;
}

/* The file name contains only a hash, and another process may have replaced the file: compares the tokens and the origin. */
static segue_status check_file(const struct sg_statefile *f, const struct source *from, segue_error *err)
{
    uint64_t rows = from->checkpoint > f->head.checkpoints_n ? 0
                    : from->checkpoint                  ? f->checkpoints[from->checkpoint - 1].rows
                                                     : f->head.rows;
    if (rows == from->n && !memcmp(sg_statefile_tokens(f), from->tokens, from->n * sizeof *from->tokens) &&
        f->head.library == segue_version() && !strcmp(f->head.unit, from->origin->unit) &&
        !strcmp(f->head.kernels, from->origin->kernels))
        return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: the file changed since it was indexed; compute the tokens again",
                   f->path);
}

/* Loads the state or checkpoint of an entry. Its tokens match the query as far as the tree matched; the caller cuts the rest. */
static segue_status read_file(const struct sg_store *s, const struct source *from, struct sg_layout *l, float *logits,
                              int *logits_known, segue_error *err)
{
    struct sg_statefile f;
    SG_TRY(sg_statefile_open(&f, from->path, 0, err));
    segue_status status = sg_file_check_owner(&f.map.id, from->path, err);
    if (status == SEGUE_OK) status = check_file(&f, from, err);
    if (status == SEGUE_OK) status = sg_statefile_fits(&f, s->engine, from->origin->adapters, err);
    if (status == SEGUE_OK) status = sg_statefile_fill(&f, s->engine, l, from->checkpoint, NULL, NULL, err);
    const float *known = status == SEGUE_OK ? sg_statefile_logits(&f, from->checkpoint) : NULL;
    if (known) memcpy(logits, known, f.head.vocab * sizeof *logits);
    *logits_known = known != NULL;
    sg_statefile_close(&f);
    return status;
}

segue_status sg_store_read(struct sg_store *s, struct sg_store_entry *e, struct sg_layout *l, float *logits,
                           int *logits_known)
{
    segue_error err = {0};
    struct source from;
    if (!e->file) return SEGUE_EIO; /* dropped, and still in the tree because another thread uses it */
    if (!source_of(s, e, &from)) return SEGUE_EMEMORY;
    pthread_mutex_unlock(&s->lock);
    segue_status status = read_file(s, &from, l, logits, logits_known, &err);
    if (status == SEGUE_OK) sg_file_touch(from.path);
    pthread_mutex_lock(&s->lock);
    /* EIO: another process may have removed it */
    struct sg_store_file *file = known_file(s, from.name);
    if (file && (status == SEGUE_EFORMAT || status == SEGUE_EUNSUPPORTED || status == SEGUE_EIO))
        forget_file(s, file, status != SEGUE_EIO);
    source_free(&from);
    return status;
}

/* --- writing --- */

/* What writing needs of an entry, so that the lock is not held meanwhile. The entries are pinned. */
struct target {
    struct sg_store_entry *entry, *above[SG_STATE_CHECKPOINTS]; /* [above_n] ancestors whose checkpoints the file also has */
    uint32_t above_n;
    struct sg_checkpoint *checkpoint, *checkpoints[SG_STATE_CHECKPOINTS]; /* references */
    int32_t *tokens;                                                      /* [n] */
    size_t n;
    uint64_t prefill_ns;
    char name[64];
};

/* Upper estimate of the size of the file to write. */
static uint64_t file_bytes(const struct sg_store *s, const struct target *t)
{
    const struct sg_graph *g = s->engine->graph;
    uint64_t rows = t->n, vocab = s->engine->model->info.vocab, bytes = 4096;
    for (uint32_t i = 0; i < g->slots_n; i++)
        bytes += (1 + (uint64_t)t->above_n) * (sg_slot_fixed_bytes(&g->slots[i]) + 256) +
                 rows * sg_slot_row_bytes(&g->slots[i], t->checkpoint->layout.stages[0].kv);
    return bytes + rows * 4 + (1 + (uint64_t)t->above_n) * vocab * 4;
}

/* A file that may be deleted. */
struct candidate {
    char *name;
    uint64_t bytes; /* 0: not a file any more, or deleted */
    double worth;   /* nanoseconds saved per byte, halved per half_life_ns without use */
};

/* Fills size and value from the file's header; a damaged file has the value 0. */
static void rate(const struct sg_store *s, struct candidate *c, uint64_t now)
{
    struct sg_statefile f;
    uint64_t changed = 0;
    char *path = path_of(s, c->name);
    if (!path || sg_file_stat(path, &c->bytes, &changed, NULL) != SEGUE_OK) c->bytes = 0;
    if (path && sg_statefile_peek(&f, path, NULL) == SEGUE_OK) {
        double age = now > changed ? (double)(now - changed) : 0, ns = (double)f.head.read_ns;
        if (ns <= 0) ns = (double)f.head.rows * 1000;
        c->worth = ns / (double)(c->bytes + 1) * exp2(-age / half_life_ns);
        sg_statefile_close(&f);
    }
    sg_free(path);
}

static void remove_candidate(struct sg_store *s, struct candidate *c)
{
    pthread_mutex_lock(&s->lock);
    struct sg_store_file *f = known_file(s, c->name);
    if (f) forget_file(s, f, 1);
    pthread_mutex_unlock(&s->lock);
    char *path = f ? NULL : path_of(s, c->name);
    if (path) sg_file_remove(path);
    sg_free(path);
}

/* Without the lock: deletes the least valuable files, of any model, until `wanted` more bytes fit. 1: they fit the budget. */
static int free_disk(struct sg_store *s, uint64_t wanted)
{
    char **names = NULL;
    size_t n = 0;
    uint64_t total = 0, live = 0, now = sg_wall_ns();
    if (wanted > s->disk_budget || sg_folder_list(s->folder, suffix, FILES_MAX, &names, &n, NULL) != SEGUE_OK)
        return 0;
    struct candidate *list = sg_alloc(n * sizeof *list);
    for (size_t i = 0; list && i < n; i++) {
        list[i].name = names[i];
        rate(s, &list[i], now);
        total += list[i].bytes;
        live += list[i].bytes != 0;
    }
    while (list && (total + wanted > s->disk_budget || live >= FILES_KEPT)) {
        struct candidate *least = NULL;
        for (size_t i = 0; i < n; i++)
            if (list[i].bytes && (!least || list[i].worth < least->worth)) least = &list[i];
        if (!least) break;
        remove_candidate(s, least);
        total -= least->bytes;
        least->bytes = 0;
        live--;
    }
    int fits = list && total + wanted <= s->disk_budget;
    for (size_t i = 0; i < n; i++) sg_free(names[i]);
    sg_free(names);
    sg_free(list);
    return fits;
}

/* The nearest ancestors that are in memory, at most SG_STATE_CHECKPOINTS, in ascending order of length. */
static uint32_t ancestors_of(const struct sg_store_entry *e, struct sg_store_entry *out[SG_STATE_CHECKPOINTS])
{
    uint32_t n = 0;
    for (struct sg_prefix_node *up = sg_tree_ancestor(e->node); up && n < SG_STATE_CHECKPOINTS; up = sg_tree_ancestor(up))
        if (up->entry->checkpoint) out[n++] = up->entry;
    for (uint32_t i = 0; i < n / 2; i++) {
        struct sg_store_entry *swap = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = swap;
    }
    return n;
}

/* File name: the first characters of the engine's sample_id and a hash of tokens, origin and weights. */
static segue_status name_of(const struct sg_store *s, struct target *t)
{
    const struct sg_state_origin *origin = &t->entry->class->origin;
    char hex[33];
    SG_TRY(sg_engine_weights_id(s->engine, hex, NULL));
    struct sg_hash h = sg_hash_bytes(t->tokens, t->n * sizeof *t->tokens, 0);
    h = sg_hash_join(h, sg_hash_bytes(origin->unit, sizeof origin->unit, 0));
    h = sg_hash_join(h, sg_hash_bytes(hex, 32, 0));
    h = sg_hash_join(h, sg_hash_bytes(origin->kernels, sizeof origin->kernels, 0));
    sg_hash_hex(sg_hash_join(h, origin->adapters), hex);
    snprintf(t->name, sizeof t->name, "%.*s-%s%s", NAME_WEIGHTS, s->engine->sample_id, hex, suffix);
    return SEGUE_OK;
}

static segue_status save(const struct sg_store *s, const struct target *t)
{
    char *path = path_of(s, t->name);
    if (!path) return SEGUE_EMEMORY;
    struct sg_state_contents v = {.engine = s->engine,
                        .origin = &t->entry->class->origin,
                        .tokens = t->tokens,
                        .tokens_n = t->n,
                        .layout = &t->checkpoint->layout,
                        .computed = t->n,
                        .prefill_ns = t->prefill_ns,
                        .logits = t->checkpoint->logits,
                        .checkpoints = t->checkpoints,
                        .checkpoints_n = t->above_n};
    segue_status status = sg_state_save(&v, path, NULL);
    sg_free(path);
    return status;
}

/* Deletes older files all of whose entries the new file contains, and lets these entries refer to the new file. */
static void supersede(struct sg_store *s, struct sg_store_entry *const *above, uint32_t n, struct sg_store_file *by)
{
    for (uint32_t i = 0; i < n; i++) {
        struct sg_store_file *old = above[i]->file;
        uint32_t covered = 0, users = 0;
        if (!old || old == by) continue;
        for (const struct sg_store_entry *e = s->entries; e; e = e->next) users += e->file == old;
        for (uint32_t k = 0; k < n; k++) covered += above[k]->file == old;
        if (covered == users) forget_file(s, old, 1);
    }
    for (uint32_t i = 0; i < n; i++)
        if (!above[i]->file && by) {
            above[i]->file = by;
            above[i]->file_checkpoint = i + 1;
        }
}

/* States that can be cut: deletes the files of all prefixes of this entry. */
static void supersede_shorter(struct sg_store *s, const struct sg_store_entry *e)
{
    for (struct sg_prefix_node *up = sg_tree_ancestor(e->node); up;) {
        struct sg_store_file *old = up->entry->file;
        up = sg_tree_ancestor(up);
        if (old) forget_file(s, old, 1);
    }
}

/* Pins the entries of a file to write and takes references to their checkpoints. 0: out of memory. */
static int target_of(const struct sg_store *s, struct sg_store_entry *e, struct target *t)
{
    *t = (struct target){.entry = e, .n = e->node->depth, .prefill_ns = e->prefill_ns};
    if (!(t->tokens = sg_alloc(t->n * sizeof *t->tokens))) return 0;
    sg_tree_tokens(e->node, t->tokens);
    t->checkpoint = sg_checkpoint_share(e->checkpoint);
    t->above_n = s->exact ? ancestors_of(e, t->above) : 0;
    for (uint32_t i = 0; i < t->above_n; i++) {
        t->above[i]->pins++;
        t->checkpoints[i] = sg_checkpoint_share(t->above[i]->checkpoint);
    }
    return 1;
}

static void target_free(struct sg_store *s, struct target *t)
{
    for (uint32_t i = 0; i < t->above_n; i++) {
        sg_checkpoint_release(t->checkpoints[i]);
        sg_store_unpin(s, t->above[i]);
    }
    sg_checkpoint_release(t->checkpoint);
    sg_free(t->tokens);
}

void sg_store_write(struct sg_store *s, struct sg_store_entry *e)
{
    struct target t;
    if (!e->checkpoint || e->file) return;
    e->unwritable = 1;
    if (!target_of(s, e, &t)) return;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->disk);
    int written = name_of(s, &t) == SEGUE_OK && free_disk(s, file_bytes(s, &t)) && save(s, &t) == SEGUE_OK;
    pthread_mutex_unlock(&s->disk);
    pthread_mutex_lock(&s->lock);
    struct sg_store_file *file = !written ? NULL : known_file(s, t.name); /* a scan may have seen it already */
    if (written && !file) file = file_new(s, t.name);
    if (file) {
        e->unwritable = 0;
        e->file = file;
        e->file_checkpoint = 0;
        supersede(s, t.above, sg_state_can_hold_checkpoints(s->engine->graph) ? t.above_n : 0, file);
        if (!s->exact) supersede_shorter(s, e);
    }
    target_free(s, &t);
}
