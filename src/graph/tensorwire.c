/* tensorwire.c: serialises tensors. The receiver must never accept a tensor whose data would be
 * read outside of its region.
 * SPDX-License-Identifier: MIT */
#include "graph/graphwire.h"
#include "base/num.h"
#include "tensor/coded.h"

/* NAME_BYTES: bytes of a name with NUL. DIMS: entries of sg_tensor.shape. */
enum { NAME_BYTES = 512, DIMS = 4 };

/* Fails with EFORMAT. */
static segue_status refuse(segue_error *err, const char *name, const char *why)
{
    return sg_fail(err, SEGUE_EFORMAT, "message refused: tensor %.100s: %s; the peer is damaged or hostile",
                   name, why);
}

/* Bytes per number; 0 for storages with blocks or groups. */
static uint64_t plain_bytes(enum sg_storage s)
{
    return s == SG_F32 ? 4 : s == SG_F16 || s == SG_BF16 ? 2 : 0;
}

/* The products cannot overflow: shapes were limited by shape_fault when reading a message, or by
 * sg_build_shape when opening a file. */
void sg_tensor_extent(const struct sg_tensor *t, uint64_t bytes[SG_LOCS])
{
    if (t->fp8_source) t = t->fp8_source;
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    uint64_t numbers = t->rows * t->cols;
    bytes[SG_LOC_SCALES] = bytes[SG_LOC_BIASES] = bytes[SG_LOC_ORDER] = 0;
    if (t->storage == SG_AFFINE) {
        bytes[SG_LOC_DATA] = numbers / 32 * 4 * t->affine.bits;
        bytes[SG_LOC_SCALES] = bytes[SG_LOC_BIASES] =
            numbers / t->affine.group * plain_bytes(t->affine.storage);
    } else if (t->storage == SG_CODED) {
        sg_coded_extent(t, bytes);
    } else if (t->storage == SG_Q8_GROUP) {
        bytes[SG_LOC_DATA] = numbers;
        bytes[SG_LOC_SCALES] = numbers / t->affine.group * 4;
    } else {
        bytes[SG_LOC_DATA] = t->rows * (t->cols / info->block * info->bytes);
    }
}

/* --- writing --- */

static void write_perm(struct sg_buf *out, const struct sg_perm *p)
{
    sg_put_u32(out, p->a);
    sg_put_u32(out, p->b);
    sg_put_u32(out, p->w);
    sg_put_u32(out, p->first);
}

static void write_coded(struct sg_buf *out, const struct sg_coded *c)
{
    sg_put_u32(out, c->code);
    sg_put_u32(out, c->layout);
    sg_put_u32(out, c->zeros);
    sg_put_u32(out, c->scale_rows);
    sg_put_u32(out, (uint32_t)c->zero);
    sg_put_u32(out, c->round);
    sg_put_u32(out, sg_bits_of_f32(c->divisor));
    sg_put_u32(out, c->order != NULL);
}

void sg_wire_tensor_write(struct sg_buf *out, const struct sg_tensor *t, const struct sg_wire_loc locs[SG_LOCS])
{
    size_t n = t->name ? strnlen(t->name, NAME_BYTES - 1) : 0;
    sg_put_u32(out, (uint32_t)n);
    sg_buf_add(out, t->name, n);
    sg_put_u32(out, t->fp8_source != NULL); /* 1: an fp8 view; the tensor that it converts follows */
    if (t->fp8_source) t = t->fp8_source;
    sg_put_u32(out, (uint32_t)t->storage);
    sg_put_u32(out, t->rank);
    for (int i = 0; i < 4; i++) sg_put_u64(out, t->shape[i]);
    sg_put_u64(out, t->rows);
    sg_put_u64(out, t->cols);
    sg_put_u32(out, t->transposed);
    write_perm(out, &t->row_perm);
    write_perm(out, &t->col_perm);
    sg_put_u32(out, (uint32_t)t->affine.storage);
    sg_put_u32(out, t->affine.bits);
    sg_put_u32(out, t->affine.group);
    if (t->storage == SG_CODED) write_coded(out, &t->coded);
    for (int i = 0; i < SG_LOCS; i++) {
        sg_put_u32(out, locs[i].region);
        sg_put_u64(out, locs[i].at);
    }
}

/* --- reading --- */

static struct sg_perm read_perm(struct sg_reader *in)
{
    struct sg_perm p;
    p.a = sg_reader_u32(in);
    p.b = sg_reader_u32(in);
    p.w = sg_reader_u32(in);
    p.first = sg_reader_u32(in);
    return p;
}

/* order: not NULL if there is one; read_locs replaces it by its address. */
static struct sg_coded read_coded(struct sg_reader *in)
{
    struct sg_coded c = {.code = sg_reader_u32(in)};
    c.layout = sg_reader_u32(in);
    c.zeros = sg_reader_u32(in);
    c.scale_rows = sg_reader_u32(in);
    c.zero = (int32_t)sg_reader_u32(in);
    c.round = sg_reader_u32(in);
    c.divisor = sg_f32_of_bits(sg_reader_u32(in));
    c.order = sg_reader_u32(in) ? "" : NULL;
    return c;
}

/* 1 for no permutation or a permutation of [0, n): the indices after the first p->first must be
 * whole groups. */
