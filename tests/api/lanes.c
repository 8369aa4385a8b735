/* lanes.c: who enters a unit of two lanes: one lane stays free of long runs, and short ones pass by those that wait.
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/placement/units.h"
#include "segue.h"

enum { SHORT = 16, LONG = 17 };

static segue_unit *two_lanes(void)
{
    segue_unit *u = NULL;
    segue_error err;
    assert_int_equal(segue_unit_open(&u, "cpu:threads=1", &err), SEGUE_OK);
    u->desc.lanes = 2;
    u->desc.long_rows = SHORT;
    return u;
}

static void one_lane_stays_free(void **state)
{
    atomic_int canceled = 1;
    segue_unit *u = two_lanes();
    segue_error err;
    (void)state;
    assert_int_equal(sg_unit_enter_run(u, LONG, NULL, &err), SEGUE_OK);
    assert_int_equal(sg_unit_enter_run(u, LONG, &canceled, &err), SEGUE_ECANCELED);
    assert_int_equal(sg_unit_enter_run(u, SHORT, NULL, &err), SEGUE_OK);
    assert_int_equal(sg_unit_try_enter(u), 0);
    assert_int_equal(sg_unit_enter(u, &canceled, &err), SEGUE_ECANCELED);
    sg_unit_leave_run(u, SHORT);
    assert_int_equal(sg_unit_try_enter(u), 1);
    sg_unit_leave(u);
    sg_unit_leave_run(u, LONG);
    assert_int_equal(u->running + u->long_running, 0);
    segue_unit_close(u);
}

struct waiting {
    segue_unit *unit;
    atomic_int inside;
};

static void *enter_long(void *arg)
{
    struct waiting *w = arg;
    if (sg_unit_enter_run(w->unit, LONG, NULL, NULL) != SEGUE_OK) return NULL;
    atomic_store(&w->inside, 1);
    sg_unit_leave_run(w->unit, LONG);
    return w;
}

static void short_runs_pass(void **state)
{
    struct waiting w = {.unit = two_lanes()};
    pthread_t thread;
    void *done = NULL;
    segue_error err;
    (void)state;
    assert_int_equal(sg_unit_enter_run(w.unit, LONG, NULL, &err), SEGUE_OK);
    assert_int_equal(pthread_create(&thread, NULL, enter_long, &w), 0);
    for (int queued = 0; !queued;) { /* until it waits */
        pthread_mutex_lock(&w.unit->lock);
        queued = w.unit->first != NULL;
        pthread_mutex_unlock(&w.unit->lock);
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(sg_unit_enter_run(w.unit, SHORT, NULL, &err), SEGUE_OK);
        sg_unit_leave_run(w.unit, SHORT);
        assert_int_equal(sg_unit_try_enter(w.unit), 1);
        sg_unit_leave(w.unit);
    }
    assert_int_equal(atomic_load(&w.inside), 0);
    sg_unit_leave_run(w.unit, LONG);
    pthread_join(thread, &done);
    assert_ptr_equal(done, &w);
    assert_int_equal(w.unit->running + w.unit->long_running, 0);
    segue_unit_close(w.unit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_lane_stays_free), cmocka_unit_test(short_runs_pass)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
