/* args.c: parse argv against the tables of a command. Values are kept as text after they were checked against the
 * kind and the bounds of their flag, so readers need no error handling. This file never prints.
 * SPDX-License-Identifier: MIT */
#include "term/args.h"
#include "term/out.h"
#include "term/spellings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of the aliases without a flag of ours. */
static const struct arg_def no_effect = {.name = "", .kind = ARG_SWITCH};

/* Names are compared with '_' equal to '-', because the keys of --requests are flag names as JSON identifiers. */
static bool same_name(const char *own, const char *name, size_t len)
{
    size_t i = 0;
    while (i < len && own[i] && (name[i] == own[i] || (name[i] == '_' && own[i] == '-'))) i++;
    return i == len && !own[i];
}

static const struct arg_def *find_own(const struct command *command, const char *name, size_t len)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++)
            if (same_name(d->name, name, len)) return d;
    return NULL;
}

static const struct arg_def *find_alias(const struct command *command, const char *name, size_t len)
{
    for (const char *const *a = command->aliases; a && *a; a += 2)
        if (same_name(a[0], name, len)) return *a[1] ? find_own(command, a[1], strlen(a[1])) : &no_effect;
    return NULL;
}

const struct arg_def *args_find(const struct command *command, const char *name, size_t len)
{
    const struct arg_def *own = find_own(command, name, len);
    return own ? own : find_alias(command, name, len);
}

/* The definition of the flag with this short name, in any group of the command; NULL if there is none. */
static const struct arg_def *find_letter(const struct command *command, char letter)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++)
            if (letter && d->letter == letter) return d;
    return NULL;
}

/* Damerau-Levenshtein distance (insert, delete, substitute, swap neighbours) between a and b. Words of more than 64
 * characters count as distance 99, which bounds the table. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    size_t cells[65][65]; /* cells[i][j]: distance between the first i characters of a and the first j of b */
    if (n > 64 || m > 64) return 99;
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j <= m; j++) {
            if (!i || !j) {
                cells[i][j] = i + j;
                continue;
            }
            size_t best = cells[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (cells[i - 1][j] + 1 < best) best = cells[i - 1][j] + 1;
            if (cells[i][j - 1] + 1 < best) best = cells[i][j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && cells[i - 2][j - 2] + 1 < best) best = cells[i - 2][j - 2] + 1;
            cells[i][j] = best;
        }
    return cells[n][m];
}

/* A typed prefix of at least 3 characters counts as distance 1. Words of up to 4 characters must be within 1 edit,
 * longer ones within 2, so that short words do not suggest unrelated names. */
const char *args_suggest(const char *typed, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t limit = strlen(typed) <= 4 ? 2 : 3;
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(typed, names[i]);
        if (strlen(typed) >= 3 && !strncmp(typed, names[i], strlen(typed))) d = 1;
        if (d < limit) {
            limit = d;
            best = names[i];
        }
    }
    return best;
}

/* The flag of this command that other programs spell like `word`, which begins with dashes; NULL if there is none. */
static const char *other_spelling(const struct command *command, const char *word)
{
    const char *typed = word + strspn(word, "-"), *ours;
    for (size_t i = 0; (ours = spellings_flag(typed, i)); i++)
        if (args_find(command, ours, strlen(ours))) return ours;
    return NULL;
}

/* Our name for the flag or spelling that is closest to typed[]: names[own_n] are ours, names[own_n..n] other programs'
 * for flags of this command. Ours are first, so they win where both are as close. */
static const char *closest(const struct command *command, const char *typed, const char **names, size_t own_n, size_t n)
{
    const char *best = args_suggest(typed, names, n);
    for (size_t i = 0; best && i < own_n; i++)
        if (best == names[i]) return best;
    return best ? other_spelling(command, best) : NULL;
}

const char *args_suggest_flag(const struct command *command, const char *typed)
{
    enum { MAX_NAMES = 256 };
    const char *names[MAX_NAMES], *theirs[MAX_NAMES];
    size_t n = 0;
    const char *ours = other_spelling(command, typed);
    if (ours) return ours;
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name && n < MAX_NAMES / 2; d++) names[n++] = d->name;
    size_t own_n = n, theirs_n = spellings_flags(theirs, MAX_NAMES / 2);
    for (size_t i = 0; i < theirs_n; i++) /* short ones are close to everything */
        if (strlen(theirs[i]) > 3 && other_spelling(command, theirs[i])) names[n++] = theirs[i];
    return closest(command, typed, names, own_n, n);
}

/* The error for an unknown flag. Short flags only get the spelling of another program: every letter is one edit away from
 * every other. */
