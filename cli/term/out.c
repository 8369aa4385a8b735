/* out.c: output, errors and allocation, see out.h. The error line is written only here.
 * SPDX-License-Identifier: MIT */
#include "term/out.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static bool json_errors; /* set by --json: errors are printed as JSON on stdout too */

/* Exit with EXIT_LIMIT if an allocation failed. The library survives a failed allocation; a command does not need to.
 * No partial file remains, because files are written under a temporary name and renamed. */
static void *exit_if_null(void *p)
{
    if (!p) {
        static const char line[] = "segue: out of memory; close other programs or use a smaller model\n";
        ssize_t n = write(2, line, sizeof line - 1);
        (void)n;
        _exit(EXIT_LIMIT);
    }
    return p;
}

void *out_alloc(size_t size) { return exit_if_null(calloc(1, size ? size : 1)); }

void *out_realloc(void *p, size_t size) { return exit_if_null(realloc(p, size ? size : 1)); }

char *out_strdup(const char *s) { return exit_if_null(strdup(s)); }

/* A new string of *n bytes. The text is formatted twice: once to find its length. */
static char *OUT_FORMAT(1, 0) format_new(const char *format, va_list ap, size_t *n)
{
    va_list again;
    va_copy(again, ap);
    *n = (size_t)vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *s = out_alloc(*n + 1);
    vsnprintf(s, *n + 1, format, ap);
    return s;
}

char *out_printf(const char *format, ...)
{
    size_t n;
    va_list ap;
    va_start(ap, format);
    char *s = format_new(format, ap, &n);
    va_end(ap);
    return s;
}

/* The capacity doubles, so that appending n bytes one by one costs O(n). */
void out_add(struct out_text *text, const char *bytes, size_t n)
{
    if (text->len + n + 1 > text->cap) {
        text->cap = (text->len + n + 1) * 2;
        text->data = out_realloc(text->data, text->cap);
    }
    if (n) memcpy(text->data + text->len, bytes, n);
    text->len += n;
    text->data[text->len] = 0;
}

void out_addf(struct out_text *text, const char *format, ...)
{
    size_t n;
    va_list ap;
    va_start(ap, format);
    char *s = format_new(format, ap, &n);
    va_end(ap);
    out_add(text, s, n);
    free(s);
}

/* Length of the UTF-8 character at s[n]; 0 if the bytes are not valid UTF-8 (overlong forms and surrogates included). */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 && s[0] <= 0xf4  ? 4
                 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                                               : 0;
    if (!len || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return len;
}

size_t out_clean(char *text, size_t n, bool one_line)
{
    size_t to = 0;
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        unsigned char c = (unsigned char)text[i];
        len = utf8_length((const unsigned char *)text + i, n - i);
        bool plain = len > 2 || (len == 2 && !(c == 0xc2 && (unsigned char)text[i + 1] < 0xa0)) ||
                     (len == 1 && c >= 32 && c != 127) || (!one_line && (c == '\n' || c == '\t'));
        if (plain) memmove(text + to, text + i, len);
        if (!plain) text[to] = '?';
        to += plain ? len : 1;
    }
    return to;
}

/* Control characters, which may come from file names or servers, become '?', so that the error stays one line. */
segue_status out_fail(segue_error *err, segue_status status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(err->text, sizeof err->text, format, ap);
    va_end(ap);
    err->text[out_clean(err->text, strlen(err->text), true)] = 0;
    err->status = status;
    return status;
}

/* errno is read first, because formatting may change it. */
segue_status out_fail_errno(segue_error *err, const char *what, const char *object, const char *remedy)
{
    int e = errno;
    if (!remedy && (e == ENOTSUP || e == EISDIR)) remedy = "name a regular file"; /* of out_temporary */
    segue_status st = e == ENOMEM ? SEGUE_EMEMORY : SEGUE_EIO;
    return out_fail(err, st, "%s: %.300s: %s%s%s", what, object, strerror(e), remedy ? "; " : "",
                    remedy ? remedy : "");
}

