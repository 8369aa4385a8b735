/* fuzz_serve.c: requests to a served unit: a sequence of messages {kind, connection, 24-bit length, 0, body}. Memory that a
 * message would lend is made here, as large as it says, within a bound. SPDX-License-Identifier: MIT */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/placement/units.h"
#include "unit/proc/server.h"

enum { HEAD = 6, MESSAGES = 64, LENT = 1 << 20, STATE_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static segue_unit *handle;

static segue_status open_unit(struct sg_unit **out, const char *spec, segue_error *err)
{
    (void)spec;
    if (segue_unit_open(&handle, "ref:threads=1", err) != SEGUE_OK) return SEGUE_EUNIT;
    *out = handle->unit;
    return SEGUE_OK;
}

/* States of any size are the unit's to refuse; here memory ends early, so that a run stays within its own. */
static segue_status state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                              struct sg_state **out, segue_error *err)
{
    double numbers = 0;
    for (uint32_t i = 0; i < slots_n; i++)
        numbers += (double)slots[i].heads * slots[i].width * (slots[i].kind == SG_SLOT_DELTA ? slots[i].depth : 1);
    if (numbers > STATE_MAX) return sg_no_memory("state", STATE_MAX, err);
    return sg_ops_of(u)->state_new(u, slots, slots_n, o, out, err);
}

/* A descriptor as another process would lend it. The size stands first, behind a number in some kinds. */
static int share_memory(const struct sg_message *m)
{
    struct sg_reader in = sg_reader_of(m->body, m->body_n);
    if (m->kind == SG_WIRE_REGION || m->kind == SG_WIRE_LORA) sg_reader_u32(&in);
    else if (m->kind != SG_WIRE_PAGE && m->kind != SG_WIRE_AREA) return -1;
    uint64_t want = sg_reader_u64(&in);
    struct sg_shared s;
    if (sg_shared_new(&s, want && want < LENT ? (size_t)want : LENT, NULL) != SEGUE_OK) return -1;
    int fd = dup(s.fd);
    sg_shared_free(&s);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_server *v;
    struct sg_buf reply = {0};
    if (sg_server_new(&v, open_unit, NULL) != SEGUE_OK) return 0;
    if (open_unit(&v->unit, "", NULL) != SEGUE_OK) return 0;
    struct sg_unit_ops ops = *sg_ops_of(v->unit);
    ops.state_new = state_new;
    v->ops = &ops;
    for (int i = 0; i < MESSAGES && size >= HEAD; i++) {
        size_t n = (size_t)data[2] | (size_t)data[3] << 8 | (size_t)data[4] << 16;
        struct sg_message m = {.kind = data[0], .body = data + HEAD, .body_n = n < size - HEAD ? n : size - HEAD};
        m.fd = share_memory(&m);
        if (m.kind == SG_WIRE_STREAM) m.kind = 0; /* a measurement takes its time */
        sg_server_answer(v, data[1] & 1, &m, &reply);
        if (reply.len < 8) __builtin_trap();
        data += HEAD + m.body_n;
        size -= HEAD + m.body_n;
    }
    sg_buf_free(&reply);
    sg_server_free(v);
    handle->unit = NULL;
    sg_free(handle);
    return 0;
}
