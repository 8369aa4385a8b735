/* apple_double.c: see apple_double.h.
 * SPDX-License-Identifier: MIT */
#include "apple_double.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/num.h"
#include "unit/ane/apple/applefiles.h"

enum kind {
    CLASS,
    STRING,
    DATA,
    NUMBER,
    ARRAY,
    DICTIONARY,
    ERROR,
    DESCRIPTOR,
    MODEL,
    REQUEST,
    SURFACE_OBJECT,
    SURFACE,
    CF_NUMBER,
    CF_DICTIONARY
};
enum { STATE_NEW, STATE_COMPILED, STATE_LOADED, STATE_UNLOADED };

struct object {
    enum kind kind;
    int count;
    char *text; /* of strings, names of classes */
    unsigned char *bytes;
    size_t n;
    unsigned long long number;
    struct object **items, **keys; /* retained */
    struct object *ref[4];         /* retained */
    int state, locked;
};

struct pool {
    struct pool *below;
    struct object **items;
    size_t n, cap;
};

static struct {
    struct double_opts o;
    struct double_counts c;
    struct sg_apple_api world;
    pthread_mutex_t lock;
    pthread_cond_t unhang;
    int hanging_over, refused;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .unhang = PTHREAD_COND_INITIALIZER};
static _Thread_local struct pool *top;
static struct object classes[16];
static char *selectors[64];

static void wrong(const char *text)
{
    if (!all.c.wrongs++) snprintf(all.c.wrong, sizeof all.c.wrong, "%s", text);
}
#define CHECK(condition, text) ((condition) ? (void)0 : wrong(text))

/* --- objects --- */

static struct object *make(enum kind kind)
{
    struct object *o = calloc(1, sizeof *o);
    o->kind = kind;
    o->count = 1;
    __atomic_add_fetch(kind == SURFACE     ? &all.c.live_surfaces
                       : kind >= CF_NUMBER ? &all.c.live_cf
                                           : &all.c.live_objects,
                       1, __ATOMIC_SEQ_CST);
    return o;
}

static void let_go(struct object *o)
{
    if (!o || o->kind == CLASS) return;
    if (o->count <= 0) {
        wrong("an object is released once too often");
        return;
    }
    if (--o->count) return;
    for (size_t i = 0; i < o->n && o->items; i++) {
        let_go(o->items[i]);
        if (o->keys) let_go(o->keys[i]);
    }
    for (int i = 0; i < 4; i++) let_go(o->ref[i]);
    if (o->kind == MODEL) CHECK(o->state != STATE_LOADED, "a model is freed while loaded");
    if (o->kind == SURFACE) CHECK(!o->locked, "a surface is freed while locked");
    __atomic_sub_fetch(o->kind == SURFACE     ? &all.c.live_surfaces
                       : o->kind >= CF_NUMBER ? &all.c.live_cf
                                              : &all.c.live_objects,
                       1, __ATOMIC_SEQ_CST);
    free(o->items);
    free(o->keys);
    free(o->bytes);
    free(o->text);
    free(o);
}

static struct object *hold(struct object *o)
{
    if (o && o->kind != CLASS) o->count++;
    return o;
}

static void *pool_push(void)
{
    struct pool *p = calloc(1, sizeof *p);
    p->below = top;
    top = p;
    __atomic_add_fetch(&all.c.open_pools, 1, __ATOMIC_SEQ_CST);
    return p;
}

static void pool_pop(void *pool)
{
    struct pool *p = pool;
    CHECK(p == top, "pools are popped out of order");
    for (size_t i = 0; i < p->n; i++) let_go(p->items[i]);
    top = p->below;
    free(p->items);
    free(p);
    __atomic_sub_fetch(&all.c.open_pools, 1, __ATOMIC_SEQ_CST);
}

