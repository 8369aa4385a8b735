/* aneweights.c: replaces a weight of a program. Weights are constants of compiled programs, so a change needs a compile. With
 * option weights=delta the blob files are rewritten and the programs loaded again without a compile, but only after a probe has
 * shown on this device that the new weights take effect: sources disagree about it. LoRA adapters need neither (anelora.c).
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/tools/probe.h"

/* 1: rewritten blob files take effect without a compile. Runs the probe "reload" at the first call for a unit. */
static int reload_proven(struct sg_unit *u)
{
    struct sg_probe_answer answer;
    for (size_t i = 0; u->delta == ANE_DELTA_ASKED && i < sg_probe_count(); i++) {
        if (strcmp(sg_probe_name(i), "reload") != 0) continue;
        int answered = sg_probe_run(u->device, i, &answer, NULL) == SEGUE_OK;
        u->delta = answered && !strcmp(answer.verdict, "new weights take effect") ? ANE_DELTA_PROVEN : ANE_DELTA_REFUTED;
    }
    return u->delta == ANE_DELTA_PROVEN;
}

/* Reloads a part in all loaded shapes: they share the blob file. */
static segue_status reload(struct sg_program *p, uint32_t part, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p->base.unit->device);
    const struct sg_ane_blobs *b = &p->blobs[part];
    struct sg_ane_file file = {b->path, (const uint8_t *)b->file.data, b->file.len};
    for (uint32_t s = 0; s < ANE_SETS; s++)
        if (p->sets[s]) SG_TRY(ops->reload(p->sets[s]->programs[part], &file, 1, err));
    return SEGUE_OK;
}

/* EUNSUPPORTED: a host operation reads this tensor, and it reads it from the model file. side 0: before, 1: after the parts. */
static segue_status refuse_host_weights(const struct sg_program *p, uint32_t tensor, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t i = 0; i < (side ? p->cut[0].behind_n : p->cut[0].before_n); i++) {
            const struct sg_op *op = &g->ops[side ? p->cut[0].behind[i] : p->cut[0].before[i]];
            int32_t t = op->code == SG_OP_EMBED    ? op->u.embed.table.tensor
                        : op->code == SG_OP_LINEAR ? op->u.linear.weight.tensor
                        : op->code == SG_OP_NORM   ? op->u.norm.weight.tensor
                                                   : -1;
            if (t == (int32_t)tensor)
                return sg_fail(err, SEGUE_EUNSUPPORTED, "change weight: ane: %s: it is read on the host from the model file; "
                                                        "change the file and open the model again", g->tensors[tensor]->name);
        }
    return SEGUE_OK;
}

/* Patches the blob files. Loading the smallest shape first makes sure that every weight has a record in them. If a reload has
 * no effect, all shapes are unloaded and compiled again when they are needed. */
segue_status ane_weight_put(struct sg_program *p, uint32_t tensor, const float *in, segue_error *err)
{
    struct sg_ane_shape smallest;
    struct ane_set *set;
    if (tensor >= p->base.graph->tensors_n)
        return sg_fail(err, SEGUE_EARG, "change weight: ane: tensor %u of %u does not exist; use a smaller index", tensor,
                       p->base.graph->tensors_n);
    SG_TRY(refuse_host_weights(p, tensor, err));
    SG_TRY(ane_shape_of(p, 1, 1, 0, &smallest, err));
    SG_TRY(ane_set_of(p, &smallest, 0, &set, err));
    int proven = reload_proven(p->base.unit), changed = 0;
    for (uint32_t i = 0; i < p->cut[0].parts_n; i++) {
        uint32_t n;
        SG_TRY(sg_ane_blob_patch(&p->blobs[i], p->base.graph, tensor, in, &n, err));
        changed |= n != 0;
        if (n && proven) SG_TRY(reload(p, i, err));
    }
    if (changed && !proven) ane_sets_drop(p);
    return SEGUE_OK;
}
