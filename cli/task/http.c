/* http.c: see http.h. libcurl is optional: without it every request is refused by name.
 * Must never do: write what an error page said into a file, or more than was promised.
 * SPDX-License-Identifier: MIT */
#include "task/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "term/interrupt.h"

char *http_escape(const char *path)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    struct out_text t = {0};
    out_add(&t, "", 0);
    for (; *path; path++) {
        if (strchr(plain, *path))
            out_add(&t, path, 1);
        else
            out_addf(&t, "%%%02X", (unsigned char)*path);
    }
    return t.data;
}

#ifdef SEGUE_CURL
#include <curl/curl.h>

enum { TRIES = 4 };

/* One transfer under way. Either text or file is set. */
struct transfer {
    CURL *curl;
    struct out_text *text;
    size_t limit;
    FILE *file;
    const char *path;
    uint64_t have, expected; /* bytes in the file when it began; promised bytes, 0 = not known */
    uint64_t range_from;     /* of Content-Range; UINT64_MAX = none */
    char etag[256];
    bool judged; /* the head was looked at */
    struct progress *progress;
    segue_status status; /* of our own refusal */
    segue_error *err;
};

/* Each answer of a chain of redirects has a head; only the last one counts. */
static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    size_t len = size * n;
    if (len >= 5 && !strncmp(line, "HTTP/", 5)) {
        t->etag[0] = 0;
        t->range_from = UINT64_MAX;
    } else if (len > 5 && !strncasecmp(line, "etag:", 5)) {
        const char *v = line + 5;
        while (v < line + len && *v == ' ') v++;
        snprintf(t->etag, sizeof t->etag, "%.*s", (int)strcspn(v, "\r\n"), v);
    } else if (len > 20 && !strncasecmp(line, "content-range: bytes ", 21))
        t->range_from = strtoull(line + 21, NULL, 10);
    return len;
}

/* The first bytes of the body are here: does the answer fit what stands in the file, and the disk? */
static bool judge(struct transfer *t)
{
    long code = 0;
    curl_off_t more = -1;
    struct statvfs disk;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &more);
    t->judged = true;
    if (code == 206 && t->range_from != t->have)
        t->status =
            out_fail(t->err, SEGUE_EIO,
                     "fetching: %.250s: the server sent another range; remove it and try again", t->path);
    else if (code == 200 && t->have) { /* it does not resume: begin anew */
        t->have = 0;
        if (fseeko(t->file, 0, SEEK_SET) || ftruncate(fileno(t->file), 0))
            t->status = out_fail_errno(t->err, "fetching", t->path, NULL);
    }
    if (!t->status && more > 0 && t->expected && t->have + (uint64_t)more != t->expected)
        t->status = out_fail(t->err, SEGUE_EFORMAT,
                             "fetching: %.250s: the server has %llu bytes, %llu were announced; try again "
                             "later",
                             t->path, (unsigned long long)(t->have + (uint64_t)more),
                             (unsigned long long)t->expected);
    if (!t->status && more > 0 && fstatvfs(fileno(t->file), &disk) == 0 &&
        (double)more > (double)disk.f_bavail * (double)disk.f_frsize)
        t->status = out_fail(
            t->err, SEGUE_EIO, "fetching: %.250s: %.1f GB to come, %.1f GB free on this disk; make room",
            t->path, (double)more / 1e9, (double)disk.f_bavail * (double)disk.f_frsize / 1e9);
    return t->status == SEGUE_OK;
}

/* Text is bounded by its limit, a file by what the head promised and by the disk. */
static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    size_t len = size * n;
    long code = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200 && code != 206) return len; /* an error page */
    if (t->text) {
        if (t->text->len + len > t->limit)
            t->status =
                out_fail(t->err, SEGUE_EFORMAT,
                         "fetching: the server's answer is larger than %zu bytes; distrust it", t->limit);
        else
            out_add(t->text, bytes, len);
        return t->status ? 0 : len;
    }
    if (!t->judged && !judge(t)) return 0;
    errno = 0;
    if (fwrite(bytes, 1, len, t->file) != len) {
        t->status = out_fail_errno(t->err, "fetching", t->path, "make room on the disk");
        return 0;
    }
    return len;
}

/* Called about once a second also when nothing comes, so an interrupt is seen then too. */
static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    struct transfer *t = user;
    (void)up_total, (void)up_now;
    if (t->progress && now > 0)
        progress_step(t->progress, t->have + (uint64_t)now,
                      total > 0 ? t->have + (uint64_t)total : t->expected, true);
    return interrupt_seen();
}

/* All that both kinds of request share. NULL: out of memory. */
static CURL *prepare(const struct http_request *r, struct transfer *t, struct curl_slist **headers)
{
    CURL *c = t->curl = curl_easy_init();
    if (!c) return NULL;
    bool safe = !strncasecmp(r->url, "https:", 6);
    curl_easy_setopt(c, CURLOPT_URL, r->url);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "segue");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, safe ? "https" : "http,https");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, r->timeout_s);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, r->timeout_s);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    if (r->token && *r->token) { /* libcurl drops it when a redirect leaves the host */
        char *line = out_printf("Authorization: Bearer %s", r->token);
        *headers = curl_slist_append(*headers, line);
        free(line);
    }
    return c;
}

