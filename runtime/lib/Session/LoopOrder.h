//===- LoopOrder.h - the calls of a loop's step, in their order -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a LoopBudget was called for in one step: which programs, with which tensors, and
// which token of them came back when. Enough for a twin to make the same calls without
// values (LoopSteps.h). It holds no tensor, and the files of the programs.
//
//   order.clear();
//   order.addForward(module, values);         // before the call
//   order.addToken(result.token);             // after it
//   order.addBackward(module, token, gradients, nullptr);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_LOOPORDER_H
#define SEGUE_LIB_SESSION_LOOPORDER_H

#include "segue/runtime/Program/Module.h"
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace segue::inline runtime {

/// A program: what stands for its file in memory, and the hash of its interface, as
/// that may be another file's later.
using LoopProgram = std::pair<const void *, uint64_t>;
inline LoopProgram loopProgram(const Program &program) { return {program.image().get(), program.interfaceHash()}; }

class LoopOrder {
public:
  static constexpr size_t none = SIZE_MAX;

  /// A tensor that calls were given.
  struct Given {
    std::shared_ptr<const TensorDesc> desc;
    /// Of its first element: says how it is aligned, and is never read.
    std::byte *address = nullptr;
    /// The memory is somebody else's, as PyTorch's.
    bool isExternal = false;
  };
  /// The name of an input, or of an output whose gradient is given, and the index of the tensor; null: `none`.
  using Named = std::vector<std::pair<std::string, size_t>>;

  struct Call {
    /// Apart: of no step, as nobody asks for what it saves.
    enum class Kind : uint8_t { Forward, Backward, Infer, Apart };
    Kind kind;
    LoopProgram program;
    /// The module that is called; none for Apart, which runs `apart`.
    std::optional<Module> module;
    std::optional<Program> apart;
    Named values = {}, gradients = {};
    /// A backward stands in for what the token holds, or there is none.
    bool hasValues = false;
    /// Of a forward and its backward: the number of the forward among those of the step. None: no token.
    size_t token = none;
    /// The token can be used again.
    bool isKept = false;
    /// Tokens that nobody had any more before this call, though they were not used up.
    std::vector<size_t> dropped = {};
  };

  void clear();
  void addForward(const Module &module, const TensorMap &values);
  void addToken(const Token &token);
  void addBackward(const Module &module, const Token &token, const TensorMap &gradients, const TensorMap *values);
  void addInfer(const Module &module, const TensorMap &values);
  void addApart(const Program &program, std::span<const Tensor> inputs);

  std::span<const Call> calls() const { return calls_; }
  std::span<const Given> tensors() const { return tensors_; }
  /// True if something came back that was saved in this step: only then is known what a step takes.
  bool hasReturned() const { return hasReturned_; }
  /// Why nobody can play this order; empty where a twin can.
  const std::string &whyNot() const { return whyNot_; }

  bool isSameAs(const LoopOrder &other) const;
  /// True if `other` begins with all of this one, and goes on.
  bool isBeginningOf(const LoopOrder &other) const;

private:
  Call &add(Call call);
  size_t indexOf(const Tensor &tensor);
  Named namesOf(const TensorMap &tensors);
  void refuse(std::string why);

  std::vector<Call> calls_;
  std::vector<Given> tensors_;
  /// Of tensors_, by the id of the storage and where the tensor begins in it.
  std::map<std::pair<uint64_t, uint64_t>, size_t> indices_;
  /// By number; expired once nobody has the token any more.
  std::vector<std::weak_ptr<Token::Tensors>> tokens_;
  /// Say of each token whether a backward has used it up, or it was noted as dropped.
  std::vector<bool> isOver_;
  std::string whyNot_;
  bool hasReturned_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_LOOPORDER_H
