/* help.c: help texts, man pages and shell completions. A --help text has at most 40 lines of 100 columns, so that it
 * fits a screen; tests/cli/cli_pages.py checks this. No command or flag is named here except --help, --version, --man
 * and --completion.
 * SPDX-License-Identifier: MIT */
#include "term/help.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_WIDTH = 99 }; /* columns of a --help text */

/* "-x, --name VALUE" into out[cap]. */
static void format_flag(const struct arg_def *d, char *out, size_t cap)
{
    char letter[8] = "";
    if (d->letter) snprintf(letter, sizeof letter, "-%c, ", d->letter);
    snprintf(out, cap, "%s--%s%s%s", letter, d->name, d->metavar ? " " : "", d->metavar ? d->metavar : "");
}

/* Append the words of s, wrapped at LINE_WIDTH. The first line already has start_column characters; the following
 * lines are indented by `indent`. */
static void wrap(struct out_text *text, const char *s, size_t start_column, size_t indent)
{
    size_t column = start_column;
    while (*s) {
        size_t n = strcspn(s, " ");
        if (column > indent && column + n + 1 > LINE_WIDTH) {
            out_addf(text, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > start_column || column > indent) {
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

/* One flag of --help: usage in a column of 28 characters, help and default next to it. */
static void print_flag(struct out_text *text, const struct arg_def *d)
{
    char usage[96];
    format_flag(d, usage, sizeof usage);
    char *help = d->default_text ? out_printf("%s (default: %s)", d->help, d->default_text) : out_strdup(d->help);
    size_t before = text->len;
    out_addf(text, "  %-26s ", usage);
    wrap(text, help, text->len - before, 29);
    free(help);
}

/* The ARG_ADVANCED flags of all groups as one wrapped list. \1 stands for the blanks inside "--flag VALUE" while
 * wrapping, so that a flag and its value stay on one line. */
static void print_flag_names(struct out_text *text, const struct command *command)
{
    struct out_text list = {0};
    char usage[96];
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (!(d->flags & ARG_ADVANCED)) continue;
            format_flag(d, usage, sizeof usage);
            for (char *c = usage; *c; c++)
                if (*c == ' ') *c = '\1';
            out_addf(&list, "%s%s", list.len ? "  " : "", usage);
        }
    if (list.len) {
        size_t from = text->len;
        out_addf(text, "More (segue --man %s):", command->name);
        wrap(text, list.data, text->len - from, 4);
        for (size_t i = from; i < text->len; i++)
            if (text->data[i] == '\1') text->data[i] = ' ';
    }
    free(list.data);
}

/* Flags without ARG_ADVANCED get one entry each; the others are only listed, to keep the text on one screen. */
void help_command(struct out_text *text, const struct command *command)
{
    out_addf(text, "segue %s: %s\n", command->name, command->summary);
    out_addf(text, "usage: segue %s%s%s [flags]\n", command->name, command->operands ? " " : "",
             command->operands ? command->operands : "");
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++)
            if (!(d->flags & ARG_ADVANCED)) print_flag(text, d);
    print_flag_names(text, command);
    out_addf(text, "example: %s\n", command->example);
}

/* List of the commands with their summaries, exit codes and the example of the first command. */
void help_main(struct out_text *text, const struct command *const *commands)
{
    out_addf(text, "segue: run a language model across the compute units of a machine\n"
                   "usage: segue COMMAND [flags]\n");
    for (const struct command *const *c = commands; *c; c++)
        out_addf(text, "  %-10s %s\n", (*c)->name, (*c)->summary);
    out_addf(
        text,
        "segue COMMAND --help: flags and an example of a command\n"
        "segue --man [COMMAND], segue --completion bash|zsh|fish, segue --version\n"
        "exit codes: 0 success, 1 I/O error, 2 usage error, 3 not available on this machine or build,\n"
        "  4 invalid file or input, 5 out of memory or over a limit, 6 check failed, 7 unit lost,\n"
        "  130 interrupted\n"
        "example: %s\n",
        commands[0]->example);
}

/* Append s as roff text: escape backslashes and dashes, and protect a leading control character. */
static void add_roff(struct out_text *text, const char *s)
{
    if (*s == '.' || *s == '\'') out_addf(text, "\\&");
    for (; *s; s++) {
        if (*s == '\\')
            out_addf(text, "\\e");
        else if (*s == '-')
            out_addf(text, "\\-");
        else if (*s == '|')
            out_addf(text, "|\\:"); /* a line may break here: choices can be long */
        else
            out_add(text, s, 1);
    }
}

/* The date belongs to the version of the tables and is fixed: the page must not depend on the day of the build. */
static void man_header(struct out_text *text, const char *page, const char *summary)
{
    char *upper = out_strdup(page);
    for (char *c = upper; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 32);
    out_addf(text, ".TH %s 1 \"2026-11-21\" \"segue %d.%d.%d\" \"segue\"\n.SH NAME\n", upper,
             SEGUE_VERSION_MAJOR, SEGUE_VERSION_MINOR, SEGUE_VERSION_PATCH);
    add_roff(text, page);
    out_addf(text, " \\- ");
    add_roff(text, summary);
    out_add(text, "\n", 1);
    free(upper);
}

/* One flag as a .TP paragraph. */
static void man_flag(struct out_text *text, const struct arg_def *d)
{
    out_addf(text, ".TP\n\\fB");
    if (d->letter) out_addf(text, "\\-%c\\fR, \\fB", d->letter);
    out_addf(text, "\\-\\-");
    add_roff(text, d->name);
    out_addf(text, "\\fR");
    if (d->metavar) {
        out_addf(text, " \\fI");
        add_roff(text, d->metavar);
        out_addf(text, "\\fR");
    }
    out_add(text, "\n", 1);
    add_roff(text, d->help);
    out_add(text, ".", 1);
    if (d->default_text) {
        out_addf(text, " Default: ");
        add_roff(text, d->default_text);
        out_add(text, ".", 1);
    }
    out_add(text, "\n", 1);
}

/* Exit codes and environment variables, the same on every page. */
static void man_footer(struct out_text *text)
{
    out_addf(
        text,
        ".SH EXIT STATUS\n"
        "0 success; 1 I/O error; 2 usage error; 3 not available on this machine or in this build; 4 invalid\n"
        "file or input; 5 out of memory or over a limit; 6 check failed; 7 unit or peer lost; 130 interrupted.\n"
        ".SH ENVIRONMENT\n"
        "SEGUE_HOME, SEGUE_MODEL, XDG_CACHE_HOME, XDG_CONFIG_HOME, XDG_DATA_HOME, HF_ENDPOINT, HF_TOKEN, HF_HOME, "
        "HF_HUB_CACHE, NO_COLOR.\n");
}

/* Synopsis, description, one section per group of flags, and the example. */
void help_man_command(struct out_text *text, const struct command *command)
{
    char *page = out_printf("segue-%s", command->name);
    man_header(text, page, command->summary);
    out_addf(text, ".SH SYNOPSIS\n\\fBsegue %s\\fR", command->name);
    if (command->operands) {
        out_add(text, " ", 1);
        add_roff(text, command->operands);
    }
    out_addf(text, " [flags]\n.SH DESCRIPTION\n");
    add_roff(text, command->about);
    out_add(text, "\n", 1);
    for (const struct arg_group *const *g = command->groups; *g; g++) {
        out_addf(text, ".SH %s\n", (*g)->title);
        for (const struct arg_def *d = (*g)->defs; d->name; d++) man_flag(text, d);
    }
    out_addf(text, ".SH EXAMPLE\n.nf\n");
    add_roff(text, command->example);
    out_addf(text, "\n.fi\n");
    man_footer(text);
    out_addf(text, ".SH SEE ALSO\n.BR segue (1)\n");
    free(page);
}

/* The list of commands refers to one man page per command. */
void help_man_main(struct out_text *text, const struct command *const *commands)
{
    man_header(text, "segue", "run a language model across the compute units of a machine");
    out_addf(
        text,
        ".SH SYNOPSIS\n\\fBsegue\\fR \\fICOMMAND\\fR [flags]\n.SH DESCRIPTION\n"
        "segue runs prefill on one compute unit and decode on another, and moves the state between them, or\n"
        "runs both phases on one unit. The answer is written to standard output, messages to standard error.\n.SH COMMANDS\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, ".TP\n.BR segue\\-");
        add_roff(text, (*c)->name);
        out_addf(text, " (1)\n");
        add_roff(text, (*c)->summary);
        out_add(text, "\n", 1);
    }
    man_footer(text);
}

/* The next sub-verb of a command, such as "rm" in "[list|rm NAME]": the lower-case words at the start of alternatives in the
 * first operand. *at: position, 0 at first. Returns its length, 0 at the end. */
static size_t next_verb(const struct command *command, size_t *at, const char **verb)
{
    const char *s = command->operands;
    if (!s) return 0;
    if (!*at && s[0] == '[') ++*at;
    while (s[*at] && s[*at] != ']') {
        const char *word = s + *at;
        size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyz-"), rest = strcspn(word, "|] ");
        *at += rest;
        /* Skip the operand of the verb, unless it is the end of the first operand. */
        if (s[*at] == ' ' && s[0] == '[') *at += strcspn(s + *at, "|]");
        bool last = s[*at] == ' ' || !s[*at] || s[*at] == ']';
        if (!last) ++*at;
        if (last && s[*at]) *at = strlen(s);
        if (n && n == rest && word[0] != '-') {
            *verb = word;
            return n;
        }
        if (last) break;
    }
    return 0;
}

/* Values of a flag as words with spaces between them: the choices of its metavar, or the units of this machine. */
static void add_words(struct out_text *text, const struct arg_def *d)
{
    for (const char *c = d->kind == ARG_CHOICE ? d->metavar : ""; *c; c++) out_add(text, *c == '|' ? " " : c, 1);
    if (d->kind != ARG_UNIT) return;
    segue_unit_info infos[32];
    size_t n = 0;
    segue_error ignored;
    for (size_t i = 0; i < 32; i++) infos[i] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(infos, 32, &n, &ignored) < 0 && n == 0) return;
    const char *before = "";
    for (size_t i = 0; i < n && i < 32; i++) {
        size_t len = strcspn(infos[i].spec, ":,");
        /* cpu:threads=8 completes to cpu; the instances of other kinds differ in a number or word without '='. */
        if (!infos[i].built || strchr(infos[i].spec, '=')) {
            if (!infos[i].built || strcmp(infos[i].kind, before) == 0) continue;
            out_addf(text, "%s%.*s", text->len && text->data[text->len - 1] != ' ' ? " " : "", (int)len, infos[i].spec);
        } else
            out_addf(text, "%s%s", text->len && text->data[text->len - 1] != ' ' ? " " : "", infos[i].spec);
        before = infos[i].kind;
    }
}

