/* mlx_state.c: the memory of states. Arrays of MLX do not change: forks and marks share them, and an update reuses the memory
 * when nothing else refers to it. K and V rows at and after the end of the sequence have no meaning: a failed pass needs no undo.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/mlx/mlxunit.h"

enum mxc_type mlx_type_of(enum sg_storage s) { return s == SG_F16 ? MXC_F16 : s == SG_BF16 ? MXC_BF16 : MXC_F32; }
static const int swap_rows[4] = {0, 2, 1, 3}, swap_matrix[4] = {0, 1, 3, 2};

static void replace(struct mxc_held **at, struct mxc_held *with)
{
    mxc_release(*at);
    *at = with;
}

/* A second handle, or NULL for NULL. */
static segue_status share(const struct mxc_held *from, struct mxc_held **to, segue_error *err)
{
    struct mxc_held *copy = from ? mxc_share(from) : NULL;
    if (from && !copy) return sg_no_memory("mlx state", sizeof(void *), err);
    replace(to, copy);
    return SEGUE_OK;
}

/* --- for runs, on the owner thread --- */

mxc_ref mlx_by_head(struct mxc_tape *t, mxc_ref x, uint32_t rows, uint32_t heads, uint32_t width)
{
    uint32_t shape[4] = {1, rows, heads, width}, one[4] = {1, heads, 1, width};
    if (rows == 1) return mxc_reshape(t, x, one, 4);    /* the same memory */
    return mxc_transpose(t, mxc_reshape(t, x, shape, 4), swap_rows, 4);
}

/* Room for positions before `end`: MLX_BLOCK_TOKENS more at a time. */
mxc_ref mlx_state_grown(struct sg_unit *u, struct mlx_slot *s, enum sg_storage storage, uint64_t end)
{
    uint32_t cap = (uint32_t)((end + MLX_BLOCK_TOKENS - 1) / MLX_BLOCK_TOKENS * MLX_BLOCK_TOKENS);
    uint32_t shape[4] = {1, s->core.slot.heads, cap, s->core.slot.width};
    if (!s->array) return mxc_zeros(u->tape, mlx_type_of(storage), shape, 4);
    mxc_ref now = mxc_use(u->tape, s->array);
    uint32_t held = mxc_dim(u->tape, now, 2);
    if (held >= end) return now;
    shape[2] = cap - held;
    mxc_ref parts[2] = {now, mxc_zeros(u->tape, mlx_type_of(storage), shape, 4)};
    mxc_ref both = mxc_concat(u->tape, parts, 2, 2);
    mxc_forget(u->tape, now);
    return both;
}

/* The old array is released before the new one is computed, which can then be written in place. MLX has no q8_0: such rows are
 * rounded to its values and held as fp32. */
static mxc_ref put_rows(struct sg_unit *u, struct mlx_slot *s, enum sg_storage storage, mxc_ref rows, uint64_t at, uint64_t n)
{
    if (storage == SG_Q8_0) rows = mxc_round_q8(u->tape, rows);
    mxc_ref old = mlx_state_grown(u, s, storage, at + n);
    mxc_ref now = mxc_put(u->tape, old, rows, 2, (uint32_t)at);
    struct mxc_held *held = mxc_keep(u->tape, now);
    mxc_forget(u->tape, old);
    if (held) replace(&s->array, held);
    return now;
}

mxc_ref mlx_state_append(struct sg_unit *u, struct sg_state *st, uint32_t slot, mxc_ref rows, uint64_t at, uint32_t n)
{
    struct mlx_slot *s = mlx_slot_at(st, slot);
    enum sg_storage storage = st->core.storage;
    mxc_ref x = mlx_by_head(u->tape, rows, n, s->core.slot.heads, s->core.slot.width);
    if (mxc_type_of(u->tape, x) != mlx_type_of(storage)) x = mxc_cast(u->tape, x, mlx_type_of(storage));
    st->version++;
    return put_rows(u, s, storage, x, at, n);
}

mxc_ref mlx_state_fixed(struct sg_unit *u, struct mlx_slot *s)
{
    const struct sg_slot *slot = &s->core.slot;
    uint32_t conv[2] = {slot->heads, slot->width}, delta[4] = {1, slot->heads, slot->width, slot->depth};
    if (s->array) return mxc_use(u->tape, s->array);
    return slot->kind == SG_SLOT_CONV ? mxc_zeros(u->tape, MXC_F32, conv, 2) : mxc_zeros(u->tape, MXC_F32, delta, 4);
}

mxc_ref mlx_state_shaped(struct sg_unit *u, const struct mlx_slot *s, mxc_ref x)
{
    const struct sg_slot *slot = &s->core.slot;
    uint32_t delta[4] = {1, slot->heads, slot->width, slot->depth};
    return slot->kind == SG_SLOT_DELTA ? mxc_reshape(u->tape, x, delta, 4) : x;
}

void mlx_state_set_next(struct sg_unit *u, struct sg_state *st, uint32_t slot, mxc_ref x)
{
    st->version++;
    replace(&mlx_slot_at(st, slot)->next, mxc_keep(u->tape, x));
}

