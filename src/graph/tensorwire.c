/* tensorwire.c: a tensor as bytes. Must never let a tensor through that could be read outside of its region.
 * SPDX-License-Identifier: MIT */
#include "graph/graphwire.h"

enum { NAME_MOST = 512, WORD_COUNT = 4 };

static segue_status refuse(segue_error *err, const char *name, const char *why)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: tensor %.100s: %s; the other side is damaged or hostile",
                   name, why);
}

static uint64_t plain_bytes(enum sg_storage s)
{
    return s == SG_F32 ? 4 : s == SG_F16 || s == SG_BF16 ? 2 : 0;
}

/* Rows and columns are below 2^40 and 2^32 here (take) or were checked when the file was opened (put). */
void sg_tensor_extent(const struct sg_tensor *t, uint64_t bytes[SG_SPOTS])
{
    if (t->made_of) t = t->made_of;
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    uint64_t numbers = t->rows * t->cols;
    bytes[SG_SPOT_SCALES] = bytes[SG_SPOT_BIASES] = 0;
    if (t->storage == SG_AFFINE) {
        bytes[SG_SPOT_DATA] = numbers / 32 * 4 * t->affine.bits;
        bytes[SG_SPOT_SCALES] = bytes[SG_SPOT_BIASES] =
            numbers / t->affine.group * plain_bytes(t->affine.storage);
    } else if (t->storage == SG_Q8_GROUP) {
        bytes[SG_SPOT_DATA] = numbers;
        bytes[SG_SPOT_SCALES] = numbers / t->affine.group * 4;
    } else {
        bytes[SG_SPOT_DATA] = t->rows * (t->cols / info->block * info->bytes);
    }
}

/* --- out --- */

static void perm_put(struct sg_buf *out, const struct sg_perm *p)
{
    sg_put_u32(out, p->a);
    sg_put_u32(out, p->b);
    sg_put_u32(out, p->w);
    sg_put_u32(out, p->first);
}

void sg_wire_tensor_put(struct sg_buf *out, const struct sg_tensor *t, const struct sg_spot spots[SG_SPOTS])
{
    size_t n = t->name ? strnlen(t->name, NAME_MOST - 1) : 0;
    sg_put_u32(out, (uint32_t)n);
    sg_buf_add(out, t->name, n);
    sg_put_u32(out, t->made_of != NULL); /* fp8: what it is made of follows */
    if (t->made_of) t = t->made_of;
    sg_put_u32(out, (uint32_t)t->storage);
    sg_put_u32(out, t->rank);
    for (int i = 0; i < 4; i++) sg_put_u64(out, t->shape[i]);
    sg_put_u64(out, t->rows);
    sg_put_u64(out, t->cols);
    sg_put_u32(out, t->transposed);
    perm_put(out, &t->row_perm);
    perm_put(out, &t->col_perm);
    sg_put_u32(out, (uint32_t)t->affine.storage);
    sg_put_u32(out, t->affine.bits);
    sg_put_u32(out, t->affine.group);
    for (int i = 0; i < SG_SPOTS; i++) {
        sg_put_u32(out, spots[i].region);
        sg_put_u64(out, spots[i].at);
    }
}

/* --- in --- */

static struct sg_perm perm_take(struct sg_reader *in)
{
    struct sg_perm p;
    p.a = sg_take_u32(in);
    p.b = sg_take_u32(in);
    p.w = sg_take_u32(in);
    p.first = sg_take_u32(in);
    return p;
}

/* A permutation of [0, n) behind its first numbers, or none. */
static int perm_sound(const struct sg_perm *p, uint64_t n)
{
    if (!p->a) return 1;
    if (!p->b || !p->w || p->first > n || p->a > n || p->b > n || p->w > n) return 0;
    uint64_t group = (uint64_t)p->a * p->b;
    if (group > n || (group *= p->w) > n) return 0;
    return (n - p->first) % group == 0;
}

