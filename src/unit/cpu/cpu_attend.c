/* cpu_attend.c: attention. Keys and values are processed in chunks of SG_CHUNK positions counted from
 * the start of the sequence. For each chunk a query gets a partial softmax (maximum, sum, weighted
 * values), and the partial results are merged in rising order of the chunks. So a row's result depends
 * on its position only, not on the batch, the division of the prompt or the threads. Spans of few rows
 * are split over the chunks (flash-decoding): the thread that finishes the last chunk of a row merges
 * them.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Queries per tile, rows per tile, queries per kernel call, rows per item when keys are appended. */
enum { TILE_QUERIES = 96, TILE_ROWS_MAX = 32, BATCH = 6, LINE_BYTES = 64, APPEND_ROWS = 16 };
enum { I16_ROWS = 16 };           /* passes of more rows use integer attention, if the kernels have it */

/* Rows of one tile: about TILE_QUERIES queries, and at least as many as a split tile may have. */
static uint32_t tile_rows(const struct sg_cpu_program *p)
{
    uint32_t n = TILE_QUERIES / (p->group_max ? p->group_max : 1);
    return n < SG_FEW ? SG_FEW : n > TILE_ROWS_MAX ? TILE_ROWS_MAX : n;
}

/* Tile rows for a span of `rows` rows: small enough that every thread gets about four tiles. */
static uint32_t span_tile_rows(const struct sg_cpu_program *p, uint32_t rows)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)p->base.unit;
    uint32_t rows_max = tile_rows(p), tiles = 4 * sg_pool_threads(u->pool), n = (rows * p->kv_heads_max + tiles - 1) / tiles;
    return n < SG_FEW ? SG_FEW : n > rows_max ? rows_max : n;
}

static uint32_t pad16(uint32_t n) { return (n + 15) / 16 * 16; }

/* Scratch of one thread, after its first line. */
struct attn_scratch {
    float *q;                        /* [queries][d] */
    float *k, *v;                    /* one chunk as fp32 */
    float *s;                        /* scores [BATCH][SG_CHUNK] */
    float *part;                     /* [BATCH][dvp] weighted values of the chunk */
    float *o, *m, *l;                /* [queries][dvp], [queries], [queries]: merged so far */
    /* integer attention: queries [queries][width], one chunk of k and v, probabilities
     * [BATCH][SG_CHUNK], and scales */
    struct i16_scratch {
        int16_t *q, *k, *v, *p;
        float *q_scale, *k_scale, *v_scale, *v_top;
    } n;
};

/* Floats of scratch that integer attention needs, including the padding of each array to 16 floats. */
static size_t i16_floats(size_t queries, const struct sg_attend *at)
{
    size_t width = sg_attn_i16_width(at->d), dvp = (at->dv + 15) / 16 * 16;
    return queries * width / 2 + SG_CHUNK * width / 2 + SG_CHUNK * dvp / 2 + BATCH * SG_CHUNK / 2 + queries + 3 * SG_CHUNK +
           8 * 16;
}

/* Floats of scratch of one thread; each array is padded to 16 floats. */
static size_t scratch_floats(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    const struct sg_attend *at = &st->op->u.attend;
    size_t queries = (size_t)tile_rows(p) * (at->heads / at->kv_heads), dvp = pad16(at->dv);
    return queries * at->d + SG_CHUNK * (size_t)at->d + SG_CHUNK * dvp + BATCH * SG_CHUNK +
           BATCH * dvp + queries * (dvp + 2) + 9 * 16 + (st->attn_i16 ? i16_floats(queries, at) : 0);
}

/* The KEYS stage needs two heads of scratch, ATTEND the arrays of struct attn_scratch. */
size_t sg_attend_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    size_t keys = 2 * (size_t)st->op->u.attend.d * sizeof(float);
    size_t n = scratch_floats(p, st) * sizeof(float);
    return LINE_BYTES + (n > keys ? n : keys);
}

/* Takes n floats from the scratch, rounded up to a cache line. */
static float *take_f32(float **p, size_t n)
{
    float *at = *p;
    *p += (n + 15) / 16 * 16;
    return at;
}

static int16_t *take_i16(float **p, size_t n) { return (int16_t *)(void *)take_f32(p, (n + 1) / 2); }

