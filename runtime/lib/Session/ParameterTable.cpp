//===- ParameterTable.cpp - the names of a session's parameters -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ParameterTable.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>

namespace segue::inline runtime {

static constexpr size_t nobody = SIZE_MAX;

static std::string fullName(const ParameterRef &ref) { return ref.module + "." + ref.name; }

ParameterTable::ParameterTable(std::span<const Module> modules, std::span<const std::vector<ParameterRef>> tied) {
  appear(modules, tied);
  nameSlots();
}

/// Gives out slots in order of appearance; the members of a tied group share the first's.
void ParameterTable::appear(std::span<const Module> modules, std::span<const std::vector<ParameterRef>> tied) {
  std::map<std::string, size_t, std::less<>> groupOf; // full name → group
  for (size_t group = 0; group < tied.size(); ++group)
    for (const ParameterRef &ref : tied[group])
      if (!groupOf.emplace(fullName(ref), group).second)
        throw Error(ErrorCode::InvalidArgument, "tied parameters: \"" + fullName(ref) + "\" is given twice");
  std::vector<size_t> slotOfGroup(tied.size(), nobody);
  std::vector<std::string> fullNames;
  for (size_t m = 0; m < modules.size(); ++m) {
    moduleNames_.push_back(modules[m].name());
    auto &slots = slots_.emplace_back();
    auto add = [&](const Value &value, bool trained) {
      ParameterRef ref{modules[m].name(), value.name};
      fullNames.push_back(fullName(ref));
      auto group = groupOf.find(fullNames.back());
      size_t slot = group == groupOf.end() ? nobody : slotOfGroup[group->second];
      if (slot == nobody) {
        slot = infos_.size();
        infos_.push_back({.key = {}, .desc = value.desc(), .trained = false, .members = {}});
        owners_.push_back(nobody);
        if (group != groupOf.end())
          slotOfGroup[group->second] = slot;
      }
      ParameterInfo &info = infos_[slot];
      if (info.desc.shape != value.desc().shape || info.desc.element != value.desc().element)
        throw Error(ErrorCode::LayoutMismatch, "tied parameters: \"" + fullName(info.members.front()) + "\" is " +
                                                   info.desc.str() + ", \"" + fullName(ref) + "\" is " +
                                                   value.desc().str() + "; only equal shapes and types can be tied");
      if (trained && owners_[slot] == nobody) {
        owners_[slot] = m;
        info.trained = true;
        info.desc = value.desc(); // the layout that the optimizer updates in place
      }
      info.members.push_back(std::move(ref));
      slots.emplace(value.name, slot);
    };
    for (const Value &value : modules[m].parameters())
      add(value, true);
    for (const Value &value : modules[m].frozen())
      add(value, false);
  }
  std::vector<std::string_view> known(fullNames.begin(), fullNames.end());
  for (const auto &[name, group] : groupOf)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(ErrorCode::NameUnknown, "tied parameters: there is no \"" + name + "\"" + nearestHint(name, known));
}

void ParameterTable::nameSlots() {
  // A program name belongs to the slot that alone has it.
  std::map<std::string_view, size_t> holders;
  for (size_t slot = 0; slot < infos_.size(); ++slot)
    for (const ParameterRef &ref : infos_[slot].members) {
      auto [it, isNew] = holders.emplace(ref.name, slot);
      if (!isNew && it->second != slot)
        it->second = nobody;
    }
  for (size_t slot = 0; slot < infos_.size(); ++slot) {
    const ParameterRef &first = infos_[slot].members.front();
    infos_[slot].key = holders[first.name] == slot ? first.name : fullName(first);
    if (!keys_.emplace(infos_[slot].key, slot).second)
      throw Error(ErrorCode::InvalidArgument, "two parameters would be called \"" + infos_[slot].key +
                                                  "\"; give the modules of the session other names");
  }
  for (size_t slot = 0; slot < infos_.size(); ++slot)
    for (const ParameterRef &ref : infos_[slot].members)
      keys_.emplace(fullName(ref), slot); // a key of that form wins
}

size_t ParameterTable::slotOf(size_t module, std::string_view name) const {
  auto it = slots_[module].find(name);
  if (it == slots_[module].end())
    throw Error(ErrorCode::FileCorrupt, "module \"" + moduleNames_[module] + "\": a program names the parameter \"" +
                                            std::string(name) + "\", which forward does not have; compile it again");
  return it->second;
}

size_t ParameterTable::require(std::string_view key) const {
  auto it = keys_.find(key);
  if (it != keys_.end())
    return it->second;
  std::vector<std::string_view> known;
  for (const ParameterInfo &info : infos_)
    known.push_back(info.key);
  throw Error(ErrorCode::NameUnknown,
              "there is no parameter \"" + std::string(key) + "\" in the session" + nearestHint(key, known));
}

} // namespace segue::inline runtime
