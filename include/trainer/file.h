// SPDX-License-Identifier: Apache-2.0
// file.h: reading whole files and writing files that survive. All file access of the program goes
// through here, so that tests can make the n-th operation fail. Floor 0.
#ifndef TRAINER_FILE_H
#define TRAINER_FILE_H

#include "trainer/base.h"

// Reads a whole regular file. Caller frees *data with mem_free; (*data)[*size] is NUL.
// ERR_NOT_FOUND, ERR_IO; ERR_UNSUPPORTED when it is larger than `limit` bytes.
enum status file_read(const char *path, size_t limit, uint8_t **data, size_t *size);

// Reads exactly `size` bytes from byte `offset` on. ERR_CORRUPT when the file ends before.
enum status file_read_at(const char *path, uint64_t offset, void *data, size_t size);

// Writing. Bytes go to a temporary name beside `path` ("path.tmp-PID"); file_commit flushes,
// fsyncs, renames and fsyncs the directory: a reader sees the old file or the new one, never half.
// After any failure the writer has to be aborted; abort removes the temporary file.
struct file_writer;
enum status file_create(const char *path, struct file_writer **out);
enum status file_put(struct file_writer *writer, const void *data, size_t size);
uint64_t file_position(const struct file_writer *writer);
enum status file_commit(struct file_writer *writer);  // frees the writer, also on failure
void file_abort(struct file_writer *writer);          // NULL is fine
enum status file_write(const char *path, const void *data, size_t size);  // create, put, commit

// A log that grows: opened for append, each put is one write call, no rename.
enum status file_append_open(const char *path, bool truncate, int *fd);
enum status file_append(int fd, const char *path, const void *data, size_t size);

enum status file_mkdirs(const char *path);  // like mkdir -p; names the part that is in the way
bool file_exists(const char *path);
bool file_is_directory(const char *path);
enum status file_remove(const char *path);  // a missing file is fine
// The names in a directory, sorted, without "." and "..". Caller frees with file_list_free.
enum status file_list(const char *path, char ***names, int *count);
void file_list_free(char **names, int count);

// Fault injection for tests: the n-th operation of the given kinds from now (1 = the next) fails
// with ENOSPC (writes), EIO (others). 0 switches it off. Not thread-safe.
void file_fail_after(int n);

#endif
