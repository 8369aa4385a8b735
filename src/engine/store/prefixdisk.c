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

static int is_known(const struct sg_store *s, const char *name)
{
    const struct sg_store_file *f = s->files;
    while (f && strcmp(f->name, name) != 0) f = f->next;
    return f != NULL;
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
static void add_file(struct sg_store *s, const char *name, const struct sg_statefile *f)
{
    const segue_model_info *info = &s->engine->model->info;
    char weights_id[33];
    if (sg_engine_weights_id(s->engine, weights_id, NULL) != SEGUE_OK || memcmp(f->head.shape_id, info->shape_id, 32) != 0 ||
        memcmp(f->head.weights_id, weights_id, 32) != 0)
        return;
    struct sg_state_origin origin = {.adapters = f->head.adapters};
    memcpy(origin.unit, f->head.unit, sizeof origin.unit);
    memcpy(origin.kernels, f->head.kernels, sizeof origin.kernels);
    struct sg_store_class *class = sg_store_get_class(s, &origin);
    if (!class) return;
    if (f->head.library != segue_version()) {
        class->stale = 1;
        return;
    }
    struct sg_store_file *file = file_new(s, name);
    for (uint32_t p = 0; file && p <= f->head.checkpoints_n; p++) add_entry(s, file, class, f, p);
}

/* Reads the header of a file of the folder. A file of a newer format counts as stale. */
static void read_header(struct sg_store *s, const char *name)
{
    struct sg_statefile f;
    char *path = path_of(s, name);
    if (!path) return;
    if (sg_statefile_peek(&f, path, NULL) == SEGUE_OK) {
        if (sg_file_check_owner(&f.map.id, path, NULL) == SEGUE_OK) add_file(s, name, &f);
        sg_statefile_close(&f);
    } else {
        for (struct sg_store_class *c = s->classes; c; c = c->next) c->stale |= f.head.version > SG_STATE_VERSION;
    }
    sg_free(path);
}

/* Does nothing while the folder's modification time is unchanged. Temporary files of dead writers are removed. */
void sg_store_scan(struct sg_store *s)
{
    char **names = NULL;
    size_t n = 0;
    uint64_t bytes, changed;
    if (sg_file_stat(s->folder, &bytes, &changed, NULL) != SEGUE_OK || changed == s->seen_ns) return;
    if (sg_folder_list(s->folder, "", FILES_MAX, &names, &n, NULL) != SEGUE_OK) return;
    s->seen_ns = changed;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]), end = sizeof suffix - 1;
        char *path = sg_file_abandoned(names[i]) ? path_of(s, names[i]) : NULL;
        if (path) sg_file_remove(path);
        sg_free(path);
        if (len > end && !strcmp(names[i] + len - end, suffix) &&
            !strncmp(names[i], s->engine->sample_id, NAME_WEIGHTS) && !is_known(s, names[i]))
            read_header(s, names[i]);
        sg_free(names[i]);
    }
    sg_free(names);
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

/* The file name contains only a hash, and another process may have replaced the file: compares the tokens and the origin. */
static segue_status check_file(const struct sg_statefile *f, const struct sg_store_entry *e, const int32_t *tokens,
                              segue_error *err)
{
    size_t n = e->node->depth;
    uint64_t rows = e->file_checkpoint > f->head.checkpoints_n ? 0
                    : e->file_checkpoint                  ? f->checkpoints[e->file_checkpoint - 1].rows
                                                     : f->head.rows;
    if (rows == n && !memcmp(sg_statefile_tokens(f), tokens, n * sizeof *tokens) &&
        f->head.library == segue_version() && !strcmp(f->head.unit, e->class->origin.unit) &&
        !strcmp(f->head.kernels, e->class->origin.kernels))
        return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: the file changed since it was indexed; compute the tokens again",
                   f->path);
}

/* Loads the state or checkpoint of an entry. Its tokens match the query as far as the tree matched; the caller cuts the rest. */
static segue_status read_file(const struct sg_store *s, struct sg_store_entry *e, const char *path,
                              struct sg_layout *l, float *logits, int *logits_known, segue_error *err)
{
    struct sg_statefile f;
    int32_t *tokens = sg_alloc(e->node->depth * sizeof *tokens);
    if (!tokens) return sg_no_memory("tokens", e->node->depth * sizeof *tokens, err);
    sg_tree_tokens(e->node, tokens);
    segue_status status = sg_statefile_open(&f, path, 0, err);
    if (status == SEGUE_OK) {
        status = sg_file_check_owner(&f.map.id, path, err);
        if (status == SEGUE_OK) status = check_file(&f, e, tokens, err);
        if (status == SEGUE_OK) status = sg_statefile_fits(&f, s->engine, e->class->origin.adapters, err);
        if (status == SEGUE_OK) status = sg_statefile_fill(&f, s->engine, l, e->file_checkpoint, NULL, NULL, err);
        const float *known = status == SEGUE_OK ? sg_statefile_logits(&f, e->file_checkpoint) : NULL;
        if (known) memcpy(logits, known, f.head.vocab * sizeof *logits);
        *logits_known = known != NULL;
        sg_statefile_close(&f);
    }
    sg_free(tokens);
    return status;
}

