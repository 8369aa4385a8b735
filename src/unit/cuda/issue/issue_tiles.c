/* issue_tiles.c: when a product of 2 to 16 rows uses k_tiles.cu (Hopper, 16-bit weights), and its arguments: the blocks of a
 * cluster that split the columns, the ring of stages, and tensor maps of the weights. cu_tiles_plan also serves
 * k_packed_tiles.cu. What the kernels cannot do before or after the product is issued as a separate op.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* PANEL: columns per stage of the ring. CLUSTER_LOG: log2 of the largest cluster. FEW: tiles per cluster up to which splitting
 * further does not pay. RING: bytes of stages that hide the latency. GROUP: max. columns of a norm group. HALF: max. slice with
 * a norm by groups. SPARE: bytes of barriers and alignment. */
enum { PANEL = 64, CLUSTER_LOG = 3, FEW = 4, RING = 4 * CK_TILES_STAGE, GROUP = 256, HALF = CK_TILES_SLICE / 2, SPARE = 1024 };

/* 1: the kernel computes the norm: RMS of whole rows, or of groups that are powers of two of whole panels. */
static int norm_fits(const struct ck_norm *n, uint32_t k)
{
    if (!n->present) return 1;
    if (n->layer || n->bias) return 0;
    if (n->groups == 1) return !n->gate.p;
    uint32_t group = k / n->groups;
    return group % PANEL == 0 && (group & (group - 1)) == 0 && group <= GROUP && (!n->gate.p || cu_is_float4(&n->gate));
}

/* Columns of a block, at most. */
static uint32_t slice_of(uint32_t k, int log, uint32_t chunk)
{
    return chunk ? cu_pieces(k / chunk, 1u << log) * chunk : k >> log;
}

/* log2 of the blocks of a cluster, which divide the columns of x into slices; -1: the rows are too long. Larger clusters read
 * less of x per block, but need slices of whole panels and norm groups, and enough tiles; eight blocks only when there are too
 * few tiles for the GPU. Computed from all multiprocessors, also in a partition, so that the order of additions is the same.
 * chunk: columns that stay together, dealt as evenly as possible; 0: all slices are equal. */
static int cluster_of(const struct sg_unit *u, const struct ck_gemv *g, const struct ck_norm *n, uint32_t tiles, uint32_t chunk)
{
    uint32_t unit = n->present && n->groups > 1 ? g->k / n->groups : PANEL,
             max = n->present && n->groups > 1 ? HALF : CK_TILES_SLICE;
    int found = -1;
    for (int log = 0; log <= CLUSTER_LOG - (int)g->glu; log++) {
        int even = chunk ? g->k / chunk >> log > 0 : g->k % (unit << log) == 0;
        if (!even || slice_of(g->k, log, chunk) > max) continue;
        if (found >= 0 && (log == CLUSTER_LOG ? tiles << log > u->sms : tiles > (u->sms >> log) * FEW)) break;
        found = log;
    }
    return found;
}

/* 1: the kernel computes the activation. */
static int act_fits(uint32_t act) { return act == SG_ACT_NONE || act == SG_ACT_SILU; }

/* Tensor map of a weight segment with boxes of 64 rows and 64 columns, swizzled for wgmma. With glu a box has rows of gate and of
 * up alternating by eight, as a fifth dimension. 0: not aligned, or refused by the driver. */
static int map_of(struct sg_unit *u, const struct ck_gemv *g, uint32_t segment, struct ck_tensor_map *map)
{
    const struct ck_segment *s = &g->segment[segment];
    unsigned char *from = (unsigned char *)(uintptr_t)s->data + (size_t)s->at * g->pitch;
    uint64_t apart = g->glu ? (uint64_t)((uintptr_t)g->segment[1].data + (size_t)g->segment[1].at * g->pitch - (uintptr_t)from)
                            : g->pitch;
    const uint64_t dims[5] = {PANEL / 2, g->glu ? 8 : s->n, g->glu ? 2 : 1, g->glu ? s->n / 8 : 1, g->k / PANEL},
                   strides[4] = {g->pitch, apart, 8 * (uint64_t)g->pitch, PANEL * 2};
    const uint32_t box[5] = {PANEL / 2, g->glu ? 8 : CK_TILES_ROWS, g->glu ? 2 : 1, g->glu ? CK_TILES_ROWS / 16 : 1, 1},
                   steps[5] = {1, 1, 1, 1, 1};
    if (!cu_aligned(from) || (g->glu && (s->n % 8 || g->segment[1].n != s->n || apart >> 40))) return 0;
    cu_enter(u);
    cu_result r = u->d.tensor_map(map, CU_TENSOR_INT32, 5, from, dims, strides, box, steps, 0, CU_TENSOR_SWIZZLE_128,
                                  CU_TENSOR_L2_256, 0);
    cu_leave(u);
    return !r;
}

