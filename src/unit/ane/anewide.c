/* anewide.c: results beyond the range of fp16. The engine replaces them without an error, so what rounding lost is counted
 * after each dispatch (struct sg_ane_losses). More than the accepted error ends the run, or, with out_of_range=fp32, the
 * dispatch is computed again on the host: the software NPU runs the same programs without rounding their results. Weights,
 * states and values between programs stay fp16. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/npu/npu.h"

/* A device that does not count is checked at the outputs only (rows_from_fp16 in aneborder.c). */
segue_status ane_losses_check(struct sg_unit *u, uint64_t *overflows, uint64_t *underflows, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(u->device);
    struct sg_ane_losses l = {0};
    if (ops->losses) ops->losses(u->device, &l);
    *overflows += l.overflows;
    *underflows += l.underflows;
    if (u->losses == ANE_LOSSES_COUNT) return SEGUE_OK;
    if (l.overflows)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "run: ane: %s: %llu results exceed fp16; use out_of_range=fp32, range=weights, or another unit",
                       l.overflow_op, (unsigned long long)l.overflows);
    if (l.worst_error > SG_ANE_ERROR_MAX)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "run: ane: %s: its numbers are below the range of fp16, an error of %.2g %%; use out_of_range=fp32, or "
                       "another unit", l.worst_op, 100 * l.worst_error);
    return SEGUE_OK;
}

/* The program of a part on u->wide. The limits are those of `ieee`, because the text was checked for the engine before. */
static segue_status wide_program(struct sg_program *p, struct ane_set *set, uint32_t part, struct sg_ane_program **out,
                                 segue_error *err)
{
    struct sg_unit *u = p->base.unit;
    struct sg_npu_opts o = {.faithful = 1, .wide = 1, .threads = u->threads, .compiles = UINT32_MAX, .loads = UINT32_MAX};
    SG_TRY(sg_ane_profile_named(&o.profile, "ieee", err));
    if (!u->wide) SG_TRY(sg_npu_open(&u->wide, &o, err));
    if (!set->wide) set->wide = sg_alloc((p->cut[0].parts_n + 1) * sizeof *set->wide);
    if (!set->wide) return sg_no_memory("programs of ane", 0, err);
    if (!set->wide[part]) SG_TRY(ane_part_load(p, set, part, u->wide, &set->wide[part], err));
    *out = set->wide[part];
    return SEGUE_OK;
}

/* Bytes between rows of a port of the engine's program; the port of the same name on the host may have other padding. */
static uint64_t engine_row(const struct sg_ane_port *ports, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(ports[i].name, name)) return ports[i].row_bytes;
    return 0;
}

/* Copies the fp16 rows of a port between two surfaces. */
static segue_status copy_port(const struct sg_ane_port *port, struct sg_ane_surface *to, uint64_t to_row,
                              struct sg_ane_surface *from, uint64_t from_row, segue_error *err)
{
    void *out, *in;
    uint64_t width = port->type.rank ? 2ull * (uint64_t)port->type.dim[port->type.rank - 1] : 2;
    uint64_t rows = 2 * sg_mil_elements(&port->type) / width;
    SG_TRY(sg_ane_ops_of(from)->lock(from, 0, &in, NULL, err));
    segue_status status = sg_ane_ops_of(to)->lock(to, 1, &out, NULL, err);
    for (uint64_t r = 0; status == SEGUE_OK && r < rows; r++)
        memcpy((char *)out + r * to_row, (const char *)in + r * from_row, (size_t)width);
    if (status == SEGUE_OK) sg_ane_ops_of(to)->unlock(to);
    sg_ane_ops_of(from)->unlock(from);
    return status;
}

segue_status ane_wide_evaluate(struct sg_program *p, struct ane_set *set, uint32_t part,
                               struct sg_ane_surface *(*of)(void *context, enum sg_ane_role role, int is_output), void *context,
                               segue_error *err)
{
    const struct sg_ane_device_ops *engine = sg_ane_ops_of(p->base.unit->device), *ops;
    const struct sg_ane_port *there[2], *here[2];
    struct sg_ane_surface *surfaces[2][4] = {{NULL}};
    struct sg_ane_program *program = NULL;
    uint32_t there_n[2], n[2];
    SG_TRY(wide_program(p, set, part, &program, err));
    ops = sg_ane_ops_of(program);
    SG_TRY(engine->ports(set->programs[part], 0, &there[0], &there_n[0], &there[1], &there_n[1], err));
    SG_TRY(ops->ports(program, 0, &here[0], &n[0], &here[1], &n[1], err));
    segue_status status = SEGUE_OK;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < n[side] && i < 4 && status == SEGUE_OK; i++) {
            const struct sg_ane_port *port = &here[side][i];
            status = ops->surface_new(p->base.unit->wide, port->surface_bytes, &surfaces[side][i], err);
            if (status == SEGUE_OK && !side)
                status = copy_port(port, surfaces[0][i], port->row_bytes, of(context, sg_ane_role_of(port->name), 0),
                                   engine_row(there[0], there_n[0], port->name), err);
        }
    if (status == SEGUE_OK) status = ops->evaluate(program, 0, surfaces[0], surfaces[1], err);
    for (uint32_t i = 0; i < n[1] && i < 4 && status == SEGUE_OK; i++)
        status = copy_port(&here[1][i], of(context, sg_ane_role_of(here[1][i].name), 1),
                           engine_row(there[1], there_n[1], here[1][i].name), surfaces[1][i], here[1][i].row_bytes, err);
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < 4; i++)
            if (surfaces[side][i]) ops->surface_free(surfaces[side][i]);
    return status;
}
