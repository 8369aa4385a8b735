/* upload.c: uploads weights, each tensor once, in bands of rows: threads check a band for finite numbers and repack it into a
 * pinned buffer, and while it is copied to the GPU they fill the next buffer. The file is read once, through its mapping.
 * Weights of linears with the same input are placed in one allocation, so that one GEMM can multiply all of them (issue_gemm.c).
 * SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <string.h>

#include "unit/cuda/compile/packed_ring.h"
#include "unit/cuda/compile/program.h"
#include "unit/cuda/compile/repack.h"
#include "unit/pool.h"

/* Bytes of a band, about; rows of one item of the thread pool; numbers from which a tensor is converted by several threads. */
enum { BAND_BYTES = 8 << 20, ROWS_PER_ITEM = 16, THREADED_MIN = 1 << 20 };

/* Bytes of the rows, rounded up so that the scales that follow are aligned. */
static size_t data_bytes(const struct ck_weight *w) { return ((size_t)w->pitch * cu_stored_rows(w, w->rows) + 255) / 256 * 256; }

/* A band: rows [from, to) of a tensor. */
struct cu_row_band {
    const struct sg_tensor *t;
    const struct ck_weight *w;
    uint64_t from, to;
    float *numbers; /* scratch: [threads][cu_repack_scratch(t)] */
    uint8_t *data, *scales;
    int check, clear; /* 1: check the rows for finite numbers; zero them first, since repacking leaves padding as it is */
    atomic_uint_fast64_t bad_row; /* the lowest row that is not finite; UINT64_MAX: none */
};

/* 1: row r of the matrix is row r, or another whole row, of the tensor in the file, so that checking all rows checks it. */
static int rows_are_stored_rows(const struct sg_tensor *t)
{
    return !t->transposed && !t->fp8_source && !t->part && sg_tensor_stored_rows(t) == t->rows;
}

static void note_bad_row(struct cu_row_band *b, uint64_t row)
{
    uint_fast64_t least = atomic_load(&b->bad_row);
    while (row < least && !atomic_compare_exchange_weak(&b->bad_row, &least, row)) {}
}

/* Converts ROWS_PER_ITEM rows of a band; an item of the thread pool's job. */
static void fill_item(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    struct cu_row_band *b = arg;
    uint64_t at = (uint64_t)item * ROWS_PER_ITEM, left = b->to - b->from - at, n = left < ROWS_PER_ITEM ? left : ROWS_PER_ITEM,
             bad;
    (void)stage;
    if (b->check && !sg_tensor_finite_rows(b->t, b->from + at, b->from + at + n, &bad)) note_bad_row(b, bad);
    if (b->clear) memset(b->data + at * b->w->pitch, 0, (size_t)cu_stored_rows(b->w, n) * b->w->pitch);
    cu_repack_rows(b->t, b->w, b->from + at, b->from + at + n, b->numbers + thread * cu_repack_scratch(b->t),
                   b->data + at * b->w->pitch, b->scales + at * b->w->scale_pitch * cu_scale_entry_bytes(b->w));
}

