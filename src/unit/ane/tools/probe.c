/* probe.c: see probe.h. The programs work on [1, 32, 1, 32], the smallest shape that needs no padding.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "unit/ane/blob/blob.h"
#include "unit/ane/tools/milrun.h"

/* Building blocks of the texts: the type of all tensors, the header, a function with one input and one
 * result, a named const, a scalar type. */
#define T "tensor<fp16, [1, 32, 1, 32]>"
/* buildInfo of the verbose dialect; compilers check only its syntax. */
#define HEAD                                                                                          \
    "program(1.0)\n[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{\"coremlc-version\", " \
    "\"3505.4.1\"}})]\n{\n"
#define ONE(body) HEAD "    func main<ios16>(" T " a_in) {\n" body "    } -> (z_out);\n}\n"
#define NAMED(type, name, value)                                                                         \
    "        " type " " name " = const()[name = tensor<string, []>(\"" name "\"), val = " type "(" value \
    ")];\n"
#define SCALAR(dtype) "tensor<" dtype ", []>"

enum { N = 1024, PORTS = 4 }; /* elements of T; maximum inputs or outputs */

/* A loaded program with its surfaces. */
struct probe_bench {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    struct sg_ane_surface *in[PORTS], *out[PORTS];
    const struct sg_ane_port *in_ports, *out_ports; /* owned by the program */
    uint32_t in_n, out_n;
    char why[sizeof((segue_error *)0)->text]; /* text of the last error */
};

/* Frees what was created; also after a failed bench_open. */
static void bench_close(struct probe_bench *b)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(b->d);
    ops->unload(b->p);
    for (int i = 0; i < PORTS; i++) {
        ops->surface_free(b->in[i]);
        ops->surface_free(b->out[i]);
    }
}

/* Gets the ports of the program. Needed again after a reload, which replaces them. */
static segue_status bench_ports(struct probe_bench *b, segue_error *err)
{
    return sg_ane_ops_of(b->d)->ports(b->p, 0, &b->in_ports, &b->in_n, &b->out_ports, &b->out_n, err);
}

/* Compiles and loads a program and creates its surfaces. 1: success; 0: the reason is in b->why. file: its
 * blob file, or NULL. */
static int bench_open(struct probe_bench *b, struct sg_ane_device *d, const char *text,
                      const struct sg_ane_file *file)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_source s = {
        .name = "probe", .text = text, .text_bytes = strlen(text), .files = file, .files_n = file ? 1 : 0};
    segue_error err = {0};
    *b = (struct probe_bench){.d = d};
    /* Each step runs only if all before it succeeded; bench_close frees what exists. */
    segue_status st = ops->load(d, &s, &b->p, &err);
    if (st == SEGUE_OK) st = bench_ports(b, &err);
    if (st == SEGUE_OK && (b->in_n > PORTS || b->out_n > PORTS)) st = SEGUE_EINTERNAL;
    for (uint32_t i = 0; st == SEGUE_OK && i < b->in_n; i++)
        st = ops->surface_new(d, b->in_ports[i].surface_bytes, &b->in[i], &err);
    for (uint32_t i = 0; st == SEGUE_OK && i < b->out_n; i++)
        st = ops->surface_new(d, b->out_ports[i].surface_bytes, &b->out[i], &err);
    snprintf(b->why, sizeof b->why, "%s", err.text);
    return st == SEGUE_OK;
}

/* Evaluates with every element of input i set to v[i]; *out is the first element of output 0. 1: success. */
static int bench_run(struct probe_bench *b, const float *v, float *out)
{
    float numbers[2 * N]; /* the largest result is the concat of two inputs */
    segue_error err = {0};
    segue_status st = SEGUE_OK;
    for (uint32_t i = 0; st == SEGUE_OK && i < b->in_n; i++) {
        for (int k = 0; k < N; k++) numbers[k] = v[i];
        st = sg_ane_surface_put(&b->in_ports[i], b->in[i], numbers, &err);
    }
    if (st == SEGUE_OK) st = sg_ane_ops_of(b->d)->evaluate(b->p, 0, b->in, b->out, &err);
    if (st == SEGUE_OK) st = sg_ane_surface_get(&b->out_ports[0], b->out[0], numbers, &err);
    *out = numbers[0];
    snprintf(b->why, sizeof b->why, "%s", err.text);
    return st == SEGUE_OK;
}

