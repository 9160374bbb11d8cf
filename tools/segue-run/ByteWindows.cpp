//===- ByteWindows.cpp - batches of a byte-level language model -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ByteWindows.h"
#include "segue/runtime/Error.h"

namespace segue::tool {

static const TensorDesc &inputCalled(const Session &session, const std::string &name) {
  for (const Module &module : session.modules())
    for (const Value &input : module.inputs())
      if (input.name == name)
        return input.desc();
  throw Error(ErrorCode::NameUnknown,
              "no module has an input \"" + name + "\" for the data; name the inputs with --tokens and --targets");
}

ByteWindows::ByteWindows(const Session &session, TrainingTextRef text, std::string tokens, std::string targets)
    : device_(session.device()), text_(std::move(text)), tokens_(std::move(tokens)), targets_(std::move(targets)) {
  const TensorDesc &desc = inputCalled(session, tokens_), &targetDesc = inputCalled(session, targets_);
  for (const TensorDesc *each : {&desc, &targetDesc})
    if (each->shape != desc.shape || each->shape.size() != 2 ||
        (each->element != ElementType::i64 && each->element != ElementType::i32))
      throw Error(ErrorCode::LayoutMismatch, "inputs \"" + tokens_ + "\" (" + desc.str() + ") and \"" + targets_ +
                                                 "\" (" + targetDesc.str() +
                                                 ") must both be i64 or i32 of one shape [batch, length]");
  tokensElement_ = desc.element;
  targetsElement_ = targetDesc.element;
  batch_ = desc.shape[0];
  length_ = desc.shape[1];
  if (int64_t(text_->size()) < length_ + 1)
    throw Error(ErrorCode::InvalidArgument, "the data has " + std::to_string(text_->size()) +
                                                " bytes, but a window needs " + std::to_string(length_ + 1));
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
static uint64_t scramble(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

static void setElement(const Tensor &tensor, int64_t index, uint8_t byte) {
  if (tensor.element() == ElementType::i64)
    tensor.data<int64_t>()[index] = byte;
  else
    tensor.data<int32_t>()[index] = byte;
}

void ByteWindows::fillFrom(TensorMap &batch, std::span<const uint64_t> begins) const {
  Tensor tokens = Tensor::onHost(device_, {batch_, length_}, tokensElement_);
  Tensor targets = Tensor::onHost(device_, {batch_, length_}, targetsElement_);
  std::string window(size_t(length_) + 1, 0);
  for (int64_t row = 0; row < batch_; ++row) {
    text_->read(begins[size_t(row)], window);
    for (int64_t i = 0; i < length_; ++i) {
      setElement(tokens, row * length_ + i, uint8_t(window[size_t(i)]));
      setElement(targets, row * length_ + i, uint8_t(window[size_t(i) + 1]));
    }
  }
  batch[tokens_] = std::move(tokens);
  batch[targets_] = std::move(targets);
}

void ByteWindows::fill(TensorMap &batch, int64_t seed, int64_t step, int64_t part) const {
  uint64_t state = scramble(scramble(scramble(uint64_t(seed)) ^ uint64_t(step)) ^ uint64_t(part));
  std::vector<uint64_t> begins;
  for (int64_t row = 0; row < batch_; ++row) {
    state = scramble(state);
    begins.push_back(state % (text_->size() - uint64_t(length_)));
  }
  fillFrom(batch, begins);
}

void ByteWindows::fillInOrder(TensorMap &batch, int64_t number) const {
  std::vector<uint64_t> begins;
  for (int64_t row = 0; row < batch_; ++row)
    begins.push_back(uint64_t((number * batch_ + row) * length_));
  fillFrom(batch, begins);
}

} // namespace segue::tool
