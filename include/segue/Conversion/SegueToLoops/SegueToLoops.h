//===- SegueToLoops.h - from fused regions to loops -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Builds the loops of a kernel from the body of a `segue.fused`, by
// construction: what a kernel must produce is written out loop by loop, and
// each loop body pulls the elements it needs through the ops of the region.
// Nothing is allocated or copied, so nothing has to be optimised away.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOLOOPS_SEGUETOLOOPS_H
#define SEGUE_CONVERSION_SEGUETOLOOPS_SEGUETOLOOPS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

namespace segue {

/// The shape of the kernel of a region; an error says which op does not fit.
mlir::FailureOr<KernelShape> inferKernelShape(mlir::Block &body);

/// A reduce over adjacent dimensions, as [outer, reduced, inner].
struct ReduceExtents {
  int64_t outer = 1, reduced = 1, inner = 1;
  static mlir::FailureOr<ReduceExtents> of(ReduceOp op);
};

/// The attribute of a kernel function with the pairs of its operands and results that a
/// launch may give one buffer, as `inPlace` of the launch lists them. Pairs that it leaves
/// out never overlap, and nothing that is listed overlaps in part.
inline constexpr llvm::StringLiteral kInPlaceAttr = "segue.in_place";
/// The attribute of an innermost loop of which no iteration touches what another one
/// writes, whichever of the listed pairs share a buffer.
inline constexpr llvm::StringLiteral kParallelAttr = "segue.parallel";

/// The module of kernels for a GPU, beside SegueDialect::kKernelsModule.
inline constexpr llvm::StringLiteral kGpuKernelsModule = "gpu_kernels";
/// The attributes of a kernel function for a GPU: the blocks of its grid, and the threads of a block, along x.
inline constexpr llvm::StringLiteral kGpuBlocksAttr = "segue.grid_blocks", kGpuThreadsAttr = "segue.block_threads";
/// The bytes that a kernel for a GPU takes the address of a buffer for a multiple of, and the attribute with those that are
/// known for each buffer, where they are less.
inline constexpr int64_t kGpuAlignment = 16;
inline constexpr llvm::StringLiteral kGpuAlignmentsAttr = "segue.alignments";

/// A kernel function with what its launch must say.
struct LoopKernel {
  mlir::func::FuncOp function;
  int64_t range = 0, grain = 1;
  /// The pairs (operand, result) that may share a buffer.
  llvm::SmallVector<int64_t> inPlace;
};

/// Attaches KernelOpInterface to the ops of the segue dialect that kernels know
/// besides elementwise ones.
void registerKernelModels(mlir::DialectRegistry &registry);

/// Builds the function of a kernel at the insertion point of `builder`:
/// `(memref<?xT>..., index begin, index end) -> i64` with one memref per operand
/// and result of `fused`, and the attributes `segue.outputs`, `segue.fixed_bytes`
/// and `segue.bytes_per_unit` (schemas/binary.fbs, Kernel) and `segue.in_place`
/// where there are such pairs. An i1 is stored as an i8 that is 0 or 1.
mlir::FailureOr<LoopKernel> buildLoops(FusedOp fused, llvm::StringRef name, mlir::OpBuilder &builder);

/// Builds the same kernel as what one thread of a GPU does: `(memref<?xT>..., memref<?xi64> fault)`, with the attributes above and
/// `kGpuBlocksAttr` and `kGpuThreadsAttr`; its loops may lie otherwise than those of `buildLoops`, so that its range is another. A bad
/// index is told by an atomic minimum of (block << 16 | 1 + operand) at `fault`. Sums are added in one order, whatever order blocks and
/// threads run in.
mlir::FailureOr<LoopKernel> buildGpuLoops(FusedOp fused, llvm::StringRef name, mlir::OpBuilder &builder);

} // namespace segue

#endif // SEGUE_CONVERSION_SEGUETOLOOPS_SEGUETOLOOPS_H
