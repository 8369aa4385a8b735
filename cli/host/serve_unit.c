/* serve_unit.c: `segue --serve-unit`, started by the library only: standard input is a socket to the parent. It is
 * not in the table of commands. Includes an internal header of the library (listed as an exception in
 * tests/api/layers.sh), because it serves the function table of a unit. Never writes to standard output.
 * SPDX-License-Identifier: MIT */
#include "host/serve_unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/placement/units.h"
#include "term/out.h"

enum { MAX_DESCRIPTORS = 1024 };

/* Close all inherited descriptors, so that no file, device or socket of the parent stays open here, and move the
 * socket away from descriptor 0, which becomes /dev/null. */
int serve_unit(void)
{
    segue_error err;
    struct stat st;
    if (fstat(0, &st) || !S_ISSOCK(st.st_mode)) {
        out_fail(&err, SEGUE_EARG, "flag --serve-unit: standard input: not a socket; this flag is internal, use --unit proc:U");
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    signal(SIGPIPE, SIG_IGN);
    for (int fd = 3; fd < MAX_DESCRIPTORS; fd++) close(fd);
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
    close(0);
    if (open("/dev/null", O_RDONLY) != 0 || fd < 0) return EXIT_INPUT_OUTPUT;
    return sg_unit_serve(fd, &err) == SEGUE_OK ? EXIT_DONE : EXIT_INPUT_OUTPUT;
}
