/* asitop.c: the property lists of `powermetrics -f plist` that asitop reads and records: one XML document per sample, separated
 * by NUL bytes. Used are timestamp, elapsed_ns, and of the dictionary `processor` cpu_energy, gpu_energy, ane_energy, dram_energy
 * and package_energy in mJ, and combined_power in mW. The reader knows tags and texts, no entities; depth and sizes are bounded.
 * The last document may be cut off, because the log is still being written.
 * SPDX-License-Identifier: MIT */
#include "meter/meter_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PLIST_DEPTH = 32, PLIST_WORD = 64 };

/* A reader of one file. */
struct plist {
    const char *file, *at, *end;
    size_t line, depth;
    char keys[PLIST_DEPTH][PLIST_WORD]; /* the last key at each depth; "" in arrays */
    char tag[PLIST_WORD], text[PLIST_WORD]; /* the last opened tag and the text after it */
    struct log_sample *sample;
    bool stamped;
    bool cut; /* the end of the file was reached inside of a tag or value */
};

static segue_status bad_plist(const struct plist *p, const char *why, segue_error *err)
{
    return out_fail(err, SEGUE_EFORMAT, "meter log: %.200s: line %zu: %s; pass a log of asitop or of powermetrics -f plist",
                    p->file, p->line, why);
}

/* Copies up to a byte of `stop` into word; the position is after it. False: the end was reached, or the word is too long. */
static bool take_until(struct plist *p, char stop, char word[PLIST_WORD])
{
    size_t n = 0;
    for (; p->at < p->end && *p->at != stop; p->at++) {
        if (*p->at == '\n') p->line++;
        if (n == PLIST_WORD - 1 || !*p->at) return false;
        word[n++] = *p->at;
    }
    word[n] = 0;
    p->cut = p->at == p->end;
    if (p->cut) return false;
    p->at++;
    return true;
}

static segue_status number_of(const struct plist *p, double *out, segue_error *err)
{
    char *end;
    errno = 0;
    *out = strtod(p->text, &end);
    if (end == p->text || *end || errno || !isfinite(*out) || *out < 0 || *out > 1e15)
        return bad_plist(p, "this is not a number from 0 to 1e15", err);
    return SEGUE_OK;
}

/* A value of the document's own dictionary. */
static segue_status read_document(struct plist *p, const char *key, segue_error *err)
{
    double number;
    segue_status st = SEGUE_OK;
    if (!strcmp(key, "timestamp")) {
        int year, month, day, hour, minute, second;
        p->sample->stamp_s = -1;
        if (sscanf(p->text, "%4d-%2d-%2dT%2d:%2d:%2dZ", &year, &month, &day, &hour, &minute, &second) == 6)
            p->sample->stamp_s = log_date(year, month, day, hour, minute, second);
        if (p->sample->stamp_s < 0) return bad_plist(p, "this is not a date", err);
        p->stamped = true;
    } else if (!strcmp(key, "elapsed_ns")) {
        st = number_of(p, &number, err);
        if (!st && !(number > 0 && number < 1e13)) return bad_plist(p, "the duration is not between 0 and 10,000 seconds", err);
        if (!st) p->sample->elapsed_ns = (uint64_t)number;
    }
    return st;
}

/* A value of the dictionary `processor`. package_energy is the whole chip; without it combined_power is CPU + GPU + ANE. */
static segue_status read_processor(struct plist *p, const char *key, struct log_samples *out, segue_error *err)
{
    static const struct {
        const char *key;
        int channel;
    } energies[] = {{"cpu_energy", LOG_CPU},   {"gpu_energy", LOG_GPU},       {"ane_energy", LOG_ANE},
                    {"dram_energy", LOG_DRAM}, {"package_energy", LOG_WHOLE}, {"combined_power", LOG_WHOLE}};
    for (size_t i = 0; i < sizeof energies / sizeof *energies; i++) {
        double number;
        bool combined = i == 5;
        if (strcmp(key, energies[i].key) != 0 || (combined && (p->sample->has & 1u << LOG_WHOLE))) continue;
        segue_status st = number_of(p, &number, err);
        if (st) return st;
        p->sample->joules[energies[i].channel] = combined ? number / 1000 * (double)p->sample->elapsed_ns / 1e9 : number / 1000;
        p->sample->has |= 1u << energies[i].channel;
        if (energies[i].channel == LOG_WHOLE) out->whole = combined ? "CPU + GPU + ANE" : "package";
    }
    return SEGUE_OK;
}

