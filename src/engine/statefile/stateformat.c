/* stateformat.c: the bytes of a state file (docs/STATE.md). One function per record serializes and parses it, so that both
 * directions agree. The reader checks every number against the size of the file before it is used. Needs no model.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "engine/statefile/statefile.h"

enum {
    HEAD_BYTES = 448,
    SLOT_BYTES = 80,
    CHECKPOINT_BYTES = 32,
    SUM_BYTES = 16,
    ALIGN = 64,
    PIECE = 1 << 20,   /* bytes hashed at once */
    SIDE_MAX = 1 << 24 /* heads, width, depth */
};
static const uint64_t PARAMETER_MAX = (uint64_t)1 << 40; /* numbers of one */
static const char magic[16] = "segue\x1astate\n\0\0\0";

_Static_assert(SG_F32 == 0 && SG_F16 == 1 && SG_BF16 == 2 && SG_Q8_0 == 7, "files hold these numbers");
_Static_assert(SG_SLOT_K == 0 && SG_SLOT_V == 1 && SG_SLOT_CONV == 2 && SG_SLOT_DELTA == 3,
               "files hold these numbers");
_Static_assert(SG_SLOT_VALUE == 4 && SG_SLOT_MOMENT1 == 5 && SG_SLOT_MOMENT2 == 6, "files hold these numbers");

const char *sg_state_kind(enum sg_slot_kind kind)
{
    static const char *const names[] = {"k", "v", "conv", "rec", "value", "moment1", "moment2"};
    return names[kind];
}

int sg_state_has_rows(const struct sg_slot *s) { return s->kind == SG_SLOT_K || s->kind == SG_SLOT_V; }

/* --- checksums --- */

/* A section's checksum is computed piece by piece, so that a writer need not hold a whole slot. */
void sg_state_add_sum(struct sg_hash *sum, const void *bytes, size_t n)
{
    *sum = sg_hash_join(*sum, sg_hash_bytes(bytes, n, 0));
}

struct sg_hash sg_state_sum(const void *bytes, size_t n, size_t piece)
{
    struct sg_hash sum = {0};
    for (size_t at = 0; at < n; at += piece)
        sg_state_add_sum(&sum, (const uint8_t *)bytes + at, n - at < piece ? n - at : piece);
    return sum;
}

/* K and V: as many whole rows as fit PIECE, at least one. */
size_t sg_state_piece(size_t row_bytes)
{
    if (!row_bytes) return PIECE;
    return row_bytes < PIECE ? PIECE / row_bytes * row_bytes : row_bytes;
}

static int same(struct sg_hash a, struct sg_hash b) { return a.lo == b.lo && a.hi == b.hi; }

/* --- records: writing and reading --- */

/* Position in the bytes, and the direction. */
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

/* Little-endian on every machine. */
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

static void walk_head(struct walk *w, struct sg_state_head *h)
{
    char file_magic[16];
    uint32_t slot_bytes = SLOT_BYTES;
    memcpy(file_magic, magic, sizeof file_magic);
    walk_bytes(w, file_magic, sizeof file_magic);
    walk_32(w, &h->version);
    walk_32(w, &h->library);
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
    walk_bytes(w, h->kernels, sizeof h->kernels);
    walk_number(w, &h->read_ns, 8);
    walk_32(w, &h->layout);
    walk_32(w, &slot_bytes);
    walk_32(w, &h->slots_n);
    walk_32(w, &h->checkpoints_n);
    for (int i = 0; i < 2; i++) walk_sum(w, &h->joined[i]);
    walk_sum(w, &h->run);
}

static void walk_slot(struct walk *w, struct sg_state_slot *s)
{
    uint32_t kind = s->slot.kind, storage = s->storage;
    walk_32(w, &kind);
    walk_32(w, &s->slot.layer);
    walk_32(w, &s->slot.heads);
    walk_32(w, &s->slot.width);
    walk_32(w, &s->slot.depth);
    walk_32(w, &s->slot.window);
    walk_32(w, &storage);
    walk_32(w, &s->checkpoint);
    walk_number(w, &s->first, 8);
    walk_number(w, &s->end, 8);
    walk_number(w, &s->at, 8);
    walk_number(w, &s->bytes, 8);
    walk_sum(w, &s->sum);
    s->slot.kind = (enum sg_slot_kind)kind;
    s->storage = (enum sg_storage)storage;
}

static void walk_checkpoint(struct walk *w, struct sg_state_checkpoint *p)
{
    walk_number(w, &p->rows, 8);
    walk_number(w, &p->logits_at, 8);
    walk_sum(w, &p->logits_sum);
}

