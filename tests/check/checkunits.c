/* checkunits.c: the units that `check` compares.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "check.h"

enum { EXIT_USAGE = 2, EXIT_ABSENT = 3 };

static segue_status open_unit(struct check_unit *u, const char *spec, segue_error *err)
{
    SG_TRY(segue_unit_open(&u->handle, spec, err));
    u->unit = u->handle->unit;
    u->ops = sg_ops_of(u->unit);
    u->ops->describe(u->unit, &u->desc);
    snprintf(u->spec, sizeof u->spec, "%s", spec);
    return SEGUE_OK;
}

static int is_left_out(const struct check *c, const char *kind)
{
    for (uint32_t i = 0; i < c->without_n; i++)
        if (!strcmp(c->without[i], kind)) return 1;
    return 0;
}

/* Every unit that is present, and its other instruction sets where it has several. Absent ones are left out in
 * silence: the command `segue units` names them. */
static void open_all(struct check *c)
{
    static const char *const sets[] = {"",            ":isa=generic", ":isa=avx2",
                                       ":isa=avx512", ":isa=amx",     ":isa=neon"};
    segue_unit_info infos[CHECK_UNITS];
    size_t n = 0;
    char spec[128];
    memset(infos, 0, sizeof infos);
    for (size_t i = 0; i < CHECK_UNITS; i++) infos[i].size = sizeof infos[i];
    if (segue_unit_list(infos, CHECK_UNITS, &n, NULL) != SEGUE_OK) return;
    for (size_t i = 0; i < n && i < CHECK_UNITS; i++) {
        const struct check_unit *first = &c->units[c->units_n]; /* with the set that it chooses by itself */
        if (is_left_out(c, infos[i].kind)) continue;
        for (size_t k = 0; infos[i].present && k < sizeof sets / sizeof *sets && c->units_n < CHECK_UNITS;
             k++) {
            snprintf(spec, sizeof spec, "%.60s%s", k ? infos[i].kind : infos[i].spec, sets[k]);
            struct check_unit *u = &c->units[c->units_n];
            if (strlen(spec) >= sizeof u->spec || open_unit(u, spec, NULL) != SEGUE_OK) continue;
            if (u != first && !strcmp(u->desc.info.spec, first->desc.info.spec)) segue_unit_close(u->handle);
            else c->units_n++;
        }
    }
}

double check_half(const struct check_unit *u) { return u->desc.half == 2 ? 4 : u->desc.half ? 1 : 0; }

/* `ref` is always there, as the other side of every comparison. */
int check_open_units(struct check *c, const char *const *specs, uint32_t n)
{
    segue_error err;
    if (open_unit(&c->ref, "ref", &err) != SEGUE_OK) {
        fprintf(stderr, "check: %s\n", err.text);
        return EXIT_ABSENT;
    }
    for (uint32_t i = 0; i < n; i++) {
        segue_status status = open_unit(&c->units[c->units_n], specs[i], &err);
        if (status != SEGUE_OK) {
            fprintf(stderr, "check: %s\n", err.text);
            return status == SEGUE_EARG ? EXIT_USAGE : EXIT_ABSENT;
        }
        c->units_n++;
    }
    if (!n) open_all(c);
    return 0;
}

void check_close_units(struct check *c)
{
    for (uint32_t i = 0; i < c->units_n; i++) segue_unit_close(c->units[i].handle);
    segue_unit_close(c->ref.handle);
}
