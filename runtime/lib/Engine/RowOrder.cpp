//===- RowOrder.cpp - the order of a row's elements -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A row becomes pairs of 64 bits: above, 32 bits of an element's key, as many as tell the
// keys of this row apart; below, its place. No two pairs are equal, so any way to sort them
// is a stable sort of the row. Many pairs are sorted by digits of their keys, the least
// significant first. Elements of a short row are counted: the number of one in the order is how
// many others go before it. Of a part of the order, the first few are kept while the row is
// read; for some more, the row is cut into pieces, and the least keys of these say what can
// belong to it; for any other part, pairs that cannot go first, by the most significant digit.
//
// Keys of 64 bits that differ above and below what 32 bits hold, as 3 and 2^62 do, are sorted
// by their upper bits first. Those that agree in these differ by less than 2^32, so they are
// sorted once more.
//
//===----------------------------------------------------------------------===//

#include "RowOrder.h"
#include "SortKeys.h"
#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

namespace segue::inline runtime {
namespace {

/// So many pairs are compared with each other, not sorted by digits: counters cost more.
constexpr int64_t kFewPairs = 128;
/// From so many on, digits of 11 bits take less time than those of 8.
constexpr int64_t kManyPairs = 1 << 13;
/// The first elements of an order, up to so many, are kept sorted while the row is read.
constexpr int64_t kFirstFew = 16;
/// The elements of a row of up to so many are counted.
constexpr int64_t kShortRow = 32;
/// Keys are made and looked at in pieces of so many, by instructions for several at once.
constexpr int64_t kPiece = 64;

using Pair = uint64_t;

constexpr int64_t placeOf(Pair pair) { return int64_t(uint32_t(pair)); }

/// Makes keys of `count` elements from `begin` on.
template <ElementType type, typename Key>
void makeKeysOf(const SortedRow &row, int64_t begin, int64_t count, Key *keys) {
  using Bits = std::conditional_t<byteSize(type) == 8, uint64_t,
                                  std::conditional_t<byteSize(type) == 4, uint32_t,
                                                     std::conditional_t<byteSize(type) == 2, uint16_t, uint8_t>>>;
  const Bits *bits = static_cast<const Bits *>(row.data) + begin;
  Bits flip = Bits(sortKeyFlip(type, row.descending));
  for (int64_t i = 0; i < count; ++i)
    keys[i] = Bits(sortKey(type, bits[i]) ^ flip);
}

void makeKeys(const SortedRow &row, int64_t begin, int64_t count, uint64_t *keys) {
  return row.element == ElementType::f64 ? makeKeysOf<ElementType::f64>(row, begin, count, keys)
                                         : makeKeysOf<ElementType::i64>(row, begin, count, keys);
}

void makeKeys(const SortedRow &row, int64_t begin, int64_t count, uint32_t *keys) {
  switch (row.element) {
  case ElementType::f32:
    return makeKeysOf<ElementType::f32>(row, begin, count, keys);
  case ElementType::bf16:
    return makeKeysOf<ElementType::bf16>(row, begin, count, keys);
  case ElementType::f16:
    return makeKeysOf<ElementType::f16>(row, begin, count, keys);
  case ElementType::i32:
    return makeKeysOf<ElementType::i32>(row, begin, count, keys);
  case ElementType::i8:
    return makeKeysOf<ElementType::i8>(row, begin, count, keys);
  default:
    return makeKeysOf<ElementType::i1>(row, begin, count, keys);
  }
}

/// The 32 bits of keys that pairs have.
struct KeyWindow {
  uint64_t base;
  int shift, bits;

  /// Chooses the window for keys from `least` to `greatest`.
  KeyWindow(uint64_t least, uint64_t greatest)
      : base(least), shift(std::max(int(std::bit_width(greatest - least)) - 32, 0)),
        bits(int(std::bit_width(greatest - least)) - shift) {}

