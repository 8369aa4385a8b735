/* statefile.c: a session as a file, in the format of docs/STATE.md: tokens, logits and every slot of the
 * states, each with a checksum. Written aside and renamed. Everything in a file is checked before a state is
 * made of it: what does not fit this model, or was changed anywhere, is refused by name and never continued.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/session.h"

enum {
    VERSION = 1,
    HEAD_BYTES = 320,
    SLOT_BYTES = 80,
    SUM_BYTES = 16,
    ALIGN = 64,
    PIECE = 1 << 20,
    SLOTS_MAX = 65536
};
static const char magic[16] = "segue\x1astate\n\0\0\0";

_Static_assert(SG_F32 == 0 && SG_F16 == 1 && SG_BF16 == 2 && SG_Q8_0 == 7, "files hold these numbers");
_Static_assert(SG_SLOT_K == 0 && SG_SLOT_V == 1 && SG_SLOT_CONV == 2 && SG_SLOT_DELTA == 3,
               "files hold these numbers");

struct head {
    uint64_t file_bytes, tokens_n, rows, tokens_at, logits_at, vocab;
    uint32_t slots_n;
    char shape_id[32], weights_id[32];
    struct sg_hash adapters, tokens_sum, logits_sum;
    char unit[64], features[64];
};

struct slot {
    uint32_t kind, layer, heads, width, depth, window, storage;
    uint64_t first, end, at, bytes;
    struct sg_hash sum;
};

/* Piece by piece, so that a writer need not hold a whole slot. */
static void add_sum(struct sg_hash *sum, const void *bytes, size_t n)
{
    *sum = sg_hash_join(*sum, sg_hash_bytes(bytes, n, 0));
}

static struct sg_hash sum_of(const uint8_t *bytes, size_t n, size_t piece)
{
    struct sg_hash sum = {0};
    for (size_t at = 0; at < n; at += piece) add_sum(&sum, bytes + at, n - at < piece ? n - at : piece);
    return sum;
}

/* K and V are summed in pieces of whole rows, everything else in pieces of PIECE. */
static size_t piece_of(size_t row_bytes)
{
    if (!row_bytes) return PIECE;
    return row_bytes < PIECE ? PIECE / row_bytes * row_bytes : row_bytes;
}

/* The matrices themselves, not their file: a state made with an adapter fits the same adapter from anywhere.
 */
static struct sg_hash adapters_id(const struct segue_session *s)
{
    struct sg_hash id = {0};
    for (uint32_t i = 0; i < s->adapters_n; i++) {
        const struct sg_lora *l = &s->adapters[i]->lora;
        for (uint32_t k = 0; k < l->pairs_n; k++) {
            const struct sg_lora_pair *p = &l->pairs[k];
            add_sum(&id, p->tensor->name, strlen(p->tensor->name));
            add_sum(&id, p->a, (size_t)(p->rank * p->tensor->cols) * sizeof(float));
            add_sum(&id, p->b, (size_t)(p->rank * p->tensor->rows) * sizeof(float));
        }
    }
    return id;
}

static int same(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }

/* --- header to bytes and back: one walk for both directions --- */

struct walk {
    uint8_t *at;
    int writing;
};

static void walk_bytes(struct walk *w, void *p, size_t n)
{
    if (w->writing)
        memcpy(w->at, p, n);
    else
        memcpy(p, w->at, n);
    w->at += n;
}

/* Byte by byte: the file is little-endian on every machine. */
static void walk_number(struct walk *w, uint64_t *x, size_t n)
{
    uint64_t value = w->writing ? *x : 0;
    for (size_t i = 0; i < n; i++) {
        if (w->writing)
            w->at[i] = (uint8_t)(value >> 8 * i);
        else
            value |= (uint64_t)w->at[i] << 8 * i;
    }
    if (!w->writing) *x = value;
    w->at += n;
}

static void walk_32(struct walk *w, uint32_t *x)
{
    uint64_t wide = *x;
    walk_number(w, &wide, 4);
    *x = (uint32_t)wide;
}

static void walk_sum(struct walk *w, struct sg_hash *h)
{
    walk_number(w, &h->lo, 8);
    walk_number(w, &h->hi, 8);
}