/* Programs of the probes. */
static const char relu_text[] =
    ONE("        " T " z_out = relu(x = a_in)[name = tensor<string, []>(\"z_out\")];\n");
static const char concat_text[] = ONE(NAMED(SCALAR("int32"), "k_ax", "1") NAMED(
    SCALAR("bool"), "k_il",
    "false") "        tensor<fp16, [1, 64, 1, 32]> z_out = concat(axis = k_ax, interleave = k_il, values = "
             "(a_in, a_in))[name = tensor<string, []>(\"z_out\")];\n");
static const char rsqrt_text[] =
    ONE(NAMED(SCALAR("fp16"), "k_ep",
              "0x1p-20") "        " T
                         " z_out = rsqrt(epsilon = k_ep, x = a_in)[name = tensor<string, []>(\"z_out\")];\n");
static const char order_text[] =
    HEAD "    func main<ios16>(" T " b_in, " T " a_in) {\n        " T
         " z_out = sub(x = b_in, y = a_in)[name = tensor<string, []>(\"z_out\")];\n    } -> (z_out);\n}\n";
static const char weight_text[] =
    ONE("        " T " w = const()[name = tensor<string, []>(\"w\"), val = " T
        "(BLOBFILE(path = tensor<string, []>(\"@model_path/weights/w.bin\"), offset = tensor<uint64, "
        "[]>(64)))];\n        " T " z_out = mul(x = a_in, y = w)[name = tensor<string, []>(\"z_out\")];\n");
/* a_in and the index of the highest of 32 equal channels. */
static const char argmax_text[] = ONE(
    NAMED(SCALAR("int32"), "k_ax", "1") NAMED(SCALAR("bool"), "k_kd", "true") NAMED(SCALAR("string"), "k_dt", "\"fp16\"")
    "        tensor<int32, [1, 1, 1, 32]> i = reduce_argmax(axis = k_ax, keep_dims = k_kd, x = a_in)"
    "[name = tensor<string, []>(\"i\")];\n"
    "        tensor<fp16, [1, 1, 1, 32]> f = cast(dtype = k_dt, x = i)[name = tensor<string, []>(\"f\")];\n"
    "        " T " z_out = add(x = a_in, y = f)[name = tensor<string, []>(\"z_out\")];\n");
static const char exp_text[] =
    ONE("        " T " z_out = exp(x = a_in)[name = tensor<string, []>(\"z_out\")];\n");
static const char sqrt_text[] =
    ONE("        " T " z_out = sqrt(x = a_in)[name = tensor<string, []>(\"z_out\")];\n");

static const char tanh_text[] =
    ONE("        " T " z_out = tanh(x = a_in)[name = tensor<string, []>(\"z_out\")];\n");
static const char add_text[] =
    HEAD "    func main<ios16>(" T " a_in, " T " b_in) {\n        " T
         " z_out = add(x = a_in, y = b_in)[name = tensor<string, []>(\"z_out\")];\n    } -> (z_out);\n}\n";
