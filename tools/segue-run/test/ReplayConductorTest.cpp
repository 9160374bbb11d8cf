//===- ReplayConductorTest.cpp - a recorded run replays -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Services/ConductorEvents.h"
#include "replay/CompareAnswer.h"
#include "replay/Replayer.h"
#include "segue/runtime/Error.h"

using namespace segue;
using namespace segue::tool;

// The log that Conductor writes of a random run, fed to another one: every
// answer is the one that the run got.
TEST(ReplayConductor, RepeatsARecordedRun) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<Json> recorded;
    ConductorRig rig;
    {
      Json object = Json::parse(ConductorEvents::config);
      object["enabled"] = true;
      ConfigReader reader(object, "", ConfigReader::Files::Ignore);
      ConductorConfig config = ConductorConfig::read(reader);
      Conductor::Hooks hooks;
      hooks.trace = [&](const Json &event) { recorded.push_back(event); };
      // While the step is aborted, transfers end.
      hooks.drain = [&] {
        for (uint64_t id = 1; id < 500; ++id)
          try {
            rig.conductor.releaseToken(id);
          } catch (const Error &) {
          }
      };
      rig.conductor = Conductor(config, config.limits(std::nullopt), std::move(hooks));
      rig.conductor.registerOwner("a");
      rig.conductor.registerOwner("b");
    }
    ConductorEvents events(seed);
    for (int i = 0; i < 300; ++i)
      events.step(rig);

    ReplayLog log;
    log.service = "conductor";
    log.config = Json::parse(ConductorEvents::config);
    std::unique_ptr<Replayer> replayer;
    for (const ReplayService &service : replayServices())
      if (service.name == log.service)
        replayer = service.create(log);
    ASSERT_NE(replayer, nullptr);
    ASSERT_GT(recorded.size(), 200u);
    for (size_t i = 0; i < recorded.size(); ++i) {
      EventReader event(recorded[i]);
      Json answer;
      try {
        answer = replayer->apply(event);
      } catch (const Error &error) {
        answer = Json{{"error", errorCodeName(error.code())}};
      }
      for (const std::string &line : compareAnswer(recorded[i]["expect"], answer))
        ADD_FAILURE() << "seed " << seed << ", event " << i << ": " << recorded[i].dump() << "\n" << line;
      EXPECT_TRUE(event.unread().empty() || event.unread() == std::vector<std::string>{"id"}) << recorded[i].dump();
      if (::testing::Test::HasFailure())
        return;
    }
  }
}

TEST(ReplayConductor, ComparesOnlyWhatIsListed) {
  auto differences = [](const char *expected, const char *answer) {
    return compareAnswer(Json::parse(expected), Json::parse(answer));
  };
  EXPECT_TRUE(differences(R"({"a": 1})", R"({"a": 1.0000000001, "b": 2})").empty());
  EXPECT_EQ(differences(R"({"a": 1})", R"({"a": 1.00001})"),
            (std::vector<std::string>{"a: 1 expected, 1.00001 found"}));
  EXPECT_TRUE(differences(R"({"m": {"x": "int8"}})", R"({"m": {"x": "int8", "y": "bf16"}})").empty());
  EXPECT_EQ(differences(R"({"m": {"x": "int8"}})", R"({"m": {"x": "bf16"}})").size(), 1u);
  EXPECT_TRUE(differences(R"({"l": []})", R"({"l": []})").empty());
  EXPECT_EQ(differences(R"({"l": []})", R"({"l": [1]})"), (std::vector<std::string>{"l: [] expected, [1] found"}));
  EXPECT_EQ(differences(R"({"l": [["a", 2]]})", R"({"l": [["a", 3]]})"),
            (std::vector<std::string>{"l[0][1]: 2 expected, 3 found"}));
  EXPECT_TRUE(differences(R"({"n": null})", R"({})").empty());
  EXPECT_EQ(differences(R"({"n": 0})", R"({})"), (std::vector<std::string>{"n: 0 expected, nothing found"}));
  EXPECT_EQ(differences(R"({"n": null})", R"({"n": 0})").size(), 1u);
  EXPECT_EQ(differences(R"({"n": true})", R"({"n": 1})").size(), 1u);
}