static struct object *later(struct object *o) /* autorelease */
{
    CHECK(top != NULL, "an object is made without a pool");
    if (!top) return o;
    if (top->n == top->cap)
        top->items = realloc(top->items, (top->cap = top->cap ? top->cap * 2 : 16) * sizeof *top->items);
    top->items[top->n++] = o;
    return o;
}

static int is(const struct object *o, enum kind kind) { return o && o->kind == kind; }
static struct object *text_object(const char *s)
{
    struct object *o = make(STRING);
    o->text = strdup(s);
    return later(o);
}

static struct object *number_object(unsigned long long v)
{
    struct object *o = make(NUMBER);
    o->number = v;
    return later(o);
}

static struct object *list_object(struct object *const *items, unsigned long n)
{
    struct object *o = make(ARRAY);
    o->n = n;
    o->items = calloc(n + 1, sizeof *o->items);
    for (unsigned long i = 0; i < n; i++) o->items[i] = hold(items[i]);
    return later(o);
}

static struct object *dictionary_object(struct object *const *values, struct object *const *keys,
                                        unsigned long n)
{
    struct object *o = list_object(values, n);
    o->kind = DICTIONARY;
    o->keys = calloc(n + 1, sizeof *o->keys);
    for (unsigned long i = 0; i < n; i++) o->keys[i] = hold(keys[i]);
    return o;
}

static struct object *entry_of(const struct object *d, const char *key)
{
    for (size_t i = 0; is(d, DICTIONARY) && i < d->n; i++)
        if (!strcmp(d->keys[i]->text, key)) return d->items[i];
    return NULL;
}

static void set_entry(struct object **values, struct object **keys, unsigned long *n, const char *key,
                      struct object *value)
{
    keys[*n] = text_object(key);
    values[(*n)++] = value;
}

/* --- failures to order --- */

static int nil_here(const char *selector) { return all.o.nil_from && !strcmp(all.o.nil_from, selector); }

static int refused_here(const char *selector, void **error)
{
    if (all.o.hangs && !strcmp(all.o.hangs, selector)) {
        pthread_mutex_lock(&all.lock);
        while (!all.hanging_over) pthread_cond_wait(&all.unhang, &all.lock);
        pthread_mutex_unlock(&all.lock);
    }
    if (!all.o.refuses || strcmp(all.o.refuses, selector) != 0) return 0;
    if (all.o.refuses_times && all.refused >= all.o.refuses_times) return 0;
    all.refused++;
    if (all.o.error_text && error) {
        struct object *e = later(make(ERROR));
        e->text = strdup(all.o.error_text);
        *error = e;
    }
    return 1;
}

/* --- Foundation --- */

static void *m_retain(void *self, void *cmd)
{
    (void)cmd;
    return hold(self);
}
static void m_release(void *self, void *cmd)
{
    (void)cmd;
    let_go(self);
}
static void *m_string(void *self, void *cmd, const char *s)
{
    (void)self;
    (void)cmd;
    return text_object(s);
}
static const char *m_utf8(void *self, void *cmd)
{
    struct object *o = self;
    (void)cmd;
    CHECK(is(o, STRING), "UTF8String of something else than a string");
    return o->text;
}
static void *m_data(void *self, void *cmd, const void *bytes, unsigned long n)
{
    struct object *o = make(DATA);
    (void)self;
    (void)cmd;
    o->bytes = malloc(n + 1);
    memcpy(o->bytes, bytes, n);
    o->n = n;
    return later(o);
}
static void *m_number(void *self, void *cmd, unsigned long long v)
{
    (void)self;
    (void)cmd;
    return number_object(v);
}
static void *m_array(void *self, void *cmd, void *const *items, unsigned long n)
{
    (void)self;
    (void)cmd;
    return list_object((struct object *const *)items, n);
}
static void *m_pairs(void *self, void *cmd, void *const *values, void *const *keys, unsigned long n)
{
    (void)self;
    (void)cmd;
    return dictionary_object((struct object *const *)values, (struct object *const *)keys, n);
}
static void *m_empty(void *self, void *cmd)
{
    (void)self;
    (void)cmd;
    return dictionary_object(NULL, NULL, 0);
}
static void *m_entry(void *self, void *cmd, void *key)
{
    (void)cmd;
    return entry_of(self, ((struct object *)key)->text);
}
static unsigned long m_count(void *self, void *cmd)
{
    (void)cmd;
    return ((struct object *)self)->n;
}
static void *m_item(void *self, void *cmd, unsigned long i)
{
    (void)cmd;
    return ((struct object *)self)->items[i];
}
static unsigned long long m_u64(void *self, void *cmd)
{
    (void)cmd;
    return ((struct object *)self)->number;
}
static void *m_description(void *self, void *cmd)
{
    (void)cmd;
    return text_object(((struct object *)self)->text);
}
static void *m_domain(void *self, void *cmd)
{
    (void)self;
    (void)cmd;
    return text_object("com.apple.appleneuralengine");
}

