/* cmd_models.c: `segue models [list|rm NAME]`: list or remove models in the models folder. Nothing outside of it is
 * removed.
 * The folder is models/ in the data folder; an entry is a file, a folder or a symbolic link.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "term/flags.h"
#include "host/folders.h"

/* Order for qsort. */
static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* One entry of the list. For a symbolic link the bytes are those of the link: its target belongs to another program. */
static json_t *model_json(const char *folder, const char *name)
{
    char *path = out_printf("%s/%s", folder, name), target[4096];
    uint64_t bytes = 0;
    size_t files = 0;
    /* Negative if the entry is not a link. */
    ssize_t n = readlink(path, target, sizeof target - 1);
    folders_usage(path, &bytes, &files);
    json_t *o = json_object();
    json_object_set_new(o, "name", out_string(name, strlen(name)));
    json_object_set_new(o, "path", out_string(path, strlen(path)));
    json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(o, "files", json_integer((json_int_t)files));
    if (n > 0) json_object_set_new(o, "link", out_string(target, (size_t)n));
    free(path);
    return o;
}

/* All entries of the models folder, sorted by name. Names with a leading dot are partial downloads. */
static json_t *models_json(const char *folder)
{
    char **names = NULL;
    size_t n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        /* Also skips "." and "..". */
        if (e->d_name[0] == '.') continue;
        names = out_realloc(names, (n + 1) * sizeof *names);
        names[n++] = out_strdup(e->d_name);
    }
    if (dir) closedir(dir);
    if (n) qsort(names, n, sizeof *names, by_name);
    json_t *list_models = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list_models, model_json(folder, names[i]));
        free(names[i]);
    }
    free(names);
    return list_models;
}

/* Print the list. An empty folder is not an error. */
static int list_models(const struct args *args, const char *folder)
{
    json_t *o = json_object(), *models = models_json(folder);
    json_object_set_new(o, "folder", out_string(folder, strlen(folder)));
    json_object_set_new(o, "models", models);
    if (args_has(args, "json")) return out_json_exit(o);
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        const char *link = json_string_value(json_object_get(m, "link"));
        out_print("%-48s %9.1f MB%s%s\n", json_string_value(json_object_get(m, "name")),
               json_number_value(json_object_get(m, "bytes")) / 1e6, link ? "  -> " : "", link ? link : "");
    }
    /* A hint for a new user; stdout stays empty. */
    if (json_array_size(models) == 0) out_note("models: none in %s; download one with segue pull", folder);
    json_decref(o);
    return EXIT_DONE;
}

/* Remove a model. The name may be OWNER/NAME, as for pull, or the name of its folder, OWNER--NAME. */
static int remove_model(const struct args *args, const char *folder, const char *name)
{
    segue_error err;
    struct stat s;
    struct out_text plain = {0};
    /* A slash becomes --, so the name cannot leave the folder. */
    for (const char *c = name; *c; c++) out_add(&plain, *c == '/' ? "--" : c, *c == '/' ? 2 : 1);
    char *path = out_printf("%s/%s", folder, plain.data ? plain.data : "");
    segue_status st = SEGUE_OK;
    if (!plain.data || !folders_plain_name(plain.data))
        st = out_fail(&err, SEGUE_EARG, "models rm: \"%.100s\": not a model name; see segue models", name);
    /* lstat: a broken link can be removed, too. */
    else if (lstat(path, &s))
        st = out_fail(&err, SEGUE_EIO, "models rm: %.100s: no such model in %.200s; see segue models", name,
                      folder);
    else
        st = folders_remove(path, true, &err);
    free(path);
    if (st) {
        free(plain.data);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *o = json_object();
    json_object_set_new(o, "removed", out_string(plain.data, plain.len));
    free(plain.data);
    if (args_has(args, "json")) return out_json_exit(o);
    json_decref(o);
    return EXIT_DONE;
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
