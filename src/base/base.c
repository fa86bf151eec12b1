// SPDX-License-Identifier: Apache-2.0
// base.c: error record, log, clocks.
#include "trainer/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Thread_local struct error_record error_record;
static enum log_level log_level = LOG_WARNING;

const char *status_name(enum status status)
{
    static const struct {
        enum status status;
        const char *name;
    } rows[] = {
        {STATUS_OK, "ok"},
        {ERR_USAGE, "usage"},
        {ERR_NOT_FOUND, "not found"},
        {ERR_IO, "input/output"},
        {ERR_CORRUPT, "corrupt"},
        {ERR_MISMATCH, "mismatch"},
        {ERR_UNSUPPORTED, "unsupported"},
        {ERR_NO_MEMORY, "no memory"},
        {ERR_NUMERIC, "numeric"},
        {ERR_DEVICE, "device"},
        {ERR_TIMEOUT, "time-out"},
        {ERR_INTERRUPTED, "interrupted"},
        {ERR_PEER, "peer lost"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        if (rows[i].status == status) {
            return rows[i].name;
        }
    }
    return "unknown";
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

enum status error_set(enum status code, const char *file, int line, const char *format, ...)
{
    // The arguments may point into the old message, so format into a fresh buffer first.
    char message[ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_record.code = code;
    memcpy(error_record.message, message, sizeof message);
    snprintf(error_record.trail, sizeof error_record.trail, "%s:%d", base_name(file), line);
    return code;
}

enum status error_trail(enum status code, const char *file, int line)
{
    size_t used = strlen(error_record.trail);
    snprintf(error_record.trail + used, sizeof error_record.trail - used, " < %s:%d",
             base_name(file), line);
    return code;
}

enum status error_prefix(enum status code, const char *format, ...)
{
    char message[ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof message) {
        snprintf(message + used, sizeof message - (size_t)used, ": %s", error_record.message);
    }
    memcpy(error_record.message, message, sizeof message);
    return code;
}

const struct error_record *error_get(void)
{
    return &error_record;
}

void error_restore(const struct error_record *record)
{
    error_record = *record;
}

void error_clear(void)
{
    error_record.code = STATUS_OK;
    error_record.message[0] = '\0';
    error_record.trail[0] = '\0';
}

void check_failed(const char *file, int line, const char *format, ...)
{
    fprintf(stderr, "trainer: internal error at %s:%d: ", base_name(file), line);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("\nThis is a bug in trainer; please report it with the command you ran.\n", stderr);
    abort();
}

void log_set_level(enum log_level level)
{
    log_level = level;
}

enum log_level log_get_level(void)
{
    return log_level;
}

void log_line(enum log_level level, const char *format, ...)
{
    if (level > log_level) {
        return;
    }
    static const char *const prefixes[] = {"error: ", "warning: ", "", ""};
    char line[ERROR_MESSAGE_SIZE + 64];
    int used = snprintf(line, sizeof line, "%s", prefixes[level]);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t size = MIN((size_t)used + (size_t)MAX(more, 0), sizeof line - 2);
    line[size++] = '\n';
    fwrite(line, 1, size, stderr);
}

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double time_now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double time_wall(void)
{
    return clock_seconds(CLOCK_REALTIME);
}

uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}
