/* ruletrial.c: see ruletrial.h. The texts are written in short here and printed in the dialect that all engines take.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/ruletrial.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "unit/ane/mil/milparse.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/rules/rules.h"
#include "unit/ane/tools/milrun.h"

#define T(shape) "tensor<fp16, [" shape "]>"
#define A T("1, 32, 1, 32")
#define LINE(op) A " a", A " z = " op ";", "z", NULL
#define MAP(shape, op) T(shape) " a", T(shape) " z = " op ";", "z", NULL
#define SPLAT(name, shape, v) T(shape) " " name " = const()[val = " T(shape) "(" v ")]; "
#define INTS(name, n, list) "tensor<int32, [" n "]> " name " = const()[val = tensor<int32, [" n "]>([" list "])]; "
#define CONV(args) INTS("st", "2", "1, 1") INTS("pd", "4", "0, 0, 0, 0") INTS("dl", "2", "1, 1") \
    "string pt = const()[val = string(\"valid\")]; int32 gr = const()[val = int32(1)]; " \
    A " z = conv(strides = st, pad_type = pt, pad = pd, dilations = dl, groups = gr, " args ");"
#define BIASED(bias) A " a", SPLAT("w", "32, 32, 1, 1", "0x1p-6") bias, "z", NULL
#define MEAN(target) A " a", INTS("ax", "1", "1") "bool k = const()[val = bool(true)]; " T("1, 1, 1, 32") \
    " m = reduce_mean(x = a, axes = ax, keep_dims = k); " A " z = sub(x = a, y = m);", "z", target
#define ARGMAX(n) T("1, 32, 1, " n) " a", "int32 ax = const()[val = int32(3)]; bool k = const()[val = bool(true)]; " \
    "tensor<int32, [1, 32, 1, 1]> i = reduce_argmax(x = a, axis = ax, keep_dims = k); " \
    "string h = const()[val = string(\"fp16\")]; " T("1, 32, 1, 1") " f = cast(x = i, dtype = h); " \
    T("1, 32, 1, " n) " z = add(x = a, y = f);", "z", NULL
#define SOFTMAX(n) T("1, 32, 1, " n) " a", \
    "int32 ax = const()[val = int32(3)]; " T("1, 32, 1, " n) " z = softmax(x = a, axis = ax);", "z", NULL
#define TILE(n, out) A " a", INTS("r", "4", "1, 1, 1, " n) T(out) " z = tile(x = a, reps = r);", "z", NULL
#define TALL(rows) A " a", \
    SPLAT("w", rows ", 32, 1, 1", "0x1p-6") INTS("st", "2", "1, 1") INTS("pd", "4", "0, 0, 0, 0") \
    INTS("dl", "2", "1, 1") "string pt = const()[val = string(\"valid\")]; int32 gr = const()[val = int32(1)]; " \
    T("1, " rows ", 1, 32") " z = conv(strides = st, pad_type = pt, pad = pd, dilations = dl, groups = gr, x = a, weight = w);", \
    "z", NULL
#define JOIN(axis) A " a", "int32 ax = const()[val = int32(" axis ")]; bool il = const()[val = bool(false)]; " \
    T("1, 64, 1, 32") " z = concat(axis = ax, interleave = il, values = (a, a));", "z", NULL
#define EPS "fp16 e = const()[val = fp16(0x1p-20)]; "
#define PRODUCT(rows) T("1, 1, " rows ", 8192") " a", \
    SPLAT("w", "1, 1, 8192, 32", "0x1p-10") "bool f = const()[val = bool(false)]; " \
    T("1, 1, " rows ", 32") " z = matmul(x = a, y = w, transpose_x = f, transpose_y = f);", "z", NULL

enum { TEXT = 4096, PORTS = 4 };

/* A function: parameters, body, results, target (NULL: ios16). */
struct trial_text { const char *params, *body, *results, *target; };
static const struct {
    uint32_t rule;
    const char *what;
    struct trial_text within, beyond;
} trials[] = {
    {1, "rows of 64 and of 32 bytes", {MAP("1, 32, 1, 32", "relu(x = a)")}, {MAP("1, 32, 1, 16", "relu(x = a)")}},
    {1, "rows of 128 and of 64 bytes", {MAP("1, 32, 1, 64", "relu(x = a)")}, {LINE("relu(x = a)")}},
    {9, "concat along axis 1 and axis -3", {JOIN("1")}, {JOIN("-3")}},
    {10, "gather", {LINE("tanh(x = a)")},
     {A " a", "tensor<int32, [32]> i = const()[val = tensor<int32, [32]>(5)]; int32 ax = const()[val = int32(1)]; " A
      " z = gather(x = a, indices = i, axis = ax);", "z", NULL}},
    {11, "rsqrt with and without epsilon", {A " a", EPS A " z = rsqrt(x = a, epsilon = e);", "z", NULL}, {LINE("rsqrt(x = a)")}},
    {11, "log with and without epsilon", {A " a", EPS A " z = log(x = a, epsilon = e);", "z", NULL}, {LINE("log(x = a)")}},
    {12, "a bias of conv that is a constant in the text", {BIASED(CONV("x = a, weight = w"))},
     {BIASED(SPLAT("b", "32", "1") CONV("x = a, weight = w, bias = b"))}},
    {13, "the axis of softmax as a named and as an unnamed constant", {SOFTMAX("32")}, {LINE("softmax(x = a, axis = int32(3))")}},
    {17, "a result that is an input", {LINE("identity(x = a)")}, {A " a", A " z = identity(x = a);", "a", NULL}},
    {23, "an input of fp32", {LINE("relu(x = a)")},
     {"tensor<fp32, [1, 32, 1, 32]> a",
      "string h = const()[val = string(\"fp16\")]; " A " z = cast(x = a, dtype = h);", "z", NULL}},
    {26, "32 and 33 channels", {LINE("relu(x = a)")}, {MAP("1, 33, 1, 32", "relu(x = a)")}},
    {27, "16,384 and 16,416 columns", {MAP("1, 32, 1, 16384", "relu(x = a)")}, {MAP("1, 32, 1, 16416", "relu(x = a)")}},
    {28, "argmax over 2,048 and 2,080", {ARGMAX("2048")}, {ARGMAX("2080")}},
    {28, "tile by 2 and by 5", {TILE("2", "1, 32, 1, 64")}, {TILE("5", "1, 32, 1, 160")}},
    {31, "two and three outputs", {A " a", A " y = relu(x = a); " A " z = relu(x = y);", "y, z", NULL},
     {A " a", A " x = relu(x = a); " A " y = relu(x = x); " A " z = relu(x = y);", "x, y, z", NULL}},
    {33, "softmax over 256 and over 288", {SOFTMAX("256")}, {SOFTMAX("288")}},
    {37, "outputs of 16,384 and 16,416 channels", {TALL("16384")}, {TALL("16416")}},
    {42, "reduce_mean for ios16 and ios18", {MEAN("ios16")}, {MEAN("ios18")}},
    {49, "a product of 64 and of 128 rows with a constant of 8,192", {PRODUCT("64")}, {PRODUCT("128")}},
    {50, "an input named a and one named state", {LINE("relu(x = a)")}, {A " state", A " z = relu(x = state);", "z", NULL}},
    {53, "clip with bounds of fp16 and of fp32",
     {A " a", "fp16 lo = const()[val = fp16(-1)]; fp16 hi = const()[val = fp16(1)]; "
      A " z = clip(x = a, alpha = lo, beta = hi);", "z", NULL},
     {A " a", "fp16 lo = const()[val = fp16(-1)]; fp32 hi = const()[val = fp32(1)]; "
      A " z = clip(x = a, alpha = lo, beta = hi);", "z", NULL}},
};