/* One switch over all statuses, without a default, so that the compiler reports a status without an exit code. */
int out_exit_code(segue_status status, int unsupported_code)
{
    switch (status) {
    case SEGUE_OK:
    case SEGUE_END:
        return EXIT_DONE;
    case SEGUE_EARG:
        return EXIT_USAGE;
    case SEGUE_EMEMORY:
    case SEGUE_ELIMIT:
        return EXIT_LIMIT;
    case SEGUE_EFORMAT:
        return EXIT_BAD_INPUT;
    case SEGUE_EUNSUPPORTED:
        return unsupported_code;
    case SEGUE_EUNIT:
        return EXIT_UNAVAILABLE;
    case SEGUE_ELOST:
        return EXIT_UNIT_LOST;
    case SEGUE_ECANCELED:
        return EXIT_INTERRUPTED;
    case SEGUE_EIO:
    case SEGUE_EINTERNAL:
        break;
    }
    return EXIT_INPUT_OUTPUT;
}

void out_json_errors(bool on) { json_errors = on; }

json_t *out_error_json(const segue_error *err, int unsupported_code)
{
    json_t *inner = json_object();
    json_object_set_new(inner, "code", json_integer(out_exit_code(err->status, unsupported_code)));
    json_object_set_new(inner, "name", json_string(segue_status_name(err->status)));
    json_object_set_new(inner, "text", out_string(err->text, strlen(err->text)));
    json_t *object = json_object();
    json_object_set_new(object, "error", inner);
    return object;
}

/* A failure to write the JSON object is ignored: stdout may be closed, and the line on stderr is still printed. */
int out_error(const segue_error *err, int unsupported_code)
{
    if (json_errors) {
        segue_error ignored;
        out_json(out_error_json(err, unsupported_code), 0, &ignored);
    }
    segue_error line = *err; /* the library's messages contain names from files */
    line.text[out_clean(line.text, strlen(line.text), true)] = 0;
    fprintf(stderr, "segue: %s\n", line.text);
    return out_exit_code(err->status, unsupported_code);
}

/* Notes are not errors: they do not change the exit code and are not part of the JSON. */
void out_note(const char *format, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    line[out_clean(line, strlen(line), true)] = 0;
    fprintf(stderr, "segue: %s\n", line);
}

/* Uses write(2) instead of stdio, which loses track of written bytes when a signal interrupts it. EAGAIN waits for
 * the reader. After a signal (EINTR) the reader gets 50 ms, so that a stalled pipe cannot keep an interrupted program
 * alive. */
segue_status out_write_raw(const char *bytes, size_t n, segue_error *err)
{
    errno = 0;
    if (fflush(stdout)) return out_fail_errno(err, "writing the answer", "standard output", NULL);
    while (n) {
        ssize_t done = write(1, bytes, n);
        if (done >= 0) {
            bytes += done;
            n -= (size_t)done;
            continue;
        }
        struct pollfd out = {.fd = 1, .events = POLLOUT};
        if (errno != EINTR && errno != EAGAIN)
            return out_fail_errno(err, "writing the answer", "standard output", NULL);
        if (poll(&out, 1, errno == EINTR ? 50 : -1) == 0)
            return out_fail(
                err, SEGUE_ECANCELED,
                "writing the answer: standard output: interrupted while waiting for the reader");
    }
    return SEGUE_OK;
}

segue_status out_write(const char *bytes, size_t n, segue_error *err)
{
    if (!n || !isatty(1)) return out_write_raw(bytes, n, err);
    char *copy = out_alloc(n);
    memcpy(copy, bytes, n);
    segue_status st = out_write_raw(copy, out_clean(copy, n, false), err);
    free(copy);
    return st;
}

/* A failed write shows when stdout is flushed at the end of the program. */
void out_print(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (!isatty(1)) {
        vprintf(format, ap);
        va_end(ap);
        return;
    }
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    char *s = out_alloc((size_t)n + 1);
    va_start(ap, format);
    vsnprintf(s, (size_t)n + 1, format, ap);
    va_end(ap);
    fwrite(s, 1, out_clean(s, (size_t)n, false), stdout);
    free(s);
}