/* Takes the arrays of integer attention, in the order of i16_floats. */
static struct i16_scratch i16_scratch_of(float *p, size_t queries, const struct sg_attend *at)
{
    size_t width = sg_attn_i16_width(at->d), dvp = pad16(at->dv);
    struct i16_scratch n;
    n.q = take_i16(&p, queries * width);
    n.k = take_i16(&p, SG_CHUNK * width);
    n.v = take_i16(&p, SG_CHUNK * dvp);
    n.p = take_i16(&p, BATCH * SG_CHUNK);
    n.q_scale = take_f32(&p, queries);
    n.k_scale = take_f32(&p, SG_CHUNK);
    n.v_scale = take_f32(&p, SG_CHUNK);
    n.v_top = take_f32(&p, SG_CHUNK);
    return n;
}

/* Takes the arrays of one thread from its scratch. */
static struct attn_scratch scratch_of(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t thread)
{
    const struct sg_attend *at = &st->op->u.attend;
    uint8_t *base = a->p->threads[thread];
    *(uint64_t *)(void *)base = 0;           /* invalidates the activations that a matrix stage prepared in this scratch */
    float *p = (float *)(void *)(base + LINE_BYTES);
    size_t queries = (size_t)tile_rows(a->p) * (at->heads / at->kv_heads), dvp = pad16(at->dv);
    struct attn_scratch r;
    r.k = take_f32(&p, SG_CHUNK * (size_t)at->d);
    r.v = take_f32(&p, SG_CHUNK * dvp);
    r.s = take_f32(&p, BATCH * SG_CHUNK);
    r.part = take_f32(&p, BATCH * dvp);
    r.o = take_f32(&p, queries * dvp);
    r.m = take_f32(&p, queries);
    r.l = take_f32(&p, queries);
    r.q = take_f32(&p, queries * at->d);
    r.n = (struct i16_scratch){0};
    if (st->attn_i16) r.n = i16_scratch_of(p, queries, at);
    return r;
}

/* Adds tiles of `each` rows. Later tiles see more keys. The pool gives each thread a contiguous share
 * of the items, so each share starts with late tiles and ends with early, short ones: the threads
 * finish at nearly the same time. */
static void add_tiles(struct sg_cpu_program *p, uint32_t span, uint32_t row, uint32_t rows, uint32_t each)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)p->base.unit;
    uint32_t n = (rows + each - 1) / each, threads = sg_pool_threads(u->pool);
    for (uint32_t thread = 0; thread < threads; thread++)
        for (uint32_t from_end = thread; from_end < n; from_end += threads) {
            uint32_t at = (n - 1 - from_end) * each;
            p->tiles[p->tiles_n++] = (struct sg_cpu_attn_tile){.span = span,
                                                          .row = row + at,
                                                          .rows = rows - at < each ? rows - at : each,
                                                          .first_job = p->jobs_n++,
                                                          .jobs_n = 1,
                                                          .split_row = UINT32_MAX};
        }
}

/* Divides the rows of the pass into tiles and jobs, grows the split area and resets its counters. Runs
 * before the stages, since all attention layers of a pass share the plan. */
