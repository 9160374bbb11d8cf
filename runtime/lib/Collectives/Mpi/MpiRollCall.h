/*===- MpiRollCall.h - which rank is the cause when a call waits ---*- C -*-===*\
|*                                                                            *|
|* Licensed under the Apache License v2.0 with LLVM Exceptions.               *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                    *|
|*                                                                            *|
|*===----------------------------------------------------------------------===*|
|*                                                                            *|
|* MPI says that a call has not ended, and nothing of who is missing. So a    *|
|* rank whose patience is about to end asks all others by messages with a tag *|
|* of their own, and who waits in a call of MPI's, too, answers: whoever is   *|
|* silent then is the cause. It is named to all before anybody ends, so that  *|
|* all say the same.                                                          *|
|*                                                                            *|
|* Of a process on the same machine the system says whether it is stopped.    *|
|*                                                                            *|
\*===----------------------------------------------------------------------===*/

#ifndef SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPIROLLCALL_H
#define SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPIROLLCALL_H

#include <stddef.h>

/** Tells all ranks where each is, and waits for them. Returns a code of MPI's. */
int rollCallStart(int rank, int ranks);

/** Returns how long before the end of `seconds` of patience the roll is to be called. */
double rollCallSeconds(double seconds);

/** Asks all others whether they wait, too. */
void rollCallAsk(const char *call);

/** Answers those who ask, and hears those who answer. Returns 1 with the reason in `why` (of `size` bytes) if another
 *  rank has named the cause, and 0 otherwise. For who waits in `call`. */
int rollCallHear(const char *call, char *why, size_t size);

/** Writes into `why` who has not come to `call` within `seconds`, of those that were asked, and tells all others.
 *  `peer` is the one rank that the call waits for; -1: it may be any. */
void rollCallEnd(const char *call, int peer, double seconds, char *why, size_t size);

/** Takes what is left of these messages, before MPI ends. */
void rollCallFinish(void);

#endif /* SEGUE_RUNTIME_LIB_COLLECTIVES_MPI_MPIROLLCALL_H */
