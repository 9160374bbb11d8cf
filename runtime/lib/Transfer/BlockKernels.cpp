//===- BlockKernels.cpp - loops that move elements ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once per instruction set, which SEGUE_ISA names; see CMakeLists.txt.
// Everything here is static, so that no function compiled for one processor can
// be linked into another.
//
// A transpose works on squares of 32- or 64-bit words in registers. Narrower
// elements are first packed: two or four rows become one row of words whose
// bytes are the elements of a column, so that the words of a transposed square
// are runs of the target.
//
//===----------------------------------------------------------------------===//

#include "BlockKernels.h"
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define SEGUE_CONCAT2(a, b) a##b
#define SEGUE_CONCAT(a, b) SEGUE_CONCAT2(a, b)
#define SEGUE_STRING2(a) #a
#define SEGUE_STRING(a) SEGUE_STRING2(a)
#define SEGUE_INLINE [[gnu::always_inline]] static inline

namespace segue::inline runtime {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int64_t kLine = 64;

template <typename T, int kBytes> struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
typedef typename VectorOf<uint32_t, kVectorBytes>::Type WholeVector;

template <typename Vector> SEGUE_INLINE Vector load(const std::byte *from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(Vector));
  return vector;
}
template <typename Vector> SEGUE_INLINE void store(std::byte *to, const Vector &vector) {
  __builtin_memcpy(to, &vector, sizeof(Vector));
}

SEGUE_INLINE bool isAligned(const void *address, int64_t step, int64_t alignment) {
  return ((reinterpret_cast<uintptr_t>(address) | uintptr_t(step)) & uintptr_t(alignment - 1)) == 0;
}

/// A store around the caches; `to` is aligned to the vector.
template <typename Vector> SEGUE_INLINE void streamStore(std::byte *to, const Vector &vector) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i *>(to), __builtin_bit_cast(__m512i, vector));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i *>(to), __builtin_bit_cast(__m256i, vector));
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i *>(to), __builtin_bit_cast(__m128i, vector));
#else
  store(to, vector);
#endif
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

/// Streams whole lines of the cache; `target` is the beginning of one.
SEGUE_INLINE void streamLines(int64_t bytes, const std::byte *source, std::byte *target) {
  for (int64_t at = 0; at < bytes; at += kLine)
#pragma GCC unroll 4
    for (int64_t part = 0; part < kLine; part += kVectorBytes)
      streamStore(target + at + part, load<WholeVector>(source + at + part));
}

void streamRow(int64_t bytes, const std::byte *source, std::byte *target) {
  // Up to a line of the target, then whole lines, then the rest.
  int64_t head = int64_t(-reinterpret_cast<uintptr_t>(target) & uintptr_t(kLine - 1));
  if (bytes < head + kLine) {
    std::memcpy(target, source, size_t(bytes));
    return;
  }
  if (head)
    std::memcpy(target, source, size_t(head));
  int64_t lines = (bytes - head) / kLine * kLine, end = head + lines;
  streamLines(lines, source + head, target + head);
  if (end < bytes)
    std::memcpy(target + end, source + end, size_t(bytes - end));
}

/// The bytes from which the C library's copy is worth its call.
constexpr int64_t kLongRun = 512;
/// The bytes of a source that are asked for ahead of a copy of short runs, which the
/// processor does not follow by itself.
constexpr int64_t kRunsAhead = 2048;

/// Asks for runs of the source before they are copied, and for the first ones of the next
/// call as if it read on where these end: so do the tiles beside a tile, and the heads
/// beside a head.
struct AskAhead {
  int64_t rows, bytes, step, ahead = bytes < kRunsAhead ? kRunsAhead / bytes : 1;

  /// Called with the run that is copied now.
  [[gnu::always_inline]] inline void operator()(int64_t row, const std::byte *source) const {
    int64_t later = row + ahead;
    const std::byte *next = later < rows ? source + ahead * step : source + (later % rows - row) * step + bytes;
    for (int64_t at = 0; at < bytes && at < kRunsAhead; at += kLine)
      __builtin_prefetch(next + at, 0, 2);
  }
};

