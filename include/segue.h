/* segue.h: run a language model across the compute units of a machine.
 *
 *   unit     a compute unit: it compiles graphs, runs them and holds states.
 *   model    what a model file says; independent of any unit.
 *   engine   one model placed on one or more units.
 *   plan     which unit runs which layers in which phase, and the expected cost.
 *   session  one growing sequence of tokens.
 *
 * Before the first use:
 *   - Opening an engine places the weights. The first start may repack them; later starts map the result from the cache
 *     folder if segue_engine_opts names one.
 *   - A unit that was named is used or refused. There is no silent fallback.
 *   - The unit `ref` is the specification: fp32, slow, for checking.
 *   - Two different units never agree to the last bit. docs/STATE.md says which hand-offs are exact and which round.
 *
 * Conventions:
 *   return      segue_status. SEGUE_OK is 0; failures are negative; results that are not failures are positive
 *               (SEGUE_END). Out-parameters are written only on success unless a function says otherwise.
 *   errors      the last parameter, may be NULL, owned by the caller. `text` is one line: what failed, which object, why,
 *               what to do. Each function lists its own errors; every function may also return EARG (a NULL pointer, a
 *               struct without size), EMEMORY and EINTERNAL.
 *   structs     option and info structs begin with `uint32_t size`, which SEGUE_INIT sets. Zero means default in every
 *               field. New fields are added at the end; the library reads and writes min(size, sizeof). In an array of
 *               such structs the size of the first element is the distance between elements, so arrays may grow too.
 *   ownership   what open, make, new, fork or load returned must be closed; close(NULL) is allowed. Objects hold
 *               references to what they need, so the order of closing does not matter. Strings in info structs live as
 *               long as their object. No function keeps a caller's pointer after it returns, unless it says so.
 *   threads     model and plan: any number of threads. unit and engine: any thread. session: one thread at a time,
 *               except segue_session_cancel, which any thread and a signal handler may call.
 *   text out    (char *text, size_t cap, size_t *len): *len is the full length without the final NUL, also when cap is
 *               too small (ELIMIT). At most cap bytes are written, NUL-terminated when they fit.
 *   numbers     counts are size_t, tokens int32_t, times uint64_t nanoseconds, energy double joules.
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
#define SEGUE_VERSION_MINOR 2
#define SEGUE_VERSION_PATCH 0

typedef struct segue_unit segue_unit;
typedef struct segue_model segue_model;
typedef struct segue_engine segue_engine;
typedef struct segue_plan segue_plan;
typedef struct segue_session segue_session;
typedef struct segue_adapter segue_adapter;
typedef struct segue_grammar segue_grammar;

/* One code for each different reaction of the caller; the details are in the error text. */
typedef enum segue_status {
    SEGUE_OK = 0,
    SEGUE_END = 1,           /* no further element, or the sequence ended (stop token, stop string) */
    SEGUE_EARG = -1,         /* wrong call: fix the caller */
    SEGUE_EMEMORY = -2,      /* out of memory */
    SEGUE_EIO = -3,          /* a file or disk failed */
    SEGUE_EFORMAT = -4,      /* the file or input is damaged or of the wrong kind */
    SEGUE_EUNSUPPORTED = -5, /* valid, but this build or unit cannot do it */
    SEGUE_EUNIT = -6,        /* the unit is absent or failed */
    SEGUE_ELOST = -7,        /* the unit vanished together with its states */
    SEGUE_ELIMIT = -8,       /* does not fit: context, buffer, bound */
    SEGUE_ECANCELED = -9,    /* canceled by the caller */
    SEGUE_EINTERNAL = -10    /* a bug: please report it */
} segue_status;

typedef struct segue_error {
    segue_status status;
    char text[508];
} segue_error;

/* An option or info struct with its size set and zeroes elsewhere: segue_task t = SEGUE_INIT(segue_task); */
#ifdef __cplusplus
#define SEGUE_INIT(type) (type{sizeof(type)})
#else
#define SEGUE_INIT(type) ((type){.size = sizeof(type)})
#endif

/* --- library ----------------------------------------------------------------------------------------------------- */

/* 0xMMmmpp of the linked library. */
SEGUE_API uint32_t segue_version(void);
/* "ok", "end", "argument", "memory", ...; never NULL, also for unknown values. */
SEGUE_API const char *segue_status_name(segue_status status);

/* Host memory for everything that segue itself allocates: not mapped files, not device memory, not what jansson, PCRE2 and the
 * CUDA driver allocate. */
typedef struct segue_allocator {
    uint32_t size;
    void *context;                                                 /* passed to both functions */
    void *(*alloc)(void *context, size_t bytes, size_t alignment); /* alignment: at most 64. NULL: out of memory; any thread */
    void (*free)(void *context, void *memory);                     /* memory is never NULL; any thread */
} segue_allocator;
/* Replace malloc and free for this process. Must be the first call into the library: later calls, and a second one, are
 * refused. The struct is copied. EARG: too late, or a function is NULL. */
SEGUE_API segue_status segue_allocator_set(const segue_allocator *allocator, segue_error *err);

/* --- units ------------------------------------------------------------------------------------------------------- */

typedef struct segue_unit_info {
    uint32_t size;
    char spec[64];           /* what segue_unit_open takes: "ref", "cpu:isa=avx512,threads=2" */
    char kind[16];           /* "ref", "cpu" */
    char features[128];      /* instruction sets, compute capability, ... */
    char why[256];           /* why the unit is absent; empty when present */
    uint32_t built;          /* 1: part of this build */
    uint32_t present;        /* 1: can be opened here */
    uint32_t simulated;      /* 1: stands in for hardware that is not here; chosen only when named */
    uint64_t memory_bytes;   /* memory that weights and states may use; 0 = unknown */
    uint32_t pid;            /* process in which the unit runs; 0 = this one */
} segue_unit_info;

