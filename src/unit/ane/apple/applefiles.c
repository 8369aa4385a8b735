/* applefiles.c: writes and removes the files of a program. See applefiles.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/apple/applefiles.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { DEPTH_MAX = 16 };         /* of folders: far more than a program or its compiled form has */

int sg_apple_path_plain(const char *path)
{
    for (const char *s = path;; s++) {
        size_t n = strcspn(s, "/");
        if (!n || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.')) return 0;
        s += n;
        if (!*s) return 1;
    }
}

/* Repeats partial and interrupted writes. 0: failed, the reason is in errno. */
static int write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        bytes += done;
        n -= (size_t)done;
    }
    return 1;
}

/* Writes one file and creates its folders. O_NOFOLLOW refuses a symbolic link as the file: others may
 * be able to write to TMPDIR. No fsync: the files are needed only while the program is loaded. */
static segue_status write_file(const char *folder, const char *name, const void *bytes, size_t n,
                               segue_error *err)
{
    char *path = sg_path_join(folder, name);
    if (!path) return sg_no_memory("a path", strlen(name), err);
    char *slash = strrchr(path, '/');
    *slash = 0;
    segue_status status = sg_make_folders(path, err);
    *slash = '/';
    int fd =
        status == SEGUE_OK ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    int written = fd >= 0 && write_all(fd, bytes, n);
    if (status == SEGUE_OK && !written)
        status = sg_fail(err, SEGUE_EIO, "writing a program: %.300s: %s; check the disk and TMPDIR", path,
                         strerror(errno));
    if (fd >= 0) close(fd);
    sg_free(path);
    return status;
}

segue_status sg_apple_blobs_write(const char *folder, const struct sg_ane_file *files, uint32_t n,
                                  segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!sg_apple_path_plain(files[i].path))
            return sg_fail(err, SEGUE_EARG,
                           "writing a blob: %.80s: the path may leave the program's folder; use plain names",
                           files[i].path);
        SG_TRY(write_file(folder, files[i].path, files[i].data, files[i].bytes, err));
    }
    return SEGUE_OK;
}

segue_status sg_apple_files_write(const char *folder, const struct sg_ane_source *s, segue_error *err)
{
    SG_TRY(write_file(folder, "model.mil", s->text, s->text_bytes, err));
    return sg_apple_blobs_write(folder, s->files, s->files_n, err);
}

/* Errors are ignored: what remains is in the temporary folder. */
static void remove_tree(const char *path, int depth)
{
    struct stat st;
    if (lstat(path, &st)) return;
    if (!S_ISDIR(st.st_mode)) {
        unlink(path);
        return;
    }
    DIR *d = depth < DEPTH_MAX ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *inner = sg_path_join(path, e->d_name);
        if (inner) remove_tree(inner, depth + 1);
        sg_free(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

void sg_apple_files_remove(const char *folder) { remove_tree(folder, 0); }
