/* checkmain.c: the program `check`: every unit against `ref`, `ref` against a naive restatement. Options and
 * lines; the cases are in the other files of this folder.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { EXIT_USAGE = 2, EXIT_NONE = 3, EXIT_FAILED = 6 };

#ifdef CHECK_KERNEL_ONLY /* cross builds: the kernels need no library, everything else does */
void check_ops(struct check *c) { (void)c; }
void check_handoffs(struct check *c) { (void)c; }
void check_gradients(struct check *c) { (void)c; }
int check_open_units(struct check *c, const char *const *specs, uint32_t n)
{
    (void)c;
    (void)specs;
    return n ? EXIT_USAGE : 0;
}
void check_close_units(struct check *c) { (void)c; }
#endif

#ifndef CHECK_KERNEL
void check_kernels(struct check *c) { (void)c; }
#endif

static const struct { const char *name; void (*run)(struct check *c); } levels[] = {
    {"kernel", check_kernels}, {"op", check_ops}, {"gradient", check_gradients}, {"handoff", check_handoffs},
};
enum { LEVELS = sizeof levels / sizeof *levels };

static const char help[] =
    "check [--level kernel|op|gradient|handoff]... [--unit U]... [--without KIND]... [--seed S] [--list] [--json] "
    "[--bench] [--quick] [--case TEXT]...\n"
    "Compares every op, every gradient and every state on each unit with `ref`, and `ref` with a plain restatement.\n"
    "One line a case: level unit against case max_abs bound ok skipped. Exit 0, 6 when a case failed, 3 when none ran.\n"
    "  --unit U    only this unit (default: every unit that is built and present, each instruction set)\n"
    "  --without KIND  without --unit: not the units of this kind, such as proc\n"
    "  --seed S    other random cases (default 1); equal seeds give equal cases\n"
    "  --quick     a few cases of each kind\n"
    "  --case TEXT only cases whose name contains it, or any of several (--list names them);\n"
    "              =NAME: that one alone\n"
    "  --bench     busy time of each case beside `against`; kernels also at a model's sizes, with their rate and\n"
    "              the roof of one thread measured beside it: reading as many bytes, or the instruction set's peak;\n"
    "              states: getting and putting a whole one of Qwen3.5-0.8B's shape\n"
    "example: check --level op --unit cpu --seed 7\n";

/* --- lines --- */

/* JSON has no infinity. */
static void print_number(double x)
{
    if (isfinite(x)) printf("%.3g", x);
    else printf("\"%s\"", isnan(x) ? "nan" : "inf");
}

static void print_json(const struct check *c, const struct check_case *k)
{
    printf("%s{\"level\":\"%s\",\"unit\":\"%s\",\"against\":\"%s\",\"case\":\"%s\"", c->cases_n ? ",\n" : "",
           k->level, k->unit, k->against, k->name);
    if (!c->list) {
        printf(",\"max_abs\":");
        print_number(k->max_abs);
        printf(",\"bound\":");
        print_number(k->bound);
        printf(",\"ok\":%s,\"skipped\":", k->skipped ? "null" : k->ok ? "true" : "false");
        if (k->skipped) {
            putchar('"');
            for (const char *s = k->skipped; *s; s++) putchar(*s == '"' || *s == '\\' ? '\'' : *s);
            putchar('"');
        } else {
            printf("null");
        }
        if (c->bench) printf(",\"ns\":%.0f,\"against_ns\":%.0f", k->ns, k->against_ns);
        if (c->bench && k->ns > 0 && k->against_ns > 0) printf(",\"ratio\":%.4g", k->against_ns / k->ns);
        if (k->rate_unit) printf(",\"rate\":%.4g,\"rate_unit\":\"%s\"", k->rate, k->rate_unit);
        if (k->rate_unit && k->roof > 0)
            printf(",\"roof\":%.4g,\"roof_share\":%.4g", k->roof, k->rate / k->roof);
    }
    printf("}");
}

static void print_line(const struct check *c, const struct check_case *k)
{
    printf("%-8s %-20s %-8s %-32s", k->level, k->unit, k->against, k->name);
    if (!c->list) {
        printf(" %9.3g %9.3g %-4s %s", k->max_abs, k->bound, k->skipped ? "-" : k->ok ? "ok" : "FAIL",
               k->skipped ? k->skipped : "-");
        if (c->bench && k->ns > 0) printf(" %.0f ns, %.2f times", k->ns, k->against_ns / k->ns);
        if (k->rate_unit) printf(", %.1f %s", k->rate, k->rate_unit);
        if (k->rate_unit && k->roof > 0) printf(", %.0f %% of %.1f", 100 * k->rate / k->roof, k->roof);
    }
    printf("\n");
}

