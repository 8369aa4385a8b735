/* allocator.c: segue_allocator_set: the library allocates and frees through the caller's functions only, a failed allocation
 * gives EMEMORY and leaks nothing, and a second call is refused. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "tiny.h"

enum { ALIGN = 64, HEADER = 64, MAGIC = 0x5e61e };

/* Counters of the test's allocator. fail_at: number of the allocation that fails; 0: none. */
static atomic_long live, total, fail_at;

static void *counted_alloc(void *context, size_t bytes, size_t alignment)
{
    long n = atomic_fetch_add(&total, 1) + 1;
    void *p = NULL;
    assert_ptr_equal(context, &live);
    assert_true(alignment <= ALIGN);
    if (n == atomic_load(&fail_at) || posix_memalign(&p, ALIGN, bytes + HEADER)) return NULL;
    *(int *)p = MAGIC;
    memset((char *)p + HEADER, 0xa5, bytes); /* the library must not rely on zeroed memory */
    atomic_fetch_add(&live, 1);
    return (char *)p + HEADER;
}

static void counted_free(void *context, void *memory)
{
    assert_ptr_equal(context, &live);
    assert_non_null(memory);
    void *p = (char *)memory - HEADER;
    assert_int_equal(*(int *)p, MAGIC); /* a pointer that counted_alloc has returned, freed once */
    *(int *)p = 0;
    atomic_fetch_sub(&live, 1);
    free(p);
}

/* Opens everything and generates three tokens. */
static segue_status answer(const char *folder, int32_t ids[3], segue_error *err)
{
    segue_model *model = NULL;
    segue_unit *unit = NULL;
    segue_engine *engine = NULL;
    segue_session *session = NULL;
    static const int32_t prompt[] = {5, 9, 33, 17, 60};
    segue_status s = segue_model_open(&model, folder, NULL, err);
    if (s == SEGUE_OK) s = segue_unit_open(&unit, "ref", err);
    if (s == SEGUE_OK) s = segue_engine_open(&engine, model, &unit, 1, NULL, err);
    if (s == SEGUE_OK) s = segue_session_open(&session, engine, NULL, err);
    if (s == SEGUE_OK) s = segue_session_append(session, prompt, 5, err);
    for (int i = 0; i < 3 && s == SEGUE_OK; i++) {
        s = segue_session_next(session, &ids[i], err);
        if (s == SEGUE_END) s = SEGUE_OK;
    }
    segue_session_close(session);
    segue_engine_close(engine);
    segue_unit_close(unit);
    segue_model_close(model);
    return s;
}

static void the_callers_functions_are_used(void **state)
{
    (void)state;
    char folder[512];
    segue_error err;
    int32_t want[3], ids[3];
    segue_allocator a = SEGUE_INIT(segue_allocator);
    assert_int_equal(segue_allocator_set(&a, &err), SEGUE_EARG); /* functions are missing */
    a.context = &live;
    a.alloc = counted_alloc;
    a.free = counted_free;
    assert_int_equal(segue_allocator_set(&a, &err), SEGUE_OK);
    assert_int_equal(segue_allocator_set(&a, &err), SEGUE_EARG); /* set already */
    tiny_folder(folder, sizeof folder, "allocator", tiny_models[0].name);
    assert_true(tiny_write(&tiny_models[0], folder, 7));
    long before = atomic_load(&total);
    assert_int_equal(answer(folder, want, &err), SEGUE_OK);
    long used = atomic_load(&total) - before;
    assert_true(used > 50);
    assert_int_equal(atomic_load(&live), 0);
    /* Every seventh allocation of the same work fails once. */
    for (long n = 1; n < used; n += 7) {
        atomic_store(&fail_at, atomic_load(&total) + n);
        segue_status s = answer(folder, ids, &err);
        atomic_store(&fail_at, 0);
        if (s == SEGUE_OK) assert_memory_equal(ids, want, sizeof ids);
        else assert_int_equal(s, SEGUE_EMEMORY);
        assert_int_equal(atomic_load(&live), 0);
    }
    tiny_remove("allocator");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_callers_functions_are_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
