/* config.c: the configuration file, see config.h.
 * SPDX-License-Identifier: MIT */
#include "host/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "host/folders.h"

/* Largest file in bytes; a longer one is not a configuration. */
enum { FILE_LIMIT = 1 << 20 };

/* The flag that a key before the first section sets in a command; NULL: it does not apply. */
static const struct arg_def *general_flag(const struct command *command, const struct command *const *commands, const char *key)
{
    const struct arg_def *own = args_find(command, key, strlen(key));
    if (command == commands[0] || command == commands[1]) return own;
    for (int i = 0; own && i < 2; i++)
        if (args_find(commands[i], key, strlen(key)) == own) return own;
    return NULL;
}

/* The error for a key that is no flag, with the flag that is meant if it can be guessed. */
static segue_status unknown_key(const struct config *c, const struct config_value *v, const struct command *const *commands,
                                segue_error *err)
{
    const char *suggestion = NULL;
    for (int i = 0; i < (v->section ? 1 : 2) && !suggestion; i++)
        suggestion = args_suggest_flag(v->section ? v->section : commands[i], v->key);
    return out_fail(err, SEGUE_EARG, "configuration: %.300s line %u: %.60s: no flag of %s%s%s%s", c->path, v->line, v->key,
                    v->section ? "segue " : "run or chat", v->section ? v->section->name : "",
                    suggestion ? "; did you mean " : "; see segue run --help", suggestion ? suggestion : "");
}

/* The value of a switch: 1 on, 0 off, -1 neither. */
static int switch_value(const char *text)
{
    static const char *const on[] = {"", "on", "true", "yes", "1"}, *const off[] = {"off", "false", "no", "0"};
    for (size_t i = 0; i < 5; i++)
        if (!strcmp(text, on[i])) return 1;
    for (size_t i = 0; i < 4; i++)
        if (!strcmp(text, off[i])) return 0;
    return -1;
}

/* Set one value in args, if the flag is not a switch that is off. */
static segue_status set_value(struct args *args, const struct config *c, const struct config_value *v, segue_error *err)
{
    const struct arg_def *def = args_find(args->command, v->key, strlen(v->key));
    int on = def->kind == ARG_SWITCH ? switch_value(v->value) : 1;
    segue_error why;
    if (on == 0) return SEGUE_OK;
    if (on < 0)
        return out_fail(err, SEGUE_EARG, "configuration: %.300s line %u: %.60s: \"%.60s\"; expected on or off", c->path, v->line,
                        v->key, v->value);
    segue_status st = args_set(args, v->key, def->kind == ARG_SWITCH ? "" : v->value, &why);
    return st ? out_fail(err, st, "configuration: %.300s line %u: %.500s", c->path, v->line, why.text) : SEGUE_OK;
}

/* Check a value by setting it in an empty command line. */
static segue_status check(const struct config *c, const struct config_value *v, const struct command *const *commands,
                          segue_error *err)
{
    const struct command *command = v->section;
    for (int i = 0; i < 2 && !command; i++)
        if (args_find(commands[i], v->key, strlen(v->key))) command = commands[i];
    if (!command || !args_find(command, v->key, strlen(v->key))) return unknown_key(c, v, commands, err);
    struct args args = {.command = command};
    segue_status st = set_value(&args, c, v, err);
    args_free(&args);
    return st;
}

