// SPDX-License-Identifier: Apache-2.0
// team.c: threads that wait for jobs. Starting and ending a job costs a few hundred nanoseconds while
// the members spin; the lock is taken only by those who sleep and by those who have to wake them.
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
    int count;
    struct member *members;  // [count]; 0 is the caller
    enum status (*job)(void *context, int member);  // published by `generation`
    void *context;
    unsigned generation;     // atomic: goes up with each job
    int running;             // atomic: members that have not finished it
    bool ending;             // atomic
    pthread_mutex_t mutex;
    pthread_cond_t started, finished;
    int sleepers;            // atomic: members that wait on `started`
    bool caller_sleeps;      // atomic: the caller waits on `finished`
};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, value) __atomic_store_n(&(x), (value), __ATOMIC_SEQ_CST)

// Some 60 us of spinning, giving the core away now and then: longer than what lies between two jobs of
// a training step, and short enough that a machine with other work is not kept from it.
enum { SPINS = 4000, SPINS_A_YIELD = 256 };

static void relax(int i)
{
    __builtin_ia32_pause();
    if (i % SPINS_A_YIELD == SPINS_A_YIELD - 1) {
        sched_yield();
    }
}

static void await_job(struct team *team, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (LOAD(team->generation) != seen) {
            return;
        }
        relax(i);
    }
    pthread_mutex_lock(&team->mutex);
    __atomic_add_fetch(&team->sleepers, 1, __ATOMIC_SEQ_CST);
    while (LOAD(team->generation) == seen) {
        pthread_cond_wait(&team->started, &team->mutex);
    }
    __atomic_sub_fetch(&team->sleepers, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&team->mutex);
}

static void run_job(struct member *member)
{
    member->status = member->team->job(member->team->context, member->index);
    if (member->status != STATUS_OK) {
        member->error = *error_get();
    }
}

static enum status member_main(void *argument)
{
    struct member *member = argument;
    struct team *team = member->team;
    for (unsigned seen = 0;; seen++) {
        await_job(team, seen);
        if (LOAD(team->ending)) {
            return STATUS_OK;
        }
        run_job(member);
        if (__atomic_sub_fetch(&team->running, 1, __ATOMIC_SEQ_CST) == 0 &&
            LOAD(team->caller_sleeps)) {
            pthread_mutex_lock(&team->mutex);
            pthread_cond_signal(&team->finished);
            pthread_mutex_unlock(&team->mutex);
        }
    }
}

static void start(struct team *team)
{
    STORE(team->generation, team->generation + 1);
    if (LOAD(team->sleepers)) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->started);
        pthread_mutex_unlock(&team->mutex);
    }
}

static void await_members(struct team *team)
{
    for (int i = 0; i < SPINS; i++) {
        if (LOAD(team->running) == 0) {
            return;
        }
        relax(i);
    }
    pthread_mutex_lock(&team->mutex);
    STORE(team->caller_sleeps, true);
    while (LOAD(team->running)) {
        pthread_cond_wait(&team->finished, &team->mutex);
    }
    STORE(team->caller_sleeps, false);
    pthread_mutex_unlock(&team->mutex);
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
        snprintf(name, sizeof name, "member-%d", i);
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
    STORE(team->ending, true);
    start(team);
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
    team->job = job;
    team->context = context;
    STORE(team->running, team->count - 1);
    start(team);
    run_job(&team->members[0]);
    await_members(team);
    return team_result(team);
}
