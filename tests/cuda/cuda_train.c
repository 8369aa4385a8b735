/* cuda_train.c: training on the unit cuda over the stub driver: which operations are refused by name, which kernels a product
 * launches, failures of memory and of launches, that nothing stays allocated. tests/cuda/emulate executes the kernels.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "stub.h"
#include "unit/cuda/kernels/train/ktrain.h"

enum { ROWS = 300, COLUMNS = 96, OUTPUTS = 200, RANK = 4 };

struct train_opened { struct sg_unit *unit; struct sg_train_resident *train; };

static segue_status open_train(struct train_opened *o, const char *spec, const char *late, segue_error *err)
{
    stub("");
    assert_int_equal(open_unit(&o->unit, spec, err), SEGUE_OK);
    stub(late);
    o->train = NULL;
    return sg_ops_of(o->unit)->train_resident(o->unit, &o->train, err);
}

static void close_train(struct train_opened *o)
{
    assert_int_equal(setenv("SEGUE_STUB", "", 1), 0);
    if (o->train) sg_resident_ops(o->train)->close(o->train);
    sg_ops_of(o->unit)->close(o->unit);
    assert_int_equal(alive(), 0);
}

/* The ops without a kernel are named with their layer. */
static void ops_without_a_kernel_are_refused(void **state)
{
    (void)state;
    struct train_opened o;
    segue_error err;
    assert_int_equal(open_train(&o, "cuda:0", "", &err), SEGUE_OK);
    for (int code = 0; code < SG_OP_N; code++) {
        struct sg_op op = {.code = (enum sg_op_code)code, .layer = 3};
        int known = code != SG_OP_ROUTE && code != SG_OP_EXPERTS && code != SG_OP_JOIN && code != SG_OP_ROWS;
        assert_int_equal(sg_resident_ops(o.train)->can(o.train, NULL, &op, &err), known ? SEGUE_OK : SEGUE_EUNSUPPORTED);
        char name[64];
        snprintf(name, sizeof name, "%s (layer 3)", sg_op_name(op.code));
        if (!known) assert_non_null(strstr(err.text, name));
    }
    struct sg_op wide = {.code = SG_OP_DELTA, .u.delta = {.dk = 257, .dv = 8}};
    assert_int_equal(sg_resident_ops(o.train)->can(o.train, NULL, &wide, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "257"));
    close_train(&o);
}

/* A linear op with a pair, forward and back; operands are not read, so their addresses do not matter. */
static segue_status linear(struct train_opened *o, uint32_t back, segue_error *err)
{
    const struct sg_train_resident_ops *ops = sg_resident_ops(o->train);
    struct sg_op op = {.code = SG_OP_LINEAR};
    float *block = NULL;
    SG_TRY(ops->alloc(o->train, (size_t)ROWS * OUTPUTS, &block, err));
    struct sg_resident_tokens tokens = {.rows = ROWS, .sequences = 1, .longest = ROWS};
    struct sg_resident_call c = {.op = &op, .back = back, .rows = ROWS, .tokens = &tokens, .width = OUTPUTS, .out = block,
                                 .dout = block, .pair_scale = 2, .stride = OUTPUTS};
    c.in[0] = (struct sg_resident_matrix){block, COLUMNS, COLUMNS, 0};
    c.grad[0] = (struct sg_resident_matrix){block + (size_t)ROWS * COLUMNS, COLUMNS, COLUMNS, 0};
    c.weight[0] = (struct sg_resident_weight){block, NULL, OUTPUTS, COLUMNS};
    c.pair[0] = (struct sg_resident_weight){block, block, RANK, COLUMNS};
    c.pair[1] = (struct sg_resident_weight){block, block, OUTPUTS, RANK};
    segue_status status = ops->run(o->train, &c, err);
    ops->free(o->train, block);
    return status;
}

