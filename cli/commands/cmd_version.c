/* cmd_version.c: `segue version`: version, commit, unit kinds and CUDA targets of this build.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include "commit.h" /* generated: SEGUE_COMMIT */
#include <string.h>
#include "term/flags.h"
#include "term/out.h"

/* The kinds of units in this build, each once, whether or not the hardware is available. */
static json_t *built_units(void)
{
    json_t *list = json_array();
    segue_unit_info infos[32];
    size_t n = 0;
    segue_error ignored;
    for (size_t i = 0; i < 32; i++) infos[i] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(infos, 32, &n, &ignored) < 0 && n == 0) return list;
    for (size_t i = 0; i < n && i < 32; i++) {
        size_t k = 0;
        /* Is this kind in the list already? */
        while (k < json_array_size(list) &&
               strcmp(json_string_value(json_array_get(list, k)), infos[i].kind) != 0)
            k++;
        if (infos[i].built && k == json_array_size(list))
            json_array_append_new(list, json_string(infos[i].kind));
    }
    return list;
}

/* GPU architectures of the embedded CUDA kernels. The build defines them as a string such as "sm_80 sm_90a"; empty: none. */
static json_t *cuda_targets(void)
{
    json_t *list = json_array();
    /* Words separated by single spaces. */
    for (const char *p = SEGUE_DEVICE_TARGETS; *p;) {
        size_t n = strcspn(p, " ");
        json_array_append_new(list, out_string(p, n));
        p += n + (p[n] == ' ');
    }
    return list;
}

/* segue_version returns major << 16 | minor << 8 | patch. */
static int run(struct args *args)
{
    uint32_t v = segue_version();
    char version[32];
    snprintf(version, sizeof version, "%u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    json_t *units = built_units();
    if (args_has(args, "json")) {
        json_t *o = json_object();
        json_object_set_new(o, "version", json_string(version));
        json_object_set_new(o, "commit", json_string(SEGUE_COMMIT));
        json_object_set_new(o, "units", units);
        json_object_set_new(o, "cuda_targets", cuda_targets());
        return out_json_exit(o);
    }
    printf("segue %s (%s), units:", version, SEGUE_COMMIT);
    for (size_t i = 0; i < json_array_size(units); i++)
        printf(" %s", json_string_value(json_array_get(units, i)));
    printf("\n");
    json_decref(units);
    return EXIT_DONE;
}

static const struct arg_group *const groups[] = {&flags_output, NULL};
const struct command cmd_version = {.name = "version",
                                    .summary = "print version, commit and compute units of this build",
                                    .groups = groups,
                                    .example = "segue version --json",
                                    .run = run,
                                    .about = "Prints the version of the linked library, the commit it was built from, and the "
                                             "kinds of units in this build. --json adds the GPU architectures of the CUDA "
                                             "kernels."};
