//===- StateCodes.h - optimizer states of a byte per element ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A state is cut into blocks of equally many elements, in row-major order. Each element is a code,
// an i8, and each block has a scale in f32. With `s` for the scale, `c` for the code and `x` for the
// element:
//
//   Signed: x = s * (c / 127) * |c / 127|. `s` is the largest |x| of the block, and c in [-127, 127].
//   Square: sqrt(x) = s * ((c + 129) / 256)^2. `s` is the largest sqrt(x) of the block.
//
// Codes lie denser at 0, where most elements are: they reach down to 1/16,000 of the largest |x|, and to
// 1/65,536 of the largest sqrt(x). No code of Square is 0 where the scale is not. What is divided by the
// root of such a mean would be without bound if that were rounded to 0; it is rounded up instead. All zeros
// with a scale of zero, as states begin, are zeros.
//
// A mean moves by less than codes can tell apart, by a thousandth in a step, and would stay where it is for
// ever if it got the nearest code each time. An element between two codes gets the upper one as often as it
// takes for the mean over steps to be right. When it does is a function of the step and of the place in the
// block, so that a step has the same bits wherever and whenever it is made.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STATECODES_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STATECODES_H

#include "segue/Dialect/Segue/IR/Formula.h"

namespace segue {

/// How the elements of a state are kept in a byte: those of means, which have a sign, or those of means of squares.
enum class StateCode { None, Signed, Square };

/// A state in codes: an i8 for each element, of the shape blocks x elements of a block, and an f32 for each block.
struct CodedState {
  mlir::Value codes, scales;
};

/// Returns how many elements of a state of this shape share a scale: the largest of 256, 128 and 64 that divides
/// them. 0 where the state stays in f32: it cannot be cut, or has less than 4,096 elements, which are nothing in
/// a model and often matter most.
int64_t blockOfCodes(llvm::ArrayRef<int64_t> shape);

/// Returns the elements of a state in f32, in the shape given.
mlir::Value decodeState(Formula &f, StateCode code, CodedState state, llvm::ArrayRef<int64_t> shape);

/// Returns a state in codes. `step`, the number of the step as a scalar in f32, decides which of two codes an
/// element between them gets.
CodedState encodeState(Formula &f, StateCode code, mlir::Value state, int64_t block, mlir::Value step);

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_STATECODES_H
