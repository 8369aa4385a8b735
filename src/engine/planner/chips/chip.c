/* chip.c: see chip.h. SPDX-License-Identifier: MIT */
#include "engine/planner/chips/chip.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/planner/chips/lines.h"
#include "chip_texts.h"

const struct sg_chip_key sg_spec_keys[SG_SPEC_N] = {
    [SG_SPEC_GPU_CORES] = {"gpu_cores", "count", 0, 0, 1, 1e5}, [SG_SPEC_GPU_TFLOPS] = {"gpu_tflops", "TFLOPS", 0, 0, 1e-3, 1e5},
    [SG_SPEC_GB_S] = {"memory_gb_s", "GB/s", 0, 0, 1e-3, 1e6},  [SG_SPEC_MEMORY_GB] = {"memory_gb", "GB", 0, 0, 1e-3, 1e6},
    [SG_SPEC_NPU_TOPS] = {"npu_tops", "TOPS", 0, 0, 0, 1e5},
};

/* Priors are orders of magnitude from data sheets and from kernel measurements (dispatch 0.1 to 0.3 ms, NPU weights at 50 to
 * 145 GB/s, storage at 5 GB/s); the factor is wide, so that a few runs decide. */
const struct sg_chip_key sg_chip_keys[SG_CHIP_N] = {
    [SG_CHIP_STREAM] = {"gpu_stream_share", "1", .75, .15, .01, 1},
    [SG_CHIP_MATMUL] = {"gpu_matmul_share", "1", .45, .25, .001, 4},
    [SG_CHIP_GPU_W] = {"gpu_base_w", "W", 15, .5, .01, 1e4},
    [SG_CHIP_GPU_J] = {"gpu_j_per_gweight", "J", .025, .5, 1e-6, 10},
    [SG_CHIP_CPU_W] = {"cpu_beside_w", "W", 8, .4, .01, 1e4},
    [SG_CHIP_ALLOC] = {"gpu_alloc_gb_s", "GB/s", 80, .5, .1, 1e5},
    [SG_CHIP_NPU_STREAM] = {"npu_stream_gb_s", "GB/s", 100, .4, .1, 1e5},
    [SG_CHIP_NPU_TOKEN] = {"npu_token_ms", "ms", .08, .6, 1e-6, 1e3},
    [SG_CHIP_NPU_STEP] = {"npu_step_ms", "ms", 1.7, .6, 1e-6, 1e3},
    [SG_CHIP_NPU_PROGRAM] = {"npu_program_ms", "ms", .2, .5, 1e-6, 1e3},
    [SG_CHIP_NPU_LOAD] = {"npu_load_s_gb", "s", .7, .6, 1e-6, 1e4},
    [SG_CHIP_NPU_TOUCH] = {"npu_touch_gb_s", "GB/s", 60, .5, .1, 1e5},
};

