/* cmd_models.c: `segue models [list|rm NAME]`: list or remove models in the models folder. Nothing outside of it is
 * removed. Includes internal headers of the library, because opening every model with its tokenizer would take seconds
 * (exception in tests/api/layers.sh).
 * The folder is models/ in the data folder; an entry is a file, a folder or a symbolic link.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "term/flags.h"
#include "host/folders.h"
#include "host/model_names.h"
#include "tensor/archive.h"
#include "tensor/json.h"

/* Set family and storage: general.architecture of a GGUF file or model_type of config.json, and the data type with the most
 * bytes. Null with a reason if the file cannot be read. */
static void put_kind(json_t *o, const char *path)
{
    struct sg_archive *a = NULL;
    segue_error err = {0};
    const char *family = NULL, *reason = "the file has no architecture";
    size_t len = 0;
    json_t *config = NULL;
    uint64_t bytes[SG_STORAGE_N] = {0}, largest = 0;
    enum sg_storage main = SG_STORAGE_N;
    if (sg_archive_open(&a, path, &err)) reason = err.text;
    for (uint32_t i = 0; a && i < a->tensors_n; i++) {
        enum sg_storage s = a->tensors[i].storage;
        if ((bytes[s] += a->tensors[i].bytes) <= largest) continue;
        largest = bytes[s];
        main = s;
    }
    if (a && sg_meta_string(a, "general.architecture", &family, &len, &err)) family = NULL;
    char *config_path = out_printf("%s/config.json", path);
    if (!family && folders_is_file(config_path) && sg_json_read(&config, config_path, 1 << 24, &err) == SEGUE_OK) {
        family = json_string_value(json_object_get(config, "model_type"));
        len = family ? strlen(family) : 0;
    }
    if (family) json_object_set_new(o, "family", out_string(family, len));
    else out_null(o, "family", reason);
    if (main < SG_STORAGE_N) json_object_set_new(o, "storage", json_string(sg_storage_info(main)->name));
    else out_null(o, "storage", reason);
    json_decref(config);
    free(config_path);
    sg_archive_close(a);
}

/* Add the bytes and number of the files at a path and in its folders, two levels deep. Links are followed: the files of the
 * Hugging Face cache are links to its blobs. */
static void add_usage(const char *path, int depth, uint64_t *bytes, size_t *files)
{
    struct stat s;
    if (stat(path, &s)) return;
    if (!S_ISDIR(s.st_mode)) {
        *bytes += (uint64_t)s.st_size;
        *files += 1;
        return;
    }
    DIR *dir = depth ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *inner = out_printf("%s/%s", path, e->d_name);
        add_usage(inner, depth - 1, bytes, files);
        free(inner);
    }
    if (dir) closedir(dir);
}

/* Set file, bytes, files and date. A split GGUF has the bytes of all parts. */
static void put_files(json_t *o, const struct installed_model *m, const char *folder)
{
    uint64_t bytes = 0;
    size_t files = 0, prefix = strlen(folder) + 1;
    struct stat s = {0};
    const char *part = strstr(m->path, "-00001-of-");
    unsigned parts = part ? (unsigned)strtoul(part + 10, NULL, 10) : 0;
    add_usage(m->path, 2, &bytes, &files);
    for (unsigned i = 2; part && i <= parts && i <= 99999; i++) {
        char *next = out_printf("%.*s-%05u%s", (int)(part - m->path), m->path, i, part + 6);
        add_usage(next, 0, &bytes, &files);
        free(next);
    }
    json_object_set_new(o, "file", out_string(m->path + prefix, strlen(m->path) - prefix));
    json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(o, "files", json_integer((json_int_t)files));
    struct tm t;
    char date[32];
    if (!stat(m->path, &s) && localtime_r(&s.st_mtime, &t) && strftime(date, sizeof date, "%Y-%m-%d %H:%M", &t))
        json_object_set_new(o, "date", json_string(date));
    else
        out_null(o, "date", "the link has no target");
}

/* One installed model. */
static json_t *model_json(const struct installed_model *m, const char *folder)
{
    char *entry = out_printf("%s/%s", folder, m->entry), target[4096];
    ssize_t n = readlink(entry, target, sizeof target - 1);
    json_t *o = json_object();
    json_object_set_new(o, "name", out_string(m->name, strlen(m->name)));
    json_object_set_new(o, "path", out_string(m->path, strlen(m->path)));
    put_files(o, m, folder);
    put_kind(o, m->path);
    if (n > 0) json_object_set_new(o, "link", out_string(target, (size_t)n));
    free(entry);
    return o;
}

/* All models, sorted by name. */
static json_t *models_json(const char *folder)
{
    struct installed_models list;
    json_t *models = json_array();
    model_names_list(&list);
    for (size_t i = 0; i < list.n; i++) json_array_append_new(models, model_json(&list.items[i], folder));
    model_names_free(&list);
    return models;
}

/* A field as text; "-" if it is null. */
static const char *field(const json_t *o, const char *name)
{
    const char *v = json_string_value(json_object_get(o, name));
    return v ? v : "-";
}

