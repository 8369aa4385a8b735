/* milfolder.h: programs as they lie in a folder: pNN.mil and the blob files that they name. For the tools.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILFOLDER_H
#define SG_UNIT_ANE_MILFOLDER_H

#include "base/file.h"
#include "unit/ane/device.h"
#include "unit/ane/mil/milfault.h"
#include "unit/ane/rules/profile.h"

struct sg_mil_text {
    char *path;
    struct sg_map map;
    struct sg_mil_program *program; /* NULL: the text was refused, see fault */
    struct sg_mil_fault fault;
    struct sg_ane_file *files; /* [files_n] of those that could be opened; paths lie in the program */
    struct sg_map *maps;       /* [files_n] */
    uint32_t files_n, files_cap;
};
struct sg_mil_folder {
    struct sg_mil_text *texts;
    uint32_t n;
}; /* [n] in the order of their names */

/* A folder (every *.mil in it, at least one) or one .mil file; blob paths are taken from the file's own
 * folder. Texts that do not parse are kept with their fault; blob files that are missing are left to the
 * check. EIO, EMEMORY, ELIMIT. */
segue_status sg_mil_folder_open(struct sg_mil_folder *out, const char *path, segue_error *err);
void sg_mil_folder_close(struct sg_mil_folder *f);
/* Everything wrong with a text under a profile: its own fault, or types, rules and blobs. */
void sg_mil_text_check(const struct sg_mil_text *t, const struct sg_ane_profile *profile,
                       struct sg_mil_faults *faults);
/* EFORMAT when the text was refused. */
segue_status sg_mil_text_status(const struct sg_mil_text *t, segue_error *err);

#endif
