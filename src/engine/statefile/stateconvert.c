/* stateconvert.c: converts a state file to another storage of K and V, or to safetensors with the names and shapes of a dump.
 * No model is needed, because the file describes its slots. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/statefile/statefile.h"
#include "tensor/archive.h"

/* --- another storage --- */

/* One conversion in progress; end: offset after the last section written. */
struct converting {
    const struct sg_statefile *from;
    struct sg_statefile to;
    struct sg_file_out out;
    uint64_t end;
};

/* Copies n bytes at offset `from` unchanged. */
static segue_status copy_section(struct converting *c, uint64_t from, uint64_t n, uint64_t *at,
                                 struct sg_hash *sum, segue_error *err)
{
    return sg_state_put_section(&c->out, c->from->map.data + from, n, &c->end, at, sum, err);
}

/* Converts K or V row by row through fp32; equal storages are copied unchanged. Written in pieces of whole rows. */
static segue_status convert_rows(struct converting *c, const struct sg_state_slot *from,
                                 struct sg_state_slot *to, enum sg_storage kv, segue_error *err)
{
    size_t in = sg_slot_row_bytes(&from->slot, from->storage), out = sg_slot_row_bytes(&from->slot, kv),
           piece = sg_state_piece(out), wide = (size_t)from->slot.heads * from->slot.width * sizeof(float);
    uint8_t *buffer = sg_alloc(piece);
    float *row = sg_alloc(wide);
    segue_status status = buffer && row ? SEGUE_OK : sg_no_memory("rows of a state", piece, err);
    const uint8_t *at = c->from->map.data + from->at;
    to->storage = kv;
    to->at = sg_state_aligned(c->end);
    to->bytes = 0;
    to->sum = (struct sg_hash){0};
    for (uint64_t r = from->first, n = 0; status == SEGUE_OK && r < from->end; r++, at += in) {
        if (from->storage == kv) {
            memcpy(buffer + n, at, in);
        } else {
            sg_slot_decode(&from->slot, from->storage, at, row);
            sg_slot_encode(&from->slot, kv, row, buffer + n);
        }
        n += out;
        if (n < piece && r + 1 < from->end) continue;
        sg_state_add_sum(&to->sum, buffer, n);
        status = sg_file_put_at(&c->out, to->at + to->bytes, buffer, n, err);
        to->bytes += n;
        n = 0;
    }
    c->end = to->at + to->bytes;
    sg_free(buffer);
    sg_free(row);
    return status;
}

static segue_status convert_all(struct converting *c, enum sg_storage kv, segue_error *err)
{
    const struct sg_state_head *from = &c->from->head;
    struct sg_state_head *to = &c->to.head;
    *to = *from;
    to->library = segue_version();
    c->end = sg_state_header_bytes(to->slots_n, to->checkpoints_n);
    SG_TRY(copy_section(c, from->tokens_at, from->tokens_n * 4, &to->tokens_at, &to->tokens_sum, err));
    if (from->logits_at)
        SG_TRY(copy_section(c, from->logits_at, from->vocab * 4, &to->logits_at, &to->logits_sum, err));
    for (uint32_t i = 0; i < from->slots_n; i++) {
        const struct sg_state_slot *a = &c->from->slots[i];
        struct sg_state_slot *b = &c->to.slots[i];
        *b = *a;
        if (sg_state_has_rows(&a->slot))
            SG_TRY(convert_rows(c, a, b, kv, err));
        else
            SG_TRY(copy_section(c, a->at, a->bytes, &b->at, &b->sum, err));
    }
    for (uint32_t i = 0; i < from->checkpoints_n; i++) {
        struct sg_state_checkpoint *p = &c->to.checkpoints[i];
        *p = c->from->checkpoints[i];
        if (p->logits_at)
            SG_TRY(copy_section(c, p->logits_at, from->vocab * 4, &p->logits_at, &p->logits_sum, err));
    }
    to->file_bytes = c->end;
    return sg_state_put_header(&c->out, &c->to, err);
}

segue_status sg_statefile_convert(const struct sg_statefile *f, enum sg_storage kv, const char *path,
                                  segue_error *err)
{
    struct converting c = {.from = f};
    c.to.slots = sg_alloc(f->head.slots_n * sizeof *c.to.slots);
    if (!c.to.slots) return sg_no_memory("slots of a state file", f->head.slots_n * sizeof *c.to.slots, err);
    segue_status status = sg_file_begin(&c.out, path, 0600, err);
    if (status == SEGUE_OK) {
        status = convert_all(&c, kv, err);
        if (status == SEGUE_OK) status = sg_file_commit(&c.out, err);
        sg_file_close(&c.out);
    }
    sg_free(c.to.slots);
    return status;
}

