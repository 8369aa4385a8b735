/* main.c: the door. Finds the command in one table and hands it its flags.
 * Must never do: anything that a command does.
 * Next: args.h (the tables), cmd_run.c (the main job).
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "task/faults.h"
#include "term/help.h"
#include "term/interrupt.h"
#include "task/machine.h"
#include "term/out.h"
#include "task/serve_unit.h"

static const struct command *const commands[] = {
    &cmd_run,    &cmd_chat,     &cmd_eval,     &cmd_bench,   &cmd_units,     &cmd_inspect,
    &cmd_models, &cmd_pull,     &cmd_quantize, &cmd_mil,     &cmd_ane_probe, &cmd_state,
    &cmd_cache,  &cmd_tokenize, &cmd_template, &cmd_version, NULL,
};

/* Commands of docs/INTERFACE.md that this build does not hold yet: refused by name. */
static const char *const later[] = {"plan", "calibrate", "replay", "serve", "train"};

static const struct command *find(const char *name)
{
    for (const struct command *const *c = commands; *c; c++)
        if (!strcmp((*c)->name, name)) return *c;
    return NULL;
}

static int print(struct out_text *text)
{
    segue_error err;
    segue_status st = out_write(text->data, text->len, &err);
    free(text->data);
    return st ? out_error(&err, EXIT_NOT_HERE) : EXIT_DONE;
}

/* A command of a later version is not a typing error: exit 3 says that it exists. */
static int unknown(const char *name)
{
    segue_error err;
    if (!strcmp(name, "check")) {
        out_fail(&err, SEGUE_EUNSUPPORTED, "command: check: a program of its own; run check, beside segue");
        return out_error(&err, EXIT_NOT_HERE);
    }
    const char *names[32];
    size_t n = 0;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (!strcmp(later[i], name)) {
            out_fail(&err, SEGUE_EUNSUPPORTED, "command: %s: not in this build; see segue --help", name);
            return out_error(&err, EXIT_NOT_HERE);
        }
    for (const struct command *const *c = commands; *c; c++) names[n++] = (*c)->name;
    const char *near = args_near(name, names, n);
    if (near)
        out_fail(&err, SEGUE_EARG, "command: %.60s: unknown; did you mean segue %s?", name, near);
    else
        out_fail(&err, SEGUE_EARG, "command: %.60s: unknown; see segue --help", name);
    return out_error(&err, EXIT_NOT_HERE);
}

/* segue --man [NAME], --completion SHELL, --list. */
static int pages(int argc, char **argv)
{
    struct out_text text = {0};
    segue_error err;
    const char *what = argv[1], *name = argc > 2 ? argv[2] : NULL;
    if (!strcmp(what, "--man")) {
        const struct command *c = name ? find(name) : NULL;
        if (name && !c && strcmp(name, "segue") != 0) return unknown(name);
        if (c)
            help_man_command(&text, c);
        else
            help_man_main(&text, commands);
    } else if (!strcmp(what, "--completion")) {
        if (!name || !help_completion(&text, commands, name)) {
            out_fail(&err, SEGUE_EARG, "flag --completion: %.40s: unknown shell; give bash, zsh or fish",
                     name ? name : "");
            return out_error(&err, EXIT_NOT_HERE);
        }
    } else
        for (const struct command *const *c = commands; *c; c++) out_addf(&text, "%s\n", (*c)->name);
    return print(&text);
}

/* --help and --json are looked for before parsing, so that both work beside mistakes. */
static int run_command(const struct command *command, int argc, char **argv)
{
    struct args args;
    segue_error err;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!strcmp(argv[i], "--json")) {
            out_json_errors(true);
            interrupt_json(true);
        }
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        struct out_text text = {0};
        help_command(&text, command);
        return print(&text);
    }
    int code =
        args_parse(&args, command, argc, argv, &err) ? out_error(&err, EXIT_NOT_HERE) : command->run(&args);
    args_free(&args);
    if (fflush(stdout) && code == EXIT_DONE) {
        out_fail_errno(&err, "writing the answer", "standard output", NULL);
        code = out_error(&err, EXIT_NOT_HERE);
    }
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--serve-unit")) return serve_unit();
    machine_begin();
    interrupt_begin();
    if (!faults_begin()) return EXIT_USAGE;
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
        return pages(argc, argv);
    const struct command *command = find(argv[1]);
    if (command) return run_command(command, argc - 2, argv + 2);
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--json")) out_json_errors(true);
    return unknown(argv[1]);
}
