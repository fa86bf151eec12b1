// SPDX-License-Identifier: Apache-2.0
// team.c: threads that wait for jobs.
#include <sched.h>
#include <stdio.h>

#include "trainer/mem.h"
#include "trainer/thread.h"

struct member {
    struct team *team;
    int index;
    struct thread *thread;
    enum status status;
    struct error_record error;
};

struct team {
    pthread_mutex_t mutex;
    pthread_cond_t started, finished;
    unsigned generation;  // goes up with each job; read without the lock while spinning
    int running;          // members that have not finished the job
    bool ending;
    enum status (*job)(void *context, int member);
    void *context;
    int count;
    struct member *members;  // [count]
};

// About 50 us: longer than what lies between two steps of a small network.
enum { SPINS = 20000 };

static void spin_while(const unsigned *value, unsigned same)
{
    for (int i = 0; i < SPINS && __atomic_load_n(value, __ATOMIC_ACQUIRE) == same; i++) {
        __builtin_ia32_pause();
        if (i % 200 == 199) {
            sched_yield();
        }
    }
}

static enum status member_main(void *argument)
{
    struct member *member = argument;
    struct team *team = member->team;
    unsigned seen = 0;
    for (;;) {
        spin_while(&team->generation, seen);
        pthread_mutex_lock(&team->mutex);
        while (team->generation == seen && !team->ending) {
            pthread_cond_wait(&team->started, &team->mutex);
        }
        bool ending = team->ending;
        seen = team->generation;
        pthread_mutex_unlock(&team->mutex);
        if (ending) {
            return STATUS_OK;
        }
        member->status = team->job(team->context, member->index);
        if (member->status != STATUS_OK) {
            member->error = *error_get();
        }
        pthread_mutex_lock(&team->mutex);
        if (__atomic_sub_fetch(&team->running, 1, __ATOMIC_ACQ_REL) == 0) {
            pthread_cond_signal(&team->finished);
        }
        pthread_mutex_unlock(&team->mutex);
    }
}

enum status team_new(int members, struct team **out)
{
    struct team *team = MEM_NEW(struct team);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->started, NULL);
    pthread_cond_init(&team->finished, NULL);
    team->count = members;
    team->members = MEM_NEW_ARRAY(struct member, members);
    enum status status = STATUS_OK;
    for (int i = 0; i < members; i++) {
        team->members[i].team = team;
        team->members[i].index = i;
    }
    for (int i = 1; i < members && status == STATUS_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "replica-%d", i);
        status = thread_start(member_main, &team->members[i], name, &team->members[i].thread);
    }
    if (status != STATUS_OK) {
        team_free(team);
        team = NULL;
    }
    *out = team;
    return status;
}

void team_free(struct team *team)
{
    if (!team) {
        return;
    }
    pthread_mutex_lock(&team->mutex);
    team->ending = true;
    pthread_cond_broadcast(&team->started);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 1; i < team->count; i++) {
        (void)thread_join(team->members[i].thread);
    }
    pthread_mutex_destroy(&team->mutex);
    pthread_cond_destroy(&team->started);
    pthread_cond_destroy(&team->finished);
    mem_free(team->members);
    mem_free(team);
}

static enum status team_result(struct team *team)
{
    struct member *failed = NULL;
    for (int i = 0; i < team->count; i++) {
        struct member *member = &team->members[i];
        bool better = !failed || (failed->status == ERR_PEER && member->status != ERR_PEER);
        if (member->status != STATUS_OK && better) {
            failed = member;
        }
    }
    if (!failed) {
        return STATUS_OK;
    }
    error_restore(&failed->error);
    return failed->status;
}

enum status team_run(struct team *team, enum status (*job)(void *context, int member),
                     void *context)
{
    if (team->count == 1) {
        return job(context, 0);
    }
    pthread_mutex_lock(&team->mutex);
    team->job = job;
    team->context = context;
    team->running = team->count - 1;
    __atomic_store_n(&team->generation, team->generation + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&team->started);
    pthread_mutex_unlock(&team->mutex);
    struct member *self = &team->members[0];
    self->status = job(context, 0);
    if (self->status != STATUS_OK) {
        self->error = *error_get();
    }
    for (int i = 0; i < SPINS && __atomic_load_n(&team->running, __ATOMIC_ACQUIRE); i++) {
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&team->mutex);
    while (team->running) {
        pthread_cond_wait(&team->finished, &team->mutex);
    }
    pthread_mutex_unlock(&team->mutex);
    return team_result(team);
}
