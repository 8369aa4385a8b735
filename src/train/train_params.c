/* train_params.c: the list of parameters, their names, start values and orders.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/train.h"

double sg_train_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* --- names --- */

static void find_role(struct segue_trainer *t, struct sg_param *p)
{
    const struct segue_model *m = t->model;
    const char *prefix = !m->convention.gguf ? m->convention.prefix : m->family->learned_positions ? "transformer." : "model.";
    for (uint32_t layer = 0; layer <= m->numbers->layers && !p->row; layer++)
        for (uint32_t role = 0; role < SG_ROLE_N; role++) {
            const struct sg_bound *b = &m->weights[layer * SG_ROLE_N + role];
            if (p->tensor != b->weight && p->tensor != b->bias) continue;
            p->row = sg_tensor_find(m->family, (enum sg_role)role);
            p->bias = p->tensor == b->bias;
            p->minus_one = p->row && (p->row->fix & SG_FIX_MINUS_ONE) && !b->plus_one && !p->bias;
            p->info.layer = layer < m->numbers->layers ? (int32_t)layer : -1;
            break;
        }
    p->info.hf_name = p->info.tensor;
    if (!p->row || !p->row->hf) return;
    const char *hf = p->row->hf, *mark = strstr(hf, "%u"), *end = hf + strlen(hf);
    if (*hf == '/') hf++, prefix = "";
    size_t cut = (size_t)(end - hf);
    if (p->bias && cut > 7 && !strcmp(end - 7, ".weight")) cut -= 7;
    const char *tail = p->bias ? ".bias" : "";
    char *name = mark ? sg_arena_printf(&t->arena, "%s%.*s%d%.*s%s", prefix, (int)(mark - hf), hf, (int)p->info.layer,
                                        (int)(cut - (size_t)(mark + 2 - hf)), mark + 2, tail)
                      : sg_arena_printf(&t->arena, "%s%.*s%s", prefix, (int)cut, hf, tail);
    if (name) p->info.hf_name = name;
}

/* 1: the name without ".weight" ends with one of the comma-separated targets, at a dot. */
static int ends_with_target(const char *name, const char *targets)
{
    size_t len = strlen(name);
    if (len > 7 && !strcmp(name + len - 7, ".weight")) len -= 7;
    for (const char *at = targets; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n && n <= len && !strncmp(name + len - n, at, n) && (n == len || name[len - n - 1] == '.')) return 1;
        at += n;
    }
    return 0;
}

/* --- the list --- */

/* A host array for n numbers of `field`, to be filled and given to values_end; NULL: EMEMORY. In host memory it is the field. */
static float *values_begin(const struct segue_trainer *t, float *field, size_t n, segue_error *err)
{
    float *host = t->resident ? sg_alloc_unset(n * sizeof *host) : field;
    if (!host) (void)sg_no_memory("parameters", n * sizeof *host, err);
    return host;
}

static segue_status values_end(struct segue_trainer *t, float *field, float *host, size_t n, segue_error *err)
{
    if (!t->resident) return SEGUE_OK;
    segue_status status = sg_train_write(t, field, host, n, err);
    sg_free_aligned(host);
    return status;
}

static segue_status read_tensor(struct segue_trainer *t, const struct sg_tensor *x, float *field, segue_error *err)
{
    float *host = values_begin(t, field, (size_t)(x->rows * x->cols), err);
    if (!host) return SEGUE_EMEMORY;
    sg_tensor_read(x, host);
    return values_end(t, field, host, (size_t)(x->rows * x->cols), err);
}