void check_report(struct check *c, struct check_case *k)
{
    k->ok = !k->skipped && k->ok >= 0 && k->max_abs <= k->bound;
    if (c->json) print_json(c, k);
    else print_line(c, k);
    c->cases_n++;
    c->skipped_n += k->skipped != NULL;
    c->failed_n += !c->list && !k->skipped && !k->ok;
}

static int is_asked_for(const struct check *c, const char *name)
{
    for (uint32_t i = 0; i < c->names_n; i++)
        if (*c->names[i] == '=' ? !strcmp(name, c->names[i] + 1) : strstr(name, c->names[i]) != NULL) return 1;
    return c->names_n == 0;
}

int check_wants(struct check *c, struct check_case *k)
{
    if (!is_asked_for(c, k->name)) return 0;
    if (!c->list) return 1;
    check_report(c, k);
    return 0;
}

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "check: option not understood: %s: %s; see --help\n", which ? which : "(none)", what);
    return EXIT_USAGE;
}

struct options {
    const char *units[CHECK_UNITS];
    uint32_t units_n;
    int level[LEVELS], levels_n;
};

static int add_level(struct options *o, const char *name)
{
    for (int i = 0; i < LEVELS; i++)
        if (name && !strcmp(levels[i].name, name)) return o->level[i] = ++o->levels_n;
    return 0;
}

static int parse(struct check *c, struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        char *end = NULL;
        if (!strcmp(flag, "--list")) { c->list = 1; continue; }
        if (!strcmp(flag, "--json")) { c->json = 1; continue; }
        if (!strcmp(flag, "--bench")) { c->bench = 1; continue; }
        if (!strcmp(flag, "--quick")) { c->quick = 1; continue; }
        i++;
        if (!strcmp(flag, "--level")) {
            if (!add_level(o, value)) return usage("kernel, op, gradient or handoff", value);
        } else if (!strcmp(flag, "--unit")) {
            if (!value || o->units_n == CHECK_UNITS) return usage("a unit, at most 24", value);
            o->units[o->units_n++] = value;
        } else if (!strcmp(flag, "--without")) {
            if (!value || c->without_n == CHECK_NAMES) return usage("a kind of unit, at most 24", value);
            c->without[c->without_n++] = value;
        } else if (!strcmp(flag, "--case")) {
            if (!value || c->names_n == CHECK_NAMES) return usage("part of a case's name, at most 24", value);
            c->names[c->names_n++] = value;
        } else if (!strcmp(flag, "--seed")) {
            if (!value || *value < '0' || *value > '9') return usage("a number", value);
            c->seed = strtoull(value, &end, 10);
            if (*end) return usage("a number", value);
        } else {
            return usage("unknown", flag);
        }
    }
    return 0;
}

static void run_levels(struct check *c, const struct options *o)
{
    if (c->json) printf("{\"seed\":%llu,\"cases\":[\n", (unsigned long long)c->seed);
    for (int i = 0; i < LEVELS; i++) {
        uint32_t before = c->cases_n;
        if (o->levels_n && !o->level[i]) continue;
        levels[i].run(c);
        if (c->list && !c->json && c->cases_n == before) printf("%-8s none\n", levels[i].name);
    }
    if (c->json)
        printf("\n],\"failed\":%u,\"skipped\":%u}\n", c->failed_n, c->skipped_n);
    else if (!c->list)
        fprintf(stderr, "check: %u cases, %u failed, %u skipped, seed %llu\n", c->cases_n, c->failed_n,
                c->skipped_n, (unsigned long long)c->seed);
}

int main(int argc, char **argv)
{
    struct check c = {.seed = 1};
    struct options o = {0};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) return fputs(help, stdout) < 0;
    int code = parse(&c, &o, argc, argv);
    if (!code) code = check_open_units(&c, o.units, o.units_n);
    if (!code) run_levels(&c, &o);
    check_close_units(&c);
    if (!code && c.names_n && !c.cases_n) return usage("the names of cases: --list has them", c.names[0]);
    /* A run that compared nothing proves nothing. */
    if (!code && !c.list && c.cases_n == c.skipped_n) {
        fprintf(stderr, "check: no case ran: the units have none of these levels or skipped all cases; see the reasons above\n");
        return EXIT_NONE;
    }
    return code ? code : c.failed_n ? EXIT_FAILED : 0;
}
