/* kernel_table.c: loads the kernel modules of this build when a unit is opened, looks up every kernel by name and sets how
 * much dynamic shared memory its launches may request. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/cuda/driver/gpu.h"
#include "unit/cuda/driver/images.h"

enum { ATTEND_STATIC = 16384 }; /* upper bound of the static shared memory of the attention kernels, in bytes */

/* Modules are searched by the name of their file, since kernels of several files may have equal names. */
segue_status cu_kernel(struct sg_unit *u, const char *file, const char *name, cu_fn *out, segue_error *err)
{
    for (uint32_t i = 0; i < u->modules_n; i++)
        if (!strcmp(cu_image_names[i], file) && !u->d.get_function(out, u->modules[i], name)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNIT, "open unit: cuda: kernel %s is not in this build; rebuild segue", name);
}

/* Without the attribute a launch may request at most 48 KB. */
segue_status cu_kernel_dynamic(struct sg_unit *u, const char *file, const char *name, int bytes, cu_fn *out, segue_error *err)
{
    SG_TRY(cu_kernel(u, file, name, out, err));
    return cu_check(&u->d, u->d.func_set_attr(*out, CU_FN_MAX_DYNAMIC_SHARED, bytes), "open unit", err);
}

/* Parts of kernel names: of weights by enum ck_kind, of K and V by enum ck_storage. */
static const char *const kinds[CK_KINDS] = {"F32", "F16", "BF16", "Q8", "Q4", "G8", "G4", "F8"};
static const char *const storages[4] = {"f32", "f16", "bf16", "q8"};

/* Products with few rows, by kind of weights. Instances are numbered by what a thread or a block handles: rows (gemv), 16-byte
 * pieces (stream), kilobytes or columns (digits, vocab). */
static segue_status find_products(struct sg_unit *u, segue_error *err)
{
    static const int wide[4] = {CK_F16, CK_BF16, CK_Q8, CK_F8};
    char name[32];
    for (int k = 0; k < CK_KINDS; k++)
        for (int b = 0; b < 5; b++) {
            snprintf(name, sizeof name, "gemv_%s_%d", kinds[k], 1 << b);
            SG_TRY(cu_kernel_dynamic(u, "k_gemv", name, (int)u->shared_max, &u->k.gemv[k][b], err));
        }
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "wide_%s", kinds[wide[i]]);
        SG_TRY(cu_kernel_dynamic(u, "k_wide", name, (int)u->shared_max - CU_WIDE_STATIC, &u->k.wide[wide[i]], err));
    }
    for (int k = 0; k < CK_KINDS; k++)
        for (int b = 0; b < 4 && cu_weights_per_piece((uint32_t)k) << b <= 64 && u->major == 9; b++) {
            snprintf(name, sizeof name, "stream_%s_%d", kinds[k], 1 << b);
            SG_TRY(cu_kernel_dynamic(u, "k_stream", name, CU_STREAM_SHARED_MAX, &u->k.stream[k][b], err));
        }
    for (int k = CK_F16; k <= CK_Q8 && u->major == 9; k++)
        for (int b = 0; b < 3; b++) {
            snprintf(name, sizeof name, "digits_%s_%d", kinds[k], 4 << b);
            SG_TRY(cu_kernel_dynamic(u, "k_digits", name, (int)u->shared_max - CU_DIGITS_STATIC, &u->k.digits[k][b], err));
            if (k == CK_Q8 && b == 2) continue; /* not instantiated */
            snprintf(name, sizeof name, "vocab_%s_%d", kinds[k], 1 << b);
            SG_TRY(cu_kernel_dynamic(u, "k_vocab", name, CU_VOCAB_SHARED_MAX, &u->k.vocab[k][b], err));
        }
    return SEGUE_OK;
}