/* --- the engine's classes --- */

static void *m_descriptor(void *self, void *cmd, void *text, void *weights, void *options)
{
    struct object *w = weights;
    (void)self;
    (void)cmd;
    CHECK(is(text, DATA), "MIL text is no NSData");
    CHECK(is(w, DICTIONARY), "weights are no NSDictionary");
    CHECK(options == NULL, "options plist is not nil");
    for (size_t i = 0; is(w, DICTIONARY) && i < w->n; i++) {
        CHECK(!strncmp(w->keys[i]->text, "@model_path/", 12),
              "a weight's key does not begin with @model_path/");
        CHECK(is(entry_of(w->items[i], "offset"), NUMBER) && entry_of(w->items[i], "offset")->number == 0,
              "a weight has no offset 0");
        CHECK(is(entry_of(w->items[i], "data"), DATA), "a weight has no data");
    }
    if (nil_here("modelWithMILText:weights:optionsPlist:")) return NULL;
    struct object *d = make(DESCRIPTOR);
    d->ref[0] = hold(text);
    d->ref[1] = hold(weights);
    return later(d);
}

static void *m_model(void *self, void *cmd, void *descriptor)
{
    (void)self;
    (void)cmd;
    CHECK(is(descriptor, DESCRIPTOR), "a model of something else than a descriptor");
    if (nil_here("inMemoryModelWithDescriptor:")) return NULL;
    struct object *m = make(MODEL);
    m->ref[0] = hold(descriptor);
    return later(m);
}

static void *m_hex(void *self, void *cmd)
{
    char hex[64];
    struct object *text = ((struct object *)self)->ref[0]->ref[0];
    unsigned sum = 0;
    (void)cmd;
    if (nil_here("hexStringIdentifier")) return NULL;
    for (size_t i = 0; i < text->n; i++) sum = sum * 31 + text->bytes[i];
    snprintf(hex, sizeof hex, "%08x_00000000_%08x", sum,
             (unsigned)((struct object *)self)->ref[0]->ref[1]->n);
    return text_object(hex);
}

static int file_equals(const char *folder, const char *name, const struct object *data)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    unsigned char *bytes = malloc(data->n + 1);
    size_t n = fread(bytes, 1, data->n + 1, f);
    int equal = n == data->n && !memcmp(bytes, data->bytes, n);
    free(bytes);
    fclose(f);
    return equal;
}

/* The folder must hold the text and every blob at the moment of compiling. */
static void check_folder(struct object *m)
{
    char folder[700];
    struct object *d = m->ref[0], *hex = m_hex(m, NULL);
    snprintf(folder, sizeof folder, "%s/%s", all.world.temporary, hex ? hex->text : "");
    CHECK(file_equals(folder, "model.mil", d->ref[0]),
          "model.mil is not the text at the moment of compiling");
    for (size_t i = 0; i < d->ref[1]->n; i++)
        CHECK(file_equals(folder, d->ref[1]->keys[i]->text + 12, entry_of(d->ref[1]->items[i], "data")),
              "a blob is missing at the moment of compiling");
    char path[800];
    snprintf(path, sizeof path, "%s/net.plist", folder); /* what the service adds */
    FILE *f = fopen(path, "wb");
    if (f) fclose(f);
}

