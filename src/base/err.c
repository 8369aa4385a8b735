/* err.c: formats error texts; see err.h. Texts that exceed segue_error.text are truncated.
 * SPDX-License-Identifier: MIT */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

segue_status sg_fail(segue_error *err, segue_status status, const char *format, ...)
{
    if (!err) return status;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n < 0) err->text[0] = 0;
    for (unsigned char *c = (unsigned char *)err->text; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    err->status = status;
    return status;
}
