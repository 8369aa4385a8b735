/* fuzz_model.c: hostile config.json beside sound weights, and hostile adapters beside a sound model. The
 * first byte says which: a configuration, adapter_config.json, adapter_model.safetensors, or a GGUF adapter.
 * Files lie in a folder of this process, because the doors under test take paths. SPDX-License-Identifier:
 * MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/adapter.h"
#include "model/model.h"

#define TINY SEGUE_SOURCE_DIR "/tests/golden/tiny/"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct segue_model *base;
static char config_folder[64] = "/tmp/segue-fuzz-config-XXXXXX",
            adapter_folder[64] = "/tmp/segue-fuzz-adapter-XXXXXX";

static void put(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) abort();
}

static void copy(const char *folder, const char *name, const char *from)
{
    struct sg_buf b = {0};
    if (sg_file_read(&b, from, 1 << 20, NULL) != SEGUE_OK) abort();
    put(folder, name, b.data, b.len);
    sg_buf_free(&b);
}

static void clean(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "adapter_config.json",
                                        "adapter_model.safetensors"};
    const char *folders[] = {config_folder, adapter_folder};
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < 4; i++) {
            char path[128];
            snprintf(path, sizeof path, "%s/%s", folders[f], names[i]);
            unlink(path);
        }
        rmdir(folders[f]);
    }
    sg_model_unref(base);
}

static void prepare(void)
{
    if (base) return;
    if (sg_model_open(&base, TINY "llama", NULL, NULL) != SEGUE_OK) abort();
    if (!mkdtemp(config_folder) || !mkdtemp(adapter_folder) || atexit(clean)) abort();
    copy(config_folder, "model.safetensors", TINY "qwen3_5_asym/model.safetensors");
}

static void open_config(const uint8_t *data, size_t size)
{
    struct segue_model *m = NULL;
    struct sg_buf text = {0};
    put(config_folder, "config.json", data, size);
    if (sg_model_open(&m, config_folder, NULL, NULL) == SEGUE_OK)
        sg_model_describe(m, SEGUE_DESCRIBE_JSON, &text, NULL);
    sg_buf_free(&text);
    sg_model_unref(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct segue_adapter *a = NULL;
    segue_error err;
    prepare();
    if (!size) return 0;
    if (data[0] % 4 == 0) {
        open_config(data + 1, size - 1);
        return 0;
    }
    copy(adapter_folder, "adapter_model.safetensors", TINY "lora/llama/peft/adapter_model.safetensors");
    copy(adapter_folder, "adapter_config.json", TINY "lora/llama/peft/adapter_config.json");
    put(adapter_folder, data[0] % 4 == 1 ? "adapter_config.json" : "adapter_model.safetensors", data + 1,
        size - 1);
    sg_adapter_open(&a, base, adapter_folder, 1, &err);
    sg_adapter_unref(a);
    return 0;
}
