//===- JsonTest.cpp - texts from elsewhere --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/JsonNumbers.h"
#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

/// The problem with a text, or "".
static std::string problemOf(std::string_view text) {
  Json value = "untouched";
  std::optional<JsonProblem> problem = readJson(text, value);
  EXPECT_EQ(problem.has_value(), value == "untouched");
  return problem ? problem->sentence : "";
}

static std::string nested(size_t depth, const std::string &inner = "") {
  std::string text;
  for (size_t i = 0; i < depth; ++i)
    text += i % 2 ? "{\"a\":" : "[";
  text += inner.empty() ? "1" : inner;
  for (size_t i = depth; i-- > 0;)
    text += i % 2 ? "}" : "]";
  return text;
}

TEST(ReadJson, GivesWhatTheLibraryGives) {
  for (const char *text : {"null", " true ", "-3", "18446744073709551615", "0.1", "\"a\\u00e9\\n\"", "[]", "{}",
                           R"([1, [2, {"b": [], "a": {"c": null}}], "x"])", R"({"z": 1, "a": {"z": [false]}, "m": ""})"}) {
    Json value;
    EXPECT_FALSE(readJson(text, value)) << text;
    EXPECT_EQ(value.dump(), Json::parse(text).dump()) << text; // the order of keys, too
  }
}

TEST(ReadJson, NamesThePlaceOfAMistake) {
  EXPECT_EQ(problemOf("[1,\n 2,, 3]").substr(0, 18), "line 2, column 4: ");
  EXPECT_EQ(problemOf("").substr(0, 18), "line 1, column 1: ");
  EXPECT_NE(problemOf("{} {}"), "");
  EXPECT_NE(problemOf("[1e999]"), "");
  EXPECT_NE(problemOf("\"\xff\""), "");
  // It ends the text for the parser: what follows would count as nothing.
  EXPECT_EQ(problemOf(std::string_view("{}\n\0 {", 6)), "line 2, column 1: a byte of value 0");
}

TEST(ReadJson, RefusesTwinsOfOneObjectAlone) {
  Json value;
  std::optional<JsonProblem> problem = readJson(R"({"b": 1, "a": {"b": 2}, "b": 3})", value);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "b");
  EXPECT_EQ(problem->sentence, "\"b\": the key stands twice in one object");
  EXPECT_EQ(problemOf(R"([{"x": 1}, {"x": {"x": 2}}])"), "");
}

// Each level is a call of whoever looks at the value next.
TEST(ReadJson, HasADepth) {
  EXPECT_EQ(problemOf(nested(100)), "");
  EXPECT_EQ(problemOf(nested(101)), "objects and lists lie 101 deep in one another; 100 levels are read at most");
  EXPECT_NE(problemOf(std::string(200'000, '[')).find("lie 200000 deep"), std::string::npos);
  // Brackets in strings are no levels, behind whatever escape.
  std::string brackets(1000, '{');
  EXPECT_EQ(problemOf(nested(99, "\"" + brackets + "\\\"[\\\\\"")), "");
  EXPECT_NE(problemOf(nested(99, "\"\\\\\"" + brackets)), "");
}

// A builder that looks for each key among those before it takes minutes here.
TEST(ReadJson, TakesManyKeysAsQuicklyAsFew) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i)
    text += (i ? ",\"key" : "\"key") + std::to_string(i) + "\":0";
  Json value;
  EXPECT_FALSE(readJson(text + "}", value));
  EXPECT_EQ(value.size(), 100'000u);
  EXPECT_NE(problemOf(text + ",\"key7\":0}"), "");
}

TEST(JsonNumbers, HaveATextWhereJsonHasNoNumber) {
  for (double value : {0.0, -1.5, 1e300, HUGE_VAL, -HUGE_VAL}) {
    EXPECT_EQ(numberOf(numberOrText(value)), value);
    EXPECT_EQ(numberOf(Json::parse(numberOrText(value).dump())), value);
  }
  EXPECT_TRUE(std::isnan(*numberOf(numberOrText(NAN))));
  EXPECT_EQ(numberOrText(NAN), "nan");
  for (const Json &other : {Json(), Json("Inf"), Json(true), Json::array(), Json("1")})
    EXPECT_FALSE(numberOf(other)) << other;
  Json value = {{"a", {1, HUGE_VAL, {{"b", -HUGE_VAL}}}}, {"c", NAN}, {"d", "x"}, {"e", 0.5}};
  nameNonFinite(value);
  EXPECT_EQ(value.dump(), R"({"a":[1,"inf",{"b":"-inf"}],"c":"nan","d":"x","e":0.5})");
}
