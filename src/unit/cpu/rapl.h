/* rapl.h: the energy counters of x86-64 processors (RAPL), as Linux shows them in the powercap tree: ROOT/intel-rapl:N is
 * package N, also of AMD processors, and ROOT/intel-rapl:N:M a part of it; each has name, energy_uj and max_energy_range_uj
 * (Documentation/power/powercap/powercap.rst of the Linux kernel).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_RAPL_H
#define SG_UNIT_CPU_RAPL_H

#include <pthread.h>

#include "base/err.h"

enum { SG_RAPL_DOMAINS = 24, SG_RAPL_PACKAGES = 8, SG_RAPL_PARTS = 8 };

/* One counter. */
struct sg_rapl_domain {
    char folder[24];     /* below the root */
    char name[24];       /* "package-0", "core", "dram", "psys" */
    int package;         /* 1: a package; 0: a rail */
    uint32_t number;     /* of the package */
    uint64_t range, last; /* microjoules: where the counter wraps around; the last reading */
    double used;         /* microjoules since the first reading */
};
/* All counters of the machine. Zeroed with root and lock set; found at the first reading. */
struct sg_rapl {
    pthread_mutex_t lock;
    char root[64];
    uint32_t domains_n;
    struct sg_rapl_domain domains[SG_RAPL_DOMAINS];
};

/* Joules of all packages since the first reading, and of each rail. EUNSUPPORTED: there are none, or they may not be read.
 * EUNIT: a counter has no number. */
segue_status sg_rapl_read(struct sg_rapl *r, segue_energy *out, segue_error *err);

#endif