uint64_t sg_state_header_bytes(uint32_t slots_n, uint32_t checkpoints_n)
{
    return HEAD_BYTES + (uint64_t)slots_n * SLOT_BYTES + (uint64_t)checkpoints_n * CHECKPOINT_BYTES + SUM_BYTES;
}

uint64_t sg_state_aligned(uint64_t at) { return (at + ALIGN - 1) / ALIGN * ALIGN; }

/* The header's checksum is seeded with the format version. */
segue_status sg_state_put_header(struct sg_file_out *out, const struct sg_statefile *f, segue_error *err)
{
    struct sg_state_head head = f->head;
    uint64_t n = sg_state_header_bytes(head.slots_n, head.checkpoints_n);
    uint8_t *bytes = sg_alloc(n);
    if (!bytes) return sg_no_memory("header of a state file", n, err);
    struct walk w = {bytes, 1};
    walk_head(&w, &head);
    for (uint32_t i = 0; i < head.slots_n; i++) walk_slot(&w, &f->slots[i]);
    for (uint32_t i = 0; i < head.checkpoints_n; i++) {
        struct sg_state_checkpoint p = f->checkpoints[i];
        walk_checkpoint(&w, &p);
    }
    struct sg_hash sum = sg_hash_bytes(bytes, n - SUM_BYTES, SG_STATE_VERSION);
    walk_sum(&w, &sum);
    segue_status status = sg_file_put_at(out, 0, bytes, n, err);
    sg_free(bytes);
    return status;
}

segue_status sg_state_put_section(struct sg_file_out *out, const void *bytes, size_t n, uint64_t *end,
                                  uint64_t *at, struct sg_hash *sum, segue_error *err)
{
    *at = sg_state_aligned(*end);
    *sum = sg_state_sum(bytes, n, PIECE);
    *end = *at + n;
    return sg_file_put_at(out, *at, bytes, n, err);
}

/* --- reading --- */

static int of_trainer(const struct sg_statefile *f) { return f->head.run.lo || f->head.run.hi; }

/* The error for a damaged file. */
static segue_status damaged(const struct sg_statefile *f, const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: damaged: %s; %s", f->path, what,
                   of_trainer(f) ? "remove the file to start again" : "compute the tokens again");
}

/* The tables of slots and checkpoints, whose sizes read_header has checked. Records are copied, since the mapping is
 * read-only. */
static segue_status read_tables(struct sg_statefile *f, segue_error *err)
{
    struct sg_state_head *h = &f->head;
    f->slots = sg_alloc(h->slots_n * sizeof *f->slots);
    if (!f->slots) return sg_no_memory("slots of a state file", h->slots_n * sizeof *f->slots, err);
    const uint8_t *at = f->map.data + HEAD_BYTES;
    for (uint32_t i = 0; i < h->slots_n; i++, at += SLOT_BYTES) {
        uint8_t record[SLOT_BYTES];
        memcpy(record, at, sizeof record);
        struct walk r = {record, 0};
        walk_slot(&r, &f->slots[i]);
    }
    for (uint32_t i = 0; i < h->checkpoints_n; i++, at += CHECKPOINT_BYTES) {
        uint8_t record[CHECKPOINT_BYTES];
        memcpy(record, at, sizeof record);
        struct walk r = {record, 0};
        walk_checkpoint(&r, &f->checkpoints[i]);
    }
    return SEGUE_OK;
}

/* Order: magic, version, sizes against the mapping, checksum, tables. */
static segue_status read_header(struct sg_statefile *f, segue_error *err)
{
    struct sg_state_head *h = &f->head;
    if (f->map.size < sizeof magic || memcmp(f->map.data, magic, sizeof magic) != 0)
        return sg_fail(err, SEGUE_EFORMAT,
                       "state not loaded: %s: not a state file; pass one that segue saved", f->path);
    if (f->map.size < HEAD_BYTES + SUM_BYTES) return damaged(f, "the header is truncated", err);
    uint8_t head[HEAD_BYTES];
    memcpy(head, f->map.data, sizeof head);
    struct walk w = {head, 0};
    walk_head(&w, h);
    if (h->version != SG_STATE_VERSION)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "state not loaded: %s: format version %u, this library reads %d; use the version that saved it",
                       f->path, h->version, SG_STATE_VERSION);
    uint64_t n = sg_state_header_bytes(h->slots_n, h->checkpoints_n);
    if (h->slots_n > SG_STATE_SLOTS || h->checkpoints_n > SG_STATE_CHECKPOINTS || n > f->map.size)
        return damaged(f, "the header is truncated", err);
    struct sg_hash sum = sg_hash_bytes(f->map.data, n - SUM_BYTES, SG_STATE_VERSION);
    if (sum.lo != sg_le64(f->map.data + n - 16) || sum.hi != sg_le64(f->map.data + n - 8))
        return damaged(f, "the header's checksum is wrong", err);
    if (h->layout != SG_STATE_LAYOUT) return damaged(f, "the layout of slots is unknown", err);
    h->unit[SG_STATE_TEXT - 1] = h->kernels[SG_STATE_TEXT - 1] = 0;
    return read_tables(f, err);
}

