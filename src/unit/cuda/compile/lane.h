/* lane.h: what a program needs to execute passes, apart from weights and states: streams, events, value buffers, scratch and
 * captured graphs. The types only; lanes are opened in exec/lane.c. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_LANE_TYPES_H
#define SG_UNIT_CUDA_LANE_TYPES_H

#include "unit/cuda/driver/gpu.h"
#include "unit/cuda/kernels/sample/ksample.h"

enum { CU_RING_TOKENS = 65536, CU_STOPS = 1024 }; /* tokens of the ring; max. stop tokens */

/* Buffers of all values: [0] for values with a row per token of the pass, [1] for values with a row per wanted row. Laid out by
 * struct cu_value_loc. */
struct cu_value_buffers {
    cu_ptr memory[2];
    uint32_t rows[2]; /* rows that fit */
};

/* A captured pass may be replayed only if all of this is equal (compared with memcmp): the shape of the pass, the options that
 * select kernels, and the buffers that may have been reallocated since. Tokens, positions and slots are not part of it: kernels
 * read them from struct ck_pass in GPU memory. */
struct cu_graph_key {
    uint32_t rows, wanted, chunks, advance, storage, stops, args_index, sms;
    uint16_t best, screen, embedded, quiet, sampled, logprobs, none[2];
    struct ck_banned banned;
    cu_ptr buffers[7];
};
/* CACHED: each number of sequences that decode together needs two, for greedy choices, sampled ones and masked ones each. */
enum { CU_GRAPHS_CACHED = 128, CU_GRAPH_PIECES = 64 };
/* GPU memory of graphs, about: of one launch (arguments, node); of all graphs of a lane, at most, above which those that were
 * not used for longest are freed. */
enum { CU_GRAPH_LAUNCH_BYTES = 2048, CU_GRAPHS_BYTES = 64 << 20 };
/* What the graphs of a lane may take when a pass has `steps` steps. */
static inline size_t cu_graphs_bytes_max(uint32_t steps)
{
    size_t all = (size_t)CU_GRAPHS_CACHED * CU_GRAPH_LAUNCH_BYTES * steps;
    return all < CU_GRAPHS_BYTES ? all : CU_GRAPHS_BYTES;
}
/* A captured pass: graph i holds the fused steps from ends[i - 1] (0 for the first) to before ends[i]. */
struct cu_captured {
    struct cu_graph_key key;
    uint32_t n; /* graphs; 0: seen once, not captured yet */
    uint64_t used; /* number of the lane's run that used it last */
    size_t bytes;  /* of its graphs in GPU memory, about */
    uint32_t ends[CU_GRAPH_PIECES];
    cu_exec exec[CU_GRAPH_PIECES];
};

/* Arguments of a pass: the arrays of struct ck_pass for CU_PASS_ROWS rows, in one GPU block that begins with `head`, and a pinned
 * copy of the block that the host fills. */
struct cu_pass_args {
    cu_ptr head, tokens, pos, span, wanted, slots, slots_out;
    unsigned char *pinned;
};

enum { CU_SAMPLE_PLAN_AT = CK_SPANS * sizeof(struct ck_sampler) };
/* Sampling on the GPU (issue_sample.c, sampler_upload.c). The settings of each row are in GPU memory and stay there from step to
 * step; the kernel itself appends the chosen token to the row's history. */
struct cu_sampling {
    uint32_t rows;           /* rows that work, counts and jobs have memory for */
    cu_ptr work, counts, jobs;
    cu_ptr samplers;         /* [CK_SPANS] struct ck_sampler; at CU_SAMPLE_PLAN_AT: struct ck_sample_plan */
    cu_ptr lists;            /* biases, stop tokens, masks, breakers and histories that samplers point to */
    size_t lists_bytes, pinned_bytes;
    unsigned char *pinned;   /* copy of samplers, then of lists */
    struct ck_sampled *out;  /* pinned [2][CK_SPANS]: outcomes, by args_index */
    /* The settings that are on the GPU, for a comparison with those of the next run. */
    struct cu_sampler_seen {
        segue_sampling p;    /* bias NULL */
        const uint8_t *breakers;
        size_t breakers_n, lists_bytes;
        uint32_t limit;
        unsigned char *lists; /* biases, then stop tokens, as the caller has them */
        size_t lists_cap;
    } seen[CK_SPANS];
    uint32_t seen_n;         /* 0: unknown */
    uint32_t growth;           /* tokens that every history can still take */
};