/* Everything that sg_tensor_extent divides by or multiplies. */
static const char *shape_wrong(const struct sg_tensor *t)
{
    const struct sg_affine *f = &t->affine;
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    int plain = plain_bytes(t->storage) != 0;
    uint64_t product = 1;
    if (!info || !info->computable || t->storage == SG_FP8) return "a storage that nothing is computed with";
    if (!t->rows || !t->cols || t->rows > (uint64_t)1 << 40 || t->cols >= UINT32_MAX) return "an absurd shape";
    if (t->rows > ((uint64_t)1 << 48) / t->cols) return "an absurd shape";
    if (t->rank > 4) return "too many dimensions";
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] > (uint64_t)1 << 48 || (t->shape[i] && product > ((uint64_t)1 << 48) / t->shape[i]))
            return "an absurd shape";
        product *= t->shape[i];
    }
    if (product != t->rows * t->cols && !(t->rank == 0 && t->rows * t->cols == 1)) return "shapes that differ";
    if (t->transposed > 1 || (t->transposed && !plain)) return "blocks that are transposed";
    if (t->storage == SG_AFFINE &&
        (f->bits < 1 || f->bits > 8 || !f->group || f->group % 32 || t->cols % f->group || !plain_bytes(f->storage)))
        return "groups that do not fit";
    if (t->storage == SG_Q8_GROUP && (!f->group || t->rows * t->cols % f->group)) return "groups that do not fit";
    if (t->storage != SG_AFFINE && t->cols % info->block) return "columns that are no whole blocks";
    if (!perm_sound(&t->row_perm, t->rows) || !perm_sound(&t->col_perm, t->cols)) return "an order that is none";
    return NULL;
}

/* The three places, each inside of its region. */
static segue_status spots_take(struct sg_reader *in, const struct sg_lent *regions, uint32_t regions_n,
                               struct sg_tensor *t, segue_error *err)
{
    uint64_t bytes[SG_SPOTS];
    const uint8_t *at[SG_SPOTS] = {NULL};
    sg_tensor_extent(t, bytes);
    for (int i = 0; i < SG_SPOTS; i++) {
        uint32_t region = sg_take_u32(in);
        uint64_t offset = sg_take_u64(in);
        if (!bytes[i]) continue;
        if (region >= regions_n || !regions[region].data || offset > regions[region].size ||
            bytes[i] > regions[region].size - offset)
            return refuse(err, t->name, "bytes outside of its file");
        at[i] = regions[region].data + offset;
    }
    t->data = at[SG_SPOT_DATA];
    t->bytes = bytes[SG_SPOT_DATA];
    t->affine.scales = at[SG_SPOT_SCALES];
    t->affine.biases = at[SG_SPOT_BIASES];
    return SEGUE_OK;
}

segue_status sg_wire_tensor_take(struct sg_reader *in, const struct sg_lent *regions, uint32_t regions_n,
                                 struct sg_arena *arena, struct sg_tensor *out, segue_error *err)
{
    struct sg_tensor t = {0};
    uint32_t n = sg_take_u32(in);
    const char *name = n < NAME_MOST ? sg_take(in, n) : NULL;
    if (!name) return refuse(err, "?", "no name");
    t.name = sg_arena_strndup(arena, name, n);
    if (!t.name) return sg_no_memory("tensor", n, err);
    uint32_t made = sg_take_u32(in);
    uint32_t storage = sg_take_u32(in);
    t.storage = storage < SG_STORAGE_N ? (enum sg_storage)storage : SG_OTHER;
    t.rank = sg_take_u32(in);
    for (int i = 0; i < WORD_COUNT; i++) t.shape[i] = sg_take_u64(in);
    t.rows = sg_take_u64(in);
    t.cols = sg_take_u64(in);
    t.transposed = sg_take_u32(in);
    t.row_perm = perm_take(in);
    t.col_perm = perm_take(in);
    storage = sg_take_u32(in);
    t.affine.storage = storage < SG_STORAGE_N ? (enum sg_storage)storage : SG_OTHER;
    t.affine.bits = sg_take_u32(in);
    t.affine.group = sg_take_u32(in);
    const char *why = in->bad ? "it is cut off" : shape_wrong(&t);
    if (why) return refuse(err, t.name, why);
    t.stored_as = sg_storage_info(t.storage)->name;
    SG_TRY(spots_take(in, regions, regions_n, &t, err));
    if (in->bad) return refuse(err, t.name, "it is cut off");
    *out = t;
    if (!made) return SEGUE_OK;
    struct sg_tensor *from = sg_arena_alloc(arena, sizeof *from);
    if (!from) return sg_no_memory("tensor", sizeof *from, err);
    *from = t;
    *out = sg_tensor_fp8(from);
    return SEGUE_OK;
}