/* A section starts at the aligned end of the previous one, is inside the file, and the padding before it is zero. */
static segue_status check_section(const struct sg_statefile *f, uint64_t at, uint64_t bytes, uint64_t *end,
                                  segue_error *err)
{
    if (at != sg_state_aligned(*end) || at > f->map.size || bytes > f->map.size - at)
        return damaged(f, "a section is out of place or outside of the file", err);
    for (uint64_t i = *end; i < at; i++)
        if (f->map.data[i]) return damaged(f, "bytes between two sections are not zero", err);
    *end = at + bytes;
    return SEGUE_OK;
}

static segue_status check_logits(const struct sg_statefile *f, uint64_t at, struct sg_hash sum, uint64_t *end,
                                 segue_error *err)
{
    if (!at)
        return sum.lo || sum.hi ? damaged(f, "absent logits have a checksum", err) : SEGUE_OK;
    SG_TRY(check_section(f, at, f->head.vocab * 4, end, err));
    if (!same(sum, sg_state_sum(f->map.data + at, f->head.vocab * 4, PIECE)))
        return damaged(f, "the checksum of the logits is wrong", err);
    return SEGUE_OK;
}

/* The counts bound all later loops: rows <= tokens <= INT32_MAX. A trainer has updates instead of tokens. */
static segue_status check_tokens(const struct sg_statefile *f, uint64_t *end, segue_error *err)
{
    const struct sg_state_head *h = &f->head;
    *end = sg_state_header_bytes(h->slots_n, h->checkpoints_n);
    if (of_trainer(f) ? h->tokens_n || h->logits_at || h->checkpoints_n
                      : h->tokens_n > INT32_MAX || !h->rows || h->rows > h->tokens_n || h->vocab > INT32_MAX)
        return damaged(f, "the token counts are out of range", err);
    SG_TRY(check_section(f, h->tokens_at, h->tokens_n * 4, end, err));
    if (!same(h->tokens_sum, sg_state_sum(f->map.data + h->tokens_at, h->tokens_n * 4, PIECE)))
        return damaged(f, "the checksum of the tokens is wrong", err);
    const int32_t *tokens = sg_statefile_tokens(f);
    for (uint64_t i = 0; i < h->tokens_n; i++)
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= h->vocab)
            return damaged(f, "a token is outside of the vocabulary", err);
    return SEGUE_OK;
}

/* A slot of a trainer. */
static segue_status check_parameter(const struct sg_statefile *f, const struct sg_state_slot *s, uint64_t *end, segue_error *err)
{
    const struct sg_slot *d = &s->slot;
    if (d->kind < SG_SLOT_VALUE || d->kind > SG_SLOT_MOMENT2 || (uint64_t)d->heads * d->width > PARAMETER_MAX || d->window ||
        s->storage != SG_F32 || s->checkpoint || s->end || s->bytes != sg_slot_fixed_bytes(d))
        return damaged(f, "the shape of a parameter is out of range", err);
    SG_TRY(check_section(f, s->at, s->bytes, end, err));
    if (!same(s->sum, sg_state_sum(f->map.data + s->at, s->bytes, PIECE)))
        return damaged(f, "the checksum of a parameter is wrong", err);
    return SEGUE_OK;
}

/* Dimensions are bounded first, so that no product of them overflows. K and V must hold everything up to the end that the next
 * token attends to. */
