//===- Pieces.h - the pieces of a product, by threads or in turn -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_PIECES_H
#define SEGUE_RUNTIME_LIB_ENGINE_PIECES_H

#include "segue/runtime/Engine/Threads.h"

namespace segue::inline runtime {

/// Calls `run(piece, thread)` for each piece: on all threads, or, where that costs more
/// than it saves, one after the other in this one.
template <typename Run> void runPieces(const Threads &threads, bool serial, int64_t pieces, const Run &run) {
  if (!serial)
    return threads.forEachItem(pieces, run);
  FlushDenormals flush;
  for (int64_t piece = 0; piece < pieces; ++piece)
    run(piece, 0);
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_PIECES_H
