/* line_edit.c: input lines, see line_edit.h. libedit is optional (SEGUE_EDIT); without it a terminal is read like a
 * pipe, with a prompt.
 * SPDX-License-Identifier: MIT */
#include "term/line_edit.h"
#include "term/interrupt.h"
#include "term/out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SEGUE_EDIT
#include <histedit.h>
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
#endif
};

#ifdef SEGUE_EDIT
/* libedit asks for the prompt through this callback; the object is its client data. */
static char *prompt_callback(EditLine *edit)
{
    struct line_edit *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    static char none[] = "";
    return l && l->prompt ? (char *)(uintptr_t)l->prompt : none;
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

/* A terminal with bracketed paste encloses pasted text in ESC [200~ and ESC [201~. All of it becomes input, with its
 * lines; other control characters are dropped. */
static unsigned char paste_key(EditLine *edit, int key)
{
    static const wchar_t end_mark[] = L"\033[201~";
    wchar_t *text = NULL, c;
    size_t n = 0, cap = 0, matched = 0;
    (void)key;
    while (matched < 6 && el_wgetc(edit, &c) == 1) {
        matched = c == end_mark[matched] ? matched + 1 : c == end_mark[0];
        if (c == L'\r') c = L'\n';
        if (n + 2 > cap) text = out_realloc(text, (cap = cap * 2 + 256) * sizeof *text);
        text[n++] = c;
    }
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
    el_set(l->edit, EL_PROMPT, prompt_callback);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_SETTY, "-d", "-isig", "-icrnl", "-inlcr", NULL);
    el_set(l->edit, EL_ADDFN, "drop-line", "clear the line", clear_line_key);
    el_set(l->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(l->edit, EL_ADDFN, "insert-newline", "insert a newline", newline_key);
    el_set(l->edit, EL_BIND, "^J", "insert-newline", NULL);
    el_set(l->edit, EL_ADDFN, "insert-paste", "insert pasted text", paste_key);
    el_set(l->edit, EL_BIND, "\\e[200~", "insert-paste", NULL);
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
