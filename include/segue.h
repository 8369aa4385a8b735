/* segue.h: run a language model across the compute units of a machine.
 *
 *   unit     a place that computes: it compiles graphs, runs them and keeps states.
 *   model    what the file says, and nothing about where it runs.
 *   engine   one model placed on some units.
 *   plan     which unit does which part of a task, and what we expect it to cost.
 *   session  one sequence of tokens that grows.
 *
 * Caveats, before anything else:
 *   - Opening an engine places weights: the first start may repack them, later ones map what it left in the cache
 *     folder, when segue_engine_opts names one.
 *   - A unit named in a spec is used or refused. Nothing falls back in silence.
 *   - `ref` is the specification: fp32, slow, for checking.
 *   - Two units never agree to the last bit; docs/STATE.md says which hand-offs are exact and which round.
 *
 * Conventions, stated once:
 *   return      segue_status: SEGUE_OK is 0, failures are negative, news that is no failure is positive (SEGUE_END).
 *               Out-parameters are written only on success, unless a function says otherwise.
 *   error text  the last parameter, may be NULL, owned by the caller: one line `what failed: object: why; what to do`.
 *   options     a struct starts with `uint32_t size` (SEGUE_INIT sets it) and zero means default in every field.
 *               New fields come at the end; the library reads min(size, sizeof). Info structs are filled likewise.
 *   ownership   what open or fork gave, close takes; close(NULL) is allowed. A child holds a reference to its
 *               parents, so the order of closing does not matter. Strings in info structs live as long as their
 *               object. No function keeps a caller's pointer after it returns.
 *   threads     model: any number. unit, engine: any thread. session: one thread at a time, except
 *               segue_session_cancel, which any thread and a signal handler may call.
 *   text out    (char *text, size_t cap, size_t *len): *len is the full length without the final NUL, also when cap
 *               is too small (then SEGUE_ELIMIT); at most cap bytes are written, NUL-terminated when they fit.
 *   numbers     counts are size_t, tokens int32_t, time uint64_t nanoseconds, energy double joules.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_H
#define SEGUE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SEGUE_API __attribute__((visibility("default")))
#else
#define SEGUE_API
#endif

#define SEGUE_VERSION_MAJOR 0
#define SEGUE_VERSION_MINOR 1
#define SEGUE_VERSION_PATCH 0

typedef struct segue_unit segue_unit;
typedef struct segue_model segue_model;
typedef struct segue_engine segue_engine;
typedef struct segue_session segue_session;
typedef struct segue_adapter segue_adapter;

/* One code for each different reaction of the caller; everything finer is in the text. */
typedef enum segue_status {
    SEGUE_OK = 0,
    SEGUE_END = 1,           /* the sequence ended (stop token, stop string, context reached by plan) */
    SEGUE_EARG = -1,         /* the call is wrong: fix the caller */
    SEGUE_EMEMORY = -2,      /* out of memory: free some, or ask for less */
    SEGUE_EIO = -3,          /* a file or disk failed: check it */
    SEGUE_EFORMAT = -4,      /* the file or input is damaged or of a wrong kind: distrust it */
    SEGUE_EUNSUPPORTED = -5, /* sound, but not something this build or unit can do: choose another */
    SEGUE_EUNIT = -6,        /* the unit is absent or failed: restart it or choose another */
    SEGUE_ELOST = -7,        /* the unit or peer vanished; its states are gone: replay elsewhere */
    SEGUE_ELIMIT = -8,       /* does not fit (context, buffer, bound): shorten or enlarge */
    SEGUE_ECANCELED = -9,    /* segue_session_cancel was called */
    SEGUE_EINTERNAL = -10    /* a bug: report it */
} segue_status;

typedef struct segue_error {
    segue_status status;
    char text[508];
} segue_error;

/* { sizeof(struct) } for options and info structs: segue_task t = SEGUE_INIT(segue_task); */
#ifdef __cplusplus
#define SEGUE_INIT(type) (type{sizeof(type)})
#else
#define SEGUE_INIT(type) ((type){.size = sizeof(type)})
#endif

/* --- about ---------------------------------------------------------------------------------------------------- */

