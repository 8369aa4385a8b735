/* http.c: HTTP requests with libcurl, see http.h. libcurl is optional (SEGUE_CURL); without it every request fails
 * with SEGUE_EUNSUPPORTED. The body of an HTTP error is never written into a file, and no file grows beyond its
 * announced size.
 * An interrupt (term/interrupt.h) cancels a transfer; its bytes stay on disk.
 * SPDX-License-Identifier: MIT */
#include "host/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "term/interrupt.h"

/* Unreserved characters of RFC 3986 and the slash are kept. */
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

enum { MAX_ATTEMPTS = 4, MIN_BYTES_PER_S = 1000 };

/* State of one transfer, shared with the callbacks of libcurl. Either text or file is set. */
struct transfer {
    CURL *curl;
    struct out_text *text;
    size_t limit; /* of text, in bytes */
    FILE *file;
    const char *path;
    uint64_t offset;      /* bytes already in the file when the transfer started */
    uint64_t expected;    /* size of the whole file; 0: not known */
    uint64_t written;     /* bytes of this transfer */
    uint64_t looked_at;   /* `written` when the free disk space was last looked at */
    uint64_t range_start; /* from Content-Range; UINT64_MAX: no such header */
    char etag[256];
    bool checked; /* check_response has run */
    struct progress *progress;
    segue_status status; /* set by a callback that stopped the transfer */
    segue_error *err;
};

/* Every response of a redirect chain sends headers; a new status line resets them, so that only the last response
 * counts. */
static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    size_t len = size * n;
    if (len >= 5 && !strncmp(line, "HTTP/", 5)) {
        t->etag[0] = 0;
        t->range_start = UINT64_MAX;
    } else if (len > 5 && !strncasecmp(line, "etag:", 5)) {
        const char *v = line + 5;
        while (v < line + len && *v == ' ') v++;
        snprintf(t->etag, sizeof t->etag, "%.*s", (int)strcspn(v, "\r\n"), v);
    } else if (len > 20 && !strncasecmp(line, "content-range: bytes ", 21))
        t->range_start = strtoull(line + 21, NULL, 10);
    return len;
}

/* Called with the first bytes of the body: check that the range, the size and the free disk space fit. Returns false,
 * with t->status set, if the transfer must stop. If the server ignored the range (200), the file is restarted. */
static bool check_response(struct transfer *t)
{
    long code = 0;
    curl_off_t more = -1;
    struct statvfs disk;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &more);
    t->checked = true;
    if (code == 206 && t->range_start != t->offset)
        t->status =
            out_fail(t->err, SEGUE_EIO,
                     "fetching: %.250s: the server sent a different range; delete the partial file and try again", t->path);
    else if (code == 200 && t->offset) { /* the server sent the whole file: start again */
        t->offset = 0;
        if (fseeko(t->file, 0, SEEK_SET) || ftruncate(fileno(t->file), 0))
            t->status = out_fail_errno(t->err, "fetching", t->path, NULL);
    }
    if (!t->status && more > 0 && t->expected && t->offset + (uint64_t)more != t->expected)
        t->status = out_fail(t->err, SEGUE_EFORMAT,
                             "fetching: %.250s: the server sends %llu bytes, expected %llu; try again "
                             "later",
                             t->path, (unsigned long long)(t->offset + (uint64_t)more),
                             (unsigned long long)t->expected);
    if (!t->status && more > 0 && fstatvfs(fileno(t->file), &disk) == 0 &&
        (double)more > (double)disk.f_bavail * (double)disk.f_frsize)
        t->status = out_fail(
            t->err, SEGUE_EIO, "fetching: %.250s: %.1f GB to download, only %.1f GB free on the disk; free disk space",
            t->path, (double)more / 1e9, (double)disk.f_bavail * (double)disk.f_frsize / 1e9);
    return t->status == SEGUE_OK;
}

/* A body without Content-Length is bounded by the announced size, and one without either by the disk: 1 GB stays free. */
static bool body_fits(struct transfer *t, size_t more)
{
    struct statvfs disk;
    t->written += more;
    if (t->expected && t->offset + t->written > t->expected) {
        t->status = out_fail(t->err, SEGUE_EFORMAT,
                             "fetching: %.250s: the server sends more than the announced %llu bytes; do not trust this source",
                             t->path, (unsigned long long)t->expected);
        return false;
    }
    if (t->written - t->looked_at < (64 << 20)) return true;
    t->looked_at = t->written;
    if (fstatvfs(fileno(t->file), &disk) == 0 && (double)disk.f_bavail * (double)disk.f_frsize < 1e9)
        t->status = out_fail(t->err, SEGUE_EIO, "fetching: %.250s: less than 1 GB is free on the disk; free disk space", t->path);
    return t->status == SEGUE_OK;
}

