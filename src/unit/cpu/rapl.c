/* rapl.c: see rapl.h. intel-rapl-mmio repeats the packages and is not read.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/rapl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads ROOT/FOLDER/NAME as one line; 0: it cannot be read, see errno. */
static int read_line(const struct sg_rapl *r, const char *folder, const char *name, char line[64])
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s/%s", r->root, folder, name);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    int ok = fgets(line, 64, f) != NULL;
    fclose(f);
    if (!ok) return 0;
    line[strcspn(line, "\n")] = 0;
    return 1;
}

/* A file that holds one number of microjoules. EUNSUPPORTED: it cannot be read. EUNIT: it is not a number. */
static segue_status read_number(const struct sg_rapl *r, const char *folder, const char *name, uint64_t *out, segue_error *err)
{
    char line[64], *end;
    errno = 0;
    if (!read_line(r, folder, name, line))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "energy not read: cpu: %s/%s/%s: %s; run as root or allow reading", r->root,
                       folder, name, errno ? strerror(errno) : "empty");
    errno = 0;
    *out = strtoull(line, &end, 10);
    if (line[0] < '0' || line[0] > '9' || *end || errno)
        return sg_fail(err, SEGUE_EUNIT, "energy not read: cpu: %s/%s/%s: line 1: '%.20s' is not a number of microjoules; use "
                       "another meter", r->root, folder, name, line);
    return SEGUE_OK;
}

/* Adds a domain if its folder exists. *found: 1 if it does. */
static segue_status add_domain(struct sg_rapl *r, const char *folder, uint32_t number, int part, int *found, segue_error *err)
{
    struct sg_rapl_domain *d = &r->domains[r->domains_n];
    *found = r->domains_n < SG_RAPL_DOMAINS && read_line(r, folder, "name", (char[64]){0});
    if (!*found) return SEGUE_OK;
    char name[64];
    if (!read_line(r, folder, "name", name)) return SEGUE_OK;
    *d = (struct sg_rapl_domain){.number = number, .package = !part && !strncmp(name, "package", 7)};
    snprintf(d->folder, sizeof d->folder, "%s", folder);
    snprintf(d->name, sizeof d->name, "%.23s", name);
    SG_TRY(read_number(r, folder, "max_energy_range_uj", &d->range, err));
    SG_TRY(read_number(r, folder, "energy_uj", &d->last, err));
    if (d->last > d->range)
        return sg_fail(err, SEGUE_EUNIT, "energy not read: cpu: %s/%s: energy_uj is above max_energy_range_uj; use another meter",
                       r->root, folder);
    r->domains_n++;
    return SEGUE_OK;
}

/* Finds all domains. The folders of parts may lie in that of their package or beside it. */
static segue_status find_domains(struct sg_rapl *r, segue_error *err)
{
    int found = 1;
    for (uint32_t n = 0; n < SG_RAPL_PACKAGES && found; n++) {
        char folder[24];
        snprintf(folder, sizeof folder, "intel-rapl:%u", n);
        SG_TRY(add_domain(r, folder, n, 0, &found, err));
        int more = found;
        for (uint32_t m = 0; m < SG_RAPL_PARTS && more; m++) {
            snprintf(folder, sizeof folder, "intel-rapl:%u:%u", n, m);
            SG_TRY(add_domain(r, folder, n, 1, &more, err));
        }
    }
    if (r->domains_n) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "energy not read: cpu: %s: no RAPL counters here; use another meter", r->root);
}

segue_status sg_rapl_read(struct sg_rapl *r, segue_energy *out, segue_error *err)
{
    segue_status st = SEGUE_OK;
    pthread_mutex_lock(&r->lock);
    if (!r->domains_n) st = find_domains(r, err);
    if (st) r->domains_n = 0; /* the next reading searches again */
    for (uint32_t i = 0; i < r->domains_n && !st; i++) {
        struct sg_rapl_domain *d = &r->domains[i];
        uint64_t now = 0;
        st = read_number(r, d->folder, "energy_uj", &now, err);
        if (st) break;
        d->used += (double)(now >= d->last ? now - d->last : now + (d->range - d->last));
        d->last = now;
        if (d->package)
            out->joules += d->used * 1e-6;
        else if (out->rails_n < SEGUE_RAILS) {
            struct segue_rail *rail = &out->rails[out->rails_n++];
            snprintf(rail->name, sizeof rail->name, strcmp(d->name, "psys") ? "%.12s %u" : "%.12s", d->name, d->number);
            rail->joules = d->used * 1e-6;
        }
    }
    pthread_mutex_unlock(&r->lock);
    snprintf(out->meter, sizeof out->meter, "rapl");
    return st;
}
