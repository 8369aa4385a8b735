/* prefixstore.c: see prefixstore.h. What is kept in memory, what a hit is, and what goes first; files are prefixdisk.c's.
 * SPDX-License-Identifier: MIT */
#include "engine/store/prefixstore.h"

#include <string.h>

#include "base/mem.h"
#include "engine/session.h"

enum { LEAST_ROWS = 16, ENTRIES_MAX = 4096, GHOSTS_MAX = 256, MEMORY_BYTES = 512 << 20 };
static const uint64_t disk_bytes_default = (uint64_t)4 << 30;

/* --- kinds and entries --- */

static int same_kind(const struct sg_kind *k, struct sg_hash adapters, const char *unit, const char *kernels)
{
    return k->adapters.lo == adapters.lo && k->adapters.hi == adapters.hi && !strcmp(k->unit, unit) &&
           !strcmp(k->kernels, kernels);
}

struct sg_kind *sg_store_kind(struct sg_store *s, struct sg_hash adapters, const char *unit,
                              const char *kernels)
{
    struct sg_kind *k = s->kinds;
    while (k && !same_kind(k, adapters, unit, kernels)) k = k->next;
    if (k || !(k = sg_alloc(sizeof *k))) return k;
    k->adapters = adapters;
    memcpy(k->unit, unit, strlen(unit));
    memcpy(k->kernels, kernels, strlen(kernels));
    k->next = s->kinds;
    s->kinds = k;
    return k;
}

struct sg_entry *sg_store_entry(struct sg_store *s, struct sg_kind *kind, const int32_t *tokens, size_t n)
{
    struct sg_node *node = sg_tree_add(&kind->root, tokens, n);
    if (!node) return NULL;
    if (node->entry) return node->entry;
    struct sg_entry *e = sg_alloc(sizeof *e);
    if (!e) {
        sg_tree_prune(node);
        return NULL;
    }
    kind->ghosts -= node->ghost != 0;
    node->ghost = 0;
    node->entry = e;
    e->node = node;
    e->kind = kind;
    e->clock = s->clock;
    e->next = s->entries;
    s->entries = e;
    return e;
}

void sg_store_drop(struct sg_store *s, struct sg_entry *e)
{
    struct sg_entry **at = &s->entries;
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    e->node->entry = NULL;
    sg_tree_prune(e->node);
    sg_free(e);
}

static struct sg_kind *kind_of(struct sg_store *s, struct segue_session *session)
{
    char unit[SG_STATE_TEXT], kernels[SG_STATE_TEXT];
    if (!session->adapters_known) session->adapters_id = sg_adapters_id(session);
    session->adapters_known = 1;
    sg_made_by(session, unit, kernels);
    return sg_store_kind(s, session->adapters_id, unit, kernels);
}

/* --- what goes first --- */

/* Time that a byte of it saves, risen by the clock when it was used last: what is not used grows old. */
static double worth(const struct sg_store *s, const struct sg_entry *e)
{
    const struct sg_node *above = sg_tree_above(e->node);
    double rows = (double)e->node->depth, ns = e->read_ns ? (double)e->read_ns : rows * 1000;
    double saved = ns * (rows - (above ? (double)above->depth : 0)) / rows;
    double bytes = (double)sg_point_bytes(e->point, s->engine->model->info.vocab) + 1;
    return e->clock + saved * (1 + e->hits) / bytes;
}

static int is_leaf(const struct sg_entry *e)
{
    for (const struct sg_node *c = e->node->child; c; c = c->sibling)
        if (sg_tree_any(c)) return 0;
    return 1;
}

static void leave_ghost(struct sg_entry *e)
{
    if (++e->kind->ghosts > GHOSTS_MAX) {
        sg_tree_exorcise(&e->kind->root);
        e->kind->ghosts = 1;
    }
    e->node->ghost = 1;
}

/* A leaf goes to disk, where there is one; what lies on the way to a leaf goes there with the leaf. */
static void evict(struct sg_store *s, struct sg_entry *e)
{
    if (s->folder && !e->file && is_leaf(e)) sg_store_write(s, e);
    sg_point_release(e->point);
    e->point = NULL;
    if (e->file) return;
    leave_ghost(e);
    sg_store_drop(s, e);
}

