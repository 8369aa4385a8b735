/* compact_text.c: see compact_text.h. The form is raw deflate (RFC 1951) of zlib, with a dictionary.
 * SPDX-License-Identifier: MIT */
#define ZLIB_CONST
#include "serve/compact_text.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* What messages and answers of /v1/responses consist of. */
static const char dictionary[] =
    "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_\","
    "\"type\":\"function\",\"function\":{\"name\":\"\",\"arguments\":\"{\\\"\"}}]},{\"role\":\"tool\","
    "\"tool_call_id\":\"call_\",\"content\":\"\"}][{\"type\":\"text\",\"text\":\"\"}]{\"id\":\"resp_\","
    "\"object\":\"response\",\"created_at\":17,\"status\":\"incomplete\",\"status\":\"completed\",\"model\":\"\","
    "\"error\":null,\"previous_response_id\":\"resp_\",\"previous_response_id\":null,\"parallel_tool_calls\":true,"
    "\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"incomplete_details\":null,\"output\":[{"
    "\"type\":\"reasoning\",\"id\":\"rs_\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"\"}]},{"
    "\"type\":\"function_call\",\"id\":\"fc_\",\"call_id\":\"call_\",\"name\":\"\",\"arguments\":\"{}\","
    "\"status\":\"completed\"},{\"type\":\"message\",\"id\":\"msg_\",\"role\":\"assistant\",\"status\":\"completed\","
    "\"content\":[{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[]}]}],\"tools\":[],\"tool_choice\":\"auto\","
    "\"metadata\":{},\"usage\":{\"input_tokens\":1,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":1,"
    "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":1},\"segue\":{\"units\":{"
    "\"prefill\":\"cpu:isa=avx512,threads=\",\"decode\":\"cpu:isa=avx512,threads=\"},\"ms\":{\"queue\":0.0,"
    "\"first_token\":0.0,\"prefill\":0.0,\"decode\":0.0,\"handoff\":0.0},\"tokens_reused\":0,"
    "\"reuse_reason\":\"first-use\",\"reuse_diverged\":0,\"joules\":null,"
    "\"joules_reason\":\"not requested; start the server with --meter\"}}";

enum { DICTIONARY = sizeof dictionary - 1, MEMORY_LEVEL = 8 /* zlib's default; 268 KB while a text is made compact */ };

/* Memory of zlib: as all of the command's, it is there or the command ends. So no call below fails. */
static void *take_memory(void *context, unsigned n, unsigned size)
{
    (void)context;
    return out_alloc((size_t)n * size);
}

static void return_memory(void *context, void *p)
{
    (void)context;
    free(p);
}

void compact_text(struct out_text *out, const char *text, uint32_t n)
{
    z_stream z = {.zalloc = take_memory, .zfree = return_memory, .next_in = (const Bytef *)text, .avail_in = n};
    deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, MEMORY_LEVEL, Z_DEFAULT_STRATEGY);
    deflateSetDictionary(&z, (const Bytef *)dictionary, DICTIONARY);
    uLong bound = deflateBound(&z, n);
    Bytef *form = out_alloc(bound);
    z.next_out = form;
    z.avail_out = (uInt)bound;
    deflate(&z, Z_FINISH);
    out_add(out, (const char *)form, z.total_out);
    deflateEnd(&z);
    free(form);
}

char *expand_text(const char *compact, size_t compact_n, uint32_t n)
{
    char *text = out_alloc((size_t)n + 1);
    z_stream z = {.zalloc = take_memory, .zfree = return_memory, .next_in = (const Bytef *)compact, .avail_in = (uInt)compact_n};
    z.next_out = (Bytef *)text;
    z.avail_out = n;
    inflateInit2(&z, -MAX_WBITS);
    inflateSetDictionary(&z, (const Bytef *)dictionary, DICTIONARY);
    inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return text;
}