/* Our own refusal goes before libcurl's, which only says that writing failed. */
static segue_status explain(const struct http_request *r, const struct transfer *t, CURLcode result,
                            long code, segue_error *err)
{
    if (t->status) return t->status;
    if (result == CURLE_ABORTED_BY_CALLBACK)
        return out_fail(err, SEGUE_ECANCELED, "fetching: %.250s: interrupted; run it again to go on", r->url);
    if (result == CURLE_OPERATION_TIMEDOUT)
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: nothing came for %ld s; run it again to go on",
                        r->url, r->timeout_s);
    if (result)
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: %s; check the address and the network", r->url,
                        curl_easy_strerror(result));
    if (code == 401 || code == 403)
        return out_fail(err, SEGUE_EIO,
                        "fetching: %.250s: the server answers %ld; set HF_TOKEN, or ask for access", r->url,
                        code);
    if (code != 200 && code != 206)
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: the server answers %ld; check the name", r->url,
                        code);
    return SEGUE_OK;
}

segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err)
{
    struct transfer t = {.text = out, .limit = limit, .err = err};
    struct curl_slist *headers = NULL;
    CURL *c = prepare(r, &t, &headers);
    *code = 0;
    if (!c) return out_fail(err, SEGUE_EMEMORY, "fetching: %.250s: out of memory; free some", r->url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    CURLcode result = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, code);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return explain(r, &t, result, *code, err);
}

/* The validator of what PATH.part holds stands in PATH.part-etag, so that a file that changed is fetched
 * anew. */
static void keep_etag(const char *part, const char *etag)
{
    char *path = out_printf("%s-etag", part);
    FILE *f = etag && *etag ? fopen(path, "w") : NULL;
    if (f) {
        fputs(etag, f);
        fclose(f);
    } else
        unlink(path);
    free(path);
}

static char *kept_etag(const char *part)
{
    char *path = out_printf("%s-etag", part), line[256] = "";
    FILE *f = fopen(path, "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    free(path);
    line[strcspn(line, "\r\n")] = 0;
    return out_strdup(line);
}

/* One try. A transfer that was cut leaves its bytes for the next one. */
static segue_status once(const struct http_request *r, FILE *file, const char *part, uint64_t expected,
                         struct progress *progress, long *code, bool *again, segue_error *err)
{
    struct transfer t = {.file = file,
                         .path = part,
                         .expected = expected,
                         .progress = progress,
                         .err = err,
                         .range_from = UINT64_MAX};
    struct curl_slist *headers = NULL;
    char range[32];
    *again = false;
    fseeko(file, 0, SEEK_END);
    t.have = (uint64_t)ftello(file);
    if (expected && t.have == expected) return SEGUE_OK;
    if (expected && t.have > expected) t.have = 0;
    if (t.have == 0 && (fseeko(file, 0, SEEK_SET) || ftruncate(fileno(file), 0)))
        return out_fail_errno(err, "fetching", part, NULL);
    CURL *c = prepare(r, &t, &headers);
    if (!c) return out_fail(err, SEGUE_EMEMORY, "fetching: %.250s: out of memory; free some", r->url);
    if (t.have) {
        char *etag = kept_etag(part);
        snprintf(range, sizeof range, "%llu-", (unsigned long long)t.have);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
        if (*etag == '"') {
            char *line = out_printf("If-Range: %s", etag);
            headers = curl_slist_append(headers, line);
            free(line);
        }
        free(etag);
    }
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    CURLcode result = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, code);
    if (t.judged) keep_etag(part, t.etag);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    errno = 0;
    if (fflush(file) && !t.status) t.status = out_fail_errno(err, "fetching", part, "make room on the disk");
    if (!t.status && *code == 416 && t.have) { /* what we have is not the beginning of this file */
        *again = ftruncate(fileno(file), 0) == 0;
        rewind(file);
    }
    if (!t.status && result && result != CURLE_ABORTED_BY_CALLBACK && result != CURLE_OPERATION_TIMEDOUT)
        *again = result == CURLE_PARTIAL_FILE || result == CURLE_RECV_ERROR || result == CURLE_GOT_NOTHING;
    if (!t.status && !result && *code >= 500) *again = true;
    return explain(r, &t, result, *code, err);
}

segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err)
{
    FILE *f = fopen(part, "ab");
    if (f) fclose(f);
    f = fopen(part, "r+b");
    if (!f) return out_fail_errno(err, "fetching", part, "check the folder");
    if (flock(fileno(f), LOCK_EX | LOCK_NB)) {
        fclose(f);
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: another pull writes it; wait for that one", part);
    }
    bool again = true;
    segue_status st = SEGUE_OK;
    for (int i = 0; i < TRIES && again && !interrupt_seen(); i++) {
        struct timespec pause = {i / 2, i ? 200000000 : 0};
        nanosleep(&pause, NULL);
        st = once(r, f, part, expected_bytes, progress, code, &again, err);
        if (!st) break;
    }
    errno = 0;
    if (!st && (fflush(f) || fsync(fileno(f)))) st = out_fail_errno(err, "fetching", part, NULL);
    fclose(f);
    if (st == SEGUE_OK) keep_etag(part, NULL);
    return st;
}

#else

static segue_status absent(const struct http_request *r, segue_error *err)
{
    return out_fail(err, SEGUE_EUNSUPPORTED,
                    "fetching: %.250s: not in this build, which lacks libcurl; build with it", r->url);
}

segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err)
{
    (void)limit, (void)out;
    *code = 0;
    return absent(r, err);
}

segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err)
{
    (void)part, (void)expected_bytes, (void)progress;
    *code = 0;
    return absent(r, err);
}
#endif
