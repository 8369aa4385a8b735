/* http.h: reading from a web server: small answers into memory, files to disk with resumption. http and https
 * only, at most ten redirects, never from https down to http. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HTTP_H
#define SEGUE_CLI_HTTP_H

#include "term/out.h"
#include "term/progress.h"

struct http_request {
    const char *url;
    const char *token; /* NULL, or sent as a bearer token to the first host only */
    long timeout_s;    /* without a connection, or without a byte */
};
/* EIO names what went wrong; *code is the server's answer, 0 = none came. */
segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err);
/* Bring PATH.part up to the whole file, going on where it ends. expected_bytes 0 = not known. */
segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err);
char *http_escape(const char *path); /* percent-encoded, slashes kept */

#endif