/* Exactly the keys that were asked for, each with the number 1. */
static int options_are(const struct object *options, int retain, int wired)
{
    if (!is(options, DICTIONARY) || options->n != (size_t)(retain + wired)) return 0;
    const struct object *a = entry_of(options, "kANEFRetainModelsWithoutSourceURLKey"),
                        *b = entry_of(options, "kANEFKeepModelMemoryWiredKey");
    return retain == (is(a, NUMBER) && a->number == 1) && wired == (is(b, NUMBER) && b->number == 1);
}

static _Bool m_compile(void *self, void *cmd, unsigned qos, void *options, void **error)
{
    struct object *m = self;
    (void)cmd;
    all.c.compiles++;
    CHECK(qos == 21, "QoS is not 21");
    CHECK(options_are(options, all.o.retain, 0), "options of a compile");
    CHECK(m->state != STATE_LOADED, "a loaded model is compiled");
    check_folder(m);
    if (refused_here("compileWithQoS:options:error:", error)) return 0;
    m->state = STATE_COMPILED;
    return 1;
}

static _Bool m_load(void *self, void *cmd, unsigned qos, void *options, void **error)
{
    struct object *m = self;
    (void)cmd;
    all.c.loads++;
    CHECK(qos == 21 && options_are(options, all.o.retain, all.o.wired), "load with other arguments");
    CHECK(m->state == STATE_COMPILED || m->state == STATE_UNLOADED || all.o.cached, "load before compile");
    if (refused_here("loadWithQoS:options:error:", error)) return 0;
    m->state = STATE_LOADED;
    return 1;
}

static _Bool m_unload(void *self, void *cmd, unsigned qos, void **error)
{
    struct object *m = self;
    (void)cmd;
    all.c.unloads++;
    CHECK(qos == 21 && m->state == STATE_LOADED, "unload of a model that is not loaded");
    if (refused_here("unloadWithQoS:error:", error)) return 0;
    m->state = STATE_UNLOADED;
    return 1;
}

static _Bool m_exists(void *self, void *cmd)
{
    (void)self;
    (void)cmd;
    return all.o.cached != 0;
}
static void m_purge(void *self, void *cmd)
{
    (void)cmd;
    all.c.purges++;
    ((struct object *)self)->state = STATE_NEW;
}

static void *m_surface_object(void *self, void *cmd, void *surface)
{
    struct object *o;
    (void)self;
    (void)cmd;
    CHECK(is(surface, SURFACE), "objectWithIOSurface: of something else");
    if (nil_here("objectWithIOSurface:")) return NULL;
    o = make(SURFACE_OBJECT);
    o->ref[0] = hold(surface);
    return later(o);
}

static void *m_request(void *self, void *cmd, void *in, void *in_at, void *out, void *out_at, void *weights,
                       void *stats, void *procedure)
{
    (void)self;
    (void)cmd;
    CHECK(is(in, ARRAY) && is(in_at, ARRAY) && is(out, ARRAY) && is(out_at, ARRAY),
          "a request's lists are no arrays");
    CHECK(!weights && !stats && is(procedure, NUMBER), "a request's weights, statistics or procedure");
    CHECK(((struct object *)in)->n == ((struct object *)in_at)->n &&
              ((struct object *)out)->n == ((struct object *)out_at)->n,
          "a request's counts differ");
    if (nil_here(
            "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:"))
        return NULL;
    struct object *r = make(REQUEST);
    r->ref[0] = hold(in);
    r->ref[1] = hold(in_at);
    r->ref[2] = hold(out);
    r->ref[3] = hold(out_at);
    return later(r);
}