static int perm_valid(const struct sg_perm *p, uint64_t n)
{
    if (!p->a) return 1;
    if (!p->b || !p->w || p->first > n || p->a > n || p->b > n || p->w > n) return 0;
    uint64_t group = (uint64_t)p->a * p->b;
    if (group > n || (group *= p->w) > n) return 0;
    return (n - p->first) % group == 0;
}

/* NULL, or what is wrong with the tensor. Covers everything that sg_tensor_extent and sg_tensor_row
 * divide by or multiply. */
static const char *shape_fault(const struct sg_tensor *t)
{
    const struct sg_affine *f = &t->affine;
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    int plain = plain_bytes(t->storage) != 0;
    uint64_t product = 1;
    if (!info || !info->computable || t->storage == SG_FP8) return "unsupported storage type";
    if (!t->rows || !t->cols || t->rows > (uint64_t)1 << 40 || t->cols >= UINT32_MAX) return "shape out of range";
    if (t->rows > ((uint64_t)1 << 48) / t->cols) return "shape out of range";
    if (t->rank > 4) return "too many dimensions";
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] > (uint64_t)1 << 48 || (t->shape[i] && product > ((uint64_t)1 << 48) / t->shape[i]))
            return "shape out of range";
        product *= t->shape[i];
    }
    if (product != t->rows * t->cols && !(t->rank == 0 && t->rows * t->cols == 1))
        return "rows and columns do not match the shape";
    if (t->transposed > 1 || (t->transposed && !plain)) return "transposed blocks";
    if (t->storage == SG_AFFINE &&
        (f->bits < 1 || f->bits > 8 || !f->group || f->group % 32 || t->cols % f->group || !plain_bytes(f->storage)))
        return "invalid quantisation groups";
    if (t->storage == SG_Q8_GROUP && (!f->group || t->rows * t->cols % f->group)) return "invalid quantisation groups";
    if (t->storage == SG_CODED && sg_coded_fault(t)) return sg_coded_fault(t);
    if (t->storage != SG_AFFINE && t->cols % info->block) return "columns are not whole blocks";
    if (!perm_valid(&t->row_perm, t->rows) || !perm_valid(&t->col_perm, t->cols)) return "invalid permutation";
    return NULL;
}

/* Read the locations and set the tensor's pointers. Each area must be inside its region. */
static segue_status read_locs(struct sg_reader *in, const struct sg_wire_region *regions, uint32_t regions_n,
                               struct sg_tensor *t, segue_error *err)
{
    uint64_t bytes[SG_LOCS];
    const uint8_t *at[SG_LOCS] = {NULL};
    sg_tensor_extent(t, bytes);
    for (int i = 0; i < SG_LOCS; i++) {
        uint32_t region = sg_reader_u32(in);
        uint64_t offset = sg_reader_u64(in);
        if (!bytes[i]) continue;
        if (region >= regions_n || !regions[region].data || offset > regions[region].size ||
            bytes[i] > regions[region].size - offset)
            return refuse(err, t->name, "data outside of its memory region");
        at[i] = regions[region].data + offset;
    }
    t->data = at[SG_LOC_DATA];
    t->bytes = bytes[SG_LOC_DATA];
    t->affine.scales = at[SG_LOC_SCALES];
    t->affine.biases = at[SG_LOC_BIASES];
    t->coded.order = at[SG_LOC_ORDER];
    return SEGUE_OK;
}

segue_status sg_wire_tensor_read(struct sg_reader *in, const struct sg_wire_region *regions, uint32_t regions_n,
                                 struct sg_arena *arena, struct sg_tensor *out, segue_error *err)
{
    struct sg_tensor t = {0};
    uint32_t n = sg_reader_u32(in);
    const char *name = n < NAME_BYTES ? sg_reader_bytes(in, n) : NULL;
    if (!name) return refuse(err, "?", "missing name");
    t.name = sg_arena_strndup(arena, name, n);
    if (!t.name) return sg_no_memory("tensor", n, err);
    uint32_t is_fp8 = sg_reader_u32(in);
    uint32_t storage = sg_reader_u32(in);
    t.storage = storage < SG_STORAGE_N ? (enum sg_storage)storage : SG_OTHER;
    t.rank = sg_reader_u32(in);
    for (int i = 0; i < DIMS; i++) t.shape[i] = sg_reader_u64(in);
    t.rows = sg_reader_u64(in);
    t.cols = sg_reader_u64(in);
    t.transposed = sg_reader_u32(in);
    t.row_perm = read_perm(in);
    t.col_perm = read_perm(in);
    storage = sg_reader_u32(in);
    t.affine.storage = storage < SG_STORAGE_N ? (enum sg_storage)storage : SG_OTHER;
    t.affine.bits = sg_reader_u32(in);
    t.affine.group = sg_reader_u32(in);
    if (t.storage == SG_CODED) t.coded = read_coded(in);
    const char *why = in->bad ? "truncated" : shape_fault(&t);
    if (why) return refuse(err, t.name, why);
    t.stored_as = sg_storage_info(t.storage)->name;
    SG_TRY(read_locs(in, regions, regions_n, &t, err));
    if (in->bad) return refuse(err, t.name, "truncated");
    /* For an fp8 view, what was read is the tensor that it converts. */
    *out = t;
    if (!is_fp8) return SEGUE_OK;
    struct sg_tensor *from = sg_arena_alloc(arena, sizeof *from);
    if (!from) return sg_no_memory("tensor", sizeof *from, err);
    *from = t;
    *out = sg_tensor_fp8(from);
    return SEGUE_OK;
}
