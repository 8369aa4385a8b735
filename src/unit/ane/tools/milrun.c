/* milrun.c: see milrun.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/milrun.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"

/* One element of a surface. bool and uint8 are one unsigned byte. */
static float get_number(enum sg_mil_dtype d, const uint8_t *p)
{
    return d == SG_MIL_FP16    ? sg_f32_of_f16(sg_le16(p))
           : d == SG_MIL_FP32  ? sg_f32_of_bits(sg_le32(p))
           : d == SG_MIL_INT8  ? (float)(int8_t)*p
           : d == SG_MIL_INT32 ? (float)(int32_t)sg_le32(p)
                               : (float)*p;
}

/* Values outside the int32 range become 0, because the conversion would be undefined. */
static void put_number(enum sg_mil_dtype d, uint8_t *p, float v)
{
    uint16_t half = sg_f16_of_f32(v);
    int32_t whole = v > -2147483648.0f && v < 2147483648.0f ? (int32_t)v : 0;
    if (d == SG_MIL_FP16)
        memcpy(p, &half, 2);
    else if (d == SG_MIL_FP32)
        memcpy(p, &v, 4);
    else if (d == SG_MIL_INT32)
        memcpy(p, &whole, 4);
    else
        *p = (uint8_t)whole;
}

/* Copies `in` to the surface or, when it is NULL, the surface to `out`. The size is checked while the
 * surface is locked, because lock reports it. */
static segue_status copy_surface(const struct sg_ane_port *port, struct sg_ane_surface *s, const float *in,
                                 float *out, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s);
    enum sg_mil_dtype d = (enum sg_mil_dtype)port->type.dtype;
    uint64_t width = port->type.rank ? (uint64_t)port->type.dim[port->type.rank - 1] : 1,
             rows = sg_mil_elements(&port->type) / width, n;
    /* Rows are the last dimension; the surface has them at a distance of row_bytes. */
    uint32_t each = sg_mil_dtype_info(d)->bits / 8u;
    void *bytes;
    /* Locked for writing or only for reading, until unlock. */
    SG_TRY(ops->lock(s, in != NULL, &bytes, &n, err));
    segue_status status = SEGUE_OK;
    if (n < rows * port->row_bytes)
        status = sg_fail(err, SEGUE_EARG, "surface: %.60s: %llu bytes, but %llu are needed; allocate a larger surface",
                         port->name, (unsigned long long)n, (unsigned long long)(rows * port->row_bytes));
    for (uint64_t i = 0; status == SEGUE_OK && i < rows; i++) {
        uint8_t *row = (uint8_t *)bytes + i * port->row_bytes;
        for (uint64_t k = 0; k < width; k++) {
            if (in)
                put_number(d, row + k * each, in[i * width + k]);
            else
                out[i * width + k] = get_number(d, row + k * each);
        }
    }
    ops->unlock(s);
    return status;
}

/* Values are rounded to the element type of the port; integers are truncated. */
segue_status sg_ane_surface_put(const struct sg_ane_port *port, struct sg_ane_surface *s, const float *in,
                                segue_error *err)
{
    return copy_surface(port, s, in, NULL, err);
}

segue_status sg_ane_surface_get(const struct sg_ane_port *port, struct sg_ane_surface *s, float *out,
                                segue_error *err)
{
    return copy_surface(port, s, NULL, out, err);
}

/* Reads a tensor of a file. Models have no whole numbers, so sg_tensor_read does not take them. */
static segue_status read_tensor(const struct sg_tensor *t, float *out, segue_error *err)
{
    const uint8_t *p = t->data;
    uint64_t n = t->rows * t->cols;
    if (t->storage != SG_I8 && t->storage != SG_U8 && t->storage != SG_BOOL && t->storage != SG_I32) {
        SG_TRY(sg_tensor_computable(t, err));
        sg_tensor_read(t, out);
        return SEGUE_OK;
    }
    for (uint64_t i = 0; i < n; i++)
        out[i] = t->storage == SG_I8    ? (float)(int8_t)p[i]
                 : t->storage == SG_I32 ? (float)(int32_t)sg_le32(p + 4 * i)
                                        : (float)p[i];
    return SEGUE_OK;
}

