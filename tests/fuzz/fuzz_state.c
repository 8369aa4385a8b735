/* fuzz_state.c: hostile state files: the bytes as they come, and again with the header's checksum made right,
 * so that its numbers are reached: opened, held against a tiny hybrid model, filled into states, taken for
 * its tokens alone. SPDX-License-Identifier: MIT */
#include <string.h>

#include "../api/tiny.h"
#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/statefile/statefile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { HYBRID = 2 };
static segue_engine *engine;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    segue_model *m = NULL;
    segue_unit *u = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    char folder[512];
    (void)argc, (void)argv;
    o.chunk_tokens = 8;
    tiny_folder(folder, sizeof folder, "fuzz", tiny_models[HYBRID].name);
    if (!tiny_write(&tiny_models[HYBRID], folder, 5) || segue_model_open(&m, folder, NULL, NULL) ||
        segue_unit_open(&u, "ref", NULL) || segue_engine_open(&engine, m, &u, 1, &o, NULL))
        abort();
    segue_model_close(m);
    segue_unit_close(u);
    tiny_remove("fuzz");
    return 0;
}

/* The checksums that the header itself says are where it says. */
static void make_right(uint8_t *b, size_t n)
{
    if (n < 464) return;
    uint32_t slots = (uint32_t)b[392] | (uint32_t)b[393] << 8, points = b[396];
    uint64_t end = sg_state_header_bytes(slots, points) - 16;
    if (end + 16 > n) return;
    memcpy(b, "segue\x1astate\n\0\0\0\2\0\0\0", 20);
    struct sg_hash sum = sg_hash_bytes(b, end, SG_STATE_VERSION);
    for (int i = 0; i < 8; i++) {
        b[end + (size_t)i] = (uint8_t)(sum.lo >> 8 * i);
        b[end + 8 + (size_t)i] = (uint8_t)(sum.hi >> 8 * i);
    }
}

static void use(const struct sg_statefile *f)
{
    segue_session *s = NULL;
    const struct sg_hash none = {0};
    if (sg_statefile_fits(f, engine, none, NULL) != SEGUE_OK || segue_session_open(&s, engine, NULL, NULL))
        return;
    if (f->head.tokens_n <= s->context && sg_session_make_states(s, NULL) == SEGUE_OK) {
        struct sg_checkpoint *points[SG_STATE_CHECKPOINTS];
        uint32_t n = 0;
        (void)sg_statefile_fill(f, engine, &s->layouts[0], 0, points, &n, NULL);
        while (n) sg_checkpoint_release(points[--n]);
    }
    segue_session_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_statefile f;
    uint8_t *copy = sg_alloc_aligned(size + 1);
    if (!copy) return 0;
    memcpy(copy, data, size);
    for (int right = 0; right < 2; right++) {
        for (int salvage = 0; salvage < 2; salvage++) {
            segue_status status = sg_statefile_open_memory(&f, copy, size, salvage, NULL);
            if (status == SEGUE_OK) use(&f);
            if (status == SEGUE_OK || f.text_only) sg_statefile_close(&f);
        }
        make_right(copy, size);
    }
    sg_free_aligned(copy);
    return 0;
}
