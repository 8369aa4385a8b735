/* profile.c: see profile.h. Where sources disagree about a figure, docs/ANE.md tells which one was taken
 * and why.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/rules/profile.h"

#include <stddef.h>
#include <string.h>

#include "unit/ane/mil/millex.h"

/* Units of the sizes below. */
#define KIB 1024u
#define MIB (1024u * 1024u)

/* What M1 to M5 have in common. */
#define CHIP \
    .surface_bytes = 16 * KIB, .compiles = 119, .dim_c = 65536, .kernel_h = 29, .arg_axis = 2048, \
    .matmul_bytes = 128 * KIB, .gather_refused = 1, .info_needed = 1, .state_refused = 1, \
    .constexpr_refused = 1, .nan_to_infinity = 1, .undefined_to_zero = 1, .unsigned_zero = 1, \
    .tables = 1, .exp_limit = 11.094f, .log_zero = -45440

/* The built-in profiles; absent fields are 0, which means no limit or IEEE behaviour. The arithmetic
 * figures were measured on M1 with spot checks up to M5. Compile and load limits are per process: about 119
 * compiles, about 128 loaded programs. */
static const struct sg_ane_profile profiles[] = {
    /* Every limit that any source reports, with arithmetic of an M1. A program that passes here is expected to compile
     * everywhere. */
    {.name = "strict",
     .row_bytes = 64,
     .surface_bytes = 16 * KIB,
     .equal_sizes = 1,
     .sorted_names = 1,
     .compiles = 119,
     .loads = 128,
     .doubted_refused = 1,
     .fp32_refused = 1,
     .channels = 32,
     .dim_c = 65536,
     .dim_w = 16384,
     .kernel_w = 13,
     .kernel_h = 29,
     .transpose_dim = 16384,
     .arg_axis = 2048,
     .matmul_bytes = 64 * KIB,
     .short_rows_refused = 1,
     .bias_refused = 1,
     .inline_refused = 1,
     .gather_refused = 1,
     .info_needed = 1,
     .product_refused = 1,
     .state_refused = 1,
     .constexpr_refused = 1,
     /* Values: constraints 29 and 30; then options about which sources disagree. */
     .slice_limit = 4094,
     .mac_limit = 32768,
     .outputs = 2,
     .softmax_power = 1,
     .flat_dim = 16384,
     .head_rows = 16384,
     .mean_refused = 1,
     .sram_bytes = 32 * MIB,
     .nan_to_infinity = 1,
     .undefined_to_zero = 1,
     .unsigned_zero = 1,
     .flush_products = 1,
     .exp_limit = 11.094f,
     .log_zero = -45440,
     /* The slowest figures of the sources: dispatch and a single matmul of an M1. */
     .dispatch_us = 230,
     .tflops = 4.8,
     .weight_gb_s = 51,
     .activation_gb_s = 24,
     .compile_ms = 20,
     .load_ms = 4},
    /* For tests against a reference in plain fp16: no saturation, no tables, NaN and signed zeros
     * preserved. */
    {.name = "ieee",
     .row_bytes = 64,
     .surface_bytes = 16 * KIB,
     .compiles = 119,
     .loads = 128,
     .buffers = 1,
     .state_refused = 1,
     .channels = 1,
     .dim_c = 65536,
     .dim_w = 65536,
     .kernel_w = 15,
     .kernel_h = 29,
     .transpose_dim = 65536,
     .arg_axis = 2048,
     .matmul_bytes = 128 * KIB,
     .sram_bytes = 32 * MIB,
     .dispatch_us = 95,
     .int8_tflops = 22.6,
     .tflops = 12,
     .weight_gb_s = 100,
     .activation_gb_s = 50,
     .compile_ms = 20,
     .load_ms = 4},
    /* H13: zeros for wrong channel counts or port order, products saturate at 32768, flush subnormals, and are added in groups of
     * four, as 4096 and 1024 ones show, which give 5116 there. */
    {.name = "m1",
     CHIP,
     .row_bytes = 64,
     .size_order = 1,
     .loads = 128,
     .fp32_refused = 1,
     .channels = 32,
     .dim_w = 16384,
     .kernel_w = 13,
     .transpose_dim = 16384,
     .product_refused = 1,
     .slice_limit = 4094,
     .mac_limit = 32768,
     .flat_dim = 16384,
     .sram_bytes = 16 * MIB,
     .flush_products = 1,
     .fp16_tiles = 1,
     .dispatch_us = 210,
     .tflops = 12,
     .weight_gb_s = 51,
     .activation_gb_s = 24,
     .compile_ms = 25,
     .load_ms = 4},
    /* H14: as M1, but without the restrictions on channels and port order. Products are added without groups, and halves of
     * sums go away from zero, as measured on an M2 Max. */
    {.name = "m2",
     CHIP,
     .row_bytes = 64,
     .loads = 128,
     .fp32_refused = 1,
     .channels = 1,
     .dim_w = 16384,
     .kernel_w = 13,
     .transpose_dim = 16384,
     .product_refused = 1,
     .slice_limit = 4094,
     .sram_bytes = 24 * MIB,
     .ties_away = 1,
     .dispatch_us = 150,
     .tflops = 12,
     .weight_gb_s = 70,
     .activation_gb_s = 35,
     .compile_ms = 25,
     .load_ms = 4},
    /* H15, as seen on an M3 Max and an M3 Pro: more programs are loaded at once, softmax needs powers of two, tile ends a
     * process, computed weights of convolutions are ignored.
     * The arithmetic is that of an M4, the times of activations those of an M2. */
    {.name = "m3",
     CHIP,
     .row_bytes = 64,
     .loads = 226,
     .channels = 1,
     .dim_w = 16384,
     .kernel_w = 13,
     .transpose_dim = 16384,
     .softmax_power = 1,
     .tile_breaks = 1,
     .weights_ignored = 1,
     .sram_bytes = 32 * MIB,
     .dispatch_us = 120,
     .tflops = 16.8,
     .weight_gb_s = 70,
     .activation_gb_s = 35,
     .compile_ms = 20,
     .load_ms = 3},
    /* H16: larger H and W, wider kernels, tensor_buffer; slices keep large values. */
    {.name = "m4",
     CHIP,
     .row_bytes = 64,
     .loads = 128,
     .buffers = 1,
     .channels = 1,
     .dim_w = 65536,
     .kernel_w = 15,
     .transpose_dim = 65536,
     .blobs_unchecked = 1,
     .sram_bytes = 32 * MIB,
     .dispatch_us = 95,
     .int8_tflops = 35.1,
     .tflops = 18.6,
     .weight_gb_s = 100,
     .activation_gb_s = 50,
     .compile_ms = 14,
     .load_ms = 2},
    /* H17: as M4, but rows may need 128 bytes (one source; docs/ANE.md, constraint 1). It has 8-bit products. Their speed is
     * not measured: that of fp16 is assumed. */
    {.name = "m5",
     CHIP,
     .row_bytes = 128,
     .loads = 128,
     .buffers = 1,
     .channels = 1,
     .dim_w = 65536,
     .kernel_w = 15,
     .transpose_dim = 65536,
     .short_rows_refused = 1,
     .blobs_unchecked = 1,
     .sram_bytes = 32 * MIB,
     .dispatch_us = 117,
     .int8_tflops = 19.6,
     .tflops = 19.6,
     .weight_gb_s = 145,
     .activation_gb_s = 70,
     .compile_ms = 14,
     .load_ms = 2},
};
/* Names by engine generation instead of chip. */
static const char *const aliases[][2] = {{"h13", "m1"}, {"h14", "m2"}, {"h15", "m3"}, {"h16", "m4"}, {"h17", "m5"}};

