/* line_edit.c: input lines, see line_edit.h. libedit is optional (SEGUE_EDIT); without it a terminal is read like a
 * pipe, with a prompt.
 * SPDX-License-Identifier: MIT */
#include "term/line_edit.h"
#include "term/colour.h"
#include "term/interrupt.h"
#include "term/out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SEGUE_EDIT
#include <dirent.h>
#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <wchar.h>
#endif

/* An open source of lines. */
struct line_edit {
    bool interactive;       /* libedit edits the lines */
    char *history_path;     /* NULL: no history file */
    char *line;             /* buffer of getline, of cap bytes */
    size_t cap;
    struct out_text joined; /* an edited line with its continuation lines */
#ifdef SEGUE_EDIT
    EditLine *edit;
    History *history;
    const char *prompt; /* returned by prompt_callback */
    char *coloured;     /* the prompt with its colour */
    line_edit_command command; /* of Tab; NULL: no completion */
    bool pasting;              /* pasted text is being read */
    line_edit_typed typed;     /* called after a key; NULL: none */
    void *typed_arg;
#endif
};

#ifdef SEGUE_EDIT
/* libedit asks for the prompt through this callback; the object is its client data. */
static char *prompt_callback(EditLine *edit)
{
    struct line_edit *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    static char none[] = "";
    if (!l || !l->prompt) return none;
    if (!colour_on(2)) return (char *)(uintptr_t)l->prompt;
    /* \1 encloses sequences without width, see EL_PROMPT_ESC. libedit prints such a sequence together with the character
     * after it, so that one at the end of the prompt would be lost: the colour ends before the last character, a space. */
    size_t last = strlen(l->prompt);
    last -= last != 0;
    free(l->coloured);
    return l->coloured = out_printf("\1\033[1;32m\1%.*s\1\033[0m\1%s", (int)last, l->prompt, l->prompt + last);
}

/* Key binding of ^C: clear the line and stay at the prompt. */
static unsigned char clear_line_key(EditLine *edit, int key)
{
    (void)key;
    const LineInfo *info = el_line(edit);
    el_cursor(edit, (int)(info->lastchar - info->cursor));
    el_deletestr(edit, (int)(info->lastchar - info->buffer));
    return CC_REFRESH;
}

/* Key binding of ^J: a newline inside the input. Enter sends ^M, because -icrnl and -inlcr are set. */
static unsigned char newline_key(EditLine *edit, int key)
{
    (void)key;
    return el_insertstr(edit, "\n") ? CC_ERROR : CC_REFRESH;
}

/* Call `typed` with the input, if the cursor is at its end and no other key was pressed since. Command lines and quoted lines are
 * not messages. */
static void report_typed(EditLine *edit)
{
    struct line_edit *l = NULL;
    int pending = 0;
    el_get(edit, EL_CLIENTDATA, &l);
    const LineInfo *info = el_line(edit);
    if (!l->typed || info->cursor != info->lastchar || (!ioctl(0, FIONREAD, &pending) && pending > 0)) return;
    struct out_text text = {0};
    out_add(&text, l->joined.data, l->joined.len);
    out_add(&text, info->buffer, (size_t)(info->lastchar - info->buffer));
    if (text.len && text.data[0] != '/' && text.data[0] != '"') l->typed(l->typed_arg, text.data, text.len);
    free(text.data);
}

/* One character of a terminal, as libedit reads it; bytes that are none are skipped. The line is up to date on the screen. */
static int read_character(EditLine *edit, wchar_t *c)
{
    struct line_edit *l = NULL;
    mbstate_t state = {0};
    size_t used = (size_t)-2;
    el_get(edit, EL_CLIENTDATA, &l);
    if (!l->pasting) report_typed(edit);
    *c = 0;
    while (used == (size_t)-2 || used == (size_t)-1) {
        char byte;
        ssize_t n = read(0, &byte, 1);
        /* Another program may have left the terminal without waiting reads. */
        if (n < 0 && errno == EAGAIN && poll(&(struct pollfd){.events = POLLIN}, 1, -1) > 0) continue;
        if (n <= 0) return (int)n;
        used = mbrtowc(c, &byte, 1, &state);
        if (used == (size_t)-1) state = (mbstate_t){0};
    }
    return 1;
}