static segue_status add_param(struct segue_trainer *t, uint32_t tensor, segue_param_part part, uint64_t rows, uint64_t cols,
                              segue_error *err)
{
    static const char *const endings[] = {"", ".lora_a", ".lora_b"};
    struct sg_param *p = &t->params[t->info.params_n];
    const struct sg_tensor *x = t->graph->tensors[tensor], *stored = sg_archive_find(t->model->archive, x->name);
    *p = (struct sg_param){.tensor = x, .n = (size_t)(rows * cols)};
    p->info = (segue_param_info){.size = sizeof p->info, .tensor = x->name, .part = part, .rows = rows, .cols = cols,
            .layer = -1};
    p->info.name = sg_arena_printf(&t->arena, "%s%s", x->name, endings[part]);
    find_role(t, p);
    p->info.matrix = rows > 1 && cols > 1 && !(p->row && (p->row->fix & SG_FIX_TAPS));
    p->info.dims = 2;
    p->info.shape[0] = rows, p->info.shape[1] = cols;
    if (part == SEGUE_PARAM_TENSOR && stored) {
        p->info.dims = stored->rank;
        for (uint32_t i = 0; i < 4; i++) p->info.shape[i] = (size_t)stored->shape[i];
    }
    for (int f = 0; f < 4; f++) {
        segue_status status = sg_train_new(t, p->n, "parameters", &p->field[f], err);
        if (status == SEGUE_OK) status = sg_train_zero(t, p->field[f], p->n, err);
        if (status == SEGUE_OK) continue;
        for (; f >= 0; f--) sg_train_delete(t, p->field[f]);
        return status;
    }
    t->info.params_n++;
    t->info.numbers += p->n;
    return p->info.name ? SEGUE_OK : sg_no_memory("names of parameters", 64, err);
}

/* Which LoRA pair a linear op gets: at most one per tensor. */
static segue_status add_pair(struct segue_trainer *t, const struct sg_op *op, const segue_trainer_opts *o, uint64_t *random,
                             segue_error *err)
{
    uint32_t i = (uint32_t)op->u.linear.weight.tensor;
    const struct sg_tensor *x = t->graph->tensors[i];
    struct sg_param probe = {.tensor = x, .info = {.tensor = x->name, .layer = -1}};
    if (t->tensors[i].pair >= 0) return SEGUE_OK;
    find_role(t, &probe);
    int wanted = o->lora_targets ? ends_with_target(x->name, o->lora_targets) || ends_with_target(probe.info.hf_name,
            o->lora_targets)
                                 : op->layer >= 0;
    if (!wanted) return SEGUE_OK;
    t->tensors[i].pair = (int32_t)t->info.params_n;
    SG_TRY(add_param(t, i, SEGUE_PARAM_LORA_A, t->info.lora_rank, x->cols, err));
    SG_TRY(add_param(t, i, SEGUE_PARAM_LORA_B, x->rows, t->info.lora_rank, err));
    struct sg_param *a = &t->params[t->tensors[i].pair];
    double bound = 1.0 / sqrt((double)x->cols);
    float *values = values_begin(t, a->field[0], a->n, err);
    if (!values) return SEGUE_EMEMORY;
    for (size_t k = 0; k < a->n; k++) values[k] = (float)(bound * (2 * sg_train_uniform(random) - 1));
    return values_end(t, a->field[0], values, a->n, err);
}

/* Tensors that an op multiplies with as a matrix are read in parts when they are frozen; all others become fp32 now. On a
 * resident unit all do. */
static segue_status add_frozen(struct segue_trainer *t, segue_error *err)
{
    uint8_t *large = sg_arena_alloc(&t->arena, t->graph->tensors_n);
    if (!large) return sg_no_memory("list of tensors", t->graph->tensors_n, err);
    for (uint32_t i = 0; i < t->graph->ops_n; i++) {
        const struct sg_op *op = &t->graph->ops[i];
        if (op->code == SG_OP_LINEAR) large[op->u.linear.weight.tensor] = 1;
        if (op->code == SG_OP_EXPERTS)
            large[op->u.experts.gate.tensor] = large[op->u.experts.up.tensor] = large[op->u.experts.down.tensor] = 1;
        if (op->code != SG_OP_EMBED) continue;
        large[op->u.embed.table.tensor] = 1;
        if (op->u.embed.positions.tensor >= 0) large[op->u.embed.positions.tensor] = 1;
    }
    for (uint32_t i = 0; i < t->graph->tensors_n; i++) {
        const struct sg_tensor *x = t->graph->tensors[i];
        if (large[i] && !t->resident) continue;
        SG_TRY(sg_train_new(t, (size_t)(x->rows * x->cols), "weights of the model", &t->tensors[i].frozen, err));
        SG_TRY(read_tensor(t, x, t->tensors[i].frozen, err));
    }
    return SEGUE_OK;
}