/* 0xMMmmpp of the linked library. */
SEGUE_API uint32_t segue_version(void);
/* "ok", "end", "argument", "memory", ...; never NULL, also for unknown values. */
SEGUE_API const char *segue_status_name(segue_status status);

/* --- units ---------------------------------------------------------------------------------------------------- */

typedef struct segue_unit_info {
    uint32_t size;
    char spec[64];           /* what segue_unit_open takes: "ref", "cpu:isa=avx512,threads=2" */
    char kind[16];           /* "ref", "cpu" */
    char features[128];      /* instruction sets, compute capability, ... */
    char why[256];           /* why it is absent; empty when present */
    uint32_t built;          /* 1: this build knows it */
    uint32_t present;        /* 1: it can be opened here */
    uint32_t simulated;      /* 1: stands in for hardware that is not here; never chosen unless named */
    uint64_t memory_bytes;   /* that states and weights may use; 0 = not known */
    uint32_t pid;            /* the process that computes; 0 = this one */
    uint32_t count_joules;   /* in, segue_unit_info_get: 1 = fill joules, which may take a while the first time */
    double joules;           /* used by the unit's device since some moment; negative = it does not count */
} segue_unit_info;

/* Every unit that this build knows or could know. Writes at most cap entries, *n = how many there are. */
SEGUE_API segue_status segue_unit_list(segue_unit_info *out, size_t cap, size_t *n, segue_error *err);
/* spec: KIND[:key=value,...]; NULL or "": the fastest real unit present. EARG: bad spec; EUNIT: not here. */
SEGUE_API segue_status segue_unit_open(segue_unit **out, const char *spec, segue_error *err);
SEGUE_API segue_status segue_unit_info_get(const segue_unit *unit, segue_unit_info *out, segue_error *err);
SEGUE_API void segue_unit_close(segue_unit *unit);

/* --- models and text ------------------------------------------------------------------------------------------ */

typedef struct segue_model_opts {
    uint32_t size;
    uint32_t no_text;        /* 1: do not read tokenizer or template, even when there is one */
    const char *storage;     /* NULL: weights as the file has them; "fp8": matrices as e4m3 with one scale per row, made of
                              * them by whoever runs them; another weights_id */
} segue_model_opts;

typedef struct segue_model_info {
    uint32_t size;
    const char *path, *family, *format, *name;
    const char *storage;         /* the storage most weights have: "q4_1", "bf16", "mlx4" */
    char shape_id[33];           /* hex; numbers and vocabulary: must match for a state to fit */
    char weights_id[33];         /* hex; content of the weights */
    uint32_t layers, width, vocab, context;   /* context: rows the model was made for */
    uint64_t weight_bytes;       /* of the tensors that a run reads, as stored */
    uint64_t state_fixed_bytes;  /* of a state, whatever its length, in its default storage */
    uint64_t state_token_bytes;  /* of a state, per token, in its default storage (f16 K and V) */
    int32_t bos, eos;            /* -1 = none */
    const int32_t *stops;        /* [stops_n] tokens that end an answer */
    size_t stops_n;
    uint32_t has_tokenizer, has_template, add_bos;
    const char *tokenizer_kind, *tokenizer_pre;   /* "bpe" | "spm" | NULL; "smollm", ... | NULL */
    float temperature, top_p, min_p, repeat_penalty;  /* generation_config.json; negative = not said */
    int32_t top_k;                                    /* negative = not said */
    const char *warning;         /* why texts may be read a little differently from the original; NULL = no doubt */
} segue_model_info;

/* path: a file (.gguf, .safetensors, .bin) or a folder as downloaded. Maps it; reads no tensor data.
 * EIO, EFORMAT (damage, absurd numbers), EUNSUPPORTED (unknown family, storage, scaling; names it), EMEMORY. */
SEGUE_API segue_status segue_model_open(segue_model **out, const char *path, const segue_model_opts *opts,
                                        segue_error *err);
SEGUE_API segue_status segue_model_info_get(const segue_model *model, segue_model_info *out, segue_error *err);
SEGUE_API void segue_model_close(segue_model *model);