/* A terminal with bracketed paste encloses pasted text in ESC [200~ and ESC [201~. All of it becomes input, with its
 * lines; other control characters are dropped. */
static unsigned char paste_key(EditLine *edit, int key)
{
    static const wchar_t end_mark[] = L"\033[201~";
    wchar_t *text = NULL, c;
    size_t n = 0, cap = 0, matched = 0;
    struct line_edit *l = NULL;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &l);
    l->pasting = true;
    while (matched < 6 && el_wgetc(edit, &c) == 1) {
        matched = c == end_mark[matched] ? matched + 1 : c == end_mark[0];
        if (c == L'\r') c = L'\n';
        if (n + 2 > cap) text = out_realloc(text, (cap = cap * 2 + 256) * sizeof *text);
        text[n++] = c;
    }
    l->pasting = false;
    n -= matched == 6 ? 6 : 0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((text[i] >= 32 && text[i] != 127 && !(text[i] >= 128 && text[i] < 160)) || text[i] == L'\n' || text[i] == L'\t')
            text[kept++] = text[i];
    if (kept) text[kept] = 0;
    int failed = kept && el_winsertstr(edit, text);
    free(text);
    return failed ? CC_ERROR : CC_REFRESH;
}

/* Completions of a word: their number, their longest common prefix, and all of them as a list to print. */
struct completions {
    size_t n, same;
    char *first;
    struct out_text list;
};

/* Count a candidate if it begins with the word. */
static void add_candidate(struct completions *c, const char *candidate, const char *word)
{
    if (strncmp(candidate, word, strlen(word)) != 0) return;
    if (!c->n++) {
        c->first = out_strdup(candidate);
        c->same = strlen(candidate);
    }
    size_t same = 0;
    while (same < c->same && c->first[same] == candidate[same]) same++;
    c->same = same;
    if (c->list.len < 4000) out_addf(&c->list, "%s  ", candidate);
}

/* Files whose path begins with the word; folders get a slash. Hidden ones only if asked for. */
static void add_files(struct completions *c, const char *word)
{
    const char *slash = strrchr(word, '/');
    char *folder = slash ? out_printf("%.*s", (int)(slash - word + 1), word) : out_strdup("");
    DIR *dir = opendir(*folder ? folder : ".");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.' && !(slash ? slash[1] == '.' : word[0] == '.')) continue;
        struct stat s;
        char *path = out_printf("%s%s", folder, e->d_name);
        char *candidate = out_printf("%s%s", path, !stat(path, &s) && S_ISDIR(s.st_mode) ? "/" : "");
        add_candidate(c, candidate, word);
        free(candidate);
        free(path);
    }
    if (dir) closedir(dir);
    free(folder);
}

/* Candidates for the line up to the cursor. *word: what they complete. */
static void find_candidates(const struct line_edit *l, struct completions *c, const char *line, const char **word)
{
    size_t n = strcspn(line, " ");
    const char *name, *operand;
    *word = line[n] ? line + n + strspn(line + n, " ") : line;
    for (size_t i = 0; l->command && line[0] == '/' && (name = l->command(i, &operand)); i++) {
        char *typed = out_printf("/%s", name), *full = out_printf("%s%s", typed, *operand ? " " : "");
        bool takes_file = strstr(operand, "FILE") || strstr(operand, "PATH");
        if (!line[n])
            add_candidate(c, full, line);
        else if (takes_file && strlen(typed) == n && !strncmp(typed, line, n))
            add_files(c, *word);
        free(typed);
        free(full);
    }
}