/* Remove white space at both ends, in place. */
static char *trimmed(char *s)
{
    s += strspn(s, " \t\r\n");
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

/* One line: a comment, [COMMAND], or KEY = VALUE. Quotes around a value are removed. */
static segue_status read_line(struct config *c, char *line, unsigned number, const struct command **section,
                              const struct command *const *commands, segue_error *err)
{
    char *key = trimmed(line), *end = key + strlen(key);
    if (!*key || *key == '#' || *key == ';') return SEGUE_OK;
    if (*key == '[' && end[-1] == ']') {
        end[-1] = 0;
        for (size_t i = 0; commands[i]; i++)
            if (!strcmp(commands[i]->name, key + 1)) {
                *section = commands[i];
                return SEGUE_OK;
            }
        return out_fail(err, SEGUE_EARG, "configuration: %.300s line %u: [%.60s]: no such command; see segue --help", c->path,
                        number, key + 1);
    }
    char *value = key + strcspn(key, "= \t"), *key_end = value;
    value += strspn(value, " \t");
    if (*value == '=') value++;
    *key_end = 0;
    value = trimmed(value);
    size_t n = strlen(value);
    if (n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n - 1] == value[0]) {
        value[n - 1] = 0;
        value++;
    }
    key += strspn(key, "-");
    for (char *k = key; *k; k++)
        if (*k == '_') *k = '-';
    c->values = out_realloc(c->values, (c->n + 1) * sizeof *c->values);
    c->values[c->n++] = (struct config_value){out_strdup(key), out_strdup(value), *section, number};
    return check(c, &c->values[c->n - 1], commands, err);
}

segue_status config_read(struct config *out, const struct command *const *commands, segue_error *err)
{
    *out = (struct config){.path = folders_path("config", "config")};
    FILE *f = fopen(out->path, "r");
    if (!f) return errno == ENOENT || errno == ENOTDIR ? SEGUE_OK : out_fail_errno(err, "configuration", out->path, NULL);
    out->exists = true;
    const struct command *section = NULL;
    segue_status st = SEGUE_OK;
    char *line = NULL;
    size_t cap = 0, total = 0;
    ssize_t n;
    for (unsigned number = 1; !st && (n = getline(&line, &cap, f)) >= 0; number++) {
        if (memchr(line, 0, (size_t)n) || (total += (size_t)n) > FILE_LIMIT)
            st = out_fail(err, SEGUE_EFORMAT, "configuration: %.300s line %u: not a text file of at most 1 MB", out->path,
                          number);
        else
            st = read_line(out, line, number, &section, commands, err);
    }
    if (!st && ferror(f)) st = out_fail_errno(err, "configuration", out->path, NULL);
    free(line);
    fclose(f);
    return st;
}

void config_free(struct config *config)
{
    for (size_t i = 0; i < config->n; i++) {
        free(config->values[i].key);
        free(config->values[i].value);
    }
    free(config->values);
    free(config->path);
    *config = (struct config){0};
}

/* True if a flag of the command line excludes a key of the file, so that the two cannot contradict each other. */
static bool is_excluded(const struct args *args, const char *key, size_t given)
{
    static const struct {
        const char *key, *flag;
    } pairs[] = {{"greedy", "temp"},      {"unit", "pipeline"},   {"pipeline", "unit"}, {"pipeline", "prefill"},
                 {"pipeline", "decode"}, {"prompt", "messages"}, {"prompt", "ids"},    {"session", "load"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (size_t k = 0; k < given && !strcmp(pairs[i].key, key); k++)
            if (!strcmp(args->values[k].def->name, pairs[i].flag)) return true;
    return false;
}

/* The last value of a key wins, unless the flag is repeatable; a section wins over the lines before it. */
segue_status config_apply(struct args *args, segue_error *err)
{
    if (!args_find(args->command, "model", 5)) return SEGUE_OK;
    struct config c;
    const char *model = getenv("SEGUE_MODEL");
    size_t given = args->values_n;
    segue_status st = config_read(&c, args->commands, err);
    for (size_t i = 0; i < c.n && !st; i++) {
        const struct config_value *v = &c.values[i];
        const struct arg_def *def = !v->section                     ? general_flag(args->command, args->commands, v->key)
                                    : v->section == args->command ? args_find(args->command, v->key, strlen(v->key))
                                                                  : NULL;
        bool skip = !def || is_excluded(args, def->name, given) || (!strcmp(def->name, "model") && model && *model);
        for (size_t k = 0; k < given; k++) skip |= args->values[k].def == def;
        if (!skip) st = set_value(args, &c, v, err);
    }
    config_free(&c);
    return st;
}
