/* model_pool.c: see model_pool.h. SPDX-License-Identifier: MIT */
#include "serve/model_pool.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "host/folders.h"
#include "host/model_names.h"

enum { MODELS_MAX = 256 };

/* "models/Qwen3-0.6B-Q8_0.gguf" -> "Qwen3-0.6B-Q8_0"; a folder keeps its whole last component. */
static char *name_of(const char *path)
{
    char *text = out_strdup(path);
    size_t n = strlen(text);
    while (n > 1 && text[n - 1] == '/') text[--n] = 0;
    const char *slash = strrchr(text, '/');
    char *name = out_strdup(slash && slash[1] ? slash + 1 : text);
    free(text);
    static const char *const suffixes[] = {".gguf", ".safetensors", ".bin"};
    for (size_t i = 0; i < 3; i++) {
        size_t len = strlen(name), s = strlen(suffixes[i]);
        if (len > s && !strcmp(name + len - s, suffixes[i])) name[len - s] = 0;
    }
    return name;
}

/* Bytes of a file, or of the files in a folder. */
static uint64_t bytes_of(const char *path)
{
    struct stat st;
    struct dirent **list = NULL;
    uint64_t sum = 0;
    if (stat(path, &st)) return 0;
    int n = S_ISDIR(st.st_mode) ? scandir(path, &list, NULL, NULL) : 0;
    for (int i = 0; i < n; i++) {
        char *inner = out_printf("%s/%s", path, list[i]->d_name);
        if (!stat(inner, &st) && S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
        free(inner), free(list[i]);
    }
    free(list);
    return n > 0 ? sum : (uint64_t)st.st_size;
}

static void add_model(struct model_pool *h, const struct args *args, const char *path)
{
    segue_error ignored;
    struct pooled_model *m = out_alloc(sizeof *m);
    m->name = h->models_n || !args_has(args, "alias") ? name_of(path) : out_strdup(args_text(args, "alias"));
    m->path = out_strdup(path);
    m->bytes = bytes_of(path);
    m->log = h->log;
    m->args = args_copy(args);
    args_unset(&m->args, "model");
    args_set(&m->args, "model", path, &ignored);
    pthread_mutex_init(&m->energy_lock, NULL);
    slots_open(&m->slots, h->scheduling.running);
    grammars_open(&m->grammars);
    h->models = out_realloc(h->models, (h->models_n + 1) * sizeof(struct pooled_model *));
    h->models[h->models_n++] = m;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), e = strlen(end);
    return n > e && !strcmp(text + n - e, end);
}

static bool has_file(const char *folder, const char *name)
{
    char *path = out_printf("%s/%s", folder, name);
    bool found = folders_is_file(path);
    free(path);
    return found;
}

/* A folder without config.json holds models: .gguf files, and folders with config.json. */
static segue_status add_folder(struct model_pool *h, const struct args *args, const char *folder, segue_error *err)
{
    struct dirent **list = NULL;
    size_t before = h->models_n;
    int n = scandir(folder, &list, NULL, alphasort);
    if (n < 0) return out_fail_errno(err, "models", folder, NULL);
    for (int i = 0; i < n; i++) {
        char *path = out_printf("%s/%s", folder, list[i]->d_name);
        bool model = list[i]->d_name[0] != '.' && ((ends_with(path, ".gguf") && folders_is_file(path)) ||
                                                   (folders_is_folder(path) && has_file(path, "config.json")));
        if (model && h->models_n < MODELS_MAX) add_model(h, args, path);
        free(path);
        free(list[i]);
    }
    free(list);
    if (h->models_n > before) return SEGUE_OK;
    return out_fail(err, SEGUE_EIO, "models: %.200s: no .gguf file and no folder with config.json; put models there", folder);
}

segue_status model_pool_open(struct model_pool *h, const struct args *args, segue_error *err)
{
    segue_status st = SEGUE_OK;
    const char *text;
    size_t i = 0;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->started_s = (uint64_t)time(NULL);
    for (; !st && (text = args_nth(args, "model", i)); i++) {
        if (folders_is_folder(text) && !has_file(text, "config.json") && !has_file(text, "adapter_config.json"))
            st = add_folder(h, args, text, err);
        else {
            char *path = NULL;
            st = model_names_find(text, &path, err);
            if (!st) add_model(h, args, path);
            free(path);
        }
    }
    if (!st && !i) {
        char *path = NULL;
        const char *wanted;
        st = model_names_of_args(args, &path, &wanted, err);
        if (!st) add_model(h, args, path);
        free(path);
    }
    return st;
}

