/* export_rows.c: rows are independent, so threads take ranges of them from a counter until none is left. After an error no
 * range after it is started; of several errors the first row's is reported, as one thread would find it.
 * SPDX-License-Identifier: MIT */
#include "model/quantize/export_rows.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS_MAX = 64, RANGE_NUMBERS = 1 << 18 /* per write, or one row */ };

/* What the threads share. */
struct encoding {
    const struct sg_export_rows *tensor;
    uint32_t range;              /* rows */
    atomic_uint_fast64_t next;   /* row of the next range */
    atomic_uint_fast64_t failed; /* first row of the first range with an error */
};

/* One thread. */
struct encoder {
    struct encoding *of;
    float *row, *logical;
    uint8_t *blocks;
    uint64_t at; /* first row of the range of the error */
    segue_status status;
    segue_error err;
};

segue_status sg_export_buffers_new(struct sg_export_buffers *b, uint64_t widest, segue_error *err)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    b->threads = n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (uint32_t)n;
    b->widest = widest;
    b->range = widest < RANGE_NUMBERS ? (uint32_t)(RANGE_NUMBERS / widest) : 1;
    size_t numbers = (size_t)(b->threads * widest);
    b->row = sg_alloc(2 * numbers * sizeof *b->row);
    b->blocks = sg_alloc(4 * b->range * numbers);
    return b->row && b->blocks ? SEGUE_OK : sg_no_memory("rows", numbers * (8 + 4 * b->range), err);
}

void sg_export_buffers_free(struct sg_export_buffers *b)
{
    sg_free(b->row);
    sg_free(b->blocks);
}

/* Convert the values of a row to GGUF's convention. */
static void finish_row(const struct sg_export_rows *t, float *row, uint64_t width)
{
    for (uint64_t c = 0; t->plus_one && c < width; c++) row[c] += 1;
    for (uint64_t c = 0; t->log_decay && c < width; c++) row[c] = -expf(row[c]);
}

/* Row r of the new file, encoded to `to`. */
static segue_status encode_row(struct encoder *e, uint64_t r, uint8_t *to)
{
    const struct sg_export_rows *t = e->of->tensor;
    const struct sg_gguf_item *item = &t->out->items[t->item];
    uint64_t width = item->shape[item->rank - 1];
    /* Reading undoes the permutations of the source; cols[] applies those of the new file. */
    sg_tensor_row(t->tensor, t->rows[r], 0, width, e->logical);
    for (uint64_t c = 0; c < width; c++) e->row[c] = e->logical[t->cols[c]];
    finish_row(t, e->row, width);
    for (uint64_t c = 0; c < width; c++)
        if (!isfinite(e->row[c]))
            return sg_fail(&e->err, SEGUE_EFORMAT,
                           "quantize: %s: row %llu has a number that is not finite; the file is damaged", item->name,
                           (unsigned long long)r);
    return sg_quant_row(item->storage, e->row, t->importance, width, to, &e->err);
}

static segue_status encode_range(struct encoder *e, uint64_t from, uint64_t to)
{
    const struct sg_export_rows *t = e->of->tensor;
    uint64_t bytes = t->out->items[t->item].bytes / t->tensor->rows;
    for (uint64_t r = from; r < to; r++) SG_TRY(encode_row(e, r, e->blocks + (r - from) * bytes));
    return sg_gguf_out_data(t->out, t->item, from * bytes, e->blocks, (size_t)((to - from) * bytes), &e->err);
}

/* Ranges are taken in order, so every range before the first error is encoded. */
static void *encode(void *arg)
{
    struct encoder *e = arg;
    struct encoding *of = e->of;
    const uint64_t n = of->tensor->tensor->rows, range = of->range;
    for (uint64_t from; (from = atomic_fetch_add(&of->next, range)) < n && from < atomic_load(&of->failed);) {
        e->status = encode_range(e, from, from + range < n ? from + range : n);
        if (e->status == SEGUE_OK) continue;
        e->at = from;
        uint_fast64_t first = atomic_load(&of->failed);
        while (from < first && !atomic_compare_exchange_weak(&of->failed, &first, from)) continue;
        break;
    }
    return NULL;
}

segue_status sg_export_write_rows(const struct sg_export_rows *t, const struct sg_export_buffers *b, segue_error *err)
{
    struct encoding of = {.tensor = t, .range = b->range};
    struct encoder encoders[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    uint64_t ranges = (t->tensor->rows + b->range - 1) / b->range;
    uint32_t threads = ranges < b->threads ? (uint32_t)(ranges ? ranges : 1) : b->threads, started = 0;
    atomic_init(&of.next, 0);
    atomic_init(&of.failed, UINT64_MAX);
    for (uint32_t i = 0; i < threads; i++)
        encoders[i] = (struct encoder){.of = &of,
                                       .row = b->row + 2 * i * b->widest,
                                       .logical = b->row + (2 * i + 1) * b->widest,
                                       .blocks = b->blocks + 4 * b->range * i * b->widest};
    /* The caller is the last thread; ranges of threads that cannot be started are encoded by the others. */
    while (started + 1 < threads && !pthread_create(&ids[started], NULL, encode, &encoders[started])) started++;
    encode(&encoders[threads - 1]);
    for (uint32_t i = 0; i < started; i++) pthread_join(ids[i], NULL);
    for (uint32_t i = 0; i < threads; i++)
        if (encoders[i].status != SEGUE_OK && encoders[i].at == atomic_load(&of.failed))
            return sg_fail(err, encoders[i].status, "%s", encoders[i].err.text);
    return SEGUE_OK;
}
