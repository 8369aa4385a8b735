/* call_text.h: the text of tool calls, while it comes: name and arguments are passed on as soon as they are certain. Knows the
 * forms {"name", "arguments" | "parameters"}, also in lists; NAME[ARGS]{...}; <function=NAME><parameter=P>value; and, once they
 * are complete, calls whose members are in another order, call:NAME{key:<escape>text<escape>} and NAME(key="text").
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CALL_TEXT_H
#define SEGUE_CLI_CALL_TEXT_H

#include "term/out.h"

/* Receives the tool calls of an answer while they are read. Each function returns false to stop the reader. */
struct call_sink {
    void *context;
    bool (*begin)(void *context, const char *name, size_t len);
    bool (*arguments)(void *context, const char *text, size_t len); /* pieces of a JSON object */
    bool (*end)(void *context);
};

enum call_state {
    CALL_HEAD,       /* before the arguments */
    CALL_VALUE,      /* inside the arguments, which are JSON */
    CALL_PARAMETERS, /* between <parameter=...> */
    CALL_AFTER,      /* after the arguments */
    CALL_WHOLE       /* a form that is read when it is complete */
};

struct call_text {
    enum call_state state;
    bool bare; /* without a mark before it: only JSON is a call */
    bool quoted, escaped, list;
    unsigned depth;      /* open brackets of the arguments */
    size_t parameters;   /* so far */
    size_t calls;        /* begun so far */
    const json_t *tools; /* declarations, OpenAI's form, or NULL: tells texts from numbers in <parameter=...>. Borrowed */
    char name[260];      /* of the call that is open, for its declaration */
};

/* Take what is certain from the front of text[len] in the present state; returns the bytes taken. To be repeated while bytes are
 * taken or the state changes. *go: false if the sink stopped. */
size_t call_text_take(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *go);
/* text[len] is all that is left. Ends a call that is open. *found: false if the text is no call, and none had begun in it. */
bool call_text_end(struct call_text *c, const char *text, size_t len, const struct call_sink *sink, bool *found);

#endif
