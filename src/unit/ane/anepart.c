/* anepart.c: lowers, compiles and loads one part of a graph. The cache folder keeps what costs time:
 * - "weights": the fp16 blob file of a part with a list of its records; key: the hashes of all source tensors, and the partition;
 * - "program": the text of a program that was compiled; key: text, weights, profile and compiler. The compiled form itself is
 *   stored by the system; the entry only says that it may be loaded without a compile;
 * - "sources": the hashes of the source tensors, for files whose identity is unchanged.
 * See aneunit.h, anecache.h.
 * SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "tensor/coded.h"
#include "unit/ane/aneunit.h"
#include "unit/ane/mil/milprint.h"
#include "unit/ane/tools/explain.h"

enum { WEIGHTS_VERSION = 6, HEAD_BYTES = 128 };      /* the version changes with the layout of an entry or of the blob file */

/* A "weights" entry: struct weights_head in HEAD_BYTES bytes, n records of struct weight_entry, zeros up to a multiple of 64
 * bytes, the blob file. weight_entry is struct sg_ane_weight_blob without its memory. */
struct weight_entry {
    struct sg_weight weights[SG_ANE_STORED_MAX];     /* [weights_n] source tensors */
    uint32_t weights_n, form, zero;                  /* zero: makes the padding of the struct explicit */
    uint64_t record, numbers, aux;                   /* offsets of the records in the blob file; elements */
    struct sg_ane_quant quant;
};
struct weights_head {
    uint64_t n, file_at;             /* file_at: offset of the blob file in the entry, a multiple of 64 */
    struct sg_range_report range;
    struct sg_hash file;             /* hash of the blob file */
};
static_assert(sizeof(struct weights_head) <= HEAD_BYTES, "struct weights_head must fit HEAD_BYTES");

/* Hash of everything in a tensor's description that changes its decoded values: name, storage, shape, permutations,
 * quantization. */
static struct sg_hash head_hash(const struct sg_tensor *t)
{
    const uint64_t words[] = {t->storage,    t->rows,       t->cols,          t->transposed,    t->row_perm.a,
                              t->row_perm.b, t->row_perm.w, t->row_perm.first, t->col_perm.a,   t->col_perm.b,
                              t->col_perm.w, t->col_perm.first, t->affine.storage, t->affine.bits, t->affine.group,
                              sg_coded_key(t)};
    return sg_ane_key(sg_hash_bytes(t->name, strlen(t->name), WEIGHTS_VERSION), words, sizeof words);
}

/* Hash of a tensor: description and all bytes. */
static struct sg_hash tensor_hash(const struct sg_tensor *t)
{
    struct sg_region regions[SG_REGIONS];
    struct sg_hash h = head_hash(t);
    for (uint32_t r = 0, n = sg_tensor_regions(t, regions); r < n; r++)
        h = sg_ane_key(h, regions[r].data, (size_t)regions[r].bytes);
    return h;
}

/* Key of a "sources" entry: identity of the model files, and all tensors of the graph. */
static struct sg_hash sources_key(const struct sg_graph *g, const struct sg_weight_cache *keep)
{
    const struct sg_hash files[] = {keep->weights, keep->stamp};
    struct sg_hash h = sg_ane_key((struct sg_hash){WEIGHTS_VERSION, 0}, files, sizeof files);
    for (uint32_t i = 0; i < g->tensors_n; i++) h = sg_hash_join(h, head_hash(g->tensors[i]));
    return h;
}

/* Hashing reads every byte of the weights. With an exact file identity (size and dates that prove the contents unchanged) the
 * hashes of an earlier start are used. */
segue_status ane_sources_hash(struct sg_program *p, const struct sg_weight_cache *keep, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    const size_t bytes = g->tensors_n * sizeof *p->source_hashes;
    struct sg_ane_cache_entry entry = {0};
    struct sg_hash key = {0};
    p->source_hashes = sg_alloc(bytes + sizeof *p->source_hashes);
    if (!p->source_hashes) return sg_no_memory("hashes of weights", g->tensors_n, err);
    if (keep->exact) key = sources_key(g, keep);
    int known = keep->exact && sg_ane_cache_find(p->cache, key, "sources", &entry) && entry.bytes == bytes;
    if (known) memcpy(p->source_hashes, entry.data, bytes);
    sg_ane_cache_entry_close(&entry);
    for (uint32_t i = 0; !known && i < g->tensors_n; i++) p->source_hashes[i] = tensor_hash(g->tensors[i]);
    if (!known && keep->exact) sg_ane_cache_write(p->cache, key, "sources", &(struct sg_ane_piece){p->source_hashes, bytes}, 1);
    return SEGUE_OK;
}