/* Converts a band, in parallel if there is a pool. */
static void fill_band(struct sg_pool *pool, struct cu_row_band *b)
{
    uint32_t items = (uint32_t)((b->to - b->from + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM);
    struct sg_job job = {.items = &items, .stages = 1, .work = fill_item, .arg = b};
    if (pool) sg_pool_run(pool, &job);
    for (uint32_t i = 0; !pool && i < items; i++) fill_item(b, 0, i, 0);
}

/* Rows of a band: about BAND_BYTES, a whole number of items, at most all rows. */
static uint64_t band_rows(const struct ck_weight *w)
{
    uint64_t rows = BAND_BYTES / (w->pitch + w->scale_pitch * cu_scale_entry_bytes(w) + 1) / ROWS_PER_ITEM * ROWS_PER_ITEM;
    return !rows ? ROWS_PER_ITEM : rows < w->rows ? rows : cu_stored_rows(w, w->rows);
}

/* One band: convert with all threads, then copy data and scales. ECANCELED: the unit's progress function asked to stop. */
static segue_status send_band(struct cu_weights *all, struct cu_tensor *t, struct cu_row_band *b, segue_error *err)
{
    const struct ck_weight *w = &t->w;
    struct sg_unit *u = all->unit;
    size_t rows = (size_t)(b->to - b->from), scale_row = w->scale_pitch * cu_scale_entry_bytes(w),
           data = (size_t)cu_stored_rows(w, rows) * w->pitch;
    SG_TRY(cu_ring_buffer(u, &all->ring, (size_t)band_rows(w) * (w->pitch + scale_row), &b->data, err));
    b->scales = b->data + data;
    fill_band(all->pool, b);
    if (atomic_load(&b->bad_row) != UINT64_MAX) return sg_tensor_fail_not_finite(t->source, atomic_load(&b->bad_row), err);
    SG_TRY(cu_ring_copy(u, &all->ring, t->memory + b->from * w->pitch, 0, data, err));
    if (scale_row)
        SG_TRY(cu_ring_copy(u, &all->ring, t->memory + data_bytes(w) + b->from * scale_row, data, rows * scale_row, err));
    SG_TRY(cu_ring_next(u, &all->ring, err));
    all->sent += data + rows * scale_row;
    if (sg_progress_stop(u->progress, all->sent))
        return sg_fail(err, SEGUE_ECANCELED, "load weights: unit cuda: canceled by the caller");
    return SEGUE_OK;
}

/* Band by band; returns before the last copies are complete. numbers: scratch of the caller. */
static segue_status send_rows(struct cu_weights *all, struct cu_tensor *t, float *numbers, segue_error *err)
{
    const struct ck_weight *w = &t->w;
    uint64_t many = band_rows(w), bad;
    int plain = w->kind == CK_F32 || w->kind == CK_F16 || w->kind == CK_BF16;
    struct cu_row_band b = {.t = t->source, .w = w, .numbers = numbers, .check = rows_are_stored_rows(t->source)};
    b.clear = !plain || w->pitch != w->cols * (w->kind == CK_F32 ? 4u : 2u);
    atomic_init(&b.bad_row, UINT64_MAX);
    if (!b.check && !sg_tensor_finite(t->source, &bad)) return sg_tensor_fail_not_finite(t->source, bad, err);
    for (b.from = 0; b.from < w->rows; b.from = b.to) {
        b.to = b.from + many < w->rows ? b.from + many : w->rows;
        SG_TRY(send_band(all, t, &b, err));
    }
    return SEGUE_OK;
}

/* A tensor as fp32 numbers, for norms, biases and other small vectors. */
static segue_status send_vector(struct sg_unit *u, struct cu_tensor *t, segue_error *err)
{
    size_t n = (size_t)t->source->rows * t->source->cols;
    uint64_t bad;
    if (!sg_tensor_finite(t->source, &bad)) return sg_tensor_fail_not_finite(t->source, bad, err);
    float *numbers = sg_alloc(n * sizeof *numbers);
    if (!numbers) return sg_no_memory("a vector of weights", n * sizeof *numbers, err);
    sg_tensor_read(t->source, numbers);
    segue_status status = cu_mem_alloc(u, n * sizeof *numbers, "weights", &t->vector, err);
    if (status == SEGUE_OK) status = cu_copy_to_gpu(u, t->vector, numbers, n * sizeof *numbers, err);
    sg_free(numbers);
    return status;
}

/* A tensor as a matrix. The thread pool is opened with the first large one. A tensor that join_weights placed has its memory
 * already. */
static segue_status send_matrix(struct cu_weights *all, struct cu_tensor *t, segue_error *err)
{
    struct ck_weight *w = &t->w;
    struct sg_unit *u = all->unit;
    if (!all->pool && (uint64_t)w->rows * w->cols >= THREADED_MIN) SG_TRY(sg_pool_open(&all->pool, 0, err));
    uint32_t threads = all->pool ? sg_pool_threads(all->pool) : 1;
    t->bytes = data_bytes(w) + (size_t)w->scale_pitch * cu_scale_entry_bytes(w) * w->rows;
    if (!t->memory) SG_TRY(cu_mem_alloc(u, t->bytes, t->source->name ? t->source->name : "weights", &t->memory, err));
    float *numbers = sg_alloc(threads * cu_repack_scratch(t->source) * sizeof *numbers);
    segue_status status = numbers ? send_rows(all, t, numbers, err) : sg_no_memory("rows of weights", w->pitch, err);
    sg_free(numbers);
    w->data = (const void *)(uintptr_t)t->memory;
    w->scales = (const void *)(uintptr_t)(t->memory + data_bytes(w));
    return status;
}

/* How the ops of a graph use a tensor: bit 0 as a matrix, bit 1 as fp32 numbers. */
static uint32_t uses_of(const struct sg_graph *g, uint32_t tensor)
{
    uint32_t uses = 0;
    int32_t n = (int32_t)tensor;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        switch (op->code) {
        case SG_OP_EMBED:
            uses |= op->u.embed.table.tensor == n || op->u.embed.positions.tensor == n;
            break;
        case SG_OP_LINEAR:
            uses |= (op->u.linear.weight.tensor == n) | (op->u.linear.bias.tensor == n) << 1;
            break;
        case SG_OP_NORM:
            uses |= (uint32_t)(op->u.norm.weight.tensor == n || op->u.norm.bias.tensor == n) << 1;
            break;
        case SG_OP_ATTEND:
            uses |= (uint32_t)(op->u.attend.sinks.tensor == n) << 1;
            break;
        case SG_OP_CONV:
            uses |= (uint32_t)(op->u.conv.weight.tensor == n || op->u.conv.bias.tensor == n) << 1;
            break;
        case SG_OP_DELTA:
            uses |= (uint32_t)(op->u.delta.decay.tensor == n || op->u.delta.dt.tensor == n) << 1;
            break;
        case SG_OP_SCALE:
            uses |= (uint32_t)(op->u.scale.weight.tensor == n) << 1;
            break;
        case SG_OP_ROUTE:
            uses |= (uint32_t)(op->u.route.bias.tensor == n) << 1;
            break;
        case SG_OP_EXPERTS:
            uses |= op->u.experts.gate.tensor == n || op->u.experts.up.tensor == n || op->u.experts.down.tensor == n;
            break;
        default:
            break;
        }
    }
    return uses;
}