/* The product of two matrices of 32 x 32, one per input. */
static const char product_text[] =
    HEAD "    func main<ios16>(" T " a_in, " T " b_in) {\n" NAMED("tensor<int32, [4]>", "k_sq", "[1, 1, 32, 32]")
    NAMED("tensor<int32, [4]>", "k_sh", "[1, 32, 1, 32]") NAMED(SCALAR("bool"), "k_no", "false")
    "        tensor<fp16, [1, 1, 32, 32]> p = reshape(shape = k_sq, x = a_in)[name = tensor<string, []>(\"p\")];\n"
    "        tensor<fp16, [1, 1, 32, 32]> q = reshape(shape = k_sq, x = b_in)[name = tensor<string, []>(\"q\")];\n"
    "        tensor<fp16, [1, 1, 32, 32]> m = matmul(transpose_x = k_no, transpose_y = k_no, x = p, y = q)"
    "[name = tensor<string, []>(\"m\")];\n"
    "        " T " z_out = reshape(shape = k_sh, x = m)[name = tensor<string, []>(\"z_out\")];\n    } -> (z_out);\n}\n";

/* Sets the text of an answer; longer ones are truncated. */
static void set_verdict(struct sg_probe_answer *a, int settled, const char *text)
{
    a->settled = (uint32_t)settled;
    snprintf(a->verdict, sizeof a->verdict, "%.159s", text);
}

/* Tests whether a program is accepted and gives the expected result, within the precision of table
 * functions. */
static void probe_result(struct sg_ane_device *d, struct sg_probe_answer *a, const char *text, float in,
                         float want)
{
    struct probe_bench b;
    float got = NAN;
    if (!bench_open(&b, d, text, NULL) || !bench_run(&b, &in, &got))
        set_verdict(a, 1, b.why[0] ? b.why : "refused");
    else {
        a->value = (double)got;
        a->value_name = "result";
        set_verdict(a, 1, fabsf(got - want) <= 2e-3f * fabsf(want) ? "works" : "runs, with a wrong result");
    }
    bench_close(&b);
}

/* Probes of a single program: the text, its input and the expected result. */
static void probe_runs(struct sg_ane_device *d, struct sg_probe_answer *a) { probe_result(d, a, relu_text, 3, 3); }
static void probe_concat(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    probe_result(d, a, concat_text, 3, 3);
}
static void probe_rsqrt(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    probe_result(d, a, rsqrt_text, 4, 0.5f);
}

static void probe_argmax(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    probe_result(d, a, argmax_text, 3, 3);
}

/* 7 - 5 = 2 if the operands of sub are bound as declared, -2 if they are exchanged. The inputs are declared
 * in descending order of name. */
static void probe_order(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    struct probe_bench b;
    float v[PORTS] = {0}, got = 0;
    int good = bench_open(&b, d, order_text, NULL);
    /* Ports are in the engine's order; values are assigned by name. */
    for (uint32_t i = 0; good && i < b.in_n; i++) v[i] = b.in_ports[i].name[0] == 'b' ? 7 : 5;
    if (!good || !bench_run(&b, v, &got))
        set_verdict(a, 0, b.why);
    else
        set_verdict(a, 1,
                    got == 2 ? "binding by name gives the declared operands"
                     : "binding by name gives exchanged operands");
    bench_close(&b);
}

/* A blob file with N fp16 weights of 2 or 3 (0x4000, 0x4200). */
static segue_status weight_file(struct sg_buf *file, float v, segue_error *err)
{
    uint16_t w[N];
    uint64_t at;
    for (int i = 0; i < N; i++) w[i] = v == 3 ? 0x4200 : 0x4000;
    SG_TRY(sg_blob_begin(file, err));
    return sg_blob_add(file, SG_MIL_FP16, w, sizeof w, 0, &at, err);
}

/* Loads weights of 2, reloads with weights of 3 and evaluates 5 times the weight: 15 means that the new
 * weights are used. */