/* Profiles are copied, so that a chip file can change one. */
segue_status sg_ane_profile_named(struct sg_ane_profile *out, const char *name, segue_error *err)
{
    /* Resolve an alias first. */
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(aliases[i][0], name)) name = aliases[i][1];
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
        if (!strcmp(profiles[i].name, name)) {
            *out = profiles[i];
            return SEGUE_OK;
        }
    return sg_fail(err, SEGUE_EARG,
                   "profile: %.40s: not known; give strict, ieee, m1 to m5 or h13 to h17",
                   name);
}

/* Type of a field: uint32_t, uint64_t, float or double. Integers come first; read_line tests kind <= BYTES. */
enum kind { COUNT, BYTES, SINGLE, DOUBLE };
/* A row of the table below; the key in a chip file is the field name with the prefix ane_. */
#define KEY(name, field, kind, low, high)                                    \
    {                                                                        \
        "ane_" name, offsetof(struct sg_ane_profile, field), kind, low, high \
    }
/* Keys of chip files: field of the profile, its type and the range of accepted values. The order also fixes
 * the hash of a profile. */
static const struct key {
    const char *name;
    size_t offset;
    enum kind kind;
    double low, high;
} keys[] = {
    /* Limits. */
    KEY("row_bytes", row_bytes, COUNT, 2, 4096),
    KEY("surface_bytes", surface_bytes, COUNT, 1, 1 << 24),
    KEY("equal_sizes", equal_sizes, COUNT, 0, 1),
    KEY("sorted_names", sorted_names, COUNT, 0, 1),
    KEY("size_order", size_order, COUNT, 0, 1),
    KEY("compiles", compiles, COUNT, 1, 1e9),
    KEY("loads", loads, COUNT, 1, 1e9),
    KEY("concat_refused", concat_refused, COUNT, 0, 1),
    KEY("doubted_refused", doubted_refused, COUNT, 0, 1),
    KEY("fp32_refused", fp32_refused, COUNT, 0, 1),
    KEY("buffers", buffers, COUNT, 0, 1),
    KEY("channels", channels, COUNT, 1, 1024),
    KEY("dim_c", dim_c, COUNT, 1, 1 << 30),
    KEY("dim_w", dim_w, COUNT, 1, 1 << 30),
    KEY("kernel_w", kernel_w, COUNT, 1, 65536),
    KEY("kernel_h", kernel_h, COUNT, 1, 65536),
    KEY("transpose_dim", transpose_dim, COUNT, 1, 1 << 30),
    KEY("arg_axis", arg_axis, COUNT, 1, 1 << 30),
    KEY("matmul_bytes", matmul_bytes, COUNT, 1, 1 << 30),
    KEY("head_rows", head_rows, COUNT, 0, 1 << 30),
    KEY("slice_limit", slice_limit, COUNT, 0, 65504),
    KEY("mac_limit", mac_limit, COUNT, 0, 65536),
    KEY("outputs", outputs, COUNT, 0, 1024),
    KEY("softmax_power", softmax_power, COUNT, 0, 1),
    KEY("flat_dim", flat_dim, COUNT, 0, 1 << 30),
    KEY("mean_refused", mean_refused, COUNT, 0, 1),
    KEY("sram_bytes", sram_bytes, BYTES, 1, 1e12),
    KEY("short_rows_refused", short_rows_refused, COUNT, 0, 1),
    KEY("bias_refused", bias_refused, COUNT, 0, 1),
    KEY("inline_refused", inline_refused, COUNT, 0, 1),
    KEY("blobs_unchecked", blobs_unchecked, COUNT, 0, 1),
    KEY("gather_refused", gather_refused, COUNT, 0, 1),
    KEY("info_needed", info_needed, COUNT, 0, 1),
    KEY("product_refused", product_refused, COUNT, 0, 1),
    KEY("state_refused", state_refused, COUNT, 0, 1),
    KEY("constexpr_refused", constexpr_refused, COUNT, 0, 1),
    KEY("tile_breaks", tile_breaks, COUNT, 0, 1),
    KEY("weights_ignored", weights_ignored, COUNT, 0, 1),
    /* Arithmetic. */
    KEY("nan_to_infinity", nan_to_infinity, COUNT, 0, 1),
    KEY("undefined_to_zero", undefined_to_zero, COUNT, 0, 1),
    KEY("unsigned_zero", unsigned_zero, COUNT, 0, 1),
    KEY("flush_products", flush_products, COUNT, 0, 1),
    KEY("tables", tables, COUNT, 0, 1),
    KEY("fp16_tiles", fp16_tiles, COUNT, 0, 1),
    KEY("product_step", product_step, COUNT, 0, 24),
    KEY("ties_away", ties_away, COUNT, 0, 1),
    KEY("exp_limit", exp_limit, SINGLE, 0, 100),
    KEY("log_zero", log_zero, SINGLE, -65504, 0),
    /* Simulated time. */
    KEY("dispatch_us", dispatch_us, DOUBLE, 0, 1e9),
    KEY("int8_tflops", int8_tflops, DOUBLE, 0, 1e6),
    KEY("tflops", tflops, DOUBLE, 1e-6, 1e6),
    KEY("weight_gb_s", weight_gb_s, DOUBLE, 1e-6, 1e6),
    KEY("activation_gb_s", activation_gb_s, DOUBLE, 1e-6, 1e6),
    KEY("compile_ms", compile_ms, DOUBLE, 0, 1e9),
    KEY("load_ms", load_ms, DOUBLE, 0, 1e9),
};