static segue_status unknown_flag(const struct command *command, const char *typed, segue_error *err)
{
    size_t len = strcspn(typed, "=");
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), typed);
    for (char *c = word; *c; c++)
        if (*c == '_') *c = '-';
    bool is_long = word[0] == '-' && word[1] == '-';
    const char *suggestion = is_long ? args_suggest_flag(command, word + 2) : other_spelling(command, word);
    if (suggestion) return out_fail(err, SEGUE_EARG, "unknown flag: %s: did you mean --%s?", word, suggestion);
    return out_fail(err, SEGUE_EARG, "unknown flag: %s: segue %s has no such flag; see segue %s --help",
                    word, command->name, command->name);
}

/* The word of choices, "a|b|c", that equals text without case; NULL if there is none. */
static const char *choice_of(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        if (strcspn(c, "|") == n && !strncasecmp(c, text, n)) return c;
    return NULL;
}

/* Check one number text[len] against the kind and bounds of def. Integers are read as doubles as well: all bounds are
 * below 2^53, where doubles are exact. NaN and infinity are rejected here, so no command receives them. */
static segue_status check_number(const struct arg_def *def, const char *text, size_t len, segue_error *err)
{
    double low = def->low, high = def->high;
    if (low == 0 && high == 0) high = 9007199254740992.0;
    char word[64], *end;
    snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), text);
    errno = 0;
    double v = strtod(word, &end);
    bool whole = def->kind == ARG_REAL || strspn(word, "+-0123456789") == strlen(word);
    if (end == word || *end || !isfinite(v) || !whole || len > 62)
        return out_fail(err, SEGUE_EARG, "flag --%s: \"%s\": not a%s number; expected %s", def->name, word,
                        def->kind == ARG_REAL ? "" : " whole", def->metavar);
    if (v < low || v > high)
        return out_fail(err, SEGUE_EARG, "flag --%s: %s: out of range; expected %g to %g",
                        def->name, word, low, high);
    return SEGUE_OK;
}

/* Check every element of a comma-separated list. An empty element is an error. */
static segue_status check_numbers(const struct arg_def *def, const char *text, segue_error *err)
{
    for (const char *s = text;; s++) {
        size_t len = strcspn(s, ",");
        segue_status st = check_number(def, s, len, err);
        if (st || !s[len]) return st;
        s += len;
    }
}

static segue_status check_value(const struct arg_def *def, const char *text, segue_error *err)
{
    if (def->kind == ARG_CHOICE && !choice_of(def->metavar, text))
        return out_fail(err, SEGUE_EARG, "flag --%s: \"%.80s\": invalid value; choose one of %s", def->name, text, def->metavar);
    if (def->kind == ARG_COUNT || def->kind == ARG_REAL) return check_number(def, text, strlen(text), err);
    return def->kind == ARG_COUNTS ? check_numbers(def, text, err) : SEGUE_OK;
}

/* Add a checked value. The last value of a flag wins unless the flag is repeatable. */
static segue_status store_value(struct args *args, const struct arg_def *def, const char *text, segue_error *err)
{
    if (def == &no_effect) return SEGUE_OK;
    segue_status st = check_value(def, text, err);
    if (st) return st;
    char word[64];
    if (def->kind == ARG_CHOICE) { /* as the table spells it */
        snprintf(word, sizeof word, "%.*s", (int)strlen(text), choice_of(def->metavar, text));
        text = word;
    }
    if (!(def->flags & ARG_REPEATABLE))
        for (size_t i = 0; i < args->values_n; i++)
            if (args->values[i].def == def) {
                free(args->values[i].text);
                args->values[i].text = out_strdup(text);
                return SEGUE_OK;
            }
    args->values = out_realloc(args->values, (args->values_n + 1) * sizeof *args->values);
    args->values[args->values_n++] = (struct arg_value){def, out_strdup(text)};
    return SEGUE_OK;
}

/* Compacts the list of values in place. */
void args_unset(struct args *args, const char *name)
{
    size_t kept = 0;
    for (size_t i = 0; i < args->values_n; i++) {
        if (!strcmp(args->values[i].def->name, name))
            free(args->values[i].text);
        else
            args->values[kept++] = args->values[i];
    }
    args->values_n = kept;
}

/* Used for values that do not come from argv: lines of --requests, /set of chat, bench variants. */
segue_status args_set(struct args *args, const char *name, const char *text, segue_error *err)
{
    const struct arg_def *def = args_find(args->command, name, strlen(name));
    if (!def && name[0] && !name[1]) def = find_letter(args->command, name[0]);
    if (!def) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%.60s", name);
        return unknown_flag(args->command, flag, err);
    }
    return store_value(args, def, text, err);
}

/* Parse the flag at argv[*i]: --name VALUE, --name=VALUE, -x VALUE, -xVALUE or -x=VALUE. Advances *i if the value is
 * the next word. */
