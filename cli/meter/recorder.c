/* recorder.c: see recorder.h. SPDX-License-Identifier: MIT */
#include "meter/recorder.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_MS = 10000 }; /* until the log exists */

static void wait_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

void recorder_end(pid_t pid)
{
    if (pid <= 0) return;
    wait_ms(3 * RECORDER_MS);
    kill(pid, SIGINT);
    wait_ms(RECORDER_MS);
    if (waitpid(pid, NULL, WNOHANG) == pid) return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

const char *recorder_start(pid_t *pid, const char *log)
{
    char interval[16];
    snprintf(interval, sizeof interval, "%d", RECORDER_MS);
    fflush(NULL);
    *pid = fork();
    if (*pid < 0) {
        *pid = 0;
        return "no process can be started";
    }
    if (!*pid) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(127);
        execlp("powermetrics", "powermetrics", "--samplers", "cpu_power,gpu_power", "-i", interval, "-o", log, (char *)NULL);
        _exit(127);
    }
    for (int waited = 0; waited < START_MS; waited += RECORDER_MS) {
        wait_ms(RECORDER_MS);
        if (waitpid(*pid, NULL, WNOHANG) == *pid) {
            *pid = 0;
            return "powermetrics is not on this machine, or ended at once";
        }
        if (!access(log, R_OK)) return NULL;
    }
    recorder_end(*pid);
    *pid = 0;
    return "powermetrics wrote no log";
}