/* The entry of a tensor; NULL: not registered yet. */
static struct cu_tensor *tensor_of(struct cu_weights *w, const struct sg_tensor *t)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->tensors[i].source == t) return &w->tensors[i];
    return NULL;
}

const struct cu_tensor *cu_weight_of(const struct cu_weights *w, const struct sg_tensor *t)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->tensors[i].source == t) return &w->tensors[i];
    return NULL;
}

static int reads(const struct sg_graph *g, const struct sg_weight *w, const struct sg_tensor *source)
{
    return w->tensor >= 0 && g->tensors[w->tensor] == source;
}

/* 1: the tensor may have the packed layout: its readers begin at a multiple of eight rows, and none is a mixture of experts. */
static int may_pack(const struct cu_weights *w, const struct sg_tensor *source)
{
    if (!w->unit->packed) return 0;
    for (uint32_t i = 0; i < w->graphs_n; i++)
        for (uint32_t k = 0; k < w->graphs[i]->ops_n; k++) {
            const struct sg_graph *g = w->graphs[i];
            const struct sg_op *op = &g->ops[k];
            const struct sg_experts *e = &op->u.experts;
            if (op->code == SG_OP_LINEAR && reads(g, &op->u.linear.weight, source) && op->u.linear.weight.at % 8) return 0;
            if (op->code == SG_OP_EXPERTS &&
                (reads(g, &e->gate, source) || reads(g, &e->up, source) || reads(g, &e->down, source)))
                return 0;
        }
    return 1;
}

