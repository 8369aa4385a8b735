/* plan_cores.c: what part of a processor a process may use, from made-up trees of control groups, and what others took.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/cores.h"

static char top[] = "/tmp/segue-cores-XXXXXX", list[64];

static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s/%s", top, path);
    for (char *s = full + strlen(top) + 1; (s = strchr(s, '/')); s++) {
        *s = 0;
        mkdir(full, 0755);
        *s = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(top)) return -1;
    snprintf(list, sizeof list, "%s/list", top);
    return 0;
}

static int teardown(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", top);
    return system(command);
}

static double quota(const char *groups)
{
    put("list", groups);
    return cores_quota(list, top);
}

static void no_limit(void **state)
{
    (void)state;
    assert_true(!(cores_quota("/nowhere/list", top) > 0));
    assert_true(!(quota("") > 0));
    assert_true(!(quota("nonsense\n:\n::\n0::/a/b\n") > 0));
    put("a/b/cpu.max", "max 100000\n");
    assert_true(!(quota("0::/a/b\n") > 0));
    put("cpu/cpu.cfs_quota_us", "-1\n");
    put("cpu/cpu.cfs_period_us", "100000\n");
    assert_true(!(quota("1:cpu:/\n0::/a/b\n") > 0));
    put("c/cpu.max", "0 0\n");
    assert_true(!(quota("0::/c\n") > 0));
}

/* Version 2: the least of the group and those above it. */
static void version_2(void **state)
{
    (void)state;
    put("d/cpu.max", "150000 100000\n");
    put("d/e/cpu.max", "400000 100000\n");
    assert_true(fabs(quota("0::/d/e\n") - 1.5) < 1e-9);
    assert_true(fabs(quota("0::/d\n") - 1.5) < 1e-9);
}

/* Version 1: `cpu` among the controllers, and a path that does not exist here, as in a container without a name space. */
static void version_1(void **state)
{
    (void)state;
    put("cpu/cpu.cfs_quota_us", "250000\n");
    assert_true(fabs(quota("4:cpu,cpuacct:/docker/123\n") - 2.5) < 1e-9);
    assert_true(fabs(quota("4:cpuacct,cpu:/\n") - 2.5) < 1e-9);
    assert_true(!(quota("4:cpuacct:/\n3:cpuset:/\n") > 0));
}

static void others(void **state)
{
    double allowed = (double)cores_allowed(), online = (double)sysconf(_SC_NPROCESSORS_ONLN);
    (void)state;
    assert_true(allowed >= 1);
    assert_true(!(cores_taken(10, 8, 8) > 0) && !(cores_taken(10, -1, 3) > 0) && !(cores_taken(0, 5, 1) > 0));
    /* Processors outside of the mask may be busy without taking anything. */
    assert_true(!(cores_taken(10, 10 * (online - allowed) + 5, 5) > 0));
    assert_true(fabs(cores_taken(10, 10 * (online - allowed) + 5 + 5 * allowed, 5) - .5) < 1e-9);
    assert_true(cores_own_s() >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_limit), cmocka_unit_test(version_2), cmocka_unit_test(version_1),
                                       cmocka_unit_test(others)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