segue_status sg_attend_plan(struct sg_cpu_pass *a, segue_error *err)
{
    struct sg_cpu_program *p = a->p;
    uint32_t row = 0, split_rows = 0, chunks = 1;
    p->tiles_n = p->jobs_n = 0;
    if (!p->kv_heads_max) return SEGUE_OK;
    for (uint32_t s = 0; s < a->spans_n; s++) {
        const struct sg_span *span = &a->spans[s];
        const struct sg_cpu_state *state = sg_cpu_state_of(span->state);
        uint32_t held = (uint32_t)((span->first + span->rows - 1) / SG_CHUNK + 1);
        uint32_t each = span_tile_rows(p, span->rows);
        /* few rows have too few tiles for all threads: split over the keys */
        int split = span->rows <= SG_FEW;
        /* Capacity for the chunks that the state already has room for, so that decoding does not
         * reallocate the split area whenever a chunk is completed. */
        if (split) {
            uint32_t scratch =
                state->capacity > held && state->capacity <= 4 * held + 64 ? state->capacity : held;
            if (scratch > chunks) chunks = scratch;
        }
        if (!split) add_tiles(p, s, row, span->rows, each);
        else {
            p->tiles[p->tiles_n++] = (struct sg_cpu_attn_tile){
                .span = s, .row = row, .rows = span->rows, .first_job = p->jobs_n, .jobs_n = held, .split_row = split_rows};
            p->jobs_n += held;
            split_rows += span->rows;
        }
        row += span->rows;
    }
    size_t floats = (size_t)split_rows * chunks * p->split_row_floats;
    /* half as much again, so that a growing context reallocates rarely */
    if (floats > p->split_cap) {
        size_t cap = floats + floats / 2;
        float *wider = sg_realloc(p->split, cap * sizeof *wider);
        if (!wider) return sg_no_memory("attention of a cpu program", cap * sizeof *wider, err);
        p->split = wider;
        p->split_cap = cap;
    }
    p->split_chunks = chunks;
    /* the counters are used by all attention layers, one after the other */
    if (split_rows * p->kv_heads_max > p->pending_cap) {
        uint32_t cap = split_rows * p->kv_heads_max;
        atomic_uint *wider = sg_realloc(p->pending, cap * sizeof *wider);
        if (!wider) return sg_no_memory("attention of a cpu program", cap * sizeof *wider, err);
        p->pending = wider;
        p->pending_cap = cap;
    }
    /* Each row and kv head of a split tile waits for all of its chunks. */
    for (uint32_t t = 0; t < p->tiles_n; t++)
        for (uint32_t i = 0; p->tiles[t].split_row != UINT32_MAX && i < p->kv_heads_max; i++)
            atomic_init(&p->pending[p->tiles[t].split_row * p->kv_heads_max + i], p->tiles[t].jobs_n);
    return SEGUE_OK;
}

/* Cosines and sines of a row, for the rope table of this op. */
static const float *angles_of(const struct sg_cpu_pass *a, const struct sg_op *rope, uint32_t row)
{
    return a->p->angles + (size_t)row * a->p->angle_columns + a->p->angle_at[rope->u.rope.table];
}

/* One head: norm if there is one, then rotation into y. */
static void norm_rope_head(const struct sg_cpu_pass *a, const struct sg_cpu_norm *norm, const struct sg_op *rope,
                      uint32_t row, const float *x, uint32_t d, float *scratch, float *y)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    if (norm->op) {
        k->norm(x, d, &norm->op->u.norm, norm->weight, norm->bias, scratch);
        x = scratch;
    }
    k->rope(x, a->p->base.graph->ropes[rope->u.rope.table].pairs, d, angles_of(a, rope, row),
            (float)rope->u.rope.sign, y);
}

static void count_unfit(struct sg_cpu_pass *a, int is_v, enum sg_kv_fit fit)
{
    if (fit != SG_KV_FITS) atomic_fetch_add(&a->unfit_heads[is_v][fit], 1u);
}

/* While no item of a KEYS stage runs: remember the first attend op whose K or V do not fit, and count again from 0. */
void sg_attend_fit(struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    for (int is_v = 0; is_v < 2; is_v++) {
        struct sg_kv_count count = {.all = (uint64_t)a->t * st->op->u.attend.kv_heads};
        for (int fit = SG_KV_FITS + 1; fit < SG_KV_FIT_N; fit++)
            count.heads[fit] = atomic_exchange(&a->unfit_heads[is_v][fit], 0u);
        if (a->unfit || sg_kv_count_fits(&count)) continue;
        a->unfit = st->op;
        a->unfit_is_v = is_v;
        a->unfit_count = count;
    }
}

/* One row and kv head: rotates its query heads into q_out and its key, and appends key and value to the
 * state. */
static void append_head(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row, uint32_t h, uint32_t thread)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const struct sg_attend *at = &st->op->u.attend;
    uint32_t group = at->heads / at->kv_heads;
    const struct sg_span *span = &a->spans[a->p->row_span[row]];
    const struct sg_cpu_state *state = sg_cpu_state_of(span->state);
    uint64_t pos = a->p->row_pos[row];
    float *scratch = (float *)(void *)(a->p->threads[thread] + LINE_BYTES), *rotated = scratch + at->d;
    *(uint64_t *)(void *)a->p->threads[thread] = 0;
    size_t stride;
    /* the query heads that share this kv head */
    if (st->q_out >= 0) {
        const float *q = sg_cpu_operand_row(a, st->q, row, &stride);
        float *out = sg_cpu_operand_row(a, (struct sg_operand){st->q_out, 0, 0}, row, &stride);
        for (uint32_t g = h * group; g < (h + 1) * group; g++)
            norm_rope_head(a, &st->norm_q, st->rope_q, row, q + (size_t)g * at->d, at->d, scratch,
                      out + (size_t)g * at->d);
    }
    const float *key = sg_cpu_operand_row(a, st->key, row, &stride) + (size_t)h * at->d;
    if (st->rope_k) {
        norm_rope_head(a, &st->norm_k, st->rope_k, row, key, at->d, scratch, rotated);
        key = rotated;
    }
    count_unfit(a, 0, sg_kv_store(k, state, (uint32_t)at->slot_k, pos, h, key));
    count_unfit(a, 1, sg_kv_store(k, state, (uint32_t)at->slot_v, pos, h,
                                  sg_cpu_operand_row(a, st->value, row, &stride) + (size_t)h * at->dv));
}

