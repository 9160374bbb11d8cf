//===- ConfigTest.cpp - the config file of a run --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/Config.h"
#include "../../lib/Session/SilentConfig.h"
#include "Config/ExpectConfigError.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include <nlohmann/json.hpp>

using namespace segue;

static constexpr const char *conductorSection = "memory.stagehand.conductor_config";

TEST(Config, HandsOutSections) {
  Config config = Config::parse(R"({"memory": {"stagehand": {"conductor_config": {"h2d_slots": 5}}}})", "run.json");
  EXPECT_TRUE(config.has(conductorSection));
  EXPECT_FALSE(config.has("memory.stagehand.nothing"));
  ConfigReader reader = config.section(conductorSection);
  EXPECT_EQ(reader.section(), conductorSection);
  EXPECT_EQ(ConductorConfig::read(reader).h2dSlots, 5);
}

// An absent section reads as an empty one.
TEST(Config, HasDefaultsWithoutAFile) {
  Config config;
  EXPECT_FALSE(config.has(conductorSection));
  ConfigReader reader = config.section(conductorSection);
  EXPECT_EQ(ConductorConfig::read(reader).h2dSlots, 2);
}

// The file of a host application, whose keys stand beside ours: they are named,
// and nothing else of them is read.
TEST(Config, LeavesKeysOfAnotherProgramToIt) {
  Config config = Config::parse(R"({"model": {"path": "x"}, "learning_rate": 1e-4, "memory": {"strategy": "stagehand",
      "cpu_offload": {"enabled": false}, "stagehand": {"conductor_config": {"h2d_slots": 5}}}})",
                                "run.json");
  EXPECT_EQ(config.foreign(),
            (std::vector<std::string>{"model", "learning_rate", "memory.strategy", "memory.cpu_offload"}));
  ConfigReader reader = config.section(conductorSection);
  EXPECT_EQ(ConductorConfig::read(reader).h2dSlots, 5);
  EXPECT_TRUE(Config::parse(R"({"memory": {"stitch": {}}})", "run.json").foreign().empty());
}

// Unknown keys in our sections are errors; where others have keys too, those that
// are nearly ours.
TEST(Config, RefusesUnknownKeysAnywhere) {
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memry": {}})", "run.json"), "memry", "memory",
                      "CONFIG_INVALID: run.json: memry: unknown key; the nearest known key is \"memory\"");
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memory": {"stage_hand": {}}})", "run.json"), "stage_hand", "stagehand",
                      "run.json: memory.stage_hand: unknown key");
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memory": {"stagehand": {"conductor": {}}}})", "run.json"), "conductor",
                      "conductor_config", "memory.stagehand.conductor: unknown key");
  EXPECT_CONFIG_ERROR(
      Config::parse(R"({"memory": {"stagehand": {"conductor_config": {"h2d_slot": 1}}}})", "run.json"), "h2d_slot",
      "h2d_slots", "memory.stagehand.conductor_config.h2d_slot: unknown key; the nearest known key is \"h2d_slots\"");
}

// A value that a service refuses is said at load, before anything is built.
TEST(Config, ChecksEverySection) {
  EXPECT_CONFIG_ERROR(
      Config::parse(R"({"memory": {"stagehand": {"conductor_config": {"h2d_slots": 65}}}})", "run.json"), "h2d_slots",
      "a whole number from 1 to 64", "run.json: memory.stagehand.conductor_config.h2d_slots: 65 found");
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memory": []})", "run.json"), "", "an object", "memory: [] found");
}

TEST(Config, NamesTheLineOfASyntaxError) {
  EXPECT_CONFIG_ERROR(Config::parse("{\"memory\":\n  {\"stagehand\" {}}}", "run.json"), "", "",
                      "CONFIG_INVALID: run.json: line 2, column 16: ");
  EXPECT_CONFIG_ERROR(Config::parse("", "run.json"), "", "", "run.json: line 1, column 1: ");
  EXPECT_CONFIG_ERROR(Config::parse("{\n\n\"memory\": {}\n", "run.json"), "", "", "run.json: line 4, column 1: ");
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memory": 1e999})", "run.json"), "", "", "run.json: ");
}

// nlohmann would keep the last of them; a person meant one of the two.
TEST(Config, RefusesAKeyThatStandsTwice) {
  EXPECT_CONFIG_ERROR(Config::parse(R"({"memory": {}, "memory": {}})", "run.json"), "memory", "a key stands once",
                      "run.json: memory: the key stands twice in one object");
  EXPECT_NO_THROW(parseJson(R"({"a": {"x": 1}, "b": {"x": [{"x": 1}, {"x": 2}]}})", "run.json"));
}

TEST(Config, LoadsAFile) {
  TemporaryFolder folder;
  writeText(folder / "run.json", R"({"memory": {"stagehand": {"conductor_config": {"d2h_slots": 3}}}})");
  Config config = Config::load(folder / "run.json");
  ConfigReader reader = config.section(conductorSection);
  EXPECT_EQ(ConductorConfig::read(reader).d2hSlots, 3);
  EXPECT_ERROR(Config::load(folder / "missing.json"), IoFailed, "missing.json: cannot be read: No such file");
  EXPECT_ERROR(Config::load(folder.path), IoFailed, "cannot be read: Is a directory");
}

/// A config with one section.
static Json oneSection(std::string_view path, Json section) {
  for (size_t dot; (dot = path.rfind('.')) != std::string_view::npos; path = path.substr(0, dot))
    section = Json{{std::string(path.substr(dot + 1)), std::move(section)}};
  return Json{{std::string(path), std::move(section)}};
}

// A new section says whether it has telemetry: a session on a twin would write to the file of the run.
TEST(Config, WhatHasTelemetryIsSilentOnATwin) {
  for (const ConfigSection &section : configSections()) {
    SCOPED_TRACE(section.path);
    std::string text = oneSection(section.path, {{"telemetry_enabled", true}}).dump();
    if (!section.hasTelemetry) {
      EXPECT_THROW(Config::parse(text, "run.json"), ConfigError);
      continue;
    }
    Config silent = silentConfig(Config::parse(text, "run.json"));
    if (section.path == "memory.stagehand.selective_precision") // which is left out
      continue;
    EXPECT_FALSE(silent.json(section.path).value("telemetry_enabled", true));
  }
}