/// Runs of at least one Vector: whole ones, then one that ends with the run.
template <typename Vector>
void copyRowsBy(int64_t rows, int64_t bytes, const std::byte *source, int64_t sourceStep, std::byte *target,
                int64_t targetStep) {
  constexpr int64_t size = sizeof(Vector);
  bool asks = size == kVectorBytes && bytes >= kLine;
  AskAhead ask{rows, bytes, sourceStep};
  for (int64_t row = 0; row < rows; ++row, source += sourceStep, target += targetStep) {
    if (asks)
      ask(row, source);
    Vector end = load<Vector>(source + bytes - size);
    for (int64_t at = 0; at + size < bytes; at += size)
      store(target + at, load<Vector>(source + at));
    store(target + bytes - size, end);
  }
}

void copyRows(int64_t rows, int64_t bytes, const std::byte *source, int64_t sourceStep, std::byte *target,
              int64_t targetStep, bool stream) {
  if (stream && isAligned(target, targetStep | bytes, kLine)) {
    AskAhead ask{rows, bytes, sourceStep};
    for (int64_t row = 0; row < rows; ++row) {
      ask(row, source + row * sourceStep);
      streamLines(bytes, source + row * sourceStep, target + row * targetStep);
    }
    return;
  }
  if (bytes >= kLongRun) {
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(target + row * targetStep, source + row * sourceStep, size_t(bytes));
    return;
  }
  auto by = [&]<typename Vector>() { copyRowsBy<Vector>(rows, bytes, source, sourceStep, target, targetStep); };
  using Half = typename VectorOf<uint32_t, kVectorBytes / 2>::Type;
  if (bytes >= kVectorBytes)
    by.template operator()<WholeVector>();
  else if (bytes >= kVectorBytes / 2)
    by.template operator()<Half>();
  else if (bytes >= 16)
    by.template operator()<typename VectorOf<uint32_t, 16>::Type>();
  else if (bytes >= 8)
    by.template operator()<uint64_t>();
  else if (bytes >= 4)
    by.template operator()<uint32_t>();
  else if (bytes >= 2)
    by.template operator()<uint16_t>();
  else
    by.template operator()<uint8_t>();
}

//===----------------------------------------------------------------------===//
// Single elements
//===----------------------------------------------------------------------===//

template <typename Word>
void move(int64_t count, const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep) {
  constexpr int64_t size = sizeof(Word);
  if (targetStep == size) // a gather, of which the compiler unrolls the stores
    for (int64_t i = 0; i < count; ++i)
      store(target + i * size, load<Word>(source + i * sourceStep));
  else if (sourceStep == size)
    for (int64_t i = 0; i < count; ++i)
      store(target + i * targetStep, load<Word>(source + i * size));
  else
    for (int64_t i = 0; i < count; ++i)
      store(target + i * targetStep, load<Word>(source + i * sourceStep));
}

template <typename Word> void fill(int64_t count, const std::byte *value, std::byte *target) {
  Word word = load<Word>(value);
  for (int64_t i = 0; i < count; ++i)
    store(target + i * int64_t(sizeof(Word)), word);
}

//===----------------------------------------------------------------------===//
// Transposes
//===----------------------------------------------------------------------===//

/// Exchanges lanes of two rows that are kStep apart; gives the first row after it, or
/// with kHigh the second.
template <int kStep, bool kHigh, typename Vector, int... kLane>
SEGUE_INLINE Vector exchange(const Vector &first, const Vector &second, std::integer_sequence<int, kLane...>) {
  constexpr int lanes = sizeof...(kLane), shift = kHigh ? kStep : 0;
  return __builtin_shufflevector(first, second, (kLane & kStep ? lanes + kLane - kStep + shift : kLane + shift)...);
}

