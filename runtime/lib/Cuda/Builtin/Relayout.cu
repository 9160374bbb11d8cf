//===- Relayout.cu - any layout to any layout on a GPU --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What CopyPlan.h promises, with the bits of a CopyPlan: an element is found by its
// indices on both sides, and converted by the functions that loops of the CPU are made of.
//
//   copyElements    each element of a target whose elements lie one by one, and its padding
//   findRowScales   scales and zero points of the rows that copyElements quantises then
//   quantizeGroups  a target in group storage, a warp per group
//   moveGroups      the same from a source in the same storage
//
// The threads of a warp write neighbours of the target and read wherever they lie.
//
//===----------------------------------------------------------------------===//

#include "Codes.h"

#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;
using namespace segue::elements;

//===----------------------------------------------------------------------===//
// Elements in memory
//===----------------------------------------------------------------------===//

/// Reads a word, at once or, where memory is not aligned to it, by its bytes.
template <typename Word> GPU_FUNCTION Word load(const std::byte *at, int atOnce) {
  if (atOnce == sizeof(Word))
    return *reinterpret_cast<const Word *>(at);
  uint64_t word = 0;
  for (size_t i = 0; i < sizeof(Word); ++i)
    word |= uint64_t(at[i]) << (8 * i);
  return Word(word);
}

template <typename Word> GPU_FUNCTION void store(std::byte *at, Word word, int atOnce) {
  if (atOnce == sizeof(Word)) {
    *reinterpret_cast<Word *>(at) = word;
    return;
  }
  for (size_t i = 0; i < sizeof(Word); ++i)
    at[i] = std::byte(uint64_t(word) >> (8 * i));
}

GPU_FUNCTION uint64_t loadBytes(const std::byte *at, int bytes, int atOnce) {
  switch (bytes) {
  case 1:
    return load<uint8_t>(at, atOnce);
  case 2:
    return load<uint16_t>(at, atOnce);
  case 4:
    return load<uint32_t>(at, atOnce);
  default:
    return load<uint64_t>(at, atOnce);
  }
}

GPU_FUNCTION void storeBytes(std::byte *at, uint64_t word, int bytes, int atOnce) {
  switch (bytes) {
  case 1:
    return store<uint8_t>(at, uint8_t(word), atOnce);
  case 2:
    return store<uint16_t>(at, uint16_t(word), atOnce);
  case 4:
    return store<uint32_t>(at, uint32_t(word), atOnce);
  default:
    return store<uint64_t>(at, word, atOnce);
  }
}

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

/// Calls fn with an element of `type` that has the bits of `word`.
template <typename Fn> GPU_FUNCTION auto withElement(ElementType type, uint64_t word, Fn fn) {
  switch (type) {
  case ElementType::f32:
    return fn(__builtin_bit_cast(float, uint32_t(word)));
  case ElementType::bf16:
    return fn(Bf16{uint16_t(word)});
  case ElementType::f16:
    return fn(F16{uint16_t(word)});
  case ElementType::i64:
    return fn(int64_t(word));
  case ElementType::i32:
    return fn(int32_t(word));
  case ElementType::i8:
    return fn(int8_t(word));
  case ElementType::i1:
    return fn(Bool{uint8_t(word)});
  default:
    return fn(__builtin_bit_cast(double, word));
  }
}

GPU_FUNCTION uint64_t bitsOfElement(float value) { return __builtin_bit_cast(uint32_t, value); }
GPU_FUNCTION uint64_t bitsOfElement(double value) { return __builtin_bit_cast(uint64_t, value); }
GPU_FUNCTION uint64_t bitsOfElement(Bf16 value) { return value.bits; }
GPU_FUNCTION uint64_t bitsOfElement(F16 value) { return value.bits; }
GPU_FUNCTION uint64_t bitsOfElement(Bool value) { return value.value; }
GPU_FUNCTION uint64_t bitsOfElement(int64_t value) { return uint64_t(value); }
GPU_FUNCTION uint64_t bitsOfElement(int32_t value) { return uint32_t(value); }
GPU_FUNCTION uint64_t bitsOfElement(int8_t value) { return uint8_t(value); }

template <typename To, typename From> GPU_FUNCTION uint64_t narrowed(From value) {
  To target;
  narrow(value, target);
  return bitsOfElement(target);
}

/// Returns the bits of a number as an element of `type`.
template <typename From> GPU_FUNCTION uint64_t toElement(ElementType type, From value) {
  switch (type) {
  case ElementType::f32:
    return narrowed<float>(value);
  case ElementType::bf16:
    return narrowed<Bf16>(value);
  case ElementType::f16:
    return narrowed<F16>(value);
  case ElementType::i64:
    return narrowed<int64_t>(value);
  case ElementType::i32:
    return narrowed<int32_t>(value);
  case ElementType::i8:
    return narrowed<int8_t>(value);
  case ElementType::i1:
    return narrowed<Bool>(value);
  default:
    return narrowed<double>(value);
  }
}