/* The key with this name of n bytes; NULL: unknown. */
static const struct key *key_named(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i].name) == n && !memcmp(keys[i].name, s, n)) return &keys[i];
    return NULL;
}

/* v was checked against the range of the key, so the conversions are exact or in range. */
static void store_value(struct sg_ane_profile *p, const struct key *k, double v)
{
    char *field = (char *)p + k->offset;
    if (k->kind == COUNT) *(uint32_t *)field = (uint32_t)v;
    if (k->kind == BYTES) *(uint64_t *)field = (uint64_t)v;
    if (k->kind == SINGLE) *(float *)field = (float)v;
    if (k->kind == DOUBLE) *(double *)field = v;
}

/* One line of n bytes without its comment: key, value, and a unit that is not read. Empty lines and keys of
 * other readers are accepted. */
static segue_status read_line(struct sg_ane_profile *p, const char *line, size_t n, uint32_t number,
                              const char *name, segue_error *err)
{
    struct sg_mil_token w = {.kind = SG_MIL_NUMBER};
    double v;
    int whole;
    int64_t as_whole;
    size_t at = 0, end;
    /* line[at..end) is the key. */
    while (at < n && strchr(" \t\r", line[at])) at++;
    for (end = at; end < n && !strchr(" \t\r", line[end]); end++) {}
    if (end - at < 4 || memcmp(line + at, "ane_", 4) != 0) return SEGUE_OK;
    const struct key *k = key_named(line + at, end - at);
    if (!k)
        return sg_fail(err, SEGUE_EFORMAT,
                       "chip file: %.80s: line %u: unknown key %.*s; docs/ANE.md lists the keys", name, number,
                       (int)(end - at < 40 ? end - at : 40), line + at);
    /* Now the value; what follows it, the unit, is ignored. The negated comparison also rejects NaN. */
    for (at = end; at < n && strchr(" \t\r", line[at]); at++) {}
    for (end = at; end < n && !strchr(" \t\r", line[end]); end++) {}
    w.at = line + at;
    w.n = end - at;
    if (!sg_mil_number(&w, &v, &whole, &as_whole) || !(v >= k->low && v <= k->high) ||
        (k->kind <= BYTES && v != (double)(uint64_t)v))
        return sg_fail(err, SEGUE_EFORMAT, "chip file: %.80s: line %u: %s must be a%s number from %g to %g",
                       name, number, k->name, k->kind <= BYTES ? " whole" : "", k->low, k->high);
    store_value(p, k, v);
    return SEGUE_OK;
}

