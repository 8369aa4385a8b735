/* cpu_attend.c: attention. Keys and values lie in chunks of SG_CHUNK positions, counted from the sequence's
 * start; each query takes the chunks one by one (maximum, sum, weighted values of the chunk) and joins them
 * in rising order. So a row's result depends on its position alone: not on the batch, the prompt's chunking
 * or the threads. Few rows are split over the chunks, and whoever finishes a row's last chunk joins them.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

enum { QUERIES = 96, ROWS = 32, BATCH = 6, LINES = 64, KEY_ROWS = 16 };
enum { NARROW_ROWS = 16 };           /* passes of more rows take attention in integers, where the kernels have it */

/* Rows of one tile: about QUERIES queries, and never fewer than a split tile may have. */
static uint32_t tile_rows(const struct sg_cpu_program *p)
{
    uint32_t n = QUERIES / (p->group_max ? p->group_max : 1);
    return n < SG_FEW ? SG_FEW : n > ROWS ? ROWS : n;
}

/* Of a span of so many rows: every thread gets several tiles. */
static uint32_t span_tile_rows(const struct sg_cpu_program *p, uint32_t rows)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)p->base.unit;
    uint32_t most = tile_rows(p), tiles = 4 * sg_pool_threads(u->pool), n = (rows * p->kv_heads_max + tiles - 1) / tiles;
    return n < SG_FEW ? SG_FEW : n > most ? most : n;
}

static uint32_t pad16(uint32_t n) { return (n + 15) / 16 * 16; }

/* Scratch of one thread. */
struct room {
    float *q;                        /* [queries][d] */
    float *k, *v;                    /* a chunk in fp32 */
    float *s;                        /* [BATCH][SG_CHUNK] */
    float *part;                     /* [BATCH][dvp] of the chunk */
    float *o, *m, *l;                /* [queries][dvp], [queries], [queries]: joined so far */
    struct narrow {                  /* in integers: queries [queries][width], a chunk, weights [BATCH][SG_CHUNK] */
        int16_t *q, *k, *v, *p;
        float *q_scale, *k_scale, *v_scale, *v_top;
    } n;
};

/* Floats that the integers take. */
static size_t narrow_floats(size_t queries, const struct sg_attend *at)
{
    size_t width = sg_narrow_width(at->d), dvp = (at->dv + 15) / 16 * 16;
    return queries * width / 2 + SG_CHUNK * width / 2 + SG_CHUNK * dvp / 2 + BATCH * SG_CHUNK / 2 + queries + 3 * SG_CHUNK +
           8 * 16;
}

static size_t floats_of(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    const struct sg_attend *at = &st->op->u.attend;
    size_t queries = (size_t)tile_rows(p) * (at->heads / at->kv_heads), dvp = pad16(at->dv);
    return queries * at->d + SG_CHUNK * (size_t)at->d + SG_CHUNK * dvp + BATCH * SG_CHUNK +
           BATCH * dvp + queries * (dvp + 2) + 9 * 16 + (st->narrow ? narrow_floats(queries, at) : 0);
}

size_t sg_attend_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    size_t keys = 2 * (size_t)st->op->u.attend.d * sizeof(float);
    size_t n = floats_of(p, st) * sizeof(float);
    return LINES + (n > keys ? n : keys);
}

static float *carve(float **p, size_t n)
{
    float *at = *p;
    *p += (n + 15) / 16 * 16;
    return at;
}

static int16_t *carve_half(float **p, size_t n) { return (int16_t *)(void *)carve(p, (n + 1) / 2); }

static struct narrow narrow_of(float *p, size_t queries, const struct sg_attend *at)
{
    size_t width = sg_narrow_width(at->d), dvp = pad16(at->dv);
    struct narrow n;
    n.q = carve_half(&p, queries * width);
    n.k = carve_half(&p, SG_CHUNK * width);
    n.v = carve_half(&p, SG_CHUNK * dvp);
    n.p = carve_half(&p, BATCH * SG_CHUNK);
    n.q_scale = carve(&p, queries);
    n.k_scale = carve(&p, SG_CHUNK);
    n.v_scale = carve(&p, SG_CHUNK);
    n.v_top = carve(&p, SG_CHUNK);
    return n;
}