/* Key of the fp16 weights of one part: all source tensors and the options that decide how the graph is cut and scaled. */
static struct sg_hash weights_key(const struct sg_program *p, uint32_t part)
{
    const uint64_t words[] = {WEIGHTS_VERSION, part, p->cut[0].parts_n, p->base.unit->layers, p->base.unit->by_weights,
                              p->base.unit->storage, p->base.unit->profile.flush_products};
    size_t bytes = p->base.graph->tensors_n * sizeof *p->source_hashes;
    return sg_ane_key(sg_hash_bytes(words, sizeof words, 0), p->source_hashes, bytes);
}

/* --- weights --- */

/* Uses a mapped cache entry as the blob file of a part without a copy. 0: the entry is malformed. All offsets and counts are
 * checked against its size, since a valid hash says nothing about its writer. */
static int use_cached_weights(struct sg_ane_blobs *b, const struct sg_ane_cache_entry *entry)
{
    struct weights_head head;
    if (entry->bytes < HEAD_BYTES) return 0;
    memcpy(&head, entry->data, sizeof head);
    uint64_t body = entry->bytes - HEAD_BYTES;
    if (!head.n || head.n > body / sizeof(struct weight_entry) || head.file_at % 64 || head.file_at > entry->bytes ||
        head.file_at < HEAD_BYTES + head.n * sizeof(struct weight_entry))
        return 0;
    b->list = sg_alloc((size_t)head.n * sizeof *b->list);
    if (!b->list) return 0;
    for (uint32_t i = 0; i < head.n; i++) {
        struct weight_entry l;
        memcpy(&l, entry->data + HEAD_BYTES + i * sizeof l, sizeof l);
        if (l.weights_n > SG_ANE_STORED_MAX) l.weights_n = 0; /* such a record is never used */
        b->list[i] = (struct sg_ane_weight_blob){.weights_n = l.weights_n,
                                            .form = (enum sg_ane_form)l.form,
                                            .record = l.record,
                                            .numbers = l.numbers,
                                            .aux = l.aux,
                                            .quant = l.quant,
                                            .program = UINT32_MAX};
        memcpy(b->list[i].weights, l.weights, sizeof l.weights);
    }
    b->n = b->cap = (uint32_t)head.n;
    b->range = head.range;
    b->hash = head.file;
    b->hashed = 1;
    b->file = (struct sg_buf){.data = (char *)(uintptr_t)entry->data + head.file_at, .len = entry->bytes - (size_t)head.file_at};
    b->borrowed = 1;
    return 1;
}

/* Looks for the weights of a part in the cache, unless they were made already. */
static void find_cached_weights(struct sg_program *p, uint32_t part)
{
    struct sg_ane_cache_entry *entry = &p->cache_entries[part];
    if (!p->cache || p->blobs[part].n || !sg_ane_cache_find(p->cache, weights_key(p, part), "weights", entry)) return;
    if (!use_cached_weights(&p->blobs[part], entry)) sg_ane_cache_entry_close(entry);
}

/* Hash of the blob file, 0 without one; computed once until the file changes (`hashed`). */
static struct sg_hash blob_hash(struct sg_ane_blobs *b)
{
    if (!b->hashed && b->file.len) b->hash = sg_hash_bytes(b->file.data, b->file.len, 0);
    b->hashed = 1;
    return b->file.len ? b->hash : (struct sg_hash){0};
}

/* Writes the blob file of a part to the cache. The source tensors are hashed again: if a file changed after the program was
 * made, the weights do not belong to the key, and nothing is written. */
static segue_status write_cached_weights(struct sg_program *p, uint32_t part, segue_error *err)
{
    static const char zeros[64];
    struct sg_ane_blobs *b = &p->blobs[part];
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t k = 0; k < b->list[i].weights_n; k++) {
            int32_t t = b->list[i].weights[k].tensor;
            struct sg_hash now = tensor_hash(p->base.graph->tensors[t]);
            if (memcmp(&now, &p->source_hashes[t], sizeof now)) return SEGUE_OK;
        }
    struct weight_entry *list = sg_alloc(b->n * sizeof *list);
    if (!list) return sg_no_memory("a list of weights", b->n * sizeof *list, err);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct sg_ane_weight_blob *s = &b->list[i];
        list[i] = (struct weight_entry){
            .weights_n = s->weights_n, .form = (uint32_t)s->form, .record = s->record, .numbers = s->numbers,
            .aux = s->aux, .quant = s->quant};
        memcpy(list[i].weights, s->weights, sizeof s->weights);
    }
    size_t bytes = b->n * sizeof *list, pad = (64 - bytes % 64) % 64;
    struct weights_head head = {.n = b->n, .file_at = HEAD_BYTES + bytes + pad, .range = b->range, .file = blob_hash(b)};
    char head_bytes[HEAD_BYTES] = {0};
    memcpy(head_bytes, &head, sizeof head);
    const struct sg_ane_piece pieces[] = {
        {head_bytes, sizeof head_bytes}, {list, bytes}, {zeros, pad}, {b->file.data, b->file.len}};
    sg_ane_cache_write(p->cache, weights_key(p, part), "weights", pieces, 4);
    sg_free(list);
    return SEGUE_OK;
}

