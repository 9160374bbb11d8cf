//===- ConfigError.h - what is wrong with a config --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_CONFIG_CONFIGERROR_H
#define SEGUE_RUNTIME_CONFIG_CONFIGERROR_H

#include "segue/runtime/Error.h"

namespace segue::inline runtime {

/// The error of a config that cannot be used, with the code CONFIG_INVALID. Its message
/// begins with the whole path of the key, as in "CONFIG_INVALID:
/// memory.stagehand.conductor_config.h2d_slots: 65 found, a whole number from 1 to 64
/// allowed".
class __attribute__((visibility("default"))) ConfigError : public Error {
public:
  /// `section` is the dotted path of the object that holds `key`; either may
  /// be empty (a file that is not JSON has no key).
  ConfigError(std::string section, std::string key, const std::string &sentence, std::string hint = {});

  /// Returns the key within its section: "h2d_slots".
  const std::string &key() const { return key_; }
  /// Returns the key from the root of the file:
  /// "memory.stagehand.conductor_config.h2d_slots".
  const std::string &path() const { return path_; }
  /// Returns the nearest known key for one that is unknown ("h2d_slots"),
  /// the rule that a value breaks ("soft cap above hard cap"), or empty.
  const std::string &hint() const { return hint_; }

  /// Returns this error with `context` (a file name) before its sentence.
  ConfigError within(const std::string &context) const;

private:
  struct Whole {}; // `sentence` is the whole message
  ConfigError(Whole, const ConfigError &other, const std::string &sentence);

  std::string key_, path_, hint_, sentence_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_CONFIG_CONFIGERROR_H