const struct sg_chip_key sg_shared_keys[SG_SHARED_N] = {
    [SG_MLX_LAYER] = {"mlx_layer_ms", "ms", .13, .3, 1e-6, 1e3},
    [SG_MLX_STEP] = {"mlx_step_ms", "ms", .9, .6, 1e-6, 1e3},
    [SG_MLX_CAST] = {"mlx_cast_bytes", "B", 10, .2, 1, 100},
    [SG_MLX_ROW] = {"mlx_row_share", "1", .2, .5, 1e-6, 10},
    [SG_MLX_TILE] = {"mlx_tile_rows", "rows", 32, .4, 1, 1e4},
    [SG_MLX_F32] = {"mlx_f32_share", "1", .8, .25, .001, 10},
    [SG_MLX_QUANT] = {"mlx_quant_share", "1", .7, .25, .001, 10},
    [SG_MLX_FIRST] = {"mlx_first_ms", "ms", 15, .5, 1e-6, 1e6},
    [SG_MLX_COLD_FIRST] = {"mlx_cold_first_ms", "ms", 70, .5, 1e-6, 1e6},
    [SG_MLX_COLD] = {"mlx_cold_ms", "ms", 40, .5, 1e-6, 1e6},
    [SG_MLX_START] = {"mlx_start_s", "s", 3, .4, 1e-6, 1e4},
    [SG_MLX_LOAD] = {"mlx_load_s_gb", "s", .2, .5, 1e-6, 1e4},
    [SG_LLAMA_LAYER] = {"llama_layer_ms", "ms", .18, .3, 1e-6, 1e3},
    [SG_LLAMA_STATE] = {"llama_state_ms", "ms", .4, .5, 1e-6, 1e3},
    [SG_LLAMA_MATMUL] = {"llama_matmul_share", "1", 1.4, .25, .001, 10},
    [SG_LLAMA_LAYER_PRE] = {"llama_layer_prefill_ms", "ms", 1, .5, 1e-6, 1e3},
    [SG_LLAMA_STATE_PRE] = {"llama_state_prefill_ms", "ms", 3.6, .5, 1e-6, 1e3},
    [SG_LLAMA_UNPACK] = {"llama_unpack_ms_gb", "ms", 40, .7, 1e-6, 1e4},
    [SG_NPU_FORK] = {"npu_fork_ratio", "1", 1.2, .2, .1, 10},
    [SG_NPU_START] = {"npu_start_s", "s", 1, .6, 1e-6, 1e4},
    [SG_COREML_FIXED] = {"coreml_fixed_ms", "ms", 220, .4, 1e-6, 1e6},
    [SG_COREML_SQUARE] = {"coreml_square_us", "us", 1.5, .7, 1e-6, 1e3},
    [SG_COREML_TFLOPS] = {"coreml_tflops", "TFLOPS", 8, .5, .001, 1e4},
    [SG_FILE_HANDOFF] = {"file_handoff_ms", "ms", 25, .5, 1e-6, 1e6},
};

int sg_chip_name(char out[32], const char *name)
{
    size_t n = 0;
    for (; *name == ' '; name++) {}
    for (; name[n]; n++) {
        unsigned char c = (unsigned char)name[n];
        if (n == 31 || (!isalnum(c) && !strchr(" -_.", c))) return 0;
        out[n] = (char)(c == ' ' || c == '_' ? '-' : tolower(c));
    }
    while (n && out[n - 1] == '-') n--;
    out[n] = 0;
    return n > 0;
}

const struct sg_chip *sg_chip_find(const struct sg_chips *c, const char *name)
{
    char wanted[32];
    if (!sg_chip_name(wanted, name)) return NULL;
    for (size_t i = 0; i < c->n; i++)
        if (!strcmp(c->list[i].name, wanted)) return &c->list[i];
    return NULL;
}

/* Index of a key in a table; -1: none. */
static int key_in(const struct sg_chip_key *keys, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(keys[i].name, name)) return i;
    return -1;
}

int sg_chip_has_key(const char *name)
{
    return key_in(sg_chip_keys, SG_CHIP_N, name) >= 0 || key_in(sg_spec_keys, SG_SPEC_N, name) >= 0;
}

int sg_chip_unverified(const struct sg_chip *chip)
{
    for (int i = 0; i < SG_CHIP_N; i++)
        if (chip->source[i] >= SG_SOURCE_FITTED) return 0;
    return 1;
}

/* The chip of that name, added if it is new; NULL: no space. */
static struct sg_chip *chip_of(struct sg_chips *c, const char *name)
{
    struct sg_chip *chip = (struct sg_chip *)(uintptr_t)sg_chip_find(c, name);
    if (chip || c->n == SG_CHIPS_MAX) return chip;
    chip = &c->list[c->n++];
    *chip = (struct sg_chip){0};
    sg_chip_name(chip->name, name);
    for (int i = 0; i < SG_CHIP_N; i++) {
        chip->constant[i] = sg_chip_keys[i].prior;
        chip->source[i] = SG_SOURCE_PRIOR;
    }
    return chip;
}

/* Store a number after checking its range. source may be NULL. */
static segue_status store(const struct sg_chip_key *key, double *to, unsigned char *source, const struct sg_line *line,
                          segue_error *err)
{
    SG_TRY(sg_line_number(line, key->low, key->high, to, err));
    if (source) *source = line->source;
    return SEGUE_OK;
}

