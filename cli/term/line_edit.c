/* line_edit.c: input lines, see line_edit.h. libedit is optional (SEGUE_EDIT); without it a terminal is read like a
 * pipe, with a prompt.
 * SPDX-License-Identifier: MIT */
#include "term/line_edit.h"
#include "term/interrupt.h"
#include "term/out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SEGUE_EDIT
#include <histedit.h>
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
    el_set(l->edit, EL_SETTY, "-d", "-isig", NULL);
    el_set(l->edit, EL_ADDFN, "drop-line", "clear the line", clear_line_key);
    el_set(l->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    l->interactive = true;
}

/* Continuation lines are joined with newlines. Only single lines enter the history, because its file stores one entry
 * per line. */
static char *read_edited_line(struct line_edit *l, const char *prompt)
{
    HistEvent event;
    l->joined.len = 0;
    l->prompt = prompt;
    for (;;) {
        int n = 0;
        interrupt_clear();
        const char *s = el_gets(l->edit, &n);
        if ((!s || n <= 0) && interrupt_pending())
            continue; /* a signal arrived at or just before the prompt */
        if (!s || n <= 0) return NULL;
        while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r')) n--;
        bool more = n > 0 && s[n - 1] == '\\';
        out_add(&l->joined, s, (size_t)n - more);
        if (!more) break;
        out_add(&l->joined, "\n", 1);
        l->prompt = "... ";
    }
    if (l->joined.len && !strchr(l->joined.data, '\n')) history(l->history, &event, H_ENTER, l->joined.data);
    return l->joined.data;
}

/* The history file contains user input, so it is created with mode 0600. */
static void close_editor(struct line_edit *l)
{
    HistEvent event;
    mode_t before = umask(077);
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