static void probe_reload(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    /* Neither outcome is expected: sources report both. */
    struct sg_buf two = {0}, three = {0};
    struct probe_bench b = {.d = d};
    float in = 5, before = 0, after = 0;
    segue_error err = {0};
    if (weight_file(&two, 2, &err) || weight_file(&three, 3, &err)) {
        set_verdict(a, 0, err.text);
    } else {
        struct sg_ane_file old = {"weights/w.bin", (const uint8_t *)two.data, two.len},
                           new = {"weights/w.bin", (const uint8_t *)three.data, three.len};
        if (!bench_open(&b, d, weight_text, &old) || !bench_run(&b, &in, &before))
            set_verdict(a, 0, b.why);
        else if (sg_ane_ops_of(d)->reload(b.p, &new, 1, &err) || bench_ports(&b, &err) || !bench_run(&b, &in, &after))
            set_verdict(a, 1, "reload fails");
        else
            set_verdict(a, 1,
                        after == 15       ? "new weights take effect"
                : after == before ? "weights stay as compiled"
                                  : "the result matches neither weights");
        a->value = (double)after;
        a->value_name = "result";
        bench_close(&b);
    }
    sg_buf_free(&two);
    sg_buf_free(&three);
}

/* Classifies the result for one input. */
static void probe_value(struct sg_ane_device *d, struct sg_probe_answer *a, const char *text, float in)
{
    struct probe_bench b;
    float got = NAN;
    if (!bench_open(&b, d, text, NULL) || !bench_run(&b, &in, &got))
        set_verdict(a, 0, b.why);
    else {
        a->value = (double)got;
        a->value_name = "result";
        set_verdict(a, 1, isnan(got) ? "not a number" : isinf(got) ? "infinite" : "finite");
    }
    bench_close(&b);
}

/* exp(11.0625) = 63736 is close to the fp16 maximum of 65504: it is finite unless the engine's limit is
 * lower than reported. sqrt(-1) is NaN by IEEE 754; engines are reported to give 0. */
static void probe_exp(struct sg_ane_device *d, struct sg_probe_answer *a) { probe_value(d, a, exp_text, 11.0625f); }
static void probe_sqrt(struct sg_ane_device *d, struct sg_probe_answer *a) { probe_value(d, a, sqrt_text, -1); }

/* Runs a program on one number per input and names the result: the answer whose value it is, or `other`. */
struct probe_outcome {
    float value;
    const char *verdict;
};
static void probe_which(struct sg_ane_device *d, struct sg_probe_answer *a, const char *text, const float *in,
                        const struct probe_outcome *known, const char *other)
{
    struct probe_bench b;
    float got = NAN;
    if (!bench_open(&b, d, text, NULL) || !bench_run(&b, in, &got)) {
        set_verdict(a, 0, b.why);
    } else {
        a->value = (double)got;
        a->value_name = "result";
        while (known->verdict && known->value != got) known++;
        set_verdict(a, 1, known->verdict ? known->verdict : other);
    }
    bench_close(&b);
}

/* 32 products of 2^-14 - 2^-24: an exact sum is 2^-9 - 2^-19, which is an fp16 number; products kept to 2^-16 give 2^-9. */
static void probe_products(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    static const float in[2] = {0x1p-14f - 0x1p-24f, 1};
    static const struct probe_outcome known[] = {{0x1p-9f - 0x1p-19f, "products are exact and added in a wide sum"},
                                                 {0x1p-9f, "each product is rounded to a multiple of 2^-16"},
                                                 {0, "subnormal operands count as 0"},
                                                 {0, NULL}};
    probe_which(d, a, product_text, in, known, "none of the known ways of adding");
}

/* 2049 is halfway between two fp16 numbers. */
static void probe_ties(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    static const float in[2] = {2048, 1};
    static const struct probe_outcome known[] = {{2048, "halves go to even"}, {2050, "halves go away from zero"}, {0, NULL}};
    probe_which(d, a, add_text, in, known, "neither of the two nearest numbers");
}

/* Halfway between the knots 0 and 1/8 the table gives half of its knot at 1/8, 8 fp16 steps below tanh. */
static void probe_tanh(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    static const float in[1] = {0.0625f};
    static const struct probe_outcome known[] = {{0.0621643066f, "33 knots from 0 to 4"}, {0.0624084473f, "exact"}, {0, NULL}};
    probe_which(d, a, tanh_text, in, known, "another table");
}

