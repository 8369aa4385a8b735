/* route_states.c: states of conversations as files: POST /slots/{id}?action=save|restore|erase in the folder of --slot-save-
 * path, and POST /v1/states/export, /v1/states/import over HTTP, for servers with keys. A restored state is in the prefix
 * store of its key. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "host/folders.h"

/* With the adapters of the moment. path NULL: a new session; else one from this file. */
static segue_status open_session(const struct exchange *x, struct pooled_model *m, const char *path, segue_session **out,
                                 segue_error *err)
{
    struct adapters_taken adapters;
    segue_status st = adapter_set_take(&m->adapters, NULL, 0, &adapters, err);
    const segue_session_opts o = {.size = sizeof o,
                                  .context = m->context,
                                  .plan = placement_plan(&m->placement),
                                  .adapters = adapters.list,
                                  .adapters_n = adapters.n,
                                  .realm = x->realm};
    if (!st) st = path ? segue_session_load(out, m->placement.engine, &o, path, err)
                       : segue_session_open(out, m->placement.engine, &o, err);
    adapter_set_release(&m->adapters, &adapters);
    return st;
}

/* Compute the tokens, most of which the prefix store has, and write their state. */
static bool save(const struct exchange *x, struct pooled_model *m, const int32_t *tokens, size_t n, const char *path,
                 struct serve_error *e)
{
    segue_session *session = NULL;
    segue_error err = {0};
    segue_status st = open_session(x, m, NULL, &session, &err);
    if (!st) st = segue_session_append(session, tokens, n, &err);
    if (!st) st = segue_session_prefill(session, 0, NULL, &err);
    if (!st) st = segue_session_save(session, path, &err);
    segue_session_close(session);
    return !st || serve_fail_of(e, &err);
}

/* Read a state into the prefix store. NULL: e has the reason; else its tokens. */
static int32_t *restore(const struct exchange *x, struct pooled_model *m, const char *path, size_t *n, struct serve_error *e)
{
    segue_session *session = NULL;
    segue_error err = {0};
    const int32_t *tokens;
    segue_status st = open_session(x, m, path, &session, &err);
    if (st) {
        serve_fail_of(e, &err);
        if (st == SEGUE_EIO) e->status = 404;
        return NULL;
    }
    *n = segue_session_tokens(session, &tokens);
    int32_t *copy = out_alloc((*n + 1) * sizeof *copy);
    if (*n) memcpy(copy, tokens, *n * sizeof *copy);
    segue_session_close(session); /* into the store */
    return copy;
}

static json_int_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (json_int_t)st.st_size;
}

/* --- slots --- */

/* The file in the folder of --slot-save-path; a name is letters, digits, '-', '_' and '.', and does not begin with '.'. */
static char *slot_file(const struct server *s, struct fields f)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    const char *folder = args_text(s->args, "slot-save-path"), *name = field_text(f, "filename", NULL);
    size_t n = name ? strlen(name) : 0;
    if (!folder) serve_fail(f.e, 501, NULL, "slots cannot be saved here; start the server with --slot-save-path FOLDER");
    if (!n || n > 128 || name[0] == '.' || strspn(name, allowed) != n)
        serve_fail(f.e, 400, "filename", "filename: expected 1 to 128 letters, digits, '-', '_' or '.'");
    return f.e->status ? NULL : out_printf("%s/%s", folder, name);
}

static bool save_slot(struct server *s, struct exchange *x, size_t id, struct pooled_model *m, json_t *body,
                      struct serve_error *e)
{
    size_t n;
    uint64_t begin_ns = out_now_ns();
    char *path = slot_file(s, (struct fields){body, e});
    int32_t *tokens = path ? slots_tokens(&m->slots, id, x->realm, &n) : NULL;
    if (path && !tokens) serve_fail(e, 404, NULL, "slot %zu: it has no state of this key; send a request first", id);
    bool ok = tokens && save(x, m, tokens, n, path, e);
    if (ok)
        exchange_json(x, 200,
                      json_pack("{s:I, s:O, s:I, s:I, s:{s:f}}", "id_slot", (json_int_t)id, "filename",
                                json_object_get(body, "filename"), "n_saved", (json_int_t)n, "n_written", size_of(path),
                                "timings", "save_ms", (double)(out_now_ns() - begin_ns) / 1e6));
    free(tokens), free(path);
    return ok;
}

static bool restore_slot(struct server *s, struct exchange *x, size_t id, struct pooled_model *m, json_t *body,
                         struct serve_error *e)
{
    size_t n;
    uint64_t begin_ns = out_now_ns();
    char *path = slot_file(s, (struct fields){body, e});
    int32_t *tokens = path ? restore(x, m, path, &n, e) : NULL;
    bool ok = tokens && (slots_set(&m->slots, id, x->realm, tokens, n) || serve_fail(e, 503, NULL, "slot %zu: it is in use", id));
    if (ok)
        exchange_json(x, 200,
                      json_pack("{s:I, s:O, s:I, s:I, s:{s:f}}", "id_slot", (json_int_t)id, "filename",
                                json_object_get(body, "filename"), "n_restored", (json_int_t)n, "n_read", size_of(path),
                                "timings", "restore_ms", (double)(out_now_ns() - begin_ns) / 1e6));
    free(tokens), free(path);
    return ok;
}

