/* jinja_time.c: strftime_now: conversions of strftime in the C locale. The C library's strftime is not
 * used, because it depends on the locale of the process.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Week of the year, 0 to 53, that starts on Sunday, or on Monday; days before the first such day
 * are in week 0. */
static int week_of(const struct tm *t, int monday)
{
    int day = monday ? (t->tm_wday + 6) % 7 : t->tm_wday;
    return (t->tm_yday + 7 - day) / 7;
}

/* A conversion that gives names or several numbers. plain: without padding (%-e, as in glibc). Returns 0 when c is none. */
static int time_names(const struct tm *t, char c, int plain, char *out, size_t cap)
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const char *day = days[t->tm_wday % 7], *month = months[t->tm_mon % 12];
    switch (c) {
    case 'a': return snprintf(out, cap, "%.3s", day), 1;
    case 'A': return snprintf(out, cap, "%s", day), 1;
    case 'b':
    case 'h': return snprintf(out, cap, "%.3s", month), 1;
    case 'B': return snprintf(out, cap, "%s", month), 1;
    case 'p': return snprintf(out, cap, "%s", t->tm_hour < 12 ? "AM" : "PM"), 1;
    case 'Y': return snprintf(out, cap, "%d", t->tm_year + 1900), 1;
    case 'F': return snprintf(out, cap, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday), 1;
    case 'D':
    case 'x': return snprintf(out, cap, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, t->tm_year % 100), 1;
    case 'T':
    case 'X': return snprintf(out, cap, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec), 1;
    case 'R': return snprintf(out, cap, "%02d:%02d", t->tm_hour, t->tm_min), 1;
    case 'c':
        return snprintf(out, cap, "%.3s %.3s %2d %02d:%02d:%02d %d", day, month, t->tm_mday, t->tm_hour,
                        t->tm_min, t->tm_sec, t->tm_year + 1900),
               1;
    /* microseconds: `now` has whole seconds */
    case 'f': return snprintf(out, cap, "000000"), 1;
    case 'n': return snprintf(out, cap, "\n"), 1;
    case 't': return snprintf(out, cap, "\t"), 1;
    case '%': return snprintf(out, cap, "%%"), 1;
    /* The time is naive, as datetime.now() in transformers: time zones are empty. */
    case 'z':
    case 'Z': return *out = 0, 1;
    case 'e': return snprintf(out, cap, plain ? "%d" : "%2d", t->tm_mday), 1;
    default: return 0;
    }
}

/* The value of a conversion that gives one number, and the digits it is padded to; -1: c is none. */
static int time_number(const struct tm *t, char c, int *width)
{
    *width = c == 'j' ? 3 : c == 'u' || c == 'w' ? 1 : 2;
    switch (c) {
    case 'd': return t->tm_mday;
    case 'm': return t->tm_mon + 1;
    case 'y': return t->tm_year % 100;
    case 'H': return t->tm_hour;
    case 'I': return t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    case 'M': return t->tm_min;
    case 'S': return t->tm_sec;
    case 'j': return t->tm_yday + 1;
    case 'u': return t->tm_wday ? t->tm_wday : 7;
    case 'w': return t->tm_wday;
    case 'U': return week_of(t, 0);
    case 'W': return week_of(t, 1);
    default: return -1;
    }
}

/* One conversion to out. plain: without padding (%-d, as in glibc). Returns 0 when c is not known;
 * the caller then copies the text, as glibc does. */
static int time_text(const struct tm *t, char c, int plain, char *out, size_t cap)
{
    int width, value = time_number(t, c, &width);
    if (value < 0) return time_names(t, c, plain, out, cap);
    snprintf(out, cap, "%0*d", plain ? 1 : width, value);
    return 1;
}

/* Uses st->now in local time, or the clock if it is negative. */
segue_status sg_format_time(struct sg_jinja *st, struct sg_str *format, struct sg_val *out)
{
    time_t now = st->now < 0 ? time(NULL) : (time_t)st->now;
    struct tm t;
    char text[64];
    if (!localtime_r(&now, &t)) return sg_jinja_fail(st, "strftime_now: the time is out of range");
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    for (const char *p = format->s, *e = p + format->n; p < e && r == SEGUE_OK; p++) {
        /* "%-" followed by a conversion */
        int plain = *p == '%' && e - p > 2 && p[1] == '-';
        if (*p == '%' && e - p > 1 + plain && time_text(&t, p[1 + plain], plain, text, sizeof text)) {
            r = sg_put(st, &b, text, strlen(text));
            p += 1 + plain;
        } else {
            /* also '%' before an unknown conversion */
            r = sg_put(st, &b, p, 1);
        }
    }
    return sg_str_from_buf(st, r, &b, out);
}