/* --- as tensors --- */

/* The tensors of a file to write. */
struct tensors {
    const struct sg_statefile *file;
    struct sg_arena arena; /* owns everything below */
    struct sg_st_item *items;
    size_t items_n;
};

static segue_status take(struct tensors *t, uint64_t n, float **out, segue_error *err)
{
    *out = sg_arena_alloc(&t->arena, n * sizeof **out);
    return *out ? SEGUE_OK : sg_no_memory("tensors of a state", n * sizeof **out, err);
}

static void add(struct tensors *t, const char *name, enum sg_storage storage, const uint64_t shape[3],
                const void *data)
{
    struct sg_st_item *item = &t->items[t->items_n++];
    *item = (struct sg_st_item){.name = name, .storage = storage, .data = data};
    for (int i = 0; i < 3 && shape[i]; i++) item->shape[item->rank++] = shape[i];
}

/* What the next row can see, as in a dump. */
static segue_status add_rows(struct tensors *t, const struct sg_state_slot *s, const char *name,
                             segue_error *err)
{
    size_t row_bytes = sg_slot_row_bytes(&s->slot, s->storage), wide = (size_t)s->slot.heads * s->slot.width;
    uint64_t first = s->first;
    float *rows, *heads;
    if (s->slot.window && s->end - first >= s->slot.window) first = s->end - s->slot.window + 1;
    uint64_t n = s->end - first;
    SG_TRY(take(t, n * wide, &rows, err));
    SG_TRY(take(t, n * wide, &heads, err));
    const uint8_t *at = t->file->map.data + s->at + (first - s->first) * row_bytes;
    for (uint64_t r = 0; r < n; r++)
        sg_slot_decode(&s->slot, s->storage, at + r * row_bytes, rows + r * wide);
    sg_dump_heads(&s->slot, n, rows, heads);
    const uint64_t shape[3] = {s->slot.heads, n, s->slot.width};
    add(t, name, SG_F32, shape, heads);
    return SEGUE_OK;
}

static segue_status add_slot(struct tensors *t, const struct sg_state_slot *s, segue_error *err)
{
    char *name = sg_arena_printf(&t->arena, "%s.%u", sg_state_kind(s->slot.kind), s->slot.layer);
    if (!name) return sg_no_memory("tensors of a state", 32, err);
    if (sg_state_has_rows(&s->slot)) return add_rows(t, s, name, err);
    float *whole;
    const void *from = t->file->map.data + s->at;
    if (s->slot.kind == SG_SLOT_DELTA) {
        const uint64_t shape[3] = {s->slot.heads, s->slot.depth, s->slot.width};
        add(t, name, SG_F32, shape, from);
        return SEGUE_OK;
    }
    SG_TRY(take(t, s->bytes / sizeof *whole, &whole, err));
    sg_dump_conv(&s->slot, from, whole);
    const uint64_t shape[3] = {s->slot.width, s->slot.heads, 0};
    add(t, name, SG_F32, shape, whole);
    return SEGUE_OK;
}

static segue_status fill(struct tensors *t, segue_error *err)
{
    const struct sg_state_head *h = &t->file->head;
    const uint64_t tokens[3] = {h->tokens_n, 0, 0}, logits[3] = {1, h->vocab, 0};
    t->items = sg_arena_alloc(&t->arena, (h->slots_n + 2) * sizeof *t->items);
    if (!t->items) return sg_no_memory("tensors of a state", h->slots_n * sizeof *t->items, err);
    add(t, "tokens", SG_I32, tokens, sg_statefile_tokens(t->file));
    if (h->logits_at) add(t, "logits", SG_F32, logits, sg_statefile_logits(t->file, 0));
    for (uint32_t i = 0; i < h->slots_n; i++)
        if (!t->file->slots[i].checkpoint) SG_TRY(add_slot(t, &t->file->slots[i], err));
    return SEGUE_OK;
}

segue_status sg_statefile_tensors(const struct sg_statefile *f, const char *path, segue_error *err)
{
    struct tensors t = {.file = f};
    segue_status status = fill(&t, err);
    if (status == SEGUE_OK) status = sg_safetensors_write(path, t.items, t.items_n, err);
    sg_arena_free(&t.arena);
    return status;
}