segue_status sg_train_params(struct segue_trainer *t, const segue_trainer_opts *o, segue_error *err)
{
    const struct sg_graph *g = t->graph;
    uint64_t random = o->seed;
    t->tensors = sg_arena_alloc(&t->arena, g->tensors_n * sizeof *t->tensors);
    t->params = sg_arena_alloc(&t->arena, (size_t)2 * g->tensors_n * sizeof *t->params);
    if (!t->tensors || !t->params) return sg_no_memory("parameters", g->tensors_n * sizeof *t->params, err);
    for (uint32_t i = 0; i < g->tensors_n; i++) t->tensors[i] = (struct sg_train_tensor){.param = -1, .pair = -1};
    if (o->kind == SEGUE_TRAIN_LORA) {
        for (uint32_t i = 0; i < g->ops_n; i++)
            if (g->ops[i].code == SG_OP_LINEAR) SG_TRY(add_pair(t, &g->ops[i], o, &random, err));
        if (!t->info.params_n)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                    "trainer not opened: %s: no linear layer has a name in \"%s\"; see segue inspect",
                           t->model->info.path, o->lora_targets ? o->lora_targets : "");
        return add_frozen(t, err);
    }
    for (uint32_t i = 0; i < g->tensors_n; i++) {
        const struct sg_tensor *x = g->tensors[i];
        t->tensors[i].param = (int32_t)t->info.params_n;
        SG_TRY(add_param(t, i, SEGUE_PARAM_TENSOR, x->rows, x->cols, err));
        SG_TRY(read_tensor(t, x, t->params[t->tensors[i].param].field[0], err));
    }
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_delta *d = &g->ops[i].u.delta;
        if (g->ops[i].code == SG_OP_DELTA && !d->decay_is_log) t->params[t->tensors[d->decay.tensor].param].log = 1;
    }
    return SEGUE_OK;
}

/* --- orders --- */

struct param_order { struct sg_perm rows, cols; int transposed; };

static struct param_order order_of(const struct segue_trainer *t, const struct sg_param *p, segue_param_order order)
{
    struct param_order o = {0};
    const struct sg_tensor *x = p->tensor;
    if (order == SEGUE_ORDER_FILE) o = (struct param_order){x->row_perm, x->col_perm, (int)x->transposed};
    if (order == SEGUE_ORDER_HF && p->row) {
        struct sg_perm rows, cols;
        if (sg_fix_perms(t->model->family, t->model->numbers, p->row, 0, &rows, &cols, NULL) == SEGUE_OK) {
            int vector = p->bias || !p->row->rows;
            o.rows = vector ? (struct sg_perm){0} : rows;
            o.cols = vector ? rows : cols;
            o.transposed = !p->bias && (p->row->fix & SG_FIX_CONV1D);
        }
    }
    if (p->info.part != SEGUE_PARAM_TENSOR) o.transposed = 0;
    if (p->info.part == SEGUE_PARAM_LORA_A) o.rows = (struct sg_perm){0};
    if (p->info.part == SEGUE_PARAM_LORA_B) o.cols = (struct sg_perm){0};
    return o;
}

static size_t ordered(const struct param_order *o, const struct sg_param *p, size_t r, size_t c)
{
    size_t row = o->rows.a ? (size_t)sg_perm_stored(&o->rows, r) : r, col = o->cols.a ? (size_t)sg_perm_stored(&o->cols, c) : c;
    return o->transposed ? col * p->info.rows + row : row * p->info.cols + col;
}

segue_status sg_train_get(const struct segue_trainer *t, size_t i, segue_param_field field, segue_param_order order, float *out,
                          segue_error *err)
{
    const struct sg_param *p = &t->params[i];
    const float *from = p->field[field];
    float *copy = NULL;
    if (t->resident) {
        from = copy = sg_alloc_unset(p->n * sizeof *copy);
        if (!copy) return sg_no_memory("a parameter", p->n * sizeof *copy, err);
        segue_status status = sg_train_read(t, copy, p->field[field], p->n, err);
        if (status != SEGUE_OK) {
            sg_free_aligned(copy);
            return status;
        }
    }
    struct param_order o = order_of(t, p, order);
    int value = order == SEGUE_ORDER_HF && field == SEGUE_PARAM_VALUE && p->info.part == SEGUE_PARAM_TENSOR;
    for (size_t r = 0; r < p->info.rows; r++)
        for (size_t c = 0; c < p->info.cols; c++) {
            float x = from[r * p->info.cols + c];
            if (value && p->minus_one) x -= 1;
            if (value && p->log) x = logf(-x);
            out[ordered(&o, p, r, c)] = x;
        }
    sg_free_aligned(copy);
    return SEGUE_OK;
}