/// A square of kLanes x kLanes words, transposed by exchanging halves, quarters
/// and so on between pairs of rows.
template <typename Vector, int kLanes, int kStep> SEGUE_INLINE void transposeSquare(Vector (&v)[kLanes]) {
  if constexpr (kStep >= 1) {
    constexpr std::make_integer_sequence<int, kLanes> lanes{};
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if (!(i & kStep)) {
        Vector first = v[i], second = v[i + kStep];
        v[i] = exchange<kStep, false>(first, second, lanes);
        v[i + kStep] = exchange<kStep, true>(first, second, lanes);
      }
    transposeSquare<Vector, kLanes, kStep / 2>(v);
  }
}

/// Each element of a run in a word of its own.
template <typename Vector, typename Run> SEGUE_INLINE Vector widen(const Run &run) {
  // Bytes become words through scalars otherwise.
#if defined(__AVX512F__)
  if constexpr (sizeof(Run) * 4 == sizeof(Vector))
    return __builtin_bit_cast(Vector, _mm512_maskz_cvtepu8_epi32(0xffff, __builtin_bit_cast(__m128i, run)));
#elif defined(__AVX2__)
  if constexpr (sizeof(Run) * 4 == sizeof(Vector))
    return __builtin_bit_cast(Vector, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(__builtin_bit_cast(int64_t, run))));
#endif
  return __builtin_convertvector(run, Vector);
}

/// A WordSquare transposes elements of kBytes that are packed into words of 4 (8 for elements of 8) bytes.
template <int kBytes> struct WordSquare {
  using Word = std::conditional_t<kBytes == 8, uint64_t, uint32_t>;
  using Element =
      std::conditional_t<kBytes == 8, uint64_t,
                         std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;
  static constexpr int pack = int(sizeof(Word)) / kBytes;
  static constexpr int lanes = kVectorBytes / int(sizeof(Word));
  /// The extents of the source's block.
  static constexpr int rows = lanes * pack, columns = lanes;
  typedef Word Vector __attribute__((vector_size(kVectorBytes)));
  typedef Element Run __attribute__((vector_size(kBytes * lanes)));

  SEGUE_INLINE void transpose(const std::byte *source, int64_t sourceStep, Vector (&v)[lanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      v[i] = Vector{};
#pragma GCC unroll 4
      for (int p = 0; p < pack; ++p) {
        Run run = load<Run>(source + (i * pack + p) * sourceStep);
        v[i] |= widen<Vector>(run) << (8 * kBytes * p);
      }
    }
    transposeSquare<Vector, lanes, lanes / 2>(v);
  }
};

#if defined(__AVX2__) && !defined(__AVX512F__)
/// A HalfSquare has elements of one or two bytes: each half of a vector has 16 bytes of a row of its own. Rows are
/// interleaved with those that are half a square below until each vector is a column, which takes half of the
/// instructions that words take.
template <int kBytes> struct HalfSquare {
  static constexpr int columns = 16 / kBytes, rows = 2 * columns;
  typedef __m256i Vector;

  SEGUE_INLINE void transpose(const std::byte *source, int64_t sourceStep, Vector (&v)[columns]) {
    auto half = [&](int row) { return reinterpret_cast<const __m128i *>(source + row * sourceStep); };
#pragma GCC unroll 16
    for (int i = 0; i < columns; ++i)
      v[i] = _mm256_loadu2_m128i(half(i + columns), half(i));
#pragma GCC unroll 4
    for (int rest = columns; rest > 1; rest /= 2) {
      Vector next[columns];
#pragma GCC unroll 8
      for (int i = 0; i < columns / 2; ++i) {
        Vector first = v[i], second = v[i + columns / 2];
        next[2 * i] = kBytes == 1 ? _mm256_unpacklo_epi8(first, second) : _mm256_unpacklo_epi16(first, second);
        next[2 * i + 1] = kBytes == 1 ? _mm256_unpackhi_epi8(first, second) : _mm256_unpackhi_epi16(first, second);
      }
#pragma GCC unroll 16
      for (int i = 0; i < columns; ++i)
        v[i] = next[i];
    }
  }
};
template <int kBytes> using SquareOf = std::conditional_t<kBytes <= 2, HalfSquare<kBytes>, WordSquare<kBytes>>;
#else
template <int kBytes> using SquareOf = WordSquare<kBytes>;
#endif