/* Mean of 100 evaluations after one warm-up: nanoseconds / 1e5 is microseconds per evaluation. */
static void probe_dispatch(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    struct probe_bench b;
    float in = 1, out;
    int good = bench_open(&b, d, relu_text, NULL) && bench_run(&b, &in, &out);
    uint64_t from = sg_now_ns(); /* after the warm-up, which may compile or wake the engine */
    segue_error err;
    for (int i = 0; good && i < 100; i++)
        good = sg_ane_ops_of(d)->evaluate(b.p, 0, b.in, b.out, &err) == SEGUE_OK;
    a->value = (double)(sg_now_ns() - from) / 1e5;
    a->value_name = good ? "dispatch_us" : NULL;
    set_verdict(a, good, good ? "mean of 100" : b.why);
    bench_close(&b);
}

/* Compiles up to 16 programs, all different so that none comes from the compile cache. Stops at the first
 * failure; the limit is far below the known budget of about 119 compiles per process. */
static void probe_compiles(struct sg_ane_device *d, struct sg_probe_answer *a)
{
    int n = 0;
    for (; n < 16; n++) {
        char text[sizeof exp_text + 64];
        struct probe_bench b;
        snprintf(text, sizeof text,
                 HEAD "    func main<ios16>(" T " a_in) {\n        " T
                      " z_out = clip(alpha = tensor<fp16, []>(0.0), beta = "
                      "tensor<fp16, []>(%d.0), x = a_in);\n    } -> (z_out);\n}\n",
                 n + 1);
        /* Unloaded at once: only the number of compiles is tested, not that of loaded programs. */
        int good = bench_open(&b, d, text, NULL);
        bench_close(&b);
        if (!good) break;
    }
    a->value = n;
    a->value_name = "compiles";
    set_verdict(a, 1, n == 16 ? "16 compiles in a row succeed" : "a compile fails early");
}

/* The probes in order of execution. */
static const struct {
    const char *name, *question;
    void (*run)(struct sg_ane_device *d, struct sg_probe_answer *a);
} probes[] = {
    {"runs", "does a program of one operation run", probe_runs},
    {"order", "does binding by the loaded program's symbols give declared operands (constraint 3)",
     probe_order},
    {"concat", "is concat with named axis and interleave accepted (constraint 9)", probe_concat},
    {"rsqrt", "is rsqrt with epsilon accepted (constraint 11)", probe_rsqrt},
    {"argmax", "is argmax accepted, and is it the first of equal numbers (constraint 28, head=engine)", probe_argmax},
    {"reload", "do patched weights take effect after unload and load (constraint 8)", probe_reload},
    {"exp", "exp(11.0625): finite or infinite (numerics 4.2)", probe_exp},
    {"sqrt", "sqrt(-1): not a number or zero (numerics 4.2)", probe_sqrt},
    {"products", "are small products exact, kept to 2^-16 (ane_product_step), or 0 (ane_flush_products)", probe_products},
    {"ties", "does add round halves to even or away from zero (ane_ties_away)", probe_ties},
    {"tanh", "is tanh computed by the decoded table (ane_tables)", probe_tanh},
    {"dispatch", "what a dispatch costs (constraint 21)", probe_dispatch},
    {"compiles", "do sixteen compiles in one process succeed (constraint 5)", probe_compiles},
};

/* Callers iterate over 0..sg_probe_count() - 1. */
size_t sg_probe_count(void) { return sizeof probes / sizeof *probes; }
const char *sg_probe_name(size_t i) { return probes[i].name; }
const char *sg_probe_question(size_t i) { return probes[i].question; }

segue_status sg_probe_run(struct sg_ane_device *d, size_t i, struct sg_probe_answer *out, segue_error *err)
{
    if (i >= sg_probe_count())
        return sg_fail(err, SEGUE_EARG, "probe: %zu: there are only %zu probes; give a smaller number", i, sg_probe_count());
    *out = (struct sg_probe_answer){{0}, 0, NULL, 0};
    probes[i].run(d, out);
    return SEGUE_OK;
}