/* 1: gate and up are parts of one tensor, or up follows gate in one block (upload.c). Elsewhere their distance is the allocator's
 * choice, which may differ from process to process, and with it the kernel and the order of sums. */
static int glu_follows(const struct cu_pass *p, const struct cu_step *s)
{
    const struct cu_tensor *gate = cu_linear_tensor(p, s->parts[0]), *up = cu_linear_tensor(p, s->parts[1]);
    return up == gate || (up->joined && up->memory == gate->memory + (size_t)gate->w.pitch * gate->w.rows);
}

/* The epilogue that the kernel computes: an activation, or a convolution when every row is another sequence. */
static void epilogue_of(const struct cu_pass *p, const struct cu_step *s, struct ck_epilogue *out)
{
    const struct sg_op *op = s->after;
    int each = p->rows_n[0] == p->spans_n && !p->program->base.unit->invariant;
    *out = (struct ck_epilogue){0};
    if (!op || (op->code == SG_OP_CONV && (!each || op->u.conv.taps > CK_STREAM_TAPS))) return;
    cu_epilogue_of(p, s, out);
}

/* Rows per tile row that blocks of a cluster prefetch for the epilogue: the residual, or the convolution's state. */
static uint32_t epilogue_rows_of(const struct ck_tiles *a)
{
    uint32_t residual = 0;
    for (uint32_t i = 0; i < a->g.segments; i++) residual |= a->g.segment[i].residual.p != NULL;
    return !a->cluster_log ? 0 : a->after.kind == CK_EPILOGUE_CONV ? a->after.taps - 1 : residual;
}

/* Bytes of shared memory without the ring, for blocks that compute `turns` tiles. */
static uint32_t shared_bytes_of(const struct ck_tiles *a, uint32_t turns)
{
    uint32_t share = CK_TILES_ROWS * (uint32_t)sizeof(float) >> a->cluster_log, bytes = SPARE + a->slice * 4 * CK_TILES_X_ROWS;
    if (a->cluster_log)
        bytes += turns * (CK_TILES_ROWS * CK_TILES_X_ROWS * (uint32_t)sizeof(float) +
                          share * (a->behind * CK_TILES_X_ROWS + CK_STREAM_TAPS));
    return a->g.norm.present ? bytes + a->slice * (uint32_t)sizeof(float) : bytes;
}

/* Divides the tiles over clusters and dimensions the ring of stages of `stage` bytes, `steps` for a tile; returns the number of
 * clusters, 0: no stage fits. A block without a cluster and with many tiles has a multiprocessor alone, so that x is in shared
 * memory once. *bytes: shared memory of a block, no more than is used, so that blocks of the next kernel fit beside it. */
static uint32_t partition_tiles(const struct cu_pass *p, struct ck_tiles *a, uint32_t stage, uint32_t steps, uint32_t *bytes)
{
    *bytes = CK_TILES_BYTES;
    uint32_t clusters = p->sms >> a->cluster_log ? p->sms >> a->cluster_log : 1;
    if (a->tiles > clusters * FEW) clusters *= 2; /* two blocks per multiprocessor: one reads while the other finishes a tile */
    if (!a->cluster_log && clusters > p->sms) clusters = p->sms, *bytes = CK_TILES_MAX_BYTES;
    if (clusters > a->tiles) clusters = a->tiles;
    /* Tiles per cluster; fewer when they do not fit beside the least ring. */
    uint32_t turns = (a->tiles + clusters - 1) / clusters;
    while (a->cluster_log && turns > 1 &&
           (turns > CK_TILES_PER_CLUSTER || shared_bytes_of(a, turns) + RING > CK_TILES_BYTES))
        turns--;
    if (a->cluster_log) clusters = (a->tiles + turns - 1) / turns; /* clusters of several blocks rarely fill the GPU completely */
    a->turns = turns;
    /* Two warp groups work on different tiles, each with half of the ring. */
    a->groups = turns > 1 && (a->cluster_log || *bytes > CK_TILES_BYTES) ? 2 : 1;
    a->stages = (*bytes - shared_bytes_of(a, turns)) / stage;
    if (a->stages > CK_TILES_STAGES) a->stages = CK_TILES_STAGES;
    a->stages /= a->groups;
    if (a->stages > steps * turns) a->stages = steps * turns;
    *bytes = shared_bytes_of(a, turns) + a->stages * a->groups * stage;
    return a->stages ? clusters : 0;
}

