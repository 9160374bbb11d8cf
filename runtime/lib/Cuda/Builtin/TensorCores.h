//===- TensorCores.h - instructions of a warp, and its twin's ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of 16 x 16 by 16 x 8 matrices of half words on tensor cores (mma.sync), and of
// 16 x 8 by 8 x 8 matrices of f32 as TF32, which has 10 bits behind the point; matrices of shared
// memory in the registers of a warp (ldmatrix), and copies to shared memory that go on
// beside other work (cp.async): PTX of sm_80.
//
// Which thread holds which element is said by the PTX ISA, chapters "Matrix Fragments for
// mma.m16n8k16 with floating point type", "mma.m16n8k8" and "ldmatrix". Of lane l, with
// g = l / 4 and t = l % 4, an element being half a word, the lower one first:
//
//   A, 16 rows of 16:  words 0 and 2 are of row g, 1 and 3 of row g + 8; words 0 and 1 have
//                      columns 2 t and 2 t + 1, words 2 and 3 those 8 further
//   B, 16 rows of 8:   column g; word 0 has rows 2 t and 2 t + 1, word 1 those 8 further
//   C, 16 rows of 8:   columns 2 t and 2 t + 1; numbers 0 and 1 are of row g, 2 and 3 of row g + 8
//   ldmatrix.x4:       lane 8 i + r names row r of matrix i, 16 bytes; word i of a lane is
//                      of matrix i, its row g, columns 2 t and 2 t + 1; with .trans its
//                      column g, rows 2 t and 2 t + 1
//
// So what C leaves in a thread is a half of A for the next product, and rows of a matrix in
// memory are columns of B, or rows of B with .trans. Of TF32, an element being a word:
//
//   A, 16 rows of 8:   words 0 and 2 are of row g, 1 and 3 of row g + 8; words 0 and 1 have
//                      column t, words 2 and 3 column t + 4
//   B, 8 rows of 8:    column g; word 0 has row t, word 1 row t + 4
//   ldmatrix.x4:       word i is of matrix i of 8 rows of 4, its row g, column t
//
// There C is no A as it is, but columns of A may come in any order, if rows of B do: t stands
// for column 2 t of C, and t + 4 for column 2 t + 1.
//
// A twin's threads give each other what they hold, so a wrong layout gives wrong numbers
// there too. A copy leaves NaN where it goes until its thread waits for it: reading early
// shows, and so does a copy that begins while others still read. Sums of a tensor core are
// in no order that is told; a twin adds in that of k.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_TENSORCORES_H
#define SEGUE_LIB_CUDA_BUILTIN_TENSORCORES_H

#include "Numbers.h"

namespace gpu {
using segue::ElementType;

/// Two elements of bf16 or f16.
using Word [[gnu::may_alias]] = uint32_t;
/// 16 bytes of memory, which begin at a multiple of 16.
struct alignas(16) [[gnu::may_alias]] Piece {
  uint32_t words[4];
};

GPU_FUNCTION unsigned lane() { return thread() % warpThreads; }
GPU_FUNCTION unsigned warp() { return thread() / warpThreads; }

/// How elements lie, and in how many columns of A a product takes them. Numbers of f32 are multiplied as TF32.
template <ElementType type> struct Form {
  using Stored = uint16_t;
  static constexpr int perWord = 2, perPiece = 8, depth = 16;
};
template <> struct Form<ElementType::f32> {
  using Stored = uint32_t;
  static constexpr int perWord = 1, perPiece = 4, depth = 8;
};

/// The number of the lower, or upper, half of a word.
template <ElementType type> GPU_FUNCTION float numberOf(uint32_t word, bool isUpper) {
  using namespace segue::elements;
  auto bits = uint16_t(isUpper ? word >> 16 : word);
  if constexpr (type == ElementType::bf16)
    return toFloat(Bf16{bits});
#ifdef __CUDA_ARCH__
  else
    return float(__builtin_bit_cast(_Float16, bits)); // one instruction
#else
  else
    return toFloat(F16{bits});
#endif
}
} // namespace gpu

