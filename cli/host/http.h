/* http.h: HTTP GET requests: small responses into memory, files to disk with resumption. Only http and https, at most
 * 10 redirects, and no redirect from https to http.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HTTP_H
#define SEGUE_CLI_HTTP_H

#include "term/out.h"
#include "term/progress.h"

/* What to fetch. All strings belong to the caller. */
struct http_request {
    const char *url;
    const char *token; /* bearer token, sent to the first host only; NULL: none */
    long timeout_s;    /* maximum time to connect, and maximum time without a byte */
};
/* Fetch a response of at most `limit` bytes. *code is the HTTP status, 0 if no response arrived. Returns SEGUE_EIO
 * with the reason for network errors and HTTP errors. */
segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err);
/* Download into the file `part`, continuing after the bytes it already has. expected_bytes: size of the whole file, 0
 * if not known. The file is locked, so that two downloads cannot write it at once. */
segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err);
/* Percent-encode a path; slashes are kept. */
char *http_escape(const char *path);

#endif