/* The step that was issued before it was requested. It is used when the next run asks for exactly this. */
struct cu_lookahead {
    int active;
    uint32_t args_index, spans_n; /* which pass_args it uses */
    uint32_t sampled;             /* rows that are sampled, by the settings on the GPU */
    int late;                     /* 1: the choice is not part of it */
    struct ck_banned banned;
    struct {
        uint64_t state, version, first; /* id and version of the state, position of the row */
        int32_t token;
    } spans[CK_SPANS];
};

/* A LoRA pair in GPU memory: a [rank, cols], then b [rows, rank], fp32. */
struct cu_lora {
    uint64_t id;
    const struct sg_lora_pair *pair;
    cu_ptr memory;
};

/* A state whose last logits are still in the lane's value buffers, and the run that wrote them. */
struct cu_lane_logits {
    struct sg_state *state;
    uint64_t run;
};

/* Buffers for the sums between the GPUs of a group (issue_join.c). */
struct cu_join {
    uint32_t rank, ranks; /* ranks 0: the program is not part of a group */
    cu_ptr memory;        /* written by the peers */
    uint32_t *lost_flag;  /* pinned: 1 when a peer did not answer in time */
    struct ck_join a;     /* kernel arguments, without those of the op */
};

/* One run at a time uses a lane, under `lock`. All launches of a pass are in `stream`, so its buffers need no other
 * synchronisation. A program has two lanes: a decode run and a prefill run proceed at the same time. "Few" rows: up to
 * CU_GEMV_ROWS. */
struct cu_lane {
    struct cu_join join;
    pthread_mutex_t lock;
    cu_stream stream;        /* the stream in use: stream_all or stream_part; changed under the unit's logits_lock */
    cu_stream stream_all;    /* on all multiprocessors */
    cu_stream stream_part;   /* on the lane's SM partition; NULL: none */
    cu_event stream_event;   /* orders work across a change of streams */
    uint32_t kind;           /* CU_LANE_DECODE or CU_LANE_PREFILL */
    /* Values and arguments of a pass. */
    struct cu_value_buffers values_few[2]; /* up to CU_GEMV_ROWS rows; [1] shares memory[0] and has separate wanted rows */
    struct cu_value_buffers values_many;   /* grown on demand */
    struct cu_pass_args pass_args[2];      /* passes use [0]; lookahead steps alternate between both */
    size_t head_bytes;       /* bytes of one args block */
    cu_ptr partial_sums;     /* fixed-point sums that fusions exchange; see struct cu_fusion.sums_at */
    int partial_sums_zero;   /* 1: all of it is 0 */
    cu_ptr x_split;          /* two 16-bit parts of x, for k_batch.cu and k_packed_batch.cu */
    cu_ptr slices;           /* sums of slices of k_packed_batch.cu, then its counters; 0: no packed weights */
    /* Scratch, grown on demand: general; x in 16 bits; dequantised weights; attention partial results; cuBLASLt workspace. */
    cu_ptr scratch, narrow, wide, attn_parts, workspace;
    size_t scratch_bytes, narrow_bytes, wide_bytes, attn_parts_bytes;
    /* Choice of tokens. */
    cu_ptr best_value, best_index; /* [CU_DECODE_ROWS][CU_CHOICE_BLOCKS] best logit of each block, and its row */
    cu_ptr draws;            /* work counter of k_vocab.cu */
    cu_ptr arrivals;         /* [multiprocessors] counters of k_wgflash.cu; 0 between launches */
    cu_ptr stops;            /* [CU_STOPS] stop tokens */
    int32_t *host_chosen;    /* pinned [2][CU_DECODE_ROWS]: chosen token of each row, by args_index */
    int32_t *ring;           /* pinned [CU_RING_TOKENS]: tokens of generation on the GPU */
    volatile uint32_t *ring_written; /* tokens written so far; follows the ring in memory */
    struct cu_sampling sampling;
    float *host_logits;      /* pinned [CK_SPANS][vocab], allocated on first use */
    struct cu_lookahead ahead;
    uint32_t embedded;       /* 1 + args_index of the pass whose embedding row the previous pass already wrote; 0: none */
    /* Lookahead and captured passes. */
    cu_stream logits_stream; /* copies logits of one step while the next one runs */
    cu_event done[2], logits_copied[2]; /* by args_index: step complete; logits copied */
    struct cu_captured captured[CU_GRAPHS_CACHED];
    uint32_t captured_n;
    size_t graphs_bytes, graphs_max, graphs_reserved; /* of all captured graphs, about; at most; this lane's part of the unit's */
    struct cu_lane_logits logits[CK_SPANS];
    uint32_t logits_n;
    uint64_t runs;           /* runs so far; numbers them */
    struct cu_lora *loras;   /* adapters uploaded so far; freed with the lane */
    uint32_t loras_n, loras_cap;
};

#endif
