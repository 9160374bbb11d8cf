//===- ArgsortTest.cpp - places of elements in their sorted rows ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SortCases.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

/// Runs the call, and sees that nothing is written behind the result and the workspace.
static std::vector<int64_t> sorted(CpuEngine &engine, const SortCase &given) {
  constexpr int64_t guard = 0x5a5a;
  std::vector<int64_t> result(size_t(given.spec.writes[0].elements()) + 1, guard);
  std::vector<int64_t> space(size_t(given.spec.writes[1].elements()) + 1, guard);
  std::vector<void *> tensors = {const_cast<uint8_t *>(given.x.data()), result.data(), space.data()};
  EXPECT_EQ(findLibraryOperation("argsort")->findProblem(given.spec), "");
  engine.planLibraryCall(given.spec)->run(tensors);
  EXPECT_EQ(result.back(), guard);
  EXPECT_EQ(space.back(), guard);
  result.pop_back();
  return result;
}

// Whole rows and parts of their order: the first few, one in the middle, most, the last. Lengths about where another way
// is taken: elements that are counted, few pairs, digits of 8 and of 11 bits, candidates.
TEST(Argsort, IsAStableSortOfEveryType) {
  for (ElementType type : allElementTypes)
    for (Elements elements : allElements)
      for (int64_t length : {1, 2, 17, 32, 127, 128, 1023, 1025, 8192}) {
        CpuEngine engine{Threads(1)};
        for (bool descending : {false, true})
          for (auto [first, count] : {std::pair<int64_t, int64_t>{0, length}, {0, std::min<int64_t>(length, 5)},
                                      {length / 2, 1}, {length / 7, length - length / 3}, {length - 1, 1},
                                      {0, std::min<int64_t>(length, 60)}, {3, length / 9}}) {
            if (first + count > length)
              continue;
            SortCase given(type, elements, 1, length, first, count, descending, 1);
            ASSERT_EQ(sorted(engine, given), given.expected())
                << name(type) << " elements " << int(elements) << ", " << count << " from " << first << " of " << length
                << (descending ? " descending" : "");
          }
      }
}

// Rows share the workspace in turn; what threads do in which order changes nothing.
TEST(Argsort, SortsRowsByManyThreadsInAnyWorkspace) {
  for (int threads : {1, 2, 5})
    for (int64_t slots : {1, 3, 40})
      for (int64_t count : {700, 9}) {
        CpuEngine engine{Threads(threads)};
        SortCase given(ElementType::f32, Elements::Random, 40, 700, 0, count, true, slots);
        ASSERT_EQ(sorted(engine, given), given.expected()) << threads << " threads, " << slots << " rows of workspace";
      }
}

TEST(Argsort, HasNothingToSort) {
  CpuEngine engine{Threads(2)};
  for (auto [rows, length, count] : {std::tuple<int64_t, int64_t, int64_t>{0, 4, 4}, {3, 0, 0}, {3, 4, 0}})
    EXPECT_EQ(sorted(engine, SortCase(ElementType::i32, Elements::Few, rows, length, 0, count, false, 1)).size(), 0u);
}

// What a file may hold, and no plan may be made of.
TEST(Argsort, SaysWhatIsWrong) {
  using Spec = LibraryCallSpec;
  auto problem = [](auto change) {
    Spec spec = SortCase(ElementType::f32, Elements::Few, 3, 8, 2, 5, false, 2).spec;
    change(spec);
    return findLibraryOperation(spec.operation)->findProblem(spec);
  };
  EXPECT_EQ(problem([](Spec &) {}), "");
  EXPECT_EQ(problem([](Spec &spec) { spec.writes.pop_back(); }),
            "1 operands and 1 results; it takes one and gives places and a workspace");
  for (std::vector<int64_t> numbers : {std::vector<int64_t>{1}, {2, 0}, {-1, 0}, {0, -1}, {0, 0, 0}})
    EXPECT_TRUE(problem([&](Spec &spec) { spec.numbers = numbers; }).starts_with("numbers ")) << numbers.size();
  EXPECT_EQ(problem([](Spec &spec) { spec.writes[1].element = ElementType::i32; }),
            "places of i64 and a workspace of i32; both are i64");
  EXPECT_EQ(problem([](Spec &spec) { spec.writes[0].shape = {4, 5}; }), "places of shape 4x5 in rows of 3x8");
  EXPECT_EQ(problem([](Spec &spec) { spec.reads[0].shape = {}, spec.writes[0].shape = {}; }),
            "places of shape  in rows of ");
  EXPECT_EQ(problem([](Spec &spec) { spec.numbers[1] = 4; }), "5 places from 4 on, in rows of 8");
  EXPECT_EQ(problem([](Spec &spec) { spec.numbers[1] = std::numeric_limits<int64_t>::max(); }),
            "5 places from 9223372036854775807 on, in rows of 8");
  for (std::vector<int64_t> shape : {std::vector<int64_t>{2, 7}, {0, 8}, {16}, {2, 8, 1}})
    EXPECT_TRUE(problem([&](Spec &spec) { spec.writes[1].shape = shape; }).starts_with("a workspace of ")) << shape[0];
  EXPECT_EQ(problem([](Spec &spec) {
              spec.reads[0].shape = {1, int64_t(1) << 31}, spec.writes[0].shape = {1, 5};
              spec.writes[1].shape = {1, int64_t(1) << 31};
            }),
            "rows of 2147483648 elements; they have fewer than 2^31");
}
