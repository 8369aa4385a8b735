/* apple_call.c: calls to the service of the engine: each runs on the device's worker thread within a
 * time limit, and an NSError becomes EUNIT with advice. See apple.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ane/apple/appleparts.h"

/* The last known text that occurs in the description or the domain of the NSError decides which advice
 * is given. A failure without an error object is usual when the compile budget of the process is used
 * up. */
segue_status sg_apple_failed(const struct sg_apple_api *api, const char *what, const char *name, void *error, segue_error *err)
{
    static const struct {
        const char *words, *advice;
    } known[] = {{"InvalidMILProgram", "the program breaks a rule; run segue mil check"},
                 {"ANECCompile", "the compiler refuses it; run segue mil check, or try again after 15 s"},
                 {"status=0x1d", "a surface has the wrong size, count or order"},
                 {"status=0x2", "a symbol index is wrong for this procedure"},
                 {"must re-compile", "too many programs are loaded; unload some"},
                 {"0xe00002e2", "the service loads only what it compiled itself; purge and compile again"},
                 {"0xe00002c7", "the system requires an entitlement; use another version of it"}};
    const char *text = error ? ns_text(api, SEND0(msg_id, error, "localizedDescription")) : NULL;
    const char *domain = error ? ns_text(api, SEND0(msg_id, error, "domain")) : NULL;
    const char *advice = error ? "see docs/ANE.md"
                               : "no reason was given; the compile budget may be used up, restart the process";
    for (size_t i = 0; text && i < sizeof known / sizeof *known; i++)
        if (strstr(text, known[i].words) || (domain && strstr(domain, known[i].words)))
            advice = known[i].advice;
    return sg_fail(err, SEGUE_EUNIT, "neural engine: %s: %.60s: %.200s; %s", what, name,
                   text ? text : "refused", advice);
}

/* Runs on the worker thread, inside a separate autorelease pool. */
static void run_job(void *arg)
{
    struct sg_apple_job *j = arg;
    void *pool = j->d->api->pool_push();
    j->status = j->work(j);
    j->d->api->pool_pop(pool);
}

/* A job that timed out is not freed: the call may still return and write to it. */
segue_status sg_apple_call(const struct sg_apple_job *given, uint64_t limit_ns, const char *what, segue_error *err)
{
    struct sg_ane_device *d = given->d;
    struct sg_apple_job *j = sg_alloc(sizeof *j);
    if (!j) return sg_no_memory("a request to the engine", sizeof *j, err);
    *j = *given;
    if (d->lost || !sg_timed_call_run(d->worker, run_job, j, limit_ns)) {
        if (d->lost) sg_free(j);
        d->lost = 1;
        return sg_fail(
            err, SEGUE_ELOST,
            "neural engine: %s: the service did not answer in time; the unit is lost, use another or restart",
            what);
    }
    segue_status status = j->status;
    if (status != SEGUE_OK && err) *err = j->err;
    sg_free(j);
    return status;
}
