/* anepart.c: one part of a graph as a loaded program. What costs time is kept in the cache folder: the weights in fp16
 * under the hash of all source bytes, and the fact that a text was compiled under the text, the weights, the profile and
 * the compiler. SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "unit/ane/aneunit.h"
#include "unit/ane/mil/milprint.h"

enum { WEIGHTS_VERSION = 3, HEAD_BYTES = 128 };

/* A weight's place in the file, as an entry has it. */
struct listed {
    struct sg_weight weights[SG_ANE_STORED_MAX];
    uint32_t weights_n, form, none; /* none: 0, so that there is no gap */
    uint64_t record, numbers;
};
struct list_head {
    uint64_t n, file_at;
    struct sg_range_report range;
    struct sg_hash file; /* of the blob file alone */
};
static_assert(sizeof(struct list_head) <= HEAD_BYTES, "the head of a list of weights has its room");

/* Hash of everything in a tensor's description that changes its decoded values: name, storage,
 * shape, permutations, quantization. */
static struct sg_hash head_hash(const struct sg_tensor *t)
{
    const uint64_t words[] = {t->storage,    t->rows,       t->cols,          t->transposed,    t->row_perm.a,
                              t->row_perm.b, t->row_perm.w, t->row_perm.first, t->col_perm.a,   t->col_perm.b,
                              t->col_perm.w, t->col_perm.first, t->affine.storage, t->affine.bits, t->affine.group};
    return sg_ane_key(sg_hash_bytes(t->name, strlen(t->name), WEIGHTS_VERSION), words, sizeof words);
}

/* Hash of a tensor: description and all bytes. */
static struct sg_hash tensor_hash(const struct sg_tensor *t)
{
    struct sg_region regions[3];
    struct sg_hash h = head_hash(t);
    for (uint32_t r = 0, n = sg_tensor_regions(t, regions); r < n; r++)
        h = sg_ane_key(h, regions[r].data, (size_t)regions[r].bytes);
    return h;
}

/* Files whose stamps are exact were hashed before: of which files, and of which of their tensors. */
static struct sg_hash seal_key(const struct sg_graph *g, const struct sg_weight_cache *keep)
{
    const struct sg_hash files[] = {keep->weights, keep->stamp};
    struct sg_hash h = sg_ane_key((struct sg_hash){WEIGHTS_VERSION, 0}, files, sizeof files);
    for (uint32_t i = 0; i < g->tensors_n; i++) h = sg_hash_join(h, head_hash(g->tensors[i]));
    return h;
}

segue_status ane_sources_hash(struct sg_program *p, const struct sg_weight_cache *keep, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    const size_t bytes = g->tensors_n * sizeof *p->sources;
    struct sg_ane_cache_entry seal = {0};
    struct sg_hash key = {0};
    p->sources = sg_alloc(bytes + sizeof *p->sources);
    if (!p->sources) return sg_no_memory("hashes of weights", g->tensors_n, err);
    if (keep->exact) key = seal_key(g, keep);
    int sealed = keep->exact && sg_ane_cache_find(p->keep, key, "sources", &seal) && seal.bytes == bytes;
    if (sealed) memcpy(p->sources, seal.data, bytes);
    sg_ane_cache_entry_close(&seal);
    for (uint32_t i = 0; !sealed && i < g->tensors_n; i++) p->sources[i] = tensor_hash(g->tensors[i]);
    if (!sealed && keep->exact) sg_ane_cache_write(p->keep, key, "sources", &(struct sg_ane_piece){p->sources, bytes}, 1);
    return SEGUE_OK;
}

/* Key of the fp16 weights of one part: all source tensors and how the graph was cut. */
static struct sg_hash weights_key(const struct sg_program *p, uint32_t part)
{
    const uint64_t words[] = {WEIGHTS_VERSION, part, p->cut[0].parts_n, p->base.unit->layers, p->base.unit->by_weights};
    return sg_ane_key(sg_hash_bytes(words, sizeof words, 0), p->sources, p->base.graph->tensors_n * sizeof *p->sources);
}

/* --- weights --- */

/* Uses a mapped cache entry as the blob file of a part without a copy. Returns 0 when the entry is
 * malformed; all offsets are checked against its size. */
static int borrow(struct sg_ane_blobs *b, const struct sg_ane_cache_entry *kept)
{
    struct list_head head;
    if (kept->bytes < HEAD_BYTES) return 0;
    memcpy(&head, kept->data, sizeof head);
    uint64_t room = kept->bytes - HEAD_BYTES;
    if (!head.n || head.n > room / sizeof(struct listed) || head.file_at % 64 || head.file_at > kept->bytes ||
        head.file_at < HEAD_BYTES + head.n * sizeof(struct listed))
        return 0;
    b->list = sg_alloc((size_t)head.n * sizeof *b->list);
    if (!b->list) return 0;
    for (uint32_t i = 0; i < head.n; i++) {
        struct listed l;
        memcpy(&l, kept->data + HEAD_BYTES + i * sizeof l, sizeof l);
        if (l.weights_n > SG_ANE_STORED_MAX) l.weights_n = 0; /* of no weight: never asked for */
        b->list[i] = (struct sg_ane_weight_blob){.weights_n = l.weights_n,
                                            .form = (enum sg_ane_form)l.form,
                                            .record = l.record,
                                            .numbers = l.numbers,
                                            .program = UINT32_MAX};
        memcpy(b->list[i].weights, l.weights, sizeof l.weights);
    }
    b->n = b->cap = (uint32_t)head.n;
    b->range = head.range;
    b->hash = head.file;
    b->hashed = 1;
    b->file = (struct sg_buf){.data = (char *)(uintptr_t)kept->data + head.file_at, .len = kept->bytes - (size_t)head.file_at};
    b->borrowed = 1;
    return 1;
}

