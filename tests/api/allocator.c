/* allocator.c: segue_allocator_set: the library allocates and frees through the caller's functions only, a failed allocation
 * gives EMEMORY and leaks nothing, and a second call is refused; the limit of the prefix store holds for all memory that its
 * states keep. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "tiny.h"

enum { ALIGN = 64, HEADER = 64, MAGIC = 0x5e61e };

/* Counters of the test's allocator. fail_at: number of the allocation that fails; 0: none. */
static atomic_long live, total, fail_at, live_bytes;

static void *counted_alloc(void *context, size_t bytes, size_t alignment)
{
    long n = atomic_fetch_add(&total, 1) + 1;
    void *p = NULL;
    assert_ptr_equal(context, &live);
    assert_true(alignment <= ALIGN);
    if (n == atomic_load(&fail_at) || posix_memalign(&p, ALIGN, bytes + HEADER)) return NULL;
    *(int *)p = MAGIC;
    ((size_t *)p)[1] = bytes;
    memset((char *)p + HEADER, 0xa5, bytes); /* the library must not rely on zeroed memory */
    atomic_fetch_add(&live, 1);
    atomic_fetch_add(&live_bytes, (long)bytes);
    return (char *)p + HEADER;
}

static void counted_free(void *context, void *memory)
{
    assert_ptr_equal(context, &live);
    assert_non_null(memory);
    void *p = (char *)memory - HEADER;
    assert_int_equal(*(int *)p, MAGIC); /* a pointer that counted_alloc has returned, freed once */
    *(int *)p = 0;
    atomic_fetch_sub(&live_bytes, (long)((size_t *)p)[1]);
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
        if (s == SEGUE_OK)
            assert_memory_equal(ids, want, sizeof ids);
        else
            assert_int_equal(s, SEGUE_EMEMORY);
        assert_int_equal(atomic_load(&live), 0);
    }
    tiny_remove("allocator");
}

/* Short texts in a context with room for much more: only what is in use may stay. */
static void stored_states_keep_what_they_count(void **state)
{
    enum { LIMIT = 1 << 18, TEXTS = 400, TOKENS = 24 };
    char folder[512];
    segue_error err;
    segue_model *model = NULL;
    segue_unit *unit = NULL;
    segue_engine *engine = NULL;
    (void)state;
    tiny_folder(folder, sizeof folder, "allocator_store", tiny_models[0].name);
    assert_true(tiny_write(&tiny_models[0], folder, 7));
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.store = "";
    o.store_memory_bytes = LIMIT;
    assert_int_equal(segue_model_open(&model, folder, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_unit_open(&unit, "cpu:threads=1", &err), SEGUE_OK);
    assert_int_equal(segue_engine_open(&engine, model, &unit, 1, &o, &err), SEGUE_OK);
    long first = 0, early = 0;
    for (int i = 0; i < TEXTS; i++) {
        segue_session *session = NULL;
        int32_t tokens[TOKENS];
        for (int k = 0; k < TOKENS; k++) tokens[k] = 3 + (i >> k % 3 * 3 & 7) + 8 * (k % 3);
        assert_int_equal(segue_session_open(&session, engine, NULL, &err), SEGUE_OK);
        assert_int_equal(segue_session_append(session, tokens, TOKENS, &err), SEGUE_OK);
        assert_int_equal(segue_session_prefill(session, 0, NULL, &err), SEGUE_OK);
        segue_session_close(session);
        if (!i) first = atomic_load(&live_bytes);
        if (i == TEXTS / 4) early = atomic_load(&live_bytes);
    }
    long last = atomic_load(&live_bytes);
    if (last - first > 2 * LIMIT) print_error("%ld bytes after one text, %ld after all\n", first, last);
    assert_true(last > first + LIMIT / 2); /* the store is in use */
    assert_true(last - first <= 2 * LIMIT);
    assert_true(last <= early + early / 20); /* and full */
    segue_engine_close(engine);
    segue_unit_close(unit);
    segue_model_close(model);
    assert_int_equal(atomic_load(&live), 0);
    tiny_remove("allocator_store");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_callers_functions_are_used),
                                       cmocka_unit_test(stored_states_keep_what_they_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