/// A block of the source that is transposed in registers.
template <int kBytes> struct Square : SquareOf<kBytes> {
  using Element =
      std::conditional_t<kBytes == 8, uint64_t,
                         std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;
  using typename SquareOf<kBytes>::Vector;
  using SquareOf<kBytes>::rows, SquareOf<kBytes>::columns;

  template <bool kStream>
  SEGUE_INLINE void transpose(const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep) {
    Vector v[columns];
    SquareOf<kBytes>::transpose(source, sourceStep, v);
#pragma GCC unroll 16
    for (int i = 0; i < columns; ++i)
      if constexpr (kStream)
        streamStore(target + i * targetStep, v[i]);
      else
        store(target + i * targetStep, v[i]);
  }

  /// The number of rows that make whole lines of the target.
  static constexpr int lineRows = int(kLine) / kBytes;
  /// Streams the lines of the target that so many rows make. Squares of vectors that are
  /// shorter than a line are put together first: half a line that streams would wait for
  /// the other half in a buffer of the processor, of which there are few.
  SEGUE_INLINE void streamLine(const std::byte *source, int64_t sourceStep, std::byte *target, int64_t targetStep) {
    if constexpr (lineRows == rows) {
      transpose<true>(source, sourceStep, target, targetStep);
    } else {
      alignas(64) std::byte line[columns * kLine];
      for (int r = 0; r < lineRows; r += rows)
        transpose<false>(source + r * sourceStep, sourceStep, line + r * kBytes, kLine);
#pragma GCC unroll 16
      for (int i = 0; i < columns; ++i)
        streamLines(kLine, line + i * kLine, target + i * targetStep);
    }
  }
};

template <typename Element>
void transposeElements(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
                       int64_t targetStep) {
  constexpr int64_t size = sizeof(Element);
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r)
      store(target + c * targetStep + r * size, load<Element>(source + r * sourceStep + c * size));
}

/// The bytes ahead of a row that are asked for: more rows are read at once than the
/// processor follows by itself.
constexpr int64_t kAhead = 256;

/// An Asked is the part of a source that comes next. It is asked for while squares are made
/// of one that lies in the cache already, and has as many rows and columns.
struct Asked {
  const std::byte *source = nullptr;
  int64_t step = 0;
};

/// `columns` and `rows` are at least a square's. Where kStream, whole lines of the target
/// stream. With kInCache, `asked` is asked for in place of what follows in the source.
template <int kBytes, bool kStream, bool kInCache = false>
void transposeSquares(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
                      int64_t targetStep, Asked asked = {}) {
  using Block = Square<kBytes>;
  constexpr int64_t step = kStream ? Block::lineRows : Block::rows;
  // The last square of a line or column ends with it: what it overlaps is
  // written twice with the same bytes.
  for (int64_t r = 0; r < rows; r += step) {
    bool whole = r + step <= rows;
    if (kStream && !whole) { // no whole line
      int64_t left = rows - r < Block::rows ? Block::rows : rows - r, row = rows - left;
      transposeSquares<kBytes, false, kInCache>(left, columns, source + row * sourceStep, sourceStep,
                                                target + row * kBytes, targetStep);
      return;
    }
    int64_t row = whole ? r : rows - step;
    for (int64_t c = 0; c < columns; c += Block::columns) {
      int64_t column = c + Block::columns <= columns ? c : columns - Block::columns;
      const std::byte *from = source + row * sourceStep + column * kBytes;
      std::byte *to = target + column * targetStep + row * kBytes;
      if (kInCache && asked.source && c * kBytes % kLine == 0)
        for (int64_t i = 0; i < step; ++i)
          __builtin_prefetch(asked.source + (row + i) * asked.step + column * kBytes, 0, 2);
      if (!kInCache && c * kBytes % kLine == 0) {
        // Along these rows, then at the beginning of the next ones.
        int64_t ahead = c * kBytes + kAhead, end = columns * kBytes;
        int64_t next = ahead < end ? row : r + step;
        if (next + step <= rows)
          for (int64_t i = 0; i < step; ++i)
            __builtin_prefetch(source + (next + i) * sourceStep + (ahead < end ? ahead : ahead - end), 0, 2);
      }
      if constexpr (kStream)
        Block::streamLine(from, sourceStep, to, targetStep);
      else
        Block::template transpose<false>(from, sourceStep, to, targetStep);
    }
  }
}

