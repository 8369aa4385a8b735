/* cmd_serve.c: `segue serve`: the HTTP server. Reads flags, the configuration file and the keys, listens, opens the first model
 * beside that, and drains on SIGTERM or SIGINT: running answers are finished, a second signal cancels them.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include "run/prompt.h"
#include "serve/listener.h"
#include "routes/routes.h"
#include "term/flags.h"
#include "term/interrupt.h"

enum { KEYS_MAX = 64, NAMES_MAX = 32 };

/* Set a flag of the configuration from a JSON value: true, a number, a text, or a list of texts. */
static segue_status set_value(struct args *args, const char *key, const json_t *v, segue_error *err)
{
    if (json_is_false(v) || json_is_null(v)) return SEGUE_OK;
    if (json_is_true(v)) return args_set(args, key, "", err);
    if (json_is_string(v)) return args_set(args, key, json_string_value(v), err);
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    segue_status st = args_set(args, key, text ? text : "", err);
    free(text);
    return st;
}

/* --config: a JSON object of flag names. What the command line gives is kept. */
static segue_status read_config(struct args *args, segue_error *err)
{
    const char *path = args_text(args, "config"), *key;
    struct out_text text = {0};
    json_error_t why;
    json_t *v, *item;
    size_t i;
    if (!path) return SEGUE_OK;
    segue_status st = prompt_file(path, &text, err);
    if (st) return st;
    json_t *o = json_loadb(text.data ? text.data : "", text.len, 0, &why);
    free(text.data);
    if (!json_is_object(o)) {
        json_decref(o);
        return out_fail(err, SEGUE_EFORMAT, "config: %.200s: line %d: %s; expected a JSON object of flags", path, why.line,
                        o ? "not an object" : why.text);
    }
    json_object_foreach(o, key, v)
    {
        const struct arg_def *def = args_find(args->command, key, strlen(key));
        if (!def) st = out_fail(err, SEGUE_EARG, "config: %.200s: %.60s: no such flag; see segue serve --help", path, key);
        if (def && args_has(args, def->name)) continue;
        if (def && json_is_array(v))
            json_array_foreach(v, i, item) st = st ? st : set_value(args, key, item, err);
        else if (def)
            st = set_value(args, key, v, err);
        if (st) break;
    }
    json_decref(o);
    return st;
}

/* The keys of a text, cut at its separators; empty ones are skipped, and lines that begin with #. */
static segue_status add_keys(struct listener_opts *o, char *text, const char *separators, const char *source, segue_error *err)
{
    size_t before = o->keys_n;
    char *line;
    while (text && (line = strsep(&text, separators))) {
        line[strcspn(line, "\r \t")] = 0;
        if (!*line || (*line == '#' && *separators == '\n')) continue;
        if (o->keys_n == KEYS_MAX) return out_fail(err, SEGUE_ELIMIT, "keys: %.200s: more than %d keys", source, KEYS_MAX);
        o->keys[o->keys_n++] = line;
    }
    return o->keys_n > before ? SEGUE_OK
                              : out_fail(err, SEGUE_EFORMAT, "keys: %.200s: no key; write %s", source,
                                         *separators == '\n' ? "one per line" : "KEY,KEY");
}

/* --api-key-file: one key per line; --api-key: keys with commas between them. The texts are to be freed. */
static segue_status read_keys(const struct args *args, struct listener_opts *o, struct out_text *file, char **listed,
                              segue_error *err)
{
    const char *path = args_text(args, "api-key-file");
    segue_status st = path ? prompt_file(path, file, err) : SEGUE_OK;
    if (!st && path) st = add_keys(o, file->data, "\n", path, err);
    if (st || !args_has(args, "api-key")) return st;
    *listed = out_strdup(args_text(args, "api-key"));
    return add_keys(o, *listed, ",", "--api-key", err);
}

static size_t names(const struct args *args, const char *flag, const char *list[NAMES_MAX])
{
    size_t n = 0;
    while (n < NAMES_MAX && (list[n] = args_nth(args, flag, n))) n++;
    return n;
}

/* Wait for a signal, then until all requests have ended: at most --drain seconds, or until a second signal. */
static void serve_until_signal(struct server *s, struct listener *l)
{
    segue_error err;
    bool reported = false;
    uint64_t limit_ns = (uint64_t)args_number(s->args, "drain", 30) * 1000000000u;
    while (!interrupt_pending()) {
        /* A signal ends poll early. */
        poll(NULL, 0, 200);
        listener_expire(l);
        if (reported || model_pool_health(&s->models, &err) == MODEL_LOADING) continue;
        reported = true;
        if (model_pool_health(&s->models, &err) == MODEL_FAILED)
            out_note("%s", err.text);
        else
            out_note("%s is ready", s->models.models[0]->name);
    }
    interrupt_clear();
    out_note("shutting down: %zu requests in progress", listener_active(l));
    uint64_t end_ns = out_now_ns() + limit_ns;
    while (!interrupt_pending() && out_now_ns() < end_ns && !listener_drain(l, 200000000u)) {}
    model_pool_stop(&s->models);
    if (listener_drain(l, UINT64_C(10000000000))) return;
    /* A client does not read its answer: nothing is left to save, so its thread is not waited for. */
    out_note("%zu clients did not read their answers", listener_active(l));
    _exit(EXIT_DONE);
}

