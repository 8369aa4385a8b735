/* help.c: see help.h. A help text fits a screen: at most 40 lines of 100 columns.
 * Must never do: name a command or a flag of its own.
 * SPDX-License-Identifier: MIT */
#include "term/help.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 99 };

static void def_usage(const struct arg_def *d, char *out, size_t cap)
{
    char letter[8] = "";
    if (d->letter) snprintf(letter, sizeof letter, "-%c, ", d->letter);
    snprintf(out, cap, "%s--%s%s%s", letter, d->name, d->meta ? " " : "", d->meta ? d->meta : "");
}

/* Words of s, wrapped; the first line starts at column `at`, the next ones are indented. */
static void wrap(struct out_text *text, const char *s, size_t at, size_t indent)
{
    size_t column = at;
    while (*s) {
        size_t n = strcspn(s, " ");
        if (column > indent && column + n + 1 > COLUMNS) {
            out_addf(text, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > at || column > indent) {
            out_add(text, " ", 1);
            column++;
        }
        out_add(text, s, n);
        column += n;
        s += n;
        while (*s == ' ') s++;
    }
    out_add(text, "\n", 1);
}

/* The flag, and its help beside or below it. */
static void full_def(struct out_text *text, const struct arg_def *d)
{
    char usage[96];
    def_usage(d, usage, sizeof usage);
    char *help = d->preset ? out_printf("%s (default: %s)", d->help, d->preset) : out_strdup(d->help);
    size_t before = text->len;
    out_addf(text, "  %-26s ", usage);
    wrap(text, help, text->len - before, 29);
    free(help);
}

/* The minor flags of all groups, as one wrapped list; those of later builds apart. */
static void minor_defs(struct out_text *text, const struct command *command, bool later)
{
    struct out_text list = {0};
    char usage[96];
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (!(d->flags & ARG_MINOR) || !(d->flags & ARG_LATER) == later) continue;
            def_usage(d, usage, sizeof usage);
            for (char *c = usage; *c; c++)
                if (*c == ' ') *c = '\1'; /* a flag and its value stay on one line */
            if (later) usage[strcspn(usage, "\1")] = 0;
            out_addf(&list, "%s%s", list.len ? "  " : "", usage);
        }
    if (list.len) {
        size_t from = text->len;
        out_addf(text, later ? "Not in this build (exit 3):" : "More (segue --man %s):", command->name);
        wrap(text, list.data, text->len - from, 4);
        for (size_t i = from; i < text->len; i++)
            if (text->data[i] == '\1') text->data[i] = ' ';
    }
    free(list.data);
}

/* What is explained stands one a line; the rest is named, so that the text fits a screen. */
void help_command(struct out_text *text, const struct command *command)
{
    out_addf(text, "segue %s: %s\n", command->name, command->summary);
    out_addf(text, "usage: segue %s%s%s [flags]\n", command->name, command->operands ? " " : "",
             command->operands ? command->operands : "");
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++)
            if (!(d->flags & ARG_MINOR)) full_def(text, d);
    minor_defs(text, command, false);
    minor_defs(text, command, true);
    out_addf(text, "example: %s\n", command->example);
}

void help_main(struct out_text *text, const struct command *const *commands)
{
    out_addf(text, "segue: run a language model across the compute units of a machine\n"
                   "usage: segue COMMAND [flags]\n");
    for (const struct command *const *c = commands; *c; c++)
        out_addf(text, "  %-10s %s\n", (*c)->name, (*c)->summary);
    out_addf(
        text,
        "segue COMMAND --help: flags and an example\n"
        "segue --man [COMMAND], segue --completion bash|zsh|fish, segue --version\n"
        "exit codes: 0 done, 1 input or output, 2 usage, 3 not on this machine or build, 4 file or input\n"
        "  refused, 5 does not fit, 6 a check failed, 7 unit lost, 130 interrupted\n"
        "example: %s\n",
        commands[0]->example);
}

/* --- man pages --- */

/* Text for roff: backslashes and dashes escaped, no line starts with a control character. */
static void roff(struct out_text *text, const char *s)
{
    if (*s == '.' || *s == '\'') out_addf(text, "\\&");
    for (; *s; s++) {
        if (*s == '\\')
            out_addf(text, "\\e");
        else if (*s == '-')
            out_addf(text, "\\-");
        else
            out_add(text, s, 1);
    }
}

/* The date is that of the version's tables, not of the day: the page must be the same whenever it is made. */
static void man_head(struct out_text *text, const char *page, const char *summary)
{
    char *upper = out_strdup(page);
    for (char *c = upper; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 32);
    out_addf(text, ".TH %s 1 \"2026-11-21\" \"segue %d.%d.%d\" \"segue\"\n.SH NAME\n", upper,
             SEGUE_VERSION_MAJOR, SEGUE_VERSION_MINOR, SEGUE_VERSION_PATCH);
    roff(text, page);
    out_addf(text, " \\- ");
    roff(text, summary);
    out_add(text, "\n", 1);
    free(upper);
}

