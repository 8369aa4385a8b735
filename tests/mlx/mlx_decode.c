/* mlx_decode.c: for docs/bench/mlx_pairs.py: decodes greedily on request.
 *     mlx_decode MODEL UNIT KV          KV: f32, f16 or bf16
 * For each line N of the input: 8 tokens of a prompt and 8 generated ones, then N more, of which it prints the speed in tok/s.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "segue.h"

static segue_status generate(segue_session *s, int n, segue_error *err)
{
    int32_t token;
    segue_status status = SEGUE_OK;
    for (int i = 0; i < n && status == SEGUE_OK; i++) status = segue_session_next(s, &token, err);
    return status;
}

static segue_status decode(segue_engine *engine, int n, segue_error *err)
{
    static const int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    segue_session *s = NULL;
    greedy.ignore_stops = 1;
    opts.sampling = &greedy;
    segue_status status = segue_session_open(&s, engine, &opts, err);
    if (status == SEGUE_OK) status = segue_session_append(s, prompt, 8, err);
    if (status == SEGUE_OK) status = generate(s, 8, err);
    uint64_t start_ns = sg_now_ns();
    if (status == SEGUE_OK) status = generate(s, n, err);
    if (status == SEGUE_OK) printf("%.2f\n", n * 1e9 / (double)(sg_now_ns() - start_ns));
    fflush(stdout);
    segue_session_close(s);
    return status;
}

static segue_status serve(const char *path, const char *spec, uint32_t kv, segue_error *err)
{
    segue_unit *unit = NULL;
    segue_model *model = NULL;
    segue_engine *engine = NULL;
    segue_engine_opts opts = SEGUE_INIT(segue_engine_opts);
    int n;
    opts.kv = kv;
    segue_status status = segue_unit_open(&unit, spec, err);
    if (status == SEGUE_OK) status = segue_model_open(&model, path, NULL, err);
    if (status == SEGUE_OK) status = segue_engine_open(&engine, model, &unit, 1, &opts, err);
    while (status == SEGUE_OK && scanf("%d", &n) == 1) status = decode(engine, n, err);
    segue_engine_close(engine);
    segue_model_close(model);
    segue_unit_close(unit);
    return status;
}

int main(int argc, char **argv)
{
    segue_error err = {0};
    if (argc < 4) return 2;
    uint32_t kv = !strcmp(argv[3], "f32") ? SEGUE_KV_F32 : !strcmp(argv[3], "f16") ? SEGUE_KV_F16 : SEGUE_KV_BF16;
    if (serve(argv[1], argv[2], kv, &err) == SEGUE_OK) return 0;
    fprintf(stderr, "mlx_decode: %s\n", err.text);
    return 1;
}