size_t sg_trial_count(void) { return sizeof trials / sizeof *trials; }
uint32_t sg_trial_rule(size_t i) { return trials[i].rule; }
const char *sg_trial_what(size_t i) { return trials[i].what; }
const char *sg_trial_outcome_name(enum sg_trial_outcome outcome)
{
    static const char *const names[] = {"runs", "wrong", "fails", "refused"};
    return names[outcome];
}

/* The program in the verbose dialect, parsed again so that *mil is what the device reads. */
static segue_status text_of(const struct trial_text *t, struct sg_buf *text, struct sg_mil_program **mil, segue_error *err)
{
    char brief[TEXT];
    snprintf(brief, sizeof brief, "program(1.3)\n[buildInfo = dict<string, string>({{\"coremlc-version\", \"3505.4.1\"}})]\n{\n"
                                  "func main<%s>(%s) {\n%s\n} -> (%s);\n}\n", t->target ? t->target : "ios16", t->params, t->body,
             t->results);
    SG_TRY(sg_mil_parse(mil, brief, strlen(brief), "trial", NULL, err));
    segue_status status = sg_mil_print(*mil, SG_MIL_VERBOSE, text, err);
    sg_mil_program_free(*mil);
    *mil = NULL;
    return status ? status : sg_mil_parse(mil, text->data, text->len, "trial", NULL, err);
}

/* The first rule by which the profile refuses the program. */
static uint32_t rule_of(const struct sg_mil_program *mil, const struct sg_ane_profile *profile)
{
    struct sg_mil_faults faults = {0};
    uint32_t rule = 0;
    sg_ane_check(mil, profile, NULL, 0, &faults);
    for (uint32_t i = 0; i < faults.n && !rule; i++)
        if (!faults.list[i].advice) rule = faults.list[i].constraint;
    sg_mil_faults_free(&faults);
    return rule;
}

/* A loaded program with its surfaces. */
struct trial_bench {
    const struct sg_ane_device_ops *ops;
    struct sg_ane_program *p;
    struct sg_ane_surface *in[PORTS], *out[PORTS];
    const struct sg_ane_port *ins, *outs;
    uint32_t in_n, out_n;
};

static void bench_close(struct trial_bench *b)
{
    if (b->p) b->ops->unload(b->p);
    for (int i = 0; i < PORTS; i++) {
        b->ops->surface_free(b->in[i]);
        b->ops->surface_free(b->out[i]);
    }
}