static segue_status parse_flag(struct args *args, int argc, char **argv, int *i, segue_error *err)
{
    const char *word = argv[*i], *value = NULL;
    const struct arg_def *def;
    bool alias = false;
    if (word[1] == '-') {
        size_t len = strcspn(word + 2, "=");
        def = args_find(args->command, word + 2, len);
        if (word[2 + len]) value = word + 3 + len;
    } else if (word[2] && (def = find_alias(args->command, word + 1, strlen(word + 1)))) {
        alias = true; /* such as -np */
    } else {
        def = find_letter(args->command, word[1]);
        if (word[2]) value = word[2] == '=' ? word + 3 : word + 2;
    }
    /* -ngl, -hf and the like are flags of other programs, unless they are a letter with a text attached. */
    bool foreign = word[1] != '-' && word[2] && !alias && (!def || (def->kind != ARG_TEXT && def->kind != ARG_FILE)) &&
                   other_spelling(args->command, word);
    if (!def || foreign) return unknown_flag(args->command, word, err);
    if (def->kind == ARG_SWITCH) {
        const char *name = word[1] == '-' ? word + 2 : def->name; /* an alias may have no other */
        if (value) return out_fail(err, SEGUE_EARG, "flag --%.*s: \"%.80s\": the flag takes no value; remove it",
                                   (int)strcspn(name, "="), name, value);
        return store_value(args, def, "", err);
    }
    if (!value) {
        if (*i + 1 >= argc)
            return out_fail(err, SEGUE_EARG, "flag --%s: value missing; expected %s", def->name, def->metavar);
        value = argv[++*i];
    }
    return store_value(args, def, value, err);
}

/* A single - is an operand, not a flag. */
segue_status args_parse(struct args *args, const struct command *command, int argc, char **argv,
                        segue_error *err)
{
    *args = (struct args){.command = command};
    args->operands = out_alloc(((size_t)argc + 1) * sizeof *args->operands);
    bool flags = true;
    for (int i = 0; i < argc; i++) {
        if (flags && !strcmp(argv[i], "--"))
            flags = false;
        else if (flags && argv[i][0] == '-' && argv[i][1]) {
            segue_status st = parse_flag(args, argc, argv, &i, err);
            if (st) return st;
        } else
            args->operands[args->operands_n++] = argv[i];
    }
    if (args->operands_n > (size_t)command->operands_max)
        return out_fail(err, SEGUE_EARG,
                        "segue %s: \"%.80s\": unexpected argument; see segue %s --help",
                        command->name, args->operands[command->operands_max], command->name);
    if (args->operands_n < (size_t)command->operands_min)
        return out_fail(err, SEGUE_EARG, "segue %s: %s missing; see segue %s --help", command->name,
                        command->operands, command->name);
    return SEGUE_OK;
}

/* The definitions are static, so only the texts are duplicated. */
struct args args_copy(const struct args *args)
{
    struct args c = {.command = args->command, .values_n = args->values_n};
    c.values = out_alloc((args->values_n + 1) * sizeof *c.values);
    for (size_t i = 0; i < args->values_n; i++)
        c.values[i] = (struct arg_value){args->values[i].def, out_strdup(args->values[i].text)};
    return c;
}

/* Operands point into argv, so only their list is freed. */
void args_free(struct args *args)
{
    for (size_t i = 0; i < args->values_n; i++) free(args->values[i].text);
    free(args->values);
    free(args->operands);
    *args = (struct args){0};
}

/* Values of a repeatable flag are stored in the order in which they were given. */
const char *args_nth(const struct args *args, const char *name, size_t i)
{
    for (size_t k = 0; k < args->values_n; k++)
        if (!strcmp(args->values[k].def->name, name) && i-- == 0) return args->values[k].text;
    return NULL;
}

const char *args_text(const struct args *args, const char *name) { return args_nth(args, name, 0); }

bool args_has(const struct args *args, const char *name) { return args_text(args, name) != NULL; }

/* The text was checked by store_value, so strtod cannot fail. */
double args_number(const struct args *args, const char *name, double fallback)
{
    const char *text = args_text(args, name);
    return text ? strtod(text, NULL) : fallback;
}

/* A list of k bytes has at most k numbers, so an array of strlen + 1 is large enough. */
long long *args_count_list(const struct args *args, const char *name, size_t *n)
{
    const char *s = args_text(args, name);
    long long *list = out_alloc(((s ? strlen(s) : 0) + 1) * sizeof *list);
    *n = 0;
    for (; s && *s; s += strcspn(s, ","), s += *s == ',') list[(*n)++] = strtoll(s, NULL, 10);
    return list;
}