/* Products of packed weights. */
static segue_status find_packed(struct sg_unit *u, segue_error *err)
{
    static const char *const gemm[4] = {"Q4_0", "Q4_K", "Q5_K", "Q6_K"};
    static const int tiles[3] = {112, 224, 256};
    char name[32];
#define X(kind)                                                                                                          \
    if (u->major == 9)                                                                                                   \
        SG_TRY(cu_kernel_dynamic(u, "k_packed_tiles", "tiles_" #kind, CK_TILES_MAX_BYTES,                                \
                                 &u->k.packed_tiles[CK_P_##kind - CK_PACKED], err));
    CK_PACKED_TILES(X)
#undef X
    for (int i = 0; i < 12 && u->major == 9; i++) {
        int rows = tiles[i % 3];
        snprintf(name, sizeof name, "packed_gemm_%s_%d", gemm[i / 3], rows);
        SG_TRY(cu_kernel_dynamic(u, "k_packed_gemm", name, CK_PACKED_GEMM_BYTES(rows), &u->k.packed_gemm[i / 3][i % 3], err));
    }
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "packed_batch_%d_%d", i / 2 ? 32 : 16, i % 2 ? 16 : 8);
        SG_TRY(cu_kernel_dynamic(u, "k_packed_batch", name, (int)u->shared_max - CU_PACKED_STATIC,
                                 &u->k.packed_batch[i / 2][i % 2], err));
        snprintf(name, sizeof name, "packed_few_%d_%d", i / 2 ? 32 : 16, i % 2 ? 16 : 8);
        SG_TRY(cu_kernel(u, "k_packed_few", name, &u->k.packed_few[i / 2][i % 2], err));
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "packed_%d", 4 << i);
        SG_TRY(cu_kernel_dynamic(u, "k_packed", name, (int)u->shared_max - CU_PACKED_STATIC, &u->k.packed[i], err));
        if (i == 2) break;
        snprintf(name, sizeof name, "packed_rows_%d", 4 << i);
        SG_TRY(cu_kernel_dynamic(u, "k_packed_rows", name, (int)u->shared_max - CU_PACKED_STATIC, &u->k.packed_rows[i], err));
    }
    return SEGUE_OK;
}

/* Products of several rows on tensor cores. */
static segue_status find_batches(struct sg_unit *u, segue_error *err)
{
    static const char *const weights[] = {"f16", "bf16", "f8", "q8"};
    char name[32];
    /* i: weight type, 16 or 32 weight rows per block, up to 8 or 16 rows of x. */
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "batch_%s_%d_%d", weights[i / 4], i / 2 % 2 ? 32 : 16, i % 2 ? 16 : 8);
        SG_TRY(cu_kernel(u, "k_batch", name, &u->k.batch[i / 4][i / 2 % 2][i % 2], err));
    }
    for (int i = 0; i < 2 && u->major == 9; i++) {
        snprintf(name, sizeof name, "tiles_%s", storages[i + 1]);
        SG_TRY(cu_kernel_dynamic(u, "k_tiles", name, CK_TILES_MAX_BYTES, &u->k.tiles[i], err));
        snprintf(name, sizeof name, "glu_rows_%s", storages[i + 1]);
        SG_TRY(cu_kernel_dynamic(u, "k_glu", name, CK_GLU_BYTES, &u->k.glu_rows[i], err));
    }
    return SEGUE_OK;
}

