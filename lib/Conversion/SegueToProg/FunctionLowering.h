//===- FunctionLowering.h - one function to one program ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOPROG_FUNCTIONLOWERING_H
#define SEGUE_LIB_CONVERSION_SEGUETOPROG_FUNCTIONLOWERING_H

#include "AccessCosts.h"
#include "ConstantPool.h"
#include "Window.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "llvm/ADT/MapVector.h"

namespace segue {

/// Returns true if commands can read and write a tensor of `type` where it lies: strided,
/// in the memory of the device.
inline bool isComputedOn(mlir::RankedTensorType type) {
  auto layout = mlir::dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  return !layout || (layout.isStrided() && prog::isOnDevice(layout.getSpace()));
}

struct LoweringCounts {
  uint64_t copies = 0;
  uint64_t copiedBytes = 0;
  uint64_t placed = 0;
  /// The number of temporaries that do not lie in dense rows, and the bytes that this saves.
  uint64_t ordered = 0;
  uint64_t orderedBytes = 0;
  /// The number of products that read a weight of codes.
  uint64_t fused = 0;
};

/// Lowers one function. The order of calls is `run`, then the queries.
class FunctionLowering {
public:
  /// Lowers `func`. With `choosesOrders` temporaries lie in the cheapest order of their
  /// dimensions, not in dense rows. With `explains` each choice is a remark.
  FunctionLowering(mlir::func::FuncOp func, ConstantPool &constants, LoweringCounts &counts, bool choosesOrders,
                   bool explains)
      : func(func), constants(constants), counts(counts), choosesOrders(choosesOrders), explains(explains),
        builder(func.getContext()) {}

  /// Builds the program behind `insertAfter`.
  llvm::FailureOr<prog::ProgramOp> run(mlir::Operation *insertAfter);

  /// Returns the inputs with role saved, in the order of first use.
  llvm::ArrayRef<unsigned> restoreOrder() const { return restored; }

  // For commands (Commands.cpp, Products.cpp): operands and results as windows, then
  // `prepare` with all of them, then the command on views, then `emitted`.

  /// Returns a window in which `value` can be read.
  Window windowOf(mlir::Value value);
  /// Returns a window in which `value` can be read as a dense row-major tensor.
  Window denseWindowOf(mlir::Value value);
  /// Returns a window in which `value` can be read with its last dimension contiguous.
  Window rowWindowOf(mlir::Value value);
  /// Returns `value` as a window over the elements, as if they lay dense, of an input that
  /// is a matrix of codes; nothing if it is something else, or has been unpacked.
  std::optional<Window> windowOfCodes(mlir::Value value);
  /// Returns the window to which the command that makes `value` writes it.
  Window targetOf(mlir::Value value);
  /// A new buffer of dense rows, and one with a copy of `source`.
  Window temporary(llvm::ArrayRef<int64_t> shape, mlir::Type element);
  Window copyToTemporary(const Window &source);
  /// Prepares a command: must come before its views, with all windows that it reads and writes.
  void prepare(llvm::ArrayRef<Window> reads, llvm::ArrayRef<Window> writes);
  mlir::Value view(const Window &window);
  /// Notes `command` as the last that uses the buffers given to `prepare`.
  void emitted(mlir::Operation *command);
  void copy(const Window &source, const Window &target);
  /// The declared type of input number `input` of the program.
  mlir::RankedTensorType inputType(unsigned input) { return program.getInput(input).getType(); }
  mlir::OpBuilder &getBuilder() { return builder; }
  mlir::Location getLoc() const { return loc; }
  /// A product that reads a weight of codes was made.
  void countFused() { ++counts.fused; }

private:
  // Signature.
  llvm::LogicalResult buildSignature(mlir::Operation *insertAfter);
  llvm::FailureOr<prog::ValueAttr> describe(mlir::Type type, bool isInput, unsigned index);

  // These choose the places of values (Placement.cpp).
  void placeValues();
  void placeResults();
  void orderTemporaries();
  void placeOperandsOf(mlir::Operation *op);
  void placeOverwritten(CommandOpInterface op);
  void propose(mlir::Value value, const Window &place);
  bool mayOverwrite(mlir::OpResult value, unsigned input);
  std::optional<Window> predict(mlir::Value value);
  mlir::Value rootOf(mlir::Value value);

  // Commands.
  llvm::LogicalResult lower(mlir::Operation *op);
  void lowerShapeOp(mlir::Operation *op);
  void lowerConcat(ConcatOp op);
  void lowerPad(PadOp op);
  void lowerConstantResult(ConstantOp op);
  void writeResults();
  void markSaved();

  // Windows of values.
  Window constantWindow(ConstantOp op);
  Window splatWindow(mlir::Attribute element, llvm::ArrayRef<int64_t> shape);
  mlir::Value constantBuffer(llvm::StringRef bytes);
  Window unpack(mlir::BlockArgument arg);
  void pack(const Window &source, unsigned output);
  void copyReshaped(const Window &source, const Window &target);

  // Emission.
  void fill(mlir::Value buffer, mlir::Attribute element);

  mlir::func::FuncOp func;
  ConstantPool &constants;
  LoweringCounts &counts;
  bool choosesOrders, explains;
  mlir::OpBuilder builder;

  prog::ProgramOp program;
  prog::PhaseOp phase;
  /// The open block, null outside of blocks, and the one that the op being
  /// lowered belongs to.
  prog::BlockOp block;
  mlir::StringAttr wantedBlock;
  mlir::Location loc = mlir::UnknownLoc::get(func.getContext());

  /// The window in which each value lies, or is to be written.
  llvm::DenseMap<mlir::Value, Window> windows;
  /// The values with a place of their own: shape ops that are written, not viewed.
  llvm::DenseSet<mlir::Value> owned;
  /// The costs that the walk backwards asks for, which decides all readers of a value
  /// before the value.
  AccessCosts costs{&owned};
  /// The dense copies and constants that were made on demand.
  llvm::DenseMap<mlir::Value, Window> denseCopies;
  llvm::DenseMap<uint64_t, mlir::Value> constantBuffers;
  /// The position of each op in the function, and the last op that reads an argument.
  llvm::DenseMap<mlir::Operation *, unsigned> position;
  llvm::DenseMap<mlir::Value, unsigned> lastUse;
  /// The input that output i must lie in, or -1.
  llvm::SmallVector<int64_t> aliasOf;
  /// The results that are written by a copy at the end.
  llvm::SmallVector<unsigned> lateResults;
  /// The buffers to fill before anything is written to them.
  llvm::DenseMap<mlir::Value, mlir::Attribute> pendingFills;

  /// The buffers read and written by the command that is being built.
  llvm::SmallVector<mlir::Value> reads, writes;
  llvm::SmallVector<unsigned> restored;
  llvm::DenseSet<mlir::Value> restoredBuffers;
  /// The last command that reads a buffer, and that uses it at all.
  llvm::MapVector<mlir::Value, mlir::Operation *> lastRead, lastCommand;
};

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOPROG_FUNCTIONLOWERING_H