GPU_FUNCTION uint64_t castThroughInt64(ElementType from, ElementType to, uint64_t word) {
  int64_t value = from == ElementType::i64   ? int64_t(word)
                  : from == ElementType::i32 ? toInt64(int32_t(word))
                  : from == ElementType::i8  ? toInt64(int8_t(word))
                                             : toInt64(Bool{uint8_t(word)});
  return to == ElementType::i1 ? uint64_t(value != 0) : uint64_t(value);
}

GPU_FUNCTION uint8_t encoded(float value, float scale, StorageType storage) {
  float inverse = 1.0f / scale;
  return storage == StorageType::Int8Row      ? encodeOne<Int8Code>(value, inverse)
         : storage == StorageType::Fp8E4M3Row ? encodeOne<E4M3Code>(value, inverse)
                                              : encodeOne<E5M2Code>(value, inverse);
}

//===----------------------------------------------------------------------===//
// Places
//===----------------------------------------------------------------------===//

/// Reads an element of the source as f32. `offset` is its place, in elements; not for groups.
GPU_FUNCTION float sourceValue(const RelayoutArgs &args, int64_t offset, int64_t row, int64_t column) {
  if (int64_t group = groupExtent(args.sourceStorage)) {
    const std::byte *codes = args.source + row * args.sourceGroups * group / 2;
    uint16_t scale = static_cast<const uint16_t *>(args.sourceScales)[column / group * args.rows + row];
    return float(int4Code(codes, column)) * bf16ToFloat(scale);
  }
  uint64_t word = loadBytes(args.source + offset * args.sourceBytes, args.sourceBytes, args.sourceWord);
  if (isRowStorage(args.sourceStorage)) {
    float zeroPoint = args.sourceZeroPoints ? args.sourceZeroPoints[row] : 0.0f;
    float scale = static_cast<const float *>(args.sourceScales)[row];
    return (gpu::codeValue(uint8_t(word), args.sourceStorage) - zeroPoint) * scale;
  }
  return withElement(args.sourceElement, word, [](auto value) { return toFloat(value); });
}

/// The place of an element of the source, in elements.
GPU_FUNCTION int64_t sourceOffset(const RelayoutArgs &args, int64_t row, int64_t column) {
  int64_t offset = 0;
  for (int i = 0; i < args.dims; ++i) {
    const RelayoutDim &dim = args.dim[i];
    offset += dim.source.at(i == args.rowDim ? row : column / dim.column % dim.extent);
  }
  return offset;
}

/// Returns true if a row of codes goes over as it is.
GPU_FUNCTION bool keepsRow(const RelayoutArgs &args, int64_t row) {
  return args.sourceStorage == args.targetStorage && args.sourceZeroPoints[row] == 0.0f;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// The word of the target for an element of the source.
GPU_FUNCTION uint64_t convertedElement(const RelayoutArgs &args, int64_t source, int64_t row, int64_t column) {
  const std::byte *at = args.source + source * args.sourceBytes;
  switch (args.form) {
  case RelayoutForm::Move:
    return loadBytes(at, args.sourceBytes, args.sourceWord);
  case RelayoutForm::ThroughInt64:
    return castThroughInt64(args.sourceElement, args.targetElement, loadBytes(at, args.sourceBytes, args.sourceWord));
  case RelayoutForm::ThroughDouble:
    return toElement(args.targetElement,
                     withElement(args.sourceElement, loadBytes(at, args.sourceBytes, args.sourceWord),
                                 [](auto value) { return toDouble(value); }));
  case RelayoutForm::ThroughFloat: {
    float value = sourceValue(args, source, row, column);
    bool rounds = args.sourceStorage != StorageType::Element && !isFloat(args.targetElement) &&
                  args.targetElement != ElementType::i1;
    return toElement(args.targetElement, rounds ? roundEven(value) : value);
  }
  case RelayoutForm::Quantize:
    if (args.sourceZeroPoints && keepsRow(args, row))
      return loadBytes(at, 1, 1);
    return encoded(sourceValue(args, source, row, column), static_cast<const float *>(args.targetScales)[row],
                   args.targetStorage);
  }
  return 0;
}

GPU_KERNEL(copyElements, RelayoutArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.total; i += gpu::indexStep()) {
    int64_t rest = i, source = 0, target = 0, row = 0, column = 0;
    bool isPadding = false;
    for (int d = args.dims; d-- > 0;) {
      const RelayoutDim &dim = args.dim[d];
      int64_t index = rest % dim.padded;
      rest /= dim.padded;
      isPadding |= index >= dim.extent;
      source += dim.source.at(index);
      target += dim.target.at(index);
      column += index * dim.column;
      row += d == args.rowDim ? index : 0;
    }
    uint64_t word = isPadding ? 0 : convertedElement(args, source, row, column);
    storeBytes(args.target + target * args.targetBytes, word, args.targetBytes, args.targetWord);
  }
}

