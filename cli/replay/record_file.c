/* record_file.c: see record_file.h.
 * SPDX-License-Identifier: MIT */
#include "replay/record_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Position of the parser: file and line, for messages. */
struct record_reader {
    const char *name;
    size_t line;
};

static segue_status bad(const struct record_reader *r, const char *why, segue_error *err)
{
    return out_fail(err, SEGUE_EFORMAT, "record: %.200s: line %zu: %s; pass a file of --record", r->name, r->line, why);
}

/* A list of token ids. */
static segue_status read_ids(const struct record_reader *r, const json_t *list, struct record_tokens *out, segue_error *err)
{
    size_t i, n = json_array_size(list);
    const json_t *id;
    if (!json_is_array(list) || n > RECORD_TOKENS) return bad(r, "prompt or tokens is not a list of ids", err);
    out->ids = out_alloc((n + 1) * sizeof *out->ids);
    out->n = n;
    json_array_foreach(list, i, id)
    {
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            return bad(r, "prompt or tokens has an entry that is no token id", err);
        out->ids[i] = (int32_t)v;
    }
    return SEGUE_OK;
}

/* A field that must be an integer from low to high. */
static bool integer_in(const json_t *o, const char *name, json_int_t low, json_int_t high, json_int_t *out)
{
    const json_t *v = json_object_get(o, name);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= low && *out <= high;
}

/* sampling.bias and sampling.constraint, both optional. NULL: they are valid. */
static const char *wrong_sampling(const json_t *sampling)
{
    const json_t *bias = json_object_get(sampling, "bias"), *constraint = json_object_get(sampling, "constraint"), *entry;
    json_int_t kind;
    size_t i;
    if (bias && (!json_is_array(bias) || json_array_size(bias) > RECORD_BIASES)) return "bias is not a list, or too long";
    json_array_foreach(bias, i, entry)
    {
        const json_t *token = json_array_get(entry, 0);
        if (!json_is_integer(token) || json_integer_value(token) < 0 || json_integer_value(token) > INT32_MAX ||
            !json_is_number(json_array_get(entry, 1)))
            return "bias has an entry that is not a token and a number";
    }
    if (!constraint) return NULL;
    bool known = integer_in(constraint, "kind", SEGUE_GRAMMAR_GBNF, SEGUE_GRAMMAR_REGEX, &kind);
    return known && json_is_string(json_object_get(constraint, "text")) ? NULL : "constraint has no kind or no text";
}

static segue_status read_head(const struct record_reader *r, struct record *out, json_t *o, segue_error *err)
{
    static const char *const texts[] = {"model", "shape_id", "weights_id", "version", "kernels"};
    json_int_t version, hidden, runs;
    const json_t *slots = json_object_get(o, "slots"), *units = json_object_get(o, "units"), *v;
    size_t i;
    out->head = o;
    if (!integer_in(o, "segue_record", 1, INT32_MAX, &version)) return bad(r, "this is not a record", err);
    if (version != RECORD_VERSION) return bad(r, "the record has a newer version", err);
    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!json_is_string(json_object_get(o, texts[i]))) return bad(r, "a text of the head is missing", err);
    if (!json_is_object(json_object_get(o, "flags")) || !json_is_object(json_object_get(o, "sampling")))
        return bad(r, "flags or sampling is missing", err);
    const char *wrong = wrong_sampling(json_object_get(o, "sampling"));
    if (wrong) return bad(r, wrong, err);
    if (!json_is_array(slots) || json_array_size(slots) > RECORD_SLOTS || !json_is_array(units) || !json_array_size(units) ||
        json_array_size(units) > 64)
        return bad(r, "slots or units is not a list, or too long", err);
    json_array_foreach(slots, i, v) if (!json_is_string(v)) return bad(r, "slots has an entry that is no text", err);
    json_array_foreach(units, i, v) if (!json_is_string(v)) return bad(r, "units has an entry that is no text", err);
    if (!integer_in(o, "hidden", 0, RECORD_HIDDEN, &hidden)) return bad(r, "hidden is not a number of layers", err);
    if (json_object_get(o, "runs")) {
        if (!integer_in(o, "runs", 0, RECORD_RUNS, &runs)) return bad(r, "runs is not a number of runs", err);
        out->runs_stated = (size_t)runs;
    }
    out->slots_n = json_array_size(slots);
    out->hidden_n = (size_t)hidden;
    segue_status st = read_ids(r, json_object_get(o, "prompt"), &out->prompt, err);
    return st ? st : read_ids(r, json_object_get(o, "tokens"), &out->answer, err);
}