/* The number of tiles of all segments; first[i]: the first tile of segment i. With glu a tile has as many rows of gate as of
 * up. */
static uint32_t tiles_of(const struct ck_gemv *g, uint32_t first[CK_SEGMENTS])
{
    uint32_t max = g->glu ? CK_TILES_ROWS / 2 : CK_TILES_ROWS, tiles = 0;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        first[i] = i < g->segments && (!g->glu || !i) ? tiles : UINT32_MAX;
        if (first[i] != UINT32_MAX) tiles += (g->segment[i].n + max - 1) / max;
    }
    return tiles;
}

/* per_group: the factor of a mean over a norm group. A norm that the kernels do not support is issued before, and x is then its
 * result. */
int cu_tiles_plan(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t chunk, uint32_t stage,
                  struct ck_tiles *a, struct cu_tiled *out)
{
    struct sg_unit *u = p->program->base.unit;
    *out = (struct cu_tiled){0};
    a->g = *g;
    if (s->norm && !norm_fits(&g->norm, g->k)) {
        out->norm_apart = 1;
        a->g.norm = (struct ck_norm){.groups = 1};
        a->g.x = cu_view_of(p, &s->op->in[0]);
    }
    a->tiles = tiles_of(g, a->first);
    int log = cluster_of(u, g, &a->g.norm, a->tiles, chunk);
    if (!u->k.tiles[0] || !u->stream || !u->d.tensor_map || log < 0 || !cu_is_float4(&a->g.x)) return 0;
    a->cluster_log = (uint32_t)log;
    a->slice = slice_of(g->k, log, chunk);
    a->group = g->k / a->g.norm.groups;
    a->per_group = 1.0f / (float)a->group;
    a->g.rows = p->rows_n[p->program->base.graph->values[s->op->out].wanted];
    a->g.best = g->best && !log; /* a cluster has no whole rows */
    epilogue_of(p, s, &a->after);
    if (!log && a->after.kind == CK_EPILOGUE_CONV) a->after = (struct ck_epilogue){0};
    a->behind = epilogue_rows_of(a);
    out->whole = a->after.kind != CK_EPILOGUE_NONE;
    uint32_t clusters = partition_tiles(p, a, stage, a->slice / (chunk ? chunk : PANEL), &out->shared);
    if (!clusters || !act_fits(a->after.act) || (g->glu && !act_fits(g->act))) return 0;
    out->cluster = 1u << log;
    out->blocks = clusters << log;
    return 1;
}

int cu_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                  struct ck_tiles *a, struct cu_tiled *out)
{
    struct sg_unit *u = p->program->base.unit;
    *a = (struct ck_tiles){0};
    if ((w->kind != CK_F16 && w->kind != CK_BF16) || w->pitch != w->cols * 2) return 0;
    if (!cu_tiles_plan(p, s, g, 0, CK_TILES_STAGE, a, out) || (g->glu && !glu_follows(p, s))) return 0;
    for (uint32_t i = 0; i < (g->glu ? 1 : g->segments); i++)
        if (!map_of(u, &a->g, i, &a->map[i])) return 0;
    out->fn = u->k.tiles[w->kind == CK_BF16];
    return 1;
}

segue_status cu_launch_tiles(struct cu_pass *p, const struct cu_step *s, const struct ck_tiles *a, const struct cu_tiled *t,
                             const void *args, int *whole)
{
    if (t->norm_apart) SG_TRY(cu_issue_small(p, s->norm));
    p->best_blocks = a->g.best ? t->blocks : p->best_blocks;
    p->best_done |= a->g.best;
    *whole = t->whole;
    return cu_launch_clusters(p, t->fn, t->blocks, t->cluster, CK_TILES_THREADS, t->shared, args);
}
