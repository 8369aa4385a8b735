/* folders.h: where models, sessions and caches lie, and how a name becomes the path of a model.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FOLDERS_H
#define SEGUE_CLI_FOLDERS_H

#include "term/args.h"
#include "term/out.h"

#define FOLDERS_DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

/* "data" or "cache": $SEGUE_HOME/which, else $XDG_..._HOME/segue, else the usual place under $HOME. */
char *folders_home(const char *which);
/* home(which)/name, NAME may hold slashes. */
char *folders_path(const char *which, const char *name);
/* mkdir -p, mode 0700 for new ones. */
segue_status folders_make(const char *path, segue_error *err);
bool folders_is_file(const char *path);
bool folders_is_folder(const char *path);
/* Bytes and files below path; symbolic links are not followed. */
void folders_measure(const char *path, uint64_t *bytes, size_t *files);
/* Only files whose name ends so. */
void folders_measure_ending(const char *path, const char *ending, uint64_t *bytes, size_t *files);
/* Remove what lies below path, and path itself when whole; links are removed, never followed. */
segue_status folders_remove(const char *path, bool whole, segue_error *err);
/* One folder or file name: no slash, no leading dot, no control bytes. */
bool folders_plain_name(const char *name);
/* Every part of a relative path is a plain name. */
bool folders_plain_path(const char *path);
/* The snapshot of a Hugging Face id in the local cache of that hub; NULL when it is not there. */
char *folders_hub_snapshot(const char *id, const char *revision);

/* -m, $SEGUE_MODEL or the default model: a path that exists. EARG: nothing of that name. */
/* The same for a name that was given elsewhere. */
segue_status folders_model_named(const char *name, char **path, segue_error *err);
segue_status folders_model(const struct args *args, char **path, segue_error *err);

#endif