/* Key binding of Tab: insert what all candidates have in common, else list them. */
static unsigned char complete_key(EditLine *edit, int key)
{
    struct line_edit *l = NULL;
    struct completions c = {0};
    (void)key;
    el_get(edit, EL_CLIENTDATA, &l);
    const LineInfo *info = el_line(edit);
    char *line = out_printf("%.*s", (int)(info->cursor - info->buffer), info->buffer);
    const char *word;
    unsigned char result = CC_REFRESH_BEEP;
    find_candidates(l, &c, line, &word);
    if (c.n && c.same > strlen(word)) {
        c.first[c.same] = 0;
        result = el_insertstr(edit, c.first + strlen(word)) ? CC_ERROR : CC_REFRESH;
    } else if (c.n > 1) {
        c.list.data[out_clean(c.list.data, c.list.len, true)] = 0;
        fprintf(stderr, "\n%s\n", c.list.data);
        result = CC_REDISPLAY;
    }
    free(c.first);
    free(c.list.data);
    free(line);
    return result;
}

/* Bracketed paste stays on during an answer, so that text pasted then is one message, too. */
static void set_bracketed_paste(const struct line_edit *l, bool on)
{
    const char *term = getenv("TERM");
    if (!l->interactive || !term || !strcmp(term, "dumb")) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stderr);
    fflush(stderr);
}

/* -isig: at the prompt ^C is a key; it is a signal only while an answer is generated. */
static void open_editor(struct line_edit *l)
{
    HistEvent event;
    l->edit = el_init("segue", stdin, stderr, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return;
    history(l->history, &event, H_SETSIZE, 1000);
    history(l->history, &event, H_SETUNIQUE, 1);
    if (l->history_path) history(l->history, &event, H_LOAD, l->history_path);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT_ESC, prompt_callback, '\1');
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_SETTY, "-d", "-isig", "-icrnl", "-inlcr", NULL);
    el_set(l->edit, EL_ADDFN, "drop-line", "clear the line", clear_line_key);
    el_set(l->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(l->edit, EL_ADDFN, "insert-newline", "insert a newline", newline_key);
    el_set(l->edit, EL_BIND, "^J", "insert-newline", NULL);
    el_set(l->edit, EL_ADDFN, "insert-paste", "insert pasted text", paste_key);
    el_set(l->edit, EL_BIND, "\\e[200~", "insert-paste", NULL);
    el_set(l->edit, EL_ADDFN, "complete-command", "complete a command or a file name", complete_key);
    el_set(l->edit, EL_BIND, "^I", "complete-command", NULL);
    el_wset(l->edit, EL_GETCFN, read_character); /* el_set: older versions would take single bytes */
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    l->interactive = true;
    set_bracketed_paste(l, true);
}

/* Characters typed before the prompt, during an answer, were read by the terminal in its normal mode, where Enter is a
 * newline and ^D a null byte: translate them, because newline_key would not submit the input, and give them to the editor.
 * The terminal is in raw mode from here on, so that what is typed from now on needs no translation. */
static void push_typed_ahead(struct line_edit *l)
{
    int pending = 0;
    el_set(l->edit, EL_PREP_TERM, 1);
    if (ioctl(0, FIONREAD, &pending) || pending <= 0) return;
    char *bytes = out_alloc((size_t)pending);
    ssize_t n = read(0, bytes, (size_t)pending);
    wchar_t *text = out_alloc(((size_t)(n > 0 ? n : 0) + 1) * sizeof *text);
    mbstate_t state = {0};
    size_t kept = 0;
    for (ssize_t i = 0; i < n;) {
        size_t used = bytes[i] ? mbrtowc(&text[kept], bytes + i, (size_t)(n - i), &state) : 1;
        bool valid = used != (size_t)-1 && used != (size_t)-2;
        if (!valid) state = (mbstate_t){0};
        if (!bytes[i]) text[kept] = 4;
        if (text[kept] == L'\n') text[kept] = L'\r';
        kept += valid;
        i += valid ? (ssize_t)used : 1;
    }
    text[kept] = 0;
    if (kept) el_wpush(l->edit, text);
    free(text);
    free(bytes);
}