enum {
    SEGUE_DESCRIBE_JSON = 0,     /* the object of `segue inspect --json` */
    SEGUE_DESCRIBE_GRAPH = 1,    /* the list of operations, one a line */
    SEGUE_DESCRIBE_TEMPLATE = 2  /* the chat template's source */
};
SEGUE_API segue_status segue_model_describe(const segue_model *model, int what, char *text, size_t cap, size_t *len,
                                            segue_error *err);

enum {
    SEGUE_TEXT_NO_BOS = 1,      /* tokenize: no BOS or EOS of the post-processor */
    SEGUE_TEXT_NO_SPECIAL = 2   /* tokenize: special tokens in the text are plain text; detokenize: leave them out */
};
/* UTF-8 in (invalid bytes become U+FFFD as in the field), tokens out; *n is the full count also on ELIMIT. */
SEGUE_API segue_status segue_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                                      int32_t *tokens, size_t cap, size_t *n, segue_error *err);
/* Whole sequences; for tokens that arrive one by one use segue_text_next. EARG: a token outside the vocabulary. */
SEGUE_API segue_status segue_detokenize(const segue_model *model, const int32_t *tokens, size_t n, unsigned flags,
                                        char *text, size_t cap, size_t *len, segue_error *err);

/* Text of tokens that arrive one by one. Never gives half a character, and holds back what may become a stop
 * string. Plain memory of the caller, no close; zero `priv` before the first call. */
typedef struct segue_text {
    uint32_t size;
    unsigned flags;              /* SEGUE_TEXT_NO_SPECIAL */
    const char *const *stops;    /* [stops_n] strings, live as long as this struct is used */
    size_t stops_n;
    struct {
        uint32_t held;           /* bytes held back */
        uint32_t begun, ended;
        char bytes[1012];
    } priv;
} segue_text;
/* token -1: no more will come, give what is held. SEGUE_END: a stop string was met; *text ends before it.
 * ELIMIT: cap too small for one piece (token longer than cap); nothing consumed. */
SEGUE_API segue_status segue_text_next(const segue_model *model, segue_text *state, int32_t token, char *text,
                                       size_t cap, size_t *len, segue_error *err);

/* Render the model's chat template. request: a JSON object {"messages":[...], "tools":[...], any further variable
 * of the template such as "enable_thinking", "add_generation_prompt" (default true)}.
 * EUNSUPPORTED: the model has no template; EFORMAT: request or template (names line). */
SEGUE_API segue_status segue_chat_format(const segue_model *model, const char *request, size_t request_len,
                                         char *text, size_t cap, size_t *len, segue_error *err);
/* The same for a template in memory, without a model. bos and eos may be NULL. */
SEGUE_API segue_status segue_template_render(const char *source, size_t source_len, const char *request,
                                             size_t request_len, const char *bos, const char *eos, char *text,
                                             size_t cap, size_t *len, segue_error *err);

/* --- adapters ------------------------------------------------------------------------------------------------- */

/* A low-rank change to a model: a PEFT folder, MLX adapters.safetensors or a GGUF adapter; scale multiplies its own.
 * EFORMAT: a tensor that the model does not have, or of another size. */
SEGUE_API segue_status segue_adapter_open(segue_adapter **out, const segue_model *model, const char *path,
                                          float scale, segue_error *err);
SEGUE_API void segue_adapter_close(segue_adapter *adapter);

/* --- engines and plans ---------------------------------------------------------------------------------------- */

enum { SEGUE_KV_DEFAULT = 0, SEGUE_KV_F32 = 1, SEGUE_KV_F16 = 2, SEGUE_KV_BF16 = 3, SEGUE_KV_Q8 = 4 };

#define SEGUE_CACHE_BYTES (UINT64_C(16) << 30)  /* cache_bytes unless asked: 16 GiB */