/* n digits of a hexadecimal number; false: another character. */
static bool hex_digits(const char *text, int n, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < n; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out << 4 | (uint64_t)digit;
    }
    return true;
}

/* A text of n hashes of `digits` digits each, without separators. */
static bool read_hashes(const json_t *text, size_t n, int digits, uint64_t *wide, uint32_t *narrow)
{
    const char *s = json_string_value(text);
    if (!s || json_string_length(text) != n * (size_t)digits) return false;
    for (size_t i = 0; i < n; i++) {
        uint64_t v;
        if (!hex_digits(s + i * (size_t)digits, digits, &v)) return false;
        if (wide)
            wide[i] = v;
        else
            narrow[i] = (uint32_t)v;
    }
    return true;
}

/* A run is appended before it is complete, so that record_free finds its memory. */
static segue_status read_run(const struct record_reader *r, struct record *out, const json_t *o, segue_error *err)
{
    json_int_t first, tokens, unit;
    size_t all = out->prompt.n + out->answer.n;
    const json_t *phase = json_object_get(o, "phase");
    bool decode = json_is_string(phase) && !strcmp(json_string_value(phase), "decode");
    if (!integer_in(o, "first", 0, (json_int_t)all, &first) || !integer_in(o, "tokens", 1, (json_int_t)all - first, &tokens) ||
        !integer_in(o, "unit", 0, (json_int_t)json_array_size(json_object_get(out->head, "units")) - 1, &unit) ||
        (!decode && (!json_is_string(phase) || strcmp(json_string_value(phase), "prefill") != 0)))
        return bad(r, "first, tokens, unit or phase of a run is missing or out of range", err);
    if (out->runs_n == RECORD_RUNS) return bad(r, "too many runs", err);
    if (out->runs_n == out->runs_cap)
        out->runs = out_realloc(out->runs, (out->runs_cap = out->runs_cap ? 2 * out->runs_cap : 64) * sizeof *out->runs);
    struct record_run *run = &out->runs[out->runs_n++];
    *run = (struct record_run){.first = (uint64_t)first, .tokens = (uint32_t)tokens, .unit = (uint32_t)unit, .decode = decode};
    run->slots = out_alloc((out->slots_n + out->hidden_n + 1) * sizeof *run->slots);
    run->hidden = run->slots + out->slots_n;
    if (!read_hashes(json_object_get(o, "slots"), out->slots_n, 16, run->slots, NULL) ||
        !read_hashes(json_object_get(o, "hidden"), out->hidden_n, 16, run->hidden, NULL))
        return bad(r, "slots or hidden of a run is not a text of 16 hexadecimal digits per hash", err);
    if (!out->hidden_n) return SEGUE_OK;
    const json_t *rows = json_object_get(o, "rows");
    if (json_string_length(rows) != 8 * (size_t)tokens) return bad(r, "rows of a run is not a text of 8 digits per token", err);
    run->rows = out_alloc((size_t)tokens * sizeof *run->rows);
    return read_hashes(rows, (size_t)tokens, 8, NULL, run->rows) ? SEGUE_OK : bad(r, "rows of a run has another character", err);
}