/* 9 significant digits represent every fp32 value exactly. */
segue_status out_json(json_t *value, int indent, segue_error *err)
{
    size_t flags = JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY | (indent ? JSON_INDENT(indent) : JSON_COMPACT);
    char *text = json_dumps(value, flags);
    json_decref(value);
    if (!text) return out_fail(err, SEGUE_EMEMORY, "writing JSON: standard output: out of memory");
    segue_status st = out_write_raw(text, strlen(text), err);
    if (!st) st = out_write_raw("\n", 1, err);
    free(text);
    return st;
}

/* An error object could not be printed either, so it is switched off before the error is reported. */
int out_json_exit(json_t *value)
{
    segue_error err;
    if (out_json(value, 0, &err) == SEGUE_OK) return EXIT_DONE;
    out_json_errors(false);
    return out_error(&err, EXIT_UNAVAILABLE);
}

/* Fast path for valid UTF-8. A generated text may end in the middle of a character. */
json_t *out_string(const char *bytes, size_t n)
{
    json_t *value = json_stringn(bytes ? bytes : "", bytes ? n : 0);
    if (value) return value;
    struct out_text t = {0};
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length((const unsigned char *)bytes + i, n - i);
        out_add(&t, len ? bytes + i : "\xef\xbf\xbd", len ? len : 3);
        i += len ? len : 1;
    }
    value = json_stringn(t.data ? t.data : "", t.len);
    free(t.data);
    return value ? value : json_string("");
}

/* JSON has no NaN and no infinity. */
json_t *out_real(double v) { return isfinite(v) ? json_real(v) : json_null(); }

json_t *out_id_list(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* The field NAME_reason explains the null. */
void out_null(json_t *object, const char *name, const char *reason)
{
    char *key = out_printf("%s_reason", name);
    json_object_set_new(object, name, json_null());
    json_object_set_new(object, key, json_string(reason));
    free(key);
}

uint64_t out_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The same rule as sg_json_too_deep of the library: brackets inside of strings do not count. */
json_t *out_json_load(const char *text, size_t len, size_t flags, json_error_t *why)
{
    enum { DEPTH = 100 };
    int depth = 0, quoted = 0, deepest = 0;
    for (size_t i = 0; i < len; i++) {
        if (quoted) {
            quoted = text[i] != '"';
            i += text[i] == '\\';
        } else {
            quoted = text[i] == '"';
            depth += (text[i] == '[' || text[i] == '{') - (text[i] == ']' || text[i] == '}');
        }
        if (depth > deepest) deepest = depth;
    }
    if (deepest <= DEPTH) return json_loadb(text, len, flags, why);
    if (why) *why = (json_error_t){.line = 1, .text = "nested deeper than 100 levels"};
    return NULL;
}

/* A rename would replace a device or a pipe, and as root /dev/stdout for every program. 0: path may be replaced; else errno. */
static int not_replaceable(const char *path)
{
    struct stat s;
    if (!lstat(path, &s) && S_ISLNK(s.st_mode) && !strncmp(path, "/dev/", 5)) return ENOTSUP;
    if (stat(path, &s) || S_ISREG(s.st_mode)) return 0;
    return S_ISDIR(s.st_mode) ? EISDIR : ENOTSUP;
}

FILE *out_temporary(const char *path, unsigned mode, char **tmp)
{
    int why = not_replaceable(path);
    *tmp = NULL;
    if (why) {
        errno = why;
        return NULL;
    }
    uint64_t random = out_now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
    int source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (source >= 0 && read(source, &random, sizeof random) != (ssize_t)sizeof random) random ^= random >> 31;
    if (source >= 0) close(source);
    *tmp = out_printf("%s.tmp-%ld-%016llx", path, (long)getpid(), (unsigned long long)random);
    int fd = open(*tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (fd >= 0 && !f) close(fd);
    return f;
}