#ifdef __CUDA_ARCH__

/// A kernel as GPU_KERNEL makes it, of which a multiprocessor has `blocks` blocks at a time:
/// with one, a thread may have 255 registers, with two 128.
#define GPU_WARP_KERNEL(name, Args, blocks)                                                                            \
  extern "C" __attribute__((global, launch_bounds(256, blocks))) void name(                                            \
      const __attribute__((grid_constant)) Args args)

namespace gpu {
/// Adds to C the product of A and B.
template <ElementType type>
GPU_FUNCTION void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (type == ElementType::bf16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else if constexpr (type == ElementType::f32)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

GPU_FUNCTION uint32_t sharedAddress(const void *data) {
  return uint32_t(reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) const void *)data));
}

/// Loads four matrices of 8 x 8; `row` is the one that the lane names, in shared memory.
GPU_FUNCTION void loadMatrices(uint32_t (&to)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(sharedAddress(row))
               : "memory");
}
GPU_FUNCTION void loadMatricesTransposed(uint32_t (&to)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(sharedAddress(row))
               : "memory");
}

/// Begins to copy 16 bytes to shared memory, or 16 zeros, which reads nothing.
GPU_FUNCTION void copyAsync(void *to, const void *from, bool isThere) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(sharedAddress(to)), "l"((__attribute__((address_space(1))) const void *)from),
                 "r"(isThere ? 16 : 0)
               : "memory");
}
/// Waits for what the thread has begun to copy; others see it behind a barrier.
GPU_FUNCTION void waitForCopies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

/// Rounds two numbers to nearest even.
template <ElementType type> GPU_FUNCTION uint32_t wordOf(float lower, float upper) {
  uint32_t word;
  if constexpr (type == ElementType::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(upper), "f"(lower));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(upper), "f"(lower));
  return word;
}

/// Rounds a word of f32 to the nearest of TF32, of two the larger; without that a product cuts the bits off.
/// Half words are as they are.
template <ElementType type> GPU_FUNCTION uint32_t rounded(uint32_t word) {
  if constexpr (type == ElementType::f32)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(floatOf(word)));
  return word;
}

/// Brings the threads of a warp together behind where they may have gone apart: all must come to a product at once.
GPU_FUNCTION void waitForWarp() { __nvvm_bar_warp_sync(~0u); }

/// Returns 2 to the power of x, within 2 units of the last place.
GPU_FUNCTION float powerOfTwo(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
} // namespace gpu

#else

#include <cmath>
#include <cstring>
#include <vector>

#define GPU_WARP_KERNEL(name, Args, blocks)                                                                            \
  static void name(const Args &args);                                                                                  \
  extern "C" void name##_twin(void *const *parameters) {                                                               \
    gpu::twin::begin();                                                                                                \
    name(*static_cast<const Args *>(parameters[0]));                                                                   \
  }                                                                                                                    \
  static void name(const Args &args)

