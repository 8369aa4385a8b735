/* mlx_memory.c: memory of MLX in which states of other units keep their slots, where the host shares it. At a hand-off the same
 * bytes become the contents of a slot here: an array that is a view of them.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

struct mlx_memory {
    struct mxc_memory *memory;
    char *address;
    size_t bytes;
    struct mlx_memory *next;
};

/* --- allocation, any thread --- */

static void *take(void *owner, size_t bytes)
{
    struct sg_unit *u = owner;
    void *address = NULL;
    struct mlx_memory *m = sg_alloc(sizeof *m);
    if (m) m->memory = mxc_memory_new(bytes, &address);
    if (!m || !m->memory) {
        sg_free(m);
        return NULL;
    }
    m->address = address;
    m->bytes = bytes;
    pthread_mutex_lock(&u->host_lock);
    m->next = u->memory;
    u->memory = m;
    pthread_mutex_unlock(&u->host_lock);
    return address;
}

/* The bytes stay as long as an array is a view of them. */
static void leave(void *owner, void *p)
{
    struct sg_unit *u = owner;
    pthread_mutex_lock(&u->host_lock);
    struct mlx_memory **at = &u->memory;
    while (*at && (*at)->address != p) at = &(*at)->next;
    struct mlx_memory *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&u->host_lock);
    if (m) mxc_memory_free(m->memory);
    sg_free(m);
}

void mlx_memory_open(struct sg_unit *u)
{
    u->host = (struct sg_host_memory){.owner = u, .take = take, .leave = leave, .attachable = 1};
    pthread_mutex_init(&u->host_lock, NULL);
}

void mlx_memory_close(struct sg_unit *u) { pthread_mutex_destroy(&u->host_lock); }

const struct sg_host_memory *mlx_memory_host(struct sg_unit *u) { return mxc_unified(u->device) ? &u->host : NULL; }

/* --- attaching --- */

struct attaching {
    struct sg_state *state;
    struct mlx_slot *slot;
    const char *at;
    uint64_t tokens;                 /* of K, V */
    int found;
    segue_status status;
    segue_error *err;
};

/* The array that a slot has for the bytes: of K and V [1, heads, tokens, width], of DELTA with key and value exchanged. */
static mxc_ref view_of(const struct attaching *a, const struct mxc_memory *m, size_t offset)
{
    static const int swap_matrix[4] = {0, 1, 3, 2}, swap_rows[4] = {0, 2, 1, 3};
    struct mxc_tape *t = a->state->core.base.unit->tape;
    const struct sg_slot *slot = &a->slot->core.slot;
    uint32_t conv[2] = {slot->heads, slot->width}, delta[4] = {1, slot->heads, slot->depth, slot->width};
    uint32_t rows[4] = {1, (uint32_t)a->tokens, slot->heads, slot->width};
    if (sg_slot_grows(slot))
        return mxc_transpose(t, mxc_of_memory(t, m, offset, mlx_type_of(a->state->core.storage), rows, 4), swap_rows, 4);
    if (slot->kind == SG_SLOT_CONV) return mxc_of_memory(t, m, offset, MXC_F32, conv, 2);
    return mxc_transpose(t, mxc_of_memory(t, m, offset, MXC_F32, delta, 4), swap_matrix, 4);
}

static void attach_on_owner(void *arg)
{
    struct attaching *a = arg;
    struct sg_unit *u = a->state->core.base.unit;
    const struct sg_core_slot *core = &a->slot->core;
    size_t bytes = core->fixed_bytes ? core->fixed_bytes : a->tokens * core->row_bytes;
    pthread_mutex_lock(&u->host_lock);
    const struct mlx_memory *m = u->memory;
    while (m && !(a->at >= m->address && a->at + bytes <= m->address + m->bytes)) m = m->next;
    a->found = m != NULL;
    mxc_ref y = m ? view_of(a, m->memory, (size_t)(a->at - m->address)) : MXC_NONE;
    pthread_mutex_unlock(&u->host_lock);
    if (!a->found) return;
    (void)mxc_eval(u->tape, &y, 1);
    struct mxc_held *held = mxc_keep(u->tape, y);
    if (held) {
        mxc_release(a->slot->array);
        a->slot->array = held;
    }
    a->state->version++;
    a->status = mlx_status(u, "attach state", a->err);
    mxc_tape_clear(u->tape);
}

/* K and V from their first position on, in an empty slot: its array begins with position 0. MLX's own order is by head; the first
 * step that appends to the rows writes them so, as it does whenever K and V grow. */
segue_status mlx_state_attach(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              const void *at, segue_error *err)
{
    struct sg_core_slot *core = NULL;
    SG_TRY(sg_state_core_check_idle(&s->core, err));
    SG_TRY(sg_state_core_slot(&s->core, slot, storage, "attach", &core, err));
    int grows = sg_slot_grows(&core->slot);
    int fits = !grows || (!from && !core->end && storage == s->core.storage && storage != SG_Q8_0);
    struct attaching a = {.state = s, .slot = mlx_slot_at(s, slot), .at = at, .tokens = to, .err = err};
    if (fits) mlx_call(s->core.base.unit, attach_on_owner, &a);
    if (!a.found)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "attach state: mlx: slot %u: other memory, another storage, or a slot that is not empty; use put", slot);
    if (a.status != SEGUE_OK) return a.status;
    core->present = !grows;
    if (grows) core->end = to;
    return SEGUE_OK;
}
