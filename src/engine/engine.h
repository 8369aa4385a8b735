/* engine.h: opening and sharing an engine; its data are in placement/layer_range.h. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_ENGINE_H
#define SG_ENGINE_ENGINE_H

#include "engine/placement/layer_range.h"

/* Adds a reference; segue_engine_close drops it. */
struct segue_engine *sg_engine_share(struct segue_engine *e);
/* Flags of the tokens whose text contains a newline, colon, quote or asterisk (DRY sequence breakers): *out [*n], owned by
 * the engine. *out = NULL if the model has no tokenizer. EMEMORY. */
segue_status sg_engine_breakers(struct segue_engine *e, const uint8_t **out, size_t *n, segue_error *err);

#endif