/* List every unit that this build knows. Writes at most cap entries to out (out[0].size is the size of each), *n = the
 * number of units. Probes devices, so it may take some milliseconds. Any thread. EARG. */
SEGUE_API segue_status segue_unit_list(segue_unit_info *out, size_t cap, size_t *n, segue_error *err);
/* Open a unit. spec: KIND[:key=value,...]; NULL or "": the fastest real unit present.
 * EARG: malformed spec or unknown key. EUNIT: not present here. EUNSUPPORTED: not in this build. */
SEGUE_API segue_status segue_unit_open(segue_unit **out, const char *spec, segue_error *err);
/* Name, kind, memory and features of an open unit. The strings live as long as the unit. EARG. */
SEGUE_API segue_status segue_unit_info_get(const segue_unit *unit, segue_unit_info *out, segue_error *err);
enum { SEGUE_RAILS = 12 };
/* Energy of a unit's device since some moment before the first reading. A rail is a part that has a counter of its own. It may
 * or may not be contained in `joules`, so rails are never added to it. */
typedef struct segue_energy {
    uint32_t size;
    double joules;           /* whole device: all packages of a CPU without memory modules, the board of a GPU */
    char meter[16];          /* what counted: "rapl", "nvml" */
    size_t rails_n;
    struct segue_rail {
        char name[24];       /* "core 0", "dram 0", "psys" */
        double joules;
    } rails[SEGUE_RAILS];
} segue_energy;
/* Read the energy counters of the unit's device; any thread. The first call may take a while. Counters that wrap around are
 * followed if they are read at least once per round (RAPL: some minutes at full power).
 * EUNSUPPORTED: the device has no energy counter, or it may not be read. EUNIT: reading it failed. */
SEGUE_API segue_status segue_unit_energy(segue_unit *unit, segue_energy *out, segue_error *err);
/* Measure the read bandwidth that the unit reaches on `bytes` of its memory, in GB/s (about 0.2 s).
 * EUNSUPPORTED: the unit cannot measure it. EUNIT, ELOST: the unit failed. */
SEGUE_API segue_status segue_unit_stream(segue_unit *unit, size_t bytes, double *gb_s, segue_error *err);
SEGUE_API void segue_unit_close(segue_unit *unit);

/* --- models ------------------------------------------------------------------------------------------------------ */

typedef struct segue_model_opts {
    uint32_t size;
    uint32_t no_text;        /* 1: do not read tokenizer and template */
    const char *storage;     /* NULL: weights as in the file. "fp8": matrices converted to e4m3 with one scale per row at
                              * load; this changes weights_id */
} segue_model_opts;

typedef struct segue_model_info {
    uint32_t size;
    const char *path, *family, *format, *name;
    const char *storage;         /* storage of most weights: "q4_1", "bf16", "mlx4" */
    char shape_id[33];           /* hex hash of numbers and vocabulary; equal in all storages of a model */
    char weights_id[33];         /* hex hash of every byte of the weights; "" while files above 64 MiB are not hashed yet */
    uint32_t layers, width, vocab, context;   /* context: the trained length, in tokens */
    uint64_t weight_bytes;       /* stored bytes of the tensors that a run reads */
    uint64_t state_fixed_bytes;  /* bytes of a state that do not depend on its length, in default storage */
    uint64_t state_token_bytes;  /* bytes of a state per token, in default storage (f16 K and V) */
    int32_t bos, eos;            /* -1 = none */
    const int32_t *stops;        /* [stops_n] tokens that end an answer */
    size_t stops_n;
    uint32_t has_tokenizer, has_template, add_bos;
    const char *tokenizer_kind, *tokenizer_pre;       /* "bpe" | "spm" | NULL; "smollm", ... | NULL */
    float temperature, top_p, min_p, repeat_penalty;  /* generation_config.json; negative = not given */
    int32_t top_k;                                    /* negative = not given */
    const char *warning;         /* why texts may be tokenized slightly differently from the original; NULL = no doubt */
    int32_t fim_pre, fim_suf, fim_mid;  /* tokens of fill-in-the-middle: before the prefix, the suffix, the middle; -1 = none */
    int32_t fim_pad, fim_rep, fim_sep;  /* padding; before the name of a repository, of a file; -1 = none */
} segue_model_info;

/* Open a model. path: a file (.gguf, .safetensors, .bin) or a folder as downloaded. Maps it and reads no tensor data.
 * EIO: cannot be read. EFORMAT: damaged or absurd numbers. EUNSUPPORTED: family, storage or rope scaling not supported. */
SEGUE_API segue_status segue_model_open(segue_model **out, const char *path, const segue_model_opts *opts,
                                        segue_error *err);
/* Sizes, ids, special tokens, recommended sampling. The strings live as long as the model. EARG. */
SEGUE_API segue_status segue_model_info_get(const segue_model *model, segue_model_info *out, segue_error *err);
/* Wait for weights_id, a NUL-terminated string. An engine starts hashing when it is opened, while units load the weights; this
 * call starts it if nothing did. cache: a folder where ids are remembered, or NULL. EIO: the files cannot be read, or changed. */
SEGUE_API segue_status segue_model_weights_id(const segue_model *model, const char *cache, char id[33], segue_error *err);

typedef enum segue_describe {
    SEGUE_DESCRIBE_JSON = 0,     /* the object of `segue inspect --json` */
    SEGUE_DESCRIBE_GRAPH = 1,    /* the list of operations, one per line */
    SEGUE_DESCRIBE_TEMPLATE = 2  /* source of the chat template */
} segue_describe;
/* EARG: unknown `what`. EUNSUPPORTED: no template. ELIMIT: cap too small. */
SEGUE_API segue_status segue_model_describe(const segue_model *model, segue_describe what, char *text, size_t cap,
                                            size_t *len, segue_error *err);
