/* out.h: everything the program writes: answers and JSON on stdout, one error line on stderr, exit codes. Also
 * allocation functions that end the program when memory is exhausted, and small constructors for JSON values.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_OUT_H
#define SEGUE_CLI_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "segue.h"

#if defined(__GNUC__)
#define OUT_FORMAT(f, a) __attribute__((format(printf, f, a)))
#else
#define OUT_FORMAT(f, a)
#endif

/* Exit codes of the program, documented in docs/CLI.md. */
enum {
    EXIT_DONE = 0,
    EXIT_INPUT_OUTPUT = 1, /* a read, a write or the network failed */
    EXIT_USAGE = 2,
    EXIT_UNAVAILABLE = 3, /* a unit or feature is missing on this machine or in this build */
    EXIT_BAD_INPUT = 4,   /* an invalid or unsupported file */
    EXIT_LIMIT = 5,       /* out of memory, or larger than a limit such as the context */
    EXIT_CHECK = 6,       /* a verification found a difference */
    EXIT_UNIT_LOST = 7,
    EXIT_INTERRUPTED = 130
};

/* Allocation that never returns NULL: without memory the program prints an error and exits with EXIT_LIMIT. out_alloc
 * zeroes the block; all blocks are freed with free(). */
void *out_alloc(size_t size);
void *out_realloc(void *p, size_t size);
char *out_strdup(const char *s);
char *out_printf(const char *format, ...) OUT_FORMAT(1, 2); /* a new string */

/* A growing byte string. Zero-initialise it; data is NULL until bytes are added and NUL-terminated afterwards. */
struct out_text {
    char *data;
    size_t len, cap;
};
/* Append n bytes, or formatted text. */
void out_add(struct out_text *text, const char *bytes, size_t n);
void out_addf(struct out_text *text, const char *format, ...) OUT_FORMAT(2, 3);

/* Fill err and return status. The text has the form "what failed: object: why; what to do", as in segue.h. */
segue_status out_fail(segue_error *err, segue_status status, const char *format, ...) OUT_FORMAT(3, 4);
/* The same for a failed call of the C library; the reason is strerror(errno). Returns SEGUE_EMEMORY for ENOMEM,
 * otherwise SEGUE_EIO. remedy: text after the reason, or NULL. */
segue_status out_fail_errno(segue_error *err, const char *what, const char *object, const char *remedy);

/* The exit code of a status. unsupported_code is used for SEGUE_EUNSUPPORTED: EXIT_BAD_INPUT while files are read,
 * EXIT_UNAVAILABLE for units and features. */
int out_exit_code(segue_status status, int unsupported_code);

/* If on, out_error also prints the error as a JSON object on stdout. Set by --json. */
void out_json_errors(bool on);
/* Print the error line, and the JSON object if requested; returns the exit code. */
int out_error(const segue_error *err, int unsupported_code);
/* {"error": {"code", "name", "text"}} as a new reference. */
json_t *out_error_json(const segue_error *err, int unsupported_code);
/* Print a line for humans on stderr, prefixed with "segue: ". */
void out_note(const char *format, ...) OUT_FORMAT(1, 2);

/* Replace by '?' what a terminal would interpret: control characters except newline and tab, DEL, C1 controls (U+0080 to
 * U+009F) and bytes that are not UTF-8, which some terminals read as C1. one_line: newlines and tabs, too. In place;
 * returns the new length. */
size_t out_clean(char *text, size_t n, bool one_line);
/* Write bytes to stdout and flush; on a terminal they are cleaned, in a pipe or file they are kept. Returns SEGUE_EIO
 * with the reason of the system. */
segue_status out_write(const char *bytes, size_t n, segue_error *err);
/* The same without cleaning, for JSON, and for text that was cleaned before the command put its own colours into it. */
segue_status out_write_raw(const char *bytes, size_t n, segue_error *err);
/* Formatted text to stdout through stdio, cleaned like that of out_write. For the lines of lists and summaries. */
void out_print(const char *format, ...) OUT_FORMAT(1, 2);
/* Print a JSON value and a newline, also on a terminal byte by byte; steals the reference. indent 0: on one line. */
segue_status out_json(json_t *value, int indent, segue_error *err);
/* Print a JSON value, steal the reference, and return the exit code. The usual end of a command. */
int out_json_exit(json_t *value);

/* JSON values as new references. out_string replaces bytes that are not UTF-8 by U+FFFD, and out_real turns NaN and
 * infinity into null, because jansson rejects both. out_id_list: an array of ids[n]. */
json_t *out_string(const char *bytes, size_t n);
json_t *out_real(double v);
json_t *out_id_list(const int32_t *ids, size_t n);
/* jansson's json_loadb, which recurses per level, for texts of at most 100 levels of nesting. NULL: why has the reason; it may be
 * NULL. */
json_t *out_json_load(const char *text, size_t len, size_t flags, json_error_t *why);
/* Set object[name] to null and object[name + "_reason"] to reason. Every null in the output has a reason. */
void out_null(json_t *object, const char *name, const char *reason);

/* Evaluate `call`, a library function that returns text in (text).data, (text).cap, (text).len by the rule of segue.h
 * (SEGUE_ELIMIT and the needed length if the buffer is too small), and grow the buffer until it fits. */
#define OUT_GROW(text, st, call)                                            \
    do {                                                                    \
        size_t need_ = 4096;                                                \
        for (int attempt_ = 0; attempt_ < 3; attempt_++) {                        \
            (text).data = out_realloc((text).data, (text).cap = need_ + 1); \
            (st) = (call);                                                  \
            if ((st) != SEGUE_ELIMIT || (text).len < (text).cap) break;     \
            need_ = (text).len;                                             \
        }                                                                   \
    } while (0)

/* Create a temporary file beside path, which the caller renames or unlinks: its name is random, and nothing that exists
 * is opened. *tmp: its path, allocated. mode: permission bits before the umask. NULL: see errno. */
FILE *out_temporary(const char *path, unsigned mode, char **tmp);

/* Monotonic clock in nanoseconds. */
uint64_t out_now_ns(void);

#endif