/* Body callback. Text is limited by t->limit, a file by body_fits. */
static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    size_t len = size * n;
    long code = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200 && code != 206) return len; /* body of an HTTP error: ignored */
    if (t->text) {
        if (t->text->len + len > t->limit)
            t->status =
                out_fail(t->err, SEGUE_EFORMAT,
                         "fetching: the response is larger than %zu bytes; do not trust this source", t->limit);
        else
            out_add(t->text, bytes, len);
        return t->status ? 0 : len;
    }
    if (!t->checked && !check_response(t)) return 0;
    if (!body_fits(t, len)) return 0;
    errno = 0;
    if (fwrite(bytes, 1, len, t->file) != len) {
        t->status = out_fail_errno(t->err, "fetching", t->path, "free disk space");
        return 0;
    }
    return len;
}

/* libcurl calls this about once per second even when no data arrives, so an interrupt is always noticed. */
static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    struct transfer *t = user;
    (void)up_total, (void)up_now;
    if (t->progress && now > 0)
        progress_step(t->progress, t->offset + (uint64_t)now,
                      total > 0 ? t->offset + (uint64_t)total : t->expected, true);
    return interrupt_pending();
}

/* Create a handle with the options of both kinds of request. NULL: out of memory. */
static CURL *new_transfer(const struct http_request *r, struct transfer *t, struct curl_slist **headers)
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
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, (long)MIN_BYTES_PER_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, r->timeout_s);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    if (r->token && *r->token) { /* libcurl removes the header when a redirect leaves the host */
        char *line = out_printf("Authorization: Bearer %s", r->token);
        *headers = curl_slist_append(*headers, line);
        free(line);
    }
    return c;
}

/* The status of a finished transfer. An error set by a callback takes precedence over the one of libcurl, which only
 * says that writing failed. */
static segue_status transfer_result(const struct http_request *r, const struct transfer *t, CURLcode result,
                            long code, segue_error *err)
{
    if (t->status) return t->status;
    if (result == CURLE_ABORTED_BY_CALLBACK)
        return out_fail(err, SEGUE_ECANCELED, "fetching: %.250s: interrupted; run the command again to resume", r->url);
    if (result == CURLE_OPERATION_TIMEDOUT)
        return out_fail(err, SEGUE_EIO,
                        "fetching: %.250s: less than %d bytes per second received for %ld s; run the command again to "
                        "resume",
                        r->url, MIN_BYTES_PER_S, r->timeout_s);
    if (result)
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: %s; check the address and the network", r->url,
                        curl_easy_strerror(result));
    if (code == 401 || code == 403)
        return out_fail(err, SEGUE_EIO,
                        "fetching: %.250s: HTTP status %ld; set HF_TOKEN, or request access", r->url,
                        code);
    if (code != 200 && code != 206)
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: HTTP status %ld; %s", r->url, code,
                        code >= 500    ? "the server failed, try again later"
                        : code == 429 ? "too many requests, try again later"
                                      : "check the name");
    return SEGUE_OK;
}

segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err)
{
    struct transfer t = {.text = out, .limit = limit, .err = err};
    struct curl_slist *headers = NULL;
    CURL *c = new_transfer(r, &t, &headers);
    *code = 0;
    if (!c) return out_fail(err, SEGUE_EMEMORY, "fetching: %.250s: out of memory", r->url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    CURLcode result = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, code);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return transfer_result(r, &t, result, *code, err);
}

/* Open a partial file, or the file of its ETag: created (O_EXCL), or one that this user left there. In a folder that others may
 * write to, neither a link nor a file of theirs is opened. NULL: *err is set. */
static FILE *open_part(const char *path, bool create, segue_error *err)
{
    struct stat s;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && create) fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) {
        out_fail_errno(err, "fetching", path, errno == ELOOP ? "it is a link; delete it" : "check the folder");
        return NULL;
    }
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || s.st_nlink != 1) {
        close(fd);
        out_fail(err, SEGUE_EIO, "fetching: %.250s: it is not a plain file of this user; delete it, or use another folder", path);
        return NULL;
    }
    FILE *f = fdopen(fd, "r+b");
    if (!f) close(fd);
    if (!f) out_fail_errno(err, "fetching", path, NULL);
    return f;
}

/* Store the ETag of the partial file in PART-etag, so that a file that changed on the server is downloaded again from
 * the start. Removes it if etag is NULL or empty. */
