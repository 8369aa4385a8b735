/* cmd_state.c: `segue state`: list, inspect, remove, verify and convert saved states. Includes internal headers
 * of the library, because state files are read without a session (exception in tests/api/layers.sh).
 * Exit 4 for a damaged file or the state of another model, 6 if verify finds a difference.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/statefile/statefile.h"
#include "engine/state_session.h"
#include "term/flags.h"
#include "host/folders.h"
#include "run/placement.h"
#include "run/sessions.h"

/* Path of a state: an existing file, otherwise the file of the session of that name, otherwise the
 * name itself, for the error message. Allocated. */
static char *resolve_path(const char *name)
{
    /* A file in the current folder takes precedence over a session of that name. */
    if (folders_is_file(name) || !folders_plain_name(name)) return out_strdup(name);
    char *path = sessions_file(name, "state");
    if (folders_is_file(path)) return path;
    free(path);
    return out_strdup(name);
}

/* A 128-bit hash as 32 hexadecimal digits. */
static json_t *hash_json(struct sg_hash sum)
{
    char hex[33];
    sg_hash_hex(sum, hex);
    return json_string(hex);
}

/* Data type of the K and V slots; f32 for a state without any, as in a recurrent model. */
static const char *kv_storage(const struct sg_statefile *f)
{
    for (uint32_t i = 0; i < f->head.slots_n; i++)
        if (f->slots[i].slot.kind <= SG_SLOT_V) return sg_storage_info(f->slots[i].storage)->name;
    return "f32";
}

/* One slot as JSON. The name is KIND.LAYER, with @POSITION for the slot of a checkpoint. Shape:
 * [positions, heads, width] for K and V, [heads, depth, width] for DELTA, [heads, width] for CONV. */
static json_t *slot_json(const struct sg_statefile *f, const struct sg_state_slot *s)
{
    const struct sg_slot *d = &s->slot;
    bool is_kv = d->kind <= SG_SLOT_V; /* K and V have one row per position; recurrent slots have none */
    json_t *o = json_object(), *shape = json_array();
    char *name = s->checkpoint ? out_printf("%s.%u@%llu", sg_state_kind(d->kind), d->layer,
                                       (unsigned long long)f->checkpoints[s->checkpoint - 1].rows)
                          : out_printf("%s.%u", sg_state_kind(d->kind), d->layer);
    json_object_set_new(o, "name", json_string(name));
    free(name);
    json_object_set_new(o, "layer", json_integer((int32_t)d->layer)); /* -1: a parameter in no layer */
    json_object_set_new(o, "kind", json_string(sg_state_kind(d->kind)));
    json_object_set_new(o, "storage", json_string(sg_storage_info(s->storage)->name));
    if (is_kv) json_array_append_new(shape, json_integer((json_int_t)(s->end - s->first)));
    json_array_append_new(shape, json_integer(d->heads));
    if (d->kind == SG_SLOT_DELTA) json_array_append_new(shape, json_integer(d->depth));
    json_array_append_new(shape, json_integer(d->width));
    json_object_set_new(o, "shape", shape);
    if (d->kind < SG_SLOT_VALUE) {
        json_object_set_new(o, "first_pos", json_integer((json_int_t)s->first));
        json_object_set_new(o, "end_pos", json_integer((json_int_t)s->end));
    } else
        json_object_set_new(o, "parameter", json_integer(d->depth));
    json_object_set_new(o, "offset", json_integer((json_int_t)s->at));
    json_object_set_new(o, "bytes", json_integer((json_int_t)s->bytes));
    json_object_set_new(o, "checksum", hash_json(s->sum));
    return o;
}

/* The header of a state file as JSON, without slots. `tokens` are all tokens of the file;
 * `computed_tokens` are those whose state the slots hold. */