/* In the interleaved K layout, adjacent keys share cache lines: one thread writes them. */
static uint32_t append_rows(const struct sg_cpu_pass *a) { return a->t <= SG_FEW ? 1 : APPEND_ROWS; }

/* One item of the KEYS stage: append_rows rows of one kv head. */
static void append_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread)
{
    uint32_t heads = st->op->u.attend.kv_heads, n = append_rows(a), row = item / heads * n;
    for (uint32_t end = a->t - row < n ? a->t : row + n; row < end; row++) append_head(a, st, row, item % heads, thread);
}

/* Normalises the sums of one query and writes its output. A sink is an additional logit without a
 * value: it only enters the denominator. The optional gate is applied through a sigmoid. */
static void write_output(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, struct sg_softmax_part q, uint32_t row,
                     uint32_t head)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const struct sg_attend *at = &st->op->u.attend;
    size_t stride;
    float *y = sg_cpu_operand_row(a, (struct sg_operand){st->op->out, 0, 0}, row, &stride) + (size_t)head * at->dv,
          weight = 1.0f, sum = *q.l;
    if (st->w0) {
        float sink = st->w0[head], top = *q.m > sink ? *q.m : sink;
        weight = *q.m == -INFINITY ? 0.0f : expf(*q.m - top);
        sum = sum * weight + expf(sink - top);
    }
    /* one division per query */
    float inverse = weight / sum;
    for (uint32_t i = 0; i < at->dv; i++) y[i] = q.o[i] * inverse;
    if (st->op->in[3].value < 0) return;
    float gate[64];
    const float *g = sg_cpu_operand_row(a, st->op->in[3], row, &stride) + (size_t)head * at->dv;
    for (uint32_t i = 0; i < at->dv; i += 64) {
        uint32_t n = at->dv - i < 64 ? at->dv - i : 64;
        k->act(SG_ACT_SIGMOID, g + i, n, gate);
        k->mul(y + i, gate, n, y + i);
    }
}

/* One job: a tile, or one chunk of a split tile, for one kv head. */
struct attn_work {
    struct sg_cpu_pass *a;
    const struct sg_cpu_stage *st;
    const struct sg_cpu_attn_tile *tile;
    const struct sg_cpu_state *state;
    uint32_t kv_head, group, dvp;
    uint64_t pos;                    /* position of the tile's first row */
    const uint16_t *k16, *v16;       /* the chunk in place, as f16; NULL: it is in scratch.k and scratch.v */
    const uint16_t *next;            /* keys of the chunk that this thread will probably process next, or NULL */
    struct attn_scratch scratch;
};

/* Keys [*lo, *hi) of the chunk that row r of the tile may see: causal, and within the sliding window. */
static void visible_keys(const struct attn_work *w, uint32_t r, uint64_t chunk, uint32_t *lo, uint32_t *hi)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    uint64_t end = w->pos + r + 1, from = at->window && end > at->window ? end - at->window : 0,
             base = chunk * SG_CHUNK;
    *lo = from <= base ? 0 : from - base < SG_CHUNK ? (uint32_t)(from - base) : SG_CHUNK;
    *hi = end <= base ? 0 : end - base < SG_CHUNK ? (uint32_t)(end - base) : SG_CHUNK;
    if (*lo >= *hi) *lo = *hi = 0;
}

/* Copies the queries of the tile. Query i is row i / group, head kv_head * group + i % group, so that
 * the queries of all heads that share a kv head are adjacent. */
static void load_queries(struct attn_work *w)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    size_t n = (size_t)w->group * at->d, stride;
    for (uint32_t r = 0; r < w->tile->rows; r++)
        memcpy(w->scratch.q + r * n, sg_cpu_operand_row(w->a, w->st->op->in[0], w->tile->row + r, &stride) + w->kv_head * n,
               n * sizeof(float));
}

