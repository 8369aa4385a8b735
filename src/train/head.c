/* head.c: the ops after `rows` and the loss, on some labelled rows at a time, so that no [tokens, vocabulary] matrix is kept. The
 * backward pass of the head follows directly, because the gradient of the summed loss needs no later value.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "train/train.h"

/* A resident unit needs more rows to be busy. */
enum { HEAD_NUMBERS = 1 << 25, HEAD_ROWS_MIN = 16, HEAD_ROWS_MAX = 512, RESIDENT_NUMBERS = 1 << 27, RESIDENT_ROWS_MAX = 2048,
       BF16_NUMBERS = 1 << 29, BF16_ROWS_MAX = 8192 };

uint32_t sg_train_head_rows(const struct segue_trainer *t)
{
    uint32_t vocab = t->graph->vocab ? t->graph->vocab : 1, max = t->resident ? RESIDENT_ROWS_MAX : HEAD_ROWS_MAX;
    uint32_t rows = (t->resident ? RESIDENT_NUMBERS : HEAD_NUMBERS) / vocab;
    if (t->resident && sg_resident_value_bytes(t->resident) == 2) rows = BF16_NUMBERS / vocab, max = BF16_ROWS_MAX;
    return rows < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : rows > max ? max : rows;
}

/* What one row adds. */
struct row_loss { double loss, kl; uint32_t clipped; };

struct loss_work {
    const struct sg_train_pass *p;
    const uint32_t *rows;            /* labelled rows of this part */
    float *logits;                   /* without dlogits they are overwritten */
    float *dlogits;                  /* NULL: loss only */
    struct row_loss *out;            /* per row */
    uint32_t vocab;
};

/* The loss of a policy at row t, whose label has this log-probability. Returns -dloss/dlogprob. */
static double policy_loss(const segue_train_policy *y, uint32_t t, double logprob, struct row_loss *out)
{
    double a = y->advantages[t], w = y->weights[t], clip = y->clip > 0 ? (double)y->clip : 0.2;
    double ratio = exp(logprob - y->old_logprobs[t]), bounded = fmin(fmax(ratio, 1 - clip), 1 + clip), q = 0;
    out->clipped = ratio * a > bounded * a;
    if (y->ref_logprobs && y->kl > 0) q = y->ref_logprobs[t] - logprob;
    out->kl = exp(q) - q - 1;
    out->loss = w * ((double)y->kl * out->kl - fmin(ratio * a, bounded * a));
    return w * ((out->clipped ? 0 : ratio * a) + (double)y->kl * (exp(q) - 1));
}

/* What a row with this cross entropy adds. Returns what the gradient of cross entropy is multiplied by. */
static double row_of(const struct sg_train_pass *p, uint32_t row, double loss, struct row_loss *out)
{
    *out = (struct row_loss){.loss = loss};
    if (p->logprobs) p->logprobs[row] = (float)-loss;
    return p->policy ? policy_loss(p->policy, row, -loss, out) : 1;
}

static void add_row(struct sg_train_pass *p, const struct row_loss *row)
{
    p->loss += row->loss, p->kl += row->kl, p->clipped += row->clipped;
}

/* log p = x[label] - log sum exp(x), with the gradient (one at the label) - softmax(x). Cross entropy is -log p. */
static void loss_row(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct loss_work *w = arg;
    float *x = w->logits + (size_t)item * w->vocab, *d = w->dlogits ? w->dlogits + (size_t)item * w->vocab : NULL;
    uint32_t row = w->rows[item], label = (uint32_t)w->p->labels[row];
    float max = sg_train_max_row(x, w->vocab), chosen = x[label];
    double sum = sg_train_exp_row(x, w->vocab, max, d ? d : x);
    double slope = row_of(w->p, row, log(sum) + max - chosen, &w->out[item]);
    if (!d) return;
    float factor = (float)(slope / sum);
    for (uint32_t c = 0; c < w->vocab; c++) d[c] *= factor;
    d[label] -= (float)slope;
}

