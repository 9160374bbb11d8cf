/*===- MpiShim.c - what Segue calls of MPI --------------------------------===*\
|*                                                                            *|
|* Licensed under the Apache License v2.0 with LLVM Exceptions.               *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                    *|
|*                                                                            *|
|*===----------------------------------------------------------------------===*|
|*                                                                            *|
|* Calls that wait are begun and looked at again and again, as MPI knows no   *|
|* limit of time.                                                             *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#include "MpiShim.h"
#include "MpiRollCall.h"
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI counts elements by int. */
static const int64_t mostElements = INT_MAX / 2;

static int fails(int code, const char *call, char *why) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code == MPI_SUCCESS)
    return 0;
  MPI_Error_string(code, text, &length);
  snprintf(why, segueMpiWhyBytes, "%s gives %.400s", call, text);
  return 1;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Waits for what was begun with `code`, for `peer` or, with -1, for any. The pauses grow, as ranks may share
 * processors; from the first on this rank answers who asks whether it waits. */
static int awaitRank(int peer, int code, MPI_Request *request, const char *call, double seconds, char *why) {
  double until = now() + seconds, askAt = until - rollCallSeconds(seconds);
  struct timespec pause = {0, 1000};
  int done = 0, hasAsked = 0;
  if (fails(code, call, why))
    return 1;
  for (int tries = 0;; ++tries) {
    if (fails(MPI_Test(request, &done, MPI_STATUS_IGNORE), call, why))
      return 1;
    if (done)
      return 0;
    if (tries > 20) {
      double time = now();
      if (rollCallHear(call, why, segueMpiWhyBytes))
        return 1;
      if (time > askAt && !hasAsked) {
        rollCallAsk(call);
        hasAsked = 1;
        until = time + rollCallSeconds(seconds); /* also of a rank that was stopped itself, and goes on */
      }
      if (time > until) {
        rollCallEnd(call, peer, seconds, why, segueMpiWhyBytes);
        return 1;
      }
      nanosleep(&pause, NULL);
      if (pause.tv_nsec < 100000)
        pause.tv_nsec *= 2;
    }
  }
}

static int await(int code, MPI_Request *request, const char *call, double seconds, char *why) {
  return awaitRank(-1, code, request, call, seconds, why);
}

static int tooLarge(int64_t count, const char *call, char *why) {
  if (count <= mostElements)
    return 0;
  snprintf(why, segueMpiWhyBytes, "%s: %lld elements in one message are more than MPI counts", call, (long long)count);
  return 1;
}

static int start(int *rank, int *ranks, char *why) {
  int isThere = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&isThere);
  if (!isThere && fails(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread", why))
    return 1;
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED) {
    snprintf(why, segueMpiWhyBytes, "this MPI cannot be called by several threads, one at a time");
    return 1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return fails(MPI_Comm_rank(MPI_COMM_WORLD, rank), "MPI_Comm_rank", why) ||
         fails(MPI_Comm_size(MPI_COMM_WORLD, ranks), "MPI_Comm_size", why) ||
         fails(rollCallStart(*rank, *ranks), "MPI_Allgather", why);
}

static void finish(void) {
  rollCallFinish();
  MPI_Finalize();
}

static void abandon(const char *why) {
  fprintf(stderr, "segue: this rank ends all others: %s\n", why);
  fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int allReduce(float *data, int64_t count, double seconds, char *why) {
  for (int64_t at = 0; at < count || at == 0; at += mostElements) {
    MPI_Request request;
    int64_t left = count - at, part = left < mostElements ? left : mostElements;
    if (await(MPI_Iallreduce(MPI_IN_PLACE, data + at, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request),
              &request, "MPI_Iallreduce", seconds, why))
      return 1;
  }
  return 0;
}

static int reduce(float *data, int64_t count, int root, double seconds, char *why) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int64_t at = 0; at < count || at == 0; at += mostElements) {
    MPI_Request request;
    int64_t left = count - at, part = left < mostElements ? left : mostElements;
    void *from = rank == root ? MPI_IN_PLACE : (void *)(data + at);
    if (await(MPI_Ireduce(from, data + at, (int)part, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD, &request), &request,
              "MPI_Ireduce", seconds, why))
      return 1;
  }
  return 0;
}

static int reduceScatter(const float *whole, float *part, int64_t count, double seconds, char *why) {
  MPI_Request request;
  return tooLarge(count, "MPI_Ireduce_scatter_block", why) ||
         await(MPI_Ireduce_scatter_block(whole, part, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request),
               &request, "MPI_Ireduce_scatter_block", seconds, why);
}

static int allGather(const void *part, void *whole, uint64_t bytes, double seconds, char *why) {
  MPI_Request request;
  return tooLarge((int64_t)bytes, "MPI_Iallgather", why) ||
         await(MPI_Iallgather(part, (int)bytes, MPI_BYTE, whole, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request),
               &request, "MPI_Iallgather", seconds, why);
}

static int broadcast(void *data, uint64_t bytes, int root, double seconds, char *why) {
  for (int64_t at = 0; at < (int64_t)bytes || at == 0; at += mostElements) {
    MPI_Request request;
    int64_t left = (int64_t)bytes - at, part = left < mostElements ? left : mostElements;
    if (await(MPI_Ibcast((char *)data + at, (int)part, MPI_BYTE, root, MPI_COMM_WORLD, &request), &request,
              "MPI_Ibcast", seconds, why))
      return 1;
  }
  return 0;
}

/* A message that is sent, with the copy that MPI reads until the request is done. */
struct Sent {
  struct Sent *next;
  MPI_Request request;
  char data[];
};
static struct Sent *sent;

/* Frees those that are done. */
static void forgetSent(void) {
  for (struct Sent **each = &sent; *each;) {
    struct Sent *one = *each;
    int done = 0;
    /* A request that has failed is done, too: whoever waits for the rank there finds it out. */
    if (MPI_Test(&one->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
      each = &one->next;
      continue;
    }
    *each = one->next;
    free(one);
  }
}

static int sendTo(const void *data, uint64_t bytes, int to, char *why) {
  struct Sent *one;
  forgetSent();
  if (tooLarge((int64_t)bytes, "MPI_Isend", why))
    return 1;
  one = malloc(sizeof(*one) + bytes);
  if (!one) {
    snprintf(why, segueMpiWhyBytes, "there is no memory for a message of %llu bytes to rank %d",
             (unsigned long long)bytes, to);
    return 1;
  }
  memcpy(one->data, data, bytes);
  if (fails(MPI_Isend(one->data, (int)bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, &one->request), "MPI_Isend", why)) {
    free(one);
    return 1;
  }
  one->next = sent;
  sent = one;
  return 0;
}

static int goOn(void) {
  struct timespec pause = {0, 50000};
  forgetSent();
  if (!sent)
    return 0;
  nanosleep(&pause, NULL);
  return 1;
}

static int receive(void *data, uint64_t bytes, int from, double seconds, char *why) {
  MPI_Request request;
  return tooLarge((int64_t)bytes, "MPI_Irecv", why) ||
         awaitRank(from, MPI_Irecv(data, (int)bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, &request), &request,
                   "MPI_Irecv", seconds, why);
}

__attribute__((visibility("default"))) const struct SegueMpi *segueMpi(void) {
  static const struct SegueMpi calls = {start,         finish,    abandon,   allReduce, reduce,
                                        reduceScatter, allGather, broadcast, sendTo,    goOn,
                                        receive};
  return &calls;
}
