/* rotary.c: reads base, rotated width and scaling of a model's rotary embeddings, in the old and
 * new form of config.json and from GGUF keys, and computes the tables. Scalings other than linear,
 * llama3 and yarn are refused: with wrong positions a model produces output that looks almost
 * right.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"

/* In the order of enum sg_scaling. */
static const char *const scaling_names[] = {"none", "linear", "llama3", "yarn"};

const char *sg_scaling_name(enum sg_scaling s) { return scaling_names[s]; }

/* The scaling with this name of len bytes. "mrope" equals no scaling for text. */
static segue_status scaling_of(const char *text, size_t len, const char *path, enum sg_scaling *out,
                               segue_error *err)
{
    static const struct {
        const char *name;
        enum sg_scaling scaling;
    } known[] = {{"default", SG_SCALING_NONE},  {"none", SG_SCALING_NONE},     {"mrope", SG_SCALING_NONE},
                 {"linear", SG_SCALING_LINEAR}, {"llama3", SG_SCALING_LLAMA3}, {"yarn", SG_SCALING_YARN}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == len && !memcmp(known[i].name, text, len)) {
            *out = known[i].scaling;
            return SEGUE_OK;
        }
    return sg_fail(
        err, SEGUE_EUNSUPPORTED,
        "open model: %s: rope scaling \"%.*s\" is not supported; use a model with linear, llama3 or yarn",
        path, (int)(len < 40 ? len : 40), text);
}

/* Scalings and their factors are near 1 to 1000 in published models; far outside, positions have no meaning any more. */
static const double FACTOR_MIN = 1e-3, FACTOR_MAX = 1e6;

/* Check the parameters that the scaling uses. Invalid ones would give tables of NaN, or positions without meaning, instead of an
 * error. */
static segue_status check_rotary(const struct sg_rotary *r, const struct sg_numbers *n, const char *path,
                          segue_error *err)
{
    const char *bad = NULL;
    double value = 0;
    const struct {
        const char *name;
        double value;
        int used;
        double min, max;
    } reals[] = {{"theta", r->theta, 1, 1, 1e18},
                 {"factor", r->factor, r->scaling != SG_SCALING_NONE, FACTOR_MIN, FACTOR_MAX},
                 {"original_max_position_embeddings", r->original, r->scaling >= SG_SCALING_LLAMA3, 1, 1e18},
                 {"low_freq_factor", r->low, r->scaling == SG_SCALING_LLAMA3, FACTOR_MIN, FACTOR_MAX},
                 {"high_freq_factor", r->high, r->scaling == SG_SCALING_LLAMA3, FACTOR_MIN, FACTOR_MAX},
                 {"beta_fast", r->beta_fast, r->scaling == SG_SCALING_YARN, FACTOR_MIN, FACTOR_MAX},
                 {"beta_slow", r->beta_slow, r->scaling == SG_SCALING_YARN, FACTOR_MIN, FACTOR_MAX}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (reals[i].used && !(reals[i].value >= reals[i].min && reals[i].value <= reals[i].max))
            bad = reals[i].name, value = reals[i].value;
    if (r->scaling == SG_SCALING_LLAMA3 && r->high <= r->low)
        bad = "high_freq_factor (not above low_freq_factor)", value = r->high;
    if (r->scaling == SG_SCALING_YARN && r->theta == 1) bad = "theta", value = r->theta;
    if (!(r->attention >= 0 && r->attention < 1e6)) bad = "attention_factor", value = r->attention;
    if (bad)
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: rope: %s is %g; correct or replace the file",
                       path, bad, value);
    if (!r->pairs || r->pairs > n->head_width / 2)
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: rope: %u columns are rotated in heads of %u; correct or replace the file",
            path, 2 * r->pairs, n->head_width);
    return SEGUE_OK;
}

/* --- config.json --- */

/* yarn's factor on cosine and sine: given directly, as a quotient of two mscale values, or the
 * default 0.1 ln(factor) + 1. */
static double yarn_attention(double given, double factor, double mscale, double mscale_all)
{
    double log_factor = factor > 1 ? 0.1 * log(factor) : 0;
    if (given > 0) return given;
    return mscale > 0 && mscale_all > 0 ? (log_factor * mscale + 1) / (log_factor * mscale_all + 1)
                                        : log_factor + 1;
}

/* Read one dictionary of parameters, old or new form. If it omits theta or the original context
 * length, r keeps its value; other parameters get their defaults. */
