/* adapters.c: see adapters.h. An adapter with another scale is another adapter for the library, so it is opened once for each
 * scale; the one that was not used for the longest time is closed when there are too many. SPDX-License-Identifier: MIT */
#include "run/adapters.h"

#include <stdlib.h>
#include <string.h>

void adapter_set_open(struct adapter_set *s, struct placement *p, const struct args *args)
{
    *s = (struct adapter_set){.usable = true, .model = p->model, .n = p->adapters_n};
    pthread_mutex_init(&s->lock, NULL);
    for (size_t i = 0; i < s->n; i++) {
        s->list[i].path = placement_adapter_path(args_nth(args, "lora", i), &s->list[i].scale);
        s->open[s->open_n++] = (struct open_adapter){.id = i, .scale = s->list[i].scale, .adapter = p->adapters[i]};
    }
    p->adapters_n = 0;
}

void adapter_set_close(struct adapter_set *s)
{
    if (!s->usable) return;
    for (size_t i = 0; i < s->open_n; i++) segue_adapter_close(s->open[i].adapter);
    for (size_t i = 0; i < s->n; i++) free(s->list[i].path);
    pthread_mutex_destroy(&s->lock);
    *s = (struct adapter_set){0};
}

/* With the lock: a place for one more. NULL: all are in use. */
static struct open_adapter *free_place(struct adapter_set *s)
{
    struct open_adapter *oldest = NULL;
    if (s->open_n < ADAPTERS_OPEN) return &s->open[s->open_n++];
    for (size_t i = 0; i < s->open_n; i++)
        if (!s->open[i].users && (!oldest || s->open[i].used_ns < oldest->used_ns)) oldest = &s->open[i];
    if (oldest) segue_adapter_close(oldest->adapter);
    return oldest;
}

/* With the lock. */
static struct open_adapter *find(struct adapter_set *s, size_t id, float scale)
{
    for (size_t i = 0; i < s->open_n; i++)
        if (s->open[i].id == id && s->open[i].scale == scale) return &s->open[i];
    return NULL;
}

/* With the lock, which is released while a file is read: other requests do not wait for it, and one may open the same. */
static segue_status open_one(struct adapter_set *s, size_t id, float scale, struct open_adapter **out, segue_error *err)
{
    segue_adapter *opened;
    pthread_mutex_unlock(&s->lock);
    segue_status st = segue_adapter_open(&opened, s->model, s->list[id].path, scale, err);
    pthread_mutex_lock(&s->lock);
    if (st) return st;
    *out = find(s, id, scale);
    struct open_adapter *place = *out ? NULL : free_place(s);
    if (place) {
        *place = (struct open_adapter){.id = id, .scale = scale, .adapter = opened};
        *out = place;
    } else {
        segue_adapter_close(opened);
    }
    return *out ? SEGUE_OK : out_fail(err, SEGUE_ELIMIT, "lora: %d scales are in use; try again later", ADAPTERS_OPEN);
}

/* With the lock. */
static segue_status take_one(struct adapter_set *s, size_t id, float scale, struct adapters_taken *out, segue_error *err)
{
    struct open_adapter *x = find(s, id, scale);
    segue_status st = x ? SEGUE_OK : open_one(s, id, scale, &x, err);
    if (st) return st;
    x->users++;
    x->used_ns = out_now_ns();
    out->from[out->n] = x;
    out->list[out->n++] = x->adapter;
    return SEGUE_OK;
}

static void scales_of(const struct adapter_set *s, const struct adapter_choice *chosen, size_t n, float *out)
{
    for (size_t i = 0; i < s->n; i++) out[i] = chosen ? 0 : s->list[i].scale;
    for (size_t i = 0; chosen && i < n; i++)
        if (chosen[i].id < s->n) out[chosen[i].id] = chosen[i].scale;
}

segue_status adapter_set_take(struct adapter_set *s, const struct adapter_choice *chosen, size_t n, struct adapters_taken *out,
                              segue_error *err)
{
    float scales[PLACEMENT_ADAPTERS];
    segue_status st = SEGUE_OK;
    *out = (struct adapters_taken){0};
    pthread_mutex_lock(&s->lock);
    scales_of(s, chosen, n, scales);
    for (size_t i = 0; i < s->n && !st; i++)
        if (scales[i] < 0 || scales[i] > 0) st = take_one(s, i, scales[i], out, err);
    pthread_mutex_unlock(&s->lock);
    if (st) adapter_set_release(s, out);
    return st;
}

void adapter_set_release(struct adapter_set *s, struct adapters_taken *taken)
{
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < taken->n; i++) taken->from[i]->users--;
    pthread_mutex_unlock(&s->lock);
    taken->n = 0;
}

void adapter_set_change(struct adapter_set *s, const struct adapter_choice *chosen, size_t n)
{
    float scales[PLACEMENT_ADAPTERS];
    pthread_mutex_lock(&s->lock);
    scales_of(s, chosen, n, scales);
    for (size_t i = 0; i < s->n; i++) s->list[i].scale = scales[i];
    pthread_mutex_unlock(&s->lock);
}

size_t adapter_set_scales(struct adapter_set *s, float *out)
{
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) out[i] = s->list[i].scale;
    size_t n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}
