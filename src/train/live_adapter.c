/* live_adapter.c: the adapter of a trainer as an adapter of the model, for sessions that run beside the training.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "model/adapter.h"
#include "train/train.h"

segue_status sg_train_adapter(struct segue_adapter **out, const struct segue_trainer *t, float scale, segue_error *err)
{
    if (t->info.kind != SEGUE_TRAIN_LORA)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "adapter not made: the trainer has all weights; open it with SEGUE_TRAIN_LORA");
    if (!isfinite(scale)) return sg_fail(err, SEGUE_EARG, "adapter not made: the scale is not finite; pass 1");
    uint32_t n = (uint32_t)(t->info.params_n / 2), made = 0;
    struct sg_lora_pair *pairs = sg_alloc((n + 1) * sizeof *pairs);
    float **host = sg_alloc((t->info.params_n + 1) * sizeof *host);
    segue_status status = pairs && host ? SEGUE_OK : sg_no_memory("adapter", (n + 1) * sizeof *pairs, err);
    for (uint32_t i = 0; i < t->graph->tensors_n && status == SEGUE_OK; i++) {
        int32_t at = t->tensors[i].pair;
        if (at < 0) continue;
        for (int k = 0; k < 2 && status == SEGUE_OK; k++) {
            const struct sg_param *x = &t->params[at + k];
            float *copy = host[2 * made + (uint32_t)k] = sg_alloc_unset(x->n * sizeof *copy);
            status = copy ? sg_train_read(t, copy, x->field[SEGUE_PARAM_VALUE], x->n, err)
                          : sg_no_memory("adapter", x->n * sizeof *copy, err);
        }
        pairs[made] = (struct sg_lora_pair){.tensor = t->graph->tensors[i], .rank = t->info.lora_rank, .a = host[2 * made],
                                            .b = host[2 * made + 1]};
        made++;
    }
    if (status == SEGUE_OK) status = sg_adapter_make(out, t->model, "trainer", pairs, made, scale * t->info.lora_scale, err);
    for (size_t i = 0; host && i < t->info.params_n; i++) sg_free_aligned(host[i]);
    sg_free(host);
    sg_free(pairs);
    return status;
}
