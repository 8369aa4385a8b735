/* cmd_config.c: `segue config`: the configuration file and what it sets.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "host/config.h"
#include "term/flags.h"

static int run(struct args *args)
{
    struct config c;
    segue_error err;
    if (config_read(&c, args->commands, &err)) {
        config_free(&c);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *o = json_object(), *values = json_array();
    json_object_set_new(o, "path", out_string(c.path, strlen(c.path)));
    json_object_set_new(o, "exists", json_boolean(c.exists));
    for (size_t i = 0; i < c.n; i++) {
        const struct config_value *v = &c.values[i];
        json_t *one = json_object();
        json_object_set_new(one, "key", out_string(v->key, strlen(v->key)));
        json_object_set_new(one, "value", out_string(v->value, strlen(v->value)));
        if (v->section)
            json_object_set_new(one, "command", json_string(v->section->name));
        else
            out_null(one, "command", "before the first section: every command with this flag");
        json_object_set_new(one, "line", json_integer(v->line));
        json_array_append_new(values, one);
    }
    json_object_set_new(o, "values", values);
    if (args_has(args, "json")) {
        config_free(&c);
        return out_json_exit(o);
    }
    json_decref(o);
    out_print("# %s%s\n", c.path, c.exists ? "" : " (does not exist)");
    const struct command *section = NULL;
    for (size_t i = 0; i < c.n; i++) {
        if (c.values[i].section != section) out_print("[%s]\n", c.values[i].section->name);
        section = c.values[i].section;
        out_print("%s = %s\n", c.values[i].key, c.values[i].value);
    }
    config_free(&c);
    return EXIT_DONE;
}

static const struct arg_group *const groups[] = {&flags_output, NULL};
const struct command cmd_config = {
    .name = "config",
    .summary = "show the configuration file",
    .groups = groups,
    .example = "segue config",
    .run = run,
    .about = "Prints the path of the configuration file and its values. The file has lines KEY = VALUE; keys are the long "
             "names of flags, and # starts a comment. Keys before the first section apply to run and chat, and to other "
             "commands where the flag is the same one, such as model and unit. Keys below [COMMAND] apply to this command. Flags "
             "of the command line and SEGUE_MODEL take precedence."};