/* A closed tag with a text: a key, or a value under the keys at its depth. Depth 1 is the document's dictionary. */
static segue_status read_text(struct plist *p, struct log_samples *out, segue_error *err)
{
    const char *key = p->depth < PLIST_DEPTH ? p->keys[p->depth] : "";
    if (!p->depth) return SEGUE_OK;
    if (!strcmp(p->tag, "key")) {
        snprintf(p->keys[p->depth], PLIST_WORD, "%s", p->text);
        return SEGUE_OK;
    }
    if (p->depth == 1) return read_document(p, key, err);
    if (p->depth == 2 && !strcmp(p->keys[1], "processor")) return read_processor(p, key, out, err);
    return SEGUE_OK;
}

static segue_status end_document(struct plist *p, segue_error *err)
{
    if (p->depth) return bad_plist(p, "the document ends inside of a dictionary", err);
    if (p->sample && (!p->stamped || !p->sample->elapsed_ns)) return bad_plist(p, "a sample lacks timestamp or elapsed_ns", err);
    p->sample = NULL;
    p->stamped = false;
    return SEGUE_OK;
}

/* <dict> and <array> open a level; the first dictionary of a document begins a sample. */
static segue_status open_level(struct plist *p, struct log_samples *out, segue_error *err)
{
    if (p->depth == PLIST_DEPTH - 1) return bad_plist(p, "too many levels", err);
    if (!p->depth) {
        if (p->sample) return bad_plist(p, "two dictionaries in one document", err);
        p->sample = log_sample_new(out);
        if (!p->sample) return bad_plist(p, "too many samples", err);
    }
    p->keys[++p->depth][0] = 0;
    return SEGUE_OK;
}

/* One tag, after its '<'. Text between an opening and a closing tag is in p->text. */
static segue_status read_tag(struct plist *p, struct log_samples *out, segue_error *err)
{
    if (p->at < p->end && (*p->at == '?' || *p->at == '!')) { /* declaration: skipped */
        while (p->at < p->end && *p->at != '>' && *p->at) p->line += *p->at++ == '\n';
        p->cut = p->at == p->end;
        if (p->cut) return SEGUE_OK;
        if (!*p->at) return bad_plist(p, "a declaration without an end", err);
        p->at++;
        return SEGUE_OK;
    }
    char name[PLIST_WORD];
    if (!take_until(p, '>', name)) return p->cut ? SEGUE_OK : bad_plist(p, "a tag without an end", err);
    size_t n = strlen(name);
    if (!strncmp(name, "plist", 5) || !strcmp(name, "/plist") || (n && name[n - 1] == '/')) return SEGUE_OK;
    if (!strcmp(name, "dict") || !strcmp(name, "array")) return open_level(p, out, err);
    if (!strcmp(name, "/dict") || !strcmp(name, "/array")) {
        if (!p->depth) return bad_plist(p, "a level ends that was not begun", err);
        p->depth--;
        return SEGUE_OK;
    }
    if (name[0] == '/') return bad_plist(p, "a tag ends that was not begun", err);
    memcpy(p->tag, name, sizeof name);
    char end[PLIST_WORD];
    bool closed = take_until(p, '<', p->text) && take_until(p, '>', end);
    if (!closed && p->cut) return SEGUE_OK;
    if (!closed || end[0] != '/' || strcmp(end + 1, name) != 0)
        return bad_plist(p, "a value without an end, or too long", err);
    return read_text(p, out, err);
}

segue_status asitop_parse(struct log_samples *out, const char *text, size_t len, const char *name, segue_error *err)
{
    struct plist p = {.file = name, .at = text, .end = text + len, .line = 1};
    segue_status st = SEGUE_OK;
    while (p.at < p.end && !st) {
        char c = *p.at++;
        p.line += c == '\n';
        if (c == '<')
            st = read_tag(&p, out, err);
        else if (!c)
            st = end_document(&p, err);
    }
    /* A document that is still being written is not a sample yet. */
    if (!st && p.sample && (p.cut || p.depth || !p.stamped || !p.sample->elapsed_ns)) out->n--;
    if (!st && !out->n) return bad_plist(&p, "there is no sample", err);
    return st;
}