/* --- programs --- */

/* Key of a compiled program: text, weights, limits of the chip, and the identity of the compiler. */
static struct sg_hash program_key(const struct sg_program *p, const struct sg_ane_source *s)
{
    struct sg_hash parts[3] = {s->weights, sg_ane_profile_hash(&p->base.unit->profile), {0}};
    char compiler[64] = {0};
    sg_ane_ops_of(p->base.unit->device)->compiler(p->base.unit->device, compiler);
    parts[2] = sg_hash_bytes(compiler, strlen(compiler), 0);
    return sg_ane_key(sg_hash_bytes(s->text, s->text_bytes, 0), parts, sizeof parts);
}

/* Loads a program, and records in the cache folder that this exact text was compiled. The text is compared as well as the key,
 * so that a hash collision cannot load another program. Compiles are counted by the device: a load may need none or several. */
static segue_status load_program(struct sg_program *p, struct sg_ane_source *s, struct sg_ane_program **out, segue_error *err)
{
    struct sg_ane_device *d = p->base.unit->device;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_counters before, after;
    struct sg_ane_cache_entry entry = {0};
    struct sg_hash key = {0};
    if (p->cache) {
        key = program_key(p, s);
        s->cache = p->cache;
        s->cached = sg_ane_cache_find(p->cache, key, "program", &entry) && entry.bytes == s->text_bytes &&
                    !memcmp(entry.data, s->text, s->text_bytes);
        sg_ane_cache_entry_close(&entry);
    }
    ops->count(d, &before);
    segue_status status = ops->load(d, s, out, err);
    ops->count(d, &after);
    atomic_fetch_add(&p->compiles, after.compiles - before.compiles);
    if (status == SEGUE_OK && after.compiles != before.compiles)
        sg_ane_cache_write(p->cache, key, "program", &(struct sg_ane_piece){s->text, s->text_bytes}, 1);
    return status;
}

/* Loads program `mil` of part i, or of the head, which is part parts_n. Lowering has added the weights that it uses to the blob
 * file; `written` is the number of records at the last write: the cache entry is written again only when there are more. */
static segue_status load_lowered(struct sg_program *p, const struct sg_mil_program *mil, uint32_t i, struct sg_ane_device *d,
                                 struct sg_ane_program **out, segue_error *err)
{
    struct sg_ane_blobs *blobs = &p->blobs[i];
    struct sg_buf text = {0};
    char name[48] = "head.mil";
    segue_status status = sg_mil_print(mil, SG_MIL_VERBOSE, &text, err);
    if (status == SEGUE_OK && p->cache && !blobs->borrowed && blobs->n != blobs->written) {
        status = write_cached_weights(p, i, err);
        blobs->written = blobs->n;
    }
    if (i < p->cut[0].parts_n) snprintf(name, sizeof name, "p%02u.mil", i);
    struct sg_ane_file file = {blobs->path, (const uint8_t *)blobs->file.data, blobs->file.len};
    struct sg_ane_source source = {
        .name = name, .text = text.data, .text_bytes = text.len, .files = &file, .files_n = blobs->file.len != 0};
    source.weights = blob_hash(blobs);
    if (status == SEGUE_OK)
        status = d == p->base.unit->device ? load_program(p, &source, out, err) : sg_ane_ops_of(d)->load(d, &source, out, err);
    sg_buf_free(&text);
    return status;
}

segue_status ane_part_load(struct sg_program *p, struct ane_set *set, uint32_t i, struct sg_ane_device *d,
                           struct sg_ane_program **out, segue_error *err)
{
    struct sg_mil_program *mil = NULL;
    find_cached_weights(p, i);
    SG_TRY(sg_ane_lower(&mil, p->base.graph, &p->cut[set->all_rows].parts[i], &set->info, &set->shape, &p->blobs[i], err));
    set->layout_ops[i] = sg_mil_layout_ops(&mil->functions[0]);
    segue_status status = load_lowered(p, mil, i, d, out, err);
    sg_mil_program_free(mil);
    return status;
}

segue_status ane_head_load(struct sg_program *p, struct sg_ane_program **out, segue_error *err)
{
    const struct sg_ane_partition *cut = &p->cut[0];
    struct sg_mil_program *mil = NULL;
    find_cached_weights(p, cut->parts_n);
    SG_TRY(sg_ane_lower_head(&mil, p->base.graph, &cut->parts[cut->parts_n - 1], &p->head, p->base.unit->columns,
                             &p->blobs[cut->parts_n], err));
    p->head_layout_ops = sg_mil_layout_ops(&mil->functions[0]);
    segue_status status = load_lowered(p, mil, cut->parts_n, p->base.unit->device, out, err);
    sg_mil_program_free(mil);
    return status;
}
