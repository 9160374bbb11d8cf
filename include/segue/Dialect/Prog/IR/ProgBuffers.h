//===- ProgBuffers.h - sizes and types of buffers ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// How the tensors of a signature lie in bytes. Verifiers, the conversion from
// segue, the planner and the file format all measure by these functions.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGBUFFERS_H
#define SEGUE_DIALECT_PROG_IR_PROGBUFFERS_H

#include "mlir/IR/BuiltinTypes.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include <optional>

namespace segue::prog {

/// The alignment of temporaries and of constants, in bytes.
inline constexpr uint64_t kAlignment = kDefaultAlignment;

using segue::elementBytes;

/// Returns the space of a buffer: device_dram unless its type names another.
segue::Space spaceOf(mlir::MemRefType type);

/// Returns true for device_dram and device_l1: where commands compute.
inline bool isOnDevice(segue::Space space) {
  return space == segue::Space::DeviceDram || space == segue::Space::DeviceL1;
}
inline bool isOnDevice(mlir::MemRefType type) { return isOnDevice(spaceOf(type)); }

/// The memory space attribute of `space`: null for device_dram.
mlir::Attribute spaceAttr(mlir::MLIRContext *context, segue::Space space);

/// Returns the strides of a buffer or view; nothing when they are dynamic or there is an
/// offset.
std::optional<llvm::SmallVector<int64_t>> stridesOf(mlir::MemRefType type);

/// Returns the strides of a dense row-major tensor.
llvm::SmallVector<int64_t> denseStrides(llvm::ArrayRef<int64_t> shape);

/// The buffer of `shape` with `strides`; dense ones are left out of the type.
mlir::MemRefType viewType(llvm::ArrayRef<int64_t> shape, mlir::Type element, llvm::ArrayRef<int64_t> strides,
                          mlir::Attribute space);

/// Returns the bytes from the first to the end of the last element; nothing if this is not
/// a number of 63 bits.
std::optional<uint64_t> viewBytes(mlir::MemRefType type);

/// The type of the buffer that holds a tensor of this type, following its
/// layout: bytes where strides alone do not show it. Null where the type cannot
/// be stored.
mlir::MemRefType bufferType(mlir::RankedTensorType type);

/// Returns the type of `n` bytes in `space`.
mlir::MemRefType bytesType(mlir::MLIRContext *context, uint64_t n, mlir::Attribute space = {});

} // namespace segue::prog

#endif // SEGUE_DIALECT_PROG_IR_PROGBUFFERS_H
