//===- EventReader.h - the fields of one event of a log ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_REPLAY_EVENTREADER_H
#define SEGUE_TOOLS_SEGUERUN_REPLAY_EVENTREADER_H

#include "segue/runtime/Replay/PolicyCall.h"
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace segue::tool {

/// A log that cannot be replayed: exit status 2. what() is the reason.
class MalformedEvent : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// Typed access to an event. All getters throw MalformedEvent for a wrong
/// type, and those without a fallback for a missing field. As CallFields, it reads
/// the arguments of a policy's call.
class EventReader final : public CallFields {
public:
  /// `event` must outlive the reader and have a text `op`.
  explicit EventReader(const Json &event);
  /// A reader of an object in the head of a log, which has no `op`.
  static EventReader ofHead(const Json &object);

  const std::string &op() const { return op_; }

  bool has(std::string_view field);
  std::string text(std::string_view field);
  std::string text(std::string_view field, std::string_view fallback);
  bool boolean(std::string_view field);
  bool boolean(std::string_view field, bool fallback);
  double number(std::string_view field);
  double number(std::string_view field, double fallback);
  int64_t integer(std::string_view field);
  int64_t integer(std::string_view field, int64_t fallback);
  std::vector<std::string> texts(std::string_view field);
  /// Reads MiB, rounded to bytes; may be negative.
  int64_t bytesOfMiB(std::string_view field);
  /// The field `bytes`, or the field `mb` in MiB.
  int64_t bytesOrMiB();
  /// Any value; for fields of a shape of their own.
  const Json &json(std::string_view field);
  const Json *optionalJson(std::string_view field);

  /// The event is none of `known`: says so with the nearest.
  [[noreturn]] void unknownOp(std::span<const std::string_view> known) const;
  [[noreturn]] void unknownOp(std::initializer_list<std::string_view> known) const {
    unknownOp(std::span(known.begin(), known.size()));
  }
  /// The field's value is not allowed: "field "mode" is "WARM"; HARD, ...".
  [[noreturn]] void refuse(std::string_view field, const std::string &allowed) const;
  [[noreturn]] void refuse(const char *key, const std::string &allowed) override {
    refuse(std::string_view(key), allowed);
  }

  bool isWanted(const char *key, bool) override { return has(key); }
  void visit(const char *key, std::string &value) override { value = text(key); }
  void visit(const char *key, std::vector<std::string> &value) override { value = texts(key); }
  void visit(const char *key, int64_t &value) override { value = integer(key); }
  void visit(const char *key, double &value) override { value = number(key); }
  void visit(const char *key, bool &value) override { value = boolean(key); }
  void visit(const char *key, AnyNumber &value) override;
  void visit(const char *key, Json &value) override { value = json(key); }
  void visitMiB(const char *key, int64_t &bytes) override { bytes = bytesOfMiB(key); }

  /// Returns the fields that nobody has read so far.
  std::vector<std::string> unread() const;

private:
  EventReader() = default;
  const Json *find(std::string_view field);
  const Json &require(std::string_view field);

  const Json *event_ = nullptr;
  std::string op_;
  std::set<std::string, std::less<>> read_{"op", "expect"};
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_REPLAY_EVENTREADER_H
