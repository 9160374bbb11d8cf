//===- ConfigError.cpp - what is wrong with a config ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/ConfigError.h"
#include <utility>

namespace segue::inline runtime {

static std::string joined(const std::string &section, const std::string &key) {
  return section.empty() || key.empty() ? section + key : section + "." + key;
}

static std::string located(const std::string &path, const std::string &sentence) {
  return path.empty() ? sentence : path + ": " + sentence;
}

ConfigError::ConfigError(std::string section, std::string key, const std::string &sentence, std::string hint)
    : Error(ErrorCode::ConfigInvalid, located(joined(section, key), sentence)), key_(std::move(key)),
      path_(joined(section, key_)), hint_(std::move(hint)), sentence_(located(path_, sentence)) {}

ConfigError::ConfigError(Whole, const ConfigError &other, const std::string &sentence)
    : Error(ErrorCode::ConfigInvalid, sentence), key_(other.key_), path_(other.path_), hint_(other.hint_),
      sentence_(sentence) {}

ConfigError ConfigError::within(const std::string &context) const {
  return ConfigError(Whole(), *this, context + ": " + sentence_);
}

} // namespace segue::inline runtime
