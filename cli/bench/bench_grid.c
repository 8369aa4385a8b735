/* bench_grid.c: `segue bench --grid MODEL ...`: the protocol of published work (bench_pipelines.c) for several models.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <string.h>

/* Name of a model in rows: the last part of its path. */
static const char *short_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Without operands the model of -m. */
int bench_grid(struct bench_run *b)
{
    segue_error err;
    if (!b->models_n) return bench_pipelines(b);
    int code = EXIT_DONE;
    for (size_t i = 0; i < b->models_n && !code; i++) {
        struct bench_run one = *b;
        one.args = args_copy(&b->args);
        one.case_name = short_name(b->models[i]);
        segue_status st = args_set(&one.args, "model", b->models[i], &err);
        code = st ? out_error(&err, EXIT_UNAVAILABLE) : bench_pipelines(&one);
        args_free(&one.args);
    }
    return code;
}
