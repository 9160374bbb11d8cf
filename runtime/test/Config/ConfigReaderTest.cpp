//===- ConfigReaderTest.cpp - typed reading of one config object ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/ConfigReader.h"
#include "Config/ExpectConfigError.h"
#include "Session/TemporaryFolder.h"
#include <nlohmann/json.hpp>

using namespace segue;

namespace {
enum class Fruit { Apple, Pear, Plum };
constexpr std::pair<std::string_view, Fruit> fruits[] = {
    {"apple", Fruit::Apple}, {"pear", Fruit::Pear}, {"plum", Fruit::Plum}};
} // namespace

/// A reader of `text`, which lives as long as the test program.
static ConfigReader readerOf(const char *text, ConfigReader::Files files = ConfigReader::Files::Check) {
  static std::vector<std::unique_ptr<Json>> objects;
  objects.push_back(std::make_unique<Json>(Json::parse(text)));
  return ConfigReader(*objects.back(), "memory.test", files);
}

TEST(ConfigReader, ReadsEveryType) {
  ConfigReader reader = readerOf(R"({"b": true, "i": 7, "whole": 2.0, "n": 0.5, "s": "text", "e": "pear",
                                     "ints": [1, 2], "numbers": [0.5, 2], "strings": ["x"], "none": null})");
  EXPECT_TRUE(reader.getBool("b", false));
  EXPECT_EQ(reader.getInt("i", 0), 7);
  EXPECT_EQ(reader.getInt("whole", 0), 2);
  EXPECT_EQ(reader.getNumber("n", 0), 0.5);
  EXPECT_EQ(reader.getNumber("i", 0), 7.0);
  EXPECT_EQ(reader.getString("s", ""), "text");
  EXPECT_EQ(reader.getEnum<Fruit>("e", Fruit::Apple, fruits), Fruit::Pear);
  EXPECT_EQ(reader.getInts("ints", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.getNumbers("numbers", {}), (std::vector<double>{0.5, 2}));
  EXPECT_EQ(reader.getStrings("strings", {}), (std::vector<std::string>{"x"}));
  EXPECT_EQ(reader.getOptionalStrings("strings"), (std::vector<std::string>{"x"}));
  EXPECT_EQ(reader.getOptionalNumber("none"), std::nullopt);
  EXPECT_EQ(reader.getOptionalInt("i"), 7);
  EXPECT_EQ(reader.getOptionalString("s"), "text");
  EXPECT_TRUE(reader.isList("ints"));
  EXPECT_FALSE(reader.isList("i"));
  EXPECT_TRUE(reader.has("b"));
  EXPECT_FALSE(reader.has("none"));
  EXPECT_NO_THROW(reader.finish());
}

TEST(ConfigReader, AnswersDefaultsForAbsentKeys) {
  ConfigReader reader = readerOf("{}");
  EXPECT_TRUE(reader.getBool("b", true));
  EXPECT_EQ(reader.getInt("i", 3), 3);
  EXPECT_EQ(reader.getNumber("n", 0.25), 0.25);
  EXPECT_EQ(reader.getString("s", "d"), "d");
  EXPECT_EQ(reader.getEnum<Fruit>("e", Fruit::Plum, fruits), Fruit::Plum);
  EXPECT_EQ(reader.getInts("l", {4}), (std::vector<int64_t>{4}));
  EXPECT_EQ(reader.getOptionalInt("o"), std::nullopt);
  EXPECT_EQ(reader.getOptionalStrings("o"), std::nullopt);
  EXPECT_EQ(reader.getInputFile("f"), std::nullopt);
  EXPECT_NO_THROW(reader.finish());
}

// A value of another type is named with what was found and what is allowed.
TEST(ConfigReader, RefusesOtherTypes) {
  ConfigReader reader =
      readerOf(R"({"b": 1, "i": 2.5, "t": true, "n": "0.5", "s": 3, "l": 4, "items": [1, "x"], "null": null})");
  EXPECT_CONFIG_ERROR(reader.getBool("b", false), "b", "true or false",
                      "CONFIG_INVALID: memory.test.b: 1 found, true or false allowed");
  EXPECT_CONFIG_ERROR(reader.getInt("i", 0), "i", "a whole number", "memory.test.i: 2.5 found, a whole number allowed");
  EXPECT_CONFIG_ERROR(reader.getInt("t", 0), "t", "a whole number", "true found");
  EXPECT_CONFIG_ERROR(reader.getNumber("n", 0), "n", "a number", "\"0.5\" found, a number allowed");
  EXPECT_CONFIG_ERROR(reader.getString("s", ""), "s", "a text", "3 found, a text allowed");
  EXPECT_CONFIG_ERROR(reader.getInts("l", {}), "l", "a list [...]", "4 found, a list [...] allowed");
  EXPECT_CONFIG_ERROR(reader.getInts("items", {}), "items[1]", "a whole number", "memory.test.items[1]: \"x\" found");
  EXPECT_CONFIG_ERROR(reader.getInt("null", 0), "null", "a whole number", "null found");
  EXPECT_CONFIG_ERROR(reader.getBool("null", false), "null", "true or false", "null found");
}