static segue_status read_dict(struct sg_rotary *r, const json_t *o, const struct sg_numbers *n,
                            const char *path, segue_error *err)
{
    const char *type;
    double given, mscale, mscale_all;
    int truncate;
    SG_TRY(sg_json_text(o, "type", "default", &type, path, err));
    SG_TRY(sg_json_text(o, "rope_type", type, &type, path, err));
    SG_TRY(scaling_of(type, strlen(type), path, &r->scaling, err));
    SG_TRY(sg_json_real(o, "rope_theta", r->theta, &r->theta, path, err));
    SG_TRY(sg_json_real(o, "original_max_position_embeddings", r->original, &r->original, path, err));
    SG_TRY(sg_json_real(o, "factor", r->scaling == SG_SCALING_YARN ? n->context / r->original : 0, &r->factor,
                        path, err));
    SG_TRY(sg_json_real(o, "low_freq_factor", 0, &r->low, path, err));
    SG_TRY(sg_json_real(o, "high_freq_factor", 0, &r->high, path, err));
    SG_TRY(sg_json_real(o, "beta_fast", 32, &r->beta_fast, path, err));
    SG_TRY(sg_json_real(o, "beta_slow", 1, &r->beta_slow, path, err));
    SG_TRY(sg_json_real(o, "attention_factor", 0, &given, path, err));
    SG_TRY(sg_json_real(o, "mscale", 0, &mscale, path, err));
    SG_TRY(sg_json_real(o, "mscale_all_dim", 0, &mscale_all, path, err));
    SG_TRY(sg_json_bool(o, "truncate", 1, &truncate, path, err));
    /* truncate is a flag of yarn only; the other scalings ignore it. */
    r->truncate = truncate != 0;
    if (r->scaling == SG_SCALING_YARN) r->attention = yarn_attention(given, r->factor, mscale, mscale_all);
    return SEGUE_OK;
}

/* EFORMAT: the settings are no object, or they scale without naming the scaling, which would then be ignored. */
static segue_status check_settings(const json_t *o, const char *name, const char *path, segue_error *err)
{
    if (!o || json_is_null(o)) return SEGUE_OK;
    if (!json_is_object(o))
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s is not an object; correct or replace the file", path, name);
    if (json_object_get(o, "factor") && !json_object_get(o, "type") && !json_object_get(o, "rope_type"))
        return sg_fail(err, SEGUE_EFORMAT, "open model: %s: %s has a factor but no type; correct or replace the file", path,
                       name);
    return SEGUE_OK;
}

/* config.json has three forms: rope_theta next to rope_scaling (old), one object rope_parameters,
 * and rope_parameters with an object per kind of attention. The newest form that is present is
 * used. base: theta if the file has none. */
static segue_status read_config(struct sg_numbers *n, const struct sg_source *src, double base,
                              segue_error *err)
{
    const json_t *c = src->inner, *now = json_object_get(c, "rope_parameters"),
                 *old = json_object_get(c, "rope_scaling");
    const json_t *parts[2] = {json_object_get(now, "full_attention"),
                              json_object_get(now, "sliding_attention")};
    const json_t *full = json_is_object(parts[0]) ? parts[0]
                         : json_is_object(now)    ? now
                         : json_is_object(old)    ? old
                                                  : NULL;
    double theta, share, original;
    SG_TRY(check_settings(now, "rope_parameters", src->path, err));
    SG_TRY(check_settings(old, "rope_scaling", src->path, err));
    SG_TRY(sg_json_real(c, "rope_theta", base, &theta, src->path, err));
    SG_TRY(sg_json_real(c, "original_max_position_embeddings", n->context, &original, src->path, err));
    SG_TRY(sg_json_real(full, "partial_rotary_factor", n->rotated_share, &share, src->path, err));
    if (!(share > 0 && share <= 1))
        return sg_fail(err, SEGUE_EFORMAT,
                       "open model: %s: partial_rotary_factor is %g; correct or replace the file", src->path,
                       share);
    for (size_t i = 0; i < 2; i++) {
        n->rotary[i] = (struct sg_rotary){
            .theta = theta, .original = original, .pairs = (uint32_t)(n->head_width * share / 2)};
        if (full) SG_TRY(read_dict(&n->rotary[i], full, n, src->path, err));
    }
    /* A separate base for sliding layers is used without the scaling of the full layers. */
    if (n->local_theta > 0)
        n->rotary[1] = (struct sg_rotary){.theta = n->local_theta, .pairs = n->rotary[0].pairs};
    if (json_is_object(parts[1])) SG_TRY(read_dict(&n->rotary[1], parts[1], n, src->path, err));
    return SEGUE_OK;
}

/* --- GGUF --- */

/* A GGUF key under "<architecture>.rope.". */
static segue_status read_real(const struct sg_source *src, const char *key, double fallback, double *out,
                            segue_error *err)
{
    char full_key[160];
    snprintf(full_key, sizeof full_key, "%s.rope.%s", src->arch, key);
    return sg_meta_float(src->archive, full_key, fallback, out, err);
}