static segue_status bench_open(struct trial_bench *b, struct sg_ane_device *d, const struct sg_buf *text, segue_error *err)
{
    const struct sg_ane_source s = {.name = "trial", .text = text->data, .text_bytes = text->len};
    *b = (struct trial_bench){.ops = sg_ane_ops_of(d)};
    SG_TRY(b->ops->load(d, &s, &b->p, err));
    SG_TRY(b->ops->ports(b->p, 0, &b->ins, &b->in_n, &b->outs, &b->out_n, err));
    if (b->in_n > PORTS || b->out_n > PORTS) return sg_fail(err, SEGUE_EINTERNAL, "trial: too many ports; report this");
    for (uint32_t i = 0; i < b->in_n; i++) SG_TRY(b->ops->surface_new(d, b->ins[i].surface_bytes, &b->in[i], err));
    for (uint32_t i = 0; i < b->out_n; i++) SG_TRY(b->ops->surface_new(d, b->outs[i].surface_bytes, &b->out[i], err));
    return SEGUE_OK;
}

/* Input elements that differ between channels and columns, all positive, so that log and rsqrt are defined. */
static segue_status bench_run(struct trial_bench *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->in_n; i++) {
        uint64_t n = sg_mil_elements(&b->ins[i].type);
        float *v = sg_alloc(n * sizeof *v);
        if (!v) return sg_no_memory("values of a trial", n * sizeof *v, err);
        for (uint64_t k = 0; k < n; k++) v[k] = 0.25f + (float)(k % 61) / 64;
        segue_status status = sg_ane_surface_put(&b->ins[i], b->in[i], v, err);
        sg_free(v);
        SG_TRY(status);
    }
    return b->ops->evaluate(b->p, 0, b->in, b->out, err);
}

/* The values of output i; NULL: out of memory. The caller frees them. */
static float *values_of(struct trial_bench *b, uint32_t i)
{
    float *v = sg_alloc(sg_mil_elements(&b->outs[i].type) * sizeof *v);
    if (v && sg_ane_surface_get(&b->outs[i], b->out[i], v, NULL)) v[0] = NAN;
    return v;
}

/* 1: all outputs are within 1 % of those of the software NPU with IEEE arithmetic, or it does not run this program either. */
static int is_right(struct trial_bench *b, const struct sg_buf *text)
{
    struct sg_npu_opts o = {.faithful = 1, .threads = 1};
    struct sg_ane_device *d = NULL;
    struct trial_bench exact = {0};
    int right = 1;
    if (sg_ane_profile_named(&o.profile, "ieee", NULL) || sg_npu_open(&d, &o, NULL)) return 1;
    exact.ops = sg_ane_ops_of(d);
    if (!bench_open(&exact, d, text, NULL) && !bench_run(&exact, NULL))
        for (uint32_t i = 0; i < b->out_n; i++) {
            float *got = values_of(b, i), *want = values_of(&exact, i);
            for (uint64_t k = 0; got && want && k < sg_mil_elements(&b->outs[i].type); k++)
                right &= fabsf(got[k] - want[k]) <= 0.01f * fmaxf(1, fabsf(want[k]));
            sg_free(got);
            sg_free(want);
        }
    bench_close(&exact);
    exact.ops->close(d);
    return right;
}

static segue_status try_side(struct sg_ane_device *d, const struct sg_ane_profile *profile, const struct trial_text *t,
                             struct sg_trial_side *out, segue_error *err)
{
    struct sg_buf text = {0};
    struct sg_mil_program *mil = NULL;
    struct trial_bench b = {.ops = sg_ane_ops_of(d)};
    segue_error why = {0};
    segue_status status = text_of(t, &text, &mil, err);
    if (status == SEGUE_OK) {
        out->rule = rule_of(mil, profile);
        if (bench_open(&b, d, &text, &why))
            out->outcome = SG_TRIAL_REFUSED;
        else if (bench_run(&b, &why))
            out->outcome = SG_TRIAL_FAILS;
        else
            out->outcome = is_right(&b, &text) ? SG_TRIAL_RUNS : SG_TRIAL_WRONG;
        snprintf(out->text, sizeof out->text, "%.159s", why.text);
        bench_close(&b);
    }
    sg_mil_program_free(mil);
    sg_buf_free(&text);
    return status;
}

segue_status sg_trial_run(struct sg_ane_device *d, const struct sg_ane_profile *profile, size_t i, struct sg_trial_answer *out,
                          segue_error *err)
{
    *out = (struct sg_trial_answer){0};
    if (i >= sg_trial_count())
        return sg_fail(err, SEGUE_EARG, "trial: %zu: there are only %zu trials; give a smaller number", i, sg_trial_count());
    SG_TRY(try_side(d, profile, &trials[i].within, &out->within, err));
    SG_TRY(try_side(d, profile, &trials[i].beyond, &out->beyond, err));
    out->agrees = (out->within.outcome == SG_TRIAL_RUNS) == !out->within.rule &&
                  (out->beyond.outcome == SG_TRIAL_RUNS) == !out->beyond.rule;
    return SEGUE_OK;
}
