//===- Binaries.cpp - the files that a command works on -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/ReadFile.h"
#include <algorithm>
#include <set>
#include <unistd.h>

namespace segue::tool {

std::string readAll(const std::string &path) {
  return path == "-" ? readFile(STDIN_FILENO, "stdin") : readFile(path);
}

Binary loadBinary(const std::string &path, const CommonOptions &options) {
  LoadOptions load{.nativeCode = options.noNative      ? NativeCode::Refuse
                                 : options.allowNative ? NativeCode::Allow
                                                       : NativeCode::IfTrusted};
  if (path != "-")
    return Binary::load(path, load);
  std::string bytes = readAll(path);
  return Binary::fromMemory(std::as_bytes(std::span(bytes.data(), bytes.size())), load, "stdin");
}

std::string moduleName(const std::string &path) {
  return path == "-" ? "stdin" : std::filesystem::path(path).stem().string();
}

std::vector<SessionModule> loadModules(const std::vector<std::string> &paths, const CommonOptions &options) {
  std::vector<SessionModule> modules;
  std::set<std::string> names;
  for (const std::string &path : paths) {
    std::string name = moduleName(path);
    names.insert(name);
    modules.push_back({std::move(name), loadBinary(path, options)});
  }
  if (names.size() != modules.size())
    for (SessionModule &module : modules)
      module.name.clear();
  return modules;
}

std::pair<std::string, std::string> splitPair(const std::string &text, const char *flag) {
  size_t equals = text.find('=');
  if (equals == text.npos)
    throw Error(ErrorCode::InvalidArgument, std::string(flag) + " " + text + ": write module.name=module.name");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::optional<ParameterRef> splitModule(const std::string &text, const std::vector<std::string> &modules) {
  for (const std::string &module : modules)
    if (text.starts_with(module + "."))
      return ParameterRef{module, text.substr(module.size() + 1)};
  return std::nullopt;
}

ParameterRef requireModule(const std::string &text, const std::vector<std::string> &modules) {
  if (auto found = splitModule(text, modules))
    return *found;
  throw Error(ErrorCode::NameUnknown, "\"" + text + "\" does not begin with the name of a module and a point");
}

void addTiesAndWires(SessionOptions &options, const std::vector<SessionModule> &modules,
                     const std::vector<std::string> &tied, const std::vector<std::string> &wires) {
  std::vector<std::string> names;
  for (size_t i = 0; i < modules.size(); ++i)
    names.push_back(modules[i].name.empty() ? std::to_string(i) : modules[i].name);
  for (const std::string &text : tied) {
    auto [left, right] = splitPair(text, "--tie");
    options.tied.push_back({requireModule(left, names), requireModule(right, names)});
  }
  for (const std::string &text : wires) {
    auto [left, right] = splitPair(text, "--wire");
    ParameterRef to = requireModule(left, names), from = requireModule(right, names);
    options.wires.push_back({to.module, to.name, from.module, from.name});
  }
}

} // namespace segue::tool
