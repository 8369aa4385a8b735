/* api_train.c: the functions of segue_train.h. They check their arguments, enter the unit and call src/train.
 * SPDX-License-Identifier: MIT */
#include "segue_train.h"

#include "base/err.h"

static segue_status not_built(const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EUNSUPPORTED, "%s: training: this build has no gradients yet; use a later version", what);
}

segue_status segue_trainer_open(segue_trainer **out, segue_model *model, segue_unit *unit, const segue_trainer_opts *opts,
                                segue_error *err)
{
    (void)opts;
    if (!out || !model || !unit) return sg_fail(err, SEGUE_EARG, "trainer not opened: an argument is NULL; pass all");
    return not_built("trainer not opened", err);
}

segue_status segue_trainer_info_get(const segue_trainer *trainer, segue_trainer_info *out, segue_error *err)
{
    (void)trainer, (void)out;
    return not_built("trainer info not read", err);
}

void segue_trainer_close(segue_trainer *trainer) { (void)trainer; }

segue_status segue_trainer_param_info(const segue_trainer *trainer, size_t i, segue_param_info *out, segue_error *err)
{
    (void)trainer, (void)i, (void)out;
    return not_built("parameter not read", err);
}

segue_status segue_trainer_param_get(const segue_trainer *trainer, size_t i, segue_param_field field, segue_param_order order,
                                     float *out, size_t n, segue_error *err)
{
    (void)trainer, (void)i, (void)field, (void)order, (void)out, (void)n;
    return not_built("parameter not read", err);
}

segue_status segue_trainer_param_put(segue_trainer *trainer, size_t i, segue_param_field field, segue_param_order order,
                                     const float *in, size_t n, segue_error *err)
{
    (void)trainer, (void)i, (void)field, (void)order, (void)in, (void)n;
    return not_built("parameter not set", err);
}

segue_status segue_trainer_steps_put(segue_trainer *trainer, uint64_t steps, segue_error *err)
{
    (void)trainer, (void)steps;
    return not_built("steps not set", err);
}

segue_status segue_trainer_randomize(segue_trainer *trainer, uint64_t seed, float deviation, segue_error *err)
{
    (void)trainer, (void)seed, (void)deviation;
    return not_built("parameters not set", err);
}

segue_status segue_trainer_run(segue_trainer *trainer, const segue_train_batch *batch, segue_train_result *out, segue_error *err)
{
    (void)trainer, (void)batch, (void)out;
    return not_built("micro-batch not run", err);
}

segue_status segue_trainer_update(segue_trainer *trainer, const segue_adamw *opts, segue_update_result *out, segue_error *err)
{
    (void)trainer, (void)opts, (void)out;
    return not_built("parameters not updated", err);
}

void segue_trainer_drop_gradients(segue_trainer *trainer) { (void)trainer; }
