//===- OptimizerKernelTest.cpp - kernels of optimizers --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Steps of every optimizer, with options away from their defaults, must give what
// the reference interpreter gives for them, and be as few kernels as they can be.
//
//===----------------------------------------------------------------------===//

#include "KernelHarness.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

/// Random values for a step. States are above 0, as roots are taken of some, and those after the first
/// below it, as a variance is the mean of squares less the square of the mean.
static std::vector<HostTensor> optimizerArguments(Kernels &kernels, double step) {
  std::vector<HostTensor> arguments = randomArguments(kernels);
  size_t states = arguments.size() - 5; // and the parameter, its gradient, lr, step and clip
  for (size_t state = 0; state < states; ++state)
    for (int64_t i = 0; i < arguments[2 + state].size(); ++i)
      arguments[2 + state].set(i, (state ? 0.5 : 1.5) + 0.1 * std::abs(arguments[2 + state].floats[i]));
  for (auto [at, value] : {std::pair(0, 1e-3), {1, step}, {2, 0.5}})
    arguments[2 + states + at].set(0, value);
  return arguments;
}

TEST(Kernel, Optimizers) {
  std::pair<std::string, size_t> specs[] = {
      {"adamw:beta2=0.95,decay=0.1", 1},
      {"adam:amsgrad,decay=0.1", 1},
      {"adamax:eps=1e-3,decay=0.1", 1},
      {"nadam:decay=0.1", 2},
      {"radam:beta2=0.99,decay=0.1,decoupled-weight-decay", 2},
      {"lion:decay=0.1", 1},
      {"adagrad:lr-decay=0.01,initial-accumulator-value=0.1,decay=0.1", 1},
      {"adadelta:rho=0.95,decay=0.1", 1},
      {"rmsprop:momentum=0.9,decay=0.01", 1},
      {"rmsprop:centered,decay=0.01", 1},
      {"sgd:momentum=0.9,dampening=0.1,decay=0.01", 1},
      {"sgd:momentum=0.9,nesterov,decay=0.01", 1},
      {"sgd:decay=0.01", 1},
      {"adafactor:eps1=1e-3,decay=0.1", 6},
  };
  for (auto &[spec, launches] : specs) // scalars of many ops, states that are one, and sums take one of their own
    for (std::string type : {"f32", "3xf32", "33x129xf32"}) {
      SCOPED_TRACE(spec + " of " + type);
      Kernels kernels(optimizerText(spec, {type}));
      ASSERT_TRUE(kernels.ok());
      for (double at : {1.0, 2.0, 8.0, 1000.0})
        expectParity(kernels, optimizerArguments(kernels, at), {5e-6, 5e-6});
      EXPECT_LE(kernels.launches(), launches);
    }
}

// A step with codes is one kernel, in which codes and scales take the places of those that they replace.
TEST(Kernel, OptimizersWithStatesOfEightBits) {
  std::pair<std::string, std::vector<std::string>> cases[] = {
      {"adamw:beta2=0.95,decay=0.1", {"64x96xf32", "3x11x128xbf16", "4160xf32"}},
      {"adam:amsgrad", {"64x96xf32"}},
      {"sgd:momentum=0.9,nesterov,decay=0.1", {"64x96xf32"}},
  };
  for (auto &[spec, types] : cases)
    for (const std::string &type : types) {
      SCOPED_TRACE(spec + " of " + type);
      Kernels kernels(optimizerText(spec + ",state-bits=8", {type}));
      ASSERT_TRUE(kernels.ok());
      std::vector<HostTensor> arguments = randomArguments(kernels);
      for (HostTensor &argument : arguments) {
        bool isCodes = argument.type.getElementType().isInteger(8), isScales = argument.type.getRank() == 1;
        for (int64_t i = 0; (isCodes || isScales) && i < argument.size(); ++i)
          argument.set(i, isCodes ? double((i * 37 + i / 256) % 255) - 127 : 1 + 0.1 * std::abs(argument.at(i)));
      }
      for (auto [fromEnd, value] : {std::pair(3, 1e-3), {2, 1000.0}, {1, 0.5}}) // lr, step and clip
        arguments[arguments.size() - fromEnd].set(0, value);
      expectParity(kernels, arguments, {type.find("bf16") == std::string::npos ? 5e-6 : 1e-2, 5e-6, 1});
      EXPECT_EQ(kernels.launches(), 1u);
    }
}

// An eps as large as the root of the second moment halves a step; one below what an
// f32 can add to it decides alone where the moment is 0.
TEST(Kernel, TheEpsOfAdamW) {
  for (std::string eps : {"0.5", "1.0e-3", "1.0e-30"}) {
    SCOPED_TRACE(eps);
    Kernels kernels(optimizerText("adamw:beta2=0.95,eps=" + eps, {"64xf32"}));
    ASSERT_TRUE(kernels.ok());
    std::vector<HostTensor> arguments = randomArguments(kernels);
    for (int64_t i = 0; i < 64; ++i) {
      arguments[1].set(i, i % 3 ? 1e-3 * double(i) : 0);
      arguments[2].set(i, 0);
      arguments[3].set(i, 0);
    }
    arguments[4].set(0, 1e-1);
    arguments[5].set(0, 1);
    arguments[6].set(0, 1);
    expectParity(kernels, arguments, {5e-6, 5e-6});
  }
}

TEST(Kernel, OneOptimizerKernelForParametersOfAllSizes) {
  Kernels kernels(optimizerText("sgd:momentum=0.9", {"300xf32", "7x90xf32"}));
  ASSERT_TRUE(kernels.ok());
  EXPECT_EQ(kernels.launches(), 2u);
  EXPECT_EQ(kernels.distinctKernels(), 1u);
  expectParity(kernels, randomArguments(kernels));
}
