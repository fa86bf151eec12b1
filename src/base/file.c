// SPDX-License-Identifier: Apache-2.0
// file.c: whole-file reads, files that survive a crash, directories; one place for injected faults.
#include "trainer/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/mem.h"

static int fail_countdown;

void file_fail_after(int n)
{
    fail_countdown = n;
}

// True when this operation has to fail, by order of a test.
static bool injected(int error)
{
    if (fail_countdown > 0 && --fail_countdown == 0) {
        errno = error;
        return true;
    }
    return false;
}

static enum status io_error(const char *what, const char *path)
{
    enum status code = errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
    return FAIL(code, "%s: cannot %s: %s", path, what, strerror(errno));
}

static enum status read_all(int fd, const char *path, uint8_t *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = injected(EIO) ? -1 : read(fd, data + done, size - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return io_error("read", path);
        }
        if (got == 0) {
            return FAIL(ERR_IO, "%s: ended at byte %zu of %zu: it got shorter while being read",
                        path, done, size);
        }
        done += (size_t)got;
    }
    return STATUS_OK;
}

// Opening a pipe that nobody writes to would wait for ever; a file is never affected.
static int open_to_read(const char *path)
{
    return injected(EIO) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

enum status file_read(const char *path, size_t limit, uint8_t **data, size_t *size)
{
    *data = NULL;
    *size = 0;
    int fd = open_to_read(path);
    if (fd < 0) {
        return io_error("open", path);
    }
    enum status status = STATUS_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = io_error("inspect", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = FAIL(ERR_IO, "%s: is %s, expected a file", path,
                      S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    } else if ((uint64_t)info.st_size > limit) {
        status = FAIL(ERR_UNSUPPORTED, "%s: has %lld bytes, more than the limit of %zu", path,
                      (long long)info.st_size, limit);
    } else {
        *data = malloc((size_t)info.st_size + 1);
        status = *data ? read_all(fd, path, *data, (size_t)info.st_size)
                       : FAIL(ERR_NO_MEMORY, "%s: no memory for its %lld bytes", path,
                              (long long)info.st_size);
    }
    close(fd);
    if (status != STATUS_OK) {
        free(*data);
        *data = NULL;
        return status;
    }
    *size = (size_t)info.st_size;
    (*data)[*size] = 0;
    return STATUS_OK;
}

enum status file_read_at(const char *path, uint64_t offset, void *data, size_t size)
{
    int fd = open_to_read(path);
    if (fd < 0) {
        return io_error("open", path);
    }
    enum status status = STATUS_OK;
    struct stat info;
    if (fstat(fd, &info) != 0 || (off_t)offset < 0) {
        status = io_error("inspect", path);
    } else if (offset > (uint64_t)info.st_size || size > (uint64_t)info.st_size - offset) {
        status = FAIL(ERR_CORRUPT, "%s: has %lld bytes, expected %zu from byte %llu on: it is cut short",
                      path, (long long)info.st_size, size, (unsigned long long)offset);
    } else if (lseek(fd, (off_t)offset, SEEK_SET) < 0) {
        status = io_error("read", path);
    } else {
        status = read_all(fd, path, data, size);
    }
    close(fd);
    return status;
}

static enum status write_all(int fd, const char *path, const void *data, size_t size)
{
    const char *bytes = data;
    for (size_t done = 0; done < size;) {
        ssize_t put = injected(ENOSPC) ? -1 : write(fd, bytes + done, size - done);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return io_error("write", path);
        }
        done += (size_t)put;
    }
    return STATUS_OK;
}

enum { WRITE_BUFFER = 1 << 18 };

struct file_writer {
    int fd;
    char *path, *temporary;
    uint64_t position;
    size_t buffered;
    char buffer[WRITE_BUFFER];
};

static void writer_free(struct file_writer *writer)
{
    mem_free(writer->path);
    mem_free(writer->temporary);
    mem_free(writer);
}

enum status file_create(const char *path, struct file_writer **out)
{
    *out = NULL;
    struct file_writer *writer = MEM_NEW(struct file_writer);
    writer->path = mem_strdup(path);
    size_t size = strlen(path) + 32;
    writer->temporary = mem_alloc(size);
    snprintf(writer->temporary, size, "%s.tmp-%ld", path, (long)getpid());
    writer->fd = injected(EACCES)
                     ? -1
                     : open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        enum status status = io_error("create", path);
        writer_free(writer);
        return status;
    }
    *out = writer;
    return STATUS_OK;
}