/* All flags of a command as one line of words for compgen. */
static void bash_flags(struct out_text *text, const struct command *command)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (d->letter) out_addf(text, "-%c ", d->letter);
            out_addf(text, "--%s ", d->name);
        }
}

/* A `case` line for each flag of a command whose values are known. */
static void bash_choices(struct out_text *text, const struct command *command)
{
    for (const struct arg_group *const *g = command->groups; *g; g++)
        for (const struct arg_def *d = (*g)->defs; d->name; d++) {
            if (d->kind != ARG_CHOICE && d->kind != ARG_UNIT) continue;
            struct out_text words = {0};
            add_words(&words, d);
            out_addf(text, "        %s:--%s) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")); return ;;\n", command->name, d->name,
                     words.data ? words.data : "");
            free(words.data);
        }
}

/* True for the flag whose values are names of models, or files. */
static bool is_model(const struct arg_def *d) { return !strcmp(d->name, "model"); }

/* A function that offers the installed models beside files. bash divides words at colons, which names of models may have: what
 * is before the last colon of the word under the cursor is not repeated. */
static const char bash_models[] =
    "_segue_models()\n{\n    local name typed=${COMP_LINE:0:COMP_POINT} line\n    typed=${typed##* }\n"
    "    while IFS= read -r name; do\n        case $name in\n"
    "        \"$typed\"*) COMPREPLY+=(\"${name#\"${typed%\"${typed##*:}\"}\"}\") ;; esac\n"
    "    done < <(segue --list models 2>/dev/null)\n"
    "    while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n";