static json_t *head_json(const struct sg_statefile *f)
{
    const struct sg_state_head *h = &f->head;
    json_t *o = json_object();
    char text[48];
    snprintf(text, sizeof text, "segue-state-%u", h->version);
    json_object_set_new(o, "format", json_string(text));
    json_object_set_new(o, "shape_id", json_stringn(h->shape_id, 32));
    json_object_set_new(o, "weights_id", json_stringn(h->weights_id, 32));
    /* Two model files computed this state, for example with different data types. */
    if (h->joined[1].lo) {
        json_t *pair = json_array();
        for (int i = 0; i < 2; i++) json_array_append_new(pair, hash_json(h->joined[i]));
        json_object_set_new(o, "joined_weights_ids", pair);
    }
    if (h->run.lo || h->run.hi) { /* of a trainer */
        json_object_set_new(o, "run", hash_json(h->run));
        json_object_set_new(o, "updates", json_integer((json_int_t)h->rows));
    } else {
        json_object_set_new(o, "adapters", hash_json(h->adapters));
        json_object_set_new(o, "token_hash", hash_json(h->tokens_sum));
        json_object_set_new(o, "tokens", json_integer((json_int_t)h->tokens_n));
        json_object_set_new(o, "computed_tokens", json_integer((json_int_t)h->rows));
    }
    json_object_set_new(o, "storage", json_string(kv_storage(f)));
    /* Version of the canonical layout, see docs/STATE.md. */
    snprintf(text, sizeof text, "canonical-%u", h->layout);
    json_object_set_new(o, "layout", json_string(text));
    json_object_set_new(o, "unit", out_string(h->unit, strlen(h->unit)));
    json_object_set_new(o, "kernels", out_string(h->kernels, strlen(h->kernels)));
    snprintf(text, sizeof text, "%u.%u.%u", h->library >> 16, h->library >> 8 & 255, h->library & 255);
    json_object_set_new(o, "version", json_string(text));
    json_object_set_new(o, "bytes", json_integer((json_int_t)h->file_bytes));
    return o;
}

/* Print the header; with --json also the checkpoints and the slots. */
static int print_info(const struct args *args, const struct sg_statefile *f)
{
    json_t *o = head_json(f), *slots = json_array(), *points = json_array();
    for (uint32_t i = 0; i < f->head.slots_n; i++) json_array_append_new(slots, slot_json(f, &f->slots[i]));
    for (uint32_t i = 0; i < f->head.checkpoints_n; i++)
        json_array_append_new(points, json_integer((json_int_t)f->checkpoints[i].rows));
    json_object_set_new(o, "checkpoints", points);
    json_object_set_new(o, "slots", slots);
    if (args_has(args, "json")) return out_json_exit(o);
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v) if (json_is_string(v)) out_print("%-15s %s\n", key, json_string_value(v));
    else if (json_is_integer(v)) out_print("%-15s %lld\n", key, (long long)json_integer_value(v));
    for (uint32_t i = 0; i < f->head.checkpoints_n; i++)
        out_print("%-15s %llu\n", "checkpoint", (unsigned long long)f->checkpoints[i].rows);
    json_decref(o);
    return EXIT_DONE;
}

/* List the named sessions with the header of each state, and the size of the prefix store. Reads
 * headers only. */
static int list_states(const struct args *args)
{
    char *folder = folders_path("data", "sessions"), **names = NULL,
         *store = folders_path("cache", "prefixes");
    size_t n = 0, files = 0;
    uint64_t bytes = 0;
    segue_error err;
    json_t *o = json_object(), *states = json_array();
    if (folders_is_folder(folder) && sg_folder_list(folder, ".state", 1 << 20, &names, &n, &err))
        return out_error(&err, EXIT_UNAVAILABLE);
    /* An unreadable file is listed with its error and does not fail the command. */
    for (size_t i = 0; i < n; i++) {
        struct sg_statefile f;
        char *path = out_printf("%s/%s", folder, names[i]);
        segue_status st = sg_statefile_open(&f, path, 0, &err);
        json_t *s = st ? json_object() : head_json(&f);
        /* Without the ending ".state". */
        json_object_set_new(s, "name", out_string(names[i], strlen(names[i]) - 6));
        if (st) json_object_set_new(s, "error", out_string(err.text, strlen(err.text)));
        if (!st) sg_statefile_close(&f);
        json_array_append_new(states, s);
        if (!args_has(args, "json") && st)
            out_print("%-32.*s unreadable: %s\n", (int)strlen(names[i]) - 6, names[i], err.text);
        else if (!args_has(args, "json"))
            out_print("%-32.*s %8lld tokens %9.1f MB  %s\n", (int)strlen(names[i]) - 6, names[i],
                   (long long)json_integer_value(json_object_get(s, "tokens")),
                   json_number_value(json_object_get(s, "bytes")) / 1e6,
                   json_string_value(json_object_get(s, "unit")));
        free(path);
        sg_free(names[i]);
    }
    sg_free(names);
    folders_usage(store, &bytes, &files);
    json_object_set_new(o, "folder", out_string(folder, strlen(folder)));
    json_object_set_new(o, "states", states);
    json_object_set_new(o, "store", out_string(store, strlen(store)));
    json_object_set_new(o, "store_files", json_integer((json_int_t)files));
    json_object_set_new(o, "store_bytes", json_integer((json_int_t)bytes));
    if (!args_has(args, "json"))
        out_print("%zu states in %s; prefix store: %zu files, %.1f MB\n", n, folder, files, (double)bytes / 1e6);
    free(folder);
    free(store);
    if (args_has(args, "json")) return out_json_exit(o);
    json_decref(o);
    return EXIT_DONE;
}