/* One line from the editor, without its newline; NULL at the end of input. */
static const char *edited_line(struct line_edit *l, int *n)
{
    for (;;) {
        interrupt_clear();
        push_typed_ahead(l);
        const char *s = el_gets(l->edit, n);
        if ((!s || *n <= 0) && interrupt_pending()) continue; /* a signal arrived at or just before the prompt */
        if (!s || *n <= 0) return NULL;
        while (*n > 0 && (s[*n - 1] == '\n' || s[*n - 1] == '\r')) --*n;
        return s;
    }
}

/* Lines that follow a backslash, or a line that begins with three quotes until one ends with them, are joined with
 * newlines. */
static char *read_edited_line(struct line_edit *l, const char *prompt)
{
    HistEvent event;
    static const char quotes[] = "\"\"\"";
    bool quoted = false;
    l->joined.len = 0;
    l->prompt = prompt;
    for (;;) {
        int n = 0;
        const char *s = edited_line(l, &n);
        if (!s) return NULL;
        if (!l->joined.len && n >= 3 && !memcmp(s, quotes, 3)) {
            quoted = true;
            s += 3;
            n -= 3;
        }
        bool closed = quoted && n >= 3 && !memcmp(s + n - 3, quotes, 3);
        bool more = quoted ? !closed : n > 0 && s[n - 1] == '\\';
        out_add(&l->joined, s, (size_t)(n - (closed ? 3 : more && !quoted ? 1 : 0)));
        if (!more) break;
        out_add(&l->joined, "\n", 1);
        l->prompt = "... ";
    }
    if (l->joined.len) history(l->history, &event, H_ENTER, l->joined.data);
    return l->joined.data;
}

/* The history file contains user input, so it is created with mode 0600. */
static void close_editor(struct line_edit *l)
{
    HistEvent event;
    mode_t before = umask(077);
    set_bracketed_paste(l, false);
    if (l->history && l->history_path) history(l->history, &event, H_SAVE, l->history_path);
    umask(before);
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
    free(l->coloured);
}
#endif

/* Editing needs a terminal for input and for the prompt, which is written to stderr. */
struct line_edit *line_edit_open(const char *history_path)
{
    struct line_edit *l = out_alloc(sizeof *l);
    l->history_path = history_path ? out_strdup(history_path) : NULL;
#ifdef SEGUE_EDIT
    if (isatty(0) && isatty(2)) open_editor(l);
#endif
    return l;
}

void line_edit_set_commands(struct line_edit *l, line_edit_command name)
{
#ifdef SEGUE_EDIT
    l->command = name;
#else
    (void)l, (void)name;
#endif
}

void line_edit_set_typed(struct line_edit *l, line_edit_typed typed, void *arg)
{
#ifdef SEGUE_EDIT
    l->typed = typed;
    l->typed_arg = arg;
#else
    (void)l, (void)typed, (void)arg;
#endif
}

bool line_edit_interactive(const struct line_edit *l) { return l->interactive; }

/* Fallback without libedit: getline, with a prompt if stdin is a terminal. */
char *line_edit_read(struct line_edit *l, const char *prompt)
{
#ifdef SEGUE_EDIT
    if (l->interactive) return read_edited_line(l, prompt);
#endif
    if (isatty(0)) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    ssize_t n = getline(&l->line, &l->cap, stdin);
    if (n < 0) return NULL;
    while (n > 0 && (l->line[n - 1] == '\n' || l->line[n - 1] == '\r')) l->line[--n] = 0;
    return l->line;
}

/* NULL is allowed. */
void line_edit_close(struct line_edit *l)
{
    if (!l) return;
#ifdef SEGUE_EDIT
    close_editor(l);
#endif
    free(l->joined.data);
    free(l->line);
    free(l->history_path);
    free(l);
}