/* Writes what shows who was bound where: output symbol k becomes 100 + the first number of input symbol k. */
static _Bool compute(struct object *r)
{
    float seen[16] = {0};
    for (size_t i = 0; i < r->ref[0]->n; i++) {
        struct object *s = r->ref[0]->items[i]->ref[0];
        CHECK(!s->locked, "evaluate while a surface is locked");
        if (r->ref[1]->items[i]->number < 16)
            seen[r->ref[1]->items[i]->number] = sg_f32_of_f16(sg_le16(s->bytes));
    }
    for (size_t i = 0; i < r->ref[2]->n; i++) {
        struct object *s = r->ref[2]->items[i]->ref[0];
        uint16_t v = sg_f16_of_f32(100 + seen[r->ref[3]->items[i]->number & 15]);
        CHECK(!s->locked, "evaluate while a surface is locked");
        memcpy(s->bytes, &v, 2);
    }
    return 1;
}

static _Bool m_evaluate(void *self, void *cmd, unsigned qos, void *options, void *request, void **error)
{
    (void)cmd;
    all.c.evaluates++;
    CHECK(((struct object *)self)->state == STATE_LOADED, "evaluate of a model that is not loaded");
    CHECK(qos == 21 && options_are(options, 0, 0) && is(request, REQUEST), "evaluate with other arguments");
    CHECK(!all.o.real_time, "an evaluate that should be real-time");
    return refused_here("evaluateWithQoS:options:request:error:", error) ? 0 : compute(request);
}

/* The client is its class, and a model is its own inner model. */
static void *m_self(void *self, void *cmd)
{
    (void)cmd;
    return self;
}

static _Bool m_real_time(void *self, void *cmd, void *model, void *options, void *request, void **error)
{
    (void)self;
    (void)cmd;
    all.c.real_time++;
    CHECK(is(model, MODEL) && ((struct object *)model)->state == STATE_LOADED, "evaluate of a model that is not loaded");
    CHECK(options_are(options, 0, 0) && is(request, REQUEST) && all.o.real_time, "real-time evaluate with other arguments");
    return refused_here("evaluateRealTimeWithModel:options:request:error:", error) ? 0 : compute(request);
}

/* Names of parameters and results, taken from the text: `> NAME` before `,` or `)` of the first function; `->
 * (a, b)`. */
static unsigned long names_in(const char *from, const char *to, struct object **names, const char *suffix)
{
    unsigned long n = 0;
    for (const char *s = from; s < to;) {
        size_t len = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        const char *after = s + len;
        if (len && (*after == ',' || *after == ')') && (s[-1] == ' ' || s[-1] == '(') &&
            !(s[0] >= '0' && s[0] <= '9')) {
            char name[160];
            snprintf(name, sizeof name, "%.*s%s", (int)len, s, suffix);
            names[n++] = text_object(name);
        }
        s += len ? len : 1;
    }
    return n;
}

static struct object *indices_of(unsigned long n)
{
    struct object *at[32];
    for (unsigned long i = 0; i < n; i++) at[i] = number_object(i);
    return list_object(at, n);
}

