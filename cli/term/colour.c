/* colour.c: colours on a terminal, see colour.h.
 * SPDX-License-Identifier: MIT */
#include "term/colour.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tags and the sequence after each: dim text for thinking, cyan for tools. */
static const struct {
    const char *tag, *sequence;
    bool begins;
} tags[4] = {{"<think>", "\033[2m", true},
             {"</think>", "\033[0m", false},
             {"<tool_call>", "\033[36m", true},
             {"</tool_call>", "\033[0m", false}};

bool colour_on(int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no && *no) && term && *term && strcmp(term, "dumb") != 0 && isatty(fd);
}

/* A tag has its first character only once, so a failed match can restart only with the current character. */
void colour_text(struct colour_stream *s, const char *bytes, size_t n, struct out_text *out)
{
    for (size_t i = 0; i < n; i++) {
        out_add(out, bytes + i, 1);
        for (size_t k = 0; s->on && k < sizeof tags / sizeof *tags; k++) {
            const char *tag = tags[k].tag;
            s->matched[k] = bytes[i] == tag[s->matched[k]] ? s->matched[k] + 1 : bytes[i] == tag[0];
            if (tag[s->matched[k]]) continue;
            s->matched[k] = 0;
            s->active = tags[k].begins;
            out_addf(out, "%s", tags[k].sequence);
        }
    }
}

void colour_thinking(struct colour_stream *s, struct out_text *out)
{
    if (!s->on) return;
    s->active = true;
    out_addf(out, "%s", tags[0].sequence);
}

void colour_end(struct colour_stream *s, struct out_text *out)
{
    if (s->active) out_addf(out, "\033[0m");
    s->active = false;
}