static void walk_head(struct walk *w, struct head *h, uint32_t *version, uint32_t *library)
{
    char mark[16];
    memcpy(mark, magic, sizeof mark);
    walk_bytes(w, mark, sizeof mark);
    walk_32(w, version);
    walk_32(w, library);
    walk_number(w, &h->file_bytes, 8);
    walk_bytes(w, h->shape_id, sizeof h->shape_id);
    walk_bytes(w, h->weights_id, sizeof h->weights_id);
    walk_sum(w, &h->adapters);
    walk_number(w, &h->tokens_n, 8);
    walk_number(w, &h->rows, 8);
    walk_number(w, &h->tokens_at, 8);
    walk_number(w, &h->logits_at, 8);
    walk_number(w, &h->vocab, 8);
    walk_sum(w, &h->tokens_sum);
    walk_sum(w, &h->logits_sum);
    walk_bytes(w, h->unit, sizeof h->unit);
    walk_bytes(w, h->features, sizeof h->features);
    walk_32(w, &h->slots_n);
    uint32_t slot_bytes = SLOT_BYTES;
    walk_32(w, &slot_bytes);
}

static void walk_slot(struct walk *w, struct slot *s)
{
    uint32_t zero = 0;
    walk_32(w, &s->kind);
    walk_32(w, &s->layer);
    walk_32(w, &s->heads);
    walk_32(w, &s->width);
    walk_32(w, &s->depth);
    walk_32(w, &s->window);
    walk_32(w, &s->storage);
    walk_32(w, &zero);
    walk_number(w, &s->first, 8);
    walk_number(w, &s->end, 8);
    walk_number(w, &s->at, 8);
    walk_number(w, &s->bytes, 8);
    walk_sum(w, &s->sum);
}

static uint64_t header_bytes(uint32_t slots_n)
{
    return HEAD_BYTES + (uint64_t)slots_n * SLOT_BYTES + SUM_BYTES;
}
static uint64_t aligned(uint64_t at) { return (at + ALIGN - 1) / ALIGN * ALIGN; }

/* The numbers of the graph's slot i in its stage; row_bytes 0: a slot that is whole. */
static void describe(struct slot *out, const struct sg_slot *s, enum sg_storage kv, size_t *row_bytes)
{
    size_t fixed = sg_slot_fixed_bytes(s);
    *out = (struct slot){.kind = s->kind,
                         .layer = s->layer,
                         .heads = s->heads,
                         .width = s->width,
                         .depth = s->depth,
                         .window = s->window,
                         .storage = fixed ? SG_F32 : kv,
                         .bytes = fixed};
    *row_bytes = fixed ? 0 : sg_slot_row_bytes(s, kv);
}

/* --- save --- */

struct saving {
    struct segue_session *session;
    struct sg_layout *layout;
    struct sg_file_out file;
    uint8_t *room; /* [room_n] one piece */
    size_t room_n;
    struct head head;
    struct slot *slots; /* [head.slots_n] */
};

/* State to file by pieces: no slot is ever whole in memory but those that cannot be cut. */
static segue_status save_slot(struct saving *v, uint32_t i, uint64_t *end, segue_error *err)
{
    const struct sg_slot *s = &v->session->engine->graph->slots[i];
    struct slot *out = &v->slots[i];
    uint32_t index = 0;
    size_t row_bytes;
    uint64_t first, rows;
    struct sg_stage *stage = sg_layout_slot(v->layout, s->kind, s->layer, &index);
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    describe(out, s, stage->kv, &row_bytes);
    ops->state_held(stage->state, index, &first, &rows);
    out->first = row_bytes ? first : 0;
    out->end = row_bytes ? rows : 0;
    out->at = aligned(*end);
    if (!row_bytes) {
        SG_TRY(ops->state_get(stage->state, index, 0, rows, SG_F32, v->room, err));
        out->sum = sum_of(v->room, out->bytes, PIECE);
        *end = out->at + out->bytes;
        return sg_file_put_at(&v->file, out->at, v->room, out->bytes, err);
    }
    size_t most = piece_of(row_bytes) / row_bytes;
    for (uint64_t at = first, n; at < rows; at += n) {
        n = rows - at < most ? rows - at : most;
        SG_TRY(ops->state_get(stage->state, index, at, at + n, stage->kv, v->room, err));
        add_sum(&out->sum, v->room, n * row_bytes);
        SG_TRY(sg_file_put_at(&v->file, out->at + out->bytes, v->room, n * row_bytes, err));
        out->bytes += n * row_bytes;
    }
    *end = out->at + out->bytes;
    return SEGUE_OK;
}