namespace gpu {
namespace twin {
/// What threads give to those of their warp. Two buffers by turns: who is at the next turn
/// has read those of the last.
struct Exchange {
  uint32_t words[2][blockThreads][6];
  unsigned turn[blockThreads];
  struct Copy {
    void *to;
    const void *from;
    bool isThere;
  };
  std::vector<Copy> copies[blockThreads];
};
inline thread_local Exchange exchange;

/// Begins a thread of a block.
inline void begin() {
  exchange.turn[thread()] = 0;
  exchange.copies[thread()].clear();
}

/// Gives `words` to the warp; returns those of its threads, valid until the next call.
template <size_t count> inline const uint32_t (*give(const uint32_t (&words)[count]))[6] {
  auto &all = exchange.words[exchange.turn[thread()]++ % 2];
  std::copy_n(words, count, all[thread()]);
  segue::twinCalls().waitForWarp();
  return all + warp() * warpThreads;
}
} // namespace twin

template <ElementType type>
GPU_FUNCTION void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto *held = twin::give({a[0], a[1], a[2], a[3], b0, b1});
  for (unsigned i = 0; i < 4; ++i) {
    unsigned row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
    float sum = 0;
    if constexpr (type == ElementType::f32) {
      constexpr uint32_t seen = ~0x1fffu; // the bits of TF32
      for (unsigned k = 0; k < 8; ++k)
        sum += floatOf(held[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2] & seen) *
               floatOf(held[column * 4 + k % 4][4 + k / 4] & seen);
      c[i] += sum;
      continue;
    }
    for (unsigned k = 0; k < 16; ++k) {
      unsigned with = k % 8 / 2;
      sum += numberOf<type>(held[row % 8 * 4 + with][row / 8 + k / 8 * 2], k % 2) *
             numberOf<type>(held[column * 4 + with][4 + k / 8], k % 2);
    }
    c[i] += sum;
  }
}

namespace twin {
/// Gives the row that the lane names. One that does not begin at a multiple of 16 bytes is NaN.
inline const uint32_t (*giveRow(const void *row))[6] {
  uint32_t words[4] = {~0u, ~0u, ~0u, ~0u};
  if (reinterpret_cast<uintptr_t>(row) % 16 == 0)
    std::memcpy(words, row, 16);
  return give(words);
}
} // namespace twin

GPU_FUNCTION void loadMatrices(uint32_t (&to)[4], const void *row) {
  const auto *held = twin::giveRow(row);
  for (unsigned i = 0; i < 4; ++i)
    to[i] = held[8 * i + lane() / 4][lane() % 4];
}
GPU_FUNCTION void loadMatricesTransposed(uint32_t (&to)[4], const void *row) {
  const auto *held = twin::giveRow(row);
  unsigned column = lane() / 4, first = lane() % 4 * 2;
  auto element = [&](unsigned at) { return held[at][column / 2] >> column % 2 * 16 & 0xffffu; };
  for (unsigned i = 0; i < 4; ++i)
    to[i] = element(8 * i + first) | element(8 * i + first + 1) << 16;
}

GPU_FUNCTION void copyAsync(void *to, const void *from, bool isThere) {
  std::memset(to, 0xff, 16);
  twin::exchange.copies[thread()].push_back({to, from, isThere});
}
GPU_FUNCTION void waitForCopies() {
  for (auto [to, from, isThere] : twin::exchange.copies[thread()])
    if (!isThere)
      std::memset(to, 0, 16);
    else if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0)
      std::memcpy(to, from, 16);
  twin::exchange.copies[thread()].clear();
}

template <ElementType type> GPU_FUNCTION uint32_t wordOf(float lower, float upper) {
  using namespace segue::elements;
  using Element = std::conditional_t<type == ElementType::bf16, Bf16, F16>;
  Element low, high;
  narrow(lower, low);
  narrow(upper, high);
  return low.bits | uint32_t(high.bits) << 16;
}

template <ElementType type> GPU_FUNCTION uint32_t rounded(uint32_t word) {
  constexpr uint32_t exponent = 0x7f800000, half = 0x1000, cut = 0x1fff;
  if constexpr (type != ElementType::f32)
    return word;
  bool isFinite = (word & exponent) != exponent, isNan = !isFinite && word << 9;
  return ((isFinite ? word + half : word) & ~cut) | (isNan ? 1u << 22 : 0);
}

GPU_FUNCTION void waitForWarp() { segue::twinCalls().waitForWarp(); }
GPU_FUNCTION float powerOfTwo(float x) { return std::exp2(x); }
} // namespace gpu

#endif

#endif // SEGUE_LIB_CUDA_BUILTIN_TENSORCORES_H