void mlx_issued_clear(struct sg_state *s, struct mlx_issued *i)
{
    replace(&i->logits, NULL);
    replace(&i->token, NULL);
    replace(&i->flag, NULL);
    for (uint32_t k = 0; i->fixed && k < i->spans_n * s->core.slots_n; k++) replace(&i->fixed[k], NULL);
}

void mlx_issued_free(struct mlx_issued *i)
{
    sg_free(i->fixed);
    sg_free(i->expected);
    *i = (struct mlx_issued){0};
}

void mlx_state_commit(struct sg_state *st, uint32_t tokens)
{
    pthread_mutex_lock(&st->core.lock);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct mlx_slot *s = mlx_slot_at(st, i);
        if (!s->next) continue;
        replace(&s->array, s->next);
        s->next = NULL;
    }
    sg_state_core_advance(&st->core, tokens);
    pthread_mutex_unlock(&st->core.lock);
}

void mlx_state_discard(struct sg_state *st)
{
    pthread_mutex_lock(&st->core.lock);
    for (uint32_t i = 0; i < st->core.slots_n; i++) replace(&mlx_slot_at(st, i)->next, NULL);
    pthread_mutex_unlock(&st->core.lock);
    for (int i = 0; i < 2; i++) mlx_issued_clear(st, &st->issued[i]);
}

/* --- get and put --- */

struct mlx_transfer {
    struct sg_state *state;
    struct mlx_slot *slot;
    uint64_t from, to;
    enum sg_storage storage;         /* f32, f16 or bf16 */
    void *out;
    const void *in;
    segue_status status;
    segue_error *err;
};

static void finish(struct mlx_transfer *x, const char *verb)
{
    struct sg_unit *u = x->state->core.base.unit;
    x->status = mlx_status(u, verb, x->err);
    mxc_tape_clear(u->tape);
}

static void do_get(void *arg)
{
    struct mlx_transfer *x = arg;
    struct sg_unit *u = x->state->core.base.unit;
    const struct sg_slot *slot = &x->slot->core.slot;
    mxc_ref y;
    size_t bytes = x->slot->core.fixed_bytes;
    if (sg_slot_grows(slot)) {
        bytes = (size_t)(x->to - x->from) * sg_slot_row_bytes(slot, x->storage);
        y = mxc_slice(u->tape, mxc_use(u->tape, x->slot->array), 2, (uint32_t)x->from, (uint32_t)x->to);
        y = mxc_transpose(u->tape, mxc_cast(u->tape, y, mlx_type_of(x->storage)), swap_rows, 4);
    } else {
        y = mxc_cast(u->tape, mlx_state_fixed(u, x->slot), MXC_F32);
        if (slot->kind == SG_SLOT_DELTA) y = mxc_transpose(u->tape, y, swap_matrix, 4);
    }
    if (bytes) (void)mxc_read(u->tape, y, x->out, bytes);
    finish(x, "get state");
}

static void do_put(void *arg)
{
    struct mlx_transfer *x = arg;
    struct sg_unit *u = x->state->core.base.unit;
    const struct sg_slot *slot = &x->slot->core.slot;
    uint32_t conv[2] = {slot->heads, slot->width}, delta[4] = {1, slot->heads, slot->depth, slot->width};
    uint32_t rows[4] = {1, (uint32_t)(x->to - x->from), slot->heads, slot->width};
    mxc_ref y;
    x->state->version++;
    if (sg_slot_grows(slot)) {
        y = mxc_transpose(u->tape, mxc_from(u->tape, x->in, mlx_type_of(x->storage), rows, 4), swap_rows, 4);
        y = put_rows(u, x->slot, x->state->core.storage, mxc_cast(u->tape, y, mlx_type_of(x->state->core.storage)), x->from,
                     x->to - x->from);
    } else {
        int matrix = slot->kind == SG_SLOT_DELTA;
        y = mxc_from(u->tape, x->in, MXC_F32, matrix ? delta : conv, matrix ? 4 : 2);
        if (matrix) y = mxc_transpose(u->tape, y, swap_matrix, 4);
        struct mxc_held *held = mxc_keep(u->tape, y);
        if (held) replace(&x->slot->array, held);
    }
    (void)mxc_eval(u->tape, &y, 1);
    finish(x, "put state");
}

/* q8_0 rows are converted here through fp32; MLX has no such type. */
static segue_status transfer_q8(struct mlx_transfer *x, void (*job)(void *))
{
    const struct sg_slot *slot = &x->slot->core.slot;
    size_t width = (size_t)slot->heads * slot->width, n = (size_t)(x->to - x->from), bytes = sg_slot_row_bytes(slot, SG_Q8_0);
    float *rows = sg_alloc(n * width * sizeof *rows);
    if (!rows) return sg_no_memory("rows of state", n * width * sizeof *rows, x->err);
    for (size_t i = 0; x->in && i < n; i++) sg_slot_decode(slot, SG_Q8_0, (const char *)x->in + i * bytes, rows + i * width);
    struct mlx_transfer y = *x;
    y.storage = SG_F32;
    y.in = x->in ? rows : NULL;
    y.out = rows;
    mlx_call(x->state->core.base.unit, job, &y);
    for (size_t i = 0; x->out && y.status == SEGUE_OK && i < n; i++)
        sg_slot_encode(slot, SG_Q8_0, rows + i * width, (char *)x->out + i * bytes);
    sg_free(rows);
    return y.status;
}