static struct room room_of(const struct sg_pass *a, const struct sg_stage *st, uint32_t thread)
{
    const struct sg_attend *at = &st->op->u.attend;
    uint8_t *base = a->p->threads[thread];
    *(uint64_t *)(void *)base = 0;           /* the matrix stages' stamp */
    float *p = (float *)(void *)(base + LINES);
    size_t queries = (size_t)tile_rows(a->p) * (at->heads / at->kv_heads), dvp = pad16(at->dv);
    struct room r;
    r.k = carve(&p, SG_CHUNK * (size_t)at->d);
    r.v = carve(&p, SG_CHUNK * dvp);
    r.s = carve(&p, BATCH * SG_CHUNK);
    r.part = carve(&p, BATCH * dvp);
    r.o = carve(&p, queries * dvp);
    r.m = carve(&p, queries);
    r.l = carve(&p, queries);
    r.q = carve(&p, queries * at->d);
    r.n = (struct narrow){0};
    if (st->narrow) r.n = narrow_of(p, queries, at);
    return r;
}

/* --- the plan of a pass --- */

/* Tiles of `each` rows. The later a tile, the more keys it sees: each thread's share begins with late ones and ends with early
 * ones, so that the last item taken is a short one. */
static void tiles_add(struct sg_cpu_program *p, uint32_t span, uint32_t row, uint32_t rows, uint32_t each)
{
    const struct sg_cpu_unit *u = (const struct sg_cpu_unit *)(const void *)p->base.unit;
    uint32_t n = (rows + each - 1) / each, threads = sg_pool_threads(u->pool);
    for (uint32_t seat = 0; seat < threads; seat++)
        for (uint32_t back = seat; back < n; back += threads) {
            uint32_t at = (n - 1 - back) * each;
            p->tiles[p->tiles_n++] = (struct sg_att_tile){.span = span,
                                                          .row = row + at,
                                                          .rows = rows - at < each ? rows - at : each,
                                                          .base = p->units_n++,
                                                          .units = 1,
                                                          .split_row = UINT32_MAX};
        }
}

segue_status sg_attend_plan(struct sg_pass *a, segue_error *err)
{
    struct sg_cpu_program *p = a->p;
    uint32_t row = 0, split_rows = 0, chunks = 1;
    p->tiles_n = p->units_n = 0;
    if (!p->kv_heads_max) return SEGUE_OK;
    for (uint32_t s = 0; s < a->spans_n; s++) {
        const struct sg_span *span = &a->spans[s];
        const struct sg_cpu_state *state = (const struct sg_cpu_state *)(const void *)span->state;
        uint32_t held = (uint32_t)((span->first + span->rows - 1) / SG_CHUNK + 1);
        uint32_t each = span_tile_rows(p, span->rows);
        int split = span->rows <= SG_FEW;
        if (split) {
            uint32_t room =
                state->capacity > held && state->capacity <= 4 * held + 64 ? state->capacity : held;
            if (room > chunks) chunks = room;
        }
        if (!split) tiles_add(p, s, row, span->rows, each);
        else {
            p->tiles[p->tiles_n++] = (struct sg_att_tile){
                .span = s, .row = row, .rows = span->rows, .base = p->units_n, .units = held, .split_row = split_rows};
            p->units_n += held;
            split_rows += span->rows;
        }
        row += span->rows;
    }
    size_t floats = (size_t)split_rows * chunks * p->split_row_floats;
    if (floats > p->split_cap) {
        size_t cap = floats + floats / 2;
        float *wider = sg_realloc(p->split, cap * sizeof *wider);
        if (!wider) return sg_no_memory("attention of a cpu program", cap * sizeof *wider, err);
        p->split = wider;
        p->split_cap = cap;
    }
    p->split_chunks = chunks;
    if (split_rows * p->kv_heads_max > p->pending_cap) {
        uint32_t cap = split_rows * p->kv_heads_max;
        atomic_uint *wider = sg_realloc(p->pending, cap * sizeof *wider);
        if (!wider) return sg_no_memory("attention of a cpu program", cap * sizeof *wider, err);
        p->pending = wider;
        p->pending_cap = cap;
    }
    for (uint32_t t = 0; t < p->tiles_n; t++)
        for (uint32_t i = 0; p->tiles[t].split_row != UINT32_MAX && i < p->kv_heads_max; i++)
            atomic_init(&p->pending[p->tiles[t].split_row * p->kv_heads_max + i], p->tiles[t].units);
    return SEGUE_OK;
}

