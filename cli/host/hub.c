/* hub.c: addresses and local copies of the Hugging Face hub, see hub.h.
 * SPDX-License-Identifier: MIT */
#include "host/hub.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "host/folders.h"
#include "run/prompt.h"

bool hub_is_web_page(const char *path)
{
    char head[64] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f) fclose(f);
    head[n] = 0;
    const char *s = head + strspn(head, " \t\r\n\xef\xbb\xbf");
    return !strncasecmp(s, "<!doctype html", 14) || !strncasecmp(s, "<html", 5);
}

/* True for the name of a file with weights. */
static bool is_model_file(const char *name)
{
    static const char *const ends[] = {".gguf", ".safetensors", ".bin"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    return false;
}

char *hub_id_of_page(const char *endpoint, const char *url, char **file)
{
    const char *const hubs[] = {endpoint, "https://huggingface.co", "https://hf.co"};
    for (size_t i = 0; i < sizeof hubs / sizeof *hubs; i++) {
        size_t n = strlen(hubs[i]);
        if (strncmp(url, hubs[i], n) != 0 || url[n] != '/') continue;
        char owner[128], name[128], kind[16] = "", revision[128] = "", rest[512] = "";
        int fields = sscanf(url + n, "/%127[^/?#]/%127[^/?#]/%15[^/?#]/%127[^/?#]/%511[^?#]", owner, name, kind, revision, rest);
        if (is_model_file(name) || strchr(name, '%') || !folders_plain_name(name)) return NULL;
        if (fields == 2 || (fields == 4 && !strcmp(kind, "tree")))
            return out_printf("%s/%s%s%s", owner, name, *revision ? "@" : "", revision);
        if (fields == 5 && !strcmp(kind, "blob"))
            *file = out_printf("%s/%s/%s/resolve/%s/%s", hubs[i], owner, name, revision, rest);
        return NULL;
    }
    return NULL;
}

bool hub_snapshot_complete(const char *folder)
{
    char *path = out_printf("%s/model.safetensors.index.json", folder);
    struct out_text text = {0};
    segue_error ignored;
    json_t *index = prompt_file(path, &text, &ignored) ? NULL : out_json_load(text.data, text.len, 0, NULL), *v,
           *map = json_object_get(index, "weight_map");
    const char *key;
    free(path);
    free(text.data);
    /* Weights of several files are listed in the index. */
    bool complete = true;
    json_object_foreach(map, key, v)
    {
        const char *name = json_string_value(v);
        path = out_printf("%s/%s", folder, name ? name : "");
        complete = complete && name && folders_plain_name(name) && folders_is_file(path);
        free(path);
    }
    /* With an index only config.json is required in addition; without one also model.safetensors. */
    static const char *const needed[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < (json_object_size(map) ? 1u : 2u); i++) {
        path = out_printf("%s/%s", folder, needed[i]);
        complete = complete && folders_is_file(path);
        free(path);
    }
    json_decref(index);
    return complete;
}