/* Surfaces of one program. */
struct surfaces {
    struct sg_ane_surface **in, **out;
    uint32_t in_n, out_n;
};

/* The latest result with this name; NULL: none. */
static const struct sg_st_item *result_named(const struct sg_mil_results *r, const char *name)
{
    for (uint32_t i = r->n; i-- > 0;)
        if (!strcmp(r->items[i].name, name)) return &r->items[i];
    return NULL;
}

/* A port of whole or truth values takes only numbers of its type: another one would be replaced without a trace. */
static segue_status check_whole(const struct sg_ane_port *port, const float *v, uint64_t n, segue_error *err)
{
    const struct sg_mil_dtype_info *info = sg_mil_dtype_info((enum sg_mil_dtype)port->type.dtype);
    double high = info->class == SG_MIL_BOOLEAN ? 1 : ldexp(1, info->class == SG_MIL_SIGNED ? info->bits - 1 : info->bits) - 1;
    double low = info->class == SG_MIL_SIGNED ? -high - 1 : 0;
    for (uint64_t i = 0; info->class != SG_MIL_REAL && i < n; i++)
        if (!((double)v[i] >= low && (double)v[i] <= high && v[i] == truncf(v[i])))
            return sg_fail(err, SEGUE_EARG, "mil run: input %.80s: number %llu is %g, which is no %s; change the tensor",
                           port->name, (unsigned long long)i, (double)v[i], info->name);
    return SEGUE_OK;
}

/* Fills the surface of an input from the file or, if it has no such tensor, from an earlier result. */
static segue_status fill_input(const struct sg_ane_port *port, struct sg_ane_surface *s,
                               const struct sg_archive *in, const struct sg_mil_results *earlier,
                               segue_error *err)
{
    const struct sg_tensor *t = in ? sg_archive_find(in, port->name) : NULL;
    const struct sg_st_item *before = t ? NULL : result_named(earlier, port->name);
    /* Only the element count must match, so a file may store a tensor with another shape. */
    uint64_t n = sg_mil_elements(&port->type), has = t ? t->rows * t->cols : 1;
    for (uint32_t i = 0; before && i < before->rank; i++) has *= before->shape[i];
    if (!t && !before)
        return sg_fail(err, SEGUE_EARG,
                       "mil run: input %.80s: no tensor with this name; add it to the file given by --in",
                       port->name);
    if (has != n)
        return sg_fail(err, SEGUE_EARG,
                       "mil run: input %.80s: the tensor has %llu elements, the program reads %llu; give a tensor of its shape",
                       port->name, (unsigned long long)has, (unsigned long long)n);
    if (before) SG_TRY(check_whole(port, before->data, n, err));
    if (before) return sg_ane_surface_put(port, s, before->data, err); /* results are fp32 already */
    float *numbers = sg_alloc((size_t)n * sizeof *numbers);
    if (!numbers) return sg_no_memory("an input", (size_t)n * sizeof *numbers, err);
    segue_status status = read_tensor(t, numbers, err);
    if (status == SEGUE_OK) status = check_whole(port, numbers, n, err);
    if (status == SEGUE_OK) status = sg_ane_surface_put(port, s, numbers, err);
    sg_free(numbers);
    return status;
}

/* Appends an output to the results. */
static segue_status store_output(const struct sg_ane_port *port, struct sg_ane_surface *s,
                                 struct sg_mil_results *out, segue_error *err)
{
    if (out->n == out->cap) {
        uint32_t cap = out->cap ? out->cap * 2 : 16;
        void *more = sg_realloc(out->items, cap * sizeof *out->items);
        if (!more) return sg_no_memory("results", cap * sizeof *out->items, err);
        out->items = more;
        out->cap = cap;
    }
    /* Names and data are copied: ports and surfaces are freed with the program. */
    struct sg_st_item *item = &out->items[out->n];
    uint64_t n = sg_mil_elements(&port->type);
    float *data = sg_arena_alloc(&out->arena, (size_t)n * sizeof *data);
    const char *name = sg_arena_strndup(&out->arena, port->name, strlen(port->name));
    if (!data || !name) return sg_no_memory("results", (size_t)n * sizeof *data, err);
    *item = (struct sg_st_item){.name = name, .storage = SG_F32, .data = data};
    /* A safetensors item has at most four dimensions here. */
    uint32_t rank = port->type.rank, extra = rank > 4 ? rank - 4 : 0;
    item->rank = rank - extra;
    for (uint32_t i = 0; i < item->rank; i++) item->shape[i] = (uint64_t)port->type.dim[i + extra];
    for (uint32_t i = 0; i < extra; i++) item->shape[0] *= (uint64_t)port->type.dim[i];
    out->n++;
    return sg_ane_surface_get(port, s, data, err);
}

