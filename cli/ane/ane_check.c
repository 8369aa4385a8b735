/* ane_check.c: see ane_check.h. SPDX-License-Identifier: MIT */
#include "ane/ane_check.h"

#include <math.h>
#include <stdlib.h>
#include "plan/probe_model.h"

enum { LAYERS = 2, WIDTH = 256, FF = 768, HEADS = 4, VOCAB = 4096, PROMPT = 40, TOKENS = 16 };

/* A unit with the model and a session. */
struct check_side {
    segue_unit *unit;
    segue_engine *engine;
    segue_session *session;
    float logits[VOCAB];
    int32_t token;
};

static void side_close(struct check_side *s)
{
    segue_session_close(s->session);
    segue_engine_close(s->engine);
    segue_unit_close(s->unit);
}

static segue_status side_open(struct check_side *s, const char *spec, segue_model *model, segue_error *err)
{
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    int32_t ids[PROMPT];
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((unsigned)i * 2654435761u % VOCAB);
    SG_TRY(segue_unit_open(&s->unit, spec, err));
    SG_TRY(segue_engine_open(&s->engine, model, &s->unit, 1, NULL, err));
    SG_TRY(segue_session_open(&s->session, s->engine, &opts, err));
    return segue_session_append(s->session, ids, PROMPT, err);
}

/* The next token and the logits that it was chosen from. */
static segue_status side_next(struct check_side *s, segue_error *err)
{
    size_t n;
    SG_TRY(segue_session_next(s->session, &s->token, err));
    return segue_session_logits(s->session, s->logits, VOCAB, &n, err);
}

static double distance(const float *a, const float *b)
{
    double largest = 0, max = 0;
    for (size_t i = 0; i < VOCAB; i++) {
        largest = fmax(largest, fabs((double)b[i]));
        max = fmax(max, fabs((double)a[i] - (double)b[i]));
    }
    return largest > 0 ? max / largest : max;
}

/* The text of `ref` is that of both. */
static segue_status compare(struct check_side sides[2], unsigned *equal, double *error, segue_error *err)
{
    for (int i = 0; i < TOKENS; i++) {
        const int32_t *tokens;
        size_t before = segue_session_tokens(sides[0].session, &tokens);
        SG_TRY(side_next(&sides[0], err));
        SG_TRY(side_next(&sides[1], err));
        *equal += sides[0].token == sides[1].token;
        *error = fmax(*error, distance(sides[0].logits, sides[1].logits));
        if (sides[0].token == sides[1].token) continue;
        SG_TRY(segue_session_rewind(sides[0].session, before, err));
        SG_TRY(segue_session_append(sides[0].session, &sides[1].token, 1, err));
    }
    return SEGUE_OK;
}

/* What the unit reports of its decode steps. */
static void put_use(json_t *o, const segue_session *s)
{
    segue_use use = SEGUE_INIT(segue_use);
    for (size_t i = 0; !segue_session_use_get(s, i, &use, NULL); i++)
        if (use.phase == SEGUE_DECODE && use.runs) {
            json_object_set_new(o, "token_ms", out_real((double)use.ns * 1e-6 / (double)use.runs));
            json_object_set_new(o, "dispatches", json_integer((json_int_t)use.dispatches));
            json_object_set_new(o, "host_bytes", json_integer((json_int_t)use.host_bytes));
            return;
        }
}

static json_t *compared(const char *spec, const char *path, segue_error *err)
{
    struct check_side *sides = out_alloc(2 * sizeof *sides);
    segue_model *model = NULL;
    unsigned equal = 0;
    double error = 0;
    segue_status st = segue_model_open(&model, path, NULL, err);
    if (!st) st = side_open(&sides[0], spec, model, err);
    if (!st) st = side_open(&sides[1], "ref", model, err);
    if (!st) st = compare(sides, &equal, &error, err);
    json_t *o = NULL;
    if (!st)
        o = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:f}", "layers", LAYERS, "width", WIDTH, "vocab", VOCAB, "n_prompt", PROMPT,
                      "n_gen", TOKENS, "tokens_equal", (int)equal, "logits_error", error);
    if (o) put_use(o, sides[0].session);
    side_close(&sides[0]);
    side_close(&sides[1]);
    segue_model_close(model);
    free(sides);
    return o;
}

json_t *ane_check_json(const char *spec)
{
    static const struct probe_shape shape = {LAYERS, WIDTH, FF, HEADS, HEADS, VOCAB, 0, 0};
    struct probe_folder f;
    segue_error err;
    json_t *o = NULL;
    segue_status st = probe_folder_open(&f, "ane-report", &err);
    if (!st) st = probe_model_write(f.path, &shape, SG_F16, &err);
    if (!st) o = compared(spec, f.path, &err);
    probe_folder_close(&f);
    return o ? o : out_error_json(&err, EXIT_UNAVAILABLE);
}