/* A `case` line for the sub-verbs of a command, offered as its first operand. */
static void bash_verbs(struct out_text *text, const struct command *command)
{
    const char *verb;
    size_t at = 0, n;
    bool first = true;
    while ((n = next_verb(command, &at, &verb))) {
        if (first) out_addf(text, "        %s) COMPREPLY=($(compgen -W \"", command->name);
        out_addf(text, "%s%.*s", first ? "" : " ", (int)n, verb);
        first = false;
    }
    if (!first) out_addf(text, "\" -- \"$word\")) ;;\n");
}

/* Order: values of known flags, then sub-verbs as the first operand, then file names unless the word starts with a dash, then
 * flags of the command. File names may have spaces: one line each, read by a loop because macOS has no mapfile. */
static void completion_bash(struct out_text *text, const struct command *const *commands)
{
    out_addf(
        text,
        "# bash completion of segue, printed by `segue --completion bash`\n%s_segue()\n{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} line\n"
        "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"",
        bash_models);
    for (const struct command *const *c = commands; *c; c++) out_addf(text, "%s ", (*c)->name);
    out_addf(text, "--help --version --man --completion\" -- \"$word\")); return\n    fi\n"
                   "    local at=$((COMP_CWORD-1))\n    [ \"$word\" != : ] || at=$((at-1))\n"
                   "    [ \"$last\" != : ] || at=$((at-2))\n"
                   "    case $command:${COMP_WORDS[at]} in *:-m | *:--model | models:rm) _segue_models; return ;; esac\n"
                   "    case $command:$last in\n");
    for (const struct command *const *c = commands; *c; c++) bash_choices(text, *c);
    out_addf(text, "    esac\n    if [ \"$COMP_CWORD\" -eq 2 ]; then case $command in\n");
    for (const struct command *const *c = commands; *c; c++) bash_verbs(text, *c);
    out_addf(text,
             "    esac; [ ${#COMPREPLY[@]} -eq 0 ] || return; fi\n"
             "    case $word in -*) ;; *) while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen -f -- \"$word\"); "
             "return ;; esac\n    case $command in\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        %s) COMPREPLY=($(compgen -W \"", (*c)->name);
        bash_flags(text, *c);
        out_addf(text, "\" -- \"$word\")) ;;\n");
    }
    out_addf(text, "    esac\n}\ncomplete -o filenames -F _segue segue\n");
}

