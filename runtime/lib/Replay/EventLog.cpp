//===- EventLog.cpp - a run as segue-run replay reads it ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "EventLog.h"
#include "segue/runtime/Error.h"
#include "../JsonFields.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/Mebibytes.h"

namespace segue::inline runtime {

/// The end of the file, which closes the list and the object; the next events are written over it.
static constexpr std::string_view tail = "\n]}\n";

/// The most bytes of events that wait for a flush.
static constexpr size_t mostWaiting = 1 << 20;

void EventWriter::visitMiB(const char *key, int64_t &bytes) { event_[key] = toMiB(bytes); }

void EventWriter::visit(const char *key, AnyNumber &value) { event_[key] = numberOrText(value.value); }

void EventWriter::refuse(const char *key, const std::string &) {
  throw Error(ErrorCode::InvalidArgument, "a call of a policy has no name for its \"" + std::string(key) + "\"");
}

Json headOf(const char *service, const char *key, const Json &value) {
  return jsonOf({{"service", service}, {"name", "recorded run"}, {key, value}});
}

EventLog::EventLog(const std::filesystem::path &path, Json head, std::function<void(const std::string &)> warn)
    : path_(path), warn_(std::move(warn)), file_(path, std::ios::binary | std::ios::trunc) {
  std::string text = head.dump();
  text.pop_back();
  waiting_ = text + ", \"events\": [";
  flush();
}

void EventLog::turnOff() noexcept {
  on_ = false;
  waiting_.clear();
  try {
    warn_(path_.string() + ": the log of events cannot be written; recording is off");
  } catch (...) { // a log never stops a run
  }
}

void EventLog::add(Json event, Json expect) noexcept {
  if (!on_)
    return;
  try {
    if (!expect.empty()) {
      nameNonFinite(expect);
      event["expect"] = std::move(expect);
    }
    add(event);
  } catch (...) {
    turnOff();
  }
}

void EventLog::add(const Json &event) noexcept {
  if (!on_)
    return;
  try {
    waiting_ += (first_ ? "\n" : ",\n") + event.dump();
    first_ = false;
  } catch (...) {
    return turnOff();
  }
  if (waiting_.size() > mostWaiting)
    flush();
}

void EventLog::flush() noexcept {
  if (!on_ || waiting_.empty())
    return;
  file_.write(waiting_.data(), std::streamsize(waiting_.size()));
  auto next = file_.tellp();
  file_.write(tail.data(), std::streamsize(tail.size()));
  file_.flush();
  file_.seekp(next);
  if (!file_)
    return turnOff();
  waiting_.clear();
}

} // namespace segue::inline runtime
