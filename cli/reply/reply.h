/* reply.h: separates the text of an answer into reasoning, content and tool calls while it comes. Tool calls are found in every
 * form that the supported models write: <tool_call>{...}</tool_call> (Qwen, Hermes, SmolLM2; also with a list, or with
 * <function=NAME><parameter=P>), [TOOL_CALLS] (Mistral), <|python_tag|>{...} or a bare {"name", "parameters"} (Llama 3),
 * ```tool_call and ```tool_code (Gemma) and <start_function_call>call:NAME{...} (FunctionGemma). Names and arguments are
 * passed on while they come (call_text.h). SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REPLY_H
#define SEGUE_CLI_REPLY_H

#include "reply/call_text.h"

/* What comes out, in order. Texts are complete characters. False: stop. */
struct reply_sink {
    void *context;
    bool (*reasoning)(void *context, const char *text, size_t len);
    bool (*content)(void *context, const char *text, size_t len);
    struct call_sink call; /* with a separate context */
};

struct reply {
    struct reply_sink sink;
    bool tools;             /* tool calls are looked for */
    const json_t *declared; /* the tools, or NULL; borrowed */
    bool thinking;          /* the text is inside the reasoning now */
    bool together;          /* reasoning is content, with its marks */
    bool started;           /* something other than white space has come */
    bool reasoned;          /* reasoning came before; white space after it is dropped */
    bool in_call;           /* `held` is the text of a call */
    const char *open;       /* mark before it; NULL: none, a bare JSON call */
    struct call_text call;
    struct out_text held; /* text that is not decided yet */
    size_t calls;         /* calls so far, those of `call` excluded */
};

/* declared: the tools, or NULL. thinking: the prompt ends inside an open <think>. Zeroed memory is a valid start. */
void reply_begin(struct reply *r, struct reply_sink sink, bool tools, const json_t *declared, bool thinking);
bool reply_add(struct reply *r, const char *text, size_t len);
/* No more text: what is held is decided. */
bool reply_end(struct reply *r);
void reply_free(struct reply *r);

#endif