/* Append s for use inside single quotes of a shell. zsh also needs brackets and colons escaped in descriptions. */
static void add_quoted(struct out_text *text, const char *s, bool zsh)
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

/* One argument of _arguments for one spelling of a flag: dash "-" or "--", name, description and kind of value. */
static void zsh_flag(struct out_text *text, const struct arg_def *d, const char *dash, const char *name)
{
    out_addf(text, " \\\n            '%s%s%s[", d->flags & ARG_REPEATABLE ? "*" : "", dash, name);
    add_quoted(text, d->help, true);
    out_add(text, "]", 1);
    if (d->metavar) {
        out_add(text, ":", 1);
        add_quoted(text, d->metavar, true);
        if (d->kind == ARG_CHOICE || d->kind == ARG_UNIT) {
            struct out_text words = {0};
            add_words(&words, d);
            out_addf(text, ":(");
            add_quoted(text, words.data ? words.data : "", true);
            out_add(text, ")", 1);
            free(words.data);
        } else
            out_addf(text, is_model(d)                ? ":_segue_models"
                           : d->kind == ARG_FILE   ? ":_files"
                           : d->kind == ARG_FOLDER ? ":_files -/"
                                                   : ":");
    }
    out_add(text, "'", 1);
}

/* _arguments needs one entry per spelling of a flag. */
static void completion_zsh(struct out_text *text, const struct command *const *commands)
{
    out_addf(text,
             "#compdef segue\n# zsh completion of segue, printed by `segue --completion zsh`\n_segue_models() {\n"
             "    local -a names\n    names=(${(f)\"$(segue --list models 2>/dev/null)\"})\n"
             "    compadd -a names\n    _files\n}\n_segue() {\n"
             "    local -a commands\n    commands=(\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        '%s:", (*c)->name);
        add_quoted(text, (*c)->summary, true);
        out_addf(text, "'\n");
    }
    out_addf(text, "    )\n    if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                   "    local command=$words[2]\n    shift words; (( CURRENT-- ))\n    case $command in\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "        %s) _arguments", (*c)->name);
        for (const struct arg_group *const *g = (*c)->groups; *g; g++)
            for (const struct arg_def *d = (*g)->defs; d->name; d++) {
                char letter[2] = {d->letter, 0};
                if (d->letter) zsh_flag(text, d, "-", letter);
                zsh_flag(text, d, "--", d->name);
            }
        const char *verb;
        size_t at = 0, n;
        bool first = true;
        while ((n = next_verb(*c, &at, &verb))) {
            out_addf(text, "%s%.*s", first ? " \\\n            '1:verb:(" : " ", (int)n, verb);
            first = false;
        }
        out_addf(text, "%s \\\n            '*:file:%s' ;;\n", first ? "" : ")'",
                 strcmp((*c)->name, "models") ? "_files" : "_segue_models");
    }
    out_addf(text, "    esac\n}\n_segue \"$@\"\n");
}