/* Last, when offsets and checksums are known; until then the file begins with zeroes and would be refused. */
static segue_status save_header(struct saving *v, segue_error *err)
{
    uint64_t n = header_bytes(v->head.slots_n);
    uint32_t version = VERSION, library = segue_version();
    uint8_t *bytes = sg_alloc(n);
    if (!bytes) return sg_no_memory("header of a state file", n, err);
    struct walk w = {bytes, 1};
    walk_head(&w, &v->head, &version, &library);
    for (uint32_t i = 0; i < v->head.slots_n; i++) walk_slot(&w, &v->slots[i]);
    struct sg_hash sum = sg_hash_bytes(bytes, n - SUM_BYTES, VERSION);
    walk_sum(&w, &sum);
    segue_status status = sg_file_put_at(&v->file, 0, bytes, n, err);
    sg_free(bytes);
    return status;
}

static segue_status save_all(struct saving *v, segue_error *err)
{
    struct segue_session *s = v->session;
    struct head *h = &v->head;
    const segue_model_info *info = &s->engine->model->info;
    const segue_unit_info *unit = &v->layout->stages[0].stretch->unit->desc.info;
    memcpy(h->shape_id, info->shape_id, 32);
    memcpy(h->weights_id, info->weights_id, 32);
    memcpy(h->unit, unit->spec, sizeof h->unit);
    memcpy(h->features, unit->features, sizeof h->features - 1);
    h->adapters = adapters_id(s);
    h->tokens_n = s->tokens_n;
    h->rows = s->computed;
    h->vocab = info->vocab;
    h->tokens_at = aligned(header_bytes(h->slots_n));
    h->tokens_sum = sum_of((const uint8_t *)s->tokens, s->tokens_n * 4, PIECE);
    uint64_t end = h->tokens_at + s->tokens_n * 4;
    SG_TRY(sg_file_put_at(&v->file, h->tokens_at, s->tokens, s->tokens_n * 4, err));
    if (s->logits_known) {
        h->logits_at = aligned(end);
        h->logits_sum = sum_of((const uint8_t *)s->logits, h->vocab * 4, PIECE);
        end = h->logits_at + h->vocab * 4;
        SG_TRY(sg_file_put_at(&v->file, h->logits_at, s->logits, h->vocab * 4, err));
    }
    for (uint32_t i = 0; i < h->slots_n; i++) SG_TRY(save_slot(v, i, &end, err));
    h->file_bytes = end;
    return save_header(v, err);
}

static size_t room_bytes(const struct segue_session *s)
{
    size_t room = PIECE;
    const struct sg_graph *g = s->engine->graph;
    for (uint32_t i = 0; i < g->slots_n; i++) {
        size_t fixed = sg_slot_fixed_bytes(&g->slots[i]),
               bytes = fixed ? fixed : sg_slot_row_bytes(&g->slots[i], SG_F32);
        if (bytes > room) room = bytes;
    }
    return room;
}

segue_status segue_session_save(const segue_session *session, const char *path, segue_error *err)
{
    SG_TRY(sg_session_check(session, "state not saved", err));
    if (!path || !*path) return sg_fail(err, SEGUE_EARG, "state not saved: no path given; name a file");
    struct segue_session *s = (struct segue_session *)(uintptr_t)session; /* get only reads a state */
    struct saving v = {.session = s, .layout = &s->layouts[s->at]};
    if (!s->computed || !sg_layout_holds(v.layout))
        return sg_fail(err, SEGUE_EARG,
                       "state not saved: session of %zu tokens: none is computed; prefill first",
                       s->tokens_n);
    v.head.slots_n = s->engine->graph->slots_n;
    v.slots = sg_alloc(v.head.slots_n * sizeof *v.slots);
    v.room = sg_alloc(room_bytes(s));
    segue_status status = v.slots && v.room ? sg_file_begin(&v.file, path, 0600, err)
                                            : sg_no_memory("state file", room_bytes(s), err);
    if (status == SEGUE_OK) {
        status = save_all(&v, err);
        if (status == SEGUE_OK) status = sg_file_commit(&v.file, err);
        sg_file_close(&v.file);
    }
    sg_free(v.slots);
    sg_free(v.room);
    return status;
}

/* --- load --- */

struct loading {
    const char *path;
    struct sg_map map;
    struct head head;
    struct slot *slots; /* [head.slots_n] */
};

static segue_status damaged(const struct loading *v, const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT,
                   "state not loaded: %s: %s; the file is damaged: compute the tokens anew", v->path, what);
}

