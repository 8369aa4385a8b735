/* emit.c: see emit.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/emit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/blob/mlpackage.h"
#include "unit/ane/tools/explain.h"
#include "unit/finite.h"

/* The options, the weights (they must be finite) and the operations are checked before anything is built. A
 * graph without a vocabulary is a range of layers; its outputs are results of the last part. */
segue_status sg_ane_emit_open(struct sg_ane_emit *out, const struct sg_graph *g, const struct sg_ane_emit_opts *o,
                              segue_error *err)
{
    /* Also for dispatches of one row. */
    uint32_t columns = o->columns > SG_ANE_PAD ? o->columns : SG_ANE_PAD;
    uint32_t rows = o->rows ? o->rows : SG_ANE_PAD, keys = o->keys ? o->keys : ANE_KEYS_MIN;
    *out = (struct sg_ane_emit){.g = g, .sizes_only = o->sizes_only, .storage = o->storage, .flush = o->flush, .columns = columns,
                                .shape = {.rows = rows, .columns = rows < columns ? columns : rows, .keys = keys}};
    if (rows > ANE_ROWS_MAX || (rows & (rows - 1)) || (rows > 1 && rows < SG_ANE_PAD))
        return sg_fail(err, SEGUE_EARG, "emit: %u rows; give 1, 32, 64, 128, 256 or 512", rows);
    if (keys < SG_ANE_PAD || keys > ANE_KEYS_MAX || (keys & (keys - 1)))
        return sg_fail(err, SEGUE_EARG, "emit: %u keys; give 512, 1024, 2048 or 4096", keys);
    segue_status status = o->sizes_only ? SEGUE_OK : sg_weights_finite(g, err);
    for (uint32_t i = 0; i < g->ops_n && status == SEGUE_OK; i++) status = sg_ane_can_lower(g, &g->ops[i], err);
    if (status == SEGUE_OK)
        status = sg_ane_partition_make(&out->cut, g, o->layers, !g->vocab, err);
    if (status == SEGUE_OK && o->head) status = sg_ane_head_of(&out->head, g, &out->cut, err);
    if (status == SEGUE_OK) status = sg_ane_info_make(&out->info, g, &out->shape, err);
    if (status == SEGUE_OK && o->by_weights) status = sg_ane_range_make(&out->range, g, err);
    if (status == SEGUE_OK && o->by_weights) sg_ane_partition_set_range(&out->cut, &out->range);
    if (status != SEGUE_OK) sg_ane_emit_close(out);
    return status;
}

/* Also after a failed open: the fields that were not reached are zero. */
void sg_ane_emit_close(struct sg_ane_emit *e)
{
    sg_ane_range_free(&e->range);
    sg_ane_info_free(&e->info);
    sg_ane_partition_free(&e->cut);
}

uint32_t sg_ane_emit_count(const struct sg_ane_emit *e) { return e->cut.parts_n + (e->head.linear != NULL); }

/* What comes after the head does not change the choice. */
int sg_ane_emit_has(const struct sg_ane_emit *e, const struct sg_op *op)
{
    return e->head.linear && (op == e->head.norm || op >= e->head.linear);
}

/* Every call lowers the part again; nothing is cached between calls, because all weights of a model may not
 * fit memory at once. */
segue_status sg_ane_emit_part(struct sg_ane_emit *e, uint32_t i, struct sg_mil_program **mil, struct sg_ane_blobs *blobs,
                              segue_error *err)
{
    *mil = NULL;
    *blobs = (struct sg_ane_blobs){.sizes_only = e->sizes_only, .storage = e->storage, .flush = e->flush};
    snprintf(blobs->path, sizeof blobs->path, "weights/p%02u.bin", i);
    return i < e->cut.parts_n ? sg_ane_lower(mil, e->g, &e->cut.parts[i], &e->info, &e->shape, blobs, err)
                              : sg_ane_lower_head(mil, e->g, &e->cut.parts[i - 1], &e->head, e->columns, blobs, err);
}

/* JSON list of inputs or outputs of a program; values: NULL for the parameters. */
static void put_ports(struct sg_buf *m, const char *what, const struct sg_mil_function *f, const uint32_t *values,
                      uint32_t n)
{
    sg_buf_printf(m, ",\n   \"%s\": [", what);
    for (uint32_t i = 0; i < n; i++) {
        const struct sg_mil_value *v = &f->values[values ? values[i] : i];
        sg_buf_printf(m, "%s{\"name\": \"%s\", \"type\": \"fp16\", \"shape\": [%d, %d, %d, %d]}", i ? ", " : "", v->name,
                      (int)v->type.dim[0], (int)v->type.dim[1], (int)v->type.dim[2], (int)v->type.dim[3]);
    }
    sg_buf_puts(m, "]");
}