/* One line. *own: the chip of the line `name`, NULL before it. */
static segue_status read_line(struct sg_chips *c, const struct sg_line *line, struct sg_chip **own, segue_error *err)
{
    struct sg_chip *chip = *own;
    char owner[32];
    const char *dot = strrchr(line->key, '.'), *key = line->key;
    int i;
    if (!strncmp(key, "ane_", 4)) return SEGUE_OK;
    if (!strcmp(key, "name")) {
        if (!sg_chip_name(owner, line->value)) return sg_line_fail(line, "not a name; write letters, digits and dashes", err);
        *own = chip_of(c, owner);
        return *own ? SEGUE_OK : sg_line_fail(line, "more chips than the planner holds; remove some", err);
    }
    if (!strcmp(key, "machine")) return SEGUE_OK;
    if (dot) {
        char text[48];
        key = dot + 1;
        /* Costs of units are read by unitfile.c, which refuses unknown keys. */
        if (key_in(sg_chip_keys, SG_CHIP_N, key) < 0 && key_in(sg_spec_keys, SG_SPEC_N, key) < 0) return SEGUE_OK;
        snprintf(text, sizeof text, "%.*s", (int)(dot - line->key < 40 ? dot - line->key : 40), line->key);
        if (!sg_chip_name(owner, text)) return sg_line_fail(line, "not a name before the dot; write CHIP.KEY", err);
        chip = chip_of(c, owner);
        if (!chip) return sg_line_fail(line, "more chips than the planner holds; remove some", err);
    }
    if ((i = key_in(sg_shared_keys, SG_SHARED_N, key)) >= 0)
        return store(&sg_shared_keys[i], &c->shared[i], &c->shared_source[i], line, err);
    int spec = key_in(sg_spec_keys, SG_SPEC_N, key);
    i = key_in(sg_chip_keys, SG_CHIP_N, key);
    if (spec < 0 && i < 0) return sg_line_fail(line, "unknown key; docs/PLANNER.md lists the keys", err);
    if (!chip) return sg_line_fail(line, "belongs to a chip, but no line `name NAME` came before; add one", err);
    if (spec >= 0) return store(&sg_spec_keys[spec], &chip->spec[spec], NULL, line, err);
    return store(&sg_chip_keys[i], &chip->constant[i], &chip->source[i], line, err);
}

segue_status sg_chips_read(struct sg_chips *c, const char *text, size_t n, const char *file, segue_error *err)
{
    struct sg_chips *changed = sg_alloc(sizeof *changed);
    struct sg_lines lines = {.at = text, .end = text + n, .file = file};
    struct sg_line line;
    struct sg_chip *own = NULL;
    segue_status st;
    if (!changed) return sg_no_memory("chip file", sizeof *changed, err);
    *changed = *c;
    while ((st = sg_lines_next(&lines, &line, err)) == SEGUE_OK)
        if ((st = read_line(changed, &line, &own, err)) != SEGUE_OK) break;
    if (st == SEGUE_END) *c = *changed;
    sg_free(changed);
    return st == SEGUE_END ? SEGUE_OK : st;
}

segue_status sg_chips_builtin(struct sg_chips *out, segue_error *err)
{
    *out = (struct sg_chips){0};
    for (int i = 0; i < SG_SHARED_N; i++) {
        out->shared[i] = sg_shared_keys[i].prior;
        out->shared_source[i] = SG_SOURCE_PRIOR;
    }
    for (size_t i = 0; i < sizeof chip_texts / sizeof *chip_texts; i++)
        SG_TRY(sg_chips_read(out, chip_texts[i].text, strlen(chip_texts[i].text), chip_texts[i].name, err));
    return SEGUE_OK;
}

/* One constant. Priors are written, too, so that a file of a fit replaces every constant of another. */
static void write_constant(struct sg_buf *out, const char *owner, const struct sg_chip_key *key, double v, int source)
{
    const char *name = source == SG_SOURCE_PRIOR ? "prior" : source == SG_SOURCE_MEASURED ? "measured" : "fitted";
    sg_buf_printf(out, "%s%s%s %.5g %s # %s\n", owner, *owner ? "." : "", key->name, v, key->unit, name);
}

void sg_chips_write(const struct sg_chips *c, struct sg_buf *out)
{
    for (int i = 0; i < SG_SHARED_N; i++) write_constant(out, "", &sg_shared_keys[i], c->shared[i], c->shared_source[i]);
    for (size_t k = 0; k < c->n; k++)
        for (int i = 0; i < SG_CHIP_N; i++)
            write_constant(out, c->list[k].name, &sg_chip_keys[i], c->list[k].constant[i], c->list[k].source[i]);
}