static void tell_address(const struct args *args, const struct listener_opts *o, unsigned port)
{
    char *url = out_printf(strchr(o->host, ':') ? "http://[%s]:%u" : "http://%s:%u", o->host, port);
    segue_error ignored;
    if (args_has(args, "json"))
        out_json(json_pack("{s:s, s:I}", "url", url, "port", (json_int_t)port), 0, &ignored);
    else
        out_note("listening on %s", url);
    free(url);
}

/* --record: opens the file and prints a note that requests are recorded. */
static segue_status open_log(struct record_log *log, struct model_pool *models, const struct args *args, segue_error *err)
{
    const char *path = args_text(args, "record");
    uint64_t mib = (uint64_t)args_number(args, "record-limit", RECORD_BYTES >> 20);
    if (!path) return SEGUE_OK;
    if (args_has(args, "memory"))
        return out_fail(err, SEGUE_EARG,
                        "flag --record: cannot be combined with --memory, which may compute states again; remove one of them");
    models->log = log;
    segue_status st = record_log_open(log, path, mib << 20, err);
    if (!st)
        out_note("recording requests to %s, at most %llu MiB; they run one by one and without the prefix cache", path,
                 (unsigned long long)mib);
    return st;
}

static void close_log(struct record_log *log)
{
    if (log->fd >= 0 && log->path) out_note("recorded %zu answers in %s", log->records, log->path);
    record_log_close(log);
}

static segue_status serve(struct server *s, struct args *args, segue_error *err)
{
    char *keys[KEYS_MAX];
    const char *origins[NAMES_MAX], *hosts[NAMES_MAX];
    struct out_text key_file = {0};
    char *key_list = NULL;
    struct listener *l = NULL;
    struct listener_opts o = {.host = args_text(args, "host") ? args_text(args, "host") : "127.0.0.1",
                              .port = (unsigned)args_number(args, "port", 8080),
                              .body_max = (size_t)args_number(args, "body-limit", 16) << 20,
                              .connections_max = (unsigned)args_number(args, "connections", 1000),
                              .timeout_s = (unsigned)args_number(args, "timeout", 120),
                              .requests_max = (unsigned)args_number(args, "queue", 256),
                              .handle = routes_handle,
                              .quick = routes_quick,
                              .context = s,
                              .keys = keys};
    o.origins = origins;
    o.origins_n = names(args, "allow-origin", origins);
    o.hosts = hosts;
    o.hosts_n = names(args, "allow-host", hosts);
    segue_status st = read_keys(args, &o, &key_file, &key_list, err);
    if (!st && !listener_is_loopback(o.host) && !o.keys_n)
        st = out_fail(err, SEGUE_EARG, "serve: --host %.60s: other machines can reach this address; give --api-key-file", o.host);
    if (!st) st = listener_open(&l, &o, err);
    if (!st) {
        tell_address(args, &o, listener_port(l));
        model_pool_preload(&s->models);
        serve_until_signal(s, l);
        listener_close(l);
    }
    free(key_file.data);
    free(key_list);
    return st;
}

/* An empty template would be none, and each model would use its own. */
static segue_status read_template(struct model_pool *models, const char *path, segue_error *err)
{
    segue_status st = prompt_file(path, &models->chat_template, err);
    if (st || models->chat_template.len) return st;
    return out_fail(err, SEGUE_EARG, "serve: --chat-template-file %.200s: it is empty; leave the flag out for the model's", path);
}

/* Each request has a thread, and glibc would give up to 8 heaps per core to them, each as large as its largest request was. A
 * request has logits, 1 MB with a large vocabulary: freed ones are kept for the next requests, since new memory would
 * be mapped page by page. */
static void share_heaps(void)
{
#ifdef M_ARENA_MAX
    enum { MAPPED_FROM = 4 << 20, KEPT = 64 << 20 };
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, MAPPED_FROM);
    mallopt(M_TRIM_THRESHOLD, KEPT);
#endif
}