GPU_KERNEL(findRowScales, RelayoutArgs) {
  for (int64_t row = gpu::block(); row < args.rows; row += gpu::blocks()) {
    uint32_t largest = 0, largestFinite = 0;
    for (int64_t column = gpu::thread(); column < args.columns; column += gpu::blockThreads) {
      float value = sourceValue(args, sourceOffset(args, row, column), row, column);
      uint32_t magnitude = bitsOf(value) & kMagnitude;
      largest = gpu::larger(largest, magnitude);
      largestFinite = gpu::larger(largestFinite, magnitude < kInfinity ? magnitude : 0);
    }
    largest = gpu::largestOfBlock(largest);
    largestFinite = gpu::largestOfBlock(largestFinite);
    if (gpu::thread() != 0)
      continue;
    bool keeps = args.sourceZeroPoints && keepsRow(args, row);
    static_cast<float *>(args.targetScales)[row] =
        keeps ? static_cast<const float *>(args.sourceScales)[row]
              : rowScale(floatOf(largestFinite), args.targetStorage);
    if (args.targetZeroPoints)
      args.targetZeroPoints[row] = 0;
    if (!keeps && largest >= kInfinity)
      gpu::lower(args.fault, uint64_t(row));
  }
}

GPU_KERNEL(quantizeGroups, RelayoutArgs) {
  int64_t group = groupExtent(args.targetStorage), warps = gpu::indexStep() / gpu::warpThreads;
  int64_t lane = gpu::thread() % gpu::warpThreads;
  for (int64_t item = gpu::firstIndex() / gpu::warpThreads; item < args.rows * args.targetGroups; item += warps) {
    int64_t row = item / args.targetGroups, first = item % args.targetGroups * group;
    auto value = [&](int64_t column) {
      bool isThere = column < first + group && column < args.columns;
      return isThere ? sourceValue(args, sourceOffset(args, row, column), row, column) : 0.0f;
    };
    float even = value(first + 2 * lane), odd = value(first + 2 * lane + 1);
    uint32_t largest = gpu::larger(bitsOf(even) & kMagnitude, bitsOf(odd) & kMagnitude);
    uint32_t largestFinite = gpu::larger(bitsOf(groupValue(even)) & kMagnitude, bitsOf(groupValue(odd)) & kMagnitude);
    for (int distance = 16; distance; distance /= 2) {
      largest = gpu::larger(largest, gpu::shuffle(largest, distance));
      largestFinite = gpu::larger(largestFinite, gpu::shuffle(largestFinite, distance));
    }
    uint16_t stored = storedGroupScale(floatOf(largestFinite) / largestInt4);
    if (2 * lane < group) {
      float scale = bf16ToFloat(stored);
      int low = int(groupCode(even, scale)) & 15, high = int(groupCode(odd, scale)) & 15;
      args.target[(row * args.targetGroups * group + first) / 2 + lane] = std::byte(low | high << 4);
    }
    if (lane != 0)
      continue;
    static_cast<uint16_t *>(args.targetScales)[first / group * args.rows + row] = stored;
    if (largest >= kInfinity)
      gpu::lower(args.fault, uint64_t(row));
  }
}

GPU_KERNEL(moveGroups, RelayoutArgs) {
  int64_t group = groupExtent(args.targetStorage), bytes = args.targetGroups * group / 2;
  int64_t perRow = bytes + args.targetGroups, used = (args.columns + group - 1) / group;
  for (int64_t i = gpu::firstIndex(); i < args.rows * perRow; i += gpu::indexStep()) {
    int64_t row = i / perRow, item = i % perRow;
    if (item < bytes) {
      // The half byte behind the last column is padding.
      std::byte code = 2 * item < args.columns ? args.source[row * args.sourceGroups * group / 2 + item] : std::byte(0);
      args.target[row * bytes + item] = 2 * item + 1 == args.columns ? code & std::byte(15) : code;
    } else {
      int64_t number = item - bytes, place = number * args.rows + row;
      static_cast<uint16_t *>(args.targetScales)[place] =
          number < used ? static_cast<const uint16_t *>(args.sourceScales)[place] : storedGroupScale(1.0f);
    }
  }
}
