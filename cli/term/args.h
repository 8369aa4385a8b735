/* args.h: the command line as tables. A command is one `struct command`; its flags stand in groups of `struct
 * arg_def`, shared between commands. Parsing, help, man pages, completions, the lines of `run --requests` and
 * /set of `chat` all read these tables; no flag is named anywhere else but where its value is used. Must
 * never do: know what a flag means. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ARGS_H
#define SEGUE_CLI_ARGS_H

#include <stdbool.h>
#include "segue.h"

enum arg_kind {
    ARG_SWITCH,
    ARG_TEXT,
    ARG_FILE,
    ARG_FOLDER,
    ARG_COUNT,  /* integer within [low, high] */
    ARG_REAL,   /* finite number within [low, high] */
    ARG_CHOICE, /* one of meta, "a|b|c" */
    ARG_COUNTS, /* integers with commas between */
};

enum {
    ARG_MANY = 1,  /* may be given more than once, every value counts */
    ARG_MINOR = 2, /* named, not explained, in --help; explained in the man page */
    ARG_LATER = 4  /* known, refused with exit 3 unless its value is the preset */
};

struct arg_def {
    const char *name; /* long name without dashes */
    char letter;      /* 0 = none */
    unsigned char kind, flags;
    const char *meta;   /* what stands for the value: "N", "FILE", "a|b"; NULL for a switch */
    const char *preset; /* default, in words; NULL = none */
    double low, high;   /* of ARG_COUNT, ARG_COUNTS, ARG_REAL; both 0 = 0 to 2^53 */
    const char *help;
};

struct arg_group {
    const char *title;
    const struct arg_def *defs; /* ends with name NULL */
};

struct args;
struct command {
    const char *name, *summary;
    const char *operands; /* as shown in the usage line; NULL = none */
    int operands_min, operands_max;
    const char *example;                   /* a call that was run */
    const char *about;                     /* a paragraph for the man page */
    const struct arg_group *const *groups; /* ends with NULL */
    int (*run)(struct args *args);         /* gives the exit code */
};

struct args {
    const struct command *command;
    struct arg_value {
        const struct arg_def *def;
        char *text;
    } * values;
    size_t values_n;
    const char **operands;
    size_t operands_n;
};

/* SEGUE_OK, or EARG / EUNSUPPORTED with the one-line text. */
segue_status args_parse(struct args *args, const struct command *command, int argc, char **argv,
                        segue_error *err);
/* Set one flag by its long name or letter ('_' counts as '-'), replacing an earlier value unless it may be
 * repeated. */
segue_status args_set(struct args *args, const char *name, const char *text, segue_error *err);
void args_drop(struct args *args, const char *name); /* as if it had not been given */
struct args args_copy(const struct args *args);
void args_free(struct args *args);

bool args_has(const struct args *args, const char *name);
const char *args_text(const struct args *args, const char *name);           /* NULL = not given */
const char *args_each(const struct args *args, const char *name, size_t i); /* i-th value, NULL = no more */
double args_number(const struct args *args, const char *name, double otherwise);
/* The comma list of `name`; memory of the caller. *n = 0 when not given. */
long long *args_counts(const struct args *args, const char *name, size_t *n);

const struct arg_def *args_find(const struct command *command, const char *name, size_t len);
/* The nearest of names[n] to what was typed, NULL when nothing is near. */
const char *args_near(const char *typed, const char *const *names, size_t n);

#endif