TEST(ConfigReader, RefusesNumbersOutOfRange) {
  ConfigReader reader = readerOf(R"({"zero": 0, "one": 1, "big": 65, "huge": 1e300, "list": [3, 0]})");
  EXPECT_CONFIG_ERROR(reader.getInt("big", 0, Range::between(1, 64)), "big", "a whole number from 1 to 64",
                      "65 found, a whole number from 1 to 64 allowed");
  EXPECT_CONFIG_ERROR(reader.getNumber("zero", 0, Range::above(0)), "zero", "a number above 0", "0 found");
  EXPECT_CONFIG_ERROR(reader.getNumber("zero", 0, Range::aboveUpTo(0, 1)), "zero", "a number above 0 and at most 1",
                      "");
  EXPECT_CONFIG_ERROR(reader.getNumber("big", 0, Range::aboveUpTo(0, 1)), "big", "a number above 0 and at most 1", "");
  EXPECT_CONFIG_ERROR(reader.getInt("zero", 0, Range::atLeast(1)), "zero", "a whole number at least 1", "");
  EXPECT_CONFIG_ERROR(reader.getInt("huge", 0), "huge", "a whole number", "1e+300 found");
  EXPECT_CONFIG_ERROR(reader.getInts("list", {}, Range::above(0)), "list[1]", "a whole number above 0", "");
  EXPECT_EQ(reader.getNumber("one", 0, Range::aboveUpTo(0, 1)), 1.0);
  EXPECT_EQ(reader.getInt("one", 0, Range::atLeast(1)), 1);
  EXPECT_CONFIG_ERROR(reader.getNumber("one", 0, Range{.high = 1, .highOpen = true}), "one", "a number below 1", "");
}

TEST(ConfigReader, ListsTheNamesOfAnEnum) {
  ConfigReader reader = readerOf(R"({"e": "peach", "n": 1})");
  EXPECT_CONFIG_ERROR(reader.getEnum<Fruit>("e", Fruit::Apple, fruits), "e", "apple, pear or plum",
                      "\"peach\" found, apple, pear or plum allowed");
  EXPECT_CONFIG_ERROR(reader.getEnum<Fruit>("n", Fruit::Apple, fruits), "n", "apple, pear or plum", "1 found");
}

TEST(ConfigReader, NamesTheNearestKnownKey) {
  ConfigReader reader = readerOf(R"({"h2d_slot": 1})");
  reader.getInt("d2h_slots", 2);
  reader.getInt("h2d_slots", 2);
  reader.allow("somebody_else");
  EXPECT_CONFIG_ERROR(reader.finish(), "h2d_slot", "h2d_slots",
                      "memory.test.h2d_slot: unknown key; the nearest known key is \"h2d_slots\"");
  ConfigReader none = readerOf(R"({"x": 1})");
  EXPECT_CONFIG_ERROR(none.finish(), "x", "", "memory.test.x: unknown key");
  ConfigReader allowed = readerOf(R"({"somebody_else": {}})");
  allowed.allow("somebody_else");
  EXPECT_NO_THROW(allowed.finish());
}

TEST(ConfigReader, FailsForRulesOfTheService) {
  ConfigReader reader = readerOf(R"({"soft": 2})");
  EXPECT_CONFIG_ERROR(reader.fail("soft", "soft cap above hard cap"), "soft", "soft cap above hard cap",
                      "CONFIG_INVALID: memory.test.soft: soft cap above hard cap");
  EXPECT_CONFIG_ERROR(reader.failValue("soft", "a power of two above 2"), "soft", "a power of two above 2",
                      "2 found, a power of two above 2 allowed");
}

TEST(ConfigReader, ReadsObjectsOnly) {
  EXPECT_CONFIG_ERROR(readerOf("[1]"), "", "an object", "memory.test: [1] found, an object {...} allowed");
}

// Long values are cut in messages.
TEST(ConfigReader, ShortensWhatItFound) {
  ConfigReader reader =
      readerOf(R"({"s": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]})");
  EXPECT_CONFIG_ERROR(reader.getString("s", ""), "s", "a text", "aaa... found");
}

TEST(ConfigReader, LooksForFoldersAndFiles) {
  TemporaryFolder folder;
  writeText(folder / "there", "x");
  auto text = [&](const std::string &path) { return "{\"f\": \"" + path + "\"}"; };
  std::string there = text((folder / "there").string()), missing = text((folder / "a" / "b").string()),
              slash = text((folder / "").string());
  EXPECT_EQ(readerOf(there.c_str()).getOutputFile("f", ""), folder / "there");
  EXPECT_EQ(readerOf(there.c_str()).getInputFile("f"), folder / "there");
  EXPECT_EQ(readerOf("{}").getOutputFile("f", "x.jsonl"), "x.jsonl");
  ConfigReader reader = readerOf(missing.c_str());
  std::string rule = "the folder \"" + (folder / "a").string() + "\" does not exist; make it, or choose another";
  EXPECT_CONFIG_ERROR(reader.getOutputFile("f", ""), "f", rule, rule);
  rule = "there is no file \"" + (folder / "a" / "b").string() + "\"";
  EXPECT_CONFIG_ERROR(reader.getInputFile("f"), "f", rule, rule);
  ConfigReader noFile = readerOf(slash.c_str());
  EXPECT_CONFIG_ERROR(noFile.getOutputFile("f", ""), "f", "\"" + (folder / "").string() + "\" names no file",
                      "names no file");
  ConfigReader replay = readerOf(missing.c_str(), ConfigReader::Files::Ignore);
  EXPECT_EQ(replay.getOutputFile("f", ""), folder / "a" / "b");
  EXPECT_EQ(replay.getInputFile("f"), folder / "a" / "b");
}