  Pair pair(uint64_t key, int64_t place) const { return ((key - base) >> shift) << 32 | uint64_t(place); }
};

/// Sorts pairs, which ascend by place, by the lowest `bits` of their keys. Returns where they are then, one of both.
template <int digitBits> Pair *sortByDigits(Pair *pairs, Pair *spare, int64_t count, int bits) {
  constexpr size_t digits = size_t(1) << digitBits, mostPasses = (32 + digitBits - 1) / digitBits;
  auto digitOf = [](Pair pair, size_t pass) { return size_t(pair >> (32 + pass * digitBits)) & (digits - 1); };
  size_t passes = size_t(bits + digitBits - 1) / digitBits;
  std::array<std::array<uint32_t, digits>, mostPasses> starts;
  for (size_t pass = 0; pass < passes; ++pass)
    starts[pass].fill(0);
  for (int64_t i = 0; i < count; ++i)
    for (size_t pass = 0; pass < passes; ++pass)
      ++starts[pass][digitOf(pairs[i], pass)];
  for (size_t pass = 0; pass < passes; ++pass) {
    std::array<uint32_t, digits> &next = starts[pass];
    if (next[digitOf(pairs[0], pass)] == count)
      continue; // all have this digit
    uint32_t before = 0;
    for (uint32_t &start : next)
      before += std::exchange(start, before);
    for (int64_t i = 0; i < count; ++i)
      spare[next[digitOf(pairs[i], pass)]++] = pairs[i];
    std::swap(pairs, spare);
  }
  return pairs;
}

Pair *sortPairs(Pair *pairs, Pair *spare, int64_t count, int bits) {
  if (count < kFewPairs) {
    std::sort(pairs, pairs + count);
    return pairs;
  }
  return count < kManyPairs ? sortByDigits<8>(pairs, spare, count, bits) : sortByDigits<11>(pairs, spare, count, bits);
}

/// Drops pairs that cannot be number [first, last) in the order, by one digit of their keys after another, and keeps the
/// others as they lie. `first` and `last` are numbers among those that stay. Returns how many do: with keys that are
/// whole, `isExact`, and that fit in one digit, those that are wanted and no more.
int64_t dropOthers(Pair *pairs, int64_t count, int bits, bool isExact, int64_t &first, int64_t &last) {
  constexpr int digitBits = 11;
  constexpr size_t digits = size_t(1) << digitBits;
  // Pairs that are left agree in all bits above the digit.
  for (int shift = std::max(bits - digitBits, 0);; shift = std::max(shift - digitBits, 0)) {
    auto digitOf = [shift](Pair pair) { return size_t(pair >> (32 + shift)) & (digits - 1); };
    std::array<uint32_t, digits> counts{};
    for (int64_t i = 0; i < count; ++i)
      ++counts[digitOf(pairs[i])];
    size_t low = 0, high = 0;
    int64_t belowLow = 0, belowHigh = 0;
    for (; belowLow + counts[low] <= first; ++low)
      belowLow += counts[low];
    for (; belowHigh + counts[high] < last; ++high)
      belowHigh += counts[high];
    first -= belowLow;
    last -= belowLow;
    int64_t kept = 0;
    if (shift == 0 && isExact) { // pairs with one digit are equal but for their places, by which they ascend
      int64_t ofLow = 0, ofHigh = 0, mostOfHigh = last + belowLow - belowHigh;
      for (int64_t i = 0; i < count; ++i) {
        size_t digit = digitOf(pairs[i]);
        bool isBehindFirst = digit > low || (digit == low && ofLow++ >= first);
        bool isBeforeLast = digit < high || (digit == high && ofHigh++ < mostOfHigh);
        pairs[kept] = pairs[i];
        kept += isBehindFirst && isBeforeLast;
      }
      last -= first;
      first = 0;
      return kept;
    }
    for (int64_t i = 0; i < count; ++i) {
      size_t digit = digitOf(pairs[i]);
      pairs[kept] = pairs[i];
      kept += digit >= low && digit <= high;
    }
    if (shift == 0 || low != high || kept <= 2 * (last - first))
      return kept;
    count = kept;
  }
}

/// A row whose keys are numbers of type `Key`.
template <typename Key> class RowOrder {
public:
  RowOrder(const SortedRow &row) : row_(row) {}

  void write(int64_t first, int64_t count, int64_t *result, Pair *space) const {
    int64_t last = first + count, length = row_.length;
    if (length <= kShortRow && 4 * last > length)
      return writeCounted(first, last, result);
    if (last <= kFirstFew && last < length)
      return writeFirst(first, last, result);
    if (2 * kPiece * last <= length)
      return writeFirstSome(first, last, result, space);
    KeyWindow window = windowOf(length);
    forEachPiece(length, [&](const Key *keys, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        space[i] = window.pair(keys[i - begin], i);
    });
    int64_t left = length;
    if (count < length)
      left = dropOthers(space, length, window.bits, window.shift == 0, first, last);
    // The second array: the result, which has room for as many pairs as it takes, or the rest of the workspace.
    Pair *spare = left == count ? reinterpret_cast<Pair *>(result) : 2 * left <= length ? space + left : nullptr;
    Pair *sorted = space;
    if (!spare) {
      std::sort(space, space + left, [&](Pair a, Pair b) { return isBefore(a, b, window); });
    } else {
      sorted = sortPairs(space, spare, left, window.bits);
      if (window.shift)
        sortTies(sorted, sorted == space ? spare : space, left);
    }
    for (int64_t i = 0; i < count; ++i)
      result[i] = placeOf(sorted[first + i]);
  }

private:
  Key keyAt(int64_t place) const {
    Key key;
    makeKeys(row_, place, 1, &key);
    return key;
  }

  bool isBefore(Pair a, Pair b, const KeyWindow &window) const {
    if (window.shift == 0 || a >> 32 != b >> 32)
      return a < b;
    Key keyOfA = keyAt(placeOf(a)), keyOfB = keyAt(placeOf(b));
    return keyOfA != keyOfB ? keyOfA < keyOfB : a < b;
  }

  /// Calls `fn(keys, begin, end)` for pieces of the row.
  template <typename Fn> void forEachPiece(int64_t length, Fn &&fn, int64_t begin = 0) const {
    Key keys[kPiece];
    for (; begin < length; begin += kPiece) {
      int64_t end = std::min(begin + kPiece, length);
      makeKeys(row_, begin, end - begin, keys);
      fn(static_cast<const Key *>(keys), begin, end);
    }
  }

  KeyWindow windowOf(int64_t length) const {
    Key least = ~Key(0), greatest = 0;
    forEachPiece(length, [&](const Key *keys, int64_t begin, int64_t end) {
      for (int64_t i = 0; i < end - begin; ++i) {
        least = std::min(least, keys[i]);
        greatest = std::max(greatest, keys[i]);
      }
    });
    return {least, greatest};
  }

  /// Sorts pairs that agree in the upper bits of their keys by the lower ones.
  void sortTies(Pair *pairs, Pair *spare, int64_t count) const {
    for (int64_t begin = 0, end; begin < count; begin = end) {
      end = begin + 1;
      while (end < count && pairs[end] >> 32 == pairs[begin] >> 32)
        ++end;
      if (end == begin + 1)
        continue;
      Key least = ~Key(0), greatest = 0;
      for (int64_t i = begin; i < end; ++i) {
        Key key = keyAt(placeOf(pairs[i]));
        least = std::min(least, key);
        greatest = std::max(greatest, key);
      }
      KeyWindow window(least, greatest);
      for (int64_t i = begin; i < end; ++i)
        pairs[i] = window.pair(keyAt(placeOf(pairs[i])), placeOf(pairs[i]));
      Pair *sorted = sortPairs(pairs + begin, spare + begin, end - begin, window.bits);
      if (sorted != pairs + begin)
        std::copy_n(sorted, end - begin, pairs + begin);
    }
  }

  struct Candidate {
    Key key;
    uint32_t place;
    bool operator<(const Candidate &other) const { return key != other.key ? key < other.key : place < other.place; }
  };
  static_assert(sizeof(Candidate) <= 2 * sizeof(Pair));

  /// Calls `fn(candidate)` for each element from `begin` on whose key is below `limit`, which `fn` may lower.
  template <typename Fn> void forEachBelow(const Key &limit, int64_t begin, Fn &&fn) const {
    forEachPiece(
        row_.length,
        [&](const Key *keys, int64_t from, int64_t end) {
          Key least = ~Key(0);
          for (int64_t i = 0; i < end - from; ++i)
            least = std::min(least, keys[i]);
          if (least >= limit)
            return;
          for (int64_t i = from; i < end; ++i)
            if (keys[i - from] < limit)
              fn(Candidate{keys[i - from], uint32_t(i)});
        },
        begin);
  }

  /// Writes number [first, last) of the order, of which there are very few.
  void writeFirst(int64_t first, int64_t last, int64_t *result) const {
    std::array<Candidate, kFirstFew + 1> kept;
    int64_t count = 0;
    auto insert = [&](Candidate candidate) {
      int64_t at = count;
      for (; at > 0 && candidate < kept[size_t(at - 1)]; --at)
        kept[size_t(at)] = kept[size_t(at - 1)];
      kept[size_t(at)] = candidate;
    };
    Key keys[kFirstFew];
    makeKeys(row_, 0, last, keys);
    for (; count < last; ++count)
      insert({keys[count], uint32_t(count)});
    // An element that equals the last one that is kept stands behind it in the row, and in the order.
    Key limit = kept[size_t(last - 1)].key;
    forEachBelow(limit, last, [&](Candidate candidate) {
      insert(candidate);
      limit = kept[size_t(last - 1)].key;
    });
    for (int64_t i = first; i < last; ++i)
      result[i - first] = kept[size_t(i)].place;
  }

  /// Writes number [first, last) of the order, of which there are some. Of the `last` pieces whose least keys are the
  /// least, each has an element that is not above the greatest of these keys: what is above it is no candidate. Once
  /// there are twice as many candidates as wanted, half of them go, and what is no less than those that stay is none.
  void writeFirstSome(int64_t first, int64_t last, int64_t *result, Pair *space) const {
    // Candidates and keys of pieces take less than half of the workspace: a row has more than 2000 elements here.
    int64_t length = row_.length, pieces = length / kPiece, room = 2 * last + kPiece, count = 0;
    auto *candidates = reinterpret_cast<Candidate *>(space);
    auto *leastKeys = reinterpret_cast<Key *>(candidates + room), *ordered = leastKeys + pieces;
    forEachPiece(pieces * kPiece, [&](const Key *keys, int64_t begin, int64_t) {
      Key least = ~Key(0);
      for (int64_t i = 0; i < kPiece; ++i)
        least = std::min(least, keys[i]);
      leastKeys[begin / kPiece] = least;
    });
    std::copy_n(leastKeys, pieces, ordered);
    std::nth_element(ordered, ordered + (last - 1), ordered + pieces);
    Key most = ordered[last - 1];
    auto keepLeast = [&] {
      std::nth_element(candidates, candidates + (last - 1), candidates + count);
      count = last;
    };
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      if (begin < pieces * kPiece && leastKeys[begin / kPiece] > most)
        continue;
      Key keys[kPiece];
      int64_t left = std::min(kPiece, length - begin);
      makeKeys(row_, begin, left, keys);
      for (int64_t i = 0; i < left; ++i) {
        if (keys[i] > most)
          continue;
        candidates[count++] = {keys[i], uint32_t(begin + i)};
        if (count < room)
          continue;
        keepLeast();
        most = std::max<Key>(candidates[last - 1].key, 1) - 1;
      }
    }
    keepLeast();
    std::sort(candidates, candidates + last);
    for (int64_t i = first; i < last; ++i)
      result[i - first] = candidates[i].place;
  }

  /// Writes number [first, last) of the order of a short row.
  void writeCounted(int64_t first, int64_t last, int64_t *result) const {
    Key keys[kShortRow];
    int32_t before[kShortRow] = {}; // how many go before each
    int64_t length = row_.length;
    makeKeys(row_, 0, length, keys);
    for (int64_t i = 1; i < length; ++i) {
      int32_t behind = 0;
      for (int64_t j = 0; j < i; ++j) { // of two equal elements the first goes before
        int32_t isBehind = keys[j] > keys[i];
        before[j] += isBehind;
        behind += isBehind;
      }
      before[i] = int32_t(i) - behind;
    }
    for (int64_t i = 0; i < length; ++i)
      if (before[i] >= first && before[i] < last)
        result[before[i] - first] = i;
  }

  const SortedRow &row_;
};
} // namespace

void writeOrder(const SortedRow &row, int64_t first, int64_t count, int64_t *result, uint64_t *space) {
  if (byteSize(row.element) == 8)
    return RowOrder<uint64_t>(row).write(first, count, result, space);
  RowOrder<uint32_t>(row).write(first, count, result, space);
}

} // namespace segue::inline runtime
