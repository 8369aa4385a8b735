/* applefiles.h: the files of a program, which the compiler service reads: model.mil and the blob files
 * in one folder.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLEFILES_H
#define SG_UNIT_ANE_APPLEFILES_H

#include "unit/ane/device.h"

/* 1: a relative path without empty, "." and ".." components. */
int sg_apple_path_plain(const char *path);
/* Write model.mil and all blobs, or the blobs alone. Folders are created. EARG: a path that could leave
 * the folder. EIO. */
segue_status sg_apple_files_write(const char *folder, const struct sg_ane_source *s, segue_error *err);
segue_status sg_apple_blobs_write(const char *folder, const struct sg_ane_file *files, uint32_t n,
                                  segue_error *err);
/* Removes the folder and everything in it. Symbolic links are removed, not followed. */
void sg_apple_files_remove(const char *folder);

#endif