static segue_status loss_part(struct sg_train_pass *p, const uint32_t *rows, uint32_t n)
{
    struct row_loss each[HEAD_ROWS_MAX];
    struct sg_train_grad grad = {0};
    struct sg_operand whole = {.value = p->t->logits, .at = 0, .width = p->g->vocab};
    if (p->t->resident && !p->loss_only) { /* the unit writes all of it */
        if (!p->grads[p->t->logits]) p->grads[p->t->logits] = sg_train_take_live(p, p->t->logits);
        if (!p->grads[p->t->logits]) return SEGUE_EMEMORY;
        grad.data = p->grads[p->t->logits];
    } else if (!p->loss_only)
        SG_TRY(sg_train_grad_of(p, &whole, &grad));
    if (p->t->resident)
        return sg_resident_ops(p->t->resident)->loss(p->t->resident, &p->on_unit, (uint32_t)(rows - p->labelled), n, p->g->vocab,
                                                     p->values[p->t->logits], grad.data, p->err);
    struct loss_work w = {p, rows, p->values[p->t->logits], grad.data, each, p->g->vocab};
    sg_train_each(p, n, loss_row, &w);
    for (uint32_t i = 0; i < n; i++) add_row(p, &each[i]);
    return SEGUE_OK;
}

/* selected [n, width] = rows of x. */
static segue_status select_rows(struct sg_train_pass *p, struct sg_train_view x, const uint32_t *rows, uint32_t n,
                                float *selected)
{
    if (p->t->resident) return sg_resident_select(p, x, rows, n, selected);
    for (uint32_t i = 0; i < n; i++)
        memcpy(selected + (size_t)i * x.width, x.data + rows[i] * x.stride, x.width * sizeof *selected);
    return SEGUE_OK;
}

static segue_status select_back(struct sg_train_pass *p, struct sg_train_grad dx, const uint32_t *rows, uint32_t n,
                                const float *dout)
{
    if (!dx.data) return SEGUE_OK;
    if (p->t->resident) return sg_resident_select_back(p, dx, rows, n, dout);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < dx.width; c++) dx.data[rows[i] * dx.stride + c] += dout[(size_t)i * dx.width + c];
    return SEGUE_OK;
}

/* One part: n labelled rows. */
static segue_status head_part(struct sg_train_pass *p, const uint32_t *rows, uint32_t n)
{
    const struct sg_op *select = &p->g->ops[p->t->rows_op];
    struct sg_train_view x = sg_train_in(p, &select->in[0]);
    float *selected = sg_train_take(p, sg_train_words(p->t, n, x.width));
    if (!selected) return SEGUE_EMEMORY;
    SG_TRY(select_rows(p, x, rows, n, selected));
    p->values[select->out] = selected;
    p->rows[1] = n;
    for (uint32_t i = p->t->rows_op + 1; i < p->g->ops_n; i++) SG_TRY(sg_train_op(p, i));
    SG_TRY(loss_part(p, rows, n));
    for (uint32_t i = p->g->ops_n; !p->loss_only && i-- > p->t->rows_op + 1;) SG_TRY(sg_train_op_back(p, i));
    for (uint32_t i = p->t->rows_op + 1; i < p->g->ops_n; i++) sg_train_free_value(p, p->g->ops[i].out);
    struct sg_train_grad dx;
    if (p->grads[select->out]) {
        SG_TRY(sg_train_grad_of(p, &select->in[0], &dx));
        SG_TRY(select_back(p, dx, rows, n, p->grads[select->out]));
        sg_train_put(p, p->grads[select->out]);
        p->t->live_bytes -= sg_train_words(p->t, n, x.width) * sizeof(float);
        p->grads[select->out] = NULL;
    }
    sg_train_put(p, selected);
    p->values[select->out] = NULL;
    return SEGUE_OK;
}

/* The losses of a resident unit, added in the order of the rows. */
static segue_status resident_losses(struct sg_train_pass *p)
{
    double *each = sg_alloc(p->labelled_n * sizeof *each);
    if (!each) return sg_no_memory("losses of training", p->labelled_n * sizeof *each, p->err);
    segue_status status = sg_resident_ops(p->t->resident)->losses(p->t->resident, p->labelled_n, each, p->err);
    for (uint32_t i = 0; i < p->labelled_n && status == SEGUE_OK; i++) {
        struct row_loss row;
        (void)row_of(p, p->labelled[i], each[i], &row);
        add_row(p, &row);
    }
    sg_free(each);
    return status;
}

segue_status sg_train_head(struct sg_train_pass *p)
{
    uint32_t step = sg_train_head_rows(p->t);
    for (uint32_t at = 0; at < p->labelled_n; at += step)
        SG_TRY(head_part(p, p->labelled + at, p->labelled_n - at < step ? p->labelled_n - at : step));
    return p->t->resident && p->labelled_n ? resident_losses(p) : SEGUE_OK;
}