static segue_status check_slot(const struct sg_statefile *f, const struct sg_state_slot *s, uint64_t *end,
                               segue_error *err)
{
    const struct sg_slot *d = &s->slot;
    if (of_trainer(f)) return check_parameter(f, s, end, err);
    if (d->kind > SG_SLOT_DELTA || d->heads > SIDE_MAX || d->width > SIDE_MAX || d->depth > SIDE_MAX ||
        (uint64_t)d->heads * d->width > SIDE_MAX)
        return damaged(f, "the shape of a slot is out of range", err);
    if (s->storage != SG_F32 && s->storage != SG_F16 && s->storage != SG_BF16 && s->storage != SG_Q8_0)
        return damaged(f, "a slot has an unknown storage", err);
    int is_rows = sg_state_has_rows(d);
    size_t row_bytes = is_rows ? sg_slot_row_bytes(d, s->storage) : 0,
           fixed = is_rows ? 0 : sg_slot_fixed_bytes(d);
    uint64_t rows = f->head.rows, first_max = d->window && rows >= d->window ? rows - d->window + 1 : 0;
    if (is_rows && (!row_bytes || s->checkpoint || s->end != rows || s->first > first_max ||
                    s->bytes / row_bytes != s->end - s->first || s->bytes % row_bytes))
        return damaged(f, "a slot lacks rows", err);
    if (!is_rows &&
        (s->first || s->end || s->bytes != fixed || s->storage != SG_F32 || s->checkpoint > f->head.checkpoints_n))
        return damaged(f, "a recurrent slot has a wrong size", err);
    SG_TRY(check_section(f, s->at, s->bytes, end, err));
    if (!same(s->sum, sg_state_sum(f->map.data + s->at, s->bytes, sg_state_piece(row_bytes))))
        return damaged(f, "the checksum of a slot is wrong", err);
    return SEGUE_OK;
}

/* Everything after the tokens. */
static segue_status check_rest(const struct sg_statefile *f, uint64_t end, segue_error *err)
{
    uint64_t before = 0;
    if (f->head.file_bytes != f->map.size) return damaged(f, "the file size differs from the header", err);
    SG_TRY(check_logits(f, f->head.logits_at, f->head.logits_sum, &end, err));
    for (uint32_t i = 0; i < f->head.slots_n; i++) SG_TRY(check_slot(f, &f->slots[i], &end, err));
    for (uint32_t i = 0; i < f->head.checkpoints_n; i++) {
        if (f->checkpoints[i].rows <= before || f->checkpoints[i].rows >= f->head.rows)
            return damaged(f, "the checkpoints are out of order", err);
        before = f->checkpoints[i].rows;
        SG_TRY(check_logits(f, f->checkpoints[i].logits_at, f->checkpoints[i].logits_sum, &end, err));
    }
    return end == f->map.size ? SEGUE_OK : damaged(f, "bytes follow the last section", err);
}

/* The state of a trainer is not mistaken for that of a sequence. */
static segue_status read_begin(struct sg_statefile *f, int accept, uint64_t *end, segue_error *err)
{
    SG_TRY(read_header(f, err));
    if (of_trainer(f) && !(accept & SG_STATE_TRAINER))
        return sg_fail(err, SEGUE_EFORMAT,
                       "state not loaded: %s: is the checkpoint of a training run; continue it with segue train", f->path);
    return check_tokens(f, end, err);
}

/* SG_STATE_SALVAGE keeps the file open when only slots or logits are damaged. */
static segue_status read_all(struct sg_statefile *f, int accept, segue_error *err)
{
    uint64_t end = 0;
    segue_status status = read_begin(f, accept, &end, err);
    if (status == SEGUE_OK) {
        status = check_rest(f, end, err);
        f->text_only = status == SEGUE_EFORMAT;
    }
    if (status != SEGUE_OK && !(accept & SG_STATE_SALVAGE && f->text_only && !of_trainer(f))) sg_statefile_close(f);
    return status;
}

segue_status sg_statefile_open(struct sg_statefile *f, const char *path, int accept, segue_error *err)
{
    *f = (struct sg_statefile){.path = path};
    SG_TRY(sg_map_open(&f->map, path, err));
    return read_all(f, accept, err);
}

segue_status sg_statefile_peek(struct sg_statefile *f, const char *path, segue_error *err)
{
    uint64_t end;
    *f = (struct sg_statefile){.path = path};
    SG_TRY(sg_map_open(&f->map, path, err));
    segue_status status = read_begin(f, 0, &end, err);
    if (status != SEGUE_OK) sg_statefile_close(f);
    return status;
}

segue_status sg_statefile_open_memory(struct sg_statefile *f, const void *bytes, size_t n, int accept,
                             segue_error *err)
{
    *f = (struct sg_statefile){.path = "state in memory", .borrowed = 1, .map = {.data = bytes, .size = n}};
    return read_all(f, accept, err);
}

void sg_statefile_close(struct sg_statefile *f)
{
    if (!f->borrowed) sg_map_close(&f->map);
    sg_free(f->slots);
    *f = (struct sg_statefile){.path = f->path, .head.version = f->head.version};
}

const int32_t *sg_statefile_tokens(const struct sg_statefile *f)
{
    return (const int32_t *)(const void *)(f->map.data + f->head.tokens_at);
}

const float *sg_statefile_logits(const struct sg_statefile *f, uint32_t checkpoint)
{
    uint64_t at = checkpoint ? f->checkpoints[checkpoint - 1].logits_at : f->head.logits_at;
    return at ? (const float *)(const void *)(f->map.data + at) : NULL;
}
