//===- EventLog.h - a run as segue-run replay reads it ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Writes the events of one policy with the answers they got, in the format of
// docs/specs/replay.md. The file is whole JSON after every `flush`, so that what a
// killed run leaves can be replayed. Like telemetry it never stops a run: one
// warning, then it is off. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPLAY_EVENTLOG_H
#define SEGUE_LIB_REPLAY_EVENTLOG_H

#include "segue/runtime/Replay/PolicyCall.h"
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace segue::inline runtime {

/// Puts the fields of a call into an event.
class EventWriter final : public CallFields {
public:
  explicit EventWriter(std::string_view op) { event_["op"] = op; }
  /// Writes fields alone, of an entry in the head of a log.
  EventWriter() = default;
  Json take() { return std::move(event_); }

  bool isWanted(const char *, bool isSet) override { return isSet; }
  void visit(const char *key, std::string &value) override { event_[key] = value; }
  void visit(const char *key, std::vector<std::string> &value) override { event_[key] = value; }
  void visit(const char *key, int64_t &value) override { event_[key] = value; }
  void visit(const char *key, double &value) override { event_[key] = value; }
  void visit(const char *key, bool &value) override { event_[key] = value; }
  void visit(const char *key, AnyNumber &value) override;
  void visit(const char *key, Json &value) override { event_[key] = value; }
  void visitMiB(const char *key, int64_t &bytes) override;
  [[noreturn]] void refuse(const char *key, const std::string &allowed) override;

private:
  Json event_ = Json::object();
};

/// Returns the head of a log that a run writes; the value that its events follow from stands under `key`.
Json headOf(const char *service, const char *key, const Json &value);

class EventLog {
public:
  /// Opens the log. `head` is the log without its events. Replaces a file that is there.
  EventLog(const std::filesystem::path &path, Json head, std::function<void(const std::string &)> warn);
  ~EventLog() { flush(); }

  /// Adds an event. `expect` is the answer; null or empty for an event without one.
  void add(Json event, Json expect) noexcept;
  /// Adds an event with its answer in it already.
  void add(const Json &event) noexcept;
  void flush() noexcept;

private:
  void turnOff() noexcept;

  std::filesystem::path path_;
  std::function<void(const std::string &)> warn_;
  std::ofstream file_;
  std::string waiting_;
  bool first_ = true, on_ = true;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPLAY_EVENTLOG_H
