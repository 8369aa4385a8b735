/* trainer.c: opening a trainer: the graph, which values need gradients, tables of angles, sizes.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "train/train.h"

enum { SEQUENCE_TOKENS = 1024, RANK_MAX = 4096 };

/* The ops that have no gradient are refused by name. */
static segue_status check_ops(struct segue_trainer *t, segue_error *err)
{
    uint32_t selects = 0;
    for (uint32_t i = 0; i < t->graph->ops_n; i++) {
        const struct sg_op *op = &t->graph->ops[i];
        if (op->code == SG_OP_JOIN)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "trainer not opened: %s: %s of layer %d has no gradient; use another model",
                           t->model->info.path, sg_op_name(op->code), (int)op->layer);
        if (op->code == SG_OP_ROWS) selects++, t->rows_op = i;
    }
    int32_t logits = sg_graph_output(t->graph, "logits");
    if (selects != 1 || logits < 0)
        return sg_fail(err, SEGUE_EINTERNAL, "trainer not opened: the graph has %u ops `rows`; report this", selects);
    t->logits = t->graph->outputs[logits].value;
    return SEGUE_OK;
}

static segue_status check_resident(const struct segue_trainer *t, segue_error *err)
{
    segue_error why = {0};
    for (uint32_t i = 0; i < t->graph->ops_n; i++) {
        const struct sg_op *op = &t->graph->ops[i];
        if (op->code == SG_OP_ROWS) continue;
        segue_status status = sg_resident_ops(t->resident)->can(t->resident, t->graph, op, &why);
        if (status != SEGUE_OK) return sg_fail(err, status, "trainer not opened: %s", why.text);
    }
    return SEGUE_OK;
}

static int trained(const struct segue_trainer *t, const struct sg_weight *w)
{
    return w->tensor >= 0 && (t->tensors[w->tensor].param >= 0 || t->tensors[w->tensor].pair >= 0);
}

static segue_status find_needs(struct segue_trainer *t, segue_error *err)
{
    const struct sg_graph *g = t->graph;
    t->needs = sg_arena_alloc(&t->arena, g->values_n);
    t->last_segment = sg_arena_alloc(&t->arena, g->values_n * sizeof *t->last_segment);
    if (!t->needs || !t->last_segment) return sg_no_memory("lists of values", g->values_n * 5, err);
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        int need = t->info.kind == SEGUE_TRAIN_FULL || (op->code == SG_OP_LINEAR && trained(t, &op->u.linear.weight));
        for (int k = 0; k < SG_OP_INPUTS; k++) {
            if (op->in[k].value < 0) continue;
            need |= t->needs[op->in[k].value];
            t->last_segment[op->in[k].value] = i;
        }
        t->needs[op->out] = (uint8_t)need;
        t->last_segment[op->out] = i;
    }
    return SEGUE_OK;
}

segue_status sg_train_angles(struct segue_trainer *t, segue_error *err)
{
    const struct sg_graph *g = t->graph;
    size_t n = t->info.sequence_tokens;
    t->angles = sg_arena_alloc(&t->arena, (g->ropes_n + 1) * sizeof *t->angles);
    for (uint32_t r = 0; t->angles && r < g->ropes_n; r++) {
        const struct sg_rope_table *table = &g->ropes[r];
        float *a = t->angles[r] = sg_arena_alloc(&t->arena, 2 * n * table->pairs * sizeof *a);
        if (!a) return sg_no_memory("angles", 2 * n * table->pairs * sizeof *a, err);
        for (size_t i = 0; i < n * table->pairs; i++) {
            double angle = (double)(i / table->pairs) * (double)table->inverse[i % table->pairs];
            a[i] = (float)(cos(angle) * (double)table->mscale);
            a[n * table->pairs + i] = (float)(sin(angle) * (double)table->mscale);
        }
        if (!t->resident) continue;
        t->angles[r] = NULL;
        SG_TRY(sg_train_new(t, 2 * n * table->pairs, "angles", &t->angles[r], err));
        SG_TRY(sg_train_write(t, t->angles[r], a, 2 * n * table->pairs, err));
    }
    return t->angles ? SEGUE_OK : sg_no_memory("angles", 8, err);
}

static segue_status set_sizes(struct segue_trainer *t, const segue_trainer_opts *o, segue_error *err)
{
    const segue_model_info *m = &t->model->info;
    size_t positions = SIZE_MAX;
    for (uint32_t i = 0; i < t->graph->ops_n; i++)
        if (t->graph->ops[i].code == SG_OP_EMBED && t->graph->ops[i].u.embed.positions.tensor >= 0)
            positions = t->graph->ops[i].u.embed.positions.rows;
    t->info = (segue_trainer_info){.size = sizeof t->info, .kind = o->kind, .layers = m->layers, .width = m->width,
                                   .vocab = t->graph->vocab, .recompute = o->recompute};
    t->info.sequence_tokens = o->sequence_tokens ? o->sequence_tokens
                              : m->context && m->context < SEQUENCE_TOKENS ? m->context : SEQUENCE_TOKENS;
    t->info.batch_tokens = o->batch_tokens ? o->batch_tokens : t->info.sequence_tokens;
    if (t->info.sequence_tokens > positions)
        return sg_fail(err, SEGUE_ELIMIT, "trainer not opened: sequence_tokens %zu: the model has %zu positions; use fewer",
                       t->info.sequence_tokens, positions);
    if (o->kind != SEGUE_TRAIN_LORA) return SEGUE_OK;
    t->info.lora_rank = o->lora_rank ? o->lora_rank : 8;
    t->info.lora_scale = o->lora_alpha > 0 ? o->lora_alpha / (float)t->info.lora_rank : 2;
    return SEGUE_OK;
}