static void find_weights(struct sg_program *p, uint32_t part)
{
    if (!p->keep || p->blobs[part].n || !sg_ane_cache_find(p->keep, weights_key(p, part), "weights", &p->kept[part])) return;
    if (!borrow(&p->blobs[part], &p->kept[part])) sg_ane_cache_entry_close(&p->kept[part]);
}

/* Looked at once, as long as nothing changes in it. */
static struct sg_hash blob_hash(struct sg_ane_blobs *b)
{
    if (!b->hashed && b->file.len) b->hash = sg_hash_bytes(b->file.data, b->file.len, 0);
    b->hashed = 1;
    return b->file.len ? b->hash : (struct sg_hash){0};
}

/* Only what was made of bytes that are still the same. */
static segue_status keep_weights(struct sg_program *p, uint32_t part, segue_error *err)
{
    static const char zeros[64];
    struct sg_ane_blobs *b = &p->blobs[part];
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t k = 0; k < b->list[i].weights_n; k++) {
            int32_t t = b->list[i].weights[k].tensor;
            struct sg_hash now = tensor_hash(p->base.graph->tensors[t]);
            if (memcmp(&now, &p->sources[t], sizeof now)) return SEGUE_OK;
        }
    struct listed *list = sg_alloc(b->n * sizeof *list);
    if (!list) return sg_no_memory("a list of weights", b->n * sizeof *list, err);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct sg_ane_weight_blob *s = &b->list[i];
        list[i] = (struct listed){.weights_n = s->weights_n,
                                  .form = (uint32_t)s->form,
                                  .record = s->record,
                                  .numbers = s->numbers};
        memcpy(list[i].weights, s->weights, sizeof s->weights);
    }
    size_t bytes = b->n * sizeof *list, pad = (64 - bytes % 64) % 64;
    struct list_head head = {.n = b->n, .file_at = HEAD_BYTES + bytes + pad, .range = b->range, .file = blob_hash(b)};
    char room[HEAD_BYTES] = {0};
    memcpy(room, &head, sizeof head);
    const struct sg_ane_piece pieces[] = {{room, sizeof room}, {list, bytes}, {zeros, pad}, {b->file.data, b->file.len}};
    sg_ane_cache_write(p->keep, weights_key(p, part), "weights", pieces, 4);
    sg_free(list);
    return SEGUE_OK;
}

/* --- programs --- */

static struct sg_hash program_key(const struct sg_program *p, const struct sg_ane_source *s)
{
    struct sg_hash parts[3] = {s->weights, sg_ane_profile_hash(&p->base.unit->profile), {0}};
    char compiler[64] = {0};
    sg_ane_ops_of(p->base.unit->device)->compiler(p->base.unit->device, compiler);
    parts[2] = sg_hash_bytes(compiler, strlen(compiler), 0);
    return sg_ane_key(sg_hash_bytes(s->text, s->text_bytes, 0), parts, sizeof parts);
}

/* Loads a program, and records in the cache folder that this exact text was compiled. The text
 * itself is compared, so a hash collision cannot skip a compile. */
static segue_status load(struct sg_program *p, struct sg_ane_source *s, struct sg_ane_program **out, segue_error *err)
{
    struct sg_ane_device *d = p->base.unit->device;
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(d);
    struct sg_ane_counters before, after;
    struct sg_ane_cache_entry kept = {0};
    struct sg_hash key = {0};
    if (p->keep) {
        key = program_key(p, s);
        s->keep = p->keep;
        s->cached = sg_ane_cache_find(p->keep, key, "program", &kept) && kept.bytes == s->text_bytes &&
                    !memcmp(kept.data, s->text, s->text_bytes);
        sg_ane_cache_entry_close(&kept);
    }
    ops->count(d, &before);
    segue_status status = ops->load(d, s, out, err);
    ops->count(d, &after);
    atomic_fetch_add(&p->compiles, after.compiles - before.compiles);
    if (status == SEGUE_OK && after.compiles != before.compiles)
        sg_ane_cache_write(p->keep, key, "program", &(struct sg_ane_piece){s->text, s->text_bytes}, 1);
    return status;
}

/* Lowers part i to MIL text, stores new weights in the cache, and loads the program. `written`
 * avoids storing an unchanged list twice. */
segue_status ane_part_load(struct sg_program *p, struct ane_set *set, uint32_t i, segue_error *err)
{
    struct sg_ane_blobs *blobs = &p->blobs[i];
    struct sg_mil_program *mil = NULL;
    struct sg_buf text = {0};
    char name[48];
    find_weights(p, i);
    segue_status status = sg_ane_lower(&mil, p->base.graph, &p->cut[set->kept].parts[i], &set->info, &set->shape, blobs, err);
    if (status == SEGUE_OK) status = sg_mil_print(mil, SG_MIL_VERBOSE, &text, err);
    sg_mil_program_free(mil);
    if (status == SEGUE_OK && p->keep && !blobs->borrowed && blobs->n != blobs->written) {
        status = keep_weights(p, i, err);
        blobs->written = blobs->n;
    }
    snprintf(name, sizeof name, "p%02u.mil", i);
    struct sg_ane_file file = {blobs->path, (const uint8_t *)blobs->file.data, blobs->file.len};
    struct sg_ane_source source = {
        .name = name, .text = text.data, .text_bytes = text.len, .files = &file, .files_n = blobs->file.len != 0};
    source.weights = blob_hash(blobs);
    if (status == SEGUE_OK) status = load(p, &source, &set->programs[i], err);
    sg_buf_free(&text);
    return status;
}
