//===- RetargetView.h - a view of an output that lies otherwise -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program's commands write an output through a view that is made for its
// declared layout. Where the caller chooses an alternative (Value.alternatives
// in schemas/program.fbs), the view gets other strides. This header says which,
// for verification and for execution alike.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_RETARGETVIEW_H
#define SEGUE_LIB_PROGRAM_RETARGETVIEW_H

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace segue::inline runtime {

/// Returns the strides of a view of a whole tensor of `shape` that is laid by `to`, in
/// place of `viewStrides`, which show it laid by `from`. Dimensions of the view may join
/// and split those of the tensor. Dimensions of extent 1 keep their stride. Returns nothing
/// if the view is not the whole tensor, if a dimension of it would need two strides, or if
/// numbers overflow. All strides are in elements.
std::optional<std::vector<int64_t>> retargetStrides(std::span<const int64_t> shape, std::span<const int64_t> from,
                                                    std::span<const int64_t> to, std::span<const int64_t> viewShape,
                                                    std::span<const int64_t> viewStrides);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_RETARGETVIEW_H