/* Attention: two kernels that read any storage, and for K and V in 16 bits one per head width (64, 128, 256). */
static segue_status find_attention(struct sg_unit *u, segue_error *err)
{
    const int dynamic = (int)u->shared_max - ATTEND_STATIC;
    char name[32];
    for (int s = 0; s < 4; s++) {
        snprintf(name, sizeof name, "split_any_%s", storages[s]);
        SG_TRY(cu_kernel_dynamic(u, "k_attend", name, dynamic, &u->k.split_any[s], err));
        snprintf(name, sizeof name, "attend_many_%s", storages[s]);
        SG_TRY(cu_kernel_dynamic(u, "k_attend", name, dynamic, &u->k.attend_many[s], err));
    }
    for (int s = 0; s < 3; s++)
        for (int w = 0; w < 3; w++) {
            const int width = 64 << w, bytes = s == 2 ? CK_SPLIT_Q8_BYTES(width) : CK_SPLIT_RING_BYTES(width);
            snprintf(name, sizeof name, "split_%s_%d", storages[s + 1], width);
            if (bytes <= dynamic) SG_TRY(cu_kernel_dynamic(u, "k_split", name, bytes, &u->k.split[s][w], err));
        }
    for (int s = 0; s < 2; s++)
        for (int w = 0; w < 3; w++) {
            const int width = 64 << w;
            snprintf(name, sizeof name, "single_%s_%d", storages[s + 1], width);
            SG_TRY(cu_kernel(u, "k_single", name, &u->k.single[s][w], err));
            snprintf(name, sizeof name, "flash_%s_%d", storages[s + 1], width);
            SG_TRY(cu_kernel_dynamic(u, "k_flash", name, 128 * (width + 8) * 2, &u->k.flash[s][w], err));
            if (u->major != 9) continue;
            snprintf(name, sizeof name, "wgflash_%s_%d", storages[s + 1], width);
            SG_TRY(cu_kernel_dynamic(u, "k_wgflash", name, CK_WGFLASH_BYTES(width), &u->k.wgflash[s][w], err));
        }
    return SEGUE_OK;
}

/* A kernel of a cluster fusion. fixed: its static shared memory. The carveout gives all of the L1 cache to shared memory, without
 * which the driver may not place two blocks of a cluster on one multiprocessor. */
static segue_status find_cluster_kernel(struct sg_unit *u, const char *file, const char *name, size_t fixed, cu_fn *out,
                                        segue_error *err)
{
    SG_TRY(cu_kernel_dynamic(u, file, name, (int)(u->shared_max - fixed), out, err));
    return cu_check(&u->d, u->d.func_set_attr(*out, CU_FN_CARVEOUT, 100), "open unit", err);
}

/* Kernels of the cluster fusions. They use distributed shared memory and bulk copies, so only compute capability 9 has them; the
 * arrays stay NULL elsewhere, and cu_cluster_match then finds no fusion. */
static segue_status find_clusters(struct sg_unit *u, segue_error *err)
{
    static const char *const types[3] = {"f16", "bf16", "q8"};
    char name[40];
    for (int i = 0; i < 12 && u->major == 9; i++) {
        /* Q8_0 has no instance of 512 columns and uses that of 1024. */
        snprintf(name, sizeof name, "mlp_%s_%d", types[i / 4], i == 8 ? 2 : 1 << i % 4);
        SG_TRY(find_cluster_kernel(u, "k_mlp", name, 0, &u->k.mlp[i / 4][i % 4], err));
    }
    /* Up to 1024 and 2048 columns, and up to 4096 with two value heads per key head. */
    for (int i = 0; i < 9 && u->major == 9; i++) {
        snprintf(name, sizeof name, "linear_%s_%d", types[i / 3], 2 << i % 3);
        SG_TRY(find_cluster_kernel(u, "k_linear", name, 0, &u->k.linear[i / 3][i % 3], err));
    }
    /* form: heads of 64, 128 and 256 with up to 1024 columns, heads of 256 with up to 2048. */
    for (int i = 0; i < 24 && u->major == 9; i++) {
        int form = i % 4, width = form < 3 ? 64 << form : 256;
        if (i >= 16 && (form == 0 || form == 3)) continue; /* Q8_0: heads of 128, 256 */
        snprintf(name, sizeof name, "heads_%s_%s_%d_%d", types[i / 8], types[i / 4 % 2], form < 3 ? 2 : 4, width);
        SG_TRY(find_cluster_kernel(u, "k_heads", name, CK_HEADS_STATIC_BYTES(width), &u->k.heads[i / 8][i / 4 % 2][form], err));
    }
    return SEGUE_OK;
}

