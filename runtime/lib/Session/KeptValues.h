//===- KeptValues.h - what a load writes over, as it was --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_KEPTVALUES_H
#define SEGUE_RUNTIME_LIB_SESSION_KEPTVALUES_H

#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// Copies of tensors in memory of the host, or on the disk where there is one, by which a load that fails midway
/// leaves everything as it was.
class KeptValues {
public:
  /// Copies the values aside and blocks until they are there. Keeps none where the
  /// host (or the disk) has no room for all of them: a load must not need twice its size.
  /// Throws the error of a copy.
  KeptValues(const DeviceRef &device, std::span<const Tensor> values);
  /// Keeps none.
  KeptValues() = default;

  /// Writes all values back and blocks until they are there; returns false if none were
  /// kept or one did not arrive.
  bool putBack() const;

private:
  struct Kept {
    Tensor copy, value;
  };
  std::vector<Kept> kept_;
  bool isWhole_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_KEPTVALUES_H