segue_status sg_store_read(struct sg_store *s, struct sg_store_entry *e, struct sg_layout *l, float *logits,
                           int *logits_known)
{
    segue_error err = {0};
    char *path = path_of(s, e->file->name);
    if (!path) return SEGUE_EMEMORY;
    segue_status status = read_file(s, e, path, l, logits, logits_known, &err);
    if (status == SEGUE_OK) sg_file_touch(path);
    sg_free(path);
    /* EIO: another process may have removed it */
    if (status == SEGUE_EFORMAT || status == SEGUE_EUNSUPPORTED || status == SEGUE_EIO)
        forget_file(s, e->file, status != SEGUE_EIO);
    return status;
}

/* --- writing --- */

/* Upper estimate of the size of the file to write. */
static uint64_t file_bytes(const struct sg_store *s, const struct sg_store_entry *e, uint32_t checkpoints)
{
    const struct sg_graph *g = s->engine->graph;
    uint64_t rows = e->node->depth, vocab = s->engine->model->info.vocab, bytes = 4096;
    for (uint32_t i = 0; i < g->slots_n; i++)
        bytes += (1 + (uint64_t)checkpoints) * (sg_slot_fixed_bytes(&g->slots[i]) + 256) +
                 rows * sg_slot_row_bytes(&g->slots[i], e->checkpoint->layout.stages[0].kv);
    return bytes + rows * 4 + (1 + (uint64_t)checkpoints) * vocab * 4;
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
    struct sg_store_file *f = s->files;
    while (f && strcmp(f->name, c->name) != 0) f = f->next;
    char *path = f ? NULL : path_of(s, c->name);
    if (f) forget_file(s, f, 1);
    if (path) sg_file_remove(path);
    sg_free(path);
}

/* Deletes the least valuable files, of any model, until `wanted` more bytes fit into the budget. 1: they fit. */
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
static segue_status name_of(const struct sg_store *s, const struct sg_store_entry *e, const int32_t *tokens, char out[64])
{
    char hex[33];
    SG_TRY(sg_engine_weights_id(s->engine, hex, NULL));
    struct sg_hash h = sg_hash_bytes(tokens, e->node->depth * sizeof *tokens, 0);
    h = sg_hash_join(h, sg_hash_bytes(e->class->origin.unit, sizeof e->class->origin.unit, 0));
    h = sg_hash_join(h, sg_hash_bytes(hex, 32, 0));
    h = sg_hash_join(h, sg_hash_bytes(e->class->origin.kernels, sizeof e->class->origin.kernels, 0));
    sg_hash_hex(sg_hash_join(h, e->class->origin.adapters), hex);
    snprintf(out, 64, "%.*s-%s%s", NAME_WEIGHTS, s->engine->sample_id, hex, suffix);
    return SEGUE_OK;
}

static segue_status save(const struct sg_store *s, struct sg_store_entry *e, const int32_t *tokens,
                         struct sg_store_entry *const *above, uint32_t n, const char *name)
{
    struct sg_checkpoint *checkpoints[SG_STATE_CHECKPOINTS];
    char *path = path_of(s, name);
    if (!path) return SEGUE_EMEMORY;
    for (uint32_t i = 0; i < n; i++) checkpoints[i] = above[i]->checkpoint;
    struct sg_state_contents v = {.engine = s->engine,
                        .origin = &e->class->origin,
                        .tokens = tokens,
                        .tokens_n = e->node->depth,
                        .layout = &e->checkpoint->layout,
                        .computed = e->node->depth,
                        .prefill_ns = e->prefill_ns,
                        .logits = e->checkpoint->logits,
                        .checkpoints = checkpoints,
                        .checkpoints_n = n};
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

void sg_store_write(struct sg_store *s, struct sg_store_entry *e)
{
    struct sg_store_entry *above[SG_STATE_CHECKPOINTS];
    char name[64];
    if (!e->checkpoint) return;
    uint32_t n = s->exact ? ancestors_of(e, above) : 0;
    int32_t *tokens = sg_alloc(e->node->depth * sizeof *tokens);
    if (!tokens) return;
    sg_tree_tokens(e->node, tokens);
    if (name_of(s, e, tokens, name) == SEGUE_OK && free_disk(s, file_bytes(s, e, n)) &&
        save(s, e, tokens, above, n, name) == SEGUE_OK) {
        struct sg_store_file *file = file_new(s, name);
        if (file) {
            e->file = file;
            e->file_checkpoint = 0;
            supersede(s, above, sg_state_can_hold_checkpoints(s->engine->graph) ? n : 0, file);
            if (!s->exact) supersede_shorter(s, e);
        }
    }
    sg_free(tokens);
}