static int run(struct args *args)
{
    struct server s = {.args = args, .metrics = false};
    struct record_log log = {0};
    segue_error err;
    segue_status st = read_config(args, &err);
    s.metrics = args_has(args, "metrics");
    s.models.scheduling = (segue_scheduler_opts){.size = sizeof s.models.scheduling,
                                              .running = (size_t)args_number(args, "parallel", 8),
                                              .waiting = (size_t)args_number(args, "queue", 256),
                                              .context = (size_t)args_number(args, "ctx", 0),
                                              .target_ns = (uint64_t)args_number(args, "token-time", 50) * 1000000u,
                                              .warm = 1,
                                              .memory_bytes = (uint64_t)args_number(args, "memory", 0) << 20};
    s.models.bytes_max = (uint64_t)args_number(args, "models-memory", 0) << 20;
    s.models.loaded_max = (size_t)args_number(args, "models-max", 2);
    pthread_mutex_init(&s.kept_lock, NULL);
    prompt_records_open(&s.records);
    share_heaps();
    interrupt_defer(true);
    if (!st) st = open_log(&log, &s.models, args, &err);
    if (!st && args_has(args, "chat-template-file"))
        st = read_template(&s.models, args_text(args, "chat-template-file"), &err);
    if (!st) st = model_pool_open(&s.models, args, &err);
    if (!st) st = serve(&s, args, &err);
    model_pool_close(&s.models);
    close_log(&log);
    responses_free(&s);
    prompt_records_close(&s.records);
    pthread_mutex_destroy(&s.kept_lock);
    return st ? out_error(&err, EXIT_UNAVAILABLE) : EXIT_DONE;
}