static void *m_attributes(void *self, void *cmd)
{
    struct object *text = ((struct object *)self)->ref[0]->ref[0], *names[2][32], *values[8], *keys[8];
    (void)cmd;
    if (all.o.no_attributes) return NULL;
    char *copy = strndup((char *)text->bytes, text->n), *open = strstr(copy, "main"),
         *body = strstr(open, ") {"), *back = strstr(body, "-> (");
    unsigned long n[2] = {names_in(open, body + 1, names[0], ""),
                          names_in(back + 3, strchr(back, ';'), names[1], "@output")},
                  k = 0;
    for (int side = 0; side < 2 && all.o.reversed; side++)
        for (unsigned long i = 0; i < n[side] / 2; i++) {
            struct object *t = names[side][i];
            names[side][i] = names[side][n[side] - 1 - i];
            names[side][n[side] - 1 - i] = t;
        }
    set_entry(values, keys, &k, "ANEFModelInputSymbolIndexArray", indices_of(n[0]));
    set_entry(values, keys, &k, "ANEFModelOutputSymbolIndexArray", indices_of(n[1]));
    struct object *procedure = dictionary_object(values, keys, k);
    k = 0;
    set_entry(values, keys, &k, "kANEFModelInputSymbolsArrayKey", list_object(names[0], n[0]));
    set_entry(values, keys, &k, "kANEFModelOutputSymbolsArrayKey", list_object(names[1], n[1]));
    set_entry(values, keys, &k, "ANEFModelProcedures", list_object(&procedure, 1));
    struct object *description = dictionary_object(values, keys, k);
    k = 0;
    if (all.o.row_stride) {
        set_entry(values, keys, &k, "Name", names[0][0]);
        set_entry(values, keys, &k, "RowStride", number_object(all.o.row_stride));
        struct object *port = dictionary_object(values, keys, k), *live = list_object(&port, 1);
        k = 0;
        set_entry(values, keys, &k, "LiveInputList", live);
        struct object *network = dictionary_object(values, keys, k);
        k = 0;
        set_entry(values, keys, &k, "NetworkStatusList", list_object(&network, 1));
    }
    set_entry(values, keys, &k, "ANEFModelDescription", description);
    free(copy);
    return dictionary_object(values, keys, k);
}

static void *m_architecture(void *self, void *cmd)
{
    (void)self;
    (void)cmd;
    return text_object("h16g");
}
static unsigned m_one(void *self, void *cmd)
{
    (void)self;
    (void)cmd;
    return 1;
}

/* --- the runtime --- */

typedef void any(void);
#define F(f) (any *)(f)
static const struct {
    const char *class, *selector, *encoding;
    int of_class;
    any *run;
    enum kind on;
} table[] = {
    {"_ANEInMemoryModelDescriptor", "modelWithMILText:weights:optionsPlist:", "@40@0:8@16@24@32", 1,
     F(m_descriptor), CLASS},
    {"_ANEInMemoryModel", "inMemoryModelWithDescriptor:", "@24@0:8@16", 1, F(m_model), CLASS},
    {"_ANEInMemoryModel", "hexStringIdentifier", "@16@0:8", 0, F(m_hex), MODEL},
    {"_ANEInMemoryModel", "compileWithQoS:options:error:", "B36@0:8I16@20^@28", 0, F(m_compile), MODEL},
    {"_ANEInMemoryModel", "loadWithQoS:options:error:", "B36@0:8I16@20^@28", 0, F(m_load), MODEL},
    {"_ANEInMemoryModel", "evaluateWithQoS:options:request:error:", "B44@0:8I16@20@28^@36", 0, F(m_evaluate),
     MODEL},
    {"_ANEInMemoryModel", "unloadWithQoS:error:", "B28@0:8I16^@20", 0, F(m_unload), MODEL},
    {"_ANEInMemoryModel", "compiledModelExists", "B16@0:8", 0, F(m_exists), MODEL},
    {"_ANEInMemoryModel", "purgeCompiledModel", "v16@0:8", 0, F(m_purge), MODEL},
    {"_ANEInMemoryModel", "modelAttributes", "@16@0:8", 0, F(m_attributes), MODEL},
    {"_ANEIOSurfaceObject", "objectWithIOSurface:", "@24@0:8^{__IOSurface=}16", 1, F(m_surface_object),
     CLASS},
    {"_ANERequest",
     "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
     "@72@0:8@16@24@32@40@48@56@64", 1, F(m_request), CLASS},
    {"_ANEClient", "sharedConnection", "@16@0:8", 1, F(m_self), CLASS},
    {"_ANEInMemoryModel", "model", "@16@0:8", 0, F(m_self), MODEL},
    {"_ANEClient", "evaluateRealTimeWithModel:options:request:error:", "B48@0:8@16@24@32^@40", 0, F(m_real_time), CLASS},
    {"_ANEDeviceInfo", "aneArchitectureType", "@16@0:8", 1, F(m_architecture), CLASS},
    {"_ANEDeviceInfo", "numANEs", "I16@0:8", 1, F(m_one), CLASS},
    {"NSString", "stringWithUTF8String:", "", 1, F(m_string), CLASS},
    {"NSData", "dataWithBytes:length:", "", 1, F(m_data), CLASS},
    {"NSNumber", "numberWithUnsignedLongLong:", "", 1, F(m_number), CLASS},
    {"NSArray", "arrayWithObjects:count:", "", 1, F(m_array), CLASS},
    {"NSDictionary", "dictionaryWithObjects:forKeys:count:", "", 1, F(m_pairs), CLASS},
    {"NSDictionary", "dictionary", "", 1, F(m_empty), CLASS},
    {"", "UTF8String", "", 0, F(m_utf8), STRING},
    {"", "objectForKey:", "", 0, F(m_entry), DICTIONARY},
    {"", "count", "", 0, F(m_count), ARRAY},
    {"", "objectAtIndex:", "", 0, F(m_item), ARRAY},
    {"", "unsignedLongLongValue", "", 0, F(m_u64), NUMBER},
    {"", "localizedDescription", "", 0, F(m_description), ERROR},
    {"", "domain", "", 0, F(m_domain), ERROR},
};
enum { TABLE = sizeof table / sizeof *table };