/* JSON list of the values of a port, in channel order. The port holds each value divided by a power of two (value_range.h). */
static void put_divisors(struct sg_buf *m, const struct sg_ane_emit *e, const int32_t *values, uint32_t n)
{
    sg_buf_puts(m, "[");
    for (uint32_t i = 0; i < n; i++)
        sg_buf_printf(m, "%s{\"channels\": %u, \"divided_by\": %.9g}", i ? ", " : "", e->g->values[values[i]].width,
                      e->range.value ? ldexp(1, e->range.value[values[i]]) : 1.0);
    sg_buf_puts(m, "]");
}

static void put_values(struct sg_buf *m, const char *what, const struct sg_ane_emit *e, const int32_t *values, uint32_t n)
{
    sg_buf_printf(m, ",\n   \"%s\": ", what);
    put_divisors(m, e, values, n);
}

/* A string with JSON escapes. Names come from model files, whose reader has rejected invalid UTF-8. */
static void put_name(struct sg_buf *m, const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == '"' || *name == '\\')
            sg_buf_printf(m, "\\u%04x", (unsigned)(unsigned char)*name);
        else
            sg_buf_printf(m, "%c", *name);
}

/* JSON list of the tensors in a blob file: name of the const, tensor and its rows, offset of the record,
 * and the row within the blob where the tensor begins. */
static void put_tensors(struct sg_buf *m, const struct sg_graph *g, const struct sg_ane_blobs *b)
{
    sg_buf_printf(m, ",\n   \"weights\": \"%s\", \"tensors\": [", b->path);
    const char *before = ""; /* separator before the next entry */
    for (uint32_t i = 0; i < b->n; i++) {
        const struct sg_ane_weight_blob *s = &b->list[i];
        uint64_t below = 0; /* rows of the blob before this tensor */
        for (uint32_t k = 0; k < s->weights_n; below += s->weights[k++].rows, before = ",") {
            const struct sg_weight *w = &s->weights[k];
            sg_buf_printf(m, "%s\n    {\"value\": \"w%u\", \"tensor\": \"", before, i);
            put_name(m, g->tensors[w->tensor]->name);
            sg_buf_printf(m, "\", \"row\": %u, \"rows\": %u, \"offset\": %llu, \"below\": %llu", w->at, w->rows,
                          (unsigned long long)s->record, (unsigned long long)below);
            if (s->quant.storage)
                sg_buf_printf(m, ", \"storage\": \"%s\", \"scales\": %llu", sg_ane_storage_name(s->quant.storage),
                              (unsigned long long)s->aux);
            sg_buf_puts(m, "}");
        }
    }
    sg_buf_puts(m, "]");
}

/* JSON description of the port `info` (lowerinfo.h): the first channel of each item. */
static void put_info(struct sg_buf *m, const struct sg_ane_emit *e)
{
    const struct sg_ane_info *info = &e->info;
    const char *before = "";
    /* Key names are part of the manifest's format; consumers read them. */
    sg_buf_puts(m, "{");
    if (info->valid != UINT32_MAX) sg_buf_printf(m, "\"valid\": %u, ", info->valid);
    sg_buf_puts(m, "\"masks\": [");
    for (uint32_t i = 0; i < info->masks_n; i++) {
        sg_buf_printf(m, "%s{\"window\": %u, \"ring\": %u, \"place\": %u, \"at\": %u", i ? ", " : "", info->ring[i].window,
                      info->ring[i].columns, info->scatter[i], info->mask[i]);
        if (info->fresh[i] != UINT32_MAX) sg_buf_printf(m, ", \"fresh\": %u", info->fresh[i]);
        sg_buf_puts(m, "}");
    }
    sg_buf_puts(m, "], \"convolutions\": [");
    for (uint32_t i = 0; i < info->taps_n; i++)
        sg_buf_printf(m, "%s{\"taps\": %u, \"old\": %u, \"recent\": %u}", i ? ", " : "", info->taps[i], info->old[i],
                      info->recent[i]);
    sg_buf_puts(m, "], \"ropes\": [");
    for (uint32_t i = 0; i < info->ropes_n; i++) {
        if (info->rope[i] == UINT32_MAX) continue;
        const struct sg_rope_table *t = &e->g->ropes[i];
        sg_buf_printf(m, "%s{\"pairs\": %u, \"at\": %u, \"scale\": %.9g, \"inverse\": [", before, t->pairs, info->rope[i],
                      (double)t->mscale);
        for (uint32_t k = 0; k < t->pairs; k++) sg_buf_printf(m, "%s%.9g", k ? ", " : "", (double)t->inverse[k]);
        sg_buf_puts(m, "]}");
        before = ", ";
    }
    sg_buf_puts(m, "]}");
}

