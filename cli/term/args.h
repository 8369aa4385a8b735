/* args.h: command line parsing driven by tables. A command is one struct command; its flags are arrays of struct
 * arg_def in groups that several commands share. The same tables produce the parser, --help, the man pages, the shell
 * completions, the keys of `run --requests` and the names of /set in `chat`. Values are stored as text and checked
 * against kind and bounds when they are set; what a flag means is known only to the command that reads it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ARGS_H
#define SEGUE_CLI_ARGS_H

#include <stdbool.h>
#include "segue.h"

/* The type of a value; decides how it is checked and completed. */
enum arg_kind {
    ARG_SWITCH, /* takes no value */
    ARG_TEXT,
    ARG_FILE,
    ARG_FOLDER,
    ARG_COUNT,  /* integer in [low, high] */
    ARG_REAL,   /* finite number in [low, high] */
    ARG_CHOICE, /* one of the words of metavar, "a|b|c" */
    ARG_UNIT,   /* the spec of a unit */
    ARG_COUNTS, /* comma-separated integers in [low, high] */
};

/* Bits of arg_def.flags. */
enum {
    ARG_REPEATABLE = 1, /* may be given more than once; every value counts */
    ARG_ADVANCED = 2    /* --help lists only its name; the man page describes it */
};

/* One flag. All strings are static; tables of definitions end with ARG_END. */
struct arg_def {
    const char *name; /* long name without dashes */
    char letter;      /* short name; 0: none */
    unsigned char kind, flags;
    const char *metavar;      /* placeholder for the value: "N", "FILE", "a|b"; NULL for a switch */
    const char *default_text; /* default as shown to the user; NULL: none */
    double low, high;         /* inclusive bounds of numbers; both 0: 0 to 2^53 */
    const char *help;         /* description, without a final period */
};

/* A titled set of flags; the title is a section heading in the man page. */
struct arg_group {
    const char *title;
    const struct arg_def *defs; /* ends with ARG_END */
};

struct args;
/* A subcommand of segue. Every string is static. */
struct command {
    const char *name, *summary;
    const char *operands; /* as shown in the usage line; NULL: none */
    int operands_min, operands_max;
    const char *example;                   /* a complete call; tests/cli/cli_pages.py runs it */
    const char *about;                     /* DESCRIPTION of the man page */
    const struct arg_group *const *groups; /* ends with NULL */
    /* NULL, or what another program calls flags of this command, accepted alike: pairs of its name and ours, ends with NULL.
     * Ours is "" for a switch of that program that asks for what this command always does. */
    const char *const *aliases;
    int (*run)(struct args *args);         /* returns the exit code */
};

/* A parsed command line. values holds one entry per value in the order given. */
struct args {
    const struct command *command;
    struct arg_value {
        const struct arg_def *def;
        char *text;
    } * values;
    size_t values_n;
    const char **operands;
    size_t operands_n;
    const struct command *const *commands; /* all commands, run and chat first; ends with NULL. Set by main.c */
};

/* Parse argv[argc], which starts after the name of the command. Flags and operands may be mixed; after -- everything
 * is an operand. Returns SEGUE_EARG for a user error and SEGUE_EUNSUPPORTED for a flag this build does not implement.
 * Call args_free in any case. */
segue_status args_parse(struct args *args, const struct command *command, int argc, char **argv,
                        segue_error *err);
/* Set one flag by its long name or letter, with '_' accepted for '-'. Replaces an earlier value unless the flag is
 * ARG_REPEATABLE, in which case the value is added. */
segue_status args_set(struct args *args, const char *name, const char *text, segue_error *err);
/* Remove all values of a flag, as if it had not been given. */
void args_unset(struct args *args, const char *name);
/* Deep copy of the values. Operands are not copied. */
struct args args_copy(const struct args *args);
void args_free(struct args *args);

/* True if the flag was given at least once. */
bool args_has(const struct args *args, const char *name);
/* The value of a flag, owned by args; NULL if the flag was not given. */
const char *args_text(const struct args *args, const char *name);
/* The i-th value of a repeatable flag, counted from 0; NULL after the last one. */
const char *args_nth(const struct args *args, const char *name, size_t i);
/* The value of an ARG_COUNT or ARG_REAL flag, or fallback if the flag was not given. */
double args_number(const struct args *args, const char *name, double fallback);
/* The integers of an ARG_COUNTS flag in an array that the caller frees. *n is their number, 0 if the flag was not
 * given. */
long long *args_count_list(const struct args *args, const char *name, size_t *n);

/* The definition of the flag whose long name is name[len], with '_' accepted for '-'; NULL if there is none. */
const struct arg_def *args_find(const struct command *command, const char *name, size_t len);
/* The entry of names[n] with the smallest edit distance to `typed`, for "did you mean"; NULL if none is close. */
const char *args_suggest(const char *typed, const char *const *names, size_t n);
/* The flag of the command that typed, without dashes, stands for or is close to: also by the spellings of other programs. NULL if
 * there is none. */
const char *args_suggest_flag(const struct command *command, const char *typed);

#endif