/* --- keys: norm and rotate queries and keys, append keys and values --- */

static const float *angles_of(const struct sg_pass *a, const struct sg_op *rope, uint32_t row)
{
    return a->p->angles + (size_t)row * a->p->angle_columns + a->p->angle_at[rope->u.rope.table];
}

static void head_turn(const struct sg_pass *a, const struct sg_norm_use *norm, const struct sg_op *rope,
                      uint32_t row, const float *x, uint32_t d, float *room, float *y)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    if (norm->op) {
        k->norm(x, d, &norm->op->u.norm, norm->weight, norm->bias, room);
        x = room;
    }
    k->rope(x, a->p->base.graph->ropes[rope->u.rope.table].pairs, d, angles_of(a, rope, row),
            (float)rope->u.rope.sign, y);
}

static void key_work(struct sg_pass *a, const struct sg_stage *st, uint32_t row, uint32_t h, uint32_t thread)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_attend *at = &st->op->u.attend;
    uint32_t group = at->heads / at->kv_heads;
    const struct sg_span *span = &a->spans[a->p->row_span[row]];
    const struct sg_cpu_state *state = (const struct sg_cpu_state *)(const void *)span->state;
    uint64_t pos = a->p->row_pos[row];
    float *room = (float *)(void *)(a->p->threads[thread] + LINES), *turned = room + at->d;
    *(uint64_t *)(void *)a->p->threads[thread] = 0;
    size_t stride;
    if (st->q_out >= 0) {
        const float *q = sg_cpu_rows(a, st->q, row, &stride);
        float *out = sg_cpu_rows(a, (struct sg_operand){st->q_out, 0, 0}, row, &stride);
        for (uint32_t g = h * group; g < (h + 1) * group; g++)
            head_turn(a, &st->norm_q, st->rope_q, row, q + (size_t)g * at->d, at->d, room,
                      out + (size_t)g * at->d);
    }
    const float *key = sg_cpu_rows(a, st->key, row, &stride) + (size_t)h * at->d;
    if (st->rope_k) {
        head_turn(a, &st->norm_k, st->rope_k, row, key, at->d, room, turned);
        key = turned;
    }
    sg_kv_store(k, state, (uint32_t)at->slot_k, pos, h, key);
    sg_kv_store(k, state, (uint32_t)at->slot_v, pos, h,
                sg_cpu_rows(a, st->value, row, &stride) + (size_t)h * at->dv);
}

/* Keys of neighbours share lines: one thread writes them. */
static uint32_t keys_rows(const struct sg_pass *a) { return a->t <= SG_FEW ? 1 : KEY_ROWS; }

static void keys_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread)
{
    uint32_t heads = st->op->u.attend.kv_heads, n = keys_rows(a), row = item / heads * n;
    for (uint32_t end = a->t - row < n ? a->t : row + n; row < end; row++) key_work(a, st, row, item % heads, thread);
}

/* --- results --- */

static void conclude(const struct sg_pass *a, const struct sg_stage *st, struct sg_sums q, uint32_t row,
                     uint32_t head)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_attend *at = &st->op->u.attend;
    size_t stride;
    float *y = sg_cpu_rows(a, (struct sg_operand){st->op->out, 0, 0}, row, &stride) + (size_t)head * at->dv,
          mine = 1.0f, sum = *q.l;
    if (st->w0) {
        float sink = st->w0[head], top = *q.m > sink ? *q.m : sink;
        mine = *q.m == -INFINITY ? 0.0f : expf(*q.m - top);
        sum = sum * mine + expf(sink - top);
    }
    float inverse = mine / sum;
    for (uint32_t i = 0; i < at->dv; i++) y[i] = q.o[i] * inverse;
    if (st->op->in[3].value < 0) return;
    float gate[64];
    const float *g = sg_cpu_rows(a, st->op->in[3], row, &stride) + (size_t)head * at->dv;
    for (uint32_t i = 0; i < at->dv; i += 64) {
        uint32_t n = at->dv - i < 64 ? at->dv - i : 64;
        k->act(SG_ACT_SIGMOID, g + i, n, gate);
        k->mul(y + i, gate, n, y + i);
    }
}

/* --- chunks --- */