/* nq queries, from query `from` of the tile, over the current chunk: m and l, and the weighted values
 * in scratch.part. Returns 0 if none of them sees a key. */
static int batch_chunk(struct attn_work *w, uint32_t from, uint32_t nq, uint64_t chunk, float *m, float *l)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t keys = 0, lo[BATCH], hi[BATCH];
    for (uint32_t i = 0; i < nq; i++) {
        visible_keys(w, (from + i) / w->group, chunk, &lo[i], &hi[i]);
        if (hi[i] > keys) keys = hi[i];
    }
    /* all keys of the chunk are masked for these queries */
    if (!keys) return 0;
    const float *q = w->scratch.q + (size_t)from * at->d;
    if (w->k16) k->scores_f16(q, nq, at->d, w->k16, keys, w->scratch.s, from ? NULL : w->v16);
    else k->scores(q, nq, at->d, w->scratch.k, keys, w->scratch.s);
    for (uint32_t i = 0; i < nq; i++)
        k->softmax_chunk(w->scratch.s + i * SG_CHUNK, lo[i], hi[i], keys, at->scale, at->softcap, &m[i], &l[i]);
    if (w->v16) k->pv_f16(w->scratch.s, nq, keys, w->v16, w->dvp, w->scratch.part, from ? NULL : w->next);
    else k->pv(w->scratch.s, nq, keys, w->scratch.v, w->dvp, w->scratch.part);
    return 1;
}

/* Integer attention depends on the number of rows of the whole pass, not of a tile or batch, so that
 * equal passes give equal results. */
static const struct sg_attn_i16 *i16_kernels(const struct attn_work *w)
{
    return w->st->attn_i16 && w->a->t > I16_ROWS && !w->a->p->invariant ? sg_cpu_pass_kernels(w->a)->narrow : NULL;
}

/* As batch_chunk, in integers: k, v and the queries are already quantised. top is the largest scale
 * among the visible values. */
static int batch_chunk_i16(struct attn_work *w, uint32_t from, uint32_t nq, uint64_t chunk, float *m, float *l)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attn_i16 *in = k->narrow;
    const struct sg_attend *at = &w->st->op->u.attend;
    const struct i16_scratch *n = &w->scratch.n;
    uint32_t keys = 0, lo[BATCH], hi[BATCH];
    float top[BATCH];
    for (uint32_t i = 0; i < nq; i++) {
        visible_keys(w, (from + i) / w->group, chunk, &lo[i], &hi[i]);
        if (hi[i] > keys) keys = hi[i];
    }
    if (!keys) return 0;
    in->scores(n->q + (size_t)from * sg_attn_i16_width(at->d), nq, at->d, n->k, n->k_scale, keys, w->scratch.s);
    for (uint32_t i = 0; i < nq; i++) {
        float *s = w->scratch.s + i * SG_CHUNK;
        k->softmax_chunk(s, lo[i], hi[i], keys, at->scale * n->q_scale[from + i], at->softcap, &m[i], &l[i]);
        top[i] = hi[i] ? n->v_top[hi[i] - 1] : 0.0f;
        in->weights(s, n->v_scale, top[i], keys, n->p + i * SG_CHUNK);
    }
    in->pv(n->p, top, nq, keys, n->v, w->dvp, w->scratch.part);
    return 1;
}

/* Converts the visible keys and values of one chunk to fp32, and to integers if this pass uses them. */
static void load_chunk(struct attn_work *w, uint64_t chunk)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint64_t left = w->pos + w->tile->rows - chunk * SG_CHUNK;
    uint32_t keys = left < SG_CHUNK ? (uint32_t)left : SG_CHUNK;
    const struct sg_attn_i16 *in = i16_kernels(w);
    const void *k16 = in ? sg_kv_f16(w->state, (uint32_t)at->slot_k, chunk, w->kv_head) : NULL,
               *v16 = in && w->dvp == at->dv ? sg_kv_f16(w->state, (uint32_t)at->slot_v, chunk, w->kv_head) : NULL;
    if (!k16) sg_kv_load(k, w->state, (uint32_t)at->slot_k, chunk, w->kv_head, keys, w->scratch.k);
    if (!v16) sg_kv_load(k, w->state, (uint32_t)at->slot_v, chunk, w->kv_head, keys, w->scratch.v);
    if (!in) return;
    /* The scale of a value row is its largest magnitude over dvp columns: the padding columns must not hold what the
     * scratch memory held before. */
    for (uint32_t t = 0; w->dvp > at->dv && t < keys; t++)
        memset(w->scratch.v + (size_t)t * w->dvp + at->dv, 0, (w->dvp - at->dv) * sizeof(float));
    /* f16 data in place is quantised directly, which saves the conversion to fp32 */
    in->keys(k16 ? k16 : w->scratch.k, k16 != NULL, at->d, keys, w->scratch.n.k, w->scratch.n.k_scale);
    in->values(v16 ? v16 : w->scratch.v, v16 != NULL, w->dvp, keys, w->scratch.n.v, w->scratch.n.v_scale, w->scratch.n.v_top);
}