static enum status writer_flush(struct file_writer *writer)
{
    size_t size = writer->buffered;
    writer->buffered = 0;
    return write_all(writer->fd, writer->path, writer->buffer, size);
}

enum status file_put(struct file_writer *writer, const void *data, size_t size)
{
    writer->position += size;
    if (writer->buffered + size > WRITE_BUFFER) {
        TRY(writer_flush(writer));
    }
    if (size > WRITE_BUFFER) {
        return write_all(writer->fd, writer->path, data, size);
    }
    memcpy(writer->buffer + writer->buffered, data, size);
    writer->buffered += size;
    return STATUS_OK;
}

uint64_t file_position(const struct file_writer *writer)
{
    return writer->position;
}

// A rename is on disk only when its directory is.
static enum status sync_directory(const char *path)
{
    char *directory = mem_strdup(path);
    char *slash = strrchr(directory, '/');
    const char *name = slash == directory ? "/" : slash ? directory : ".";
    if (slash) {
        *slash = '\0';
    }
    if (!*name) {
        name = "/";
    }
    int fd = injected(EIO) ? -1 : open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum status status = STATUS_OK;
    // Some file systems cannot sync a directory and say EINVAL; there the rename is all there is.
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) {
        status = io_error("sync", name);
    }
    if (fd >= 0) {
        close(fd);
    }
    mem_free(directory);
    return status;
}

enum status file_commit(struct file_writer *writer)
{
    enum status status = writer_flush(writer);
    if (status == STATUS_OK && (injected(EIO) || fsync(writer->fd) != 0)) {
        status = io_error("sync", writer->path);
    }
    if (close(writer->fd) != 0 && status == STATUS_OK) {
        status = io_error("close", writer->path);
    }
    writer->fd = -1;
    if (status == STATUS_OK &&
        (injected(EIO) || rename(writer->temporary, writer->path) != 0)) {
        status = io_error("replace", writer->path);
    }
    if (status == STATUS_OK) {
        status = sync_directory(writer->path);
        writer_free(writer);
        return status;
    }
    file_abort(writer);
    return status;
}

void file_abort(struct file_writer *writer)
{
    if (writer) {
        if (writer->fd >= 0) {
            close(writer->fd);
        }
        unlink(writer->temporary);
        writer_free(writer);
    }
}

enum status file_write(const char *path, const void *data, size_t size)
{
    struct file_writer *writer;
    TRY(file_create(path, &writer));
    enum status status = file_put(writer, data, size);
    if (status != STATUS_OK) {
        file_abort(writer);
        return status;
    }
    return file_commit(writer);
}

enum status file_append_open(const char *path, bool truncate, int *fd)
{
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0);
    *fd = injected(EACCES) ? -1 : open(path, flags, 0666);
    return *fd < 0 ? io_error("open for appending", path) : STATUS_OK;
}

enum status file_append(int fd, const char *path, const void *data, size_t size)
{
    return write_all(fd, path, data, size);
}

enum status file_mkdirs(const char *path)
{
    char *part = mem_strdup(path);
    enum status status = STATUS_OK;
    for (char *end = part + (*part == '/'); status == STATUS_OK; end++) {
        if (*end != '/' && *end != '\0') {
            continue;
        }
        char kept = *end;
        *end = '\0';
        struct stat info;
        if (*part && mkdir(part, 0777) != 0) {
            int error = errno;
            if (error != EEXIST) {
                errno = error;
                status = FAIL(ERR_IO, "%s: cannot make the directory: %s", part, strerror(error));
            } else if (stat(part, &info) == 0 && !S_ISDIR(info.st_mode)) {
                status = FAIL(ERR_IO, "%s: is a file, expected a directory", part);
            }
        }
        *end = kept;
        if (!kept) {
            break;
        }
    }
    mem_free(part);
    return status;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

enum status file_remove(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT) {
        return io_error("remove", path);
    }
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status file_list(const char *path, char ***names, int *count)
{
    *names = NULL;
    *count = 0;
    DIR *directory = injected(EIO) ? NULL : opendir(path);
    if (!directory) {
        return io_error("list the directory", path);
    }
    int capacity = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
            GROW(*names, *count, capacity);
            (*names)[(*count)++] = mem_strdup(entry->d_name);
        }
    }
    closedir(directory);
    if (*count) {
        qsort(*names, (size_t)*count, sizeof **names, compare_names);
    }
    return STATUS_OK;
}

void file_list_free(char **names, int count)
{
    for (int i = 0; i < count; i++) {
        mem_free(names[i]);
    }
    mem_free(names);
}
