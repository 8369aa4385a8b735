/* pull.h: download of a model for other commands, as `segue pull` does it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PULL_H
#define SEGUE_CLI_PULL_H

#include <stdbool.h>
#include "segue.h"

/* Download OWNER/NAME[@REVISION][:LABEL] into the models folder. *path: the file or folder to open, allocated. quiet: no
 * progress on stderr. A signal ends it with SEGUE_ECANCELED; the next call resumes. */
segue_status pull_model(const char *id, bool quiet, char **path, segue_error *err);

#endif
