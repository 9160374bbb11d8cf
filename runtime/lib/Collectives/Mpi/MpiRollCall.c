/*===- MpiRollCall.c - which rank is the cause when a call waits ----------===*\
|*                                                                            *|
|* Licensed under the Apache License v2.0 with LLVM Exceptions.               *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                    *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#include "MpiRollCall.h"
#include "MpiShim.h"
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The tag of these messages. Those of tensors have 0. */
static const int rollCallTag = 1;

enum Kind { Question, Answer, Cause, KindCount };

/* Short enough that MPI sends it without the receiver's help, who may be stopped. */
struct Word {
  int kind;
  /* The number of the question. */
  int number;
  /* The call that a rank waits in, or the cause. */
  char text[segueMpiWhyBytes];
};

/* A word under way. MPI reads it until the request is done. */
struct Said {
  MPI_Request request;
  struct Word word;
};

/* Where a rank is; each tells all others when they join. */
struct Place {
  /* Where numbers of processes mean the same, and how people call it. */
  char machine[160], host[160];
  long process;
};

struct Other {
  struct Place place;
  struct Said said[KindCount];
  /* The last question that was answered, and the call that the rank was waiting in then. */
  int answered;
  char call[64];
};

static struct {
  int rank, ranks;
  struct Other *others; /* one for each rank */
  int question;         /* the number of the last one */
} roll;

/* Appends to a text that ends with the buffer. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...) {
  size_t length = strlen(text);
  va_list values;
  va_start(values, format);
  vsnprintf(text + length, size - length, format, values);
  va_end(values);
}

static struct Place ownPlace(void) {
  struct Place place;
  char host[MPI_MAX_PROCESSOR_NAME] = "", space[64] = "";
  int length = 0;
  memset(&place, 0, sizeof(place));
  MPI_Get_processor_name(host, &length);
  snprintf(place.host, sizeof(place.host), "%.150s", host);
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (!file || fscanf(file, "%64s", place.machine) != 1 || readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0)
    place.machine[0] = 0; /* then nobody looks at its process */
  else
    append(place.machine, sizeof(place.machine), " %s", space);
  if (file)
    fclose(file);
  place.process = (long)getpid();
  return place;
}

int rollCallStart(int rank, int ranks) {
  struct Place own = ownPlace(), *places = calloc((size_t)ranks, sizeof(own));
  roll.rank = rank;
  roll.ranks = ranks;
  roll.others = calloc((size_t)ranks, sizeof(struct Other));
  int code = places && roll.others ? MPI_Allgather(&own, (int)sizeof(own), MPI_BYTE, places, (int)sizeof(own),
                                                   MPI_BYTE, MPI_COMM_WORLD)
                                   : MPI_ERR_NO_MEM;
  for (int each = 0; each < ranks && code == MPI_SUCCESS; ++each) {
    roll.others[each].place = places[each];
    for (int kind = 0; kind < KindCount; ++kind)
      roll.others[each].said[kind].request = MPI_REQUEST_NULL;
  }
  free(places);
  return code;
}

double rollCallSeconds(double seconds) { return seconds < 4 ? seconds / 2 : 2; }