SEGUE_API void segue_model_close(segue_model *model);

/* --- text -------------------------------------------------------------------------------------------------------- */

enum {
    SEGUE_TEXT_NO_BOS = 1,      /* tokenize: do not add BOS or EOS */
    SEGUE_TEXT_NO_SPECIAL = 2   /* tokenize: treat special tokens in the text as plain text; detokenize: omit them */
};
/* UTF-8 text to tokens. Invalid bytes become U+FFFD. *n is the full count, also on ELIMIT.
 * EUNSUPPORTED: the model has no tokenizer. ELIMIT: cap too small. */
SEGUE_API segue_status segue_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                                      int32_t *tokens, size_t cap, size_t *n, segue_error *err);
/* A whole sequence of tokens to text; for tokens that arrive one by one use segue_text_next.
 * EARG: a token outside the vocabulary. EUNSUPPORTED: no tokenizer. ELIMIT: cap too small. */
SEGUE_API segue_status segue_detokenize(const segue_model *model, const int32_t *tokens, size_t n, unsigned flags,
                                        char *text, size_t cap, size_t *len, segue_error *err);

/* Text of tokens that arrive one by one. Never returns half a character, and holds back bytes that may become a stop
 * string. Memory of the caller; zero `priv` before the first call; nothing to close. */
typedef struct segue_text {
    uint32_t size;
    unsigned flags;              /* SEGUE_TEXT_NO_SPECIAL */
    const char *const *stops;    /* [stops_n] stop strings; must live as long as this struct is used */
    size_t stops_n;
    struct {
        uint32_t held;           /* bytes held back */
        uint32_t started, ended;
        char bytes[1012];
    } priv;
} segue_text;
/* token -1: no more tokens; return what is held back. SEGUE_END: a stop string was found; the text ends before it.
 * EARG: a token outside the vocabulary. ELIMIT: cap is smaller than one token's text; nothing was consumed. */
SEGUE_API segue_status segue_text_next(const segue_model *model, segue_text *state, int32_t token, char *text,
                                       size_t cap, size_t *len, segue_error *err);

/* Render the model's chat template. request: a JSON object {"messages":[...], "tools":[...], and any other variable of
 * the template such as "enable_thinking" or "add_generation_prompt" (default true)}. A content may be a text, a list of
 * {"type":"text","text"}, or null beside tool calls, also if the template knows texts only.
 * EUNSUPPORTED: the model has no template. EFORMAT: bad request or template (the text names the line). ELIMIT. */
SEGUE_API segue_status segue_chat_format(const segue_model *model, const char *request, size_t request_len,
                                         char *text, size_t cap, size_t *len, segue_error *err);
/* The same for a template in memory, without a model. bos and eos may be NULL. EFORMAT, ELIMIT. */
SEGUE_API segue_status segue_template_render(const char *source, size_t source_len, const char *request,
                                             size_t request_len, const char *bos, const char *eos, char *text,
                                             size_t cap, size_t *len, segue_error *err);

/* --- grammars ---------------------------------------------------------------------------------------------------- */

typedef enum segue_grammar_kind {
    SEGUE_GRAMMAR_GBNF = 0,        /* llama.cpp's form of BNF; the text is that of the rule `root` */
    SEGUE_GRAMMAR_JSON_SCHEMA = 1, /* a JSON value that satisfies a schema; members in any order */
    SEGUE_GRAMMAR_REGEX = 2        /* a regular expression that matches the whole text */
} segue_grammar_kind;
/* Compile a constraint for generated text (segue_sampling.grammar). A grammar may be shared by sessions and threads; it keeps the
 * masks of tokens that it has computed. EFORMAT: not valid (the text says where). EUNSUPPORTED: a keyword or construct is not
 * supported (the text names it), or the model has no tokenizer. ELIMIT: too large. */
SEGUE_API segue_status segue_grammar_open(segue_grammar **out, const segue_model *model, segue_grammar_kind kind,
                                          const char *text, size_t len, segue_error *err);
SEGUE_API void segue_grammar_close(segue_grammar *grammar);

/* --- adapters ---------------------------------------------------------------------------------------------------- */

/* Open a LoRA adapter: a PEFT folder, an MLX adapters.safetensors or a GGUF adapter. scale multiplies the adapter's own.
 * EIO, EFORMAT (damage, a tensor that the model lacks, a wrong shape), EUNSUPPORTED (DoRA, trained biases). */
SEGUE_API segue_status segue_adapter_open(segue_adapter **out, const segue_model *model, const char *path,
                                          float scale, segue_error *err);
SEGUE_API void segue_adapter_close(segue_adapter *adapter);

/* --- plans ------------------------------------------------------------------------------------------------------- */

typedef enum segue_phase {
    SEGUE_PREFILL = 0,
    SEGUE_DECODE = 1,
    SEGUE_HELPER = 2,        /* only in segue_use: work of the host for a device that lacks an operation */
    SEGUE_HANDOFF = 3        /* only in segue_interval */
} segue_phase;

typedef enum segue_objective {
    SEGUE_OBJECTIVE_LATENCY = 0,
    SEGUE_OBJECTIVE_ENERGY = 1,
    SEGUE_OBJECTIVE_THROUGHPUT = 2
} segue_objective;

/* What will be run. */
typedef struct segue_task {
    uint32_t size;
    size_t prompt_tokens, output_tokens;   /* expected; 0 = unknown */
    segue_objective objective;
    double joule_weight;                   /* seconds that one joule is worth; latency objective only */
} segue_task;