static void man_def(struct out_text *text, const struct arg_def *d)
{
    out_addf(text, ".TP\n\\fB");
    if (d->letter) out_addf(text, "\\-%c\\fR, \\fB", d->letter);
    out_addf(text, "\\-\\-");
    roff(text, d->name);
    out_addf(text, "\\fR");
    if (d->meta) {
        out_addf(text, " \\fI");
        roff(text, d->meta);
        out_addf(text, "\\fR");
    }
    out_add(text, "\n", 1);
    roff(text, d->help);
    out_add(text, ".", 1);
    if (d->preset) {
        out_addf(text, " Default: ");
        roff(text, d->preset);
        out_add(text, ".", 1);
    }
    if (d->flags & ARG_LATER) out_addf(text, " Not in this build: refused with exit 3.");
    out_add(text, "\n", 1);
}

static void man_tail(struct out_text *text)
{
    out_addf(
        text,
        ".SH EXIT STATUS\n"
        "0 done; 1 input or output; 2 usage; 3 not available on this machine or in this build; 4 file or\n"
        "input refused; 5 does not fit; 6 a check failed; 7 a unit or peer was lost; 130 interrupted.\n"
        ".SH ENVIRONMENT\n"
        "SEGUE_HOME, SEGUE_MODEL, XDG_CACHE_HOME, XDG_DATA_HOME, HF_ENDPOINT, HF_TOKEN, HF_HOME, "
        "NO_COLOR.\n");
}

void help_man_command(struct out_text *text, const struct command *command)
{
    char *page = out_printf("segue-%s", command->name);
    man_head(text, page, command->summary);
    out_addf(text, ".SH SYNOPSIS\n\\fBsegue %s\\fR", command->name);
    if (command->operands) {
        out_add(text, " ", 1);
        roff(text, command->operands);
    }
    out_addf(text, " [flags]\n.SH DESCRIPTION\n");
    roff(text, command->about);
    out_add(text, "\n", 1);
    for (const struct arg_group *const *g = command->groups; *g; g++) {
        out_addf(text, ".SH %s\n", (*g)->title);
        for (const struct arg_def *d = (*g)->defs; d->name; d++) man_def(text, d);
    }
    out_addf(text, ".SH EXAMPLE\n.nf\n");
    roff(text, command->example);
    out_addf(text, "\n.fi\n");
    man_tail(text);
    out_addf(text, ".SH SEE ALSO\n.BR segue (1)\n");
    free(page);
}

void help_man_main(struct out_text *text, const struct command *const *commands)
{
    man_head(text, "segue", "run a language model across the compute units of a machine");
    out_addf(
        text,
        ".SH SYNOPSIS\n\\fBsegue\\fR \\fICOMMAND\\fR [flags]\n.SH DESCRIPTION\n"
        "segue reads the prompt on one compute unit, hands the state over, and writes the answer on "
        "another;\n"
        "or stays on one unit when that is better. The answer goes to standard output, everything else to\n"
        "standard error.\n.SH COMMANDS\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, ".TP\n.BR segue\\-");
        roff(text, (*c)->name);
        out_addf(text, " (1)\n");
        roff(text, (*c)->summary);
        out_add(text, "\n", 1);
    }
    man_tail(text);
}

/* --- completions --- */

static void bash_words(struct out_text *text, const struct command *command)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (d->letter) out_addf(text, "-%c ", d->letter);
            out_addf(text, "--%s ", d->name);
        }
}

/* Choices of a flag as words, for `case` lines; both spellings of the flag as pattern. */
static void bash_choices(struct out_text *text, const struct command *command)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (d->kind != ARG_CHOICE) continue;
            out_addf(text, "        %s:--%s) COMPREPLY=($(compgen -W \"", command->name, d->name);
            for (const char *c = d->meta; *c; c++) out_add(text, *c == '|' ? " " : c, 1);
            out_addf(text, "\" -- \"$word\")); return ;;\n");
        }
}

