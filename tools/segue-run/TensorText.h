//===- TensorText.h - tensors on the command line ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A tensor is written `2x3xf32=1,2,3,4,5,6`; one value stands for all elements
// (`2x3xf32=0.5`), none for zeros, a scalar is `f32=1`. `@file.npy` names a
// file. Before it may stand a name: `tokens=@tokens.npy`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_TENSORTEXT_H
#define SEGUE_TOOLS_SEGUERUN_TENSORTEXT_H

#include "segue/runtime/Tensor/Tensor.h"
#include <string>
#include <string_view>

namespace segue::tool {

/// An argument taken apart: `tokens=@tokens.npy`.
struct NamedText {
  /// The name; empty if none was given.
  std::string name;
  /// `@file` or a literal.
  std::string text;
};

NamedText splitName(std::string_view argument);

/// Reads a literal or the file that `@` names. Throws InvalidArgument saying
/// what is wrong where, and what readNpy throws.
Tensor parseTensor(const DeviceRef &device, std::string_view text);

/// The literal of a tensor, parsed again to the same bits; at most `limit`
/// elements, then `...`.
std::string formatTensor(const Tensor &tensor, uint64_t limit = UINT64_MAX);

/// Returns element `index` (row-major) of a dense tensor, as a number.
double elementAt(const Tensor &dense, uint64_t index);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_TENSORTEXT_H
