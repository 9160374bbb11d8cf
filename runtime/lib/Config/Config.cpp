//===- Config.cpp - the config file of a run ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The sections form a tree by their dotted paths. An object that is a section
// ("memory.stagehand") has keys of its own beside those of other sections, and no
// others. The file and `memory` are shared with the program whose config it is:
// there, what nobody here knows is that program's, unless it is one of our names
// misspelt.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/Config.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/ReadFile.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

Json parseJson(std::string_view text, const std::string &name) {
  Json value;
  std::optional<JsonProblem> problem = readJson(text, value);
  if (!problem)
    return value;
  if (problem->key.empty())
    throw ConfigError("", "", name + ": " + problem->sentence);
  throw ConfigError("", problem->key, "the key stands twice in one object", "a key stands once").within(name);
}

/// Returns true if `path` is `prefix` or lies below it.
static bool isBelow(std::string_view path, std::string_view prefix) {
  return prefix.empty() || path == prefix ||
         (path.size() > prefix.size() && path.starts_with(prefix) && path[prefix.size()] == '.');
}

/// The keys right below `path` that lead to sections.
static std::vector<std::string_view> childSections(std::string_view path) {
  std::vector<std::string_view> result;
  for (const ConfigSection &section : configSections()) {
    if (section.path == path || !isBelow(section.path, path))
      continue;
    std::string_view rest = section.path.substr(path.empty() ? 0 : path.size() + 1);
    std::string_view key = rest.substr(0, rest.find('.'));
    if (std::find(result.begin(), result.end(), key) == result.end())
      result.push_back(key);
  }
  return result;
}

static std::string below(const std::string &path, std::string_view key) {
  return (path.empty() ? "" : path + ".") + std::string(key);
}

/// Adds the keys of an object, shared with others, that are not ours. Refuses a key that is
/// nearly one of ours.
static void findForeign(const Json &object, const std::string &path, std::span<const std::string_view> ours,
                        std::vector<std::string> &foreign) {
  for (const auto &[key, value] : object.items()) {
    if (std::find(ours.begin(), ours.end(), key) != ours.end())
      continue;
    for (std::string_view name : ours)
      if (isMisspelling(key, name))
        throw ConfigError(path, key, "unknown key; the nearest known key is \"" + std::string(name) + "\"",
                          std::string(name));
    foreign.push_back(below(path, key));
  }
}

/// Checks the object at `path` and all sections below it.
static void checkTree(const Json &object, const std::string &path, std::vector<std::string> &foreign) {
  ConfigReader reader(object, path);
  std::vector<std::string_view> children = childSections(path);
  for (std::string_view key : children)
    reader.allow(key);
  auto section = std::find_if(configSections().begin(), configSections().end(),
                              [&](const ConfigSection &section) { return section.path == path; });
  if (section != configSections().end())
    section->check(reader);
  else
    findForeign(object, path, children, foreign);
  for (std::string_view key : children)
    if (auto child = object.find(std::string(key)); child != object.end())
      checkTree(*child, below(path, key), foreign);
}

Config::Config() : root_(std::make_shared<const Json>(Json::object())) {}

Config Config::parse(std::string_view text, const std::string &name) {
  Json root = parseJson(text, name);
  Config config;
  try {
    checkTree(root, "", config.foreign_);
  } catch (const ConfigError &error) {
    throw error.within(name);
  }
  config.root_ = std::make_shared<const Json>(std::move(root));
  return config;
}

Config Config::load(const std::filesystem::path &path) {
  return parse(readFile(path), path.string());
}

const Json *Config::find(std::string_view section) const {
  const Json *object = root_.get();
  while (!section.empty()) {
    size_t dot = section.find('.');
    auto child = object->find(std::string(section.substr(0, dot)));
    if (child == object->end())
      return nullptr;
    object = &*child;
    section = dot == std::string_view::npos ? "" : section.substr(dot + 1);
  }
  return object;
}

bool Config::has(std::string_view section) const { return find(section) != nullptr; }

Json Config::json(std::string_view section) const {
  const Json *object = find(section);
  return object ? *object : Json::object();
}

ConfigReader Config::section(std::string_view section) const & {
  static const Json nothing = Json::object();
  const Json *object = find(section);
  ConfigReader reader(object ? *object : nothing, std::string(section));
  for (std::string_view key : childSections(section))
    reader.allow(key);
  return reader;
}

} // namespace segue::inline runtime
