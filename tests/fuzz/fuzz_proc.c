/* fuzz_proc.c: what a process of the unit `proc` says: the bytes of its first connection, and behind the middle those of
 * the second. Whatever comes, every call returns, and nothing is left behind.
 *
 * The seed is what a process with `ref` replied to `use` on a unit that was opened as proc:ref, recorded with strace: all bytes
 * of the first connection, then those of the second, padded with zeros to the same length. Record it again when SG_WIRE_VERSION
 * rises: a seed whose handshake is refused reaches nothing else. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "graph/graph.h"
#include "unit/proc/proc.h"

enum { WIDTH = 8, VOCAB = 11, ROWS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* embed, norm, logits: enough for every kind of request. */
static struct sg_graph *graph_new(const struct sg_tensor *table)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    if (sg_builder_begin(&b, NULL) != SEGUE_OK) return NULL;
    int32_t x = sg_embed(&b, sg_input_tokens(&b), table, NULL, 1);
    struct sg_attend a = {.heads = 1, .kv_heads = 1, .d = WIDTH, .dv = WIDTH, .scale = 1, .sinks = sg_weight_of(&b, NULL)};
    b.layer = 0;
    x = sg_attend(&b, sg_whole(&b, x), sg_whole(&b, x), sg_whole(&b, x), a, sg_absent());
    b.layer = -1;
    x = sg_rows(&b, sg_whole(&b, x));
    sg_output(&b, sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, table), sg_weight_of(&b, NULL), sg_absent()), "logits");
    return sg_builder_end(&b, &g, NULL) == SEGUE_OK ? g : NULL;
}

/* Everything that is asked of a unit, once. */
static void use(struct sg_unit *u, struct sg_graph *g)
{
    const struct sg_unit_ops *ops = u->base.ops;
    const struct sg_graph *graphs[1] = {g};
    struct sg_program *program = NULL;
    struct sg_state *state = NULL;
    struct sg_run *run;
    const struct sg_state_opts o = {.kv = SG_F32, .rows = 16};
    const int32_t tokens[ROWS] = {1, 2, 3};
    const uint32_t wanted = ROWS - 1;
    float logits[VOCAB], rows[ROWS * WIDTH];
    uint32_t done = 0, mark = 0;
    uint64_t first, held;
    if (ops->compile(u, graphs, 1, NULL, &program, NULL) != SEGUE_OK) return;
    if (ops->state_new(u, g->slots, g->slots_n, &o, &state, NULL) == SEGUE_OK) {
        struct sg_span span = {.state = state, .rows = ROWS, .tokens = tokens, .wanted = &wanted, .wanted_n = 1, .steps = 1};
        struct sg_batch batch = {.spans = &span, .spans_n = 1};
        struct sg_result result = {.logits = logits, .rows_done = &done};
        if (ops->start(program, &batch, &result, &run, NULL) == SEGUE_OK)
            while (ops->wait(run, 1000000, NULL) == SEGUE_END) {}
        ops->state_held(state, 0, &first, &held);
        if (held == ROWS) ops->state_get(state, 0, 0, ROWS, SG_F32, rows, NULL);
        ops->state_mark(state, &mark, NULL);
        ops->state_cut(state, 1, NULL);
        ops->state_free(state);
    }
    ops->discard(program);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float numbers[VOCAB * WIDTH];
    static const struct sg_tensor table = {.name = "t", .storage = SG_F32, .rank = 2, .shape = {VOCAB, WIDTH}, .rows = VOCAB,
                                           .cols = WIDTH, .data = (const uint8_t *)numbers, .bytes = sizeof numbers};
    struct sg_graph *g = graph_new(&table);
    struct sg_unit *u = NULL;
    int ends[2], far[2];
    size_t half = size / 2;
    setenv("SEGUE_UNIT_WAIT_MS", "1", 1);
    for (int i = 0; i < 2; i++) {
        int pair[2];
        if (sg_channel_pair(pair, NULL) != SEGUE_OK) abort();
        ends[i] = pair[0];
        far[i] = pair[1];
        (void)!send(pair[1], data + (i ? half : 0), i ? size - half : half, MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(pair[1], SHUT_WR);
    }
    if (g && proc_open_fds(&u, ends, NULL) == SEGUE_OK) {
        use(u, g);
        u->base.ops->close(u);
    }
    sg_graph_free(g);
    for (int i = 0; i < 2; i++) close(far[i]);
    return 0;
}
