/* chat_window.c: the part of a conversation that fits the context, see chat.h. The conversation itself stays whole, so that
 * /undo and the saved file have all of it. Turns are dropped from the start, at turn borders, and a quarter of the context is
 * freed at once: every drop changes the prompt after the kept messages, which must then be computed again.
 * SPDX-License-Identifier: MIT */
#include "chat/chat.h"

#include <stdlib.h>
#include <string.h>

/* Role of the i-th message, or an empty string. */
static const char *role_at(const struct chat *c, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
    return role ? role : "";
}

size_t chat_context(const struct chat *c)
{
    uint32_t trained = c->placement.info.context;
    return (size_t)args_number(&c->args, "context", trained && trained < 4096 ? trained : 4096);
}

/* Number of messages at the start that are always kept: the system message, and those whose text is within the first --keep
 * tokens. */
static size_t kept_messages(const struct chat *c)
{
    size_t n = !strcmp(role_at(c, 0), "system") ? 1 : 0, tokens = 0, limit = (size_t)args_number(&c->args, "keep", 0);
    segue_error ignored;
    for (; n + 1 < json_array_size(c->messages); n++) {
        struct prompt one = {0};
        struct out_text text = {0};
        prompt_add_content(&text, json_array_get(c->messages, n));
        segue_status st = prompt_tokenize(c->placement.model, text.data ? text.data : "", text.len, SEGUE_TEXT_NO_BOS,
                                          SIZE_MAX / 64, &one, &ignored);
        tokens += one.n;
        free(text.data);
        prompt_free(&one);
        if (st || tokens > limit) break;
    }
    return n;
}

/* Index after the first `turns` turns that follow the kept messages; a turn begins with a message of the user. */
static size_t after_turns(const struct chat *c, size_t kept, size_t turns)
{
    size_t i = kept, n = json_array_size(c->messages);
    for (; turns && i < n; turns--)
        do i++;
        while (i < n && strcmp(role_at(c, i), "user") != 0);
    return i;
}

json_t *chat_window(const struct chat *c)
{
    if (!c->dropped_turns) return json_incref(c->messages);
    json_t *window = json_array();
    size_t kept = kept_messages(c);
    for (size_t i = 0; i < kept; i++) json_array_append(window, json_array_get(c->messages, i));
    for (size_t i = after_turns(c, kept, c->dropped_turns); i < json_array_size(c->messages); i++)
        json_array_append(window, json_array_get(c->messages, i));
    return window;
}

/* Render the window. */
static segue_status render(const struct chat *c, struct prompt *out, segue_error *err)
{
    json_t *window = chat_window(c);
    prompt_free(out);
    segue_status st = prompt_conversation(&c->placement, &c->args, window, args_has(&c->args, "raw"), SIZE_MAX / 64, out, err);
    json_decref(window);
    return st;
}

/* The rest of the context for an answer: --tokens, but at most a quarter of the context. */
segue_status chat_render(struct chat *c, struct prompt *out, segue_error *err)
{
    size_t context = chat_context(c), before = c->dropped_turns, kept = kept_messages(c), wanted = context / 4;
    double tokens = args_number(&c->args, "tokens", 1024);
    if (tokens >= 0 && tokens < (double)wanted) wanted = (size_t)tokens;
    /* /undo and /clear may have removed turns that were dropped. */
    while (c->dropped_turns && after_turns(c, kept, c->dropped_turns) >= json_array_size(c->messages)) c->dropped_turns--;
    segue_status st = render(c, out, err);
    bool slides = args_has(&c->args, "keep"), full = !st && out->n + wanted > context;
    size_t limit = context - wanted < context * 3 / 4 ? context - wanted : context * 3 / 4;
    while (!st && slides && full && out->n > limit) {
        if (after_turns(c, kept, c->dropped_turns + 1) >= json_array_size(c->messages)) break; /* only the last turn is left */
        c->dropped_turns++;
        st = render(c, out, err);
    }
    if (!st && out->n >= context)
        return out_fail(err, SEGUE_ELIMIT, "chat: the conversation has %zu tokens, the context holds %zu; %s", out->n, context,
                        slides ? "shorten the message, or restart with a larger -c"
                               : "use /clear or /undo, or restart with a larger -c, or with --keep 0 to drop the oldest turns");
    if (!st && c->dropped_turns > before)
        out_note("chat: the context is full: the oldest %zu turns are not read any more", c->dropped_turns);
    return st;
}
