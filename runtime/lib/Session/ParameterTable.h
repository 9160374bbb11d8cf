//===- ParameterTable.h - the names of a session's parameters ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Gives every parameter and frozen value of several modules a slot and a
// session key (the rule is at the head of Session.h). Names only: the tensors
// are the session's.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_PARAMETERTABLE_H
#define SEGUE_RUNTIME_LIB_SESSION_PARAMETERTABLE_H

#include "segue/runtime/Session/Session.h"

namespace segue::inline runtime {

class ParameterTable {
public:
  /// Makes the table; the modules must have different names. Throws NameUnknown for a tie
  /// to nothing, LayoutMismatch for ties of different shapes, InvalidArgument where a value
  /// is in two groups or two keys come out equal.
  ParameterTable(std::span<const Module> modules, std::span<const std::vector<ParameterRef>> tied);

  /// Returns one entry per slot, in order of appearance.
  const std::vector<ParameterInfo> &infos() const { return infos_; }
  size_t size() const { return infos_.size(); }

  /// Returns the slot of a value of module `module`. Throws FileCorrupt for a name that
  /// forward does not have; a file's names are verified when it is loaded.
  size_t slotOf(size_t module, std::string_view name) const;

  /// Returns the module that runs the optimizer for a trained slot: the first that trains
  /// it.
  size_t owner(size_t slot) const { return owners_[slot]; }

  /// Returns the slot of a key, or of "<module>.<name>". Throws NameUnknown with the
  /// nearest key.
  size_t require(std::string_view key) const;

private:
  void appear(std::span<const Module> modules, std::span<const std::vector<ParameterRef>> tied);
  void nameSlots();

  std::vector<ParameterInfo> infos_;
  std::vector<size_t> owners_;
  std::vector<std::string> moduleNames_;
  /// The slots by name, for each module.
  std::vector<std::map<std::string, size_t, std::less<>>> slots_;
  /// The slots by key and by full name.
  std::map<std::string, size_t, std::less<>> keys_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_PARAMETERTABLE_H
