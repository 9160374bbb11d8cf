//===- InProcess.h - ranks that are threads of one process ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A transport for tests, and for trying what several ranks do without starting any. Sums
// are added in the order of ranks.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_COLLECTIVES_INPROCESS_H
#define SEGUE_RUNTIME_COLLECTIVES_INPROCESS_H

#include "segue/runtime/Collectives/Transport.h"
#include <optional>
#include <vector>

namespace segue::inline runtime {

struct InProcessOptions {
  /// With a seed, ranks arrive at operations late, and leave them late, by chance.
  std::optional<uint64_t> seed;
  /// A call gives up, naming who is missing, after so long.
  double timeoutSeconds = 30;
  /// The call of this rank that fails, counted from 0; and whether the rank then says nothing more, as one that was
  /// killed, instead of failing with an error that others are told.
  struct Fault {
    int rank = 0;
    uint64_t call = 0;
    bool vanishes = false;
  };
  std::optional<Fault> fault;
};

/// Makes the ends of a group, one for each rank.
std::vector<std::shared_ptr<Transport>> inProcessRanks(int ranks, InProcessOptions options = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_COLLECTIVES_INPROCESS_H