/* One part of a plan: some layers in one phase on one unit. */
typedef struct segue_part {
    uint32_t size;
    uint32_t unit;           /* index into the engine's units */
    segue_phase phase;       /* SEGUE_PREFILL or SEGUE_DECODE */
    uint32_t from, to;       /* layers [from, to) */
    uint64_t expect_ns;      /* expected time; 0 = unknown */
    double expect_j;         /* expected energy; negative = unknown */
} segue_part;

enum { SEGUE_PLAN_SHAPES = 4 };
typedef struct segue_plan_opts {
    uint32_t size;
    uint64_t handoff_ns;     /* expected; 0 = none, or unknown */
    uint32_t shapes[SEGUE_PLAN_SHAPES];  /* tokens of a prefill run, rising, 0 ends the list: the smallest that fits, or
                              * several of the largest. All 0: runs of the engine's chunk_tokens */
} segue_plan_opts;

typedef struct segue_plan_info {
    uint32_t size;
    size_t parts_n;
    uint64_t handoff_ns;     /* of segue_plan_opts */
    uint32_t shapes[SEGUE_PLAN_SHAPES];
} segue_plan_info;

/* A plan that the caller states: parts[n], at most 16 (parts[0].size is the size of each). opts may be NULL. Copied.
 * EARG: no parts, or too many. Whether it fits an engine is checked where it is used. */
SEGUE_API segue_status segue_plan_new(segue_plan **out, const segue_part *parts, size_t n,
                                      const segue_plan_opts *opts, segue_error *err);
/* The plan that the engine chooses for a task. EUNSUPPORTED: no unit of the engine can do it. */
SEGUE_API segue_status segue_plan_make(segue_plan **out, const segue_engine *engine, const segue_task *task,
                                       segue_error *err);
/* Number of parts, chunk sizes and expected times of a plan. EARG. */
SEGUE_API segue_status segue_plan_info_get(const segue_plan *plan, segue_plan_info *out, segue_error *err);
/* Part i, from 0. SEGUE_END: there are fewer. EARG. */
SEGUE_API segue_status segue_plan_part_get(const segue_plan *plan, size_t i, segue_part *out, segue_error *err);
/* One line per part. ELIMIT. */
SEGUE_API segue_status segue_plan_text(const segue_engine *engine, const segue_plan *plan, char *text, size_t cap,
                                       size_t *len, segue_error *err);
SEGUE_API void segue_plan_close(segue_plan *plan);

/* --- engines ----------------------------------------------------------------------------------------------------- */

typedef enum segue_kv {
    SEGUE_KV_DEFAULT = 0,    /* f16; f32 on `ref` */
    SEGUE_KV_F32 = 1,
    SEGUE_KV_F16 = 2,
    SEGUE_KV_BF16 = 3,
    SEGUE_KV_Q8 = 4
} segue_kv;

#define SEGUE_CACHE_BYTES (UINT64_C(16) << 30)  /* default of cache_bytes: 16 GiB */