/* Few queries read each key and value once, so they use the f16 data in place. Many queries share one
 * conversion to fp32. */
static int use_chunk_in_place(struct attn_work *w, uint64_t chunk)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    w->k16 = w->v16 = NULL;
    if (!k->scores_f16 || w->dvp != at->dv || w->tile->rows * w->group > 2 * BATCH) return 0;
    w->k16 = sg_kv_f16(w->state, (uint32_t)at->slot_k, chunk, w->kv_head);
    w->v16 = sg_kv_f16(w->state, (uint32_t)at->slot_v, chunk, w->kv_head);
    uint32_t head = (w->kv_head + 1) % at->kv_heads;
    uint64_t then = chunk + !head;
    w->next = then < w->tile->jobs_n ? sg_kv_f16(w->state, (uint32_t)at->slot_k, then, head) : NULL;
    return w->k16 && w->v16;
}

/* First chunk that a row of the tile can see through the sliding window. */
static uint64_t first_chunk(const struct attn_work *w)
{
    uint32_t window = w->st->op->u.attend.window;
    return window && w->pos + 1 > window ? (w->pos + 1 - window) / SG_CHUNK : 0;
}

/* A tile that is not split: all of its chunks in order, merging after each. */
static void attend_tile(struct attn_work *w)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t all = w->tile->rows * w->group;
    for (uint32_t i = 0; i < all; i++) {
        w->scratch.m[i] = -INFINITY;
        w->scratch.l[i] = 0.0f;
    }
    const struct sg_attn_i16 *in = i16_kernels(w);
    if (in) in->rows(w->scratch.q, all, at->d, w->scratch.n.q, w->scratch.n.q_scale);
    memset(w->scratch.o, 0, (size_t)all * w->dvp * sizeof(float));
    for (uint64_t c = first_chunk(w); c <= (w->pos + w->tile->rows - 1) / SG_CHUNK; c++) {
        /* bounds the work after a cancel to one chunk of one tile */
        if (sg_cpu_pass_canceled(w->a)) return;
        load_chunk(w, c);
        for (uint32_t from = 0; from < all; from += BATCH) {
            uint32_t nq = all - from < BATCH ? all - from : BATCH;
            float m[BATCH], l[BATCH];
            /* a chunk without visible keys adds nothing */
            if (!(in ? batch_chunk_i16 : batch_chunk)(w, from, nq, c, m, l)) continue;
            k->join(nq, at->dv,
                    &(struct sg_softmax_part){w->scratch.m + from, w->scratch.l + from, w->scratch.o + (size_t)from * w->dvp},
                    w->dvp, &(struct sg_softmax_part){m, l, w->scratch.part}, w->dvp);
        }
    }
    for (uint32_t i = 0; i < all; i++)
        write_output(w->a, w->st, (struct sg_softmax_part){&w->scratch.m[i], &w->scratch.l[i], w->scratch.o + (size_t)i * w->dvp},
                 w->tile->row + i / w->group, w->kv_head * w->group + i % w->group);
}

/* m, l and o of query i of a split tile, for chunk c. */
static float *split_part(const struct attn_work *w, uint32_t i, uint64_t c)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    size_t row = w->tile->split_row + i / w->group, head = w->kv_head * w->group + i % w->group;
    return w->a->p->split + ((row * at->heads + head) * w->a->p->split_chunks + c) * (at->dv + 2);
}