/* One `complete` line, active only after the name of its command. */
static void fish_flag(struct out_text *text, const struct command *command, const struct arg_def *d)
{
    out_addf(text, "complete -c segue -n '__fish_seen_subcommand_from %s' -l %s", command->name, d->name);
    if (d->letter) out_addf(text, " -s %c", d->letter);
    if (d->kind == ARG_CHOICE || d->kind == ARG_UNIT) {
        struct out_text words = {0};
        add_words(&words, d);
        out_addf(text, " -x -a '%s'", words.data ? words.data : "");
        free(words.data);
    } else if (is_model(d))
        out_addf(text, " -r -a '(segue --list models 2>/dev/null)'");
    else if (d->kind != ARG_SWITCH)
        out_addf(text, " -r");
    out_addf(text, " -d '");
    for (const char *c = d->help; *c; c++) {
        if (*c == '\'' || *c == '\\') out_add(text, "\\", 1);
        out_add(text, c, 1);
    }
    out_addf(text, "'\n");
}

/* One `complete` line per command and per flag. */
static void completion_fish(struct out_text *text, const struct command *const *commands)
{
    out_addf(text, "# fish completion of segue, printed by `segue --completion fish`\n");
    for (const struct command *const *c = commands; *c; c++) {
        out_addf(text, "complete -c segue -f -n '__fish_use_subcommand' -a %s -d '", (*c)->name);
        add_quoted(text, (*c)->summary, false);
        out_addf(text, "'\n");
        for (const struct arg_group *const *g = (*c)->groups; *g; g++)
            for (const struct arg_def *d = (*g)->defs; d->name; d++)
                fish_flag(text, *c, d);
        const char *verb;
        for (size_t at = 0, n; (n = next_verb(*c, &at, &verb));)
            out_addf(text, "complete -c segue -n '__fish_seen_subcommand_from %s' -a %.*s\n", (*c)->name, (int)n, verb);
        if (!strcmp((*c)->name, "models"))
            out_addf(text, "complete -c segue -n '__fish_seen_subcommand_from rm' -a '(segue --list models 2>/dev/null)'\n");
    }
}

/* The scripts are generated, so they always match the flags of this build. */
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
