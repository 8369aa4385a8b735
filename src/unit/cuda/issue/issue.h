/* issue.h: one pass of rows through a program's steps: what it knows, and what issues them. Kernels are asked one after the
 * other whether they take a step (*_fits); everything here is asynchronous, on the lane's stream, with the GPU current.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CUPASS_H
#define SG_UNIT_CUDA_CUPASS_H

#include "unit/cuda/cu.h"

/* Rows of up to 16 spans that go through the graph together. */
struct cu_pass {
    struct sg_program *program;
    struct cu_lane *lane;
    const struct cu_room_pair *room;
    uint32_t rows_n[2];                 /* T, R */
    uint32_t padded;                    /* 1: the last rows of T are none; the head on the card knows how many there are */
    uint32_t spans_n, chunks;           /* chunks: of attention, for the furthest row */
    uint32_t sms;                       /* multiprocessors that it may count on */
    uint32_t screen;                    /* 1: of the head only the best row is wanted (issue_screen.c) */
    const struct sg_span *const *spans; /* [spans_n] whose adapters apply; NULL: none has any */
    uint32_t from[2][CK_SPANS + 1], heading;
    enum sg_storage kv;
    uint32_t best; /* 1: the best logit of each wanted row is wanted */
    struct ck_banned banned;
    /* embedded: its row is; embeds: it does so for the next pass; gate: 1 + value that was left as its SiLU */
    uint32_t best_blocks, best_done, embedded, embeds, gate;
    const void *narrowed; /* the x whose 16-bit copy lies at narrowed_at, and its form */
    cu_ptr narrowed_at;
    const struct sg_op *narrowed_norm;
    uint32_t narrowed_bf16;
    int32_t narrowed_by;
    const struct cu_step *halves; /* the product whose parts lie in bf16, each row where its fp32 would begin; NULL: none */
    struct cu_in_parts { /* values that lie in parts, in the rooms of these windows; NULL: none */
        const struct cu_window *of;
        uint64_t launched; /* launches of the pass so far, when it was issued */
    } in_parts[2];
    const struct cu_window *used[4]; /* whose rooms are not clear, in the order of use */
    uint32_t used_n;
    uint64_t launches;
    segue_error *err;
};
struct ck_view cu_view_of(const struct cu_pass *p, const struct sg_operand *x);
/* Of a part of p->halves: its p is where bf16 begin; width as it is. */
struct ck_view cu_halves_of(const struct cu_pass *p, const struct sg_operand *x);
/* Rows that can be read 16 bytes at a time from every fourth number on. */
static inline int cu_in_fours(const struct ck_view *v) { return (uintptr_t)v->p % 16 == 0 && v->stride % 4 == 0; }
segue_status cu_launch(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads,
                       size_t shared, const void *args);
/* gx blocks, `cluster` of them at a time on neighbouring multiprocessors. */
segue_status cu_launch_clusters(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t cluster, uint32_t threads, size_t shared,
                                const void *args);
struct ck_pass cu_kernel_pass(const struct cu_pass *p);
const float *cu_vector_of(const struct cu_pass *p, const struct sg_weight *w); /* as fp32; NULL: absent */
struct ck_norm cu_norm_of(const struct cu_pass *p, const struct sg_op *op);    /* NULL: none */
segue_status cu_issue(struct cu_pass *p, const struct cu_step *s);
/* How the choice behind this pass makes the next one's embedded row, so that it may begin behind its `embed`. 0: it can't. */
int cu_next_embed(const struct cu_pass *p, struct ck_embed *out);
/* The best of each wanted row, and with advance the step to the next token. */
segue_status cu_issue_choice(struct cu_pass *p, uint32_t advance, uint32_t stops_n);
segue_status cu_product(struct cu_pass *p, const struct cu_step *s); /* issue_product.c */
segue_status cu_join(struct cu_pass *p, const struct sg_op *op); /* issue_join.c */
/* issue_delta.c. conv: the convolution before the delta rule, or NULL when it was done; convolves: the rule will do it itself. */
segue_status cu_conv(struct cu_pass *p, const struct sg_op *op);
segue_status cu_delta(struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv);
int cu_delta_convolves(const struct cu_pass *p, const struct sg_op *delta, const struct sg_op *conv);
int cu_delta_halves(const struct cu_pass *p, const struct sg_op *delta, const struct sg_op *conv); /* 1: and may read bf16 */
struct ck_gemv cu_gemv_of(const struct cu_pass *p, const struct cu_step *s); /* but for the choice of a token */
/* issue_stream.c: one row, when the shapes allow it: 1 and a whole argument, ready to launch. `g` is filled but for split. */
struct cu_streamed {
    struct ck_stream a;
    cu_fn fn;
    uint32_t blocks, threads;
    size_t shared;
};
int cu_stream_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, struct cu_streamed *out);
/* of s->after; nothing where it is NULL */
void cu_after_of(const struct cu_pass *p, const struct cu_step *s, struct ck_after *out);
/* issue_digits.c: the same for large weights. streamed: cu_stream_fits said 1. */
int cu_digits_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, int streamed,
                   struct cu_streamed *out);
/* issue_vocab.c: the head with one row. */
struct cu_vocab {
    struct ck_vocab a;
    cu_fn fn;
    uint32_t blocks;
    size_t shared;
};
int cu_vocab_fits(const struct cu_pass *p, const struct ck_gemv *g, const struct ck_weight *w, struct cu_vocab *out);
/* issue_tiles.c: 2 to 16 rows of 16-bit weights on Hopper, when the shapes allow it: 1 and a whole argument. */
struct cu_tiled {
    struct ck_tiles a;
    cu_fn fn;
    uint32_t shared, blocks, cluster;
    int norm_apart, whole; /* 1: the norm is a step of its own before it; what comes behind is done as well */
};
int cu_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                  struct cu_tiled *out);
/* issue_glu.c: gate and up of many rows with what is behind them, on Hopper, when the shapes allow it. w: gate's rows in 16 bits,
 * then up's. The result is what the next product reads, narrowed. */
int cu_glu_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows);
segue_status cu_glu(struct cu_pass *p, const struct cu_step *s, const void *w, uint32_t pitch, uint32_t rows, uint32_t bf16,
                    int *done);
/* issue_batch.c: 2 to 16 rows and 16-bit weights. The arguments are the segments that issue_product.c makes, and the norm. */
int cu_batch_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, uint32_t rows);
segue_status cu_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                      uint32_t rows);
/* issue_cluster.c. issue: a step, or the window that begins with it; *steps: how many that were. settle: what the step reads lies whole
 * at its place. begin: before a pass is issued, captured or launched; over: it was. end: behind the steps, where they are
 * issued. */
segue_status cu_rank_begin(struct cu_pass *p);
void cu_rank_over(struct cu_pass *p);
segue_status cu_rank_end(struct cu_pass *p);
segue_status cu_rank_issue(struct cu_pass *p, const struct cu_step *s, uint32_t *steps);
segue_status cu_rank_settle(struct cu_pass *p, const struct cu_step *s);
segue_status cu_screen(struct cu_pass *p, const struct cu_step *s); /* issue_screen.c: instead of the product that ends in logits */

#endif
