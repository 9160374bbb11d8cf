//===- Evaluators.h - one evaluator per op ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the files of the interpreter share: the table from op to evaluator, the
// values that an evaluator reads, and walking over indices.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_INTERPRETER_EVALUATORS_H
#define SEGUE_LIB_DIALECT_SEGUE_INTERPRETER_EVALUATORS_H

#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include <functional>

namespace segue::interpreter {

/// The values of one running body.
class Frame {
public:
  const HostTensor &operator[](mlir::Value value) const { return values.find(value)->second; }
  void define(mlir::Value value, HostTensor tensor) { values[value] = std::move(tensor); }

private:
  llvm::DenseMap<mlir::Value, HostTensor> values;
};

/// The results of an op. They come in with their types and zeros, and go out exact: the
/// caller rounds them to their element types.
using Results = llvm::MutableArrayRef<HostTensor>;
using Evaluator = std::function<llvm::LogicalResult(mlir::Operation *, const Frame &, Results)>;

class EvaluatorTable {
public:
  template <typename OpTy> void add(llvm::LogicalResult (*evaluate)(OpTy, const Frame &, Results)) {
    table[OpTy::getOperationName()] = [evaluate](mlir::Operation *op, const Frame &in, Results out) {
      return evaluate(llvm::cast<OpTy>(op), in, out);
    };
  }
  const Evaluator *find(llvm::StringRef op) const {
    auto it = table.find(op);
    return it == table.end() ? nullptr : &it->second;
  }
  template <typename OpTy> Evaluator &of() { return table[OpTy::getOperationName()]; }

private:
  llvm::StringMap<Evaluator> table;
};

void addElementwise(EvaluatorTable &table);
void addSources(EvaluatorTable &table);
void addShapeOps(EvaluatorTable &table);
void addContractions(EvaluatorTable &table);
void addNormalisations(EvaluatorTable &table);
void addIndexing(EvaluatorTable &table);
void addChecks(EvaluatorTable &table);

/// Calls `visit` with every index of `shape` in row-major order; the position
/// in that order comes second.
void forEachIndex(llvm::ArrayRef<int64_t> shape,
                  llvm::function_ref<void(llvm::ArrayRef<int64_t> index, int64_t position)> visit);

/// The position of `index` in the row-major order of `shape`.
int64_t positionOf(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> index);

/// Element `element` of the numbers in [0, 1) that segue.random draws: Philox4x32-10 (Salmon et al., SC 2011).
double drawUniform(uint64_t seed, uint64_t step, int64_t id, int64_t element);

/// Copies element `from` of `source` to element `to` of `target`; the element
/// types are equal.
void copyElement(HostTensor &target, int64_t to, const HostTensor &source, int64_t from);

/// Returns the elements of a constant of `op`; an error if it is a resource that lacks them.
mlir::FailureOr<HostTensor> constantOf(mlir::Operation *op, mlir::ElementsAttr attr);

/// Verifies that a tensor of `type` is not too large to be interpreted; `op` is who has it.
llvm::LogicalResult verifySize(mlir::Operation *op, mlir::Type type);

/// Returns gelu tanh of x.
double geluTanh(double x);

/// One pseudo-random tensor per argument; an error if one is no static tensor.
mlir::FailureOr<llvm::SmallVector<HostTensor>> randomArguments(mlir::func::FuncOp function, uint64_t seed);

} // namespace segue::interpreter

#endif // SEGUE_LIB_DIALECT_SEGUE_INTERPRETER_EVALUATORS_H
