/* out.h: what leaves the program: JSON on stdout, the one error line on stderr, exit codes; and the program's
 * memory, which ends the program in good order when there is none. SPDX-License-Identifier: MIT */
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

enum {
    EXIT_DONE = 0,
    EXIT_INPUT_OUTPUT = 1,
    EXIT_USAGE = 2,
    EXIT_NOT_HERE = 3,
    EXIT_REFUSED = 4,
    EXIT_NO_ROOM = 5,
    EXIT_CHECK = 6,
    EXIT_LOST = 7,
    EXIT_INTERRUPTED = 130
};

/* Memory of the program; never NULL: without memory the program says so and ends with exit 5. */
void *out_alloc(size_t size); /* zeroed */
void *out_realloc(void *p, size_t size);
char *out_strdup(const char *s);
char *out_printf(const char *format, ...) OUT_FORMAT(1, 2); /* a new string */

/* A growing string. Zero-initialise; data is NULL until something was added, NUL-terminated after. */
struct out_text {
    char *data;
    size_t len, cap;
};
void out_add(struct out_text *text, const char *bytes, size_t n);
void out_addf(struct out_text *text, const char *format, ...) OUT_FORMAT(2, 3);

/* Fill err and return status; text as in segue.h. */
segue_status out_fail(segue_error *err, segue_status status, const char *format, ...) OUT_FORMAT(3, 4);
/* The same for a failed call of the C library: EIO, or what errno says. `remedy` may be NULL. */
segue_status out_fail_errno(segue_error *err, const char *what, const char *object, const char *remedy);

/* The exit code of a status; what_unsupported is the code for EUNSUPPORTED: EXIT_REFUSED while reading files,
 * EXIT_NOT_HERE for units and features. */
int out_exit_code(segue_status status, int what_unsupported);

/* With --json anywhere on the command line, errors are also printed to stdout as an object. */
void out_json_errors(bool on);
/* Print the error line (and the JSON object), and give the exit code. */
int out_error(const segue_error *err, int what_unsupported);
json_t *out_error_json(const segue_error *err, int what_unsupported);
/* A line on stderr for the eye: "segue: ...". */
void out_note(const char *format, ...) OUT_FORMAT(1, 2);

/* Write to stdout; EIO names what the system says. Flushed. */
segue_status out_write(const char *bytes, size_t n, segue_error *err);
/* Print a JSON value and a newline; takes the reference. indent 0 = one line. */
segue_status out_json(json_t *value, int indent, segue_error *err);
/* The usual end of a command: print value (which it takes) and give the exit code. */
int out_json_exit(json_t *value);

/* JSON values that cannot fail: bytes that are no UTF-8 become U+FFFD, numbers that are no number become
 * null. */
json_t *out_string(const char *bytes, size_t n);
json_t *out_real(double v);
json_t *out_id_list(const int32_t *ids, size_t n);
/* object[name] = null, object[name_reason] = reason. */
void out_null(json_t *object, const char *name, const char *reason);

/* Call a library function that gives text by the rule of segue.h, with as much room as it asks for. */
#define OUT_GROW(text, st, call)                                            \
    do {                                                                    \
        size_t need_ = 4096;                                                \
        for (int round_ = 0; round_ < 3; round_++) {                        \
            (text).data = out_realloc((text).data, (text).cap = need_ + 1); \
            (st) = (call);                                                  \
            if ((st) != SEGUE_ELIMIT || (text).len < (text).cap) break;     \
            need_ = (text).len;                                             \
        }                                                                   \
    } while (0)

uint64_t out_now_ns(void);

#endif