/* Says a word to one rank, and does not wait until it hears it. What it has not heard of the kind before is enough. */
static void say(int to, enum Kind kind, int number, const char *text) {
  struct Said *said = &roll.others[to].said[kind];
  int done = 0;
  if (MPI_Test(&said->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
    return;
  memset(&said->word, 0, sizeof(said->word));
  said->word.kind = kind;
  said->word.number = number;
  snprintf(said->word.text, sizeof(said->word.text), "%s", text);
  if (MPI_Isend(&said->word, (int)sizeof(said->word), MPI_BYTE, to, rollCallTag, MPI_COMM_WORLD, &said->request) !=
      MPI_SUCCESS)
    said->request = MPI_REQUEST_NULL;
}

static void sayToAll(enum Kind kind, const char *text) {
  for (int each = 0; each < roll.ranks; ++each)
    if (each != roll.rank)
      say(each, kind, roll.question, text);
}

void rollCallAsk(const char *call) {
  ++roll.question;
  sayToAll(Question, call);
}

/* Returns 1 with the next word and who said it, if there is one. */
static int next(struct Word *word, int *from) {
  MPI_Status status;
  int there = 0;
  if (MPI_Iprobe(MPI_ANY_SOURCE, rollCallTag, MPI_COMM_WORLD, &there, &status) != MPI_SUCCESS || !there ||
      MPI_Recv(word, (int)sizeof(*word), MPI_BYTE, status.MPI_SOURCE, rollCallTag, MPI_COMM_WORLD, &status) !=
          MPI_SUCCESS)
    return 0;
  word->text[sizeof(word->text) - 1] = 0;
  *from = status.MPI_SOURCE;
  return 1;
}

int rollCallHear(const char *call, char *why, size_t size) {
  struct Word word;
  int from;
  while (next(&word, &from)) {
    struct Other *other = &roll.others[from];
    switch (word.kind) {
    case Question:
      say(from, Answer, word.number, call);
      break;
    case Answer:
      other->answered = word.number;
      snprintf(other->call, sizeof(other->call), "%.60s", word.text);
      break;
    default:
      snprintf(why, size, "%s", word.text);
      return 1;
    }
  }
  return 0;
}

static int isHere(int rank) {
  const char *own = roll.others[roll.rank].place.machine;
  return own[0] && !strcmp(own, roll.others[rank].place.machine);
}

/* Returns 1 for a process of this machine that is stopped, by a signal or by who looks at it. */
static int isStopped(int rank) {
  char path[64], line[512] = "";
  const char *state;
  if (!isHere(rank))
    return 0;
  snprintf(path, sizeof(path), "/proc/%ld/stat", roll.others[rank].place.process);
  FILE *file = fopen(path, "r");
  if (!file)
    return 0;
  if (!fgets(line, sizeof(line), file))
    line[0] = 0;
  fclose(file);
  state = strrchr(line, ')'); /* a program's name may have spaces */
  return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

/* What all that are named have in common. */
enum Named { Stopped, Silent };

/* Writes the ranks that are so, but for this one, and where their processes are. Returns how many. `peer` as below. */
static int nameThose(enum Named which, int peer, char *ranks, char *places, size_t size) {
  int found = 0;
  ranks[0] = places[0] = 0;
  for (int each = 0; each < roll.ranks; ++each) {
    struct Other *other = &roll.others[each];
    if (each == roll.rank || (peer >= 0 && each != peer) || other->answered == roll.question ||
        (which == Stopped && !isStopped(each)))
      continue;
    append(ranks, size, "%srank %d", found ? " and " : "", each);
    append(places, size, "%sprocess %ld of %s", found ? " and " : "", other->place.process,
           isHere(each) ? "this machine" : other->place.host);
    ++found;
  }
  return found;
}

void rollCallEnd(const char *call, int peer, double seconds, char *why, size_t size) {
  char ranks[160], places[200];
  int found;
  /* Whoever is stopped is the cause, whatever the others do meanwhile; a rank that is waited for by name comes next.
   * That one may wait for a third. */
  if ((found = nameThose(Stopped, -1, ranks, places, sizeof(ranks))))
    snprintf(why, size, "%s did not come to %s within %.3g s: %s %s stopped", ranks, call, seconds, places,
             found > 1 ? "are" : "is");
  else if ((found = nameThose(Silent, peer, ranks, places, sizeof(ranks))) ||
           (found = nameThose(Silent, -1, ranks, places, sizeof(ranks))))
    snprintf(why, size, "%s did not come to %s within %.3g s: %s %s something else, or hang%s", ranks, call, seconds,
             places, found > 1 ? "do" : "does", found > 1 ? "" : "s");
  else {
    snprintf(why, size, "%s has not ended within %.3g s, and all ranks wait", call, seconds);
    for (int each = 0; each < roll.ranks && each < 8; ++each)
      if (each != roll.rank)
        append(why, size, "%s rank %d in %s", each == (roll.rank == 0) ? ":" : ",", each, roll.others[each].call);
  }
  sayToAll(Cause, why);
}

void rollCallFinish(void) {
  struct Word word;
  int from;
  while (next(&word, &from))
    continue;
  for (int each = 0; each < roll.ranks; ++each)
    for (int kind = 0; kind < KindCount; ++kind)
      if (roll.others[each].said[kind].request != MPI_REQUEST_NULL)
        MPI_Request_free(&roll.others[each].said[kind].request);
}