static const struct arg_def server_defs[] =
    {{"model", 'm', ARG_FILE, ARG_REPEATABLE, "FILE|FOLDER|NAME", "$SEGUE_MODEL, or SmolLM2-135M-Instruct", 0, 0,
      "model to serve; may be repeated, or a folder of models: the first is loaded at once, others when a request names them"},
     {"host", 0, ARG_TEXT, 0, "ADDRESS", "127.0.0.1", 0, 0, "address to listen on; other than loopback needs an API key"},
     {"port", 0, ARG_COUNT, 0, "N", "8080", 0, 65535, "port to listen on; 0: any free one"},
     {"ctx", 'c', ARG_COUNT, 0, "N", "the model's limit, at most 4096", 1, 2147483647.0,
      "tokens of one request, prompt and answer together"},
     {"parallel", 0, ARG_COUNT, 0, "N", "8", 1, 4096, "requests that run at once; others wait"},
     {"plan-prompt", 0, ARG_COUNT, ARG_ADVANCED, "N", "a quarter of --ctx", 1, 2147483647.0,
      "tokens of a usual prompt, for the plan that is followed without a named unit"},
     {"plan-answer", 0, ARG_COUNT, ARG_ADVANCED, "N", "an eighth of --ctx", 1, 2147483647.0, "tokens of a usual answer"},
     {"api-key-file", 0, ARG_FILE, 0, "FILE", NULL, 0, 0,
      "file with one accepted API key per line; each key has its own prefix cache"},
     {"api-key", 0, ARG_TEXT, ARG_ADVANCED, "KEY,...", NULL, 0, 0,
      "accepted API keys; other users of the machine can see them, so prefer --api-key-file"},
     {"slot-save-path", 0, ARG_FILE, 0, "FOLDER", NULL, 0, 0, "let clients save and restore the states of slots in this folder"},
     {"config", 0, ARG_FILE, 0, "FILE", NULL, 0, 0, "JSON object of further flags; the command line has precedence"},
     {"alias", 0, ARG_TEXT, 0, "NAME", "its file name", 0, 0, "name of the first model in requests and answers"},
     {"temp", 0, ARG_REAL, ARG_ADVANCED, "X", "the model's, or 0.8", 0, 1000, "temperature of requests that give none"},
     {"seed", 0, ARG_COUNT, ARG_ADVANCED, "N", "random", 0, 9007199254740991.0, "seed of requests that give none"},
     {"predict", 'n', ARG_COUNT, ARG_ADVANCED, "N", "no limit", 1, 2147483647.0,
      "tokens of answers to requests that give no limit"},
     {"pooling", 0, ARG_CHOICE, ARG_ADVANCED, "last|mean|cls", "last", 0, 0, "pooling of embeddings for requests that give none"},
     {"chat-template-file", 0, ARG_FILE, ARG_ADVANCED, "FILE", "the model's", 0, 0, "Jinja template of chats, for all models"},
     {"reasoning", 0, ARG_CHOICE, ARG_ADVANCED, "on|off|auto", "auto", 0, 0,
      "reasoning of chats that do not say: the variable enable_thinking of the template"},
     {"reasoning-format", 0, ARG_CHOICE, ARG_ADVANCED, "auto|deepseek|none", "auto", 0, 0,
      "none: reasoning is part of the content, with its marks; else it is returned apart"},
     {"reasoning-budget", 0, ARG_REAL, ARG_ADVANCED, "N", "-1", -1, 2147483647.0,
      "tokens of reasoning of requests that give no budget; -1: no bound"},
     {"verbose", 'v', ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
      "add the prompt and the settings to every answer, as __verbose"},
     {"spm-infill", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "at /infill, put the suffix before the prefix"},
     {"no-slots", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0, "do not show the slots at /slots"},
     {"metrics", 0, ARG_SWITCH, 0, NULL, NULL, 0, 0, "serve counters for Prometheus at /metrics"},
     {"meter", 0, ARG_TEXT, ARG_ADVANCED, "nvml|none", "none", 0, 0,
      "measure the energy of the GPUs and divide it among requests"},
     {"record", 0, ARG_FILE, ARG_ADVANCED, "FILE", NULL, 0, 0,
      "append a record of each answer for segue replay; answers run one by one, without the prefix cache"},
     {"record-limit", 0, ARG_COUNT, ARG_ADVANCED, "MB", "1024", 1, RECORD_BYTES >> 20,
      "size of the file of --record; later answers are not recorded"},
     {"memory", 0, ARG_COUNT, ARG_ADVANCED, "MB", "no limit", 1, 1 << 30,
      "memory for the states of all requests and the prefix cache"},
     {"store", 0, ARG_CHOICE, ARG_ADVANCED, "memory|on|off", "memory", 0, 0,
      "prefix cache: in memory, also in the cache folder (it outlives the server), or none"},
     {"store-memory", 0, ARG_COUNT, ARG_ADVANCED, "MB", "512", 1, 1 << 30, "memory limit of the prefix cache in MB"},
     {"store-disk", 0, ARG_COUNT, ARG_ADVANCED, "MB", "4096", 1, 1 << 30,
      "disk limit of the prefix cache in MB, for all models together"},
     {"deterministic", 0, ARG_SWITCH, ARG_ADVANCED, NULL, NULL, 0, 0,
      "answers depend on the request alone, not on what else is computed; slower"},
     {"token-time", 0, ARG_COUNT, ARG_ADVANCED, "MS", "50", 1, 100000,
      "time between two tokens of an answer to aim at while prompts are computed"},
     {"queue", 0, ARG_COUNT, ARG_ADVANCED, "N", "256", 1, 100000, "requests in progress or waiting; more are answered with 503"},
     {"models-max", 0, ARG_COUNT, ARG_ADVANCED, "N", "2", 1, 256,
      "models that are loaded at once; the least recently used one is unloaded"},
     {"models-memory", 0, ARG_COUNT, ARG_ADVANCED, "MB", "no limit", 1, 1 << 30,
      "memory for the weights of all loaded models; the least recently used one is unloaded when its answers have ended"},
     {"body-limit", 0, ARG_COUNT, ARG_ADVANCED, "MB", "16", 1, 1024, "largest body of a request"},
     {"connections", 0, ARG_COUNT, ARG_ADVANCED, "N", "1000", 1, 100000, "connections at once"},
     {"timeout", 0, ARG_COUNT, ARG_ADVANCED, "S", "120", 1, 86400,
      "close a connection on which nothing moves for S seconds, or that takes longer to send a request"},
     {"drain", 0, ARG_COUNT, ARG_ADVANCED, "S", "30", 0, 86400, "on SIGTERM, wait S seconds for running answers"},
     {"allow-origin", 0, ARG_TEXT, ARG_REPEATABLE | ARG_ADVANCED, "URL", NULL, 0, 0,
      "web site whose pages may use the server; * allows all; may be repeated"},
     {"allow-host", 0, ARG_TEXT, ARG_REPEATABLE | ARG_ADVANCED, "NAME", NULL, 0, 0,
      "further name of this server in the header Host; may be repeated"},
     ARG_END};
static const struct arg_group server_flags = {"Server", server_defs};
static const struct arg_group *const groups[] = {&server_flags, &flags_units, &flags_engine, &flags_output, NULL};

/* Flags of llama-server with the same meaning, and switches of it for what is always so here. */
static const char *const llama_flags[] = {
    "ctx-size",   "ctx", "n-predict",  "predict", "np",             "parallel", "temperature", "temp", "jinja",    "",
    "embedding",  "",    "embeddings", "",        "rerank",         "",         "reranking",   "",     "slots",    "",
    "cont-batching", "", "kv-unified", "",        "offline",        "",         "no-ui",       "",     "no-webui", "", NULL};

const struct command cmd_serve = {
    .name = "serve",
    .summary = "serve models over HTTP: the APIs of OpenAI and Anthropic",
    .example = "segue serve -m model.gguf --port 8080",
    .about =
        "Listens at once and loads the first model beside that; GET /health is 503 until it is ready. Requests of all clients "
        "share the runs of the model. SIGTERM stops accepting requests and ends after the running ones; a second signal cancels "
        "them. docs/SERVER.md describes the paths and their fields.",
    .groups = groups,
    .aliases = llama_flags,
    .run = run,
};