/// The bytes of a row of the source that are read together.
constexpr int64_t kGatheredBytes = 1024;

/// Narrow elements: a line of the target takes more rows of the source than
/// memory likes to be read at once. Longer runs of one row after the other are
/// brought into the cache, and squares are made there. `rows` are at least a line's where
/// kStream.
template <int kBytes, bool kStream>
void transposeGathered(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
                       int64_t targetStep) {
  using Block = Square<kBytes>;
  constexpr int64_t step = kStream ? Block::lineRows : Block::rows;
  constexpr int64_t pitch = kGatheredBytes + kLine, most = kGatheredBytes / kBytes, rowsAhead = 4;
  alignas(64) std::byte gathered[step * pitch];
  for (int64_t r = 0; r < rows; r += step) {
    bool whole = r + step <= rows;
    int64_t row = whole ? r : rows - step;
    for (int64_t c = 0; c < columns; c += most) {
      // The last piece ends with the rows, as the last square does.
      int64_t count = columns < most ? columns : most, column = c + count <= columns ? c : columns - count;
      const std::byte *from = source + row * sourceStep + column * kBytes;
      for (int64_t i = 0; i < step; ++i) {
        const std::byte *run = from + i * sourceStep;
        std::byte *to = gathered + i * pitch;
        bool asks = i + rowsAhead < step;
        int64_t at = 0;
        for (; at + kLine <= count * kBytes; at += kLine) {
          if (asks)
            __builtin_prefetch(run + rowsAhead * sourceStep + at, 0, 2);
#pragma GCC unroll 4
          for (int64_t part = 0; part < kLine; part += kVectorBytes)
            store(to + at + part, load<WholeVector>(run + at + part));
        }
        std::memcpy(to + at, run + at, size_t(count * kBytes - at));
      }
      std::byte *to = target + column * targetStep + row * kBytes;
      // The piece that comes next is as large, but for the last ones.
      Asked next{c + most < columns ? from + most * kBytes : source + (row + step) * sourceStep, sourceStep};
      if (c + most < columns ? c + 2 * most > columns : row + 2 * step > rows)
        next = {};
      if (kStream && whole)
        transposeSquares<kBytes, true, true>(step, count, gathered, pitch, to, targetStep, next);
      else
        transposeSquares<kBytes, false, true>(step, count, gathered, pitch, to, targetStep, next);
    }
  }
}

/// The bytes of a line of the target, and the number of lines, that are put
/// together before they are streamed: the narrower the elements, the more lines,
/// so that runs of the source are long. With them the part of the source that comes next has room in the second cache.
constexpr int64_t kStagedBytes = 512;
template <int kBytes> constexpr int64_t kStagedLines = kBytes == 8 ? 128 : 256;

