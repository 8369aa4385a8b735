/* group_lora.c: LoRA adapters of a group. The change of a weight is b a, with a [lora_rank, cols] and b [rows, lora_rank].
 * A rank with some rows of the weight uses these rows of b; a rank with some columns uses these columns of a, and the sum
 * of the ranks (op join) includes the change. Weights that are not split keep their pair. One list has the pairs of all
 * ranks, found by tensor. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "unit/group/group_types.h"

struct group_lora {
    struct sg_lora lora;             /* same id as the unsplit adapter */
    struct sg_lora_pair *pairs;      /* [lora.pairs_n] */
    struct sg_arena arena;           /* gathered rows and columns */
    struct group_lora *next;
};

void sg_group_loras_free(struct group_lora *l)
{
    while (l) {
        struct group_lora *next = l->next;
        sg_arena_free(&l->arena);
        sg_free(l->pairs);
        sg_free(l);
        l = next;
    }
}

/* A dense copy of the given rows and columns of a matrix with k columns. NULL: no memory. */
static const float *gather(struct sg_arena *arena, const float *from, uint64_t k, uint64_t rows,
                           const struct sg_index_run *rows_of,
                           uint32_t rows_n, uint64_t cols, const struct sg_index_run *cols_of, uint32_t cols_n)
{
    float *to = sg_arena_alloc(arena, (size_t)(rows * cols) * sizeof *to);
    for (uint64_t i = 0, at = 0; to && i < rows; i++)
        for (uint32_t r = 0; r < cols_n; at += cols_of[r++].n)
            memcpy(to + at, from + sg_part_at(rows_of, rows_n, i) * k + cols_of[r].at, (size_t)cols_of[r].n * sizeof *to);
    return to;
}

/* Appends the pair of one part of a weight. */
static segue_status part_pair(struct group_lora *l, const struct sg_lora_pair *whole, const struct sg_tensor *t, segue_error *err)
{
    const struct sg_tensor_part *p = t->part;
    const struct sg_index_run ranks = {0, whole->rank};
    struct sg_lora_pair *pair = &l->pairs[l->lora.pairs_n++];
    *pair = (struct sg_lora_pair){t, whole->rank, whole->a, whole->b};
    if (t->cols != whole->tensor->cols)
        pair->a = gather(&l->arena, whole->a, whole->tensor->cols, whole->rank, &ranks, 1, t->cols, p->cols, p->cols_n);
    if (t->rows != whole->tensor->rows)
        pair->b = gather(&l->arena, whole->b, whole->rank, t->rows, p->rows, p->rows_n, whole->rank, &ranks, 1);
    return pair->a && pair->b
               ? SEGUE_OK
               : sg_no_memory("adapter of several units", (size_t)(t->rows + t->cols) * whole->rank * sizeof(float), err);
}

/* Order of sg_lora_find: by the address of the tensor. */
static int by_tensor(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct sg_lora_pair *)a)->tensor, y = (uintptr_t)((const struct sg_lora_pair *)b)->tensor;
    return (x > y) - (x < y);
}

/* The pairs of the whole weights, then those of all parts, sorted for sg_lora_find. */
static segue_status split_adapter(struct group_lora *l, const struct sg_tp_graphs *s, const struct sg_lora *whole,
                                  segue_error *err)
{
    size_t max = (size_t)whole->pairs_n + s->parts_n;
    l->pairs = sg_alloc(max * sizeof *l->pairs);
    if (!l->pairs) return sg_no_memory("adapter of several units", max * sizeof *l->pairs, err);
    l->lora = (struct sg_lora){.id = whole->id, .pairs = l->pairs, .pairs_n = whole->pairs_n};
    memcpy(l->pairs, whole->pairs, whole->pairs_n * sizeof *l->pairs);
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct sg_lora_pair *pair = sg_lora_find(whole, s->parts[i]->part->of);
        if (pair) SG_TRY(part_pair(l, pair, s->parts[i], err));
    }
    qsort(l->pairs, l->lora.pairs_n, sizeof *l->pairs, by_tensor);
    return SEGUE_OK;
}

/* Split adapters are cached by id for the life of the graphs. */
segue_status sg_group_lora(struct sg_program *p, const struct sg_lora *whole, const struct sg_lora **out, segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    segue_status status = SEGUE_OK;
    pthread_mutex_lock(&u->lock);
    struct group_lora *l = p->graphs->loras;
    while (l && l->lora.id != whole->id) l = l->next;
    if (!l) {
        l = sg_alloc(sizeof *l);
        status = l ? split_adapter(l, p->graphs->tp, whole, err) : sg_no_memory("adapter of several units", sizeof *l, err);
        if (status == SEGUE_OK) {
            l->next = p->graphs->loras;
            p->graphs->loras = l;
        } else {
            sg_group_loras_free(l);
        }
    }
    pthread_mutex_unlock(&u->lock);
    if (status == SEGUE_OK) *out = &l->lora;
    return status;
}