/* GGUF has keys for full layers only. Sliding layers with another base are never scaled. */
static segue_status read_gguf(struct sg_numbers *n, const struct sg_source *src, double base, segue_error *err)
{
    struct sg_rotary *r = &n->rotary[0];
    char key[160];
    const char *type;
    size_t len;
    double columns, given;
    SG_TRY(read_real(src, "dimension_count", n->head_width, &columns, err));
    if (!(columns >= 2 && columns <= n->head_width))
        return sg_fail(
            err, SEGUE_EFORMAT,
            "open model: %s: rope.dimension_count is %g, expected 2 to the head width %u; correct or replace the file",
            src->path, columns, n->head_width);
    *r = (struct sg_rotary){.pairs = (uint32_t)columns / 2, .truncate = 1, .beta_fast = 32, .beta_slow = 1};
    SG_TRY(read_real(src, "freq_base", base, &r->theta, err));
    snprintf(key, sizeof key, "%s.rope.scaling.type", src->arch);
    SG_TRY(sg_meta_string(src->archive, key, &type, &len, err));
    if (type) SG_TRY(scaling_of(type, len, src->path, &r->scaling, err));
    SG_TRY(read_real(src, "scale_linear", 1, &r->factor, err)); /* the old key; implies linear scaling */
    if (!type && r->factor != 1) r->scaling = SG_SCALING_LINEAR;
    SG_TRY(read_real(src, "scaling.factor", r->factor, &r->factor, err));
    SG_TRY(read_real(src, "scaling.original_context_length", n->context, &r->original, err));
    SG_TRY(read_real(src, "scaling.attn_factor", 1, &given, err));
    SG_TRY(read_real(src, "scaling.yarn_beta_fast", r->beta_fast, &r->beta_fast, err));
    SG_TRY(read_real(src, "scaling.yarn_beta_slow", r->beta_slow, &r->beta_slow, err));
    if (r->scaling == SG_SCALING_YARN) r->attention = given * yarn_attention(0, r->factor, 0, 0);
    n->rotary[1] = *r;
    if (n->local_theta > 0) n->rotary[1] = (struct sg_rotary){.theta = n->local_theta, .pairs = r->pairs};
    return SEGUE_OK;
}

/* --- tables --- */

/* Scaled inverse frequency by Llama 3's rule: divide long wavelengths by the factor, keep short
 * ones, interpolate between. */
static double llama3(const struct sg_rotary *r, double f)
{
    double wave = 2 * acos(-1.0) / f;
    if (wave < r->original / r->high) return f;
    if (wave > r->original / r->low) return f / r->factor;
    /* 0 at the long end of the interpolated range, 1 at the short end. */
    double s = (r->original / wave - r->low) / (r->high - r->low);
    return (1 - s) * f / r->factor + s * f;
}

/* The (fractional) pair that makes `turns` rotations within the original context. */
static double yarn_pair(const struct sg_rotary *r, double turns)
{
    return r->pairs * log(r->original / (turns * 2 * acos(-1.0))) / log(r->theta);
}

/* Scaled inverse frequency of pair j by YaRN: a linear ramp over the pairs from f (fast rotations)
 * to f / factor (slow ones). */
static double yarn(const struct sg_rotary *r, double f, uint32_t j)
{
    double low = yarn_pair(r, r->beta_fast), high = yarn_pair(r, r->beta_slow);
    /* Pairs below `low` rotate fast and keep their frequency; pairs above `high` are fully scaled. */
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, 2.0 * r->pairs - 1);
    if (low == high) high += 0.001;   /* as the reference does, to avoid a division by zero */
    double ramp = fmin(fmax((j - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

/* Computed in double and rounded once: at position 1e5 an error of one fp32 step in the frequency
 * changes the angle visibly. */
void sg_rotary_make(struct sg_rotary *r, const float *divisors)
{
    r->mscale = r->scaling == SG_SCALING_YARN ? (float)r->attention : 1.0f;
    for (uint32_t j = 0; j < r->pairs; j++) {
        /* The unscaled inverse frequency: theta^(-2j / rotated columns). */
        double f = pow(r->theta, -(double)j / r->pairs);
        if (r->scaling == SG_SCALING_LINEAR) f /= r->factor;
        if (r->scaling == SG_SCALING_LLAMA3) f = llama3(r, f);
        if (r->scaling == SG_SCALING_YARN) f = yarn(r, f, j);
        r->inverse[j] = (float)(divisors ? f / divisors[j] : f);
    }
}

/* Partial rotation is refused for interleaved families, whose row permutation assumes whole heads. */
segue_status sg_rotary_read(struct sg_numbers *n, const struct sg_family *f, const struct sg_source *src,
                            struct sg_arena *arena, segue_error *err)
{
    double base = f->theta > 0 ? f->theta : 10000;
    SG_TRY(src->inner ? read_config(n, src, base, err) : read_gguf(n, src, base, err));
    for (size_t i = 0; i < 2; i++) {
        struct sg_rotary *r = &n->rotary[i];
        SG_TRY(check_rotary(r, n, src->path, err));
        if (f->interleaved && 2 * r->pairs != n->head_width)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "open model: %s: rope: %u of %u columns are rotated, which is not supported for family %s; use "
                           "another model",
                           src->path, 2 * r->pairs, n->head_width, f->name);
        size_t bytes = r->pairs * sizeof *r->inverse;
        if (!(r->inverse = sg_arena_alloc(arena, bytes))) return sg_no_memory("rotary table", bytes, err);
        sg_rotary_make(r, NULL);
    }
    return SEGUE_OK;
}