segue_status sg_train_scratch(struct segue_trainer *t, segue_error *err)
{
    size_t n = t->math.threads * t->math.scratch_n;
    t->math.scratch = n ? sg_alloc_aligned(n * sizeof *t->math.scratch) : NULL;
    return n && !t->math.scratch ? sg_no_memory("scratch of products", n * sizeof *t->math.scratch, err) : SEGUE_OK;
}

/* A resident unit; or loops and products of one unit; where that computes products with weights only, the loops of the host. */
static segue_status open_units(struct segue_trainer *t, struct sg_unit *unit, struct sg_unit *host, const char *spec,
                               segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(unit);
    struct sg_unit *loops = ops->train_math ? unit : host;
    if (ops->train_resident) return ops->train_resident(unit, &t->resident, err);
    if (!ops->train_math && !ops->train_device)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "trainer not opened: unit %s cannot train; use ref, cpu, ane or one GPU of cuda",
                       spec);
    if (!loops || !sg_ops_of(loops)->train_math)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "trainer not opened: unit %s computes the products of training only; give cpu or "
                       "ref as host unit for the rest", spec);
    sg_ops_of(loops)->train_math(loops, &t->math);
    return sg_train_scratch(t, err);
}

static segue_status open_all(struct segue_trainer *t, struct sg_unit *unit, struct sg_unit *host, const char *spec,
                             const segue_trainer_opts *o, segue_error *err)
{
    struct sg_graph_request request = {.head = 1, .select_late = 1};
    if ((unsigned)o->kind > SEGUE_TRAIN_LORA || o->lora_rank > RANK_MAX || o->sequence_tokens > INT32_MAX ||
            o->batch_tokens > INT32_MAX)
        return sg_fail(err, SEGUE_EARG, "trainer not opened: an option is out of range (lora_rank at most %d)", RANK_MAX);
    SG_TRY(open_units(t, unit, host, spec, err));
    SG_TRY(sg_model_graph(t->model, &request, &t->graph, err));
    SG_TRY(check_ops(t, err));
    if (t->resident) SG_TRY(check_resident(t, err));
    SG_TRY(set_sizes(t, o, err));
    SG_TRY(sg_train_params(t, o, err));
    SG_TRY(find_needs(t, err));
    SG_TRY(sg_train_angles(t, err));
    if (!t->resident && t->math.unit != unit)
        SG_TRY(sg_ops_of(unit)->train_device(unit, (uint32_t)t->info.batch_tokens, &t->device, err));
    if (t->device) SG_TRY(sg_train_groups(t, err));
    sg_train_figures(t);
    return SEGUE_OK;
}

segue_status sg_train_open(struct segue_trainer **out, struct segue_model *model, struct sg_unit *unit, struct sg_unit *host,
                           const char *spec, const segue_trainer_opts *o, segue_error *err)
{
    struct segue_trainer *t = sg_alloc(sizeof *t);
    if (!t) return sg_no_memory("trainer", sizeof *t, err);
    t->model = sg_model_ref(model);
    segue_status status = open_all(t, unit, host, spec, o, err);
    if (status == SEGUE_OK) *out = t;
    else sg_train_close(t);
    return status;
}

void sg_train_free_numbers(struct segue_trainer *t)
{
    for (size_t i = 0; i < t->info.params_n; i++)
        for (int f = 0; f < 4; f++) sg_train_delete(t, t->params[i].field[f]);
    for (uint32_t i = 0; t->tensors && i < t->graph->tensors_n; i++) sg_train_delete(t, t->tensors[i].frozen);
    for (uint32_t r = 0; t->resident && t->angles && r < t->graph->ropes_n; r++) sg_train_delete(t, t->angles[r]);
    sg_train_free_blocks(t);
    if (t->resident) sg_resident_ops(t->resident)->close(t->resident);
    t->resident = NULL;
}

void sg_train_close(struct segue_trainer *t)
{
    sg_train_free_numbers(t);
    sg_free_aligned(t->math.scratch);
    if (t->device) sg_train_device_ops_of(t->device)->close(t->device);
    sg_graph_free(t->graph);
    sg_model_unref(t->model);
    sg_arena_free(&t->arena);
    sg_free(t);
}