/* Values of part i, or those that the head reads and the meaning of its result. */
static void put_contents(struct sg_buf *m, const struct sg_ane_emit *e, uint32_t i)
{
    const struct sg_ane_part *part = &e->cut.parts[i < e->cut.parts_n ? i : i - 1];
    if (i < e->cut.parts_n) {
        put_values(m, "x", e, part->in, part->in_n);
        put_values(m, "out", e, part->out, part->out_n);
        return;
    }
    put_values(m, "x", e, part->out, part->out_n);
    sg_buf_printf(m, ",\n   \"result\": [\"slice\", \"index\", \"logit\"], \"slice\": %d", SG_ANE_HEAD_SLICE);
}

/* Operations without constants and views; those that only move numbers; transposes among them. */
static void put_cost(struct sg_buf *m, const struct sg_mil_function *f)
{
    static const struct sg_ane_profile none = {.row_bytes = 1, .surface_bytes = 1}; /* for sizes of surfaces, not used here */
    struct sg_mil_cost c;
    sg_mil_cost_of(&c, f, &none);
    sg_buf_printf(m, ", \"ops\": %llu, \"layout_ops\": %llu, \"transposes\": %llu", (unsigned long long)c.ops,
                  (unsigned long long)c.layout_ops, (unsigned long long)c.transposes);
}

/* Writes text and blob file of program i and appends its entry to the manifest. */
static segue_status write_part(struct sg_ane_emit *e, uint32_t i, const char *folder, struct sg_buf *manifest,
                               segue_error *err)
{
    struct sg_ane_blobs blobs;
    struct sg_mil_program *mil;
    struct sg_buf text = {0};
    char name[32];
    /* Both results are freed below in every case. */
    snprintf(name, sizeof name, "p%02u.mil", i);
    segue_status status = sg_ane_emit_part(e, i, &mil, &blobs, err);
    if (status == SEGUE_OK) status = sg_mil_print(mil, SG_MIL_VERBOSE, &text, err);
    if (status == SEGUE_OK) status = sg_file_write_in(folder, name, text.data, text.len, err);
    if (status == SEGUE_OK && blobs.file.len)
        status = sg_file_write_in(folder, blobs.path, blobs.file.data, blobs.file.len, err);
    if (status == SEGUE_OK) {
        const struct sg_mil_function *f = &mil->functions[0];
        sg_buf_printf(manifest, "%s\n  {\"file\": \"%s\"", i && i < e->cut.parts_n ? "," : "", name);
        if (i < e->cut.parts_n) /* inclusive */
            sg_buf_printf(manifest, ", \"layers\": [%u, %u]", e->cut.parts[i].layer_from, e->cut.parts[i].layer_to - 1);
        put_cost(manifest, f);
        put_ports(manifest, "inputs", f, NULL, f->params_n);
        put_ports(manifest, "outputs", f, f->returns, f->returns_n);
        put_contents(manifest, e, i);
        put_tensors(manifest, e->g, &blobs);
        sg_buf_puts(manifest, "}");
    }
    sg_mil_program_free(mil);
    sg_ane_blobs_free(&blobs);
    sg_buf_free(&text);
    return status;
}

/* The manifest is written last, so that a folder with one is complete. */
static segue_status write_all(struct sg_ane_emit *e, const char *folder, struct sg_buf *m, segue_error *err)
{
    const struct sg_graph *g = e->g;
    sg_buf_printf(m, "{\"rows\": %u, \"columns\": %u, \"keys\": %u, \"info\": ", e->shape.rows, e->shape.columns,
                  e->shape.keys);
    put_info(m, e);
    sg_buf_puts(m, ", \"programs\": [");
    for (uint32_t i = 0; i < e->cut.parts_n; i++) SG_TRY(write_part(e, i, folder, m, err));
    sg_buf_puts(m, "\n ]");
    if (e->head.linear) {
        sg_buf_puts(m, ", \"head\":");
        SG_TRY(write_part(e, e->cut.parts_n, folder, m, err));
    }
    /* Operations that the programs do not contain, with the reason, before and after them. */
    sg_buf_puts(m, ", \"helper\": [");
    const char *before = "";
    for (uint32_t i = 0; i < e->cut.before_n + e->cut.behind_n; i++) {
        const struct sg_op *op = &g->ops[i < e->cut.before_n ? e->cut.before[i] : e->cut.behind[i - e->cut.before_n]];
        if (sg_ane_emit_has(e, op)) continue;
        sg_buf_printf(m, "%s\n  {\"op\": \"%s\", \"layer\": %d, \"reason\": \"%s\"}", before, sg_op_name(op->code), op->layer,
                      sg_ane_helper_reason(g, op));
        before = ",";
    }
    sg_buf_puts(m, "]}\n");
    /* Failed appends are remembered by the buffer and tested once. */
    if (m->failed) return sg_no_memory("manifest", m->len, err);
    return sg_file_write_in(folder, "manifest.json", m->data, m->len, err);
}