struct work {
    struct sg_pass *a;
    const struct sg_stage *st;
    const struct sg_att_tile *tile;
    const struct sg_cpu_state *state;
    uint32_t kv_head, group, dvp;
    uint64_t pos;                    /* of the tile's first row */
    const uint16_t *k16, *v16;       /* the chunk as it lies in the state; NULL: it is in room.k and room.v */
    const uint16_t *next;            /* keys of the chunk that this thread is likely to take next, or NULL */
    struct room room;
};

/* Keys [*lo, *hi) of the chunk that row r of the tile sees. */
static void seen(const struct work *w, uint32_t r, uint64_t chunk, uint32_t *lo, uint32_t *hi)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    uint64_t end = w->pos + r + 1, from = at->window && end > at->window ? end - at->window : 0,
             base = chunk * SG_CHUNK;
    *lo = from <= base ? 0 : from - base < SG_CHUNK ? (uint32_t)(from - base) : SG_CHUNK;
    *hi = end <= base ? 0 : end - base < SG_CHUNK ? (uint32_t)(end - base) : SG_CHUNK;
    if (*lo >= *hi) *lo = *hi = 0;
}

/* Queries of the tile; query i = row i / group, head kv_head * group + i % group. */
static void queries_load(struct work *w)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    size_t n = (size_t)w->group * at->d, stride;
    for (uint32_t r = 0; r < w->tile->rows; r++)
        memcpy(w->room.q + r * n, sg_cpu_rows(w->a, w->st->op->in[0], w->tile->row + r, &stride) + w->kv_head * n,
               n * sizeof(float));
}

/* One batch of queries over the chunk that lies in room.k and room.v: m, l and o of the chunk. Returns 0 when
 * none of them sees a key. */
static int batch_chunk(struct work *w, uint32_t from, uint32_t nq, uint64_t chunk, float *m, float *l)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t keys = 0, lo[BATCH], hi[BATCH];
    for (uint32_t i = 0; i < nq; i++) {
        seen(w, (from + i) / w->group, chunk, &lo[i], &hi[i]);
        if (hi[i] > keys) keys = hi[i];
    }
    if (!keys) return 0;
    const float *q = w->room.q + (size_t)from * at->d;
    if (w->k16) k->scores_f16(q, nq, at->d, w->k16, keys, w->room.s, from ? NULL : w->v16);
    else k->scores(q, nq, at->d, w->room.k, keys, w->room.s);
    for (uint32_t i = 0; i < nq; i++)
        k->soften(w->room.s + i * SG_CHUNK, lo[i], hi[i], keys, at->scale, at->softcap, &m[i], &l[i]);
    if (w->v16) k->weigh_f16(w->room.s, nq, keys, w->v16, w->dvp, w->room.part, from ? NULL : w->next);
    else k->weigh(w->room.s, nq, keys, w->room.v, w->dvp, w->room.part);
    return 1;
}

/* Rows of such passes: not what a tile or a batch happens to hold, so that a row's result is its own. */
static const struct sg_narrow *narrow_in(const struct work *w)
{
    return w->st->narrow && w->a->t > NARROW_ROWS ? sg_pass_kernels(w->a)->narrow : NULL;
}

/* As batch_chunk, in integers. */
static int batch_narrow(struct work *w, uint32_t from, uint32_t nq, uint64_t chunk, float *m, float *l)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_narrow *in = k->narrow;
    const struct sg_attend *at = &w->st->op->u.attend;
    const struct narrow *n = &w->room.n;
    uint32_t keys = 0, lo[BATCH], hi[BATCH];
    float top[BATCH];
    for (uint32_t i = 0; i < nq; i++) {
        seen(w, (from + i) / w->group, chunk, &lo[i], &hi[i]);
        if (hi[i] > keys) keys = hi[i];
    }
    if (!keys) return 0;
    in->scores(n->q + (size_t)from * sg_narrow_width(at->d), nq, at->d, n->k, n->k_scale, keys, w->room.s);
    for (uint32_t i = 0; i < nq; i++) {
        float *s = w->room.s + i * SG_CHUNK;
        k->soften(s, lo[i], hi[i], keys, at->scale * n->q_scale[from + i], at->softcap, &m[i], &l[i]);
        top[i] = hi[i] ? n->v_top[hi[i] - 1] : 0.0f;
        in->weights(s, n->v_scale, top[i], keys, n->p + i * SG_CHUNK);
    }
    in->weigh(n->p, top, nq, keys, n->v, w->dvp, w->room.part);
    return 1;
}