/* A frozen W with a pair: forward x W, x A, low B; back dy W, x A, dy B, two gradients, dlow A. Sums over few tiles are split. */
static void products_of_a_pair(void **state)
{
    (void)state;
    struct train_opened o;
    segue_error err;
    for (int mode = 0; mode < CT_PRODUCTS; mode++) {
        char spec[32], name[3][40];
        static const char *const kinds[] = {"nt", "nn", "tn"};
        snprintf(spec, sizeof spec, "cuda:0,products=%d", mode);
        for (int k = 0; k < 3; k++) snprintf(name[k], sizeof name[k], "train_gemm_%s_64_%d", kinds[k], mode);
        assert_int_equal(open_train(&o, spec, "", &err), SEGUE_OK);
        assert_int_equal(linear(&o, 0, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel(name[0]), 3);
        assert_int_equal(linear(&o, 1, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel(name[0]), 4);
        assert_int_equal(launches_of_kernel(name[1]), 3);
        assert_int_equal(launches_of_kernel(name[2]), 2);
        assert_true(launches_of_kernel("train_sum") > 0);
        close_train(&o);
    }
}

/* Values in bf16: products of the stub are fp32 ones between conversions, as cuBLASLt has no GPU; weights that are not from this
 * trainer have no copy. */
static void values_in_bf16(void **state)
{
    (void)state;
    struct train_opened o;
    segue_error err;
    float *x;
    assert_int_equal(open_train(&o, "cuda:0,products=3", "", &err), SEGUE_OK);
    assert_int_equal(sg_resident_value_bytes(o.train), 2);
    assert_int_equal(linear(&o, 1, &err), SEGUE_OK);
    assert_int_equal(launches_of_kernel("train_bf16_widen"), 2);
    assert_int_equal(launches_of_kernel("train_bf16_narrow"), 1);
    const struct sg_train_resident_ops *ops = sg_resident_ops(o.train);
    assert_int_equal(ops->alloc(o.train, ROWS * COLUMNS, &x, &err), SEGUE_OK);
    struct sg_op op = {.code = SG_OP_ADD};
    struct sg_resident_call c = {.op = &op, .rows = ROWS, .width = COLUMNS, .stride = COLUMNS, .out = x};
    c.in[0] = c.in[1] = (struct sg_resident_matrix){x, COLUMNS, COLUMNS, 0};
    assert_int_equal(ops->run(o.train, &c, &err), SEGUE_OK);
    assert_int_equal(launches_of_kernel("train_bf16_small"), 1);
    c.in[1].width = c.width = COLUMNS - 1; /* not in eights */
    assert_int_equal(ops->run(o.train, &c, &err), SEGUE_OK);
    assert_int_equal(launches_of_kernel("train_bf16_small"), 1);
    assert_int_equal(launches_of_kernel("train_small"), 1);
    ops->free(o.train, x);
    close_train(&o);
}

static struct ct_loss seen_loss;
static void see_loss(const char *name, const void *args)
{
    if (!strcmp(name, "train_loss")) seen_loss = *(const struct ct_loss *)args;
}

/* A part of the labelled rows has its part of the policy; without one the kernel gets none. */
static void policy_of_a_part(void **state)
{
    (void)state;
    struct train_opened o;
    segue_error err;
    float policy[4 * 8] = {0};
    assert_int_equal(open_train(&o, "cuda:0", "", &err), SEGUE_OK);
    struct sg_resident_tokens tokens = {.rows = 8, .sequences = 1, .longest = 8};
    watch(see_loss);
    for (int i = 0; i < 2; i++) {
        tokens.policy = i ? policy : NULL, tokens.clip = 0.2f, tokens.kl = 0.5f;
        assert_int_equal(sg_resident_ops(o.train)->loss(o.train, &tokens, 3, 2, 16, NULL, NULL, &err), SEGUE_OK);
        assert_ptr_equal(seen_loss.policy.rows, i ? policy + 12 : NULL);
    }
    watch(NULL);
    assert_true(seen_loss.policy.clip == 0.2f && seen_loss.policy.kl == 0.5f);
    close_train(&o);
}

/* A grid has at most 65,535 blocks in y: sums over rows have their chunks of rows in x. */
static void sums_over_millions_of_rows(void **state)
{
    static const char *const specs[] = {"cuda:0,products=3", "cuda:0"};
    static const uint32_t rows[] = {65536 * 128 + 1, 65536 * 256 + 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct train_opened o;
        segue_error err;
        float *x;
        assert_int_equal(open_train(&o, specs[i], "", &err), SEGUE_OK);
        const struct sg_train_resident_ops *ops = sg_resident_ops(o.train);
        assert_int_equal(ops->alloc(o.train, 8, &x, &err), SEGUE_OK);
        struct sg_op op = {.code = SG_OP_NORM, .u.norm = {.groups = 1, .kind = SG_NORM_LAYER}};
        struct sg_resident_call c = {.op = &op, .back = 1, .rows = rows[i], .width = 8, .stride = 8, .dout = x};
        c.in[0] = c.grad[0] = (struct sg_resident_matrix){x, 8, 8, 0};
        c.weight[0] = c.weight[1] = (struct sg_resident_weight){x, x, 1, 8};
        assert_int_equal(ops->run(o.train, &c, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel(i ? "train_columns" : "train_bf16_norm_columns"), i ? 2 : 1);
        ops->free(o.train, x);
        close_train(&o);
    }
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    struct train_opened o;
    segue_error err;
    assert_int_equal(open_train(&o, "cuda:0", "memory", &err), SEGUE_OK);
    assert_int_equal(linear(&o, 0, &err), SEGUE_EMEMORY);
    close_train(&o);
    assert_int_equal(open_train(&o, "cuda:0", "launch", &err), SEGUE_OK);
    assert_int_equal(linear(&o, 0, &err), SEGUE_ELOST);
    close_train(&o);
    for (int call = 1; call < 40; call++) { /* every call of opening fails once */
        char late[16];
        snprintf(late, sizeof late, "once:%d", call);
        segue_status status = open_train(&o, "cuda:0", late, &err);
        assert_true((status == SEGUE_OK) == (o.train != NULL));
        close_train(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_without_a_kernel_are_refused),
        cmocka_unit_test(products_of_a_pair),
        cmocka_unit_test(values_in_bf16),
        cmocka_unit_test(sums_over_millions_of_rows),
        cmocka_unit_test(policy_of_a_part),
        cmocka_unit_test(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
