// SPDX-License-Identifier: Apache-2.0
// thread.c: barrier with a limit, threads that hand over their error.
#include "trainer/thread.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "trainer/mem.h"

struct barrier {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    int count;
    int arrived;
    int broken_by;        // -1: whole
    unsigned generation;  // goes up when all came; read without the lock while spinning
    bool present[];       // [count], who came in this generation
};

struct barrier *barrier_new(int count)
{
    struct barrier *barrier = mem_alloc(sizeof *barrier + sizeof(bool) * (size_t)count);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&barrier->mutex, NULL);
    pthread_cond_init(&barrier->condition, &attributes);
    pthread_condattr_destroy(&attributes);
    barrier->count = count;
    barrier->broken_by = -1;
    return barrier;
}

void barrier_free(struct barrier *barrier)
{
    if (barrier) {
        pthread_mutex_destroy(&barrier->mutex);
        pthread_cond_destroy(&barrier->condition);
        mem_free(barrier);
    }
}

// With the lock held and the time over: says who is missing.
static enum status barrier_late(struct barrier *barrier, int member, double seconds,
                                const char *what)
{
    char missing[256] = "";
    size_t used = 0;
    for (int i = 0; i < barrier->count && used + 16 < sizeof missing; i++) {
        if (!barrier->present[i]) {
            used += (size_t)snprintf(missing + used, sizeof missing - used, " %d", i);
        }
    }
    barrier->broken_by = member;
    pthread_cond_broadcast(&barrier->condition);
    return FAIL(ERR_TIMEOUT, "%s: replica %d waited %.0f s; replicas that did not come:%s", what,
                member, seconds, missing);
}

static enum status barrier_sleep(struct barrier *barrier, unsigned generation, int member,
                                 double seconds, const char *what)
{
    double end = time_now() + seconds;
    struct timespec limit = {.tv_sec = (time_t)end,
                             .tv_nsec = (long)((end - (double)(time_t)end) * 1e9)};
    while (barrier->generation == generation && barrier->broken_by < 0) {
        if (pthread_cond_timedwait(&barrier->condition, &barrier->mutex, &limit) == ETIMEDOUT &&
            barrier->generation == generation && barrier->broken_by < 0) {
            return barrier_late(barrier, member, seconds, what);
        }
    }
    if (barrier->generation == generation) {
        return FAIL(ERR_PEER, "%s: replica %d failed, replica %d stops", what, barrier->broken_by,
                    member);
    }
    return STATUS_OK;
}

enum status barrier_wait(struct barrier *barrier, int member, double seconds, const char *what)
{
    if (barrier->count == 1) {
        return STATUS_OK;
    }
    pthread_mutex_lock(&barrier->mutex);
    enum status status = STATUS_OK;
    if (barrier->broken_by >= 0) {
        status = FAIL(ERR_PEER, "%s: replica %d failed, replica %d stops", what,
                      barrier->broken_by, member);
        pthread_mutex_unlock(&barrier->mutex);
        return status;
    }
    unsigned generation = barrier->generation;
    barrier->present[member] = true;
    if (++barrier->arrived == barrier->count) {
        barrier->arrived = 0;
        memset(barrier->present, 0, sizeof(bool) * (size_t)barrier->count);
        __atomic_store_n(&barrier->generation, generation + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&barrier->condition);
        pthread_mutex_unlock(&barrier->mutex);
        return STATUS_OK;
    }
    pthread_mutex_unlock(&barrier->mutex);
    // Replicas of one process arrive within microseconds of each other: spin first, yielding so
    // that more replicas than cores still make progress.
    for (int i = 0; i < 2000; i++) {
        if (__atomic_load_n(&barrier->generation, __ATOMIC_ACQUIRE) != generation) {
            return STATUS_OK;
        }
        if (i % 50 == 49) {
            sched_yield();
        }
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&barrier->mutex);
    status = barrier_sleep(barrier, generation, member, seconds, what);
    pthread_mutex_unlock(&barrier->mutex);
    return status;
}

void barrier_break(struct barrier *barrier, int member)
{
    pthread_mutex_lock(&barrier->mutex);
    if (barrier->broken_by < 0) {
        barrier->broken_by = member;
    }
    pthread_cond_broadcast(&barrier->condition);
    pthread_mutex_unlock(&barrier->mutex);
}

struct thread {
    pthread_t handle;
    enum status (*function)(void *);
    void *argument;
    enum status status;
    struct error_record error;
    char name[16];  // the kernel's limit
};

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    pthread_setname_np(pthread_self(), thread->name);
    thread->status = thread->function(thread->argument);
    if (thread->status != STATUS_OK) {
        thread->error = *error_get();
    }
    return NULL;
}

enum status thread_start(enum status (*function)(void *), void *argument, const char *name,
                         struct thread **out)
{
    struct thread *thread = MEM_NEW(struct thread);
    thread->function = function;
    thread->argument = argument;
    snprintf(thread->name, sizeof thread->name, "%s", name);
    *out = NULL;
    int error = pthread_create(&thread->handle, NULL, thread_main, thread);
    if (error) {
        mem_free(thread);
        return FAIL(ERR_DEVICE, "cannot start the thread '%s': %s", name, strerror(error));
    }
    *out = thread;
    return STATUS_OK;
}

enum status thread_join(struct thread *thread)
{
    if (!thread) {
        return STATUS_OK;
    }
    pthread_join(thread->handle, NULL);
    enum status status = thread->status;
    if (status != STATUS_OK) {
        error_restore(&thread->error);
    }
    mem_free(thread);
    return status;
}

int thread_cpu_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
