/* apple_api.c: the system functions and methods that the private interface uses, and their lookup. See
 * apple.h.
 * SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "unit/ane/apple/apple.h"

/* Methods that the unit calls, with the type encodings that the casts of appleparts.h assume: @ object,
 * : selector, I 32-bit unsigned, B bool, v void, ^@ pointer to an object. of_class 1: a class method. */
static const struct {
    const char *class, *selector, *encoding;
    int of_class;
} methods[] = {
    {"_ANEInMemoryModelDescriptor", "modelWithMILText:weights:optionsPlist:", "@@:@@@", 1},
    {"_ANEInMemoryModel", "inMemoryModelWithDescriptor:", "@@:@", 1},
    {"_ANEInMemoryModel", "hexStringIdentifier", "@@:", 0},
    {"_ANEInMemoryModel", "compileWithQoS:options:error:", "B@:I@^@", 0},
    {"_ANEInMemoryModel", "loadWithQoS:options:error:", "B@:I@^@", 0},
    {"_ANEInMemoryModel", "evaluateWithQoS:options:request:error:", "B@:I@@^@", 0},
    {"_ANEInMemoryModel", "unloadWithQoS:error:", "B@:I^@", 0},
    {"_ANEInMemoryModel", "compiledModelExists", "B@:", 0},
    {"_ANEInMemoryModel", "purgeCompiledModel", "v@:", 0},
    {"_ANEInMemoryModel", "modelAttributes", "@@:", 0},
    {"_ANEIOSurfaceObject", "objectWithIOSurface:", "@@:^{__IOSurface=}", 1},
    {"_ANERequest",
     "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
     "@@:@@@@@@@", 1},
    {"_ANEClient", "sharedConnection", "@@:", 1},
    {"_ANEInMemoryModel", "model", "@@:", 0},
    {"_ANEClient", "evaluateRealTimeWithModel:options:request:error:", "B@:@@@^@", 0},
};
enum { REAL_TIME = 3 }; /* the last methods are those of real-time evaluates */

/* 1: equal type encodings. The runtime inserts frame offsets, which are skipped: they depend on the
 * architecture. */
static int same_encoding(const char *found, const char *expected)
{
    for (; found && *found; found++) {
        if (*found >= '0' && *found <= '9') continue;
        if (*found != *expected++) return 0;
    }
    return found && !*expected;
}

int sg_apple_method_at(const struct sg_apple_api *api, size_t i, struct sg_apple_method *out)
{
    if (i >= sizeof methods / sizeof *methods) return 0;
    void *class = api->class_named(methods[i].class), *selector = api->selector(methods[i].selector);
    void *method = !class                ? NULL
                   : methods[i].of_class ? api->class_method(class, selector)
                                         : api->instance_method(class, selector);
    *out = (struct sg_apple_method){methods[i].class, methods[i].selector, methods[i].encoding,
                                    method ? api->type_encoding(method) : NULL, 0,
                                    i + REAL_TIME >= sizeof methods / sizeof *methods};
    out->equal = same_encoding(out->found, out->expected);
    return 1;
}

/* A symbol to look up with dlsym, stored in the member of struct sg_apple_api at `offset`. is_variable
 * 1: the symbol is a variable that has a pointer; its value is stored. */
struct apple_symbol {
    const char *name;
    size_t offset;
    int is_variable;
};
#define AT(member) offsetof(struct sg_apple_api, member)
/* The libraries in the order of loading. Foundation and AppleNeuralEngine are loaded for their classes
 * only. The files of system frameworks exist only in the shared cache, so dlopen is the only test for
 * them. */
static const struct {
    const char *path;
    struct apple_symbol symbols[12];       /* up to the first without a name */
} libraries[] = {
    {"/usr/lib/libobjc.A.dylib",
     {{"objc_getClass", AT(class_named), 0},
      {"sel_registerName", AT(selector), 0},
      {"objc_msgSend", AT(send), 0},
      {"class_getClassMethod", AT(class_method), 0},
      {"class_getInstanceMethod", AT(instance_method), 0},
      {"method_getTypeEncoding", AT(type_encoding), 0},
      {"objc_autoreleasePoolPush", AT(pool_push), 0},
      {"objc_autoreleasePoolPop", AT(pool_pop), 0}}},
    {"/System/Library/Frameworks/Foundation.framework/Foundation", {{0}}},
    {"/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation",
     {{"CFRelease", AT(release), 0},
      {"CFDictionaryCreate", AT(dictionary), 0},
      {"CFNumberCreate", AT(number), 0},
      {"kCFTypeDictionaryKeyCallBacks", AT(key_calls), 0},
      {"kCFTypeDictionaryValueCallBacks", AT(value_calls), 0}}},
    {"/System/Library/Frameworks/IOSurface.framework/IOSurface",
     {{"IOSurfaceCreate", AT(surface_create), 0},
      {"IOSurfaceLock", AT(surface_lock), 0},
      {"IOSurfaceUnlock", AT(surface_unlock), 0},
      {"IOSurfaceGetBaseAddress", AT(surface_base), 0},
      {"kIOSurfaceWidth", AT(surface_keys[0]), 1},
      {"kIOSurfaceHeight", AT(surface_keys[1]), 1},
      {"kIOSurfaceBytesPerElement", AT(surface_keys[2]), 1},
      {"kIOSurfaceBytesPerRow", AT(surface_keys[3]), 1},
      {"kIOSurfaceAllocSize", AT(surface_keys[4]), 1},
      {"kIOSurfacePixelFormat", AT(surface_keys[5]), 1}}},
    {"/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/AppleNeuralEngine", {{0}}},
};

/* The libraries are never closed: Objective-C classes cannot be unloaded. memcpy stores object and
 * function pointers alike. */
segue_status sg_apple_api_here(struct sg_apple_api *out, segue_error *err)
{
    struct sg_apple_api w = {.pause_ns = sg_pause_ns};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *library = dlopen(libraries[i].path, RTLD_NOW);
        if (!library)
            return sg_fail(err, SEGUE_EUNIT,
                           "neural engine: %s: not on this machine; use a Mac with Apple silicon",
                           libraries[i].path);
        for (const struct apple_symbol *s = libraries[i].symbols; s->name; s++) {
            void *found = dlsym(library, s->name);
            if (found && s->is_variable) memcpy(&found, found, sizeof found);
            if (!found)
                return sg_fail(err, SEGUE_EUNIT, "neural engine: %s: not in %s; this version of the system is not supported",
                               s->name, libraries[i].path);
            memcpy((char *)&w + s->offset, &found, sizeof found);
        }
    }
    const char *temporary = getenv("TMPDIR");  /* the folder that NSTemporaryDirectory() returns */
    if (!temporary || !*temporary) temporary = "/tmp";
    if (strlen(temporary) >= sizeof w.temporary)
        return sg_fail(err, SEGUE_EUNIT, "neural engine: TMPDIR: the path is too long; set a shorter one");
    memcpy(w.temporary, temporary, strlen(temporary) + 1);
    struct utsname system;
    if (uname(&system) >= 0) snprintf(w.build, sizeof w.build, "%.60s", system.release);
    *out = w;
    return SEGUE_OK;
}
