/* recording.c: --record, see recording.h. Includes an internal header of the library, because hashes of states are no part of its
 * public interface (exception in tests/api/layers.sh).
 * SPDX-License-Identifier: MIT */
#include "replay/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/replay/state_hashes.h"
#include "host/machine.h"

unsigned record_placement_flags(const struct args *args)
{
    static const char *const names[] = {"prefill", "decode"};
    const char *text;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; (text = args_nth(args, names[k], i)); i++)
            if (strchr(text, '@')) return 0;
    return PLACEMENT_KEEP_VALUES;
}

segue_status record_check_flags(const struct args *args, segue_error *err)
{
    if (!args_has(args, "requests") && !args_has(args, "json-schema") && !args_has(args, "grammar") &&
        !args_has(args, "regex") && !args_has(args, "logit-bias"))
        return SEGUE_OK;
    return out_fail(err, SEGUE_EARG,
                    "flag --record: cannot be combined with --requests, a grammar or --logit-bias; remove one of them");
}

segue_status record_begin(segue_session *session, segue_error *err)
{
    segue_stats stats = SEGUE_INIT(segue_stats);
    segue_status st = segue_session_stats_get(session, &stats, err);
    if (!st && (stats.tokens_in || stats.tokens_reused))
        return out_fail(err, SEGUE_EARG, "record: the session has computed tokens already; record without --load and --session");
    return st ? st : sg_session_record_hashes(session, err);
}

/* Flags that decide what is computed, as the user gave them. */
static json_t *flags_json(const struct record_source *source)
{
    const struct args *args = source->args;
    static const char *const names[] = {"unit",    "threads", "pipeline", "kv",     "chunk",
                                        "storage", "context", "prefill",  "decode", "lora"};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *list = json_array();
        const char *text;
        for (size_t k = 0; (text = args_nth(args, names[i], k)); k++) json_array_append_new(list, out_string(text, strlen(text)));
        if (json_array_size(list)) json_object_set(o, names[i], list);
        json_decref(list);
    }
    char *context = source->context ? out_printf("%zu", source->context) : NULL;
    if (context) json_object_set_new(o, "context", json_pack("[s]", context));
    free(context);
    if (args_has(args, "deterministic")) json_object_set_new(o, "deterministic", json_pack("[s]", ""));
    return o;
}

/* Nine digits restore a float. */
static json_t *sampling_json(const segue_sampling *s, const struct record_constraint *constraint)
{
    json_t *o = json_pack("{s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:f,s:f,s:i,s:I,s:i}", "temperature", (double)s->temperature,
                          "top_k", (int)s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p, "typical_p",
                          (double)s->typical_p, "repeat_penalty", (double)s->repeat_penalty, "presence_penalty",
                          (double)s->presence_penalty, "frequency_penalty", (double)s->frequency_penalty, "repeat_last_n",
                          (int)s->repeat_last_n, "dry_multiplier", (double)s->dry_multiplier, "dry_base", (double)s->dry_base,
                          "dry_allowed_length", (int)s->dry_allowed_length, "seed", (json_int_t)s->seed, "ignore_stops",
                          (int)s->ignore_stops);
    json_t *bias = json_array();
    for (size_t i = 0; i < s->bias_n; i++)
        json_array_append_new(bias, json_pack("[i,f]", (int)s->bias[i].token, (double)s->bias[i].bias));
    if (s->bias_n) json_object_set(o, "bias", bias);
    json_decref(bias);
    if (constraint)
        json_object_set_new(o, "constraint", json_pack("{s:i,s:o}", "kind", (int)constraint->kind, "text",
                                                       out_string(constraint->text, constraint->len)));
    return o;
}

/* The list of biases, which record_file.c has checked. */
static void read_bias(struct record_sampler *out, const json_t *list)
{
    size_t i, n = json_array_size(list);
    const json_t *entry;
    if (!n) return;
    out->bias = out_alloc(n * sizeof *out->bias);
    json_array_foreach(list, i, entry)
        out->bias[i] = (struct segue_bias){(int32_t)json_integer_value(json_array_get(entry, 0)),
                                           (float)json_number_value(json_array_get(entry, 1))};
    out->sampling.bias = out->bias;
    out->sampling.bias_n = n;
}