/* Merges all chunks of n <= BATCH heads of one row and writes the outputs. */
static void merge_split_heads(struct attn_work *w, uint32_t first, uint32_t n)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    const size_t head_stride = (size_t)w->a->p->split_chunks * (at->dv + 2);   /* distance between heads */
    struct sg_softmax_part q = {w->scratch.m, w->scratch.l, w->scratch.o};
    for (uint32_t i = 0; i < n; i++) {
        q.m[i] = -INFINITY;
        q.l[i] = 0.0f;
    }
    memset(q.o, 0, (size_t)n * w->dvp * sizeof(float));
    for (uint64_t c = first_chunk(w); c < w->tile->jobs_n; c++) {
        float m[BATCH], l[BATCH], *s = split_part(w, first, c);
        for (uint32_t i = 0; i < n; i++) {
            m[i] = s[i * head_stride];
            l[i] = s[i * head_stride + 1];
        }
        k->join(n, at->dv, &q, w->dvp, &(struct sg_softmax_part){m, l, s + 2}, head_stride);
    }
    for (uint32_t i = 0; i < n; i++)
        write_output(w->a, w->st, (struct sg_softmax_part){q.m + i, q.l + i, q.o + (size_t)i * w->dvp},
                 w->tile->row + first / w->group, w->kv_head * w->group + first % w->group + i);
}

/* All rows and heads of a split tile, BATCH heads at a time. */
static void merge_split_tile(struct attn_work *w)
{
    for (uint32_t r = 0; r < w->tile->rows; r++)
        for (uint32_t from = 0; from < w->group; from += BATCH)
            merge_split_heads(w, r * w->group + from, w->group - from < BATCH ? w->group - from : BATCH);
}

/* One chunk of a split tile: stores the partial results. The thread that completes the last chunk
 * merges all of them. The counter is decremented with acquire-release order, so the merging thread sees
 * what the others stored. */
static void attend_split_chunk(struct attn_work *w, uint64_t c)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t all = w->tile->rows * w->group;
    if (c >= first_chunk(w)) {
        if (!use_chunk_in_place(w, c)) load_chunk(w, c);
        for (uint32_t from = 0; from < all; from += BATCH) {
            uint32_t nq = all - from < BATCH ? all - from : BATCH;
            float m[BATCH], l[BATCH];
            int any = batch_chunk(w, from, nq, c, m, l);
            for (uint32_t i = 0; i < nq; i++) {
                float *s = split_part(w, from + i, c);
                s[0] = any ? m[i] : -INFINITY;
                s[1] = any ? l[i] : 0.0f;
                if (any) memcpy(s + 2, w->scratch.part + (size_t)i * w->dvp, at->dv * sizeof *s);
            }
        }
    }
    atomic_uint *pending = &w->a->p->pending[w->tile->split_row * w->a->p->kv_heads_max + w->kv_head];
    if (atomic_fetch_sub_explicit(pending, 1u, memory_order_acq_rel) != 1) return;
    atomic_store_explicit(pending, w->tile->jobs_n, memory_order_relaxed);    /* reset for the next layer */
    merge_split_tile(w);
}

/* Finds the tile of the item by binary search over first_job, and runs it. */
static void attend_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread)
{
    const struct sg_attend *at = &st->op->u.attend;
    uint32_t unit = item / at->kv_heads, lo = 0, hi = a->p->tiles_n;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (a->p->tiles[mid].first_job <= unit) lo = mid;
        else hi = mid;
    }
    struct attn_work w = {.a = a, .st = st, .tile = &a->p->tiles[lo], .kv_head = item % at->kv_heads};
    w.group = at->heads / at->kv_heads;
    w.dvp = pad16(at->dv);
    w.pos = a->p->row_pos[w.tile->row];
    w.state = sg_cpu_state_of(a->spans[w.tile->span].state);
    w.scratch = scratch_of(a, st, thread);
    load_queries(&w);
    if (w.tile->split_row == UINT32_MAX) attend_tile(&w);
    else attend_split_chunk(&w, unit - w.tile->first_job);
}

/* ATTEND items are jobs times kv heads; adjacent items are different heads of the same rows. */
uint32_t sg_attend_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    uint32_t kv = st->op->u.attend.kv_heads;
    return st->kind == SG_ST_KEYS ? (a->t + append_rows(a) - 1) / append_rows(a) * kv : a->p->jobs_n * kv;
}

void sg_attend_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread)
{
    if (st->kind == SG_ST_KEYS) append_work(a, st, item, thread);
    else attend_work(a, st, item, thread);
}
