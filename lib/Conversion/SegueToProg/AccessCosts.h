//===- AccessCosts.h - what commands pay for where values lie ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one place where layouts are compared: `segue-choose-layouts` asks it for
// values between programs, the placement of a function (Placement.cpp) for its
// temporaries. Prices are bytes moved, by the figures of LayoutCosts.h.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOPROG_ACCESSCOSTS_H
#define SEGUE_LIB_CONVERSION_SEGUETOPROG_ACCESSCOSTS_H

#include "Window.h"
#include "segue/Dialect/Prog/Transforms/LayoutCosts.h"
#include "llvm/ADT/DenseSet.h"

namespace segue {

/// The most dimensions whose orders are tried: there are 24 at most.
inline constexpr int64_t kMostOrderedDimensions = 4;

/// Calls `visit` with the strides of each order of the dimensions, dense rows
/// first. There is no other where the tensor has more dimensions than can be tried.
void forEachOrder(llvm::ArrayRef<int64_t> shape, llvm::function_ref<void(llvm::ArrayRef<int64_t>)> visit);

/// Returns the bytes that a copy of all of `window` moves.
inline uint64_t conversionOf(const Window &window) { return layout_costs::kMovedPerConvertedByte * window.bytes(); }

/// Returns the window of `value` in dense rows, which is in no buffer.
Window denseWindow(mlir::Value value);

/// Prices of one function, which must not change meanwhile. Answers are kept, so
/// that each view is followed once per layout of what it shows.
class AccessCosts {
public:
  /// Counts `written` values as such that have a place of their own, whatever they are made of.
  explicit AccessCosts(const llvm::DenseSet<mlir::Value> *written = nullptr) : written(written) {}

  /// All that read `value`, if it lies in `window`.
  uint64_t read(mlir::Value value, const Window &window);

  /// The command that makes `value`, a result of the function that lies in `place`,
  /// and those that read it there.
  uint64_t write(mlir::Value value, const Window &place);

  /// Returns what writing `value` to a place in tiles costs, which a copy of dense rows fills.
  uint64_t writeTiles(mlir::Value value);

  /// Returns true if what reads the view `op` is served better by a dense copy than by the
  /// view of an operand in `window`.
  bool isWorthCopying(mlir::Operation *op, const Window &operand);

  /// The cheapest window for a temporary, in no buffer; dense rows where no other
  /// order is cheaper. `saved`: what it moves less than these.
  Window cheapestTemporary(mlir::Value value, uint64_t &saved);

  /// Returns what the command pays that writes `value` straight to `place`; nothing if it
  /// cannot. Transposes and reshapes on the way are followed.
  static std::optional<uint64_t> writeDirect(mlir::Value value, const Window &place);

private:
  uint64_t readView(mlir::Operation *op, const Window &window);
  uint64_t copyOfView(mlir::Operation *op);

  const llvm::DenseSet<mlir::Value> *written;
  /// The bytes that readers of a view pay if it is dense, by view.
  llvm::DenseMap<mlir::Value, uint64_t> readDense;
};

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOPROG_ACCESSCOSTS_H
