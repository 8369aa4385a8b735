/* machine.c: machine properties, see machine.h. Reads /proc on Linux and sysctl on macOS; unknown values become null.
 * SPDX-License-Identifier: MIT */
#include "host/machine.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

static uint64_t start_ns, peak_bytes; /* start of the process; highest sample of resident_bytes */

/* The CPU time used so far was spent by the loader before main, so it is subtracted from the current time. */
void machine_init(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    start_ns = out_now_ns() - ((uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec);
}

/* Reported as the origin of start_ms. */
uint64_t machine_start_ns(void) { return start_ns; }

/* The value after the first line that starts with `key` in a file, allocated; NULL if there is none. */
static char *read_value(const char *path, const char *key)
{
    char line[512], *value = NULL;
    FILE *f = fopen(path, "r");
    while (f && !value && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        char *v = line + strlen(key);
        v += strspn(v, " \t:=\"");
        v[strcspn(v, "\"\r\n")] = 0;
        value = out_strdup(v);
    }
    if (f) fclose(f);
    return value;
}

/* ARM Linux reports an implementer code instead of a model name. */
char *machine_cpu(void)
{
#ifdef __APPLE__
    char name[128] = "";
    size_t n = sizeof name - 1;
    sysctlbyname("machdep.cpu.brand_string", name, &n, NULL, 0);
    return out_strdup(name);
#else
    char *name = read_value("/proc/cpuinfo", "model name");
    if (!name) name = read_value("/proc/cpuinfo", "CPU implementer");
    return name ? name : out_strdup("");
#endif
}

/* Hyper-threads count as processors. */
size_t machine_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}

/* Memory of this process in bytes; 0: not known. Private_Clean pages are mapped weights that only this process uses, so
 * they count too. */
static uint64_t resident_bytes(void)
{
#ifdef __APPLE__
    task_vm_info_data_t info;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &n) != KERN_SUCCESS) return 0;
    return info.phys_footprint;
#else
    static const char *const keys[] = {"Private_Clean:", "Private_Dirty:", "Shared_Dirty:"};
    char line[256];
    uint64_t sum = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        for (size_t i = 0; i < 3; i++)
            if (!strncmp(line, keys[i], strlen(keys[i])))
                sum += strtoull(line + strlen(keys[i]), NULL, 10) * 1024;
    if (f) fclose(f);
    return sum;
#endif
}

/* The kernel reports no peak of this sum, so the callers sample where memory is highest: after the engine is built
 * and after each answer. */
uint64_t machine_peak_bytes(void)
{
    uint64_t now = resident_bytes();
    if (now > peak_bytes) peak_bytes = now;
    return peak_bytes;
}

/* Set a string, or null with a reason if it is NULL or empty. */
static void put_string(json_t *object, const char *name, const char *value, const char *reason)
{
    if (value && *value)
        json_object_set_new(object, name, out_string(value, strlen(value)));
    else
        out_null(object, name, reason);
}

/* Physical memory of the machine; 0: not known. */
static uint64_t memory_bytes(void)
{
#ifdef __APPLE__
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    sysctlbyname("hw.memsize", &bytes, &n, NULL, 0);
    return bytes;
#else
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
#endif
}

/* Name of a GPU, allocated; NULL: none is known. The features of a unit `cuda` begin with the name of its device. */
static char *gpu_name(const segue_unit_info *units, size_t n)
{
    char *name = NULL;
    for (size_t i = 0; i < n && !name; i++)
        if (!strcmp(units[i].kind, "cuda") && !units[i].simulated)
            name = out_printf("%.*s", (int)strcspn(units[i].features, ","), units[i].features);
    struct dirent **cards = NULL;
    int cards_n = name ? 0 : scandir("/proc/driver/nvidia/gpus", &cards, NULL, alphasort);
    for (int i = 0; i < cards_n; i++) {
        char *path = out_printf("/proc/driver/nvidia/gpus/%s/information", cards[i]->d_name);
        if (!name) name = read_value(path, "Model");
        free(path);
        free(cards[i]);
    }
    free(cards);
    return name;
}

/* Nothing is cached, because a process builds few reports. */
json_t *machine_json(const segue_unit_info *units, size_t n)
{
    json_t *m = json_object();
    char *cpu = machine_cpu(), *os = read_value("/etc/os-release", "PRETTY_NAME"), *gpu = gpu_name(units, n);
    struct utsname u;
    memset(&u, 0, sizeof u);
    uname(&u);
    put_string(m, "cpu", cpu, "the system does not report the processor");
    json_object_set_new(m, "cores", json_integer((json_int_t)machine_cores()));
    uint64_t memory = memory_bytes();
    if (memory)
        json_object_set_new(m, "memory_bytes", json_integer((json_int_t)memory));
    else
        out_null(m, "memory_bytes", "the system does not report it");
    put_string(m, "os", os ? os : u.sysname, "the system does not report it");
    put_string(m, "kernel", u.release, "the system does not report it");
    char *driver = read_value("/proc/driver/nvidia/version", "NVRM version");
    put_string(m, "gpu", gpu, "no GPU computed, and no NVIDIA driver lists one");
    put_string(m, "driver", driver, "no NVIDIA driver is loaded");
#ifdef __VERSION__
    json_object_set_new(m, "compiler", json_string(__VERSION__));
#else
    out_null(m, "compiler", "the compiler does not report its version");
#endif
    free(driver);
    free(gpu);
    free(os);
    free(cpu);
    return m;
}
