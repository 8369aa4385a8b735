/* cores.c: see cores.h. SPDX-License-Identifier: MIT */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "host/cores.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH = 1024 };

size_t cores_allowed(void)
{
#ifdef __linux__
    cpu_set_t all;
    if (!sched_getaffinity(0, sizeof all, &all) && CPU_COUNT(&all) > 0) return (size_t)CPU_COUNT(&all);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}

/* The first n numbers of a file; false: it has others, such as `max`, or does not exist. */
static int read_numbers(const char *folder, const char *name, double *out, int n)
{
    char path[PATH + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    int got = 0;
    while (f && got < n && fscanf(f, "%lf", &out[got]) == 1) got++;
    if (f) fclose(f);
    return got == n;
}

/* The limit of one group: version 2 has quota and period in one file, version 1 in two; -1 is none. */
static double quota_of(const char *folder)
{
    double v[2];
    int known = read_numbers(folder, "cpu.max", v, 2) ||
                (read_numbers(folder, "cpu.cfs_quota_us", v, 1) && read_numbers(folder, "cpu.cfs_period_us", v + 1, 1));
    return known && v[0] > 0 && v[1] > 0 ? v[0] / v[1] : 0;
}

/* The least limit of a group and of those above it. path: below root; changed. */
static double least_quota(const char *root, char *path)
{
    char folder[PATH];
    double least = 0;
    for (;;) {
        double quota = snprintf(folder, sizeof folder, "%s%s", root, path) < PATH ? quota_of(folder) : 0;
        if (quota > 0 && (!(least > 0) || quota < least)) least = quota;
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* 1: the comma-separated list of controllers contains `cpu`. */
static int controls_cpu(const char *list, size_t n)
{
    for (const char *s = list, *end = list + n; s < end; s += strcspn(s, ",:") + 1)
        if (strcspn(s, ",:") == 3 && !strncmp(s, "cpu", 3)) return 1;
    return 0;
}

double cores_quota(const char *list, const char *root)
{
    char line[PATH], base[PATH];
    double least = 0;
    FILE *f = fopen(list, "r");
    while (f && fgets(line, sizeof line, f)) { /* ID:CONTROLLERS:PATH; no controllers: version 2 */
        char *from = strchr(line, ':'), *path = from ? strchr(from + 1, ':') : NULL;
        if (!path) continue;
        size_t n = (size_t)(path - from - 1);
        path[strcspn(path, "\n")] = 0;
        if (n && !controls_cpu(from + 1, n)) continue;
        if (snprintf(base, sizeof base, "%s%s", root, n ? "/cpu" : "") >= PATH) continue;
        double quota = least_quota(base, path + 1);
        if (quota > 0 && (!(least > 0) || quota < least)) least = quota;
    }
    if (f) fclose(f);
    return least;
}

double cores_busy_s(void)
{
    double t[8] = {0}; /* user, nice, system, idle, waiting for disks, interrupts (2), stolen by other virtual machines */
    FILE *f = fopen("/proc/stat", "r");
    int n = f ? fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) : 0;
    long hz = sysconf(_SC_CLK_TCK);
    if (f) fclose(f);
    return n >= 4 && hz > 0 ? (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)hz : -1;
}

double cores_own_s(void)
{
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        struct rusage u;
        if (getrusage(i ? RUSAGE_CHILDREN : RUSAGE_SELF, &u)) return -1;
        sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    }
    return sum;
}

double cores_taken(double seconds, double busy_s, double own_s)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    double allowed = (double)cores_allowed(), elsewhere = online > 0 ? (double)online - allowed : 0;
    if (!(seconds > 0) || busy_s < 0 || own_s < 0) return 0;
    double others = (busy_s - own_s) / seconds - (elsewhere > 0 ? elsewhere : 0);
    return others > 0 ? others / allowed : 0;
}
