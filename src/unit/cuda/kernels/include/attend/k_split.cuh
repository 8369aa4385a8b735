/* k_split.cuh: how attention of few rows is divided over the multiprocessors (split KV, "flash decoding"). The unit of work is a
 * tile of 16 positions of one row; a part is a run of consecutive tiles of one row, and block (x, y) computes part x for group y
 * of query heads. The parts depend on the positions of the pass's rows and on the grid, not on the depth for which a graph was
 * captured: every block derives them from the positions in GPU memory.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_SPLIT_CUH
#define SG_UNIT_CUDA_K_SPLIT_CUH

#include "k_common.cuh"

enum { SPLIT_TILE = 16, SPLIT_HEADS = CK_GROUP_HEADS };
#define LOG2E 1.4426950408889634f

/* The parts of one row: first part and their number; positions [from, pos]; tiles per part, counted from tile `start`. */
struct split_row {
    uint32_t first, n, from, pos, start, per;
};

__device__ __forceinline__ uint32_t warp_total(uint32_t x) { return __reduce_add_sync(0xffffffffu, x); }

/* Positions and parts of row `lane`, for lanes below the number of rows; n 0 elsewhere. All lanes of a warp call it. */
__device__ __forceinline__ split_row split_rows(const ck_split &a)
{
    uint32_t lane = threadIdx.x & 31, rows = a.attend.rows;
    split_row r = {0, 0, 0, 0, 0, 1};
    uint32_t tiles = 0;
    if (lane < rows) {
        r.pos = a.attend.pass.place[lane];
        r.from = a.attend.window && r.pos + 1 > a.attend.window ? r.pos + 1 - a.attend.window : 0;
        r.start = r.from / SPLIT_TILE;
        tiles = r.pos / SPLIT_TILE + 1 - r.start;
    }
    /* Every row by itself, whatever the others are. */
    if (a.alone || rows == 1) {
        uint32_t each = a.splits / rows;
        r.per = max((tiles + each - 1) / each, CK_SPLIT_MIN_TILES);
        r.n = (tiles + r.per - 1) / r.per;
        r.first = lane * each;
        return r;
    }
    /* Equal parts for all rows, as short as the number of parts allows. */
    uint32_t all = warp_total(tiles), per = max((all + a.splits - 1) / a.splits, CK_SPLIT_MIN_TILES);
    while (warp_total((tiles + per - 1) / per) > a.splits) per += per / 8 + 1;
    r.per = per;
    r.n = (tiles + per - 1) / per;
    uint32_t end = r.n;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        uint32_t before = __shfl_up_sync(0xffffffffu, end, m);
        if (lane >= m) end += before;
    }
    r.first = end - r.n;
    return r;
}

/* The part of a block. n 0: it has none. */
struct split_part {
    uint32_t row, n;              /* n: parts of the row */
    uint32_t from, pos;           /* positions that the row attends to: [from, pos] */
    uint32_t tile, end;           /* tiles of the part */
};
__device__ __forceinline__ split_part split_part_of(const ck_split &a, uint32_t x)
{
    split_row r = split_rows(a);
    uint32_t found = __ballot_sync(0xffffffffu, x >= r.first && x < r.first + r.n), row = found ? __ffs(found) - 1 : 0;
    split_part p;
    uint32_t first = __shfl_sync(0xffffffffu, r.first, row), per = __shfl_sync(0xffffffffu, r.per, row),
             start = __shfl_sync(0xffffffffu, r.start, row);
    p.row = row;
    p.n = found ? __shfl_sync(0xffffffffu, r.n, row) : 0;
    p.from = __shfl_sync(0xffffffffu, r.from, row);
    p.pos = __shfl_sync(0xffffffffu, r.pos, row);
    p.tile = start + (x - first) * per;
    p.end = min(p.tile + per, p.pos / SPLIT_TILE + 1);
    return p;
}

/* Results of a part and query head: `pitch` sums of exponentials times V, and {maximum in base 2, sum of exponentials}. */
__device__ __forceinline__ float *split_sums(const ck_split &a, uint32_t x, uint32_t head)
{
    return a.attend.parts + ((size_t)x * a.attend.heads + head) * a.pitch;
}
__device__ __forceinline__ float2 *split_ends(const ck_split &a, uint32_t x, uint32_t head)
{
    return reinterpret_cast<float2 *>(a.ends) + (size_t)x * a.attend.heads + head;
}

#endif