static segue_status transfer(struct mlx_transfer *x, void (*job)(void *))
{
    int grows = sg_slot_grows(&x->slot->core.slot);
    if (grows && x->from == x->to) return SEGUE_OK;
    if (grows && x->storage == SG_Q8_0) return transfer_q8(x, job);
    mlx_call(x->state->core.base.unit, job, x);
    return x->status;
}

static segue_status write_slot(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct mlx_transfer x = {.state = s, .slot = mlx_slot_at(s, slot), .from = from, .to = to, .storage = storage, .in = in,
                         .err = err};
    return transfer(&x, do_put);
}

segue_status mlx_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, void *out,
                           segue_error *err)
{
    struct sg_core_slot *c = NULL;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &c, err));
    segue_status status = SEGUE_OK;
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_wait(&st->core, c, to);
    if (sg_slot_grows(&c->slot)) status = sg_state_core_check_get(&st->core, slot, from, to, c->first, c->end, err);
    pthread_mutex_unlock(&st->core.lock);
    if (status != SEGUE_OK) return status;
    struct mlx_transfer x = {.state = st, .slot = mlx_slot_at(st, slot), .from = from, .to = to, .storage = storage, .out = out,
                         .err = err};
    return transfer(&x, do_get);
}

/* --- marks and forks --- */

static segue_status undo_save(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (!sg_slot_grows(&mlx_slot_at(s, i)->core.slot))
            SG_TRY(share(mlx_slot_at(s, i)->array, &s->undo[(size_t)m->buffer * s->core.slots_n + i], err));
    return SEGUE_OK;
}

static segue_status undo_restore(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    s->version++;
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (!sg_slot_grows(&mlx_slot_at(s, i)->core.slot))
            SG_TRY(share(s->undo[(size_t)m->buffer * s->core.slots_n + i], &mlx_slot_at(s, i)->array, err));
    return SEGUE_OK;
}

static void undo_release(struct sg_state *s, uint32_t buffer)
{
    for (uint32_t i = 0; i < s->core.slots_n; i++) replace(&s->undo[(size_t)buffer * s->core.slots_n + i], NULL);
}

static segue_status clear(struct sg_state *s, segue_error *err)
{
    (void)err;
    s->version++;
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (!sg_slot_grows(&mlx_slot_at(s, i)->core.slot)) replace(&mlx_slot_at(s, i)->array, NULL);
    return SEGUE_OK;
}

static segue_status copy(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    for (uint32_t i = 0; i < from->core.slots_n; i++)
        SG_TRY(share(mlx_slot_at(from, i)->array, &mlx_slot_at(to, i)->array, err));
    return SEGUE_OK;
}

/* --- new and free --- */

/* Arrays are made by the first write. */
static segue_status state_init(struct sg_state *s, const struct sg_state_opts *o, segue_error *err)
{
    (void)o;
    uint32_t n = s->core.slots_n;
    s->undo = sg_alloc(((size_t)s->core.marks_cap * n + 1) * sizeof *s->undo);
    s->number = atomic_fetch_add(&s->core.base.unit->states, 1) + 1;
    return s->undo ? SEGUE_OK : sg_no_memory("mlx state", s->core.marks_cap * sizeof *s->undo, err);
}

static const struct sg_state_core_ops core_ops = {
    .unit = "mlx",
    .slot_size = sizeof(struct mlx_slot),
    .state_size = sizeof(struct sg_state),
    .fork_shares = 1,
    .init = state_init,
    .undo_save = undo_save,
    .undo_restore = undo_restore,
    .undo_release = undo_release,
    .clear = clear,
    .write = write_slot,
    .copy = copy,
};

segue_status mlx_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                           struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = u->type == MXC_F32 ? SG_F32 : u->type == MXC_BF16 ? SG_BF16 : SG_F16;
    return sg_state_core_new(&core_ops, u, slots, slots_n, o, storage, out, err);
}

void mlx_state_free(struct sg_state *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        replace(&mlx_slot_at(s, i)->array, NULL);
        replace(&mlx_slot_at(s, i)->next, NULL);
    }
    for (int i = 0; i < 2; i++) {
        mlx_issued_clear(s, &s->issued[i]);
        mlx_issued_free(&s->issued[i]);
    }
    sg_state_core_free(&s->core);
    sg_free(s->undo);
    sg_free(s);
}

/* Arrays that forks share count for each of them. */
uint64_t mlx_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->core.slots_n; i++) bytes += mxc_held_bytes(mlx_slot_at(s, i)->array);
    return bytes;
}
