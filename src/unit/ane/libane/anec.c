/* anec.c: see anec.h. The head is packed and little-endian: bytes of tasks and constants (8), of a task (4), tasks (4), bytes of
 * all tasks (8), of constants (8), inputs (4), outputs (4), tiles of 32 buffers (4 each), their shapes (48 each).
 * SPDX-License-Identifier: MIT */
#include "unit/ane/libane/anec.h"

#include "base/file.h"
#include "base/num.h"

/* BODY: where the tasks begin in the older of two versions of the format; the newer one has 4096. */
enum { INPUTS_AT = 32, OUTPUTS_AT = 36, TILES_AT = 40, SHAPES_AT = TILES_AT + 4 * SG_ANEC_CHANNELS, BODY = 2048 };

static segue_status damaged(const char *path, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "load: %.300s: %s; compile the program again", path, why);
}

static segue_status read_head(struct sg_anec *a, const struct sg_map *map, const char *path, segue_error *err)
{
    if (map->size < BODY || !sg_le64(map->data)) return damaged(path, "not an ANEC file", err);
    if (sg_le64(map->data) > map->size - BODY) return damaged(path, "the file is cut off", err);
    *a = (struct sg_anec){.inputs = sg_le32(map->data + INPUTS_AT), .outputs = sg_le32(map->data + OUTPUTS_AT)};
    if (!a->outputs || a->inputs > SG_ANEC_CHANNELS || a->outputs > SG_ANEC_CHANNELS ||
        SG_ANEC_FIRST_OUTPUT + a->inputs + a->outputs > SG_ANEC_CHANNELS)
        return damaged(path, "its numbers of inputs and outputs are impossible", err);
    for (uint32_t i = 0; i < SG_ANEC_CHANNELS; i++) {
        a->tiles[i] = sg_le32(map->data + TILES_AT + 4 * i);
        for (uint32_t k = 0; k < 6; k++) a->shape[i][k] = sg_le64(map->data + SHAPES_AT + 48 * i + 8 * k);
    }
    return SEGUE_OK;
}

segue_status sg_anec_read(struct sg_anec *out, const char *path, segue_error *err)
{
    struct sg_map map;
    SG_TRY(sg_map_open(&map, path, err));
    segue_status status = read_head(out, &map, path, err);
    sg_map_close(&map);
    return status;
}