/* 1: k_packed.cu has room for a row of x and a ring of 16 rows of weights, with as many warps per row and as many tiles as can be
 * (issue_packed.c sizes launches by the same functions). */
static int packed_fits(const struct sg_unit *u, const struct ck_weight *w)
{
    uint32_t chunks = w->cols / CK_PACKED_CHUNK, split_log = cu_packed_split_max(chunks), slot = 2 * (8 * w->pitch / chunks),
             width = cu_packed_width(chunks, split_log), fixed;
    return cu_packed_slots(width, split_log, CU_PACKED_TURN_MAX, slot, cu_packed_capacity(u), &fixed) >= CU_PACKED_RING_LEAST;
}

/* The entry of a tensor, created on first use. Kernels index columns and rows with 32 bits. */
static segue_status register_tensor(struct cu_weights *w, const struct sg_tensor *source, struct cu_tensor **out,
                                    segue_error *err)
{
    *out = tensor_of(w, source);
    if (*out) return SEGUE_OK;
    SG_TRY(sg_tensor_computable(source, err));
    if (source->rows > INT32_MAX || source->cols > INT32_MAX / 8)
        return sg_fail(err, SEGUE_ELIMIT,
                       "load weights: unit cuda: tensor %s has too many rows or columns; use "
                       "another unit",
                       source->name);
    *out = &w->tensors[w->n++];
    (*out)->source = source;
    cu_weight_shape(source, may_pack(w, source), &(*out)->w);
    if ((*out)->w.kind >= CK_PACKED && !packed_fits(w->unit, &(*out)->w)) cu_weight_shape(source, 0, &(*out)->w);
    return SEGUE_OK;
}

/* 1: the weight may be placed after another one in a block: 16 bits, all of its rows used, no bias and nothing added, and not
 * uploaded yet. */
static int can_follow(const struct sg_graph *g, const struct sg_op *op, const struct cu_tensor *t)
{
    return op->code == SG_OP_LINEAR && !t->memory && (t->w.kind == CK_F16 || t->w.kind == CK_BF16) && !op->u.linear.weight.at &&
           op->u.linear.weight.rows == g->tensors[op->u.linear.weight.tensor]->rows && op->u.linear.bias.tensor < 0 &&
           op->in[1].value < 0;
}

/* Allocates one block for the weights of linears that read the same x as op `i`, so that one GEMM can multiply all of them
 * (issue_gemm.c). Only when op i itself can be in a block; the block has no scales. */
static segue_status join_weights(struct cu_weights *w, const struct sg_graph *g, uint32_t i, segue_error *err)
{
    const struct sg_op *first = &g->ops[i];
    struct cu_tensor *parts[CK_SEGMENTS];
    uint32_t n = 0;
    size_t all = 0;
    /* Returns when op i itself cannot be in a block: later ops are tried in calls of their own. */
    for (uint32_t k = i; k < g->ops_n && n < CK_SEGMENTS; k++) {
        const struct sg_op *op = &g->ops[k];
        struct cu_tensor *t;
        int again = 0;
        if (op->code != SG_OP_LINEAR || memcmp(&op->in[0], &first->in[0], sizeof op->in[0])) continue;
        SG_TRY(register_tensor(w, g->tensors[op->u.linear.weight.tensor], &t, err));
        for (uint32_t m = 0; m < n; m++) again |= parts[m] == t;
        if (again || !can_follow(g, op, t) || (n && (t->w.kind != parts[0]->w.kind || t->w.pitch != parts[0]->w.pitch))) {
            if (!n) return SEGUE_OK;
            continue;
        }
        parts[n++] = t;
        all += (size_t)t->w.pitch * t->w.rows;
    }
    if (n < 2) return SEGUE_OK;
    SG_TRY(cu_mem_alloc(w->unit, all + 256, "weights", &parts[0]->memory, err));
    for (uint32_t k = 1; k < n; k++) {
        parts[k]->memory = parts[k - 1]->memory + (size_t)parts[k - 1]->w.pitch * parts[k - 1]->w.rows;
        parts[k]->joined = 1;
    }
    return SEGUE_OK;
}

