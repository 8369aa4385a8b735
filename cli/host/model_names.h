/* model_names.h: the installed models and their names. A model in the models folder is a file, or a folder made by `segue
 * pull`; a folder may hold several GGUF files of one repository, which differ in their quantisation. Names are compared
 * without case. Returned paths are allocated; the caller frees them.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_MODEL_NAMES_H
#define SEGUE_CLI_MODEL_NAMES_H

#include "term/args.h"
#include "term/out.h"

/* Model that is used without -m and $SEGUE_MODEL: its short name, and the repository that `segue pull` gets it from. */
#define MODEL_NAMES_DEFAULT "SmolLM2-135M-Instruct"
#define MODEL_NAMES_DEFAULT_ID "HuggingFaceTB/SmolLM2-135M-Instruct"

/* One installed model. All strings are allocated. */
struct installed_model {
    char *name;  /* as -m accepts it: FILE, OWNER/NAME, or OWNER/NAME:LABEL if the folder has several GGUF files */
    char *path;  /* of the file or folder to open */
    char *entry; /* file or folder in the models folder that it belongs to */
    char *label; /* quantisation in the name of a GGUF file, such as Q4_K_M; "": none */
};
struct installed_models {
    struct installed_model *items; /* [n], sorted by name */
    size_t n;
};
/* List the models folder. Names with a leading dot are partial downloads and left out. */
void model_names_list(struct installed_models *out);
void model_names_free(struct installed_models *list);

/* Resolve a model name as -m does: an existing path; a file or folder of the models folder; OWNER/NAME, or NAME alone if
 * only one repository has it, each with :LABEL to choose a GGUF file; an id in the local Hugging Face cache. SEGUE_EIO: not
 * found, with a suggestion. SEGUE_EARG: several models have this name. */
segue_status model_names_find(const char *name, char **path, segue_error *err);
/* The model of -m, $SEGUE_MODEL or the default. *wanted: the name that was not found, or NULL for the default; it is set only
 * for SEGUE_EIO. */
segue_status model_names_of_args(const struct args *args, char **path, const char **wanted, segue_error *err);

/* The quantisation in the name of a GGUF file, "Q4_K_M" in "model-Q4_K_M-00001-of-00002.gguf"; the whole stem if there is
 * none. Allocated. */
char *model_names_label(const char *file);
/* True for the name of a GGUF file that can be opened: not a later part of a split one, not a partial download. */
bool model_names_is_gguf(const char *file);

#endif
