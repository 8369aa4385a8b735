/* weights_id.h: the id of a model's weights: a hash of every byte of its files. Large files are hashed in a separate thread,
 * while units load the weights, and the result is remembered in the cache folder. Any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_WEIGHTS_ID_H
#define SG_MODEL_WEIGHTS_ID_H

#include "tensor/archive.h"

struct sg_weights_id;

/* The archive must outlive the id. storage: the conversion at load, which is part of the id, or NULL. Archives of at most 64 MiB
 * are hashed here. EIO, EMEMORY. */
segue_status sg_weights_id_new(struct sg_weights_id **out, const struct sg_archive *a, const char *storage, segue_error *err);
/* Start hashing without waiting, unless it was started before. cache: the folder where ids are remembered, or NULL. An id is
 * taken from there only if the ids of all files are exact (base/file.h), and only from files of this user. */
void sg_weights_id_begin(struct sg_weights_id *w, const char *cache);
/* 1: *out is set; 0: not known yet. Does not wait. */
int sg_weights_id_known(struct sg_weights_id *w, struct sg_hash *out);
/* Wait until the id is known; starts hashing if nothing did. EIO: a file cannot be read, or changed. EMEMORY. */
segue_status sg_weights_id_wait(struct sg_weights_id *w, struct sg_hash *out, segue_error *err);
void sg_weights_id_free(struct sg_weights_id *w);   /* stops hashing; NULL is allowed */

#endif
