/* milfolder.c: see milfolder.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/milfolder.h"

#include <string.h>

#include "unit/ane/mil/milparse.h"
#include "unit/ane/rules/rules.h"

enum { TEXTS_MAX = 4096 };

static segue_status map_blob_file(struct sg_mil_text *t, const char *folder, const char *mil_path,
                              segue_error *err)
{
    if (sg_ane_file_of(t->files, t->files_n, mil_path)) return SEGUE_OK;
    const char *path = strchr(mil_path, '/') + 1; /* after @model_path/: the parser saw to it */
    char *full = sg_path_join(folder, path);
    if (!full) return sg_no_memory("a path", strlen(path), err);
    struct sg_map map;
    segue_error missing;
    segue_status status = sg_path_kind(full) == SG_PATH_FILE ? sg_map_open(&map, full, &missing) : SEGUE_EIO;
    sg_free(full);
    if (status != SEGUE_OK) return SEGUE_OK; /* the check says so, with the place */
    if (t->files_n == t->files_cap) {
        uint32_t cap = t->files_cap ? t->files_cap * 2 : 8;
        struct sg_ane_file *files = sg_realloc(t->files, cap * sizeof *files);
        if (files) t->files = files;
        struct sg_map *maps = files ? sg_realloc(t->maps, cap * sizeof *maps) : NULL;
        if (maps) t->maps = maps;
        if (!maps) {
            sg_map_close(&map);
            return sg_no_memory("blob files", cap * sizeof *maps, err);
        }
        t->files_cap = cap;
    }
    t->maps[t->files_n] = map;
    t->files[t->files_n++] = (struct sg_ane_file){path, map.data, map.size};
    return SEGUE_OK;
}

static segue_status map_blob_files(struct sg_mil_text *t, const char *folder, segue_error *err)
{
    for (uint32_t i = 0; i < t->program->functions_n; i++) {
        const struct sg_mil_function *f = &t->program->functions[i];
        for (uint32_t o = 0; o < f->ops_n; o++) {
            for (uint32_t a = 0; a < f->ops[o].attrs_n; a++)
                if (f->ops[o].attrs[a].literal->kind == SG_MIL_BLOB)
                    SG_TRY(map_blob_file(t, folder, f->ops[o].attrs[a].literal->v.blob.path, err));
            for (uint32_t a = 0; a < f->ops[o].args_n; a++)
                if (f->ops[o].args[a].kind == SG_MIL_LITERAL &&
                    f->ops[o].args[a].v.literal->kind == SG_MIL_BLOB)
                    SG_TRY(map_blob_file(t, folder, f->ops[o].args[a].v.literal->v.blob.path, err));
        }
    }
    return SEGUE_OK;
}

/* path becomes the text's. */
static segue_status open_text(struct sg_mil_text *t, char *path, segue_error *err)
{
    t->path = path;
    if (!path) return sg_no_memory("a path", 0, err);
    SG_TRY(sg_map_open(&t->map, path, err));
    segue_status status =
        sg_mil_parse(&t->program, (const char *)t->map.data, t->map.size, path, &t->fault, err);
    if (status == SEGUE_EFORMAT) return SEGUE_OK;
    if (status != SEGUE_OK) return status;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? sg_strndup(path, (size_t)(slash - path) + (slash == path)) : sg_strndup(".", 1);
    if (!folder) return sg_no_memory("a path", strlen(path), err);
    status = map_blob_files(t, folder, err);
    sg_free(folder);
    return status;
}

static segue_status open_all(struct sg_mil_folder *out, const char *path, char **names, size_t n,
                             segue_error *err)
{
    if (!n)
        return sg_fail(err, SEGUE_EIO,
                       "opening programs: %.200s: no .mil file in it; give a folder with programs", path);
    out->texts = sg_alloc(n * sizeof *out->texts);
    if (!out->texts) return sg_no_memory("programs", n * sizeof *out->texts, err);
    for (out->n = 0; out->n < n;) {
        struct sg_mil_text *t = &out->texts[out->n++];
        SG_TRY(open_text(t, sg_path_join(path, names[out->n - 1]), err));
    }
    return SEGUE_OK;
}

segue_status sg_mil_folder_open(struct sg_mil_folder *out, const char *path, segue_error *err)
{
    char **names = NULL;
    size_t n = 0;
    segue_status status;
    *out = (struct sg_mil_folder){0};
    if (sg_path_kind(path) == SG_PATH_FOLDER) {
        status = sg_folder_list(path, ".mil", TEXTS_MAX, &names, &n, err);
        if (status == SEGUE_OK) status = open_all(out, path, names, n, err);
        for (size_t i = 0; i < n; i++) sg_free(names[i]);
        sg_free(names);
    } else {
        out->texts = sg_alloc(sizeof *out->texts);
        out->n = out->texts != NULL;
        status = out->n ? open_text(out->texts, sg_strndup(path, strlen(path)), err)
                        : sg_no_memory("a program", 0, err);
    }
    if (status != SEGUE_OK) sg_mil_folder_close(out);
    return status;
}

void sg_mil_folder_close(struct sg_mil_folder *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct sg_mil_text *t = &f->texts[i];
        for (uint32_t k = 0; k < t->files_n; k++) sg_map_close(&t->maps[k]);
        sg_free(t->files);
        sg_free(t->maps);
        sg_mil_program_free(t->program);
        sg_map_close(&t->map);
        sg_free(t->path);
    }
    sg_free(f->texts);
    *f = (struct sg_mil_folder){0};
}

void sg_mil_text_check(const struct sg_mil_text *t, const struct sg_ane_profile *profile,
                       struct sg_mil_faults *faults)
{
    static const struct sg_ane_file none;
    if (t->program)
        sg_ane_check(t->program, profile, t->files ? t->files : &none, t->files_n, faults);
    else
        sg_mil_fault_add(
            faults,
            &(struct sg_mil_loc){t->fault.line, t->fault.column, t->fault.constraint, 0, t->fault.op}, "%s",
            t->fault.text);
}

segue_status sg_mil_text_status(const struct sg_mil_text *t, segue_error *err)
{
    if (t->program) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "MIL text: %.200s:%u:%u: %s", t->path, t->fault.line, t->fault.column,
                   t->fault.text);
}
