/* shape.c: see shape.h. Sizes follow the models' config.json. SPDX-License-Identifier: MIT */
#include "engine/planner/chips/shape.h"

#include <strings.h>

static const struct sg_shape shapes[] = {
    {"gpt2-124m", 12, 0, 768, 85.1e6, 38.6e6, 18432, 0, 0},
    {"smollm2-135m", 30, 0, 576, 106.2e6, 28.3e6, 11520, 0, 0},
    {"smollm2-360m", 32, 0, 960, 314.6e6, 47.2e6, 20480, 0, 0},
    {"qwen3-0.6b", 28, 0, 1024, 440.5e6, 155.6e6, 57344, 0, 0},
    {"qwen3-4b", 36, 0, 2560, 3633e6, 389e6, 73728, 0, 0},
    {"llama3.2-1b", 16, 0, 2048, 973.1e6, 262.7e6, 16384, 0, 0},
    {"llama3-8b", 32, 0, 4096, 6979e6, 525.3e6, 65536, 0, 0},
    {"qwen3.5-0.8b", 24, 18, 1024, 498.1e6, 254.3e6, 6144, 4.72e6, .33e6},
    {"qwen3.5-2b", 24, 18, 2048, 1373.3e6, 508.6e6, 6144, 4.72e6, .33e6},
    {"qwen3.5-4b", 32, 24, 2560, 3570e6, 635.7e6, 16384, 12.6e6, .59e6},
    {"qwen3.5-9b", 32, 24, 4096, 6919.6e6, 1017.1e6, 16384, 12.6e6, .59e6},
    {"qwen3.5-27b", 64, 48, 5120, 25400e6, 1271e6, 32768, 37.7e6, 1.2e6},
};

const struct sg_shape *sg_shape_at(size_t i) { return i < sizeof shapes / sizeof *shapes ? &shapes[i] : NULL; }

const struct sg_shape *sg_shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcasecmp(shapes[i].name, name)) return &shapes[i];
    return NULL;
}

double sg_storage_bytes(const char *name, int *unpacked)
{
    static const struct {
        const char *name;
        double bytes;
        int unpacked;
    } list[] = {
        {"f32", 4, 0},       {"fp32", 4, 0},       {"f16", 2, 0},      {"fp16", 2, 0},       {"bf16", 2, 0},
        {"fp8", 1, 0},       {"8-bit", 1.0625, 0}, {"q8", 1.0625, 0},  {"q8_0", 1.0625, 0},  {"6-bit", .8125, 0},
        {"q6", .8125, 0},    {"5-bit", .6875, 0},  {"q5", .6875, 0},   {"4-bit", .5625, 0},  {"q4", .5625, 0},
        {"q4_0", .5625, 0},  {"q4_1", .625, 0},    {"q5_0", .6875, 0}, {"q5_1", .75, 0},     {"q6_k", .8203, 1},
        {"q5_k", .6875, 1},  {"q5_k_m", .7375, 1}, {"q4_k", .5625, 1}, {"q4_k_m", .6438, 1}, {"q4_k_s", .5875, 1},
        {"q3_k", .4297, 1},  {"q3_k_m", .5375, 1}, {"q2_k", .4275, 1}, {"iq4_xs", .5313, 1}, {"iq4_nl", .5625, 0},
        {"mxfp4", .5313, 0}, {"nvfp4", .5625, 0},  {"q3", .4375, 0},   {"3-bit", .4375, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcasecmp(list[i].name, name)) {
            *unpacked = list[i].unpacked;
            return list[i].bytes;
        }
    *unpacked = 0;
    return 0;
}
