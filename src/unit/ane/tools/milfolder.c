/* milfolder.c: see milfolder.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/tools/milfolder.h"

#include <string.h>
#include <sys/stat.h>

#include "unit/ane/mil/milparse.h"
#include "unit/ane/rules/rules.h"

enum { TEXTS_MAX = 4096, ENTRIES_MAX = 1 << 16, DEPTH_MAX = 8 }; /* programs; entries of one folder; folders in folders */

/* Maps a blob file unless it is mapped already. A file that cannot be opened is not an error here:
 * sg_ane_check_blobs reports it with the position of the reference. */
static segue_status map_blob_file(struct sg_mil_text *t, const char *folder, const char *mil_path,
                                  segue_error *err)
{
    if (sg_ane_file_of(t->files, t->files_n, mil_path)) return SEGUE_OK;
    const char *path = strchr(mil_path, '/') + 1; /* after @model_path/, which the parser has checked */
    char *full = sg_path_join(folder, path);
    if (!full) return sg_no_memory("a path", strlen(path), err);
    struct sg_map map;
    segue_error missing;
    segue_status status = sg_path_kind(full) == SG_PATH_FILE ? sg_map_open(&map, full, &missing) : SEGUE_EIO;
    sg_free(full);
    if (status != SEGUE_OK) return SEGUE_OK;
    /* Both lists grow together; files_cap changes only when both allocations succeeded. */
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

/* Maps all blob files that a program references, in attributes and in inline arguments. */
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

/* Opens one .mil file. Takes ownership of path, which may be NULL after a failed allocation. */
static segue_status open_text(struct sg_mil_text *t, char *path, segue_error *err)
{
    t->path = path;
    if (!path) return sg_no_memory("a path", 0, err);
    SG_TRY(sg_map_open(&t->map, path, err));
    segue_status status =
        sg_mil_parse(&t->program, (const char *)t->map.data, t->map.size, path, &t->fault, err);
    if (status == SEGUE_EFORMAT) return SEGUE_OK; /* kept with its fault */
    if (status != SEGUE_OK) return status;
    /* Folder of the file: "/" for a file in the root, "." without a slash. */
    const char *slash = strrchr(path, '/');
    char *folder = slash ? sg_strndup(path, (size_t)(slash - path) + (slash == path)) : sg_strndup(".", 1);
    if (!folder) return sg_no_memory("a path", strlen(path), err);
    status = map_blob_files(t, folder, err);
    sg_free(folder);
    return status;
}

/* Appends the text of a file and takes the path over. An entry is counted before it is opened, so that close frees it after a
 * failure. */
static segue_status add_text(struct sg_mil_folder *out, char *path, segue_error *err)
{
    struct sg_mil_text *more = out->n < TEXTS_MAX ? sg_realloc(out->texts, (out->n + (size_t)1) * sizeof *more) : NULL;
    if (!more) {
        sg_free(path);
        return out->n < TEXTS_MAX ? sg_no_memory("programs", out->n * sizeof *more, err)
                                  : sg_fail(err, SEGUE_ELIMIT, "opening programs: more than %d; name one folder", TEXTS_MAX);
    }
    out->texts = more;
    more[out->n] = (struct sg_mil_text){0};
    return open_text(&more[out->n++], path, err);
}

/* Appends the texts of a folder, and then, unless `left` is 0, those of the folders in it. left: how many may be inside each
 * other, and one more. Links to folders are not followed. */
static segue_status add_folder(struct sg_mil_folder *out, const char *path, uint32_t left, segue_error *err)
{
    char **names[2] = {NULL, NULL}; /* sorted: the texts, and all entries */
    size_t n[2] = {0, 0};
    segue_status status = sg_folder_list(path, ".mil", TEXTS_MAX, &names[0], &n[0], err);
    if (status == SEGUE_OK && left) status = sg_folder_list(path, "", ENTRIES_MAX, &names[1], &n[1], err);
    for (size_t i = 0; status == SEGUE_OK && i < n[0] + n[1]; i++) {
        char *full = sg_path_join(path, i < n[0] ? names[0][i] : names[1][i - n[0]]);
        struct stat entry;
        int is_folder = full && lstat(full, &entry) == 0 && S_ISDIR(entry.st_mode);
        if (!full)
            status = sg_no_memory("a path", strlen(path), err);
        else if (i < n[0] && !is_folder) {
            status = add_text(out, full, err);
            full = NULL;
        } else if (i >= n[0] && is_folder && left > 1)
            status = add_folder(out, full, left - 1, err);
        else if (i >= n[0] && is_folder)
            status = sg_fail(err, SEGUE_ELIMIT, "opening programs: %.200s: more than %d folders inside each other; give one of "
                             "them", full, DEPTH_MAX);
        sg_free(full);
    }
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++) sg_free(names[k][i]);
        sg_free(names[k]);
    }
    return status;
}

/* A path that is not a folder is taken for a file; opening it reports whether it exists. */
segue_status sg_mil_folder_open(struct sg_mil_folder *out, const char *path, int deep, segue_error *err)
{
    segue_status status;
    *out = (struct sg_mil_folder){0};
    if (sg_path_kind(path) == SG_PATH_FOLDER) {
        status = add_folder(out, path, deep ? DEPTH_MAX + 1 : 0, err);
        if (status == SEGUE_OK && !out->n)
            status = sg_fail(err, SEGUE_EIO,
                             "opening programs: %.200s: the folder has no .mil file; give a folder with programs", path);
    } else {
        out->texts = sg_alloc(sizeof *out->texts);
        out->n = out->texts != NULL;
        status = out->n ? open_text(out->texts, sg_strndup(path, strlen(path)), err)
                        : sg_no_memory("a program", 0, err);
    }
    if (status != SEGUE_OK) sg_mil_folder_close(out);
    return status;
}

/* Also after a failed open: entries that were not reached are zero. */
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

/* A program without blob files still needs the check of its references, so an empty list instead of NULL is
 * passed. */
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

/* Repeats the message of the parser, with position. */
segue_status sg_mil_text_status(const struct sg_mil_text *t, segue_error *err)
{
    if (t->program) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "MIL text: %.200s:%u:%u: %s", t->path, t->fault.line, t->fault.column,
                   t->fault.text);
}
