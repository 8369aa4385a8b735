/* sampling.c: segue_session_sampling: checks the sampling parameters of a session and copies them into it.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"
#include "engine/sized.h"

/* Refuses parameters that would give NaN: a choice must not depend on a comparison with NaN. */
static segue_status check_numbers(const segue_sampling *p, segue_error *err)
{
    const float numbers[] = {p->temperature,       p->top_p,          p->min_p,
                             p->typical_p,         p->repeat_penalty, p->presence_penalty,
                             p->frequency_penalty, p->dry_multiplier, p->dry_base};
    static const char *const names[] = {"temperature",       "top_p",          "min_p",
                                        "typical_p",         "repeat_penalty", "presence_penalty",
                                        "frequency_penalty", "dry_multiplier", "dry_base"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int sign_free = i == 5 || i == 6; /* presence and frequency penalties may be negative */
        if (!isfinite(numbers[i]) || (!sign_free && numbers[i] < 0))
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: %s: %g is not allowed; use a finite number%s", names[i],
                           (double)numbers[i], sign_free ? "" : " of at least 0");
    }
    if (p->logprobs > SG_LOGPROBS_MAX)
        return sg_fail(err, SEGUE_EARG, "sampling refused: logprobs %u: the maximum is %d; use a smaller number", p->logprobs,
                       (int)SG_LOGPROBS_MAX);
    return SEGUE_OK;
}

static segue_status check_bias(const struct segue_session *s, const segue_sampling *p, segue_error *err)
{
    if (p->bias_n && !p->bias)
        return sg_fail(err, SEGUE_EARG, "sampling refused: bias: bias_n without bias; pass both");
    for (size_t i = 0; i < p->bias_n; i++) {
        int32_t token = p->bias[i].token;
        float bias = p->bias[i].bias;
        if (token < 0 || (uint32_t)token >= s->engine->model->info.vocab)
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: bias of token %d: the vocabulary has %u tokens; use one of them",
                           token, s->engine->model->info.vocab);
        if (isnan(bias) || bias == INFINITY)
            return sg_fail(err, SEGUE_EARG,
                           "sampling refused: bias of token %d: %g is not allowed; use a finite number or -inf",
                           token, (double)bias);
    }
    return SEGUE_OK;
}

segue_status segue_session_sampling(segue_session *session, const segue_sampling *sampling, segue_error *err)
{
    segue_sampling p;
    SG_TRY(sg_session_check(session, "sampling refused", err));
    SG_TRY(sg_sized_in(&p, sizeof p, sampling, "sampling", err));
    SG_TRY(check_numbers(&p, err));
    SG_TRY(check_bias(session, &p, err));
    const uint8_t *breakers = NULL;
    size_t breakers_n = 0, bytes;
    if (p.grammar && p.ignore_stops)
        return sg_fail(err, SEGUE_EARG, "sampling refused: ignore_stops beside a grammar: the text could not end; leave one out");
    if (p.dry_multiplier > 0) SG_TRY(sg_engine_breakers(session->engine, &breakers, &breakers_n, err));
    SG_TRY(sg_mul(p.bias_n, sizeof *p.bias, &bytes, "biases", err));
    struct segue_bias *bias = p.bias_n ? sg_alloc(bytes) : NULL;
    if (p.bias_n && !bias) return sg_no_memory("biases", bytes, err);
    segue_status status = sg_constraint_set(&session->constraint, p.grammar, session->engine->model, err);
    if (status != SEGUE_OK) {
        sg_free(bias);
        return status;
    }
    if (bias) memcpy(bias, p.bias, bytes);
    sg_free(session->bias);
    session->bias = bias;
    session->sampling = p;
    session->sampling.bias = bias;
    session->breakers = breakers;
    session->breakers_n = breakers_n;
    return SEGUE_OK;
}
