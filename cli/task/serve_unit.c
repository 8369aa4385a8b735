/* serve_unit.c: see serve_unit.h. Started by the library only (`segue --serve-unit`, a connection in place of standard
 * input), so it is no command of the table. Looks behind the public header: what it serves is a unit's own table.
 * Must never do: write to standard output, or keep what the parent has open.
 * SPDX-License-Identifier: MIT */
#include "task/serve_unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/placement/units.h"
#include "term/out.h"

enum { DESCRIPTORS = 1024 };

int serve_unit(void)
{
    segue_error err;
    struct stat st;
    if (fstat(0, &st) || !S_ISSOCK(st.st_mode)) {
        out_fail(&err, SEGUE_EARG, "flag --serve-unit: standard input: no connection to a parent; use --unit proc:U");
        return out_error(&err, EXIT_NOT_HERE);
    }
    signal(SIGPIPE, SIG_IGN);
    for (int fd = 3; fd < DESCRIPTORS; fd++) close(fd);
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
    close(0);
    if (open("/dev/null", O_RDONLY) != 0 || fd < 0) return EXIT_INPUT_OUTPUT;
    return sg_unit_serve(fd, &err) == SEGUE_OK ? EXIT_DONE : EXIT_INPUT_OUTPUT;
}