/* Remove a state file. For a named session the conversation is removed too; other files must start with the magic of
 * a state. */
static int remove_state(const struct args *args, const char *name)
{
    segue_error err;
    char *path = resolve_path(name), *session_path = folders_plain_name(name) ? sessions_file(name, "state") : NULL;
    /* The magic protects other files from a mistyped name. A damaged state of a named session may be
     * removed anyway. */
    char magic[12] = "";
    FILE *file = fopen(path, "rb");
    bool is_state = file && fread(magic, 1, 11, file) == 11 && !memcmp(magic, "segue\x1astate", 11);
    segue_status st = SEGUE_OK;
    if (!file)
        st = out_fail_errno(&err, "state rm", path, "see segue state list");
    else
        fclose(file);
    if (!st && !is_state && !(session_path && !strcmp(session_path, path)))
        st = out_fail(&err, SEGUE_EFORMAT, "state rm: %.300s: not a state file; delete it with rm",
                      path);
    if (!st && unlink(path)) st = out_fail_errno(&err, "state rm", path, NULL);
    if (!st && session_path && !strcmp(session_path, path)) {
        /* The conversation of chat is stored next to the state. It may be missing. */
        char *conversation = sessions_file(name, "json");
        unlink(conversation);
        free(conversation);
    }
    int code = st ? out_error(&err, EXIT_BAD_INPUT) : EXIT_DONE;
    json_t *o = json_object();
    json_object_set_new(o, "removed", out_string(path, strlen(path)));
    free(path);
    free(session_path);
    if (!code && args_has(args, "json")) return out_json_exit(o);
    json_decref(o);
    return code;
}

/* Print the result of verify. The exit code is EXIT_CHECK if a slot differs, and the largest error
 * is reported on stderr, too. */
static int print_verdict(const struct args *args, const struct sg_statefile *f, const struct sg_verdict *v,
               const char *unit)
{
    segue_error err;
    int code = EXIT_DONE;
    if (args_has(args, "json")) {
        json_t *o =
            json_pack("{s:I,s:i,s:i,s:s,s:b,s:s}", "tokens", (json_int_t)f->head.rows, "slots", (int)v->slots,
                      "slots_failed", (int)v->bad, "max_error_slot", v->name, "ok", v->bad == 0, "unit", unit);
        json_object_set_new(o, "max_error", out_real(v->worst));
        json_object_set_new(o, "bound", out_real(v->bound));
        code = out_json_exit(o);
    } else
        out_print("%s: %u of %u slots differ; largest relative error in %s: %.2g (bound %.2g); recomputed on "
               "%s\n",
               f->path, v->bad, v->slots, v->name, v->worst, v->bound, unit);
    /* A failed check prints its result first and then the error line. */
    if (!v->bad || code) return code;
    out_json_errors(false);
    out_fail(&err, SEGUE_EFORMAT,
             "state verify: %.200s: slot %s differs, relative error %.2g; recompute the state from its tokens", f->path,
             v->name, v->worst);
    out_error(&err, EXIT_BAD_INPUT);
    return EXIT_CHECK;
}

/* Recompute the tokens of the file with the model of -m, on the unit of the flags, and compare all
 * slots. */
static int verify_state(const struct args *args, const struct sg_statefile *f)
{
    struct placement p = {0};
    struct sg_verdict v;
    segue_error err;
    segue_session_opts opts = SEGUE_INIT(segue_session_opts);
    int code = placement_open(&p, args, 0);
    if (code) return code;
    /* The same options as for a run, because the plan and the adapters change the numbers. */
    opts.plan = placement_plan(&p);
    opts.adapters = p.adapters;
    opts.adapters_n = p.adapters_n;
    segue_status st = sg_statefile_verify(f, p.engine, &opts, &v, &err);
    code = st ? out_error(&err, EXIT_BAD_INPUT) : print_verdict(args, f, &v, p.unit_info[0].spec);
    placement_close(&p);
    return code;
}

