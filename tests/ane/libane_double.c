/* libane_double.c: a test double of libane, the library of the open Linux driver, as a shared object with its functions. An ANEC
 * file of the tests has the real head, and as its body the path of the folder with model.mil and weights; the software NPU runs
 * them. Every network has buffers of whole tiles, as in the library, and its inputs and outputs are numbered by name.
 * SEGUE_LIBANE=init|exec|hang makes that call fail. LIBANE_SHORT: built without one of the functions.
 * SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "unit/ane/npu/npu.h"
#include "unit/ane/tools/milfolder.h"

#define EXPORT __attribute__((visibility("default")))
enum { TILE = 0x4000, CHANNELS = 32, HEAD_BYTES = 2048, TILES_AT = 40, COUNTS_AT = 32, OUTPUTS_AT = 4 };

struct ane_nn {
    uint8_t head[HEAD_BYTES];
    char body[1024];
    uint8_t *chans[CHANNELS];
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    struct sg_mil_folder folder;
};

EXPORT struct ane_nn *__ane_init(const char *path, int dev_id);
EXPORT void __ane_free(struct ane_nn *nn);
EXPORT int ane_exec(struct ane_nn *nn);
EXPORT uint64_t __ane_src_size(struct ane_nn *nn, const uint32_t idx);
EXPORT uint64_t __ane_dst_size(struct ane_nn *nn, const uint32_t idx);
EXPORT void __ane_send(struct ane_nn *nn, void *from, const uint32_t idx);
EXPORT void __ane_read(struct ane_nn *nn, void *to, const uint32_t idx);

static int fault_is(const char *what)
{
    const char *s = getenv("SEGUE_LIBANE");
    return s && !strcmp(s, what);
}

static uint32_t sources(const struct ane_nn *nn) { return sg_le32(nn->head + COUNTS_AT); }
static uint32_t targets(const struct ane_nn *nn) { return sg_le32(nn->head + COUNTS_AT + 4); }
static uint64_t bytes_of(const struct ane_nn *nn, uint32_t channel)
{
    return (uint64_t)sg_le32(nn->head + TILES_AT + 4 * channel) * TILE;
}

static int read_file(struct ane_nn *nn, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t n = fread(nn->head, 1, HEAD_BYTES, f), body = fread(nn->body, 1, sizeof nn->body - 1, f);
    fclose(f);
    return n == HEAD_BYTES && body > 0;
}

static int load(struct ane_nn *nn)
{
    struct sg_npu_opts o = {.threads = 2};
    if (sg_mil_folder_open(&nn->folder, nn->body, 0, NULL) || sg_ane_profile_named(&o.profile, "ieee", NULL) ||
        sg_npu_open(&nn->d, &o, NULL))
        return 0;
    const struct sg_mil_text *t = &nn->folder.texts[0];
    struct sg_ane_source s = {.name = "double", .text = (const char *)t->map.data, .text_bytes = t->map.size, .files = t->files,
                              .files_n = t->files_n};
    segue_error err = {0};
    if (!sg_ane_ops_of(nn->d)->load(nn->d, &s, &nn->p, &err)) return 1;
    fprintf(stderr, "LIBANE: ERR: %s\n", err.text);
    return 0;
}

struct ane_nn *__ane_init(const char *path, int dev_id)
{
    struct ane_nn *nn = calloc(1, sizeof *nn);
    if (dev_id || fault_is("init") || !read_file(nn, path) || !load(nn)) {
        free(nn);
        return NULL;
    }
    for (uint32_t i = 0; i < CHANNELS; i++)
        if (bytes_of(nn, i)) nn->chans[i] = calloc(1, bytes_of(nn, i));
    return nn;
}

void __ane_free(struct ane_nn *nn)
{
    sg_ane_ops_of(nn->d)->unload(nn->p);
    sg_ane_ops_of(nn->d)->close(nn->d);
    sg_mil_folder_close(&nn->folder);
    for (int i = 0; i < CHANNELS; i++) free(nn->chans[i]);
    free(nn);
}

/* The channel of port i: the outputs come first, each side in alphabetical order. */
static uint32_t channel_of(const struct ane_nn *nn, const struct sg_ane_port *ports, uint32_t n, uint32_t i, int out)
{
    uint32_t before = 0;
    for (uint32_t k = 0; k < n; k++) before += strcmp(ports[k].name, ports[i].name) < 0;
    return OUTPUTS_AT + (out ? 0 : targets(nn)) + before;
}

/* Copies between a channel and a surface. */
static void move(struct ane_nn *nn, struct sg_ane_surface *s, uint32_t channel, int out)
{
    void *bytes;
    uint64_t n;
    if (sg_ane_ops_of(nn->d)->lock(s, !out, &bytes, &n, NULL)) return;
    if (n > bytes_of(nn, channel)) n = bytes_of(nn, channel);
    memcpy(out ? nn->chans[channel] : bytes, out ? bytes : nn->chans[channel], n);
    sg_ane_ops_of(nn->d)->unlock(s);
}

int ane_exec(struct ane_nn *nn)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(nn->d);
    const struct sg_ane_port *in, *out;
    struct sg_ane_surface *from[CHANNELS] = {0}, *to[CHANNELS] = {0};
    segue_error err = {0};
    uint32_t in_n, out_n;
    while (fault_is("hang")) pause();
    if (fault_is("exec")) {
        errno = ENODEV;
        return -1;
    }
    segue_status st = ops->ports(nn->p, 0, &in, &in_n, &out, &out_n, &err);
    for (uint32_t i = 0; !st && i < in_n; i++) st = ops->surface_new(nn->d, in[i].surface_bytes, &from[i], &err);
    for (uint32_t i = 0; !st && i < out_n; i++) st = ops->surface_new(nn->d, out[i].surface_bytes, &to[i], &err);
    for (uint32_t i = 0; !st && i < in_n; i++) move(nn, from[i], channel_of(nn, in, in_n, i, 0), 0);
    if (!st) st = ops->evaluate(nn->p, 0, from, to, &err);
    for (uint32_t i = 0; !st && i < out_n; i++) move(nn, to[i], channel_of(nn, out, out_n, i, 1), 1);
    for (int i = 0; i < CHANNELS; i++) {
        ops->surface_free(from[i]);
        ops->surface_free(to[i]);
    }
    if (st) fprintf(stderr, "LIBANE: ERR: %s\n", err.text);
    return st ? -1 : 0;
}

uint64_t __ane_src_size(struct ane_nn *nn, const uint32_t idx)
{
    return idx < sources(nn) ? bytes_of(nn, OUTPUTS_AT + targets(nn) + idx) : 0;
}

uint64_t __ane_dst_size(struct ane_nn *nn, const uint32_t idx) { return idx < targets(nn) ? bytes_of(nn, OUTPUTS_AT + idx) : 0; }

void __ane_send(struct ane_nn *nn, void *from, const uint32_t idx)
{
    memcpy(nn->chans[OUTPUTS_AT + targets(nn) + idx], from, __ane_src_size(nn, idx));
}

#ifndef LIBANE_SHORT
void __ane_read(struct ane_nn *nn, void *to, const uint32_t idx)
{
    memcpy(to, nn->chans[OUTPUTS_AT + idx], __ane_dst_size(nn, idx));
}
#endif
