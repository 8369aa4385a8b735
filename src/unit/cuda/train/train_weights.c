/* train_weights.c: bf16 copies of weights, made again when the fp32 numbers have changed: once per update.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/train/cu_train.h"

enum { COPIES_STEP = 64 };

segue_status cu_train_copies_add(struct cu_train *t, const float *value, size_t n, segue_error *err)
{
    if (t->copies_n % COPIES_STEP == 0) {
        struct cu_train_copy *more = sg_alloc((t->copies_n + COPIES_STEP) * sizeof *more);
        if (!more) return sg_no_memory("list of weights", (t->copies_n + COPIES_STEP) * sizeof *more, err);
        if (t->copies_n) memcpy(more, t->copies, t->copies_n * sizeof *more);
        sg_free(t->copies);
        t->copies = more;
    }
    t->copies[t->copies_n++] = (struct cu_train_copy){.value = value, .n = n};
    return SEGUE_OK;
}

/* The allocation with an address; NULL: none. */
static struct cu_train_copy *find(struct cu_train *t, const float *value)
{
    for (size_t i = 0; i < t->copies_n; i++)
        if (value >= t->copies[i].value && value < t->copies[i].value + t->copies[i].n) return &t->copies[i];
    return NULL;
}

void cu_train_copies_remove(struct cu_train *t, const float *value)
{
    struct cu_train_copy *c = find(t, value);
    if (!c) return;
    cu_mem_free(t->u, &c->half);
    c->value = NULL;
    c->n = 0;
}

void cu_train_copies_changed(struct cu_train *t, const float *value)
{
    struct cu_train_copy *c = find(t, value);
    if (c) c->valid = 0;
}

static segue_status make(struct cu_train *t, struct cu_train_copy *c, uint32_t cols, segue_error *err)
{
    size_t bytes = (c->n + (size_t)CT_PAD * cols) * sizeof(uint16_t);
    if (!c->half) {
        SG_TRY(cu_mem_grow(t->u, &c->half, &c->bytes, bytes, "bf16 weights", err));
        cu_enter(t->u);
        cu_result r = t->u->d.memset_d8(c->half, 0, bytes, t->stream);
        cu_leave(t->u);
        SG_TRY(cu_check(&t->u->d, r, "train", err));
    }
    struct ct_cast a = {c->value, (uint16_t *)(uintptr_t)c->half, c->n};
    size_t blocks = (c->n + CT_THREADS - 1) / CT_THREADS, max = (size_t)t->u->sms * 16;
    SG_TRY(cu_train_launch(t, t->k.bf16_cast, (uint32_t)(blocks < max ? blocks : max), 1, 1, CT_THREADS, &a, err));
    c->valid = 1;
    return SEGUE_OK;
}

segue_status cu_train_copy_of(struct cu_train *t, const float *value, uint32_t rows, uint32_t cols, const uint16_t **out,
                              int *whole, segue_error *err)
{
    struct cu_train_copy *c = find(t, value);
    if (!c) return sg_fail(err, SEGUE_EINTERNAL, "train: cuda: a weight has no allocation; report this");
    if (!c->valid) SG_TRY(make(t, c, cols, err));
    *out = (const uint16_t *)(uintptr_t)c->half + (value - c->value);
    if (whole) *whole = (size_t)(value - c->value) + (size_t)rows * cols == c->n;
    return SEGUE_OK;
}