static void save_etag(const char *part, const char *etag)
{
    char *path = out_printf("%s-etag", part);
    segue_error ignored;
    unlink(path);
    FILE *f = etag && *etag ? open_part(path, true, &ignored) : NULL;
    if (f) {
        fputs(etag, f);
        fclose(f);
    }
    free(path);
}

/* The stored ETag, or an empty string. */
static char *load_etag(const char *part)
{
    char *path = out_printf("%s-etag", part), line[256] = "";
    segue_error ignored;
    FILE *f = open_part(path, false, &ignored);
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    free(path);
    line[strcspn(line, "\r\n")] = 0;
    return out_strdup(line);
}

/* One attempt. An interrupted transfer keeps its bytes for the next attempt. *retry: the failure is temporary
 * (connection lost, 5xx, or 416 because the partial file does not match), so another attempt may succeed. */
static segue_status download_once(const struct http_request *r, FILE *file, const char *part, uint64_t expected,
                         struct progress *progress, long *code, bool *retry, segue_error *err)
{
    struct transfer t = {.file = file,
                         .path = part,
                         .expected = expected,
                         .progress = progress,
                         .err = err,
                         .range_start = UINT64_MAX};
    struct curl_slist *headers = NULL;
    char range[32];
    *retry = false;
    fseeko(file, 0, SEEK_END);
    t.offset = (uint64_t)ftello(file);
    if (expected && t.offset == expected) return SEGUE_OK;
    if (expected && t.offset > expected) t.offset = 0;
    if (t.offset == 0 && (fseeko(file, 0, SEEK_SET) || ftruncate(fileno(file), 0)))
        return out_fail_errno(err, "fetching", part, NULL);
    CURL *c = new_transfer(r, &t, &headers);
    if (!c) return out_fail(err, SEGUE_EMEMORY, "fetching: %.250s: out of memory", r->url);
    if (t.offset) {
        char *etag = load_etag(part);
        snprintf(range, sizeof range, "%llu-", (unsigned long long)t.offset);
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
    if (t.checked) save_etag(part, t.etag);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    errno = 0;
    if (fflush(file) && !t.status) t.status = out_fail_errno(err, "fetching", part, "free disk space");
    if (!t.status && *code == 416 && t.offset) { /* the partial file is longer than the file on the server: restart */
        *retry = ftruncate(fileno(file), 0) == 0;
        rewind(file);
    }
    if (!t.status && result && result != CURLE_ABORTED_BY_CALLBACK && result != CURLE_OPERATION_TIMEDOUT)
        *retry = result == CURLE_PARTIAL_FILE || result == CURLE_RECV_ERROR || result == CURLE_GOT_NOTHING;
    if (!t.status && !result && *code >= 500) *retry = true;
    return transfer_result(r, &t, result, *code, err);
}

segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err)
{
    FILE *f = open_part(part, true, err);
    if (!f) return SEGUE_EIO;
    if (flock(fileno(f), LOCK_EX | LOCK_NB)) {
        fclose(f);
        return out_fail(err, SEGUE_EIO, "fetching: %.250s: another segue pull is writing it; wait until it ends", part);
    }
    bool retry = true;
    segue_status st = SEGUE_OK;
    for (int i = 0; i < MAX_ATTEMPTS && retry && !interrupt_pending(); i++) {
        struct timespec pause = {i / 2, i ? 200000000 : 0};
        nanosleep(&pause, NULL);
        st = download_once(r, f, part, expected_bytes, progress, code, &retry, err);
        if (!st) break;
    }
    errno = 0;
    if (!st && (fflush(f) || fsync(fileno(f)))) st = out_fail_errno(err, "fetching", part, NULL);
    fclose(f);
    if (st == SEGUE_OK) save_etag(part, NULL);
    return st;
}

#else

/* The error of a build without libcurl. */
static segue_status no_libcurl(const struct http_request *r, segue_error *err)
{
    return out_fail(err, SEGUE_EUNSUPPORTED,
                    "fetching: %.250s: not in this build: compiled without libcurl", r->url);
}

segue_status http_text(const struct http_request *r, size_t limit, struct out_text *out, long *code,
                       segue_error *err)
{
    (void)limit, (void)out;
    *code = 0;
    return no_libcurl(r, err);
}

segue_status http_file(const struct http_request *r, const char *part, uint64_t expected_bytes,
                       struct progress *progress, long *code, segue_error *err)
{
    (void)part, (void)expected_bytes, (void)progress;
    *code = 0;
    return no_libcurl(r, err);
}
#endif
