//===- EventReader.cpp - the fields of one event of a log -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "EventReader.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/Mebibytes.h"
#include "segue/runtime/NearestName.h"
#include <cmath>
#include <nlohmann/json.hpp>

namespace segue::tool {

static constexpr double greatestWhole = 9007199254740992.0; // 2^53

EventReader::EventReader(const Json &event) : event_(&event) {
  if (!event.is_object())
    throw MalformedEvent("an event is an object, not " + event.dump());
  auto op = event.find("op");
  if (op == event.end() || !op->is_string())
    throw MalformedEvent("an event needs a text \"op\"");
  op_ = op->get<std::string>();
}

EventReader EventReader::ofHead(const Json &object) {
  EventReader reader;
  reader.event_ = &object;
  return reader;
}

void EventReader::visit(const char *key, AnyNumber &value) {
  std::optional<double> number = numberOf(require(key));
  if (!number)
    refuse(key, "a number, \"nan\", \"inf\" or \"-inf\" is");
  value.value = *number;
}

const Json *EventReader::find(std::string_view field) {
  read_.emplace(field);
  auto found = event_->find(std::string(field));
  return found == event_->end() ? nullptr : &*found;
}

const Json &EventReader::require(std::string_view field) {
  const Json *value = find(field);
  if (!value)
    throw MalformedEvent("field \"" + std::string(field) + "\" is missing");
  return *value;
}

void EventReader::refuse(std::string_view field, const std::string &allowed) const {
  auto found = event_->find(std::string(field));
  throw MalformedEvent("field \"" + std::string(field) + "\" is " +
                       (found == event_->end() ? "absent" : found->dump()) + "; " + allowed + " allowed");
}

void EventReader::unknownOp(std::span<const std::string_view> known) const {
  throw MalformedEvent("unknown op \"" + op_ + "\"" + nearestHint(op_, known));
}

bool EventReader::has(std::string_view field) { return find(field) != nullptr; }

std::string EventReader::text(std::string_view field) {
  const Json &value = require(field);
  if (!value.is_string())
    refuse(field, "a text is");
  return value.get<std::string>();
}

std::string EventReader::text(std::string_view field, std::string_view fallback) {
  return has(field) ? text(field) : std::string(fallback);
}

bool EventReader::boolean(std::string_view field) {
  const Json &value = require(field);
  if (!value.is_boolean())
    refuse(field, "true and false are");
  return value.get<bool>();
}

bool EventReader::boolean(std::string_view field, bool fallback) { return has(field) ? boolean(field) : fallback; }

double EventReader::number(std::string_view field) {
  const Json &value = require(field);
  if (!value.is_number())
    refuse(field, "a number is");
  return value.get<double>();
}

double EventReader::number(std::string_view field, double fallback) { return has(field) ? number(field) : fallback; }

int64_t EventReader::integer(std::string_view field) {
  double value = number(field);
  if (!(std::fabs(value) <= greatestWhole) || value != std::floor(value))
    refuse(field, "a whole number is");
  return int64_t(value);
}

int64_t EventReader::integer(std::string_view field, int64_t fallback) {
  return has(field) ? integer(field) : fallback;
}

std::vector<std::string> EventReader::texts(std::string_view field) {
  const Json &value = require(field);
  std::vector<std::string> result;
  if (!value.is_array())
    refuse(field, "a list of texts is");
  for (const Json &item : value) {
    if (!item.is_string())
      refuse(field, "a list of texts is");
    result.push_back(item.get<std::string>());
  }
  return result;
}

int64_t EventReader::bytesOfMiB(std::string_view field) {
  double bytes = number(field) * bytesPerMiB;
  if (!(std::fabs(bytes) <= 0x1p60))
    refuse(field, "up to an exbibyte is");
  return std::llround(bytes);
}

int64_t EventReader::bytesOrMiB() { return has("bytes") ? integer("bytes") : bytesOfMiB("mb"); }

const Json &EventReader::json(std::string_view field) { return require(field); }

const Json *EventReader::optionalJson(std::string_view field) { return find(field); }

std::vector<std::string> EventReader::unread() const {
  std::vector<std::string> result;
  for (const auto &[field, value] : event_->items())
    if (!read_.contains(field))
      result.push_back(field);
  return result;
}

} // namespace segue::tool
