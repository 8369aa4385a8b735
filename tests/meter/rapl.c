/* rapl.c: the energy counters of the unit cpu over a powercap tree that the test writes: known joules, wrap-around, rails apart,
 * and trees that are damaged.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <math.h>

#include "segue.h"

static char root[32], spec[64];

static void put(const char *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void domain(const char *folder, const char *name, const char *range, const char *energy)
{
    put(folder, "name", name);
    put(folder, "max_energy_range_uj", range);
    put(folder, "energy_uj", energy);
}

/* Two packages with a core part, memory modules, and the platform. */
static int make_tree(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/segue_rapl_XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(spec, sizeof spec, "cpu:threads=1,powercap=%s", root);
    domain("intel-rapl:0", "package-0\n", "1000000\n", "400000\n");
    domain("intel-rapl:0:0", "core\n", "1000000\n", "0\n");
    domain("intel-rapl:0:1", "dram\n", "1000000\n", "5\n");
    domain("intel-rapl:1", "package-1\n", "262143328850\n", "7\n");
    domain("intel-rapl:2", "psys\n", "262143328850\n", "1000000\n");
    return 0;
}

static int remove_tree(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static double rail(const segue_energy *e, const char *name)
{
    for (size_t i = 0; i < e->rails_n; i++)
        if (!strcmp(e->rails[i].name, name)) return e->rails[i].joules;
    return NAN;
}

static int near_to(double a, double b) { return fabs(a - b) < 1e-9; }

static void joules_are_counted_over_the_wrap(void **state)
{
    (void)state;
    segue_unit *u;
    segue_error err;
    segue_energy e = SEGUE_INIT(segue_energy);
    assert_int_equal(segue_unit_open(&u, spec, &err), SEGUE_OK);
    assert_int_equal(segue_unit_energy(u, &e, &err), SEGUE_OK);
    assert_true(e.joules == 0 && e.rails_n == 3);
    assert_string_equal(e.meter, "rapl");
    put("intel-rapl:0", "energy_uj", "900000\n"); /* 0.5 J */
    put("intel-rapl:0:0", "energy_uj", "300000\n");
    put("intel-rapl:1", "energy_uj", "2000007\n"); /* 2 J */
    put("intel-rapl:2", "energy_uj", "4500000\n");
    assert_int_equal(segue_unit_energy(u, &e, &err), SEGUE_OK);
    assert_true(near_to(e.joules, 2.5) && near_to(rail(&e, "core 0"), 0.3) && near_to(rail(&e, "dram 0"), 0));
    assert_true(near_to(rail(&e, "psys"), 3.5)); /* contains the packages, and is not added to them */
    put("intel-rapl:0", "energy_uj", "100000\n"); /* 0.1 J up to 1 J, where it wraps, and 0.1 J */
    put("intel-rapl:0:1", "energy_uj", "4\n");    /* all but 1 uJ of a round */
    assert_int_equal(segue_unit_energy(u, &e, &err), SEGUE_OK);
    assert_true(near_to(e.joules, 2.7) && near_to(rail(&e, "dram 0"), 0.999999));
    segue_unit_close(u);
}

/* Every damage is refused by name, and a later reading of a good tree works again. */
static void damaged_trees_are_refused(void **state)
{
    (void)state;
    const struct { const char *file, *text, *good, *word; segue_status status; } cases[] = {
        {"energy_uj", "lots\n", "1\n", "line 1", SEGUE_EUNIT},
        {"energy_uj", "-5\n", "1\n", "energy_uj", SEGUE_EUNIT},
        {"energy_uj", "99999999999999999999999\n", "1\n", "energy_uj", SEGUE_EUNIT},
        {"energy_uj", "1000001\n", "1\n", "above", SEGUE_EUNIT},
        {"energy_uj", "", "1\n", "empty", SEGUE_EUNSUPPORTED},
        {"max_energy_range_uj", "x\n", "1000000\n", "max_energy_range_uj", SEGUE_EUNIT}};
    segue_unit *u;
    segue_error err;
    segue_energy e = SEGUE_INIT(segue_energy);
    assert_int_equal(segue_unit_open(&u, spec, &err), SEGUE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("intel-rapl:0", cases[i].file, cases[i].text);
        assert_int_equal(segue_unit_energy(u, &e, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].word));
        assert_non_null(strstr(err.text, root));
        put("intel-rapl:0", cases[i].file, cases[i].good);
        assert_int_equal(segue_unit_energy(u, &e, &err), SEGUE_OK);
        segue_unit_close(u);
        assert_int_equal(segue_unit_open(&u, spec, &err), SEGUE_OK);
    }
    segue_unit_close(u);
    assert_int_equal(segue_unit_open(&u, "cpu:threads=1,powercap=/nonexistent", &err), SEGUE_OK);
    assert_int_equal(segue_unit_energy(u, &e, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "no RAPL"));
    segue_unit_close(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(joules_are_counted_over_the_wrap, make_tree, remove_tree),
                                       cmocka_unit_test_setup_teardown(damaged_trees_are_refused, make_tree, remove_tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
