/* mlx_transfer.c: moves a state from one unit of MLX to another. Arrays of MLX belong to no device where memory is unified, so
 * the same arrays are passed on and nothing is copied.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

struct settling {
    struct sg_state *state;
    segue_status status;
    segue_error *err;
};

/* Arrays that are computed need no stream, and so no thread, any more. */
static void settle(void *arg)
{
    struct settling *s = arg;
    struct sg_unit *u = s->state->core.base.unit;
    for (uint32_t i = 0; i < s->state->core.slots_n; i++)
        if (mlx_slot_at(s->state, i)->array) (void)mxc_wait(u->tape, mlx_slot_at(s->state, i)->array);
    s->status = mlx_status(u, "transfer state", s->err);
    mxc_tape_clear(u->tape);
}

static segue_status settled(struct sg_state *state, segue_error *err)
{
    struct settling s = {.state = state, .err = err};
    for (int i = 0; i < 2; i++) mlx_issued_clear(state, &state->issued[i]);
    state->version++;
    mlx_call(state->core.base.unit, settle, &s);
    return s.status;
}

/* The slots are exchanged, so that each state still frees what it holds. */
segue_status mlx_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    SG_TRY(sg_state_core_check_transfer(to, from, err));
    SG_TRY(settled(from, err));
    SG_TRY(settled(to, err));
    void *slots = to->core.slots;
    uint64_t tokens = to->core.tokens;
    to->core.slots = from->core.slots;
    to->core.tokens = from->core.tokens;
    from->core.slots = slots;
    from->core.tokens = tokens;
    return SEGUE_OK;
}
