/* proof.c: see proof.h. SPDX-License-Identifier: MIT */
#include "plan/proof.h"

#include <stdlib.h>
#include "term/out.h"

/* A figure so many times above or below the expected one, and outside of its interval, is no scatter of runs. */
#define FAR 2.0

static bool inside(const struct follow_proof *p) { return p->measured >= p->expected.low && p->measured <= p->expected.high; }

void proof_say(const struct follow *f, bool learns)
{
    struct out_text t = {0};
    size_t outside = 0;
    bool slow = false, fast = false;
    for (size_t i = 0; i < f->proved_n; i++) {
        const struct follow_proof *p = &f->proved[i];
        out_addf(&t, "%s%s %.3g %s (expected %.3g, %.3g to %.3g)", i ? ", " : "", p->name, p->measured, p->unit, p->expected.mid,
                 p->expected.low, p->expected.high);
        outside += !inside(p);
        slow |= !inside(p) && p->measured > FAR * p->expected.mid;
        fast |= !inside(p) && p->measured * FAR < p->expected.mid;
    }
    if (f->proved_n)
        out_note("plan: measured: %s: %s", t.data,
                 slow       ? "the machine is busy, throttled or changed; see segue calibrate"
                 : fast     ? "the machine was busy when it was calibrated, or has changed; see segue calibrate"
                 : !outside ? "as expected"
                 : learns   ? "outside of the interval of 9 of 10 runs; the plan learns from it"
                            : "outside of the interval of 9 of 10 runs");
    free(t.data);
}

static json_t *figure_json(struct sg_figure f)
{
    return json_pack("{s:f,s:f,s:f}", "mid", f.mid, "lo", f.low, "hi", f.high);
}

json_t *proof_json(const struct follow *f)
{
    const struct expected_task *t = &f->task;
    json_t *o = json_pack("{s:s,s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "prefill", f->prefill, "decode", f->decode, "why",
                          f->why, "prompt_tokens", t->prompt, "output_tokens", t->output, "depth_tokens", t->depth, "turns",
                          t->turns, "sessions", t->sessions, "ttft_ms", f->ttft_ms.mid, "token_ms", f->token_ms.mid, "total_ms",
                          f->total_ms.mid);
    json_t *list = json_object();
    for (size_t i = 0; i < f->proved_n; i++) {
        const struct follow_proof *p = &f->proved[i];
        json_object_set_new(list, p->key,
                            json_pack("{s:o,s:f,s:b}", "expected", figure_json(p->expected), "measured", p->measured, "inside",
                                      (int)inside(p)));
    }
    json_object_set_new(o, "measured", list);
    return o;
}