static void trim(struct sg_store *s)
{
    for (;;) {
        uint64_t bytes = 0, n = 0;
        struct sg_entry *least = NULL;
        double least_worth = 0;
        for (struct sg_entry *e = s->entries; e; e = e->next) {
            if (!e->point) continue;
            double w = worth(s, e);
            bytes += sg_point_bytes(e->point, s->engine->model->info.vocab) + e->node->n * sizeof(int32_t);
            n++;
            if (least && w >= least_worth) continue;
            least = e;
            least_worth = w;
        }
        if (!least || (bytes <= s->memory_budget && n <= ENTRIES_MAX)) return;
        s->clock = least_worth;
        evict(s, least);
    }
}

/* --- keeping --- */

/* Where states can be cut, a longer one serves for all that it begins with. */
static void absorb(struct sg_store *s, struct sg_entry *e)
{
    for (struct sg_node *up = sg_tree_above(e->node); up;) {
        struct sg_entry *shorter = up->entry;
        up = sg_tree_above(up);
        sg_point_release(shorter->point);
        shorter->point = NULL;
        if (!shorter->file) sg_store_drop(s, shorter);
    }
}

void sg_store_put(struct sg_store *s, const struct segue_session *session, struct sg_checkpoint *point)
{
    if (point->rows < LEAST_ROWS) return;
    pthread_mutex_lock(&s->lock);
    struct sg_kind *kind = kind_of(s, (struct segue_session *)(uintptr_t)session);
    struct sg_entry *e = kind ? sg_store_entry(s, kind, session->tokens, point->rows) : NULL;
    if (e) {
        uint64_t ns = sg_session_read_ns(session, point->rows);
        if (ns) e->read_ns = ns;
        if (!e->point || (!e->point->logits && point->logits)) {
            sg_point_release(e->point);
            e->point = sg_point_share(point);
        }
        e->logits |= point->logits != NULL;
        e->clock = s->clock;
        if (!s->exact) absorb(s, e);
        trim(s);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- finding --- */

struct hit {
    struct sg_entry *entry;
    size_t matched, rows; /* tokens that agree with the tree; rows that can be taken */
    int more;             /* 1: the tree goes on, differently */
    const char *why_less; /* of rows than matched, or of none; NULL: no reason of the store's */
};

static int evicted_between(const struct sg_node *node, size_t rows)
{
    for (; node && node->depth > rows; node = node->parent)
        if (node->ghost) return 1;
    return 0;
}

/* The last token is left to compute unless the logits behind it are known. */
static int usable(const struct sg_entry *e, size_t n) { return e->node->depth < n || e->logits; }

static struct hit find(const struct sg_store *s, struct sg_kind *kind, const int32_t *tokens, size_t n)
{
    struct sg_node *inside, *below;
    struct hit h = {.matched = sg_tree_walk(&kind->root, tokens, n, &inside, &below)};
    h.more = below != inside || below->child;
    struct sg_entry *e = !s->exact && h.matched ? sg_tree_any(below) : NULL;
    if (e) {
        h.entry = e;
        h.rows = h.matched < n || (e->node->depth == n && e->logits) ? h.matched : n - 1;
    } else {
        struct sg_node *node = inside;
        while (node && !(node->entry && usable(node->entry, n))) node = node->parent;
        h.entry = node ? node->entry : NULL;
        h.rows = node ? node->depth : 0;
    }
    if (h.rows + 1 < h.matched || !h.rows)
        h.why_less = evicted_between(inside, h.rows) ? "evicted" : h.rows ? "no-checkpoint" : NULL;
    if (!h.why_less && !h.rows && kind->stale) h.why_less = "version";
    return h;
}

static segue_status cut_to(struct segue_session *session, size_t rows)
{
    struct sg_layout *l = &session->layouts[session->at];
    if (session->computed == rows) return SEGUE_OK;
    session->logits_known = 0;
    SG_TRY(sg_layout_cut(l, rows, NULL));
    session->computed = rows;
    return SEGUE_OK;
}

/* States of a file come to where text is read; a point of them stays in memory for the next who asks. */
static segue_status from_disk(struct sg_store *s, struct sg_entry *e, struct segue_session *session)
{
    struct sg_layout fresh = session->layouts[SG_PREFILL_LAYOUT];
    struct sg_checkpoint *point = NULL;
    int known = 0;
    size_t rows = e->node->depth;
    for (uint32_t i = 0; i < fresh.n; i++) fresh.stages[i].state = NULL;
    SG_TRY(sg_layout_states(&fresh, rows + 512, NULL));
    segue_status status = sg_store_read(s, e, &fresh, session->logits, &known);
    if (status != SEGUE_OK) {
        session->logits_known = 0;
        sg_layout_drop_states(&fresh);
        return status;
    }
    sg_layout_drop_states(&session->layouts[session->at]);
    session->layouts[SG_PREFILL_LAYOUT] = fresh;
    session->at = SG_PREFILL_LAYOUT;
    session->computed = rows;
    session->logits_known = (uint32_t)known;
    if (sg_point_take(&point, &fresh, rows, known ? session->logits : NULL, s->engine->model->info.vocab,
                      NULL) == SEGUE_OK)
        e->point = point;
    return SEGUE_OK;
}

static void report(struct segue_session *session, const struct hit *h)
{
    sg_recovery_jumped(session);
    session->stats.tokens_reused = session->computed;
    int whole = session->computed + 1 >= session->tokens_n || !h->more;
    session->stats.reuse_reason = h->why_less ? h->why_less : whole ? "all" : "edited";
}

/* The point is taken out of the store's lock: forking waits for the unit's turn. */
static segue_status from_memory(struct sg_checkpoint *point, struct segue_session *session, size_t rows)
{
    segue_status status = sg_session_restore(session, point);
    if (status == SEGUE_OK) status = cut_to(session, rows);
    sg_point_release(point);
    return status;
}

void sg_store_seek(struct sg_store *s, struct segue_session *session)
{
    struct hit h = {0};
    struct sg_checkpoint *point = NULL;
    segue_status status = SEGUE_END;
    pthread_mutex_lock(&s->lock);
    if (s->folder) sg_store_scan(s);
    struct sg_kind *kind = kind_of(s, session);
    if (kind) h = find(s, kind, session->tokens, session->tokens_n);
    if (h.entry && h.rows >= session->computed + LEAST_ROWS) {
        h.entry->hits++;
        h.entry->clock = s->clock;
        if (h.entry->point)
            point = sg_point_share(h.entry->point);
        else
            status = from_disk(s, h.entry, session);
        if (status == SEGUE_OK) trim(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (point)
        status = from_memory(point, session, h.rows);
    else if (status == SEGUE_OK)
        status = cut_to(session, h.rows);
    if (status == SEGUE_OK)
        report(session, &h);
    else if (!session->computed && h.why_less)
        session->stats.reuse_reason = h.why_less;
}

/* --- open, close --- */

static int needs_points(const struct sg_graph *g)
{
    for (uint32_t i = 0; i < g->slots_n; i++)
        if (sg_slot_fixed_bytes(&g->slots[i]) || g->slots[i].window) return 1;
    return 0;
}

segue_status sg_store_open(struct sg_store **out, const struct segue_engine *e, const char *folder,
                           uint64_t memory_bytes, uint64_t disk_bytes, segue_error *err)
{
    struct sg_store *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("prefix store", sizeof *s, err);
    s->engine = e;
    s->exact = needs_points(e->graph);
    s->memory_budget = memory_bytes ? memory_bytes : MEMORY_BYTES;
    s->disk_budget = disk_bytes ? disk_bytes : disk_bytes_default;
    if (*folder && !(s->folder = sg_strndup(folder, strlen(folder)))) {
        sg_free(s);
        return sg_no_memory("prefix store", strlen(folder), err);
    }
    segue_status status = s->folder ? sg_make_folders(s->folder, err) : SEGUE_OK;
    if (status == SEGUE_OK && s->folder) status = sg_folder_private(s->folder, err);
    if (status == SEGUE_OK && pthread_mutex_init(&s->lock, NULL))
        status = sg_no_memory("lock of a prefix store", sizeof s->lock, err);
    if (status != SEGUE_OK) {
        sg_free(s->folder);
        sg_free(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

void sg_store_close(struct sg_store *s)
{
    if (!s) return;
    for (struct sg_entry *e = s->entries; s->folder && e; e = e->next)
        if (e->point && !e->file && is_leaf(e)) sg_store_write(s, e);
    while (s->entries) {
        struct sg_entry *e = s->entries;
        sg_point_release(e->point);
        sg_store_drop(s, e);
    }
    while (s->files) {
        struct sg_store_file *f = s->files;
        s->files = f->next;
        sg_free(f->name);
        sg_free(f);
    }
    while (s->kinds) {
        struct sg_kind *k = s->kinds;
        s->kinds = k->next;
        sg_tree_free(&k->root);
        sg_free(k);
    }
    pthread_mutex_destroy(&s->lock);
    sg_free(s->folder);
    sg_free(s);
}