static void *class_named(const char *name)
{
    if (all.o.missing_class && !strcmp(all.o.missing_class, name)) return NULL;
    for (int i = 0; i < 16; i++) {
        if (!classes[i].text) classes[i] = (struct object){.kind = CLASS, .count = 1, .text = strdup(name)};
        if (!strcmp(classes[i].text, name)) return &classes[i];
    }
    return NULL;
}

static void *selector_named(const char *name)
{
    pthread_mutex_lock(&all.lock);
    int i = 0;
    while (i < 63 && selectors[i] && strcmp(selectors[i], name) != 0) i++;
    if (!selectors[i]) selectors[i] = strdup(name);
    pthread_mutex_unlock(&all.lock);
    return selectors[i];
}

static any *method_of(void *receiver, void *selector)
{
    struct object *o = receiver;
    if (!o) {
        wrong("a message to nil");
        return NULL;
    }
    CHECK(o->count > 0, "a message to a freed object");
    if (!strcmp(selector, "retain")) return F(m_retain);
    if (!strcmp(selector, "release")) return F(m_release);
    for (int i = 0; i < TABLE; i++)
        if (!strcmp(table[i].selector, selector) && o->kind == table[i].on &&
            (o->kind != CLASS || !strcmp(o->text, table[i].class)))
            return table[i].run;
    char text[200];
    snprintf(text, sizeof text, "object of kind %d does not know %s", o->kind, (char *)selector);
    wrong(text);
    return NULL;
}

static void *find_method(void *class, void *selector, int of_class)
{
    for (int i = 0; i < TABLE; i++)
        if (table[i].of_class == of_class && !strcmp(table[i].class, ((struct object *)class)->text) &&
            !strcmp(table[i].selector, selector))
            return (void *)(uintptr_t)&table[i];
    return NULL;
}
static void *class_method(void *class, void *selector) { return find_method(class, selector, 1); }
static void *instance_method(void *class, void *selector) { return find_method(class, selector, 0); }
static const char *type_encoding(void *method)
{
    int i = (int)(((char *)method - (char *)(uintptr_t)table) / (long)sizeof *table);
    return all.o.wrong_encoding && !strcmp(all.o.wrong_encoding, table[i].selector) ? "B36@0:8Q16@24^@32"
                                                                                    : table[i].encoding;
}