/* The same for packed weights. */
static segue_status find_packed_clusters(struct sg_unit *u, segue_error *err)
{
    const int packed = 3;
    char name[40];
    for (int i = 0; i < 2 && u->major == 9; i++) {
        SG_TRY(find_cluster_kernel(u, "k_mlp", "mlp_packed", 0, &u->k.mlp[packed][i], err));
        snprintf(name, sizeof name, "linear_packed_%d", i + 1);
        SG_TRY(find_cluster_kernel(u, "k_linear", name, 0, &u->k.linear[packed][2 * i], err));
        for (int form = 1; form < 3; form++) {
            snprintf(name, sizeof name, "heads_packed_%s_%d", storages[i + 1], 64 << form);
            SG_TRY(find_cluster_kernel(u, "k_heads", name, CK_HEADS_STATIC_BYTES(64 << form), &u->k.heads[packed][i][form], err));
        }
    }
    return SEGUE_OK;
}

/* The limit of dynamic shared memory is set for every kernel that may exceed the default of 48 KB. */
segue_status cu_kernels_load(struct sg_unit *u, segue_error *err)
{
    for (size_t i = 0; cu_images[i]; i++) {
        if (i == CU_MODULES)
            return sg_fail(err, SEGUE_EINTERNAL, "open unit: cuda: the build has more than %d kernel files; raise CU_MODULES",
                           CU_MODULES);
        SG_TRY(cu_check(&u->d, u->d.module_load(&u->modules[i], cu_images[i]), "open unit: kernels do not load", err));
        u->modules_n++;
    }
#define X(file, name) SG_TRY(cu_kernel(u, "k_" #file, #name, &u->k.name, err));
    CU_KERNELS(X)
#undef X
    /* All of its blocks must be resident: the carveout gives them the shared memory for two per multiprocessor. */
    SG_TRY(cu_check(&u->d, u->d.func_set_attr(u->k.sample_rows, CU_FN_CARVEOUT, 100), "open unit", err));
    if (u->shared_max >= CK_CHUNK_STATE_BYTES) {
        cu_result r = u->d.func_set_attr(u->k.chunk_local, CU_FN_MAX_DYNAMIC_SHARED, CK_CHUNK_LOCAL_BYTES);
        if (!r) r = u->d.func_set_attr(u->k.chunk_state_16, CU_FN_MAX_DYNAMIC_SHARED, CK_CHUNK_STATE_BYTES);
        if (!r) r = u->d.func_set_attr(u->k.chunk_state_32, CU_FN_MAX_DYNAMIC_SHARED, CK_CHUNK_STATE_BYTES);
        if (!r && u->major == 9) r = u->d.func_set_attr(u->k.chunk_factors, CU_FN_MAX_DYNAMIC_SHARED, CK_CHUNK_LOCAL_BYTES);
        if (!r && u->major == 9)
            r = u->d.func_set_attr(u->k.chunk_factors_halves, CU_FN_MAX_DYNAMIC_SHARED, CK_CHUNK_LOCAL_BYTES);
        if (!r && u->major == 9) r = u->d.func_set_attr(u->k.chunk_scan, CU_FN_MAX_DYNAMIC_SHARED, CK_SCAN_BYTES);
        if (!r && u->major == 9) r = u->d.func_set_attr(u->k.chunk_scan_pairs, CU_FN_MAX_DYNAMIC_SHARED, CK_SCAN_BYTES);
        SG_TRY(cu_check(&u->d, r, "open unit", err));
    }
    SG_TRY(find_products(u, err));
    SG_TRY(find_packed(u, err));
    SG_TRY(find_batches(u, err));
    SG_TRY(find_clusters(u, err));
    SG_TRY(find_packed_clusters(u, err));
    return find_attention(u, err);
}