static segue_status foreign(const struct loading *v, const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: %s; load it with what made it, or compute anew",
                   v->path, what);
}

/* Nothing is believed before the checksum is right, and no size before it is held against the map. */
static segue_status read_header(struct loading *v, segue_error *err)
{
    uint32_t version = 0, library = 0;
    if (v->map.size < HEAD_BYTES + SUM_BYTES || memcmp(v->map.data, magic, sizeof magic) != 0)
        return sg_fail(err, SEGUE_EFORMAT,
                       "state not loaded: %s: it is no state file; name one that segue saved", v->path);
    uint8_t head[HEAD_BYTES];
    memcpy(head, v->map.data, sizeof head);
    struct walk w = {head, 0};
    walk_head(&w, &v->head, &version, &library);
    if (version != VERSION)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "state not loaded: %s: format %u, this library reads %d; use the one that saved"
                       " it",
                       v->path, version, VERSION);
    uint64_t n = header_bytes(v->head.slots_n);
    if (v->head.slots_n > SLOTS_MAX || n > v->map.size) return damaged(v, "its header is cut off", err);
    struct sg_hash sum = sg_hash_bytes(v->map.data, n - SUM_BYTES, VERSION);
    if (sum.lo != sg_le64(v->map.data + n - 16) || sum.hi != sg_le64(v->map.data + n - 8))
        return damaged(v, "the checksum of its header is wrong", err);
    if (v->head.file_bytes != v->map.size) return damaged(v, "its size is not what its header says", err);
    v->slots = sg_alloc(v->head.slots_n * sizeof *v->slots);
    if (!v->slots) return sg_no_memory("slots of a state file", v->head.slots_n * sizeof *v->slots, err);
    for (uint32_t i = 0; i < v->head.slots_n; i++) {
        uint8_t record[SLOT_BYTES];
        memcpy(record, v->map.data + HEAD_BYTES + (size_t)i * SLOT_BYTES, sizeof record);
        struct walk r = {record, 0};
        walk_slot(&r, &v->slots[i]);
    }
    return SEGUE_OK;
}

/* A section that begins where the last one ended: in the file, only zeroes before it. */
static segue_status check_section(const struct loading *v, uint64_t at, uint64_t bytes, uint64_t *end,
                                  segue_error *err)
{
    if (at != aligned(*end) || at > v->map.size || bytes > v->map.size - at)
        return damaged(v, "a section lies outside its place", err);
    for (uint64_t i = *end; i < at; i++)
        if (v->map.data[i]) return damaged(v, "bytes between two sections are not zero", err);
    *end = at + bytes;
    return SEGUE_OK;
}

/* Against the graph of this model, field by field: what the file says is used only where the two agree. */
static segue_status check_slot(const struct loading *v, uint32_t i, const struct sg_slot *want, uint64_t *end,
                               segue_error *err)
{
    const struct slot *s = &v->slots[i];
    size_t row_bytes;
    struct slot own;
    if (s->storage != SG_F32 && s->storage != SG_F16 && s->storage != SG_BF16 && s->storage != SG_Q8_0)
        return damaged(v, "a slot has an unknown storage", err);
    describe(&own, want, (enum sg_storage)s->storage, &row_bytes);
    if (s->kind != own.kind || s->layer != own.layer || s->heads != own.heads || s->width != own.width ||
        s->depth != own.depth || s->window != own.window || s->storage != own.storage)
        return foreign(v, "a slot has another shape than this model's", err);
    uint64_t rows = v->head.rows,
             most_first = want->window && rows >= want->window ? rows - want->window + 1 : 0;
    if (row_bytes && (s->end != rows || s->first > most_first || s->bytes / row_bytes != s->end - s->first ||
                      s->bytes % row_bytes))
        return damaged(v, "a slot lacks rows", err);
    if (!row_bytes && (s->first || s->end || s->bytes != own.bytes))
        return damaged(v, "a slot has another size", err);
    SG_TRY(check_section(v, s->at, s->bytes, end, err));
    if (!same(s->sum, sum_of(v->map.data + s->at, s->bytes, piece_of(row_bytes))))
        return damaged(v, "the checksum of a slot is wrong", err);
    return SEGUE_OK;
}

