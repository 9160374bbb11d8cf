//===- MessageChoice.h - whether ranks use NCCL -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks tell each other what they have and what they were asked for. Each draws the same
// conclusion from it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_NCCL_MESSAGECHOICE_H
#define SEGUE_LIB_CUDA_NCCL_MESSAGECHOICE_H

#include "segue/runtime/Cuda/Nccl.h"
#include <span>

namespace segue::inline runtime::cuda {

/// A MessageWord is what a rank tells the others.
struct MessageWord {
  MessageWay way = MessageWay::Automatic;
  /// The number by which the driver tells its GPU from all others; empty without one.
  std::string gpu;
  /// The version of its NCCL; 0: it has none, and `lack` says why.
  int nccl = 0;
  std::string lack;
  /// Why messages of its group go by way of the host, whatever it has; empty: nothing stands in the way.
  std::string hostFor;

  std::string text() const;
  static MessageWord parse(const std::string &text);
};

/// How messages go, and why; `why` is empty where no rank has a GPU, or none may use NCCL.
struct MessageChoice {
  bool usesNccl = false;
  std::string why;
};

/// Throws Unsupported where a rank asks for NCCL and it cannot be, RankFailed where ranks ask for different ways.
MessageChoice chooseMessages(std::span<const MessageWord> words);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_NCCL_MESSAGECHOICE_H