static bool erase_slot(struct exchange *x, size_t id, struct pooled_model *m, struct serve_error *e)
{
    size_t n;
    free(slots_tokens(&m->slots, id, x->realm, &n));
    if (!slots_set(&m->slots, id, x->realm, NULL, 0)) return serve_fail(e, 503, NULL, "slot %zu: it is in use", id);
    exchange_json(x, 200, json_pack("{s:I, s:I}", "id_slot", (json_int_t)id, "n_erased", (json_int_t)n));
    return true;
}

static bool slot_action(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    const char *number = x->path + strlen("/slots/"), *action = x->query ? x->query : "";
    char *end;
    unsigned long id = strtoul(number, &end, 10);
    struct pooled_model *m = model_pool_acquire(&s->models, field_text((struct fields){body, e}, "model", NULL), true, e);
    if (!m) return false;
    bool ok = false;
    if (!*number || *end || *number == '-' || *number == '+' || id >= m->slots.n)
        serve_fail(e, 404, NULL, "no such slot; there are %zu, from 0", m->slots.n);
    else if (!strcmp(action, "save"))
        ok = save_slot(s, x, id, m, body, e);
    else if (!strcmp(action, "restore"))
        ok = restore_slot(s, x, id, m, body, e);
    else if (!strcmp(action, "erase"))
        ok = erase_slot(x, id, m, e);
    else
        serve_fail(e, 400, "action", "action: expected save, restore or erase");
    model_pool_release(&s->models, m);
    return ok;
}

/* --- files over HTTP --- */

/* A path for one request in the cache folder. NULL: e has the reason. */
static char *passing_file(struct server *s, const struct exchange *x, struct serve_error *e)
{
    segue_error err = {0};
    char id[40], *folder = folders_path("cache", "serve"), *path = NULL;
    chat_job_id(id, sizeof id, "");
    (void)s;
    if (!x->realm[0])
        serve_fail(e, 403, NULL, "states are given to clients with a key only; start the server with --api-key-file");
    else if (folders_make(folder, &err) || folders_check_owner(folder, &err))
        serve_fail_of(e, &err);
    else
        path = out_printf("%s/%s.state", folder, id);
    free(folder);
    return path;
}

/* Send a file, part by part. */
static void send_file(struct exchange *x, FILE *file)
{
    char part[65536];
    size_t n;
    exchange_stream(x, "application/octet-stream");
    while ((n = fread(part, 1, sizeof part, file)) > 0 && exchange_write(x, part, n)) {}
    exchange_end(x, false);
}

static bool export_state(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct chat_job c = {0};
    struct fields f = {body, e};
    const char *prompt = field_text(f, "prompt", NULL);
    char *path = passing_file(s, x, e);
    bool ok = path && !e->status;
    if (ok && prompt) {
        ok = (c.model = model_pool_acquire(&s->models, field_text(f, "model", NULL), true, e)) != NULL;
        c.models = &s->models;
        if (ok) c.tokens = generate_tokenize(c.model, prompt, strlen(prompt), 0, &c.tokens_n, e);
        ok = c.tokens != NULL;
    } else if (ok)
        ok = chat_job_open(&c, x, &s->models, body, e);
    if (ok && !c.tokens_n) ok = serve_fail(e, 400, "prompt", "prompt: it is empty; send at least one token");
    ok = ok && save(x, c.model, c.tokens, c.tokens_n, path, e);
    FILE *file = ok ? fopen(path, "rb") : NULL;
    if (ok && !file) ok = serve_fail(e, 500, NULL, "the state could not be read back");
    if (path) unlink(path);
    if (ok) send_file(x, file);
    if (file) fclose(file);
    chat_job_free(&c);
    free(path);
    return ok;
}

void route_state_import(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    size_t n = 0;
    char *path = passing_file(s, x, &e);
    struct pooled_model *m = path ? model_pool_acquire(&s->models, x->query, true, &e) : NULL;
    FILE *file = m ? fopen(path, "wb") : NULL;
    bool written = file && fwrite(x->body.data ? x->body.data : "", 1, x->body.len, file) == x->body.len;
    if (file) written = !fclose(file) && written;
    if (m && !written) serve_fail(&e, 500, NULL, "the state could not be written to the cache folder");
    int32_t *tokens = written ? restore(x, m, path, &n, &e) : NULL;
    if (path) unlink(path);
    if (tokens)
        exchange_json(x, 200,
                      json_pack("{s:s, s:I, s:I}", "model", m->name, "tokens", (json_int_t)n, "bytes", (json_int_t)x->body.len));
    else
        exchange_fail(x, &e);
    if (m) model_pool_release(&s->models, m);
    free(tokens), free(path);
}

void route_state_export(struct server *s, struct exchange *x) { route_with_body(s, x, export_state); }
void route_slot(struct server *s, struct exchange *x) { route_with_body(s, x, slot_action); }
