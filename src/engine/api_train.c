/* api_train.c: the functions of segue_train.h. They check their arguments, wait for the unit and call src/train.
 * SPDX-License-Identifier: MIT */
#include "segue_train.h"

#include "engine/placement/units.h"
#include "engine/sized.h"
#include "engine/statefile/statefile.h"
#include "train/train.h"

/* The handle: the trainer and its units; host NULL: none. */
struct train_handle {
    struct segue_trainer *trainer;
    struct segue_unit *unit, *host;
};

static struct train_handle *handle(const segue_trainer *t) { return (struct train_handle *)(uintptr_t)t; }

static segue_status refuse(const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EARG, "%s: an argument is NULL or out of range; see segue_train.h", what);
}

segue_status segue_trainer_open(segue_trainer **out, segue_model *model, segue_unit *unit, const segue_trainer_opts *opts,
                                segue_error *err)
{
    segue_trainer_opts o;
    if (!out || !model || !unit) return refuse("trainer not opened", err);
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "trainer options", err));
    struct train_handle *h = sg_alloc(sizeof *h);
    if (!h) return sg_no_memory("trainer", sizeof *h, err);
    segue_status status = sg_train_open(&h->trainer, model, unit->unit, o.host ? o.host->unit : NULL, unit->desc.info.spec, &o,
                                        err);
    if (status != SEGUE_OK) {
        sg_free(h);
        return status;
    }
    h->unit = sg_unit_share(unit);
    if (o.host) h->host = sg_unit_share(o.host);
    *out = (segue_trainer *)(void *)h;
    return SEGUE_OK;
}

/* A lane of each unit. */
static segue_status enter(const struct train_handle *h, segue_error *err)
{
    SG_TRY(sg_unit_enter(h->unit, NULL, err));
    segue_status status = h->host ? sg_unit_enter(h->host, NULL, err) : SEGUE_OK;
    if (status != SEGUE_OK) sg_unit_leave(h->unit);
    return status;
}

static void leave(const struct train_handle *h)
{
    if (h->host) sg_unit_leave(h->host);
    sg_unit_leave(h->unit);
}

segue_status segue_trainer_info_get(const segue_trainer *trainer, segue_trainer_info *out, segue_error *err)
{
    if (!trainer) return refuse("trainer info not read", err);
    return sg_sized_out(out, &handle(trainer)->trainer->info, sizeof(segue_trainer_info), "trainer info", err);
}

segue_status segue_trainer_roof(segue_trainer *trainer, double *flops_per_s, segue_error *err)
{
    if (!trainer || !flops_per_s) return refuse("roof not measured", err);
    SG_TRY(enter(handle(trainer), err));
    segue_status status = sg_train_roof(handle(trainer)->trainer, flops_per_s, err);
    leave(handle(trainer));
    return status;
}

void segue_trainer_close(segue_trainer *trainer)
{
    if (!trainer) return;
    sg_train_close(handle(trainer)->trainer);
    segue_unit_close(handle(trainer)->unit);
    segue_unit_close(handle(trainer)->host);
    sg_free(handle(trainer));
}

segue_status segue_trainer_param_info(const segue_trainer *trainer, size_t i, segue_param_info *out, segue_error *err)
{
    if (!trainer || i >= handle(trainer)->trainer->info.params_n) return refuse("parameter not read", err);
    return sg_sized_out(out, &handle(trainer)->trainer->params[i].info, sizeof(segue_param_info), "parameter info", err);
}

static int valid(const segue_trainer *t, size_t i, segue_param_field field, segue_param_order order, const float *data, size_t n)
{
    return t && data && i < handle(t)->trainer->info.params_n && (unsigned)field <= SEGUE_PARAM_MOMENT2 &&
           (unsigned)order <= SEGUE_ORDER_HF && n == handle(t)->trainer->params[i].n;
}

segue_status segue_trainer_param_get(const segue_trainer *trainer, size_t i, segue_param_field field, segue_param_order order,
                                     float *out, size_t n, segue_error *err)
{
    if (!valid(trainer, i, field, order, out, n)) return refuse("parameter not read", err);
    return sg_train_get(handle(trainer)->trainer, i, field, order, out, err);
}

segue_status segue_trainer_param_put(segue_trainer *trainer, size_t i, segue_param_field field, segue_param_order order,
                                     const float *in, size_t n, segue_error *err)
{
    if (!valid(trainer, i, field, order, in, n)) return refuse("parameter not set", err);
    return sg_train_put_field(handle(trainer)->trainer, i, field, order, in, err);
}

segue_status segue_trainer_save(const segue_trainer *trainer, const char *path, const char *run, segue_error *err)
{
    if (!trainer || !path || !*path) return refuse("state not saved", err);
    const struct train_handle *h = handle(trainer);
    return sg_trainstate_save(h->trainer, h->unit->desc.info.spec, run, path, err);
}

segue_status segue_trainer_load(segue_trainer *trainer, const char *path, const char *run, segue_error *err)
{
    if (!trainer || !path || !*path) return refuse("state not loaded", err);
    return sg_trainstate_load(handle(trainer)->trainer, run, path, err);
}

segue_status segue_trainer_randomize(segue_trainer *trainer, uint64_t seed, float deviation, segue_error *err)
{
    if (!trainer) return refuse("parameters not set", err);
    return sg_train_random(handle(trainer)->trainer, seed, deviation, err);
}

segue_status segue_trainer_run(segue_trainer *trainer, const segue_train_batch *batch, segue_train_result *out, segue_error *err)
{
    segue_train_batch b;
    segue_train_result result;
    if (!trainer || !batch || !out) return refuse("micro-batch not run", err);
    SG_TRY(sg_sized_in(&b, sizeof b, batch, "micro-batch", err));
    segue_train_policy policy;
    if (b.policy) {
        SG_TRY(sg_sized_in(&policy, sizeof policy, b.policy, "policy", err));
        b.policy = &policy;
    }
    SG_TRY(enter(handle(trainer), err));
    segue_status status = sg_train_run(handle(trainer)->trainer, &b, &result, err);
    leave(handle(trainer));
    SG_TRY(status);
    return sg_sized_out(out, &result, sizeof result, "result of a micro-batch", err);
}

segue_status segue_trainer_interval_get(const segue_trainer *trainer, size_t i, segue_train_interval *out, segue_error *err)
{
    if (!trainer || !out) return refuse("interval not read", err);
    const struct segue_trainer *t = handle(trainer)->trainer;
    if (i >= t->intervals_n) return SEGUE_END;
    return sg_sized_out(out, &t->intervals[i], sizeof t->intervals[i], "interval", err);
}

segue_status segue_trainer_update(segue_trainer *trainer, const segue_adamw *opts, segue_update_result *out, segue_error *err)
{
    segue_adamw o;
    segue_update_result result;
    if (!trainer || !opts || !out) return refuse("parameters not updated", err);
    SG_TRY(sg_sized_in(&o, sizeof o, opts, "options of AdamW", err));
    SG_TRY(enter(handle(trainer), err));
    segue_status status = sg_train_update(handle(trainer)->trainer, &o, &result, err);
    leave(handle(trainer));
    SG_TRY(status);
    return sg_sized_out(out, &result, sizeof result, "result of an update", err);
}

segue_status segue_trainer_adapter(segue_adapter **out, const segue_trainer *trainer, float scale, segue_error *err)
{
    if (!out || !trainer) return refuse("adapter not made", err);
    return sg_train_adapter(out, handle(trainer)->trainer, scale, err);
}

void segue_trainer_drop_gradients(segue_trainer *trainer)
{
    if (trainer) sg_train_drop(handle(trainer)->trainer);
}