struct segue_plan;
typedef struct segue_engine_opts {
    uint32_t size;
    uint32_t kv;             /* SEGUE_KV_*: storage of K and V; default f16, on ref f32 */
    uint32_t chunk_rows;     /* rows per prefill run; 0 = 512 */
    uint32_t keep_values;    /* 1: the graphs give every layer's output (for segue_session_dump); slower */
    const char *store;       /* folder of the prefix store, made private (0700; files 0600); "" = in memory only; NULL =
                              * none. What sessions computed is kept for those that begin with the same tokens */
    uint64_t store_memory_bytes, store_disk_bytes;   /* its bounds; 0 = 512 MiB, 4 GiB (all models in the folder) */
    const char *cache;       /* folder that may be emptied at any time, for repacked weights; NULL = keep none */
    uint64_t cache_bytes;    /* what that folder may hold; the entries used longest ago go; 0 = SEGUE_CACHE_BYTES */
    segue_model *const *models;  /* [n] another storage of the same model for that unit, NULL = the engine's own; the
                              * array may be NULL. EFORMAT: another shape id */
    const struct segue_plan *plan;  /* what will be run: only its parts are placed now. NULL: all layers on every unit */
} segue_engine_opts;

typedef struct segue_part {
    uint32_t unit;           /* index into the engine's units */
    uint32_t phase;          /* 0 prefill, 1 decode */
    uint32_t from, to;       /* layers [from, to) */
    uint64_t expect_ns;      /* 0 = not known */
    double expect_j;         /* negative = not known */
} segue_part;

typedef struct segue_plan {
    uint32_t size;
    uint32_t parts_n;
    segue_part parts[8];
    uint64_t handoff_ns;     /* 0 = none, or not known */
    uint32_t shapes[4];      /* rows of a prefill run, rising, 0 ends the list: the smallest that fits, several of the
                              * largest for more. All 0: runs of the engine's chunk_rows */
} segue_plan;

typedef struct segue_task {
    uint32_t size;
    size_t prompt_tokens, output_tokens;   /* expected; 0 = not known */
    uint32_t objective;                    /* 0 latency, 1 energy, 2 throughput */
    double joule_weight;                   /* seconds that one joule is worth; objective 0 */
} segue_task;

/* Place a model on units: compiles its graphs for each. Units stay usable by others. EUNSUPPORTED names op and unit. */
SEGUE_API segue_status segue_engine_open(segue_engine **out, segue_model *model, segue_unit *const *units, size_t n,
                                         const segue_engine_opts *opts, segue_error *err);
SEGUE_API void segue_engine_close(segue_engine *engine);
SEGUE_API segue_status segue_plan_make(const segue_engine *engine, const segue_task *task, segue_plan *out,
                                       segue_error *err);
SEGUE_API segue_status segue_plan_text(const segue_engine *engine, const segue_plan *plan, char *text, size_t cap,
                                       size_t *len, segue_error *err);
/* Bytes per second that reading memory reaches with this unit's own means, measured now (about 0.2 s). */
SEGUE_API segue_status segue_unit_stream(segue_unit *unit, size_t bytes, double *gb_s, segue_error *err);

/* --- sessions ------------------------------------------------------------------------------------------------- */

/* How the next token is chosen. Zero = off everywhere: a zeroed struct is greedy. Order of steps: llama.cpp's
 * (docs/SAMPLING.md): bias, penalties, DRY, top-k, typical, top-p, min-p, temperature, draw. */
typedef struct segue_sampling {
    uint32_t size;
    float temperature;           /* 0 = greedy, lowest id on ties */
    int32_t top_k;
    float top_p, min_p, typical_p;          /* 0 or >= 1 = off (min_p: 0 = off) */
    float repeat_penalty;                   /* 0 or 1 = off */
    float presence_penalty, frequency_penalty;
    int32_t repeat_last_n;                  /* tokens looked back; 0 = 64; -1 = all */
    float dry_multiplier, dry_base;         /* 0 = off; base 0 = 1.75 */
    int32_t dry_allowed_length;             /* 0 = 2 */
    uint64_t seed;                          /* Philox key; the counter is the position */
    const struct segue_bias {
        int32_t token;
        float bias;
    } *bias;                                /* [bias_n], copied */
    size_t bias_n;
    uint32_t ignore_stops;                  /* 1: stop tokens do not end the sequence, and are never chosen */
    uint32_t logprobs;                      /* keep log-probabilities of the chosen and this many best tokens (<= 20),
                                             * plus one: 1 = the chosen alone; 0 = none */
} segue_sampling;