static void chunk_load(struct work *w, uint64_t chunk)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint64_t left = w->pos + w->tile->rows - chunk * SG_CHUNK;
    uint32_t keys = left < SG_CHUNK ? (uint32_t)left : SG_CHUNK;
    const struct sg_narrow *in = narrow_in(w);
    const void *k16 = in ? sg_kv_f16(w->state, (uint32_t)at->slot_k, chunk, w->kv_head) : NULL,
               *v16 = in && w->dvp == at->dv ? sg_kv_f16(w->state, (uint32_t)at->slot_v, chunk, w->kv_head) : NULL;
    if (!k16) sg_kv_load(k, w->state, (uint32_t)at->slot_k, chunk, w->kv_head, keys, w->room.k);
    if (!v16) sg_kv_load(k, w->state, (uint32_t)at->slot_v, chunk, w->kv_head, keys, w->room.v);
    if (!in) return;
    /* The scale of a value row is its largest magnitude over dvp columns: the padding columns must not hold what the
     * scratch memory held before. */
    for (uint32_t t = 0; w->dvp > at->dv && t < keys; t++)
        memset(w->room.v + (size_t)t * w->dvp + at->dv, 0, (w->dvp - at->dv) * sizeof(float));
    in->keys(k16 ? k16 : w->room.k, k16 != NULL, at->d, keys, w->room.n.k, w->room.n.k_scale);
    in->values(v16 ? v16 : w->room.v, v16 != NULL, w->dvp, keys, w->room.n.v, w->room.n.v_scale, w->room.n.v_top);
}

/* Few queries read each number once: they take it as it lies. Of many, a chunk in fp32 serves all. */
static int chunk_in_place(struct work *w, uint64_t chunk)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    w->k16 = w->v16 = NULL;
    if (!k->scores_f16 || w->dvp != at->dv || w->tile->rows * w->group > 2 * BATCH) return 0;
    w->k16 = sg_kv_f16(w->state, (uint32_t)at->slot_k, chunk, w->kv_head);
    w->v16 = sg_kv_f16(w->state, (uint32_t)at->slot_v, chunk, w->kv_head);
    uint32_t head = (w->kv_head + 1) % at->kv_heads;
    uint64_t then = chunk + !head;
    w->next = then < w->tile->units ? sg_kv_f16(w->state, (uint32_t)at->slot_k, then, head) : NULL;
    return w->k16 && w->v16;
}

static uint64_t first_chunk(const struct work *w)
{
    uint32_t window = w->st->op->u.attend.window;
    return window && w->pos + 1 > window ? (w->pos + 1 - window) / SG_CHUNK : 0;
}

static void whole_tile(struct work *w)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t all = w->tile->rows * w->group;
    for (uint32_t i = 0; i < all; i++) {
        w->room.m[i] = -INFINITY;
        w->room.l[i] = 0.0f;
    }
    const struct sg_narrow *in = narrow_in(w);
    if (in) in->rows(w->room.q, all, at->d, w->room.n.q, w->room.n.q_scale);
    memset(w->room.o, 0, (size_t)all * w->dvp * sizeof(float));
    for (uint64_t c = first_chunk(w); c <= (w->pos + w->tile->rows - 1) / SG_CHUNK; c++) {
        if (sg_pass_stops(w->a)) return;
        chunk_load(w, c);
        for (uint32_t from = 0; from < all; from += BATCH) {
            uint32_t nq = all - from < BATCH ? all - from : BATCH;
            float m[BATCH], l[BATCH];
            if (!(in ? batch_narrow : batch_chunk)(w, from, nq, c, m, l)) continue;
            k->join(nq, at->dv, &(struct sg_sums){w->room.m + from, w->room.l + from, w->room.o + (size_t)from * w->dvp},
                    w->dvp, &(struct sg_sums){m, l, w->room.part}, w->dvp);
        }
    }
    for (uint32_t i = 0; i < all; i++)
        conclude(w->a, w->st, (struct sg_sums){&w->room.m[i], &w->room.l[i], w->room.o + (size_t)i * w->dvp},
                 w->tile->row + i / w->group, w->kv_head * w->group + i % w->group);
}

/* m, l and o of query i of a split tile in chunk c. */
static float *split_at(const struct work *w, uint32_t i, uint64_t c)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    size_t row = w->tile->split_row + i / w->group, head = w->kv_head * w->group + i % w->group;
    return w->a->p->split + ((row * at->heads + head) * w->a->p->split_chunks + c) * (at->dv + 2);
}

