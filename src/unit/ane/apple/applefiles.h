/* applefiles.h: the folder in which the engine's compiler looks for a program: model.mil and the blob files.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLEFILES_H
#define SG_UNIT_ANE_APPLEFILES_H

#include "unit/ane/device.h"

/* 1: relative, plain parts only. */
int sg_apple_path_plain(const char *path);
/* Write folder/model.mil and every blob; the folder is made. EARG: a path that leaves it; EIO. */
segue_status sg_apple_files_write(const char *folder, const struct sg_ane_source *s, segue_error *err);
segue_status sg_apple_blobs_write(const char *folder, const struct sg_ane_file *files, uint32_t n,
                                  segue_error *err);
/* The folder and everything in it; links are removed, never followed. */
void sg_apple_files_remove(const char *folder);

#endif
