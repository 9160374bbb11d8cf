//===- StitchHints.h - copies that a run left between programs --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads what the runtime's `StitchReport::writeHints` writes, version 1:
//
//   {"version": 1, "edges": [
//     {"producer": {"signature": "16 hex digits", "program": "forward", "output": "y"},
//      "consumer": {"signature": "…", "program": "forward", "input": "x"},
//      "change": "producer", "bytes_per_step": 8192,
//      "from": {"space": "device_dram", "strides": [64, 1], "tile": [], "storage": "element",
//               "zero_points": false, "alignment": 64},
//      "to": {…}}]}
//
// and keeps of each edge what a compiler can do: the end to change, and the
// layout that it should have. An edge from outside has no producer.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STITCHHINTS_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STITCHHINTS_H

#include "mlir/IR/BuiltinOps.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

struct StitchHint {
  /// Interface hash, name and value of the program to change.
  uint64_t signature = 0;
  std::string program, value;
  bool isInput = false;
  LayoutAttr layout;
  uint64_t bytesPerStep = 0;
  /// The place in the file, "edges[3]", for messages.
  std::string where;
};

/// The hints of the file `path`, in its order. An error, at `loc`, names the key
/// that is wrong.
mlir::FailureOr<std::vector<StitchHint>> readStitchHints(llvm::StringRef path, mlir::Location loc);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STITCHHINTS_H
