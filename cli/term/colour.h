/* colour.h: colours on a terminal: the prompt, and thinking and tool calls in an answer. Off if NO_COLOR is set, TERM is dumb or
 * missing, or the stream is no terminal.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_COLOUR_H
#define SEGUE_CLI_COLOUR_H

#include <stdbool.h>
#include "term/out.h"

/* True if colours may be written to a file descriptor. */
bool colour_on(int fd);

/* The state of an answer that is coloured while it is printed. Zero-initialise, then set on. */
struct colour_stream {
    bool on;
    unsigned matched[4]; /* characters of each tag that the text so far ends with */
    bool active;         /* inside a coloured section */
};
/* Append bytes[n] to out, with escape sequences after the tags <think> and <tool_call> and their ends. */
void colour_text(struct colour_stream *s, const char *bytes, size_t n, struct out_text *out);
/* Begin inside thinking, because the prompt ends with its tag. */
void colour_thinking(struct colour_stream *s, struct out_text *out);
/* Append the end of an open section. */
void colour_end(struct colour_stream *s, struct out_text *out);

#endif