/* Values of choices first, then files unless the word begins with a dash, then the command's flags. */
static void completion_bash(struct out_text *text, const struct command *const *commands)
{
    out_addf(
        text,
        "# bash completion of segue, printed by `segue --completion bash`\n_segue()\n{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
        "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"");
    for (const struct command *const *c = commands; *c; c++) out_addf(text, "%s ", (*c)->name);
    out_addf(text, "--help --version --man --completion\" -- \"$word\")); return\n    fi\n"
                   "    case $command:$last in\n");
    for (const struct command *const *c = commands; *c; c++) bash_choices(text, *c);
    out_addf(text,
             "    esac\n    case $word in -*) ;; *) COMPREPLY=($(compgen -f -- \"$word\")); return ;; esac\n"
             "    case $command in\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        %s) COMPREPLY=($(compgen -W \"", (*c)->name);
        bash_words(text, *c);
        out_addf(text, "\" -- \"$word\")) ;;\n");
    }
    out_addf(text, "    esac\n}\ncomplete -o filenames -F _segue segue\n");
}

/* Text inside single quotes of a shell; brackets and colons would end a zsh description. */
static void quoted(struct out_text *text, const char *s, bool zsh)
{
    for (; *s; s++) {
        if (*s == '\'')
            out_addf(text, "'\\''");
        else if (zsh && strchr("[]:\\", *s))
            out_addf(text, "\\%c", *s);
        else
            out_add(text, s, 1);
    }
}

static void zsh_def(struct out_text *text, const struct arg_def *d, const char *dash, const char *name)
{
    out_addf(text, " \\\n            '%s%s%s[", d->flags & ARG_MANY ? "*" : "", dash, name);
    quoted(text, d->help, true);
    out_add(text, "]", 1);
    if (d->meta) {
        out_add(text, ":", 1);
        quoted(text, d->meta, true);
        if (d->kind == ARG_CHOICE) {
            out_addf(text, ":(");
            for (const char *c = d->meta; *c; c++) out_add(text, *c == '|' ? " " : c, 1);
            out_add(text, ")", 1);
        } else
            out_addf(text, d->kind == ARG_FILE ? ":_files" : d->kind == ARG_FOLDER ? ":_files -/" : ":");
    }
    out_add(text, "'", 1);
}

/* _arguments wants a line per spelling of a flag. */
static void completion_zsh(struct out_text *text, const struct command *const *commands)
{
    out_addf(text,
             "#compdef segue\n# zsh completion of segue, printed by `segue --completion zsh`\n_segue() {\n"
             "    local -a commands\n    commands=(\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        '%s:", (*c)->name);
        quoted(text, (*c)->summary, true);
        out_addf(text, "'\n");
    }
    out_addf(text, "    )\n    if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                   "    local command=$words[2]\n    shift words; (( CURRENT-- ))\n    case $command in\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        %s) _arguments", (*c)->name);
        for (const struct arg_group *const *g = (*c)->groups; *g; g++)
            for (const struct arg_def *d = (*g)->defs; d->name; d++) {
                char letter[2] = {d->letter, 0};
                if (d->letter) zsh_def(text, d, "-", letter);
                zsh_def(text, d, "--", d->name);
            }
        out_addf(text, " \\\n            '*:file:_files' ;;\n");
    }
    out_addf(text, "    esac\n}\n_segue \"$@\"\n");
}

static void fish_def(struct out_text *text, const struct command *command, const struct arg_def *d)
{
    out_addf(text, "complete -c segue -n '__fish_seen_subcommand_from %s' -l %s", command->name, d->name);
    if (d->letter) out_addf(text, " -s %c", d->letter);
    if (d->kind == ARG_CHOICE) {
        out_addf(text, " -x -a '");
        for (const char *c = d->meta; *c; c++) out_add(text, *c == '|' ? " " : c, 1);
        out_add(text, "'", 1);
    } else if (d->kind != ARG_SWITCH)
        out_addf(text, " -r");
    out_addf(text, " -d '");
    for (const char *c = d->help; *c; c++) {
        if (*c == '\'' || *c == '\\') out_add(text, "\\", 1);
        out_add(text, c, 1);
    }
    out_addf(text, "'\n");
}

/* Every flag is tied to its command by a condition. */
static void completion_fish(struct out_text *text, const struct command *const *commands)
{
    out_addf(text, "# fish completion of segue, printed by `segue --completion fish`\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "complete -c segue -f -n '__fish_use_subcommand' -a %s -d '", (*c)->name);
        quoted(text, (*c)->summary, false);
        out_addf(text, "'\n");
        for (const struct arg_group *const *g = (*c)->groups; *g; g++)
            for (const struct arg_def *d = (*g)->defs; d->name; d++) fish_def(text, *c, d);
    }
}

bool help_completion(struct out_text *text, const struct command *const *commands, const char *shell)
{
    if (!strcmp(shell, "bash"))
        completion_bash(text, commands);
    else if (!strcmp(shell, "zsh"))
        completion_zsh(text, commands);
    else if (!strcmp(shell, "fish"))
        completion_fish(text, commands);
    else
        return false;
    return true;
}
