//===- SortCases.h - rows that are sorted in tests --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Calls of argsort with their rows, and the order that std::stable_sort gives by comparing
// numbers, which knows nothing of keys.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_ENGINE_SORTCASES_H
#define SEGUE_RUNTIME_TEST_ENGINE_SORTCASES_H

#include "segue/runtime/Engine/LibraryCall.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace segue::test {

/// What rows hold.
enum class Elements { Random, Few, Equal, Ascending, Descending, Ends };
inline constexpr Elements allElements[] = {Elements::Random,    Elements::Few,        Elements::Equal,
                                           Elements::Ascending, Elements::Descending, Elements::Ends};

struct SortCase {
  LibraryCallSpec spec;
  /// The bits of the elements of all rows.
  std::vector<uint8_t> x;

  SortCase(ElementType type, Elements elements, int64_t rows, int64_t length, int64_t first, int64_t count,
           bool descending, int64_t slots)
      : x(size_t(rows * length) * byteSize(type)) {
    spec = {.operation = "argsort",
            .reads = {{type, {rows, length}}},
            .writes = {{ElementType::i64, {rows, count}}, {ElementType::i64, {slots, length}}},
            .numbers = {descending, first}};
    std::mt19937_64 random(uint64_t(length) * 31 + uint64_t(type) * 7 + uint64_t(elements));
    for (int64_t at = 0; at < rows * length; ++at)
      set(at, bitsOf(elements, at % length, length, random));
  }

  ElementType type() const { return spec.reads[0].element; }
  int64_t length() const { return spec.reads[0].shape[1]; }

  uint64_t bits(int64_t at) const {
    uint64_t bits = 0;
    std::memcpy(&bits, &x[size_t(at) * byteSize(type())], byteSize(type()));
    return bits;
  }

  std::vector<int64_t> expected() const {
    std::vector<int64_t> result;
    for (int64_t row = 0; row < spec.reads[0].shape[0]; ++row) {
      std::vector<int64_t> places(size_t(length()), 0);
      std::iota(places.begin(), places.end(), 0);
      std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
        a += row * length(), b += row * length();
        return spec.numbers[0] ? isLess(b, a) : isLess(a, b);
      });
      auto begin = places.begin() + spec.numbers[1];
      result.insert(result.end(), begin, begin + spec.writes[0].shape[1]);
    }
    return result;
  }

private:
  void set(int64_t at, uint64_t bits) { std::memcpy(&x[size_t(at) * byteSize(type())], &bits, byteSize(type())); }

  double number(int64_t at) const {
    uint64_t word = bits(at);
    switch (type()) {
    case ElementType::f64:
      return std::bit_cast<double>(word);
    case ElementType::f32:
      return std::bit_cast<float>(uint32_t(word));
    case ElementType::bf16:
      return bf16ToFloat(uint16_t(word));
    default:
      return f16ToFloat(uint16_t(word));
    }
  }

  int64_t integer(int64_t at) const {
    uint64_t word = bits(at);
    return type() == ElementType::i64 ? int64_t(word) : type() == ElementType::i32 ? int32_t(word)
           : type() == ElementType::i8 ? int8_t(word) : int64_t(word);
  }

  bool isLess(int64_t a, int64_t b) const {
    if (!isFloat(type()))
      return integer(a) < integer(b);
    return number(a) < number(b) || (std::isnan(number(b)) && !std::isnan(number(a)));
  }

  /// The bits of `number` in this type, for numbers that have few digits.
  uint64_t bitsOfNumber(double number) const {
    switch (type()) {
    case ElementType::f64:
      return std::bit_cast<uint64_t>(number);
    case ElementType::f32:
      return std::bit_cast<uint32_t>(float(number));
    case ElementType::bf16:
      return floatToBf16(float(number));
    case ElementType::f16:
      return floatToF16(float(number));
    case ElementType::i1:
      return number > 1;
    default:
      return uint64_t(int64_t(number));
    }
  }

  uint64_t bitsOf(Elements elements, int64_t place, int64_t length, std::mt19937_64 &random) const {
    switch (elements) {
    case Elements::Random: // all bits: NaN of all kinds, denormals
      return type() == ElementType::i1 ? random() & 1 : random();
    case Elements::Few:
      return bitsOfNumber(double(random() % 5));
    case Elements::Equal:
      return bitsOfNumber(3);
    case Elements::Ascending:
      return bitsOfNumber(double(place * 100 / length));
    case Elements::Descending:
      return bitsOfNumber(double((length - place) * 100 / length));
    case Elements::Ends:
      break;
    }
    if (type() == ElementType::i1)
      return random() & 1;
    uint64_t sign = uint64_t(1) << (8 * byteSize(type()) - 1);
    if (!isFloat(type())) { // the ends, and many near 0: differences of more than 32 bits beside small ones
      const uint64_t ends[] = {sign, sign - 1, 0, ~uint64_t(0), 1};
      uint64_t word = random();
      return word % 8 < 5 ? ends[word % 8] : (word >> 8) % 1000;
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const uint64_t ends[] = {bitsOfNumber(infinity), bitsOfNumber(-infinity), 0, sign, 1, sign | 1, 2, sign | 2,
                             bitsOfNumber(NAN), bitsOfNumber(NAN) | sign, bitsOfNumber(1), bitsOfNumber(-1)};
    return ends[random() % std::size(ends)];
  }
};

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_ENGINE_SORTCASES_H