segue_status record_sampler_read(struct record_sampler *out, const struct record *r, const segue_model *model, segue_error *err)
{
    const json_t *o = json_object_get(r->head, "sampling"), *constraint = json_object_get(o, "constraint");
    *out = (struct record_sampler){.sampling = SEGUE_INIT(segue_sampling)};
    segue_sampling *s = &out->sampling;
    const struct {
        const char *name;
        float *to;
    } reals[] = {{"temperature", &s->temperature},           {"top_p", &s->top_p},
                 {"min_p", &s->min_p},                       {"typical_p", &s->typical_p},
                 {"repeat_penalty", &s->repeat_penalty},     {"presence_penalty", &s->presence_penalty},
                 {"frequency_penalty", &s->frequency_penalty}, {"dry_multiplier", &s->dry_multiplier},
                 {"dry_base", &s->dry_base}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        *reals[i].to = (float)json_number_value(json_object_get(o, reals[i].name));
    s->top_k = (int32_t)json_integer_value(json_object_get(o, "top_k"));
    s->repeat_last_n = (int32_t)json_integer_value(json_object_get(o, "repeat_last_n"));
    s->dry_allowed_length = (int32_t)json_integer_value(json_object_get(o, "dry_allowed_length"));
    s->seed = (uint64_t)json_integer_value(json_object_get(o, "seed"));
    s->ignore_stops = json_integer_value(json_object_get(o, "ignore_stops")) != 0;
    read_bias(out, json_object_get(o, "bias"));
    if (!constraint) return SEGUE_OK;
    const json_t *text = json_object_get(constraint, "text");
    segue_status st = segue_grammar_open(&out->grammar, model,
                                         (segue_grammar_kind)json_integer_value(json_object_get(constraint, "kind")),
                                         json_string_value(text), json_string_length(text), err);
    s->grammar = out->grammar;
    return st;
}

void record_sampler_free(struct record_sampler *s)
{
    free(s->bias);
    segue_grammar_close(s->grammar);
    *s = (struct record_sampler){0};
}

/* The first line. */
static json_t *head_json(const struct record_source *source)
{
    const struct placement *p = source->placement;
    const struct sg_state_hashes *h = sg_session_hashes(source->session);
    json_t *o = json_object(), *units = json_array(), *slots = json_array();
    char version[32], id[33] = "";
    segue_error ignored;
    segue_model_weights_id(p->model, NULL, id, &ignored);
    snprintf(version, sizeof version, "%u.%u.%u", segue_version() >> 16, segue_version() >> 8 & 255, segue_version() & 255);
    for (size_t i = 0; i < p->units_n; i++) json_array_append_new(units, json_string(p->unit_info[i].spec));
    for (uint32_t i = 0; i < h->slots_n; i++) {
        char name[32];
        sg_hashes_slot_name(source->session, i, name);
        json_array_append_new(slots, json_string(name));
    }
    json_object_set_new(o, "segue_record", json_integer(RECORD_VERSION));
    json_object_set_new(o, "version", json_string(version));
    json_object_set_new(o, "model", out_string(p->path, strlen(p->path)));
    json_object_set_new(o, "shape_id", json_string(p->info.shape_id));
    json_object_set_new(o, "weights_id", json_string(id));
    json_object_set_new(o, "kernels", json_string(p->unit_info[0].features));
    json_object_set_new(o, "flags", flags_json(source));
    json_object_set_new(o, "units", units);
    json_object_set_new(o, "sampling", sampling_json(source->sampling, source->constraint));
    json_object_set_new(o, "slots", slots);
    json_object_set_new(o, "hidden", json_integer(h->hidden_n));
    json_object_set_new(o, "prompt", out_id_list(source->prompt.ids, source->prompt.n));
    json_object_set_new(o, "tokens", out_id_list(source->answer.ids, source->answer.n));
    json_object_set_new(o, "runs", json_integer((json_int_t)h->runs_n));
    json_object_set_new(o, "machine", machine_json(p->unit_info, p->units_n));
    return o;
}

/* n hashes as hexadecimal digits without separators. */
static json_t *hashes_json(const uint64_t *hashes, size_t n)
{
    struct out_text t = {0};
    out_add(&t, "", 0);
    for (size_t i = 0; i < n; i++) out_addf(&t, "%016llx", (unsigned long long)hashes[i]);
    json_t *s = json_stringn(t.data, t.len);
    free(t.data);
    return s;
}

static json_t *run_json(const struct sg_state_hashes *h, const struct sg_run_hash *r)
{
    json_t *o = json_pack("{s:I,s:i,s:s,s:i}", "first", (json_int_t)r->first, "tokens", (int)r->tokens, "phase",
                          r->decode ? "decode" : "prefill", "unit", (int)r->placement);
    json_object_set_new(o, "slots", hashes_json(r->slots, h->slots_n));
    json_object_set_new(o, "hidden", hashes_json(r->hidden, h->hidden_n));
    if (!r->rows) return o;
    struct out_text t = {0};
    for (uint32_t i = 0; i < r->tokens; i++) out_addf(&t, "%08x", r->rows[i]);
    json_object_set_new(o, "rows", json_stringn(t.data, t.len));
    free(t.data);
    return o;
}

/* A JSON value as one line; steals the reference. */
static void add_line(struct out_text *t, json_t *o)
{
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (line) out_addf(t, "%s\n", line);
    free(line);
    json_decref(o);
}

struct out_text record_text_of(const struct record_source *source)
{
    const struct sg_state_hashes *h = sg_session_hashes(source->session);
    struct out_text t = {0};
    add_line(&t, head_json(source));
    for (size_t i = 0; i < h->runs_n; i++) add_line(&t, run_json(h, &h->runs[i]));
    return t;
}

segue_status record_write(const char *path, const struct record_source *source, segue_error *err)
{
    struct out_text text = record_text_of(source);
    char *tmp_path;
    errno = 0;
    FILE *f = out_temporary(path, 0600, &tmp_path); /* it holds the tokens of a conversation */
    bool written = f && fwrite(text.data, 1, text.len, f) == text.len;
    written = f && fclose(f) == 0 && written && rename(tmp_path, path) == 0;
    segue_status st = written ? SEGUE_OK : out_fail_errno(err, "writing the record", path, NULL);
    if (f && !written) unlink(tmp_path);
    free(tmp_path);
    free(text.data);
    return st;
}

segue_status record_create(const char *path, segue_error *err)
{
    char *tmp_path;
    errno = 0;
    FILE *f = out_temporary(path, 0600, &tmp_path);
    bool created = f && fclose(f) == 0 && rename(tmp_path, path) == 0;
    segue_status st = created ? SEGUE_OK : out_fail_errno(err, "writing the record", path, NULL);
    if (f && !created) unlink(tmp_path);
    free(tmp_path);
    return st;
}

segue_status record_append(const char *path, const struct record_source *source, segue_error *err)
{
    struct out_text text = record_text_of(source);
    errno = 0;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    size_t done = 0;
    while (fd >= 0 && done < text.len) {
        ssize_t n = write(fd, text.data + done, text.len - done);
        if (n <= 0 && errno != EINTR) break;
        if (n > 0) done += (size_t)n;
    }
    segue_status st = fd >= 0 && done == text.len ? SEGUE_OK : out_fail_errno(err, "writing the record", path, NULL);
    if (fd >= 0) close(fd);
    free(text.data);
    return st;
}

void record_of_session(struct record *out, const segue_session *session)
{
    const struct sg_state_hashes *h = sg_session_hashes(session);
    *out = (struct record){.slots_n = h->slots_n, .hidden_n = h->hidden_n};
    out->runs = out_alloc((h->runs_n + 1) * sizeof *out->runs);
    for (; out->runs_n < h->runs_n; out->runs_n++) {
        const struct sg_run_hash *from = &h->runs[out->runs_n];
        struct record_run *to = &out->runs[out->runs_n];
        size_t n = h->slots_n + h->hidden_n;
        *to = (struct record_run){.first = from->first, .tokens = from->tokens, .unit = from->placement, .decode = from->decode};
        to->slots = out_alloc((n + 1) * sizeof *to->slots);
        memcpy(to->slots, from->slots, n * sizeof *to->slots);
        to->hidden = to->slots + h->slots_n;
        if (!from->rows) continue;
        to->rows = out_alloc(from->tokens * sizeof *to->rows);
        memcpy(to->rows, from->rows, from->tokens * sizeof *to->rows);
    }
}