/* Counts bound what follows: rows never exceed tokens, tokens fit the context of some session. */
static segue_status check_text(const struct loading *v, uint64_t *end, segue_error *err)
{
    const struct head *h = &v->head;
    if (h->tokens_n > INT32_MAX || !h->rows || h->rows > h->tokens_n)
        return damaged(v, "its token counts are absurd", err);
    SG_TRY(check_section(v, h->tokens_at, h->tokens_n * 4, end, err));
    if (!same(h->tokens_sum, sum_of(v->map.data + h->tokens_at, h->tokens_n * 4, PIECE)))
        return damaged(v, "the checksum of its tokens is wrong", err);
    if (!h->logits_at) return SEGUE_OK;
    SG_TRY(check_section(v, h->logits_at, h->vocab * 4, end, err));
    if (!same(h->logits_sum, sum_of(v->map.data + h->logits_at, h->vocab * 4, PIECE)))
        return damaged(v, "the checksum of its logits is wrong", err);
    return SEGUE_OK;
}

static segue_status check_all(const struct loading *v, const struct segue_session *s, segue_error *err)
{
    const struct segue_model *m = s->engine->model;
    const struct sg_graph *g = s->engine->graph;
    if (memcmp(v->head.shape_id, m->info.shape_id, 32) != 0 || v->head.vocab != m->info.vocab)
        return foreign(v, "it is of a model of another shape", err);
    if (memcmp(v->head.weights_id, m->info.weights_id, 32) != 0)
        return foreign(v, "it is of a model with other weights", err);
    if (!same(v->head.adapters, adapters_id(s))) return foreign(v, "it was made with other adapters", err);
    if (v->head.slots_n != g->slots_n)
        return foreign(v, "it has another number of slots than this model", err);
    uint64_t end = header_bytes(v->head.slots_n);
    SG_TRY(check_text(v, &end, err));
    for (uint32_t i = 0; i < g->slots_n; i++) SG_TRY(check_slot(v, i, &g->slots[i], &end, err));
    return end == v->map.size ? SEGUE_OK : damaged(v, "bytes follow its last slot", err);
}

static segue_status put_slot(const struct loading *v, const struct slot *s, struct sg_layout *l,
                             const struct sg_slot *want, segue_error *err)
{
    uint32_t index = 0;
    struct sg_stage *stage = sg_layout_slot(l, want->kind, want->layer, &index);
    return sg_ops_of(stage->state)
        ->state_put(stage->state, index, s->first, s->end, (enum sg_storage)s->storage, v->map.data + s->at,
                    err);
}

/* Everything was checked: from here on only memory can be short. */
static segue_status put_all(const struct loading *v, struct segue_session *s, segue_error *err)
{
    struct sg_layout *l = &s->layouts[s->at];
    uint64_t rows = v->head.rows;
    SG_TRY(sg_session_begin(s, err));
    for (uint32_t i = 0; i < v->head.slots_n; i++)
        SG_TRY(put_slot(v, &v->slots[i], l, &s->engine->graph->slots[i], err));
    for (uint32_t i = 0; i < l->n; i++) {
        struct sg_stage *stage = &l->stages[i];
        SG_TRY(
            sg_ops_of(stage->state)->state_put(stage->state, UINT32_MAX, rows, rows, stage->kv, NULL, err));
    }
    s->computed = rows;
    s->logits_known = v->head.logits_at != 0;
    if (s->logits_known) memcpy(s->logits, v->map.data + v->head.logits_at, v->head.vocab * 4);
    s->stats.tokens_reused = rows;
    s->stats.reuse_reason = "all";
    return SEGUE_OK;
}

static segue_status fill(struct loading *v, struct segue_session *s, segue_error *err)
{
    SG_TRY(read_header(v, err));
    SG_TRY(check_all(v, s, err));
    SG_TRY(segue_session_append(s, (const int32_t *)(const void *)(v->map.data + v->head.tokens_at),
                                v->head.tokens_n, err));
    s->at = s->split ? SG_WRITING : SG_READING;
    return put_all(v, s, err);
}

segue_status segue_session_load(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                const char *path, segue_error *err)
{
    struct loading v = {.path = path};
    struct segue_session *s = NULL;
    if (!out || !engine || !path || !*path)
        return sg_fail(err, SEGUE_EARG, "state not loaded: out, engine or path missing; pass all three");
    SG_TRY(segue_session_open(&s, engine, opts, err));
    segue_status status = sg_map_open(&v.map, path, err);
    if (status == SEGUE_OK) {
        status = fill(&v, s, err);
        sg_map_close(&v.map);
    }
    sg_free(v.slots);
    if (status != SEGUE_OK) {
        segue_session_close(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}
