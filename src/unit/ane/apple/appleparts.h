/* appleparts.h: internal header of the private interface (apple*.c): Objective-C messages from C, and
 * the structs of the device.
 *
 * A message is a call of objc_msgSend cast to the exact C type of the method: on arm64 a variadic call
 * would pass the arguments on the stack instead of in registers. Factory methods return autoreleased
 * objects; an object that must outlive the autorelease pool is retained, and released in the opposite
 * order.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_APPLEPARTS_H
#define SG_UNIT_ANE_APPLEPARTS_H

#include "base/mem.h"
#include "unit/ane/apple/apple.h"
#include "unit/ane/apple/timed_call.h"
#include "unit/ane/rules/profile.h"

enum { QOS = 21, PORTS_MAX = 256 };      /* QOS: the quality of service that every call uses; ports of one side of a function */

/* --- messages --- */

/* C types of the methods, named after result and arguments: msg_id_3 takes three objects and returns
 * one. The first two arguments are the receiver and the selector. The last four are methods of
 * _ANEInMemoryModel and _ANEClient: QoS is a 32-bit integer there, the last argument receives an NSError, and the
 * result is 1 on success. */
typedef void *msg_id(void *, void *);
typedef void *msg_id_1(void *, void *, void *);
typedef void *msg_id_3(void *, void *, void *, void *, void *);
typedef void *msg_id_7(void *, void *, void *, void *, void *, void *, void *, void *, void *);
typedef void *msg_id_bytes(void *, void *, const void *, unsigned long);
typedef void *msg_id_text(void *, void *, const char *);
typedef void *msg_id_list(void *, void *, void *const *, unsigned long);
typedef void *msg_id_pairs(void *, void *, void *const *, void *const *, unsigned long);
typedef void *msg_id_u64(void *, void *, unsigned long long);
typedef void *msg_id_index(void *, void *, unsigned long);
typedef const char *msg_text(void *, void *);
typedef unsigned long msg_count(void *, void *);
typedef unsigned msg_u32(void *, void *);
typedef unsigned long long msg_u64(void *, void *);
typedef _Bool msg_bool(void *, void *);
typedef void msg_void(void *, void *);
typedef _Bool msg_compile(void *, void *, unsigned, void *, void **);
typedef _Bool msg_evaluate(void *, void *, unsigned, void *, void *, void **);
typedef _Bool msg_real_time(void *, void *, void *, void *, void *, void **);
typedef _Bool msg_unload(void *, void *, unsigned, void **);

/* The function to call for a method: objc_msgSend on a Mac, a function of the test double in tests. */
static inline void (*function_of(const struct sg_apple_api *api, void *receiver, void *selector))(void)
{
    return api->method ? api->method(receiver, selector) : api->send;
}
/* Send a message to `receiver`, with arguments or without. The caller has a variable `api`. */
#define SEND(type, receiver, name, ...) \
    ((type *)function_of(api, receiver, api->selector(name)))(receiver, api->selector(name), __VA_ARGS__)
#define SEND0(type, receiver, name) \
    ((type *)function_of(api, receiver, api->selector(name)))(receiver, api->selector(name))

/* Take and drop a reference, so that an object survives the autorelease pool. NULL is allowed. */
static inline void *retain(const struct sg_apple_api *api, void *o) { return o ? SEND0(msg_id, o, "retain") : NULL; }
static inline void release_object(const struct sg_apple_api *api, void *o)
{
    if (o) SEND0(msg_void, o, "release");
}

/* Foundation objects. They are autoreleased: valid until the enclosing pool is popped. NULL: out of
 * memory. */
static inline void *ns_string(const struct sg_apple_api *api, const char *s)
{
    return SEND(msg_id_text, api->class_named("NSString"), "stringWithUTF8String:", s);
}
static inline const char *ns_text(const struct sg_apple_api *api, void *o) { return o ? SEND0(msg_text, o, "UTF8String") : NULL; }
static inline void *ns_data(const struct sg_apple_api *api, const void *bytes, size_t n)
{
    return SEND(msg_id_bytes, api->class_named("NSData"), "dataWithBytes:length:", bytes, n);
}
static inline void *ns_number(const struct sg_apple_api *api, uint64_t v)
{
    return SEND(msg_id_u64, api->class_named("NSNumber"), "numberWithUnsignedLongLong:", v);
}
static inline void *ns_array(const struct sg_apple_api *api, void *const *objects, size_t n)
{
    return SEND(msg_id_list, api->class_named("NSArray"), "arrayWithObjects:count:", objects, n);
}
static inline void *ns_dictionary(const struct sg_apple_api *api, void *const *values, void *const *keys, size_t n)
{
    return SEND(msg_id_pairs, api->class_named("NSDictionary"), "dictionaryWithObjects:forKeys:count:", values,
                keys, n);
}
static inline void *ns_empty_dictionary(const struct sg_apple_api *api)
{
    return SEND0(msg_id, api->class_named("NSDictionary"), "dictionary");
}
/* Value of a dictionary by a string key, owned by the dictionary; NULL when the dictionary or the key
 * is missing. */
