// SPDX-License-Identifier: Apache-2.0
// thread.h: a barrier with a limit, and joining threads that hand over their error. Compute loops
// use OpenMP (the team oneDNN uses, so that there is one); this is for replicas and input workers.
// Floor 0.
#ifndef TRAINER_THREAD_H
#define TRAINER_THREAD_H

#include <pthread.h>

#include "trainer/base.h"

// A barrier of `count` members that does not wait for ever. Spins briefly, then sleeps.
struct barrier;
struct barrier *barrier_new(int count);
void barrier_free(struct barrier *barrier);
// Waits until all members came, at most `seconds`. ERR_TIMEOUT names the members that are missing;
// ERR_PEER when a member called barrier_break. `member` in [0, count).
enum status barrier_wait(struct barrier *barrier, int member, double seconds, const char *what);
// A member that failed releases all others, now and in every later wait.
void barrier_break(struct barrier *barrier, int member);

// A thread whose function returns a status; thread_join gives it back with its error record.
struct thread;
enum status thread_start(enum status (*function)(void *), void *argument, const char *name,
                         struct thread **out);
enum status thread_join(struct thread *thread);  // frees; NULL is fine (STATUS_OK)

// A team that does the same job on every member at once; member 0 is the caller. Members spin for a
// moment and then sleep, so a job that follows at once starts within a microsecond.
struct team;
enum status team_new(int members, struct team **out);
void team_free(struct team *team);  // NULL is fine
// Runs job(context, member) on all members and waits for them. The first failure (lowest member, a
// lost peer last, as it is only the consequence of another) is returned with its error record.
enum status team_run(struct team *team, enum status (*job)(void *context, int member),
                     void *context);

int thread_cpu_count(void);  // cores this process may use

#endif
