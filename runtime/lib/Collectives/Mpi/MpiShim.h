/*===- MpiShim.h - what Segue calls of MPI ------------------------*- C -*-===*\
|*                                                                            *|
|* Licensed under the Apache License v2.0 with LLVM Exceptions.               *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                    *|
|*                                                                            *|
|*===----------------------------------------------------------------------===*|
|*                                                                            *|
|* MPI has no binary interface of its own: handles differ from one library to *|
|* another. So the calls are compiled against one, in libSegueMPI.so, which   *|
|* is opened at run time by who was asked for MPI.                            *|
|*                                                                            *|
|* Each function returns 0, or writes into `why` what went wrong. A function  *|
|* that waits for others gives up after `seconds`.                            *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#ifndef SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPISHIM_H
#define SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPISHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { segueMpiWhyBytes = 512 };

struct SegueMpi {
  /** Joins the other ranks. MPI is there from the first call to finish(), once in a process. */
  int (*start)(int *rank, int *ranks, char *why);
  void (*finish)(void);
  /** Ends all ranks, with a message. Does not return. */
  void (*abandon)(const char *why);
  int (*allReduce)(float *data, int64_t count, double seconds, char *why);
  int (*reduce)(float *data, int64_t count, int root, double seconds, char *why);
  int (*reduceScatter)(const float *whole, float *part, int64_t count, double seconds, char *why);
  int (*allGather)(const void *part, void *whole, uint64_t bytes, double seconds, char *why);
  int (*broadcast)(void *data, uint64_t bytes, int root, double seconds, char *why);
  /** Sends a copy, and does not wait for the receiver. */
  int (*send)(const void *data, uint64_t bytes, int to, char *why);
  /** Goes on with what was sent, for a tenth of a millisecond at most. Returns 0 if nothing of it is left. */
  int (*goOn)(void);
  int (*receive)(void *data, uint64_t bytes, int from, double seconds, char *why);
};

/** The one function that libSegueMPI.so exports. */
const struct SegueMpi *segueMpi(void);

#ifdef __cplusplus
}
#endif

#endif /* SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPISHIM_H */
