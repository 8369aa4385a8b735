/* appleparts.h: what the files of the private interface share: messages to objects, and what stands behind a device, a
 * program and a surface. Every call is a cast of the method's address to its exact C type: a variadic call would put
 * arguments elsewhere. Objects from factories are autoreleased; what outlives a pool is retained and released in the
 * opposite order. Inside apple*.c only. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLEPARTS_H
#define SG_UNIT_ANE_APPLEPARTS_H

#include "base/mem.h"
#include "unit/ane/apple/apple.h"
#include "unit/ane/apple/timed_call.h"
#include "unit/ane/rules/profile.h"

enum { QOS = 21, PORTS_MAX = 256 };

/* --- messages --- */

/* C types of the methods. The first two arguments of each are the receiver and the selector. */
typedef const struct sg_apple_api world;
typedef void *take0(void *, void *);
typedef void *take1(void *, void *, void *);
typedef void *take3(void *, void *, void *, void *, void *);
typedef void *take7(void *, void *, void *, void *, void *, void *, void *, void *, void *);
typedef void *take_bytes(void *, void *, const void *, unsigned long);
typedef void *take_text(void *, void *, const char *);
typedef void *take_list(void *, void *, void *const *, unsigned long);
typedef void *take_pairs(void *, void *, void *const *, void *const *, unsigned long);
typedef void *take_number(void *, void *, unsigned long long);
typedef void *take_index(void *, void *, unsigned long);
typedef const char *give_text(void *, void *);
typedef unsigned long give_count(void *, void *);
typedef unsigned give_u32(void *, void *);
typedef unsigned long long give_u64(void *, void *);
typedef _Bool give_truth(void *, void *);
typedef void give_none(void *, void *);
typedef _Bool work_options(void *, void *, unsigned, void *, void **);
typedef _Bool work_request(void *, void *, unsigned, void *, void *, void **);
typedef _Bool work_plain(void *, void *, unsigned, void **);

/* The function to call for a method: objc_msgSend on a Mac, the function of the double in tests. */
static inline void (*function_of(world *w, void *receiver, void *selector))(void)
{
    return w->method ? w->method(receiver, selector) : w->send;
}
#define SEND(type, receiver, name, ...) \
    ((type *)function_of(w, receiver, w->selector(name)))(receiver, w->selector(name), __VA_ARGS__)
#define SEND0(type, receiver, name) \
    ((type *)function_of(w, receiver, w->selector(name)))(receiver, w->selector(name))

/* Takes a reference, so that o survives the autorelease pool; `released` drops it. NULL is
 * allowed. */
static inline void *retained(world *w, void *o) { return o ? SEND0(take0, o, "retain") : NULL; }
static inline void released(world *w, void *o)
{
    if (o) SEND0(give_none, o, "release");
}

/* The factories below return autoreleased objects, valid until the enclosing pool is popped. */
static inline void *string(world *w, const char *s)
{
    return SEND(take_text, w->class_named("NSString"), "stringWithUTF8String:", s);
}
static inline const char *text_of(world *w, void *o) { return o ? SEND0(give_text, o, "UTF8String") : NULL; }
static inline void *data(world *w, const void *bytes, size_t n)
{
    return SEND(take_bytes, w->class_named("NSData"), "dataWithBytes:length:", bytes, n);
}
static inline void *number(world *w, uint64_t v)
{
    return SEND(take_number, w->class_named("NSNumber"), "numberWithUnsignedLongLong:", v);
}
static inline void *array(world *w, void *const *objects, size_t n)
{
    return SEND(take_list, w->class_named("NSArray"), "arrayWithObjects:count:", objects, n);
}
static inline void *pairs(world *w, void *const *values, void *const *keys, size_t n)
{
    return SEND(take_pairs, w->class_named("NSDictionary"), "dictionaryWithObjects:forKeys:count:", values,
                keys, n);
}
static inline void *empty(world *w) { return SEND0(take0, w->class_named("NSDictionary"), "dictionary"); }
/* Value of a dictionary by a string key, borrowed; NULL when the dictionary or the key is missing. */
static inline void *entry(world *w, void *dictionary, const char *key)
{
    return dictionary ? SEND(take1, dictionary, "objectForKey:", string(w, key)) : NULL;
}
/* Length of an NSArray; 0 for NULL. */
static inline unsigned long count(world *w, void *list) { return list ? SEND0(give_count, list, "count") : 0; }
static inline void *item(world *w, void *list, unsigned long i)
{
    return SEND(take_index, list, "objectAtIndex:", i);
}

/* What the engine says, and what to do about it. */
segue_status sg_apple_failed(world *w, const char *what, const char *name, void *error, segue_error *err);

/* --- objects --- */

/* The device. After a timeout `lost` is set: no further call is made, and no object that the
 * service may still use is freed. */
struct sg_ane_device {
    struct sg_ane_device_base base;
    world *w;
    struct sg_apple_opts o;
    struct sg_timed_call *worker;
    struct sg_ane_counters c;
    struct sg_ane_profile profile; /* padding of surfaces */
    int lost;
};

/* Ports of one function in declaration order, with the symbol index that a request uses for each. */
struct procedure {
    struct sg_ane_port *in, *out;
    uint32_t *in_index, *out_index; /* symbol indices */
    uint32_t in_n, out_n;
};
/* `request` caches the last binding: it is rebuilt only when procedure or surfaces change. bound
 * holds the surface objects without a reference. */
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;   /* names and types of ports */
    struct procedure *procedures; /* [mil->functions_n] */
    struct sg_arena arena;
    void *model, *request;      /* retained */
    void *bound[PORTS_MAX * 2]; /* what the request binds */
    uint32_t bound_n, bound_procedure;
    char *name, *folder;
    int loaded;
};

struct sg_ane_surface {
    struct sg_ane_surface_base base;
    void *surface, *object; /* IOSurface, and the engine's object around it (retained) */
    uint64_t n;
    int locked, options;
};

/* Everything that asks the service runs on the device's thread, within a limit. The job lies in memory of its
 * own: when the service does not answer, job and objects are left to it. */
struct job {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    segue_status (*work)(struct job *j);
    const struct sg_ane_source *source;
    const struct sg_ane_file *files;
    uint32_t files_n, procedure;
    struct sg_ane_surface *const *in, *const *out;
    segue_status status;
    segue_error err;
};
/* On the device's thread. ELOST: no answer within the limit. */
segue_status sg_apple_ask(const struct job *given, uint64_t limit_ns, const char *what, segue_error *err);

extern const struct sg_ane_device_ops sg_apple_ops;
segue_status sg_apple_load(struct sg_ane_device *d, const struct sg_ane_source *s, struct sg_ane_program **out,
                           segue_error *err);
void sg_apple_unload(struct sg_ane_program *p);
segue_status sg_apple_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                             segue_error *err);

#endif
