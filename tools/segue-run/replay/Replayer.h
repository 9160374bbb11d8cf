//===- Replayer.h - a policy as segue-run replay sees it --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One per service, in Replay<Service>.cpp, with a line in ReplayServices.cpp.
// It makes the policy object from the head of a log and hands it the events:
//
//   class WidgetReplayer : public Replayer {
//   public:
//     explicit WidgetReplayer(const ReplayLog &log) : widget_(readConfig(log)) {}
//     Json apply(EventReader &event) override {
//       if (event.op() == "grow")
//         return {{"size", widget_.grow(event.bytesOfMiB("mb"))}};
//       event.unknownOp({"grow"});
//     }
//   };
//   std::unique_ptr<Replayer> createWidgetReplayer(const ReplayLog &log) {
//     return std::make_unique<WidgetReplayer>(log);
//   }
//
// The command adds `op` and `id`, turns a segue::Error into `error`, and
// compares with `expect`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H
#define SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H

#include "EventReader.h"
#include "segue/runtime/Config/ConfigReader.h"
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::tool {

/// A log without its events.
struct ReplayLog {
  std::string service, name;
  /// The keys of the service's section; an object.
  Json config;
  /// `register`: the owners that Conductor knows, in order.
  std::vector<std::string> owners;
  /// `units` of Selective Precision: names, and what recorded runs say of each;
  /// null for a name alone.
  std::vector<std::string> units;
  std::vector<Json> unitDetails;
  /// `base` of SquareQ; null if absent.
  Json base;

  /// A reader of the config; the log must outlive it. Files are not looked
  /// for: a log replays on any machine.
  ConfigReader readConfig() const { return ConfigReader(config, "", ConfigReader::Files::Ignore); }
};

class Replayer {
public:
  virtual ~Replayer() = default;

  /// Gives one event to the policy and returns the answer's fields. A
  /// segue::Error becomes the answer's `error`: the policy must be as before.
  /// Throws MalformedEvent for a field that is missing or has the wrong type.
  virtual Json apply(EventReader &event) = 0;
};

struct ReplayService {
  /// As the log's `service` says it.
  std::string_view name;
  /// Throws ConfigError for a bad `config`, MalformedEvent for a bad head.
  std::unique_ptr<Replayer> (*create)(const ReplayLog &log);
};

/// All services of this build.
std::span<const ReplayService> replayServices();

/// The answer of a `config_case` event: reads the log's config with that of
/// the event put over it, and says `error`, `key` and `hint`, or nothing.
Json answerConfigCase(const ReplayLog &log, EventReader &event, void (*read)(ConfigReader &reader));

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_REPLAY_REPLAYER_H