/* Uploads what the ops of one graph use and earlier graphs did not. */
static segue_status load_tensor(struct cu_weights *w, const struct sg_tensor *source, uint32_t uses, segue_error *err)
{
    struct cu_tensor *t;
    uint64_t bad;
    SG_TRY(register_tensor(w, source, &t, err));
    if (!uses && !sg_tensor_finite(source, &bad)) return sg_tensor_fail_not_finite(source, bad, err);
    if ((uses & 1) && !t->w.data) SG_TRY(send_matrix(w, t, err));
    if ((uses & 2) && !t->vector) {
        SG_TRY(send_vector(w->unit, t, err));
        t->bytes += (size_t)source->rows * source->cols * sizeof(float);
    }
    return SEGUE_OK;
}

/* All blocks are joined before the first upload, since a tensor that has memory cannot be moved. */
static segue_status load_all(struct cu_weights *w, const struct sg_graph *const *graphs, uint32_t graphs_n, segue_error *err)
{
    for (uint32_t i = 0; i < graphs_n; i++)
        for (uint32_t k = 0; k < graphs[i]->ops_n; k++)
            if (graphs[i]->ops[k].code == SG_OP_LINEAR) SG_TRY(join_weights(w, graphs[i], k, err));
    for (uint32_t i = 0; i < graphs_n; i++)
        for (uint32_t k = 0; k < graphs[i]->tensors_n; k++)
            SG_TRY(load_tensor(w, graphs[i]->tensors[k], uses_of(graphs[i], k), err));
    for (uint32_t i = 0; i < w->n; i++) w->bytes += w->tensors[i].bytes;
    return SEGUE_OK;
}

/* A joined tensor's memory belongs to the first one of its block. */
void cu_weights_free(struct cu_weights *w)
{
    if (!w || --w->references) return;
    for (uint32_t i = 0; i < w->n; i++) {
        if (!w->tensors[i].joined) cu_mem_free(w->unit, &w->tensors[i].memory);
        cu_mem_free(w->unit, &w->tensors[i].vector);
    }
    sg_free(w->tensors);
    sg_free(w);
}

/* The pool and the ring exist only during the upload: threads and pinned memory would otherwise stay for the life of the
 * program. */
segue_status cu_weights_new(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t graphs_n, struct cu_weights **out,
                            segue_error *err)
{
    struct cu_weights *w = sg_alloc(sizeof *w);
    size_t n = 0;
    for (uint32_t i = 0; i < graphs_n; i++) n += graphs[i]->tensors_n;
    struct cu_tensor *tensors = sg_alloc(n * sizeof *tensors);
    if (!w || !tensors) {
        sg_free(w);
        sg_free(tensors);
        return sg_no_memory("weights", n * sizeof *tensors, err);
    }
    *w = (struct cu_weights){.unit = u, .references = 1, .tensors = tensors, .graphs = graphs, .graphs_n = graphs_n};
    segue_status status = load_all(w, graphs, graphs_n, err);
    sg_pool_close(w->pool);
    w->pool = NULL;
    w->graphs = NULL;
    segue_status copied = cu_ring_close(u, &w->ring, status == SEGUE_OK ? err : NULL);
    if (status == SEGUE_OK) status = copied;
    if (status != SEGUE_OK) {
        cu_weights_free(w);
        return status;
    }
    *out = w;
    return SEGUE_OK;
}