/* Opens a model in state LOADING. Called without the lock. */
static void load(struct model_pool *h, struct pooled_model *m)
{
    segue_error err = {0};
    int code;
    segue_scheduler_opts opts = h->scheduling;
    segue_scheduler *scheduler = NULL;
    unsigned flags = PLACEMENT_EMBEDDINGS | (m->log ? record_placement_flags(&m->args) : 0);
    segue_status st = placement_try(&m->placement, &m->args, flags, NULL, &code, &err);
    if (!st) {
        size_t trained = m->placement.info.context;
        if (!opts.context) opts.context = trained && trained < 4096 ? trained : 4096;
        if (trained && opts.context > trained) opts.context = trained;
        opts.plan = placement_plan(&m->placement);
        st = segue_scheduler_open(&scheduler, m->placement.engine, &opts, &err);
    }
    if (!st && meter_open(&m->meter, &m->args, &m->placement)) /* has printed why */
        st = out_fail(&err, SEGUE_EUNSUPPORTED, "serve: --meter: no unit of this model reports its energy; remove the flag");
    if (st) segue_scheduler_close(scheduler);
    if (st) scheduler = NULL;
    if (st) placement_close(&m->placement);
    else adapter_set_open(&m->adapters, &m->placement, &m->args);
    pthread_mutex_lock(&h->lock);
    m->scheduler = scheduler;
    m->context = opts.context;
    if (!st) m->bytes = m->placement.info.weight_bytes;
    m->state = st ? MODEL_FAILED : MODEL_READY;
    h->ready |= !st && m == h->models[0];
    m->err = err;
    m->err.status = st;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void *loader_main(void *arg)
{
    struct model_pool *h = arg;
    load(h, h->models[0]);
    return NULL;
}

void model_pool_preload(struct model_pool *h)
{
    h->models[0]->state = MODEL_LOADING;
    h->loader_started = !pthread_create(&h->loader, NULL, loader_main, h);
    if (!h->loader_started) load(h, h->models[0]);
}

/* With the lock: true if a model may be opened beside those that are open or opening. */
static bool fits(const struct model_pool *h, const struct pooled_model *wanted)
{
    size_t n = 0;
    uint64_t bytes = wanted->bytes;
    for (size_t i = 0; i < h->models_n; i++) {
        const struct pooled_model *m = h->models[i];
        if (m->state != MODEL_READY && m->state != MODEL_LOADING) continue;
        n++;
        bytes += m->bytes;
    }
    return n < h->loaded_max && (!n || !h->bytes_max || bytes <= h->bytes_max);
}

/* With the lock, which is released meanwhile: closes a READY model without users. */
static void close_idle(struct model_pool *h, struct pooled_model *m)
{
    segue_scheduler *scheduler = m->scheduler;
    m->scheduler = NULL; /* model_pool_stop closes those that are there */
    m->state = MODEL_LOADING; /* others wait until it is IDLE */
    pthread_mutex_unlock(&h->lock);
    segue_scheduler_close(scheduler);
    grammars_empty(&m->grammars);
    meter_close(&m->meter);
    adapter_set_close(&m->adapters);
    placement_close(&m->placement);
    pthread_mutex_lock(&h->lock);
    m->leaving = false;
    m->state = MODEL_IDLE;
    pthread_cond_broadcast(&h->changed);
}

/* With the lock, which is released meanwhile: closes the model that was not used for the longest time, or lets it end its answers
 * first. False: they have to be waited for. */
static bool unload_one(struct model_pool *h)
{
    struct pooled_model *oldest = NULL;
    for (size_t i = 0; i < h->models_n; i++) {
        struct pooled_model *m = h->models[i];
        if (m->state != MODEL_READY || (oldest && oldest->leaving)) continue;
        if (!oldest || m->leaving || m->last_used_ns < oldest->last_used_ns) oldest = m;
    }
    if (!oldest) return false;
    oldest->leaving = true;
    if (oldest->users) return false;
    close_idle(h, oldest);
    return true;
}

static struct pooled_model *find(struct model_pool *h, const char *name, struct serve_error *e)
{
    if (!name || !*name) return h->models[0];
    for (size_t i = 0; i < h->models_n; i++)
        if (!strcmp(h->models[i]->name, name) || !strcmp(h->models[i]->path, name)) return h->models[i];
    /* Clients that cannot be configured send the name of another service's model; with one model there is no doubt. */
    if (h->models_n == 1) return h->models[0];
    serve_fail(e, 404, "model", "the model '%.200s' does not exist here; see /v1/models", name);
    e->code = "model_not_found";
    return NULL;
}

struct pooled_model *model_pool_acquire(struct model_pool *h, const char *name, bool wait, struct serve_error *e)
{
    struct pooled_model *m = find(h, name, e);
    if (!m) return NULL;
    pthread_mutex_lock(&h->lock);
    bool held = false;
    while (!held && !h->stop &&
           (m->state == MODEL_IDLE || m->state == MODEL_LOADING || (m->state == MODEL_READY && m->leaving))) {
        if (!wait) break;
        bool fit = m->state == MODEL_IDLE && fits(h, m);
        if (fit) {
            m->state = MODEL_LOADING;
            m->users++; /* not to leave before it was used */
            held = true;
            pthread_mutex_unlock(&h->lock);
            load(h, m);
            pthread_mutex_lock(&h->lock);
        } else if (m->state != MODEL_IDLE || !unload_one(h))
            pthread_cond_wait(&h->changed, &h->lock);
    }
    if (m->state == MODEL_FAILED)
        serve_fail(e, 503, "model", "the model could not be opened: %s", m->err.text);
    else if (m->state == MODEL_IDLE)
        serve_fail(e, 503, "model", "the model '%.200s' is not loaded; load it by /models/load or by a request for an answer",
                   m->name);
    else if (m->state != MODEL_READY)
        serve_fail(e, 503, NULL, "Loading model");
    bool ready = m->state == MODEL_READY;
    if (ready && !held) m->users++;
    if (!ready && held) m->users--;
    m->last_used_ns = out_now_ns();
    pthread_mutex_unlock(&h->lock);
    return ready ? m : NULL;
}

void model_pool_release(struct model_pool *h, struct pooled_model *m)
{
    pthread_mutex_lock(&h->lock);
    m->users--;
    m->last_used_ns = out_now_ns();
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

bool model_pool_unload(struct model_pool *h, const char *name, struct serve_error *e)
{
    struct pooled_model *m = find(h, name, e);
    if (!m) return false;
    pthread_mutex_lock(&h->lock);
    while (m->state == MODEL_LOADING) pthread_cond_wait(&h->changed, &h->lock);
    bool loaded = m->state == MODEL_READY;
    m->leaving |= loaded;
    /* Another thread may close it first. */
    while (m->state == MODEL_READY && m->leaving && m->users) pthread_cond_wait(&h->changed, &h->lock);
    if (m->state == MODEL_READY && m->leaving) close_idle(h, m);
    pthread_mutex_unlock(&h->lock);
    return loaded || serve_fail(e, 400, "model", "the model '%.200s' is not loaded", name);
}

double model_pool_energy(struct pooled_model *m, bool begins)
{
    if (!m->meter.name) return -1;
    pthread_mutex_lock(&m->energy_lock);
    double now = meter_read(&m->meter);
    if (now >= 0 && m->energy_users) m->share_j += (now - m->energy_j) / (double)m->energy_users;
    if (now >= 0) m->energy_j = now;
    m->energy_users += begins ? 1 : (size_t)-1;
    double share = now >= 0 ? m->share_j : -1;
    pthread_mutex_unlock(&m->energy_lock);
    return share;
}

void pooled_model_count(struct pooled_model *m, const struct model_counts *c)
{
    pthread_mutex_lock(&m->energy_lock);
    m->counts.prompt_tokens += c->prompt_tokens;
    m->counts.cached_tokens += c->cached_tokens;
    m->counts.answer_tokens += c->answer_tokens;
    m->counts.runs += c->runs;
    m->counts.prompt_ns += c->prompt_ns;
    m->counts.answer_ns += c->answer_ns;
    if (c->longest > m->counts.longest) m->counts.longest = c->longest;
    pthread_mutex_unlock(&m->energy_lock);
}

struct model_counts pooled_model_counts(struct pooled_model *m)
{
    pthread_mutex_lock(&m->energy_lock);
    struct model_counts c = m->counts;
    pthread_mutex_unlock(&m->energy_lock);
    return c;
}

enum pooled_state model_pool_health(struct model_pool *h, segue_error *err)
{
    pthread_mutex_lock(&h->lock);
    enum pooled_state state = h->ready ? MODEL_READY : h->models[0]->state == MODEL_FAILED ? MODEL_FAILED : MODEL_LOADING;
    if (err) *err = h->models[0]->err;
    pthread_mutex_unlock(&h->lock);
    return state;
}

void model_pool_stop(struct model_pool *h)
{
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    for (size_t i = 0; i < h->models_n; i++) {
        segue_scheduler_close(h->models[i]->scheduler);
        h->models[i]->scheduler = NULL;
        if (h->models[i]->state == MODEL_READY) h->models[i]->state = MODEL_STOPPED;
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

void model_pool_close(struct model_pool *h)
{
    if (h->loader_started) pthread_join(h->loader, NULL);
    for (size_t i = 0; i < h->models_n; i++) {
        struct pooled_model *m = h->models[i];
        segue_scheduler_close(m->scheduler);
        grammars_close(&m->grammars);
        if (m->state == MODEL_READY || m->state == MODEL_STOPPED) {
            meter_close(&m->meter);
            adapter_set_close(&m->adapters);
            placement_close(&m->placement);
        }
        args_free(&m->args);
        slots_close(&m->slots);
        pthread_mutex_destroy(&m->energy_lock);
        free(m->name), free(m->path), free(m);
    }
    free(h->models);
    free(h->chat_template.data);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
}