/* Print the list. An empty folder is not an error. */
static int list_models(const struct args *args, const char *folder)
{
    json_t *o = json_object(), *models = models_json(folder);
    json_object_set_new(o, "folder", out_string(folder, strlen(folder)));
    json_object_set_new(o, "models", models);
    if (args_has(args, "json")) return out_json_exit(o);
    if (json_array_size(models))
        out_print("%-48s %-10s %-7s %10s  %-16s  %s\n", "NAME", "FAMILY", "STORAGE", "SIZE", "DATE", "FILE");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        const char *link = json_string_value(json_object_get(m, "link"));
        out_print("%-48s %-10s %-7s %7.1f MB  %-16s  %s%s%s\n", field(m, "name"), field(m, "family"), field(m, "storage"),
               json_number_value(json_object_get(m, "bytes")) / 1e6, field(m, "date"), field(m, "file"), link ? " -> " : "",
               link ? link : "");
    }
    /* A hint for a new user; stdout stays empty. */
    if (json_array_size(models) == 0) out_note("models: none in %s; download one with segue pull", folder);
    json_decref(o);
    return EXIT_DONE;
}

/* Remove one GGUF file of a folder that has several, with all its parts; then the folder, if no model is left in it. */
static segue_status remove_file(const struct installed_model *m, const char *folder, segue_error *err)
{
    const char *part = strstr(m->path, "-00001-of-");
    unsigned parts = part ? (unsigned)strtoul(part + 10, NULL, 10) : 1;
    segue_status st = folders_remove(m->path, true, err);
    for (unsigned i = 2; part && !st && i <= parts && i <= 99999; i++) {
        char *next = out_printf("%.*s-%05u%s", (int)(part - m->path), m->path, i, part + 6);
        st = folders_remove(next, true, err);
        free(next);
    }
    struct installed_models list;
    bool left = false;
    model_names_list(&list);
    for (size_t i = 0; i < list.n; i++) left |= !strcmp(list.items[i].entry, m->entry);
    model_names_free(&list);
    char *entry = out_printf("%s/%s", folder, m->entry);
    if (!st && !left) st = folders_remove(entry, true, err);
    free(entry);
    return st;
}

/* Remove a model by its name in the list: one file of several in its folder, else its entry. The name of an entry is accepted
 * too, also if it contains no complete model. */
static segue_status remove_named(const char *folder, const char *name, segue_error *err)
{
    struct out_text plain = {0};
    struct stat s;
    struct installed_models list;
    const struct installed_model *found = NULL;
    model_names_list(&list);
    for (size_t i = 0; i < list.n; i++) { /* a label is accepted, but not needed, if the folder has one file */
        char *labelled = out_printf("%s:%s", list.items[i].name, list.items[i].label);
        if (!strcmp(list.items[i].name, name) || !strcmp(labelled, name)) found = &list.items[i];
        free(labelled);
    }
    /* A slash becomes --, so the name cannot leave the folder. */
    for (const char *c = found ? found->entry : name; *c; c++) out_add(&plain, *c == '/' ? "--" : c, *c == '/' ? 2 : 1);
    char *path = out_printf("%s/%s", folder, plain.data ? plain.data : "");
    segue_status st = SEGUE_OK;
    if (!plain.data || !folders_plain_name(plain.data))
        st = out_fail(err, SEGUE_EARG, "models rm: \"%.100s\": not a model name; see segue models", name);
    /* lstat: a broken link can be removed, too. */
    else if (lstat(path, &s))
        st = out_fail(err, SEGUE_EIO, "models rm: %.100s: no such model in %.200s; see segue models", name,
                      folder);
    else if (found && strchr(found->name, ':') && S_ISDIR(s.st_mode))
        st = remove_file(found, folder, err);
    else
        st = folders_remove(path, true, err);
    free(path);
    free(plain.data);
    model_names_free(&list);
    return st;
}

static int remove_model(const struct args *args, const char *folder, const char *name)
{
    segue_error err;
    if (remove_named(folder, name, &err)) return out_error(&err, EXIT_UNAVAILABLE);
    if (!args_has(args, "json")) return EXIT_DONE;
    json_t *o = json_object();
    json_object_set_new(o, "removed", out_string(name, strlen(name)));
    return out_json_exit(o);
}

/* Without operands the command lists the models. */
static int run(struct args *args)
{
    segue_error err;
    const char *verb = args->operands_n ? args->operands[0] : "list";
    bool is_list = !strcmp(verb, "list"), is_rm = !strcmp(verb, "rm");
    if ((!is_list && !is_rm) || args->operands_n != (is_rm ? 2 : args->operands_n ? 1 : 0)) {
        out_fail(&err, SEGUE_EARG, "models: \"%.60s\": wrong arguments; expected list, or rm NAME", verb);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    char *folder = folders_path("data", "models");
    int code = is_list ? list_models(args, folder) : remove_model(args, folder, args->operands[1]);
    free(folder);
    return code;
}

static const struct arg_group *const groups[] = {&flags_output, NULL};
const struct command cmd_models = {
    .name = "models",
    .summary = "list or remove downloaded models",
    .operands = "[list|rm NAME]",
    .operands_max = 2,
    .groups = groups,
    .example = "segue models list",
    .run = run,
    .about = "Lists the models in the models folder of the data folder; -m accepts these names. rm removes a model. If "
             "the model is a link into the cache of another program, only the link is removed."};
