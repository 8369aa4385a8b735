/* plan_files.c: chip files and cell files: what is read, and nonsense that is refused with file and line.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "engine/planner/chips/cells.h"
#include "engine/planner/chips/lines.h"

static struct sg_chips chips;

static void chip_line(const char *text, segue_status want, const char *words)
{
    segue_error err = {0};
    struct sg_chips before;
    assert_int_equal(sg_chips_builtin(&chips, &err), SEGUE_OK);
    before = chips;
    assert_int_equal(sg_chips_read(&chips, text, strlen(text), "x.chip", &err), want);
    if (want == SEGUE_OK) return;
    assert_non_null(strstr(err.text, words));
    assert_non_null(strstr(err.text, "x.chip"));
    assert_memory_equal(&before, &chips, sizeof chips);
}

/* Every bad line is named by its number, and leaves the chips as they were. */
static void bad_chip_lines(void **state)
{
    (void)state;
    chip_line("# only a comment\n\n", SEGUE_OK, "");
    chip_line("name m9 - # spec\nmemory_gb_s 100 GB/s # spec\n", SEGUE_OK, "");
    assert_true(fabs(sg_chip_find(&chips, "M9")->spec[SG_SPEC_GB_S] - 100) < 1e-9);
    assert_true(sg_chip_unverified(sg_chip_find(&chips, "M9")));
    chip_line("ane_dispatch_us 100 us\n", SEGUE_OK, "");
    chip_line("name m9\n\nmemory_gb_s fast GB/s\n", SEGUE_EFORMAT, "line 3");
    chip_line("name m9\nmemory_gb_s -1 GB/s\n", SEGUE_EFORMAT, "line 2");
    chip_line("name m9\nmemory_gb_s 1e999 GB/s\n", SEGUE_EFORMAT, "from");
    chip_line("name m9\nmemory_gb_s nan GB/s\n", SEGUE_EFORMAT, "line 2");
    chip_line("memory_gb_s 100 GB/s\n", SEGUE_EFORMAT, "line 1");
    chip_line("name m9\nwarp_factor 9 1\n", SEGUE_EFORMAT, "unknown key");
    chip_line("name m/9\n", SEGUE_EFORMAT, "not a name");
    chip_line("name\n", SEGUE_EFORMAT, "no value");
    chip_line("mlx_layer_ms 0.1\x01 ms\n", SEGUE_EFORMAT, "not text");
    chip_line("mlx_layer_ms 0.1000000000000000000000000000000000000000000000000000000000000000000000000000000000 ms\n",
              SEGUE_EFORMAT, "79 bytes");
}

static void numbers(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},         {"12.5", 12.5},
                {"-3", -3},       {"1e3", 1000},
                {"2.5E-2", .025}, {".5", .5},
                {"5.", 5},        {"123456789012345678901234567890", 123456789012345678901234567890.0}};
    static const char *const bad[] = {"", "-", ".", "1e", "0x10", "1,5", "1 ", "inf", "nan", "1e400", "--1"};
    double v;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(sg_number_of(good[i].text, strlen(good[i].text), &v));
        assert_true(fabs(v - good[i].value) <= 1e-12 * fabs(good[i].value));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(sg_number_of(bad[i], strlen(bad[i]), &v));
}

static void cell_file(const char *text, segue_status want, const char *words, size_t cells)
{
    struct sg_cells c;
    segue_error err = {0};
    assert_int_equal(sg_cells_read(&c, text, strlen(text), "x.csv", &err), want);
    if (want == SEGUE_OK)
        assert_int_equal(c.n, cells);
    else
        assert_non_null(strstr(err.text, words));
    sg_cells_free(&c);
}

#define HEAD "chip,model,precision,pipeline,prompt_tokens,metric,value\n"
static void bad_cells(void **state)
{
    (void)state;
    cell_file(HEAD "\"M2 Ultra\",Qwen3.5-2B,BF16,P1,6,ttft_ms,22\r\n\n", SEGUE_OK, "", 1);
    cell_file(HEAD "M2 Ultra,Qwen3.5-2B,BF16,P1,,ttft_ms,none\n", SEGUE_OK, "", 1);
    cell_file("", SEGUE_EFORMAT, "line 1", 0);
    cell_file("chip,model\n", SEGUE_EFORMAT, "no column precision", 0);
    cell_file(HEAD "a,b,c,d,6,ttft_ms\n", SEGUE_EFORMAT, "line 2: fewer fields", 0);
    cell_file(HEAD "a,b,c,d,6,ttft_ms,1,2\n", SEGUE_EFORMAT, "line 2: more fields", 0);
    cell_file(HEAD "a,b,c,d,6,ttft_ms,1\na,b,c,d,-6,ttft_ms,1\n", SEGUE_EFORMAT, "line 3", 0);
    cell_file(HEAD "a,b,c,d,6,ttft_ms,nan\n", SEGUE_EFORMAT, "line 2", 0);
    cell_file(HEAD "a,b,c,d,6,ttft_ms,12x\n", SEGUE_EFORMAT, "line 2", 0);
    cell_file(HEAD "\"a,b,c,d,6,ttft_ms,1\n", SEGUE_EFORMAT, "quoted", 0);
}

/* Costs rise with the prompt and fall with bandwidth. */
static void monotonic(void **state)
{
    struct sg_chip chip;
    segue_error err = {0};
    (void)state;
    assert_int_equal(sg_chips_builtin(&chips, &err), SEGUE_OK);
    for (size_t i = 0; i < chips.n; i++)
        for (int pipe = 0; pipe < SG_PIPE_N; pipe++) {
            double before = 0;
            if (chips.list[i].spec[SG_SPEC_GPU_TFLOPS] <= 0) continue;
            for (double n = 16; n <= 512; n += 16) {
                struct sg_published_cost cost, slow;
                struct sg_published_task t = {.shared = chips.shared,
                                              .chip = &chips.list[i],
                                              .shape = sg_shape_find("qwen3.5-2b"),
                                              .bytes = 2,
                                              .pipeline = (enum sg_pipeline)pipe,
                                              .prompt = n,
                                              .output = 100};
                assert_null(sg_published_cost(&t, &cost));
                assert_true(cost.prefill_ms >= before && cost.step_ms > 0);
                before = cost.prefill_ms;
                chip = chips.list[i];
                chip.spec[SG_SPEC_GB_S] /= 2;
                t.chip = &chip;
                assert_null(sg_published_cost(&t, &slow));
                assert_true(slow.step_ms >= cost.step_ms);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_chip_lines), cmocka_unit_test(numbers), cmocka_unit_test(bad_cells),
                                       cmocka_unit_test(monotonic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