/* The record that a head begins, appended before it is complete, so that record_list_free finds its memory. */
static segue_status begin_record(const struct record_reader *r, struct record_list *out, json_t *head, segue_error *err)
{
    if (out->n == RECORD_ANSWERS) {
        json_decref(head);
        return bad(r, "too many records", err);
    }
    if (!(out->n & (out->n - 1))) out->items = out_realloc(out->items, (out->n ? 2 * out->n : 1) * sizeof *out->items);
    out->items[out->n] = (struct record){.runs_stated = SIZE_MAX};
    return read_head(r, &out->items[out->n++], head, err); /* keeps head */
}

/* One line: a head, or a run of the last head. */
static segue_status read_line(const struct record_reader *r, struct record_list *out, const char *text, size_t n,
                              segue_error *err)
{
    json_error_t why;
    if (n > RECORD_LINE) return bad(r, "the line is too long", err);
    json_t *o = out_json_load(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!o || !json_is_object(o)) {
        json_decref(o);
        return bad(r, o ? "not a JSON object" : why.text, err);
    }
    struct record *last = out->n ? &out->items[out->n - 1] : NULL;
    if (!last || json_object_get(o, "segue_record")) {
        if (!last || last->runs_stated == SIZE_MAX || last->runs_n == last->runs_stated) return begin_record(r, out, o, err);
        json_decref(o);
        return bad(r, "the record before this one has fewer runs than its head says", err);
    }
    segue_status st = last->runs_n == last->runs_stated ? bad(r, "the record has more runs than its head says", err)
                                                        : read_run(r, last, o, err);
    json_decref(o);
    return st;
}

/* A process that is killed leaves a part of its last record: a line without an end, or fewer runs than stated. */
segue_status record_parse(struct record_list *out, const char *text, size_t len, const char *name, segue_error *err)
{
    struct record_reader r = {.name = name};
    segue_status st = SEGUE_OK;
    *out = (struct record_list){0};
    for (size_t at = 0; at < len && !st;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        r.line++;
        if (!end && out->n) {
            out->cut = true;
            break;
        }
        st = read_line(&r, out, text + at, n, err);
        at += n + 1;
    }
    if (st) return st;
    if (!out->n) return bad(&r, "the file is empty", err);
    const struct record *last = &out->items[out->n - 1];
    bool partial = last->runs_stated == SIZE_MAX ? out->cut : last->runs_n < last->runs_stated;
    out->cut = out->cut || partial;
    if (partial) record_free(&out->items[--out->n]);
    return out->n ? SEGUE_OK : bad(&r, "the file has no complete record", err);
}

segue_status record_read(struct record_list *out, const char *path, segue_error *err)
{
    struct out_text text = {0};
    char piece[65536];
    size_t n;
    *out = (struct record_list){0};
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return out_fail_errno(err, "reading the record", path, NULL);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0 && text.len <= RECORD_BYTES) out_add(&text, piece, n);
    bool failed = ferror(f) != 0;
    fclose(f);
    segue_status st;
    if (failed)
        st = out_fail_errno(err, "reading the record", path, NULL);
    else if (text.len > RECORD_BYTES)
        st = out_fail(err, SEGUE_ELIMIT, "record: %.200s: larger than %d MiB; record a shorter answer", path, RECORD_BYTES >> 20);
    else
        st = record_parse(out, text.data ? text.data : "", text.len, path, err);
    free(text.data);
    return st;
}

void record_free(struct record *r)
{
    for (size_t i = 0; i < r->runs_n; i++) {
        free(r->runs[i].slots);
        free(r->runs[i].rows);
    }
    free(r->runs);
    free(r->prompt.ids);
    free(r->answer.ids);
    json_decref(r->head);
    *r = (struct record){0};
}

void record_list_free(struct record_list *list)
{
    for (size_t i = 0; i < list->n; i++) record_free(&list->items[i]);
    free(list->items);
    *list = (struct record_list){0};
}

const char *record_text(const struct record *r, const char *key) { return json_string_value(json_object_get(r->head, key)); }
