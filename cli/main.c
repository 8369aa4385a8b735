/* main.c: entry point: finds the command in the table below and runs it with its parsed flags. Also handles --help,
 * --version, --man, --completion and --list.
 * The exit codes are those of term/out.h; a command returns its own.
 * SPDX-License-Identifier: MIT */
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "host/config.h"
#include "host/faults.h"
#include "host/model_names.h"
#include "term/help.h"
#include "term/interrupt.h"
#include "host/machine.h"
#include "term/out.h"
#include "term/spellings.h"
#include "host/serve_unit.h"

/* All commands in the order of segue --help, run and chat first; ends with NULL. */
static const struct command *const commands[] = {
    &cmd_run, &cmd_chat, &cmd_serve, &cmd_plan, &cmd_calibrate, &cmd_eval, &cmd_bench, &cmd_units, &cmd_inspect,
    &cmd_models, &cmd_pull, &cmd_quantize, &cmd_imatrix, &cmd_train, &cmd_mil, &cmd_ane_probe, &cmd_ane_report, &cmd_state,
    &cmd_cache, &cmd_tokenize, &cmd_template, &cmd_config, &cmd_energy, &cmd_replay, &cmd_version, NULL,
};

/* The command of that name, or NULL. */
static const struct command *find(const char *name)
{
    for (const struct command *const *c = commands; *c; c++)
        if (!strcmp((*c)->name, name)) return *c;
    return NULL;
}

/* Print and free text; returns the exit code. */
static int print(struct out_text *text)
{
    segue_error err;
    segue_status st = out_write(text->data, text->len, &err);
    free(text->data);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}

/* Report an unknown command: exit 2, with a suggestion for a typing error; the name of the separate program check: exit 3. */
static int unknown_command(const char *name)
{
    segue_error err;
    if (!strcmp(name, "check")) {
        out_fail(&err, SEGUE_EUNSUPPORTED, "command: check: not a subcommand; run the separate program check");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    /* More than the number of commands and of their spellings elsewhere. */
    const char *names[64];
    size_t n = 0;
    for (const struct command *const *c = commands; *c; c++) names[n++] = (*c)->name;
    const char *suggestion = spellings_command(name);
    /* Ours are first, so that they win where both are as close. */
    if (!suggestion) {
        n += spellings_commands(names + n, sizeof names / sizeof *names - n);
        suggestion = args_suggest(name, names, n);
        if (suggestion && spellings_command(suggestion)) suggestion = spellings_command(suggestion);
    }
    if (suggestion)
        out_fail(&err, SEGUE_EARG, "command: %.60s: unknown; did you mean segue %s?", name, suggestion);
    else
        out_fail(&err, SEGUE_EARG, "command: %.60s: unknown; see segue --help", name);
    return out_error(&err, EXIT_UNAVAILABLE);
}

/* segue --man [NAME], --completion SHELL, --list: text generated from the tables; --list models: the names of installed
 * models, for completion. */
static int print_generated(int argc, char **argv)
{
    struct out_text text = {0};
    segue_error err;
    const char *what = argv[1], *name = argc > 2 ? argv[2] : NULL;
    if (!strcmp(what, "--man")) {
        const struct command *c = name ? find(name) : NULL;
        if (name && !c && strcmp(name, "segue") != 0) return unknown_command(name);
        if (c)
            help_man_command(&text, c);
        else
            help_man_main(&text, commands);
    } else if (!strcmp(what, "--completion")) {
        if (!name || !help_completion(&text, commands, name)) {
            out_fail(&err, SEGUE_EARG, "flag --completion: %.40s: unknown shell; expected bash, zsh or fish",
                     name ? name : "");
            return out_error(&err, EXIT_UNAVAILABLE);
        }
    } else if (name && !strcmp(name, "models")) {
        struct installed_models list;
        model_names_list(&list);
        for (size_t i = 0; i < list.n; i++)
            if (!strpbrk(list.items[i].name, "\n\r")) out_addf(&text, "%s\n", list.items[i].name);
        model_names_free(&list);
    } else
        for (const struct command *const *c = commands; *c; c++) out_addf(&text, "%s\n", (*c)->name);
    return print(&text);
}

/* Parse and run. --help and --json are detected before parsing, so that --help works next to an invalid flag and
 * errors of the parser are printed as JSON. */
static int run_command(const struct command *command, int argc, char **argv)
{
    struct args args;
    segue_error err;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        /* Also for errors of the parser, which come before the flags are known. */
        if (!strcmp(argv[i], "--json")) {
            out_json_errors(true);
            interrupt_json(true);
        }
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        struct out_text text = {0};
        help_command(&text, command);
        return print(&text);
    }
    segue_status st = args_parse(&args, command, argc, argv, &err);
    args.commands = commands;
    if (!st) st = config_apply(&args, &err);
    int code = st ? out_error(&err, EXIT_UNAVAILABLE) : command->run(&args);
    args_free(&args);
    /* Text printed with printf is buffered; a full disk shows up here. */
    if (fflush(stdout) && code == EXIT_DONE) {
        out_fail_errno(&err, "writing the answer", "standard output", NULL);
        code = out_error(&err, EXIT_UNAVAILABLE);
    }
    return code;
}

/* Set the character type of the terminal: line editing drops characters that the locale does not have. Without a UTF-8
 * locale in the environment, as in most containers, UTF-8 is assumed. Only LC_CTYPE: numbers keep their point. */
static void set_character_type(void)
{
    static const char *const fallbacks[] = {"C.UTF-8", "C.utf8", "en_US.UTF-8"};
    const char *set = setlocale(LC_CTYPE, "");
    for (size_t i = 0; i < 3 && (!set || strcmp(nl_langinfo(CODESET), "UTF-8") != 0); i++)
        set = setlocale(LC_CTYPE, fallbacks[i]);
}

/* --serve-unit is handled first: the process then serves a unit to its parent and must not install signal handlers.
 * Without arguments the help is printed on stderr with exit 2. */
int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--serve-unit")) return serve_unit();
    set_character_type();
    machine_init();
    interrupt_init();
    if (!faults_init()) return EXIT_USAGE;
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        const struct command *c = argc > 2 ? find(argv[2]) : NULL;
        struct out_text text = {0};
        if (c)
            help_command(&text, c);
        else
            help_main(&text, commands);
        if (argc >= 2) return print(&text);
        fputs(text.data, stderr);
        free(text.data);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--version")) return run_command(&cmd_version, 0, NULL);
    if (!strcmp(argv[1], "--man") || !strcmp(argv[1], "--completion") || !strcmp(argv[1], "--list"))
        return print_generated(argc, argv);
    const struct command *command = find(argv[1]);
    if (command) return run_command(command, argc - 2, argv + 2);
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--json")) out_json_errors(true);
    return unknown_command(argv[1]);
}
