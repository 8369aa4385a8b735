/* state_origin.c: names what computed the states of a session: adapters, units, instruction sets and K/V storages. State
 * files and the prefix store accept states only from an equal origin. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session/session.h"

enum { REALM_MAX = 255 };

/* Hash of the adapters' matrices, not of their files, so that the same adapter from another path is accepted. */
static struct sg_hash adapters_id(const struct segue_session *s)
{
    struct sg_hash id = {0};
    for (uint32_t i = 0; i < s->adapters_n; i++) {
        const struct sg_lora *l = &s->adapters[i]->lora;
        for (uint32_t k = 0; k < l->pairs_n; k++) {
            const struct sg_lora_pair *p = &l->pairs[k];
            sg_state_add_sum(&id, p->tensor->name, strlen(p->tensor->name));
            sg_state_add_sum(&id, p->a, (size_t)(p->rank * p->tensor->cols) * sizeof(float));
            sg_state_add_sum(&id, p->b, (size_t)(p->rank * p->tensor->rows) * sizeof(float));
        }
    }
    return id;
}

/* Appends n bytes of text; truncates to SG_STATE_TEXT. */
static void append(char *out, const char *text, size_t n)
{
    size_t used = strlen(out), left = SG_STATE_TEXT - 1 - used;
    memcpy(out + used, text, n < left ? n : left);
}

/* Appends the spec without its number of threads, which does not change results. */
static void append_spec(char *out, const char *spec)
{
    const char *colon = strchr(spec, ':'), *at = colon ? colon + 1 : NULL;
    char sign = ':';
    append(out, spec, colon ? (size_t)(colon - spec) : strlen(spec));
    while (at && *at) {
        size_t n = strcspn(at, ",");
        if (strncmp(at, "threads=", 8) != 0) {
            append(out, &sign, 1);
            append(out, at, n);
            sign = ',';
        }
        at += n + (at[n] == ',');
    }
}

/* The units of a layout with their layers, and their kernels with the storage of K and V. */
static void append_layout(const struct sg_layout *l, char *unit, char *kernels)
{
    char layers[32];
    for (uint32_t i = 0; i < l->n; i++) {
        const struct sg_layer_range *s = l->stages[i].layer_range;
        if (i) append(unit, " ", 1);
        append_spec(unit, s->unit->desc.info.spec);
        if (l->n > 1)
            append(unit, layers, (size_t)snprintf(layers, sizeof layers, "@%u-%u", s->from, s->to - 1));
        const char *kv = sg_storage_info(l->stages[i].kv)->name;
        if (*kernels) append(kernels, " > ", 3);
        const char *set = *s->unit->desc.kernels ? s->unit->desc.kernels : s->unit->desc.info.features;
        append(kernels, set, strlen(set));
        append(kernels, " kv=", 4);
        append(kernels, kv, strlen(kv));
    }
}

void sg_session_origin(struct segue_session *s, struct sg_state_origin *out)
{
    if (!s->adapters_known) s->adapters_id = adapters_id(s);
    s->adapters_known = 1;
    *out = (struct sg_state_origin){.adapters = s->adapters_id};
    append_layout(&s->layouts[SG_PREFILL_LAYOUT], out->unit, out->kernels);
    if (s->engine->deterministic) append(out->kernels, " deterministic", 14);
    if (!s->split) return;
    append(out->unit, " > ", 3);
    append_layout(&s->layouts[SG_DECODE_LAYOUT], out->unit, out->kernels);
}

/* Part of the adapters' hash, which is compared whole; the texts are cut to their fields. */
void sg_session_store_origin(struct segue_session *s, struct sg_state_origin *out)
{
    sg_session_origin(s, out);
    if (s->realm_id) out->adapters = sg_hash_join(out->adapters, sg_hash_bytes(s->realm_id, strlen(s->realm_id), 0));
}

/* A cryptographic hash, since a realm may be a secret key and its hash is written to files. */
segue_status sg_session_set_realm(struct segue_session *s, const char *realm, segue_error *err)
{
    struct sg_sha256 sum;
    size_t n = realm ? strlen(realm) : 0;
    if (!n) return SEGUE_OK;
    if (n > REALM_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "session not opened: a realm of %zu bytes: the maximum is %d; pass a hash of it", n,
                       REALM_MAX);
    if (!(s->realm_id = sg_alloc(65))) return sg_no_memory("realm of a session", 65, err);
    sg_sha256_begin(&sum);
    sg_sha256_add(&sum, realm, n);
    sg_sha256_end(&sum, s->realm_id);
    return SEGUE_OK;
}
