/* cmd_cache.c: `segue cache [info|clear]`: size of the cache folder, or delete its content: packed weights, compiled
 * programs and the prefix store.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include "term/flags.h"
#include "host/folders.h"

/* Programs compiled for the Neural Engine: their number, and their bytes including their weights. */
struct program_usage {
    size_t files;
    uint64_t bytes;
};

/* A program has up to three files; .program is counted, the others only add bytes. */
static struct program_usage find_programs(const char *folder)
{
    static const char *const endings[] = {".program", ".weights", ".packed"};
    struct program_usage p = {0};
    size_t others = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        folders_usage_suffix(folder, endings[i], &p.bytes, i ? &others : &p.files);
    return p;
}

/* The sizes are measured before the folder is emptied. Symbolic links are removed, not followed. */
static int run(struct args *args)
{
    segue_error err;
    /* The default verb is info. */
    const char *verb = args->operands_n ? args->operands[0] : "info";
    bool clear = !strcmp(verb, "clear");
    if (!clear && strcmp(verb, "info") != 0) {
        out_fail(&err, SEGUE_EARG, "cache: \"%.60s\": unknown verb; expected info or clear", verb);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    char *folder = folders_home("cache");
    uint64_t bytes = 0;
    size_t files = 0;
    /* All files, also the prefix store and files of older versions. */
    folders_usage(folder, &bytes, &files);
    uint64_t packed_bytes = 0;
    size_t packed_files = 0;
    /* Packed weights of the cpu unit. */
    folders_usage_suffix(folder, ".pack", &packed_bytes, &packed_files);
    struct program_usage programs = find_programs(folder);
    if (clear && folders_remove(folder, false, &err)) {
        free(folder);
        return out_error(&err, EXIT_UNAVAILABLE);
    }
    json_t *o = json_object();
    json_object_set_new(o, "folder", out_string(folder, strlen(folder)));
    /* After clear the same figures are reported as removed. */
    json_object_set_new(o, clear ? "cleared_bytes" : "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(o, clear ? "cleared_files" : "files", json_integer((json_int_t)files));
    if (!clear) {
        json_object_set_new(o, "packed_bytes", json_integer((json_int_t)packed_bytes));
        json_object_set_new(o, "packed_files", json_integer((json_int_t)packed_files));
        json_object_set_new(o, "program_bytes", json_integer((json_int_t)programs.bytes));
        json_object_set_new(o, "program_files", json_integer((json_int_t)programs.files));
    }
    if (!args_has(args, "json")) {
        /* Default limit of the cache folder; it is enforced when an entry is written. */
        unsigned limit = (unsigned)(SEGUE_CACHE_BYTES >> 30);
        out_print("%s: %zu files, %.1f MB%s\n", folder, files, (double)bytes / 1e6, clear ? " removed" : "");
        if (!clear && packed_files)
            out_print("packed weights: %zu, %.1f MB; at most %u GiB, least recently used are deleted first\n", packed_files,
                   (double)packed_bytes / 1e6, limit);
        if (!clear && programs.files)
            out_print("compiled programs: %zu, with their weights %.1f MB; at most %u GiB, least recently used are deleted "
                      "first\n",
                   programs.files, (double)programs.bytes / 1e6, limit);
    }
    free(folder);
    if (args_has(args, "json")) return out_json_exit(o);
    json_decref(o);
    return EXIT_DONE;
}

static const struct arg_group *const groups[] = {&flags_output, NULL};
const struct command cmd_cache = {.name = "cache",
                                  .summary = "show or empty the cache folder",
                                  .operands = "[info|clear]",
                                  .operands_max = 1,
                                  .groups = groups,
                                  .example = "segue cache info",
                                  .run = run,
                                  .about = "The cache folder ($XDG_CACHE_HOME/segue, or $SEGUE_HOME/cache) contains packed "
                                           "weights, compiled programs and the prefix store. Entries are keyed by content, "
                                           "layout and version. Everything in it may be deleted at any time."};
