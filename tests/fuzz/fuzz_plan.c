/* fuzz_plan.c: hostile chip files and cell files: read, predict, fit. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "engine/planner/chips/fit.h"
#include "engine/planner/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Costs of units, and a plan by them. */
static void plan_units(const char *text, size_t n)
{
    struct sg_unit_costs *costs = sg_alloc(sizeof *costs);
    struct sg_options *options = sg_alloc(sizeof *options);
    struct sg_plan_source source = {.costs = costs};
    struct sg_plan_task task = {.prompt = 100, .output = 10, .turns = 2, .sessions = 1, .chunk = 512};
    struct sg_model_cost model;
    if (costs && options && !sg_unit_costs_read(costs, text, n, "fuzz.chip", NULL) && costs->units_n &&
        !sg_model_cost_shape(&model, sg_shape_at(0), "q4_0", NULL))
        sg_options_make(options, &source, &model, &task);
    sg_free(costs);
    sg_free(options);
}

/* The first byte chooses the format. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_chips *chips = size ? sg_alloc(sizeof *chips) : NULL;
    struct sg_cells cells;
    struct sg_buf text = {0};
    double v;
    if (!chips) return 0;
    sg_chips_builtin(chips, NULL);
    if (data[0] & 1) {
        sg_chips_read(chips, (const char *)data + 1, size - 1, "fuzz.chip", NULL);
        plan_units((const char *)data + 1, size - 1);
    } else if (!sg_cells_read(&cells, (const char *)data + 1, size - 1, "fuzz.csv", NULL)) {
        for (size_t i = 0; i < cells.n; i++) sg_cell_predict(&cells.list[i], chips, &v);
        if (cells.n < 4) sg_fit(chips, &cells, NULL, NULL);
        sg_cells_free(&cells);
    } else
        sg_cells_free(&cells);
    sg_chips_write(chips, &text);
    sg_buf_free(&text);
    sg_free(chips);
    return 0;
}