segue_status sg_train_put_field(struct segue_trainer *t, size_t i, segue_param_field field, segue_param_order order,
                                const float *in, segue_error *err)
{
    struct sg_param *p = &t->params[i];
    if (order == SEGUE_ORDER_HF)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "parameter not set: %s: not in the order of Hugging Face; use another",
                p->info.name);
    struct param_order o = order_of(t, p, order);
    t->version++;
    float *to = values_begin(t, p->field[field], p->n, err);
    if (!to) return SEGUE_EMEMORY;
    for (size_t r = 0; r < p->info.rows; r++)
        for (size_t c = 0; c < p->info.cols; c++) to[r * p->info.cols + c] = in[ordered(&o, p, r, c)];
    return values_end(t, p->field[field], to, p->n, err);
}

/* --- random start --- */

static segue_status fill(struct segue_trainer *t, const struct sg_weight *w, float value, segue_error *err)
{
    if (w->tensor < 0) return SEGUE_OK;
    struct sg_param *p = &t->params[t->tensors[w->tensor].param];
    float *to = values_begin(t, p->field[0], p->n, err);
    if (!to) return SEGUE_EMEMORY;
    for (size_t i = 0; i < p->n; i++) to[i] = value;
    return values_end(t, p->field[0], to, p->n, err);
}

static segue_status fill_normal(struct segue_trainer *t, const struct sg_weight *w, uint64_t *random, double deviation,
                                segue_error *err)
{
    if (w->tensor < 0) return SEGUE_OK;
    struct sg_param *p = &t->params[t->tensors[w->tensor].param];
    float *to = values_begin(t, p->field[0], p->n, err);
    if (!to) return SEGUE_EMEMORY;
    for (size_t i = 0; i < p->n; i++)
        to[i] = (float)(deviation * sqrt(-2 * log(1 - sg_train_uniform(random))) *
                        cos(6.283185307179586 * sg_train_uniform(random)));
    return values_end(t, p->field[0], to, p->n, err);
}

segue_status sg_train_random(struct segue_trainer *t, uint64_t seed, float deviation, segue_error *err)
{
    uint64_t random = seed;
    double sigma = deviation > 0 ? (double)deviation : 0.02, residual = sigma / sqrt(2.0 * t->graph->layers);
    if (t->info.kind == SEGUE_TRAIN_LORA)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "parameters not set: a LoRA adapter has no random start; train all weights");
    for (uint32_t i = 0; i < t->graph->ops_n; i++) {
        const struct sg_op *op = &t->graph->ops[i];
        if (op->code == SG_OP_EMBED) {
            SG_TRY(fill_normal(t, &op->u.embed.table, &random, sigma, err));
            SG_TRY(fill_normal(t, &op->u.embed.positions, &random, sigma, err));
        } else if (op->code == SG_OP_LINEAR) {
            SG_TRY(fill_normal(t, &op->u.linear.weight, &random, op->in[1].value >= 0 ? residual : sigma, err));
            SG_TRY(fill(t, &op->u.linear.bias, 0, err));
        } else if (op->code == SG_OP_EXPERTS) {
            SG_TRY(fill_normal(t, &op->u.experts.gate, &random, sigma, err));
            SG_TRY(fill_normal(t, &op->u.experts.up, &random, sigma, err));
            SG_TRY(fill_normal(t, &op->u.experts.down, &random, residual, err));
        } else if (op->code == SG_OP_ROUTE) {
            SG_TRY(fill(t, &op->u.route.bias, 0, err));
        } else if (op->code == SG_OP_NORM) {
            SG_TRY(fill(t, &op->u.norm.weight, op->u.norm.plus_one ? 0 : 1, err));
            SG_TRY(fill(t, &op->u.norm.bias, 0, err));
        } else if (op->code == SG_OP_CONV) {
            SG_TRY(fill_normal(t, &op->u.conv.weight, &random, 1.0 / sqrt(op->u.conv.taps), err));
            SG_TRY(fill(t, &op->u.conv.bias, 0, err));
        }
    }
    for (size_t i = 0; i < t->info.params_n; i++)
        for (int f = 1; f < 4; f++) SG_TRY(sg_train_zero(t, t->params[i].field[f], t->params[i].n, err));
    t->info.steps = t->labelled = 0;
    t->version++;
    return SEGUE_OK;
}