/* Creating the folder of the weights also creates its parents. */
segue_status sg_ane_emit_folder(struct sg_ane_emit *e, const char *folder, segue_error *err)
{
    char weights[1024];
    struct sg_buf manifest = {0};
    if ((size_t)snprintf(weights, sizeof weights, "%s/weights", folder) >= sizeof weights)
        return sg_fail(err, SEGUE_EARG, "emit: %.60s..: the path is too long; give a shorter one", folder);
    SG_TRY(sg_make_folders(weights, err));
    segue_status status = write_all(e, folder, &manifest, err);
    sg_buf_free(&manifest);
    return status;
}

/* JSON object of the time that a dispatch takes by the figures of each chip, in microseconds. */
static void put_simulated(struct sg_buf *b, const struct sg_mil_function *f)
{
    static const char *const chips[] = {"m1", "m2", "m4", "m5"};
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        struct sg_ane_profile profile;
        struct sg_mil_cost c;
        if (sg_ane_profile_named(&profile, chips[i], NULL)) continue;
        sg_mil_cost_of(&c, f, &profile);
        sg_buf_printf(b, "%s\"%s\": %.6g", i ? ", " : "{", chips[i], sg_mil_expected_us(&c, &profile));
    }
    sg_buf_puts(b, "}");
}

enum { NOTES = 3 };
/* A package has no manifest, so the model says what its ports hold. The head reads what leaves the last part. */
static segue_status write_package(struct sg_ane_emit *e, uint32_t i, const struct sg_mil_program *mil,
                                  const struct sg_ane_blobs *blobs, const char *path, segue_error *err)
{
    static const char *const keys[NOTES] = {"segue.x", "segue.simulated_us", "segue.out"};
    const struct sg_ane_part *part = &e->cut.parts[i < e->cut.parts_n ? i : i - 1];
    struct sg_buf texts[NOTES] = {0};
    struct sg_mlmodel_note notes[NOTES];
    uint32_t n = i < e->cut.parts_n ? NOTES : NOTES - 1;
    segue_status status = SEGUE_OK;
    if (n == NOTES) put_divisors(&texts[0], e, part->in, part->in_n);
    put_divisors(&texts[n == NOTES ? 2 : 0], e, part->out, part->out_n);
    put_simulated(&texts[1], &mil->functions[0]);
    for (uint32_t k = 0; k < n; k++) {
        if (texts[k].failed) status = sg_no_memory("notes of a package", texts[k].len, err);
        notes[k] = (struct sg_mlmodel_note){keys[k], texts[k].data};
    }
    /* A part without weights has an empty blob file, which is not written. */
    struct sg_ane_file file = {blobs->path, (const uint8_t *)blobs->file.data, blobs->file.len};
    if (status == SEGUE_OK) status = sg_mlpackage_write(mil, &file, file.bytes != 0, notes, n, path, err);
    for (uint32_t k = 0; k < NOTES; k++) sg_buf_free(&texts[k]);
    return status;
}

/* Writes part i as a package. */
static segue_status package(struct sg_ane_emit *e, uint32_t i, const char *folder, segue_error *err)
{
    struct sg_ane_blobs blobs;
    struct sg_mil_program *mil;
    char name[32];
    snprintf(name, sizeof name, "p%02u.mlpackage", i);
    char *path = sg_path_join(folder, sg_ane_emit_count(e) > 1 ? name : "");
    segue_status status = sg_ane_emit_part(e, i, &mil, &blobs, err);
    if (status == SEGUE_OK && !path) status = sg_no_memory("a path", 0, err);
    if (status == SEGUE_OK) status = write_package(e, i, mil, &blobs, path, err);
    sg_mil_program_free(mil);
    sg_ane_blobs_free(&blobs);
    sg_free(path);
    return status;
}

/* One package at a time, so that only the weights of one part are in memory. */
segue_status sg_ane_emit_packages(struct sg_ane_emit *e, const char *folder, segue_error *err)
{
    for (uint32_t i = 0; i < sg_ane_emit_count(e); i++) SG_TRY(package(e, i, folder, err));
    return SEGUE_OK;
}