/* Write the state to --output: as safetensors if the name ends so, else as a state file with the KV
 * type of --kv. */
static int convert_state(const struct args *args, const struct sg_statefile *f)
{
    segue_error err;
    const char *out = args_text(args, "output"), *kv = args_text(args, "kv");
    size_t n = out ? strlen(out) : 0;
    /* The ending of OUT selects the format. */
    bool tensors = n > 12 && !strcmp(out + n - 12, ".safetensors");
    segue_status st = SEGUE_OK;
    enum sg_storage storage = SG_F32;
    /* The flag says q8, the data type is named q8_0. */
    for (enum sg_storage s = SG_F32; kv && s < SG_STORAGE_N; s++)
        if (!strcmp(sg_storage_info(s)->name, !strcmp(kv, "q8") ? "q8_0" : kv)) storage = s;
    if (!out)
        st = out_fail(&err, SEGUE_EARG, "state convert: output file missing; give -o OUT.state or -o OUT.safetensors");
    if (!st && !tensors && !kv)
        st = out_fail(&err, SEGUE_EARG,
                      "state convert: data type missing; give --kv f32|f16|bf16|q8, or -o OUT.safetensors");
    if (!st) st = tensors ? sg_statefile_tensors(f, out, &err) : sg_statefile_convert(f, storage, out, &err);
    if (st) return out_error(&err, EXIT_BAD_INPUT);
    if (!args_has(args, "json")) return EXIT_DONE;
    return out_json_exit(
        json_pack("{s:s,s:s}", "path", out, "storage", tensors ? "f32" : sg_storage_info(storage)->name));
}

/* Open the state and run info, verify or convert. */
static int run_on_file(const struct args *args, const char *verb, const char *name)
{
    struct sg_statefile f;
    segue_error err;
    char *path = resolve_path(name);
    int code;
    if (sg_statefile_open(&f, path, strcmp(verb, "info") ? 0 : SG_STATE_TRAINER, &err))
        code = out_error(&err, EXIT_BAD_INPUT);
    else {
        code = !strcmp(verb, "info")     ? print_info(args, &f)
               : !strcmp(verb, "verify") ? verify_state(args, &f)
                                         : convert_state(args, &f);
        sg_statefile_close(&f);
    }
    free(path);
    return code;
}

/* Without operands the command lists the states. */
static int run(struct args *args)
{
    segue_error err;
    const char *verb = args->operands_n ? args->operands[0] : "list";
    const char *verbs[] = {"list", "rm", "info", "verify", "convert"};
    /* Index of the verb; 0 is list, which takes no file. */
    size_t known = 0;
    while (known < 5 && strcmp(verb, verbs[known]) != 0) known++;
    if (known == 5 || args->operands_n != (known ? 2u : args->operands_n ? 1u : 0u)) {
        out_fail(&err, SEGUE_EARG, "state: \"%.60s\": wrong arguments; expected list, or rm, info, verify or convert with a FILE",
                 verb);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    if (known == 0) return list_states(args);
    if (known == 1) return remove_state(args, args->operands[1]);
    return run_on_file(args, verb, args->operands[1]);
}

/* Flags of state only. */
static const struct arg_def flag_defs[] = {
    {"output", 'o', ARG_FILE, 0, "OUT", NULL, 0, 0,
     "convert: OUT.state, or OUT.safetensors with the tensor names of eval --dump"},
    ARG_END};
static const struct arg_group command_flags = {"State", flag_defs};
static const struct arg_group *const groups[] = {&command_flags,          &flags_model,  &flags_units,
                                                 &flags_engine, &flags_output, NULL};
const struct command cmd_state = {.name = "state",
                                  .summary = "list, remove, inspect, verify and convert saved states",
                                  .operands = "[list|rm FILE|info FILE|verify FILE|convert FILE]",
                                  .operands_max = 2,
                                  .groups = groups,
                                  .example = "segue state list",
                                  .run = run,
                                  .about = "FILE is a state file, or the name of a session (--session NAME). info "
                                           "prints the ids of the model, the number of tokens, the slots with their "
                                           "data types and checksums, and the unit that computed the state. verify "
                                           "recomputes the tokens with the model of -m and compares every slot; exit "
                                           "6 if a slot differs by more than the bound. convert writes the state "
                                           "with another data type of the KV cache (--kv), or as safetensors. "
                                           "A damaged file, or one of another model, is rejected with exit 4. rm "
                                           "removes a state; for a session it removes the conversation too."};
