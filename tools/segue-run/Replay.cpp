//===- Replay.cpp - segue-run replay --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Feeds a log of events to one policy and prints its answers, a line each.
// Nothing but the file decides: the same log gives the same bytes.
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "Commands.h"
#include "replay/CompareAnswer.h"
#include "replay/Replayer.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>
#include <cstdio>

namespace segue::tool {

static std::string readLog(const std::string &path) {
  try {
    return readAll(path);
  } catch (const Error &error) {
    std::string what = error.what(); // names the file, as the sentence that this becomes does
    throw MalformedEvent("the file " + what.substr(std::min(what.find("cannot be read"), what.size())));
  }
}

/// A list of texts of the head, empty if absent.
static std::vector<std::string> headTexts(const Json &root, const char *key) {
  std::vector<std::string> result;
  auto list = root.find(key);
  if (list == root.end())
    return result;
  for (const Json &item : *list) {
    if (!list->is_array() || !item.is_string())
      throw MalformedEvent(std::string("\"") + key + "\" must be a list of texts");
    result.push_back(item.get<std::string>());
  }
  return result;
}

/// Names of units, or objects that have one.
static void readUnits(const Json &root, ReplayLog &log) {
  auto list = root.find("units");
  if (list == root.end())
    return;
  for (const Json &item : *list) {
    bool isNamed = item.is_object() && item.contains("name") && item["name"].is_string();
    if (!list->is_array() || !(item.is_string() || isNamed))
      throw MalformedEvent("\"units\" must be a list of texts, or of objects with a text \"name\"");
    log.units.push_back((isNamed ? item["name"] : item).get<std::string>());
    log.unitDetails.push_back(isNamed ? item : Json());
  }
}

static ReplayLog readHead(const Json &root) {
  if (!root.is_object())
    throw MalformedEvent("a log is an object with \"service\", \"config\" and \"events\"");
  ReplayLog log;
  for (const char *key : {"service", "name"})
    if (auto text = root.find(key); text != root.end() && !text->is_string())
      throw MalformedEvent(std::string("\"") + key + "\" must be a text");
  log.service = root.value("service", "");
  log.name = root.value("name", "");
  log.config = root.value("config", Json::object());
  log.owners = headTexts(root, "register");
  readUnits(root, log);
  log.base = root.value("base", Json());
  log.plan = root.value("plan", Json());
  if (!log.config.is_object())
    throw MalformedEvent("\"config\" must be an object");
  if (!root.contains("events") || !root["events"].is_array())
    throw MalformedEvent("\"events\" must be a list");
  return log;
}

static const ReplayService &findService(const std::string &name) {
  std::vector<std::string_view> names;
  for (const ReplayService &service : replayServices()) {
    if (service.name == name)
      return service;
    names.push_back(service.name);
  }
  throw MalformedEvent("no service is called \"" + name + "\"" + nearestHint(name, names));
}

/// Returns `error`, and for a config `key` and `hint`.
static Json errorAnswer(const Error &error) {
  Json answer{{"error", errorCodeName(error.code())}};
  if (auto *config = dynamic_cast<const ConfigError *>(&error)) {
    // The key itself; the message says which element of a list it is.
    answer["key"] = config->key().substr(0, config->key().find('['));
    answer["hint"] = config->hint();
  }
  answer["message"] = error.what();
  return answer;
}

Json answerConfigCase(const Json &config, EventReader &event, const std::function<void(ConfigReader &reader)> &read) {
  Json merged = config;
  const Json &over = event.json("config");
  if (!over.is_object())
    event.refuse("config", "an object is");
  merged.update(over);
  ConfigReader reader(merged, "", ConfigReader::Files::Ignore);
  try {
    read(reader);
    return Json::object();
  } catch (const ConfigError &error) {
    return errorAnswer(error);
  }
}

static Json answerEvent(Replayer &replayer, EventReader &event, const Json &source) {
  Json answer{{"op", event.op()}};
  if (auto id = source.find("id"); id != source.end())
    answer["id"] = *id;
  try {
    answer.update(replayer.apply(event));
  } catch (const Error &error) {
    answer.update(errorAnswer(error));
  } catch (const Json::exception &error) { // a value within a field has the wrong type
    throw MalformedEvent(error.what());
  }
  nameNonFinite(answer);
  return answer;
}

static void print(const Json &answer) {
  std::string line = answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

/// Prints what differs from the event's `expect`; true if nothing does.
static bool check(const Json &event, const Json &answer, size_t index) {
  auto expected = event.find("expect");
  if (expected == event.end())
    return true;
  std::vector<std::string> lines = compareAnswer(*expected, answer);
  for (const std::string &line : lines)
    std::fprintf(stderr, "segue-run: event %zu (%s): %s\n", index, event.value("op", "").c_str(), line.c_str());
  return lines.empty();
}

/// The one answer of a config that is invalid. `--check` compares it with the
/// first event, and misses answers for all others that expect one.
static bool answerInvalid(const Error &error, const Json &events, bool checked) {
  Json answer = errorAnswer(error);
  print(answer);
  bool good = true;
  for (size_t i = 0; checked && i < events.size(); ++i) {
    (void)EventReader(events[i]).op(); // refuses what is no event
    good &= check(events[i], i == 0 ? answer : Json(), i);
  }
  return good;
}

int replay(const ReplayOptions &options) {
  std::string where = options.file;
  try {
    Json root = parseJson(readLog(options.file), options.file);
    ReplayLog log = readHead(root);
    const Json &events = root["events"];
    std::unique_ptr<Replayer> replayer;
    try {
      replayer = findService(log.service).create(log);
    } catch (const ConfigError &error) {
      return answerInvalid(error, events, options.check) ? Done : Failed;
    }
    bool good = true;
    for (size_t i = 0; i < events.size(); ++i) {
      where = options.file + ": event " + std::to_string(i);
      EventReader event(events[i]);
      where += " (" + event.op() + ")";
      Json answer = answerEvent(*replayer, event, events[i]);
      print(answer);
      for (const std::string &field : event.unread())
        if (field != "id")
          std::fprintf(stderr, "segue-run: warning: %s: field \"%s\" is not used\n", where.c_str(), field.c_str());
      if (options.check)
        good &= check(events[i], answer, i);
    }
    return good ? Done : Failed;
  } catch (const MalformedEvent &error) {
    std::fflush(stdout);
    std::fprintf(stderr, "segue-run: %s: %s\n", where.c_str(), error.what());
    return WrongUsage;
  } catch (const ConfigError &error) { // no JSON: the message has file and line
    std::fprintf(stderr, "segue-run: %s\n", error.what());
    return WrongUsage;
  }
}

} // namespace segue::tool