/* --- surfaces and Core Foundation --- */

static const char key_names[6][16] = {"width", "height", "element", "row", "allocation", "format"};

static const void *cf_number(const void *allocator, long type, const void *value)
{
    struct object *o = make(CF_NUMBER);
    CHECK(!allocator && type == 4, "a number of another type");
    memcpy(&o->number, value, 8);
    return o;
}

static const void *cf_dictionary(const void *allocator, const void **keys, const void **values, long n,
                                 const void *key_calls, const void *value_calls)
{
    struct object *o = make(CF_DICTIONARY);
    CHECK(!allocator && n == 6 && key_calls && value_calls, "the properties of a surface");
    unsigned long long v[6] = {0};
    for (long i = 0; i < n && i < 6; i++) {
        CHECK(keys[i] == key_names[i] && is(values[i], CF_NUMBER), "a property's key or value");
        v[i] = ((const struct object *)values[i])->number;
    }
    CHECK(v[1] == 1 && v[2] == 1 && v[5] == 0 && v[0] == v[3] && v[3] == v[4] && v[4] % 16384 == 0,
          "the numbers of a surface's properties");
    o->number = v[4];
    return o;
}

static void *surface_create(const void *properties)
{
    const struct object *p = properties;
    CHECK(is(p, CF_DICTIONARY), "a surface of something else than a dictionary");
    if (nil_here("IOSurfaceCreate")) return NULL;
    struct object *s = make(SURFACE);
    s->n = 0;
    s->number = p->number;
    s->bytes = malloc(p->number);
    memset(s->bytes, 0x55, p->number);
    return s;
}

static int surface_lock(void *surface, uint32_t options, uint32_t *seed)
{
    struct object *s = surface;
    CHECK(is(s, SURFACE) && !seed && !s->locked, "a surface is locked twice");
    s->locked = (int)options + 1;
    return 0;
}

static int surface_unlock(void *surface, uint32_t options, uint32_t *seed)
{
    struct object *s = surface;
    CHECK(is(s, SURFACE) && !seed && s->locked == (int)options + 1,
          "a surface is unlocked with other options");
    s->locked = 0;
    return 0;
}

static void *surface_base(void *surface) { return ((struct object *)surface)->bytes; }
static void cf_release(const void *o) { let_go((struct object *)(uintptr_t)o); }
static void no_pause(uint64_t ns)
{
    CHECK(ns >= 100000000u && ns <= 1000000000u, "a pause outside 100 ms to 1 s");
}

const struct sg_apple_api *double_begin(const struct double_opts *o)
{
    memset(&all.c, 0, sizeof all.c);
    all.o = *o;
    all.refused = all.hanging_over = 0;
    all.world = (struct sg_apple_api){
        class_named,
        selector_named,
        NULL,
        method_of,
        class_method,
        instance_method,
        type_encoding,
        pool_push,
        pool_pop,
        surface_create,
        surface_lock,
        surface_unlock,
        surface_base,
        cf_release,
        cf_dictionary,
        cf_number,
        "keys",
        "values",
        {key_names[0], key_names[1], key_names[2], key_names[3], key_names[4], key_names[5]},
        "",
        no_pause,
        "double"};
    snprintf(all.world.temporary, sizeof all.world.temporary, "/tmp/segue-double-XXXXXX");
    if (!mkdtemp(all.world.temporary)) wrong("no temporary folder");
    return &all.world;
}

struct double_counts double_counts(void) { return all.c; }

void double_release_hang(void)
{
    pthread_mutex_lock(&all.lock);
    all.hanging_over = 1;
    pthread_cond_broadcast(&all.unhang);
    pthread_mutex_unlock(&all.lock);
}

int double_folder_entries(void)
{
    int n = 0;
    DIR *d = opendir(all.world.temporary);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

void double_end(void) { sg_apple_files_remove(all.world.temporary); }
