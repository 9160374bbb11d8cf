//===- Mpi.h - ranks that mpirun has started --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_MPI_H
#define SEGUE_RUNTIME_COLLECTIVES_MPI_H

#include "segue/runtime/Collectives/Transport.h"

namespace segue::inline runtime {

/// Joins the ranks that mpirun has started with this process; alone, there is one. The library libSegueMPI.so is
/// opened, which is built where MPI is: beside the program, in its ../lib, where the system looks, or as SEGUE_MPI_LIBRARY
/// says. `timeoutSeconds`: how long a call waits for other ranks. Once in a process, and MPI is left when the transport
/// goes. Throws Unsupported where there is no such library, RankFailed where MPI fails.
std::shared_ptr<Transport> mpiTransport(double timeoutSeconds = 600);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_MPI_H