/// Transposes where lines of the target do not begin and end with a line of the
/// cache, or are long and made of vectors that are shorter than that: long
/// pieces of them are made in the cache and streamed from the first place that
/// begins a line of the cache to the last, which is a little further for each.
/// So only the ends of the whole are not streamed; the rows that two pieces
/// share are read twice. While a piece is written the source of the next one is asked for, and `next` in the end:
/// memory would else read and write in turn.
template <int kBytes>
void transposeStaged(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
                     int64_t targetStep, const ReadSoon &next) {
  constexpr int64_t most = kStagedBytes / kBytes, shared = kLine / kBytes;
  // The pitch is not a power of two: lines at equal offsets would share few places of the cache.
  constexpr int64_t pitch = kStagedBytes + 2 * kLine;
  alignas(64) std::byte staged[kStagedLines<kBytes> * pitch];
  bool aligned = isAligned(target, targetStep, kBytes); // else no element begins a line
  for (int64_t r = 0; r < rows;) {
    int64_t left = rows - r, count = left < 2 * most ? left / 2 : most; // the last two alike, so that none is short
    if (left <= most)
      count = left;
    bool isLast = count == left;
    int64_t made = isLast || !aligned ? count : count + shared;
    for (int64_t c = 0; c < columns;) {
      int64_t lines = columns - c < 2 * kStagedLines<kBytes> && columns - c > kStagedLines<kBytes>
                          ? (columns - c) / 2
                          : kStagedLines<kBytes>;
      lines = lines < columns - c ? lines : columns - c;
      const std::byte *from = source + r * sourceStep + c * kBytes;
      if (kBytes <= 2 && sourceStep > kGatheredBytes)
        transposeGathered<kBytes, false>(made, lines, from, sourceStep, staged, pitch);
      else
        transposeSquares<kBytes, false>(made, lines, from, sourceStep, staged, pitch);
      ReadSoon soon = next;
      if (int64_t later = columns - c - lines; later > 0)
        soon = {from + lines * kBytes, sourceStep, made, kBytes * (later < lines ? later : lines)};
      else if (!isLast)
        soon = {source + (r + count) * sourceStep, sourceStep, left - count < most ? left - count : most,
                kBytes * (columns < kStagedLines<kBytes> ? columns : kStagedLines<kBytes>)};
      for (int64_t line = 0, asked = 0; line < lines; ++line) {
        for (; asked < soon.rows * (line + 1) / lines; ++asked)
          for (int64_t at = 0; at < soon.bytes; at += kLine)
            __builtin_prefetch(soon.source + asked * soon.step + at, 0, 2);
        std::byte *to = target + (c + line) * targetStep + r * kBytes;
        // Bytes from `at` to the next beginning of a line of the cache.
        auto toLine = [](const std::byte *at) {
          return int64_t(-reinterpret_cast<uintptr_t>(at) & uintptr_t(kLine - 1));
        };
        int64_t begin = aligned && r ? toLine(to) : 0, end = count * kBytes;
        end += aligned && !isLast ? toLine(to + end) : 0;
        streamRow(end - begin, staged + line * pitch + begin, to + begin);
      }
      c += lines;
    }
    r += count;
  }
}

template <int kBytes>
void transpose(int64_t rows, int64_t columns, const std::byte *source, int64_t sourceStep, std::byte *target,
               int64_t targetStep, bool stream, const ReadSoon &next) {
  using Block = Square<kBytes>;
  stream = stream && kVectorBytes > 16; // the code for old processors stays small
  bool aligned = isAligned(target, targetStep, kLine) && rows >= Block::lineRows; // whole lines stream alone
  if (rows < Block::rows || columns < Block::columns)
    transposeElements<typename Block::Element>(rows, columns, source, sourceStep, target, targetStep);
  else if (stream && rows * kBytes >= kStagedBytes && !(aligned && kVectorBytes == kLine))
    transposeStaged<kBytes>(rows, columns, source, sourceStep, target, targetStep, next);
  else if (stream && aligned && kBytes <= 2)
    transposeGathered<kBytes, true>(rows, columns, source, sourceStep, target, targetStep);
  else if (stream && aligned)
    transposeSquares<kBytes, true>(rows, columns, source, sourceStep, target, targetStep);
  else
    transposeSquares<kBytes, false>(rows, columns, source, sourceStep, target, targetStep);
}

} // namespace

extern const BlockKernels SEGUE_CONCAT(blockKernels, SEGUE_ISA);
const BlockKernels SEGUE_CONCAT(blockKernels, SEGUE_ISA) = {
    SEGUE_STRING(SEGUE_ISA),
    copyRows,
    streamRow,
    {move<uint8_t>, move<uint16_t>, move<uint32_t>, move<uint64_t>},
    {fill<uint8_t>, fill<uint16_t>, fill<uint32_t>, fill<uint64_t>},
    {transpose<1>, transpose<2>, transpose<4>, transpose<8>},
};

} // namespace segue::inline runtime