typedef struct segue_session_opts {
    uint32_t size;
    size_t context;              /* rows at most; 0 = the model's context or 4096, whichever is less */
    const segue_plan *plan;      /* NULL = segue_plan_make */
    const segue_sampling *sampling;   /* NULL = greedy */
    segue_adapter *const *adapters;   /* [adapters_n], held until close */
    size_t adapters_n;
    uint64_t checkpoint_bytes;   /* memory for points to go back to, where a model's memory cannot be cut: taken where
                                  * text begins and ends and after each chunk; 0 = 256 MiB */
    uint32_t repair;             /* load: 1 = a file that does not fit gives its tokens, to be computed anew by the
                                  * next call, where those are sound and of this vocabulary */
    uint32_t no_store;           /* 1: neither take from the engine's prefix store nor give to it */
    size_t spans;                /* keep a record of the last so many spans of work (segue_stats.spans); 0 = none */
    size_t verify_rows;          /* where the plan has two units: after each prompt the decoder computes so many of its last
                                  * tokens itself and compares (segue_stats.verify); 0 = none, at most 256 */
} segue_session_opts;

#define SEGUE_NO_CHECKPOINTS UINT64_MAX   /* checkpoint_bytes: none at all */


/* What one part of a plan really ran so far. */
typedef struct segue_use {
    uint32_t unit, phase;        /* as in segue_part; phase 2: what the unit's processor does because its device cannot */
    uint32_t from, to;
    uint64_t runs, rows, dispatches, ns;
    uint64_t host_bytes;         /* copied between the host and the unit's own memory; 0: none, or not counted */
    uint64_t columns;            /* rows that dispatches had room for, padding among them; 0: the unit pads none */
    uint64_t tokens_truncated;        /* of a text, by its last row, though the model asks for them: the unit was opened with fewer */
} segue_use;

enum { SEGUE_INTERVAL_PREFILL = 0, SEGUE_INTERVAL_DECODE = 1, SEGUE_INTERVAL_HANDOFF = 2 };
/* One piece of work of a session; the times are of the system's monotonic clock. */
typedef struct segue_interval {
    uint64_t begin_ns, end_ns;
    uint32_t what;               /* SEGUE_SPAN_* */
    uint32_t unit, to_unit;      /* index into the engine's units; to_unit: of a hand-off, else as unit */
    uint32_t from, to;           /* layers */
    uint64_t first, rows;        /* of the sequence; a hand-off has all that moved */
} segue_interval;

typedef struct segue_logprob {
    int32_t token;
    float logprob;
} segue_logprob;

/* A unit that vanished in the middle, and how the session went on. */
typedef struct segue_loss {
    char unit[64], to[64];   /* specs; to: where it went on, the same for a unit that was restarted */
    char why[256];
    uint64_t rows;           /* of the sequence that were computed then */
    uint64_t replayed;       /* of them that were computed again */
    uint64_t ns;             /* until that was done */
} segue_loss;

/* What the decoder found when it computed the end of a prompt itself. */
typedef struct segue_verify {
    size_t rows;             /* compared; 0 = nothing was */
    double max_abs, bound;   /* largest difference of two logits, and what is allowed */
    size_t near_ties;        /* rows whose first choice differs within the bound */
    double state_error, state_bound;   /* of the worst slot behind them: rms of the difference over its rms */
    uint32_t ok;
    const char *action;      /* "none"; "recomputed": by the decoder, which reads by itself from then on */
} segue_verify;

