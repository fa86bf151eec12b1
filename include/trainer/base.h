// SPDX-License-Identifier: Apache-2.0
// base.h: what every file of the program uses: status codes with a compulsory sentence, CHECK for
// bugs, the log, and small macros. Floor 0. Nothing here knows about training.
#ifndef TRAINER_BASE_H
#define TRAINER_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

// Three severities.
//   A bug of ours: CHECK aborts, in all builds.
//   The user's or the environment's fault: a status travels up to main, with a sentence.
//   Advice: a log line.
enum status {
    STATUS_OK = 0,
    ERR_USAGE,        // command line or configuration                      exit 2
    ERR_NOT_FOUND,    // a file, a tensor, a name is not there              exit 1
    ERR_IO,           // the operating system refused a read, write, ...    exit 1
    ERR_CORRUPT,      // a file is not what its format says                 exit 1
    ERR_MISMATCH,     // right format, wrong content: shape, dtype, model   exit 1
    ERR_UNSUPPORTED,  // valid, but not something this program does         exit 1
    ERR_NO_MEMORY,    //                                                    exit 1
    ERR_NUMERIC,      // NaN or infinity in training                        exit 1
    ERR_DEVICE,       // a device or its library failed                     exit 1
    ERR_TIMEOUT,      // a wait ran into its limit                          exit 1
    ERR_INTERRUPTED,  // stopped by a signal, state saved                   exit 3
    ERR_PEER,         // another process or replica was lost                exit 4
    STATUS_COUNT
};

const char *status_name(enum status status);

// Records the error of this thread and returns `code`. The sentence says what, where (file, line,
// record, byte, tensor, rank), what was expected and what to do. Use: return FAIL(ERR_X, "...", ...);
#define FAIL(code, ...) error_set((code), __FILE__, __LINE__, __VA_ARGS__)

// Returns from the calling function when `call` fails, adding this line to the error's trail.
#define TRY(call)                                                 \
    do {                                                          \
        enum status try_status_ = (call);                         \
        if (try_status_ != STATUS_OK) {                           \
            return error_trail(try_status_, __FILE__, __LINE__);  \
        }                                                         \
    } while (0)

// The same for functions with clean-up: stores the status and jumps.
#define TRY_GOTO(status, call, label)                                   \
    do {                                                                \
        (status) = (call);                                              \
        if ((status) != STATUS_OK) {                                    \
            (void)error_trail((status), __FILE__, __LINE__);            \
            goto label;                                                 \
        }                                                               \
    } while (0)

// One error record a thread. `error_set` replaces it, `error_trail` appends a place.
enum status error_set(enum status code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum status error_trail(enum status code, const char *file, int line);
// Puts "text: " before the message: a caller adds the place it knows ("FILE", "layer conv1").
enum status error_prefix(enum status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum { ERROR_MESSAGE_SIZE = 4096, ERROR_TRAIL_SIZE = 256 };
struct error_record {
    enum status code;
    char message[ERROR_MESSAGE_SIZE];
    char trail[ERROR_TRAIL_SIZE];  // "bundle.c:88 < checkpoint.c:301", innermost first
};
// Borrowed; valid until this thread's next error. Copy it to hand it to another thread.
const struct error_record *error_get(void);
void error_restore(const struct error_record *record);  // a joiner takes over a worker's error
void error_clear(void);

// A bug. Prints the sentence with file and line, and aborts.
#define CHECK(condition, ...)                              \
    do {                                                   \
        if (!(condition)) {                                \
            check_failed(__FILE__, __LINE__, __VA_ARGS__); \
        }                                                  \
    } while (0)
void check_failed(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DETAIL };
void log_set_level(enum log_level level);  // default LOG_WARNING
enum log_level log_get_level(void);
// One line to stderr. Thread-safe; a line is written with one call.
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define LOG_WARN(...) log_line(LOG_WARNING, __VA_ARGS__)
#define LOG_NOTE(...) log_line(LOG_INFO, __VA_ARGS__)

double time_now(void);        // seconds, monotonic
double time_wall(void);       // seconds since 1970
uint64_t hash_bytes(uint64_t hash, const void *data, size_t size);  // FNV-1a; start with HASH_START
#define HASH_START UINT64_C(0xcbf29ce484222325)

#ifdef __cplusplus
}
#endif
#endif
