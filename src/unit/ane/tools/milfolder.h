/* milfolder.h: reads a folder of programs: pNN.mil and the blob files that they reference. For the tools.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_MILFOLDER_H
#define SG_UNIT_ANE_MILFOLDER_H

#include "base/file.h"
#include "unit/ane/device.h"
#include "unit/ane/mil/milfault.h"
#include "unit/ane/rules/profile.h"

/* One .mil file with its blob files, memory-mapped. */
struct sg_mil_text {
    char *path;
    struct sg_map map;
    struct sg_mil_program *program; /* NULL: the text does not parse, see fault */
    struct sg_mil_fault fault;
    struct sg_ane_file *files; /* [files_n] blob files that could be opened; paths point into the program */
    struct sg_map *maps;       /* [files_n] */
    uint32_t files_n, files_cap;
};
struct sg_mil_folder {
    struct sg_mil_text *texts; /* [n] in the order of their names */
    uint32_t n;
};

/* Opens a folder (every *.mil in it, at least one; deep: also in the folders in it) or a single .mil file. Blob paths are
 * relative to the folder of the .mil file. A text that does not parse is kept with its fault; missing blob files are reported by
 * sg_mil_text_check. EIO, EMEMORY, ELIMIT. */
segue_status sg_mil_folder_open(struct sg_mil_folder *out, const char *path, int deep, segue_error *err);
void sg_mil_folder_close(struct sg_mil_folder *f);
/* All findings about a text under a profile: its syntax error, or those of types, constraints and blobs. */
void sg_mil_text_check(const struct sg_mil_text *t, const struct sg_ane_profile *profile,
                       struct sg_mil_faults *faults);
/* EFORMAT when the text does not parse. */
segue_status sg_mil_text_status(const struct sg_mil_text *t, segue_error *err);

#endif