typedef struct segue_stats {
    uint32_t size;
    uint64_t prefill_ns, decode_ns, handoff_ns;
    size_t tokens_in, tokens_out, tokens_reused;
    const char *reuse_reason;          /* "all", "first-use", "edited", ... */
    uint64_t weight_bytes_read;        /* in decode */
    uint64_t state_bytes, handoff_bytes, copied_bytes;
    uint64_t dispatches, compiles;
    size_t logprobs_n;                 /* of the last token: the chosen first, then the best */
    segue_logprob logprobs[21];
    const char *packed;                /* repacked weights of the decoding unit: "mapped" from the cache folder, "written"
                                        * there, "anew" (too little to keep), or NULL: not kept, or nothing to repack;
                                        * lives as long as the session */
    const char *packed_why;            /* why not, or why an entry was replaced; NULL = nothing to say */
    size_t losses_n;                   /* all; the last four are kept, loss i at losses[i % 4] */
    segue_loss losses[4];
    uint64_t handoff_exposed_ns;       /* of handoff_ns: when no unit was running */
    uint32_t direct;                   /* 1: the last hand-off passed memory on, nothing was copied */
    segue_use uses[16];                /* [uses_n] */
    size_t uses_n;
    const segue_interval *spans;           /* [spans_n] oldest first, the last ones of intervals_total; until the next call */
    size_t spans_n, intervals_total;
    segue_verify verify;               /* of the last hand-off */
} segue_stats;

SEGUE_API segue_status segue_session_open(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                          segue_error *err);
SEGUE_API void segue_session_close(segue_session *session);
/* Change how the next tokens are chosen. */
SEGUE_API segue_status segue_session_sampling(segue_session *session, const segue_sampling *sampling,
                                              segue_error *err);
/* Queue tokens; nothing is computed yet. ELIMIT: the context is too small (names both numbers). */
SEGUE_API segue_status segue_session_append(segue_session *session, const int32_t *tokens, size_t n,
                                            segue_error *err);
/* Prefill what waits, hand off if the plan says so, choose one token and append it.
 * SEGUE_END: *token is a stop token (it is appended). ECANCELED leaves the session usable. */
SEGUE_API segue_status segue_session_next(segue_session *session, int32_t *token, segue_error *err);
/* One token for each of n sessions of one engine, in one run. each[i] is that session's own status. */
SEGUE_API segue_status segue_session_step(segue_session *const *sessions, size_t n, int32_t *tokens,
                                          segue_status *each, segue_error *err);
/* Prefill what waits without choosing a token; n_done may be NULL. At most max_rows rows, 0 = all. */
SEGUE_API segue_status segue_session_prefill(segue_session *session, size_t max_rows, size_t *n_done,
                                             segue_error *err);
/* Append tokens and compute them: logprobs[i] = log p(tokens[i] | what stands before) (0 for the very first), and, if
 * logits is not NULL, logits[i*vocab ...] = the logits AFTER tokens[i]. Either may be NULL. */
SEGUE_API segue_status segue_session_score(segue_session *session, const int32_t *tokens, size_t n, float *logprobs,
                                           float *logits, segue_error *err);
/* Logits after the last computed token, [vocab]. EARG: nothing computed yet. */
SEGUE_API segue_status segue_session_logits(const segue_session *session, float *out, size_t cap, size_t *n,
                                            segue_error *err);
/* Cut the sequence back to length tokens. Recurrent memory is restored from a checkpoint or replayed. */
SEGUE_API segue_status segue_session_rewind(segue_session *session, size_t length, segue_error *err);
SEGUE_API segue_status segue_session_fork(segue_session **out, segue_session *session, segue_error *err);
/* Move the state to another unit of the engine. */
SEGUE_API segue_status segue_session_move(segue_session *session, segue_unit *to, segue_error *err);
SEGUE_API segue_status segue_session_save(const segue_session *session, const char *path, segue_error *err);
SEGUE_API segue_status segue_session_load(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                          const char *path, segue_error *err);
/* Write tokens, logits, hidden.<i>, k.<i>, v.<i>, conv.<i>, rec.<i> as safetensors. tokens are appended and computed
 * first; the engine must have been opened with keep_values. Written aside, synced, renamed. */
SEGUE_API segue_status segue_session_dump(segue_session *session, const int32_t *tokens, size_t n, const char *path,
                                          segue_error *err);
SEGUE_API segue_status segue_session_stats_get(const segue_session *session, segue_stats *out, segue_error *err);
/* Tokens so far, queued ones included. The pointer lives until the next call that changes the session. */
SEGUE_API size_t segue_session_tokens(const segue_session *session, const int32_t **tokens);
/* Make the running or next call on this session return ECANCELED. Safe in signal handlers and from any thread. */
SEGUE_API void segue_session_cancel(segue_session *session);

#ifdef __cplusplus
}
#endif
#endif
