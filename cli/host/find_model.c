/* find_model.c: the model of a command line, see find_model.h.
 * SPDX-License-Identifier: MIT */
#include "host/find_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "commands/pull.h"
#include "host/folders.h"
#include "host/model_names.h"
#include "term/out.h"

/* True for OWNER/NAME[@REVISION][:LABEL], which is no path of a model file. */
static bool is_repository(const char *name)
{
    static const char *const ends[] = {".gguf", ".safetensors", ".bin", ".json"};
    const char *slash = strchr(name, '/');
    if (!slash || slash == name || !slash[1] || strchr(slash + 1, '/') || !folders_plain_path(name)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(name), m = strlen(ends[i]);
        if (n > m && !strcmp(name + n - m, ends[i])) return false;
    }
    return true;
}

/* Ask on the terminal; no answer means no. */
static bool confirm(const char *id, bool is_default)
{
    char answer[16] = "";
    fprintf(stderr, "segue: %s%s is not installed. Download it%s? [Y/n] ", is_default ? "the default model " : "", id,
            is_default ? " (0.3 GB)" : "");
    fflush(stderr);
    if (!fgets(answer, sizeof answer, stdin)) return false;
    return answer[0] == '\n' || answer[0] == 'y' || answer[0] == 'Y';
}

segue_status find_model(const struct args *args, char **path, segue_error *err)
{
    const char *wanted = NULL;
    segue_status st = model_names_of_args(args, path, &wanted, err);
    if (st != SEGUE_EIO || (wanted && !is_repository(wanted))) return st;
    const char *id = wanted ? wanted : MODEL_NAMES_DEFAULT_ID;
    if (!args_has(args, "yes")) {
        bool terminal = isatty(0) && isatty(2);
        if (!terminal)
            return out_fail(err, wanted ? SEGUE_EIO : SEGUE_EARG,
                            "model: %.200s: not installed; add --yes to download it, or give another one with -m",
                            id);
        if (!confirm(id, !wanted))
            return out_fail(err, SEGUE_EARG, "model: %.300s: not installed, and not downloaded; give -m", id);
    }
    bool quiet = args_find(args->command, "quiet", 5) && args_has(args, "quiet");
    if (!quiet) out_note("downloading %s", id);
    return pull_model(id, quiet, path, err);
}