/* Creates and fills the surfaces of a loaded program, evaluates it once and stores its outputs. The caller
 * frees the surfaces, also after a failure. */
static segue_status run_bound(struct sg_ane_program *p, const struct sg_ane_port *in_ports,
                              const struct sg_ane_port *out_ports, struct surfaces *b,
                              const struct sg_archive *in, struct sg_mil_results *out, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(p);
    struct sg_ane_device *d = ((struct sg_ane_program_base *)(void *)p)->device;
    for (uint32_t i = 0; i < b->in_n; i++) {
        SG_TRY(ops->surface_new(d, in_ports[i].surface_bytes, &b->in[i], err));
        SG_TRY(fill_input(&in_ports[i], b->in[i], in, out, err));
    }
    for (uint32_t i = 0; i < b->out_n; i++)
        SG_TRY(ops->surface_new(d, out_ports[i].surface_bytes, &b->out[i], err));
    /* Only the evaluation is measured, without filling and reading surfaces. */
    uint64_t from = sg_now_ns();
    SG_TRY(ops->evaluate(p, 0, b->in, b->out, err));
    out->evaluate_ns += sg_now_ns() - from;
    for (uint32_t i = 0; i < b->out_n; i++) SG_TRY(store_output(&out_ports[i], b->out[i], out, err));
    return SEGUE_OK;
}

/* Loads one program, runs it and unloads it. Programs of a folder are loaded one at a time, because engines
 * limit how many may be loaded at once (constraint 6). Surfaces are freed before the program is unloaded. */
static segue_status run_text(struct sg_ane_device *d, const struct sg_mil_text *t,
                             const struct sg_archive *in, struct sg_mil_results *out, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_source s = {.name = t->path, .text = (const char *)t->map.data, .text_bytes = t->map.size,
                              .files = t->files, .files_n = t->files_n};
    const struct sg_ane_port *in_ports = NULL, *out_ports = NULL;
    struct sg_ane_program *p = NULL;
    struct surfaces b = {0};
    SG_TRY(ops->load(d, &s, &p, err));
    segue_status status = ops->ports(p, 0, &in_ports, &b.in_n, &out_ports, &b.out_n, err);
    /* One entry more than needed, so that the allocation is never empty. */
    b.in = sg_alloc((b.in_n + 1) * sizeof(struct sg_ane_surface *));
    b.out = sg_alloc((b.out_n + 1) * sizeof(struct sg_ane_surface *));
    if (status == SEGUE_OK && (!b.in || !b.out)) status = sg_no_memory("surfaces", 0, err);
    if (status == SEGUE_OK) status = run_bound(p, in_ports, out_ports, &b, in, out, err);
    for (uint32_t i = 0; b.in && i < b.in_n; i++) ops->surface_free(b.in[i]);
    for (uint32_t i = 0; b.out && i < b.out_n; i++) ops->surface_free(b.out[i]);
    sg_free(b.in);
    sg_free(b.out);
    ops->unload(p);
    return status;
}

/* In the order of the file names, so that later programs can read the outputs of earlier ones. */
segue_status sg_mil_run_folder(struct sg_ane_device *d, const struct sg_mil_folder *f,
                               const struct sg_archive *in, struct sg_mil_results *out, segue_error *err)
{
    for (uint32_t i = 0; i < f->n; i++) {
        SG_TRY(sg_mil_text_status(&f->texts[i], err));
        SG_TRY(run_text(d, &f->texts[i], in, out, err));
    }
    return SEGUE_OK;
}

void sg_mil_results_free(struct sg_mil_results *r)
{
    sg_free(r->items);
    sg_arena_free(&r->arena);
    *r = (struct sg_mil_results){0};
}