/* Works on a copy, so that an error leaves the profile unchanged. Control bytes are rejected: the text may
 * be a binary file. */
segue_status sg_ane_profile_read(struct sg_ane_profile *p, const char *text, size_t n, const char *name,
                                 segue_error *err)
{
    struct sg_ane_profile changed = *p;
    uint32_t number = 1;
    for (const char *s = text, *end = text + n; s < end; number++) {
        const char *newline = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((newline ? newline : end) - s);
        for (size_t i = 0; i < len; i++)
            if (((unsigned char)s[i] < 0x20 && s[i] != '\t' && s[i] != '\r') || s[i] == 0x7f)
                return sg_fail(err, SEGUE_EFORMAT, "chip file: %.80s: line %u: byte 0x%02x is not text; write lines `key value`",
                               name, number, (unsigned char)s[i]);
        /* A line ends at the comment; an empty one is skipped by read_line. */
        const char *comment = memchr(s, '#', len);
        SG_TRY(read_line(&changed, s, comment ? (size_t)(comment - s) : len, number, name, err));
        s += len + 1;
    }
    *p = changed;
    return SEGUE_OK;
}

uint32_t sg_ane_row_columns(const struct sg_ane_profile *p) { return p->short_rows_refused ? p->row_bytes / 2 : 1; }

/* M1: 32 of 32 programs with gradients as outputs; by name alone 31, as declared 30. */
const char *sg_ane_port_order(const struct sg_ane_profile *p)
{
    return p->size_order ? "inputs by rising size, outputs by falling size, equal sizes by name" : "by name";
}

/* Field by field, because the padding of the struct is undefined. */
struct sg_hash sg_ane_profile_hash(const struct sg_ane_profile *p)
{
    static const size_t width[] = {[COUNT] = 4, [BYTES] = 8, [SINGLE] = 4, [DOUBLE] = 8};
    struct sg_hash h = sg_hash_bytes(p->name, strlen(p->name), 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        h = sg_hash_join(h, sg_hash_bytes((const char *)p + keys[i].offset, width[keys[i].kind], i));
    return h;
}
