/* trainstate.c: the state of a trainer as a state file: for each parameter a slot with its values and two with its moments. A
 * file is written between updates, when all gradients are 0. Slots are fp32 in the order in which the graph multiplies, so a
 * trainer on another unit continues from them.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/statefile/statefile.h"
#include "train/train.h"

enum { FIELDS = 3 };
static const struct { enum sg_slot_kind kind; segue_param_field field; } fields[FIELDS] = {
    {SG_SLOT_VALUE, SEGUE_PARAM_VALUE}, {SG_SLOT_MOMENT1, SEGUE_PARAM_MOMENT1}, {SG_SLOT_MOMENT2, SEGUE_PARAM_MOMENT2}};

/* Slot i of the trainer, without its place in a file. */
static struct sg_state_slot slot_of(const struct segue_trainer *t, size_t i)
{
    const segue_param_info *p = &t->params[i / FIELDS].info;
    return (struct sg_state_slot){.slot = {.kind = fields[i % FIELDS].kind, .layer = (uint32_t)p->layer,
                                           .heads = (uint32_t)p->rows, .width = (uint32_t)p->cols,
                                           .depth = (uint32_t)(i / FIELDS)},
                                  .storage = SG_F32, .first = sg_hash_bytes(p->name, strlen(p->name), 0).lo};
}

/* Not zero, which would be the state of a sequence. */
static struct sg_hash run_of(const char *run)
{
    struct sg_hash hash = sg_hash_bytes(run ? run : "", run ? strlen(run) : 0, 0);
    if (!hash.lo && !hash.hi) hash.lo = 1;
    return hash;
}

/* --- save --- */

static segue_status put_slots(const struct segue_trainer *t, struct sg_statefile *f, struct sg_file_out *out, float *buffer,
                              segue_error *err)
{
    for (uint32_t i = 0; i < f->head.slots_n; i++) {
        struct sg_state_slot *s = &f->slots[i];
        *s = slot_of(t, i);
        s->bytes = sg_slot_fixed_bytes(&s->slot);
        SG_TRY(sg_train_get(t, i / FIELDS, fields[i % FIELDS].field, SEGUE_ORDER_MATRIX, buffer, err));
        SG_TRY(sg_state_put_section(out, buffer, s->bytes, &f->head.file_bytes, &s->at, &s->sum, err));
    }
    return SEGUE_OK;
}

static segue_status save_all(const struct segue_trainer *t, struct sg_statefile *f, struct sg_file_out *out, float *buffer,
                             segue_error *err)
{
    struct sg_state_head *h = &f->head;
    h->file_bytes = sg_state_header_bytes(h->slots_n, 0);
    SG_TRY(sg_state_put_section(out, "", 0, &h->file_bytes, &h->tokens_at, &h->tokens_sum, err));
    SG_TRY(put_slots(t, f, out, buffer, err));
    return sg_state_put_header(out, f, err);
}

segue_status sg_trainstate_save(const struct segue_trainer *t, const char *unit, const char *run, const char *path,
                                segue_error *err)
{
    struct sg_statefile f = {.head = {.version = SG_STATE_VERSION, .library = segue_version(), .layout = SG_STATE_LAYOUT,
                                      .rows = t->info.steps, .vocab = t->info.vocab, .run = run_of(run)}};
    char weights_id[33];
    size_t largest = 0;
    if (t->labelled)
        return sg_fail(err, SEGUE_EARG, "state not saved: %s: gradients wait for an update; update or drop them first", path);
    if (t->info.params_n > SG_STATE_SLOTS / FIELDS)
        return sg_fail(err, SEGUE_ELIMIT, "state not saved: %s: %zu parameters, a file has %d at most; train fewer of them", path,
                       t->info.params_n, SG_STATE_SLOTS / FIELDS);
    for (size_t i = 0; i < t->info.params_n; i++) largest = t->params[i].n > largest ? t->params[i].n : largest;
    SG_TRY(segue_model_weights_id(t->model, NULL, weights_id, err));
    memcpy(f.head.shape_id, t->model->info.shape_id, sizeof f.head.shape_id);
    memcpy(f.head.weights_id, weights_id, sizeof f.head.weights_id);
    snprintf(f.head.unit, sizeof f.head.unit, "%s", unit);
    f.head.slots_n = (uint32_t)(FIELDS * t->info.params_n);
    f.slots = sg_alloc(f.head.slots_n * sizeof *f.slots);
    float *buffer = sg_alloc_unset(largest * sizeof *buffer);
    struct sg_file_out out;
    segue_status status = f.slots && buffer ? sg_file_begin(&out, path, 0600, err)
                                            : sg_no_memory("state file", largest * sizeof *buffer, err);
    if (status == SEGUE_OK) {
        status = save_all(t, &f, &out, buffer, err);
        if (status == SEGUE_OK) status = sg_file_commit(&out, err);
        sg_file_close(&out);
    }
    sg_free(f.slots);
    sg_free_aligned(buffer);
    return status;
}

/* --- load --- */

static segue_status fits(const struct segue_trainer *t, const struct sg_statefile *f, const char *run, segue_error *err)
{
    char weights_id[33];
    struct sg_hash hash = run_of(run);
    SG_TRY(segue_model_weights_id(t->model, NULL, weights_id, err));
    if (memcmp(f->head.weights_id, weights_id, 32) != 0 || f->head.run.lo != hash.lo || f->head.run.hi != hash.hi)
        return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: was written with other data, model or settings; repeat "
                       "those, or remove the file to start again", f->path);
    int same = f->head.slots_n == FIELDS * t->info.params_n;
    for (uint32_t i = 0; same && i < f->head.slots_n; i++) {
        struct sg_state_slot want = slot_of(t, i);
        same = sg_slot_equal(&f->slots[i].slot, &want.slot) && f->slots[i].first == want.first;
    }
    if (same) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: has other parameters than this trainer; remove the file to "
                   "start again", f->path);
}

segue_status sg_trainstate_load(struct segue_trainer *t, const char *run, const char *path, segue_error *err)
{
    struct sg_statefile f;
    SG_TRY(sg_statefile_open(&f, path, SG_STATE_TRAINER, err));
    segue_status status = !f.head.run.lo && !f.head.run.hi
        ? sg_fail(err, SEGUE_EFORMAT, "state not loaded: %s: is the state of a sequence; pass a trainer's", path) : SEGUE_OK;
    if (status == SEGUE_OK) status = fits(t, &f, run, err);
    for (uint32_t i = 0; status == SEGUE_OK && i < f.head.slots_n; i++)
        status = sg_train_put_field(t, i / FIELDS, fields[i % FIELDS].field, SEGUE_ORDER_MATRIX,
                                    (const float *)(const void *)(f.map.data + f.slots[i].at), err);
    if (status == SEGUE_OK) {
        sg_train_drop(t);
        t->info.steps = f.head.rows;
    }
    sg_statefile_close(&f);
    return status;
}