static inline void *ns_entry(const struct sg_apple_api *api, void *dictionary, const char *key)
{
    return dictionary ? SEND(msg_id_1, dictionary, "objectForKey:", ns_string(api, key)) : NULL;
}
/* Length of an NSArray; 0 for NULL. */
static inline unsigned long ns_count(const struct sg_apple_api *api, void *list)
{
    return list ? SEND0(msg_count, list, "count") : 0;
}
static inline void *ns_item(const struct sg_apple_api *api, void *list, unsigned long i)
{
    return SEND(msg_id_index, list, "objectAtIndex:", i);
}

/* EUNIT from an NSError of the service, with advice. what: the call that failed; name: of the program.
 * error NULL: no reason. */
segue_status sg_apple_failed(const struct sg_apple_api *api, const char *what, const char *name, void *error, segue_error *err);

/* --- objects --- */

/* After a call that timed out `lost` is set: no further call is made, and nothing is freed that the
 * service may still use. */
struct sg_ane_device {
    struct sg_ane_device_base base;
    const struct sg_apple_api *api;
    struct sg_apple_opts o;
    struct sg_timed_call *worker;    /* thread of all calls to the service */
    struct sg_ane_counters c;
    struct sg_ane_profile profile;   /* only its rules for the sizes of surfaces are used */
    int lost;
};

/* A function of the program: its ports in the order of declaration, and the symbol index under which a
 * request binds each. */
struct sg_apple_procedure {
    struct sg_ane_port *in, *out;
    uint32_t *in_index, *out_index;  /* [in_n], [out_n] */
    uint32_t in_n, out_n;
};
/* `request` is the last _ANERequest: it is built again only when the procedure or a surface changes. */
struct sg_ane_program {
    struct sg_ane_program_base base;
    struct sg_mil_program *mil;      /* the parsed text: names and types of ports */
    struct sg_apple_procedure *procedures;    /* [mil->functions_n] */
    struct sg_arena arena;           /* owns the ports */
    void *model, *request;           /* _ANEInMemoryModel and _ANERequest, retained; NULL: none */
    void *bound[PORTS_MAX * 2];      /* [bound_n] surface objects of the request, not retained */
    uint32_t bound_n, bound_procedure;
    char *name, *folder;             /* folder: files of the program; NULL: not written */
    int loaded;                      /* 1: the service has the program loaded */
};

struct sg_ane_surface {
    struct sg_ane_surface_base base;
    void *surface, *object;          /* IOSurface, and the _ANEIOSurfaceObject around it (retained) */
    uint64_t n;                      /* bytes */
    int locked, options;             /* options: of the lock; unlock must repeat them */
};

/* A call to the service. It runs on the device's worker thread. Its memory is separate from the
 * caller's stack, because a call that timed out may still use it. */
struct sg_apple_job {
    struct sg_ane_device *d;
    struct sg_ane_program *p;
    segue_status (*work)(struct sg_apple_job *j);    /* the call; writes err on failure */
    const struct sg_ane_source *source;              /* of a load */
    const struct sg_ane_file *files;                 /* of a reload */
    uint32_t files_n, procedure;
    struct sg_ane_surface *const *in, *const *out;   /* of an evaluate, in port order */
    segue_status status;
    segue_error err;
};
/* Runs a copy of the job on the worker thread and waits for it. what: for errors. ELOST: no answer
 * within limit_ns; the device is lost from then on. */
segue_status sg_apple_call(const struct sg_apple_job *given, uint64_t limit_ns, const char *what, segue_error *err);

/* Members of struct sg_ane_device_ops (appleload.c). */
segue_status sg_apple_load(struct sg_ane_device *d, const struct sg_ane_source *s, struct sg_ane_program **out,
                           segue_error *err);
void sg_apple_unload(struct sg_ane_program *p);
segue_status sg_apple_reload(struct sg_ane_program *p, const struct sg_ane_file *files, uint32_t files_n,
                             segue_error *err);

#endif