/* Heads of one row, BATCH at a time, over all chunks. */
static void split_row_join(struct work *w, uint32_t first, uint32_t n)
{
    const struct sg_kernels *k = sg_pass_kernels(w->a);
    const struct sg_attend *at = &w->st->op->u.attend;
    const size_t apart = (size_t)w->a->p->split_chunks * (at->dv + 2);   /* from head to head */
    struct sg_sums q = {w->room.m, w->room.l, w->room.o};
    for (uint32_t i = 0; i < n; i++) {
        q.m[i] = -INFINITY;
        q.l[i] = 0.0f;
    }
    memset(q.o, 0, (size_t)n * w->dvp * sizeof(float));
    for (uint64_t c = first_chunk(w); c < w->tile->units; c++) {
        float m[BATCH], l[BATCH], *s = split_at(w, first, c);
        for (uint32_t i = 0; i < n; i++) {
            m[i] = s[i * apart];
            l[i] = s[i * apart + 1];
        }
        k->join(n, at->dv, &q, w->dvp, &(struct sg_sums){m, l, s + 2}, apart);
    }
    for (uint32_t i = 0; i < n; i++)
        conclude(w->a, w->st, (struct sg_sums){q.m + i, q.l + i, q.o + (size_t)i * w->dvp},
                 w->tile->row + first / w->group, w->kv_head * w->group + first % w->group + i);
}

static void split_join(struct work *w)
{
    for (uint32_t r = 0; r < w->tile->rows; r++)
        for (uint32_t from = 0; from < w->group; from += BATCH)
            split_row_join(w, r * w->group + from, w->group - from < BATCH ? w->group - from : BATCH);
}

static void split_chunk(struct work *w, uint64_t c)
{
    const struct sg_attend *at = &w->st->op->u.attend;
    uint32_t all = w->tile->rows * w->group;
    if (c >= first_chunk(w)) {
        if (!chunk_in_place(w, c)) chunk_load(w, c);
        for (uint32_t from = 0; from < all; from += BATCH) {
            uint32_t nq = all - from < BATCH ? all - from : BATCH;
            float m[BATCH], l[BATCH];
            int some = batch_chunk(w, from, nq, c, m, l);
            for (uint32_t i = 0; i < nq; i++) {
                float *s = split_at(w, from + i, c);
                s[0] = some ? m[i] : -INFINITY;
                s[1] = some ? l[i] : 0.0f;
                if (some) memcpy(s + 2, w->room.part + (size_t)i * w->dvp, at->dv * sizeof *s);
            }
        }
    }
    atomic_uint *pending = &w->a->p->pending[w->tile->split_row * w->a->p->kv_heads_max + w->kv_head];
    if (atomic_fetch_sub_explicit(pending, 1u, memory_order_acq_rel) != 1) return;
    atomic_store_explicit(pending, w->tile->units, memory_order_relaxed);    /* for the next layer */
    split_join(w);
}

static void attend_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread)
{
    const struct sg_attend *at = &st->op->u.attend;
    uint32_t unit = item / at->kv_heads, lo = 0, hi = a->p->tiles_n;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (a->p->tiles[mid].base <= unit) lo = mid;
        else hi = mid;
    }
    struct work w = {.a = a, .st = st, .tile = &a->p->tiles[lo], .kv_head = item % at->kv_heads};
    w.group = at->heads / at->kv_heads;
    w.dvp = pad16(at->dv);
    w.pos = a->p->row_pos[w.tile->row];
    w.state = (const struct sg_cpu_state *)(const void *)a->spans[w.tile->span].state;
    w.room = room_of(a, st, thread);
    queries_load(&w);
    if (w.tile->split_row == UINT32_MAX) whole_tile(&w);
    else split_chunk(&w, unit - w.tile->base);
}

uint32_t sg_attend_items(const struct sg_pass *a, const struct sg_stage *st)
{
    uint32_t kv = st->op->u.attend.kv_heads;
    return st->kind == SG_ST_KEYS ? (a->t + keys_rows(a) - 1) / keys_rows(a) * kv : a->p->units_n * kv;
}

void sg_attend_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread)
{
    if (st->kind == SG_ST_KEYS) keys_work(a, st, item, thread);
    else attend_work(a, st, item, thread);
}