typedef struct segue_engine_opts {
    uint32_t size;
    segue_kv kv;             /* storage of K and V in states */
    uint32_t chunk_tokens;   /* tokens per prefill run; 0 = 512 */
    uint32_t keep_values;    /* 1: graphs also return every layer's output (for segue_session_dump); slower */
    const char *store;       /* folder of the prefix store, made private (0700; files 0600); "": in memory only; NULL: no
                              * store. Sessions reuse states of earlier sequences that begin with the same tokens */
    uint64_t store_memory_bytes, store_disk_bytes;   /* bounds of the store; 0 = 512 MiB, 4 GiB */
    const char *cache;       /* folder for repacked weights and compiled programs; may be emptied at any time; NULL: none */
    uint64_t cache_bytes;    /* bound of that folder, least recently used entries go first; 0 = SEGUE_CACHE_BYTES */
    segue_model *const *models;  /* [number of units] another storage of the same model for that unit; NULL entries, and a
                              * NULL array, mean the engine's own model. EFORMAT: another shape id */
    const segue_plan *plan;  /* what will be run: only its parts are placed now. NULL: all layers on every unit */
    /* Called while weights are placed, from the calling thread: bytes done of bytes in all. A result other than 0 ends
     * segue_engine_open with ECANCELED. NULL: none. */
    int (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
    uint32_t embeddings;     /* 1: requests of kind SEGUE_EMBED are possible; a second graph is compiled for the same weights */
    uint32_t deterministic;  /* 1: the tokens of a session depend on its own tokens and options alone, bit for bit: not on
                              * other sessions of a run, cached prefixes, chunks, restarts or threads. Slower (docs/BENCH.md).
                              * EUNSUPPORTED: a unit cannot promise that as it was opened */
} segue_engine_opts;

/* Place a model on units: compile its graphs and place its weights. The units stay usable by other engines.
 * EUNSUPPORTED: an op or storage that a unit cannot do (the text names op, layer and unit). EFORMAT: a weight that is not
 * finite, or models of different shape ids. ELIMIT: does not fit in the unit's memory. EUNIT, ELOST: a unit failed.
 * ECANCELED: `progress` asked for it. EIO: the store's folder. */
SEGUE_API segue_status segue_engine_open(segue_engine **out, segue_model *model, segue_unit *const *units, size_t n,
                                         const segue_engine_opts *opts, segue_error *err);
SEGUE_API void segue_engine_close(segue_engine *engine);

/* --- sessions ---------------------------------------------------------------------------------------------------- */

/* How the next token is chosen. Zero switches each step off: a zeroed struct is greedy. Order of the steps (that of
 * llama.cpp; docs/SAMPLING.md): bias, penalties, DRY, top-k, typical, top-p, min-p, temperature, draw. */
typedef struct segue_sampling {
    uint32_t size;
    float temperature;           /* 0 = greedy, lowest id on ties */
    int32_t top_k;
    float top_p, min_p, typical_p;          /* 0 or >= 1 = off (min_p: 0 = off) */
    float repeat_penalty;                   /* 0 or 1 = off */
    float presence_penalty, frequency_penalty;
    int32_t repeat_last_n;                  /* tokens that the penalties look back; 0 = 64; -1 = all */
    float dry_multiplier, dry_base;         /* 0 = off; base 0 = 1.75 */
    int32_t dry_allowed_length;             /* 0 = 2 */
    uint64_t seed;                          /* Philox key; the counter is the position */
    const struct segue_bias {
        int32_t token;
        float bias;
    } *bias;                                /* [bias_n], copied */
    size_t bias_n;
    uint32_t ignore_stops;                  /* 1: stop tokens are never chosen and do not end the sequence */
    uint32_t logprobs;                      /* 0: none. k: keep log-probabilities of the chosen token and the k - 1 most
                                             * probable ones (k <= 21); read them with segue_session_logprobs */
    segue_grammar *grammar;                 /* NULL, or what the text may be that follows the tokens appended last: other
                                             * tokens are not chosen, stop tokens only where the text may end. Referenced.
                                             * Not with ignore_stops */
} segue_sampling;

typedef struct segue_session_opts {
    uint32_t size;
    size_t context;              /* tokens at most; 0 = the lesser of the model's context and 4096 */
    const segue_plan *plan;      /* NULL = segue_plan_make; copied */
    const segue_sampling *sampling;   /* NULL = greedy; copied */
    segue_adapter *const *adapters;   /* [adapters_n], referenced until close */
    size_t adapters_n;
    uint64_t checkpoint_bytes;   /* memory for checkpoints, where a model's state cannot be cut: taken where given text
                                  * begins and ends and after each chunk; 0 = 256 MiB; SEGUE_NO_CHECKPOINTS = none */
    uint32_t repair;             /* load: 1 = if the file's states do not fit, take its tokens, where those are valid, and
                                  * compute them with the next call */
    uint32_t no_store;           /* 1: neither read from nor write to the engine's prefix store */
    size_t intervals;            /* number of latest runs and hand-offs to record; 0 = none */
    size_t verify_tokens;        /* plans with two units: after each prompt the decode unit computes its last tokens itself
                                  * and compares (segue_stats.verify); 0 = none, at most 256 */
    const char *realm;           /* whose prompts these are, such as a key: the prefix store serves a session only states of
                                  * sessions of an equal realm; NULL = "". Copied, at most 255 bytes */
    uint32_t drafts;             /* 1: forks are drafts, for text that may never be sent, until segue_session_next, _step or a
                                  * request asks them for a token: they do not use the prefix store, and a cancel between two
                                  * calls stops the second one. Forks inherit it */
} segue_session_opts;

#define SEGUE_NO_CHECKPOINTS UINT64_MAX

/* Work that one part of a plan has done so far. */
typedef struct segue_use {
    uint32_t size;
    uint32_t unit;               /* index into the engine's units */
    segue_phase phase;
    uint32_t from, to;           /* layers [from, to) */
    uint64_t runs, tokens;       /* of complete runs; what follows also counts runs that failed or were canceled */
    uint64_t dispatches, ns;
    uint64_t host_bytes;         /* copied between host and device memory; 0: none, or not counted */
    uint64_t padded_tokens;      /* of complete runs: token slots of all dispatches, padding included; 0: the unit does not pad */
    uint64_t tokens_truncated;   /* positions that the last token no longer saw although the model asks for them, because
                                  * the unit was opened with a shorter attention range */
    uint64_t overflows, underflows;  /* results beyond the unit's 16-bit format: infinite; zero or subnormal with lost bits;
                                  * 0: none, or the unit does not count them */
    uint64_t layout_ops;         /* operations of all dispatches that only move numbers; 0: none, or not counted */
} segue_use;

/* One run or hand-off of a session. Times are of the system's monotonic clock. */
typedef struct segue_interval {
    uint32_t size;
    segue_phase phase;           /* SEGUE_PREFILL, SEGUE_DECODE or SEGUE_HANDOFF */
    uint64_t begin_ns, end_ns;
    uint32_t unit, to_unit;      /* indices into the engine's units; to_unit differs from unit in hand-offs only */
    uint32_t from, to;           /* layers [from, to) */
    uint64_t pos, tokens;        /* first position, and number of tokens; of a hand-off: all that moved */
} segue_interval;

/* A unit that was lost during a call, and how the session continued. */
typedef struct segue_loss {
    uint32_t size;
    char unit[64], to[64];       /* specs; `to`: the unit that continued, equal to `unit` after a restart */
    char why[256];
    uint64_t tokens;             /* computed at that moment */
    uint64_t replayed;           /* of them computed again */
    uint64_t ns;                 /* until the session had caught up */
} segue_loss;

typedef struct segue_logprob {
    int32_t token;
    float logprob;
} segue_logprob;

/* Comparison of the prefill unit's result with the decode unit's (segue_session_opts.verify_tokens). */
typedef struct segue_verify {
    size_t tokens;               /* compared; 0 = none */
    double max_abs, bound;       /* largest difference of two logits, and what is allowed */
    size_t near_ties;            /* tokens whose best logit differs within the bound */
    double state_error, state_bound;   /* of the worst slot: rms of the difference over its rms */
    uint32_t ok;
    const char *action;          /* "none", or "recomputed": the decode unit computed the prompt and continues alone */
} segue_verify;

typedef struct segue_stats {
    uint32_t size;
    uint64_t prefill_ns, decode_ns, handoff_ns;
    uint64_t handoff_exposed_ns;       /* part of handoff_ns during which no unit computed */
    size_t tokens_in, tokens_out, tokens_reused;
    const char *reuse_reason;          /* "all", "first-use", "edited", ... (docs/STATE.md) */
    uint64_t weight_bytes_read;        /* in decode */
    uint64_t state_bytes, handoff_bytes, copied_bytes;
    uint64_t dispatches, compiles;
    uint32_t direct;                   /* 1: the last hand-off passed memory on without a copy */
    const char *packed;                /* repacked weights of the decode unit: "mapped" from the cache folder, "written"
                                        * there, "repacked" (not worth caching), or NULL: nothing to repack, or not cached */
    const char *packed_why;            /* why not, or why an entry was replaced; NULL = nothing to report */
    size_t uses_n;                     /* entries of segue_session_use_get */
    size_t losses_n;                   /* losses so far; the last 4 can be read with segue_session_loss_get */
    size_t intervals_n;                /* entries of segue_session_interval_get */
    size_t intervals_total;            /* runs and hand-offs so far */
    segue_verify verify;               /* of the last hand-off */
} segue_stats;

/* EUNSUPPORTED, EARG: the plan does not fit the engine. ELIMIT: context beyond the model's positions. */
SEGUE_API segue_status segue_session_open(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                          segue_error *err);
/* A copy that continues independently; KV memory is shared until one of them writes. EUNIT, ELOST. */
SEGUE_API segue_status segue_session_fork(segue_session **out, segue_session *session, segue_error *err);
SEGUE_API void segue_session_close(segue_session *session);

/* Change how the next tokens are chosen. EARG: a value out of range. */
SEGUE_API segue_status segue_session_sampling(segue_session *session, const segue_sampling *sampling,
                                              segue_error *err);
/* Queue tokens; nothing is computed yet. EARG: a token outside the vocabulary. ELIMIT: the context is too small. */
SEGUE_API segue_status segue_session_append(segue_session *session, const int32_t *tokens, size_t n,
                                            segue_error *err);
/* Compute at most max_tokens queued tokens (0 = all) without choosing one; n_done may be NULL.
 * ECANCELED leaves the session usable. EUNIT, ELOST: see segue_session_next. */
SEGUE_API segue_status segue_session_prefill(segue_session *session, size_t max_tokens, size_t *n_done,
                                             segue_error *err);
/* Compute what is queued, hand off if the plan says so, choose one token and append it.
 * SEGUE_END: *token is a stop token, and it was appended. ECANCELED leaves the session usable: call again to continue.
 * EARG: empty session. ELIMIT: the context is full. EUNIT: the unit failed. ELOST: every unit of the engine is lost; the
 * tokens are kept and the next call computes them again. */
SEGUE_API segue_status segue_session_next(segue_session *session, int32_t *token, segue_error *err);
/* One token for each of n sessions of one engine, in one run where possible. each[i] receives the status and text of
 * session i, as segue_session_next would return them; tokens[i] is written when each[i].status is OK or END.
 * The call itself fails only with EARG (NULL, sessions of several engines, a session twice) or EMEMORY. */
SEGUE_API segue_status segue_session_step(segue_session *const *sessions, size_t n, int32_t *tokens,
                                          segue_error *each, segue_error *err);
/* Append tokens and compute them: logprobs[i] = log p(tokens[i] | tokens before it) (0 for the very first) and, if logits
 * is not NULL, logits[i * vocab ...] = the logits after tokens[i]. Either may be NULL. Errors: those of
 * segue_session_append and segue_session_next. */
SEGUE_API segue_status segue_session_score(segue_session *session, const int32_t *tokens, size_t n, float *logprobs,
                                           float *logits, segue_error *err);
/* Make the call in progress on this session return ECANCELED; without one it has no effect. Any thread, and signal
 * handlers. */
SEGUE_API void segue_session_cancel(segue_session *session);

/* Tokens so far, queued ones included. *tokens is valid until the next call that changes the session. */
SEGUE_API size_t segue_session_tokens(const segue_session *session, const int32_t **tokens);
/* Logits after the last computed token, [vocab]. EARG: nothing computed yet. ELIMIT: cap too small. EUNIT, ELOST. */
SEGUE_API segue_status segue_session_logits(const segue_session *session, float *out, size_t cap, size_t *n,
                                            segue_error *err);
/* Log-probabilities of the last chosen token: the chosen one first, then the most probable ones (segue_sampling.logprobs).
 * *n = the number kept. ELIMIT: cap too small; nothing written. */
SEGUE_API segue_status segue_session_logprobs(const segue_session *session, segue_logprob *out, size_t cap, size_t *n,
                                              segue_error *err);

/* Cut the sequence to its first `length` tokens. Recurrent slots are restored from a checkpoint or computed again by the
 * next call. EARG: longer than the sequence. */
SEGUE_API segue_status segue_session_rewind(segue_session *session, size_t length, segue_error *err);
/* Move the states to another unit of the engine. EARG: not a unit of the engine. EUNIT, ELOST, ELIMIT. */
SEGUE_API segue_status segue_session_move(segue_session *session, segue_unit *to, segue_error *err);
/* Write a state file: aside, synced, renamed; mode 0600. EIO, EUNIT, ELOST. */
SEGUE_API segue_status segue_session_save(const segue_session *session, const char *path, segue_error *err);
/* Open a session from a state file. EIO. EFORMAT: damaged, or of another model, shape or adapter. ELIMIT: longer than the
 * context. EUNIT, ELOST. */
SEGUE_API segue_status segue_session_load(segue_session **out, segue_engine *engine, const segue_session_opts *opts,
                                          const char *path, segue_error *err);
/* Append tokens, compute them, and write tokens, logits, hidden.<i>, k.<i>, v.<i>, conv.<i>, rec.<i> as safetensors.
 * EARG: the engine was opened without keep_values. Otherwise the errors of segue_session_score and EIO. */
SEGUE_API segue_status segue_session_dump(segue_session *session, const int32_t *tokens, size_t n, const char *path,
                                          segue_error *err);

/* Times, counts and memory of the session so far. The strings live as long as the session. EARG. */
SEGUE_API segue_status segue_session_stats_get(const segue_session *session, segue_stats *out, segue_error *err);
/* Entry i of the counts per part, of the losses (oldest kept first), of the intervals (oldest kept first).
 * SEGUE_END: there are fewer. EARG. */
SEGUE_API segue_status segue_session_use_get(const segue_session *session, size_t i, segue_use *out, segue_error *err);
SEGUE_API segue_status segue_session_loss_get(const segue_session *session, size_t i, segue_loss *out,
                                              segue_error *err);
SEGUE_API segue_status segue_session_interval_get(const segue_session *session, size_t i, segue_interval *out,
                                                  segue_error *err);

/* --- scheduler --------------------------------------------------------------------------------------------------- */

/* A scheduler computes many requests on one engine: continuous batching. Requests join and leave between tokens; the tokens
 * of running answers and chunks of prompts share runs. A request is a handle; its tokens wait in it until they are read.
 * Threads: every function may be called from any thread at any time, except segue_request_close, after which the handle is
 * invalid. A scheduler closes after its requests or before them, in any order. */
typedef struct segue_scheduler segue_scheduler;
typedef struct segue_request segue_request;

typedef struct segue_scheduler_opts {
    uint32_t size;
    uint32_t manual;             /* 0: threads of the library compute. 1: threads of the caller do, by segue_scheduler_run.
                                  * 2: the caller's, but prompts of plans with two units are computed by one of the library's */
    size_t running;              /* requests with states at once, 1 to 4096; 0 = 16 */
    size_t waiting;              /* requests that may wait to be started, at most 1048576; more are refused; 0 = 1024 */
    size_t context;              /* tokens of one request at most; 0 = as segue_session_opts.context */
    uint64_t memory_bytes;       /* bound of states, checkpoints and the prefix store's memory together; 0 = no bound */
    uint64_t target_ns;          /* aimed time between two tokens of a running answer, by which prompt chunks are sized;
                                  * 0 = 50 ms */
    uint64_t checkpoint_bytes;   /* per request, as segue_session_opts.checkpoint_bytes */
    size_t unread_tokens;        /* a request with this many unread tokens pauses until they are read; 0 = no bound */
    const segue_plan *plan;      /* NULL = segue_plan_make; copied */
    size_t verify_tokens;        /* plans with two units: check hand-offs as segue_session_opts.verify_tokens does ... */
    size_t verify_every;         /* ... for one in this many requests, the first included; 0 = 1 */
    uint32_t share;              /* 1: the prefix store serves all realms alike */
    uint32_t warm;               /* 1, with manual 0: on units whose first runs are slow (GPUs), open first computes some
                                  * requests and forgets them; takes about half a second */
} segue_scheduler_opts;

typedef enum segue_task_kind {
    SEGUE_GENERATE = 0,          /* choose tokens after the prompt */
    SEGUE_SCORE = 1,             /* log-probabilities of the prompt's tokens */
    SEGUE_EMBED = 2              /* one vector for the prompt */
} segue_task_kind;

typedef enum segue_pooling {
    SEGUE_POOL_LAST = 0,         /* final hidden values of the last token */
    SEGUE_POOL_MEAN = 1,         /* mean over all tokens */
    SEGUE_POOL_CLS = 2           /* of the first token */
} segue_pooling;

typedef struct segue_request_opts {
    uint32_t size;
    segue_task_kind kind;
    const int32_t *tokens;       /* [tokens_n] the prompt, copied; may be empty if `session` has tokens */
    size_t tokens_n;
    size_t max_tokens;           /* tokens to choose at most; 0 = until the context is full */
    const segue_sampling *sampling;   /* NULL = greedy, or that of `session`; copied */
    segue_adapter *const *adapters;   /* [adapters_n] */
    size_t adapters_n;
    const char *realm;           /* prefixes are reused only among requests of equal realm (segue_session_opts.realm); copied */
    uint32_t no_store;           /* 1: neither read from nor write to the prefix store */
    uint32_t priority;           /* higher starts first; equal ones in order of arrival; preempted last */
    segue_session *session;      /* NULL: the scheduler opens one. Else the request continues this session of the same engine;
                                  * the caller may not touch it until the request has ended (segue_request_info.finish; a
                                  * thread that drives a manual scheduler alone may read it between runs, once it has tokens), and
                                  * closes it after the request. context, plan, adapters and realm are the session's own */
    segue_pooling pooling;       /* SEGUE_EMBED only */
    uint32_t normalize;          /* SEGUE_EMBED: 1 = scaled to length 1 */
} segue_request_opts;

typedef enum segue_finish {
    SEGUE_FINISH_NONE = 0,       /* waiting or running */
    SEGUE_FINISH_STOP = 1,       /* a stop token, which is the last token */
    SEGUE_FINISH_LENGTH = 2,     /* max_tokens, or the context is full */
    SEGUE_FINISH_DONE = 3,       /* SEGUE_SCORE, SEGUE_EMBED: the values are there */
    SEGUE_FINISH_CANCELED = 4,
    SEGUE_FINISH_ERROR = 5       /* segue_request_read returns the error */
} segue_finish;

/* What happened to a request so far. Times are of the system's monotonic clock, 0 = not yet. */
typedef struct segue_request_info {
    uint32_t size;
    segue_finish finish;
    const char *waits_for;       /* "turn", "memory", "reader", or NULL: it runs or has ended */
    size_t prompt_tokens;        /* tokens of the session when the request was submitted, the prompt included */
    size_t tokens_computed;      /* of the session now; more than prompt_tokens in an answer */
    size_t tokens_reused;        /* of the prompt, not computed again */
    size_t tokens_out, tokens_unread;
    const char *reuse_reason;    /* as segue_stats.reuse_reason */
    size_t reuse_diverged;       /* stored prefixes agree with the prompt up to this token; 0: with none */
    uint64_t submit_ns, start_ns, first_token_ns, end_ns;
    uint64_t prefill_ns, decode_ns, handoff_ns;
    size_t preemptions;          /* times that its states were given up and computed again */
    size_t shared_runs;          /* runs together with other requests */
    uint32_t prefill_unit, decode_unit;  /* index of the engine's unit that computed each phase (its first layers) */
    segue_verify verify;         /* tokens 0: this request's hand-off was not checked */
} segue_request_info;

typedef struct segue_scheduler_info {
    uint32_t size;
    size_t running, waiting, paused, unfinished;   /* requests now */
    uint64_t submitted, finished, canceled, failed, refused, preemptions;   /* so far; finished ones include the next two */
    uint64_t runs, shared_runs;  /* runs of units; with more than one request */
    uint64_t prompt_tokens, reused_tokens, chosen_tokens;
    uint64_t memory_bytes, memory_limit;   /* states, checkpoints and store now; 0 = no limit */
    uint64_t store_bytes;        /* of it: the prefix store */
    uint64_t token_ns;           /* recent mean time of one run that decodes; 0: unknown */
    double prompt_tokens_s;      /* recent speed of prompts, tokens per second; 0: unknown */
    uint64_t verified, verify_failed;    /* hand-offs checked; of them not equal, and computed again */
} segue_scheduler_info;

/* EARG: an option out of range. EUNSUPPORTED: the plan does not fit the engine. ELIMIT: context beyond the model's. */
SEGUE_API segue_status segue_scheduler_open(segue_scheduler **out, segue_engine *engine, const segue_scheduler_opts *opts,
                                            segue_error *err);
/* Cancels what has not ended, waits for the runs in progress and ends the threads. Requests stay readable. */
SEGUE_API void segue_scheduler_close(segue_scheduler *scheduler);
/* Manual schedulers: compute one run (of each phase that has work) on the calling thread. SEGUE_END: nothing to compute now.
 * Several threads may call it at once: two phases on two units then overlap. Errors of requests are theirs. EARG: not manual. */
SEGUE_API segue_status segue_scheduler_run(segue_scheduler *scheduler, segue_error *err);
/* Wait until any request has changed (tokens, end) since *seen, at most timeout_ns (0: poll; UINT64_MAX: no bound), and set
 * *seen to now; begin with 0. SEGUE_END: nothing changed, or the scheduler is closed. For one thread that serves many. */
SEGUE_API segue_status segue_scheduler_wait(segue_scheduler *scheduler, uint64_t *seen, uint64_t timeout_ns, segue_error *err);
/* Counts of requests and runs so far; any thread. EARG. */
SEGUE_API segue_status segue_scheduler_info_get(const segue_scheduler *scheduler, segue_scheduler_info *out,
                                                segue_error *err);

/* Queue a request and return at once. EARG: a token, option or session that does not fit. ELIMIT: the queue is full (try
 * again later), the prompt exceeds the context, or the request can never fit memory_bytes (the text says which).
 * EUNSUPPORTED: the kind does not fit the model or plan. ECANCELED: the scheduler is closing. */
SEGUE_API segue_status segue_request_submit(segue_request **out, segue_scheduler *scheduler, const segue_request_opts *opts,
                                            segue_error *err);
/* Take chosen tokens, at least one if timeout_ns (0: poll; UINT64_MAX: no bound) allows: *n of them, at most cap.
 * logprobs: NULL, or [cap, k] for segue_sampling.logprobs = k: of token i the entries [i * k, i * k + k), as of
 * segue_session_logprobs; unused entries have token -1. SEGUE_OK with *n = 0: time is up. SEGUE_END: ended, all tokens were
 * read. A failed request returns its own error after its last token: ECANCELED, or an error of segue_session_next. */
SEGUE_API segue_status segue_request_read(segue_request *request, int32_t *tokens, segue_logprob *logprobs, size_t cap,
                                          size_t *n, uint64_t timeout_ns, segue_error *err);
/* Values of SEGUE_SCORE (out[i] = log p(token i | those before it), 0 for the first) and SEGUE_EMBED ([width]), after
 * segue_request_read has returned SEGUE_END. *n = their number. EARG: not ended, or another kind. ELIMIT: cap too small. */
SEGUE_API segue_status segue_request_values(const segue_request *request, float *out, size_t cap, size_t *n,
                                            segue_error *err);
/* State, counts and times of a request; any thread. EARG. */
SEGUE_API segue_status segue_request_info_get(const segue_request *request, segue_request_info *out, segue_error *err);
/* End a request after the run in progress; its tokens stay readable. Without effect on one that has ended. */
SEGUE_API void segue_request_cancel(segue_request *request);
/* Cancel if it has not ended, wait until no run uses it, and free it. A session of the caller remains, usable. */
SEGUE_API void segue_request_close(segue_request *request);

#ifdef __cplusplus
}
#endif
#endif
