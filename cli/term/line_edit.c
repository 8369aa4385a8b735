/* line_edit.c: see line_edit.h. libedit is optional; without it a terminal gives plain lines.
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

struct lines {
    bool edited;
    char *line, *history_path;
    size_t cap;
    struct out_text whole;
#ifdef SEGUE_EDIT
    EditLine *edit;
    History *history;
    const char *prompt;
#endif
};

#ifdef SEGUE_EDIT
static char *prompt_of(EditLine *edit)
{
    struct lines *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    static char none[] = "";
    return l && l->prompt ? (char *)(uintptr_t)l->prompt : none;
}

/* ^C at the prompt drops the line, and never ends the program. */
static unsigned char drop_line(EditLine *edit, int key)
{
    (void)key;
    const LineInfo *info = el_line(edit);
    el_cursor(edit, (int)(info->lastchar - info->cursor));
    el_deletestr(edit, (int)(info->lastchar - info->buffer));
    return CC_REFRESH;
}

/* -isig: ^C is a key at the prompt, and a signal only while an answer is written. */
static void open_editor(struct lines *l)
{
    HistEvent event;
    l->edit = el_init("segue", stdin, stderr, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return;
    history(l->history, &event, H_SETSIZE, 1000);
    history(l->history, &event, H_SETUNIQUE, 1);
    if (l->history_path) history(l->history, &event, H_LOAD, l->history_path);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt_of);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_SETTY, "-d", "-isig", NULL);
    el_set(l->edit, EL_ADDFN, "drop-line", "drop the line", drop_line);
    el_set(l->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    l->edited = true;
}

/* History keeps single lines only: a file of lines cannot hold others. */
static char *edited_line(struct lines *l, const char *prompt)
{
    HistEvent event;
    l->whole.len = 0;
    l->prompt = prompt;
    for (;;) {
        int n = 0;
        interrupt_forget();
        const char *s = el_gets(l->edit, &n);
        if ((!s || n <= 0) && interrupt_seen())
            continue; /* a signal from outside, or just before the prompt */
        if (!s || n <= 0) return NULL;
        while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r')) n--;
        bool more = n > 0 && s[n - 1] == '\\';
        out_add(&l->whole, s, (size_t)n - more);
        if (!more) break;
        out_add(&l->whole, "\n", 1);
        l->prompt = "... ";
    }
    if (l->whole.len && !strchr(l->whole.data, '\n')) history(l->history, &event, H_ENTER, l->whole.data);
    return l->whole.data;
}

/* What was typed is the user's alone: mode 0600. */
static void close_editor(struct lines *l)
{
    HistEvent event;
    mode_t before = umask(077);
    if (l->history && l->history_path) history(l->history, &event, H_SAVE, l->history_path);
    umask(before);
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
}
#endif

struct lines *lines_open(const char *history_path)
{
    struct lines *l = out_alloc(sizeof *l);
    l->history_path = history_path ? out_strdup(history_path) : NULL;
#ifdef SEGUE_EDIT
    if (isatty(0) && isatty(2)) open_editor(l);
#endif
    return l;
}

bool lines_edited(const struct lines *l) { return l->edited; }

/* Without an editor a terminal still gets a prompt. */
char *lines_next(struct lines *l, const char *prompt)
{
#ifdef SEGUE_EDIT
    if (l->edited) return edited_line(l, prompt);
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

void lines_close(struct lines *l)
{
    if (!l) return;
#ifdef SEGUE_EDIT
    close_editor(l);
#endif
    free(l->whole.data);
    free(l->line);
    free(l->history_path);
    free(l);
}
