//===- DerivativeCases.h - small graphs to differentiate --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// To add an op: add a case here for each path through its derivative, with odd
// extents, an extent of 1 and, where it may be, rank 0.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_UNIT_DERIVATIVECASES_H
#define SEGUE_TEST_UNIT_DERIVATIVECASES_H

#include <string>
#include <vector>

namespace segue {

/// An argument of @forward. Float arguments are parameters and are filled from
/// [low, high); integers are inputs and are filled from low to high - 1.
struct CaseArgument {
  std::string name;
  std::string type;
  double low = -1;
  double high = 1;
  bool frozen = false;
};

struct DerivativeCase {
  std::string name;
  std::vector<CaseArgument> arguments;
  /// Ops in terms of the arguments, `%x` for the one of name "x".
  std::string body;
  /// Name and type of what is returned.
  std::vector<std::pair<std::string, std::string>> results;

  /// The module with @forward.
  std::string module() const;
};

std::vector<DerivativeCase> derivativeCases();

} // namespace segue

#endif // SEGUE_TEST_UNIT_DERIVATIVECASES_H
