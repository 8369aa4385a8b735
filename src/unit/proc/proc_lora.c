/* proc_lora.c: adapters. One is sent, as shared memory with the matrices, when a run of a program first uses it; the least
 * recently used ones are dropped.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/proc/proc.h"

enum { LORAS_CACHED = 64 };

/* Frees the number here and in the child. */
static void lora_drop(struct sg_unit *u, uint32_t number)
{
    struct sg_reader in;
    u->loras[number] = (struct proc_lora){0};
    sg_put_u32(proc_request(u, PROC_FIRST), number);
    proc_call(u, PROC_FIRST, SG_WIRE_LORA_DROP, -1, 0, &in, NULL);
}

/* All adapters of one program. */
void proc_loras_drop(struct sg_unit *u, uint32_t program)
{
    for (uint32_t i = 0; i < u->loras_n; i++)
        if (u->loras[i].id && u->loras[i].program == program) lora_drop(u, i);
}

/* A free number, or that of the least recently used adapter, which is dropped unless this run uses it. */
static segue_status lora_number(struct sg_unit *u, uint32_t *number, segue_error *err)
{
    uint32_t i = 0, oldest = UINT32_MAX;
    for (; i < u->loras_n && u->loras[i].id; i++)
        if (u->loras[i].used < u->runs && (oldest == UINT32_MAX || u->loras[i].used < u->loras[oldest].used)) oldest = i;
    if (i == u->loras_n && i >= LORAS_CACHED && oldest != UINT32_MAX) {
        lora_drop(u, oldest);
        i = oldest;
    }
    if (i == SG_WIRE_LORAS) return sg_fail(err, SEGUE_ELIMIT, "unit proc: %d adapters in one run is the limit; use fewer", i);
    if (i == u->loras_n) {
        struct proc_lora *wider = sg_realloc(u->loras, (i + 1) * sizeof *wider);
        if (!wider) return sg_no_memory("table", (i + 1) * sizeof *wider, err);
        wider[i] = (struct proc_lora){0};
        u->loras = wider;
        u->loras_n = i + 1;
    }
    *number = i;
    return SEGUE_OK;
}

/* Pairs whose tensor the program reads: returns their number, *bytes of all matrices. b, to: NULL, or the request and the shared
 * memory that they are written to. */
static uint32_t pairs_of(const struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, struct sg_buf *b,
                         uint8_t *to, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < p->base.graph->tensors_n; i++) {
        const struct sg_tensor *t = u->tensors[p->tensors[i]].key;
        const struct sg_lora_pair *pair = sg_lora_find(l, t);
        int duplicate = 0;
        for (uint32_t k = 0; k < i && !duplicate; k++) duplicate = p->tensors[k] == p->tensors[i];
        if (!pair || duplicate) continue;
        uint64_t a_bytes = (uint64_t)pair->rank * t->cols * sizeof(float);
        uint64_t b_bytes = (uint64_t)pair->rank * t->rows * sizeof(float);
        if (to) memcpy(to + *bytes, pair->a, (size_t)a_bytes);
        if (to) memcpy(to + *bytes + a_bytes, pair->b, (size_t)b_bytes);
        if (b) {
            sg_put_u32(b, p->tensors[i]);
            sg_put_u32(b, pair->rank);
            sg_put_u64(b, *bytes);
            sg_put_u64(b, *bytes + a_bytes);
        }
        *bytes += a_bytes + b_bytes;
        n++;
    }
    return n;
}

segue_status proc_lora_number(struct sg_unit *u, const struct sg_program *p, const struct sg_lora *l, uint32_t *number,
                              segue_error *err)
{
    struct sg_reader in;
    struct sg_shared memory;
    uint64_t bytes;
    for (uint32_t i = 0; i < u->loras_n; i++)
        if (u->loras[i].id == l->id && u->loras[i].program == p->id) {
            u->loras[i].used = u->runs;
            *number = i;
            return SEGUE_OK;
        }
    SG_TRY(lora_number(u, number, err));
    uint32_t n = pairs_of(u, p, l, NULL, NULL, &bytes);
    SG_TRY(sg_shared_new(&memory, bytes ? (size_t)bytes : 1, err));
    struct sg_buf *b = proc_request(u, PROC_FIRST);
    sg_put_u32(b, *number);
    sg_put_u64(b, memory.size);
    sg_put_u32(b, n);
    pairs_of(u, p, l, b, memory.data, &bytes);
    segue_status status = proc_call(u, PROC_FIRST, SG_WIRE_LORA, memory.fd, 0, &in, err);
    sg_shared_free(&memory);
    if (status == SEGUE_OK) u->loras[*number] = (struct proc_lora){l->id, p->id, u->runs};
    return status;
}
