//===- TwinBlocks.h - blocks of threads on a processor ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs kernels of a GPU that the compiler made for this machine (segue-compile
// --gpu-twins): one block after another, each of its threads on a stack of its own, one
// at a time. A thread that waits for others gives way to them. Blocks and threads come in
// an order that the caller chooses, so that what depends on an order shows.
//
// A fiber begins by setcontext, which asks the system for the mask of signals, and goes
// on by _longjmp, which does not: a thread of a row kernel waits some tens of times.
// Fibers stay for the threads of later blocks, and their stacks for later kernels.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_TWINBLOCKS_H
#define SEGUE_SCHEMAS_TWINBLOCKS_H

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <ucontext.h>
#include <vector>

namespace segue {

/// The order of blocks, and of the threads in each as far as they do not wait for one another.
enum class TwinOrder { Forward, Reverse, Shuffled };

/// The functions that the code of a kernel calls in place of intrinsics, on the thread that
/// runs its blocks. The object has a variable that points to them. Their order is part of
/// the code.
struct TwinCalls {
  uint32_t (*thread)();
  uint32_t (*block)();
  void (*waitForBlock)();
  void (*waitForWarp)();
  /// Gives `word` to the threads of the warp; returns that of the one whose number differs by `distance` (exclusive or).
  uint32_t (*shuffle)(uint32_t word, uint32_t distance);
  /// The number of blocks.
  uint32_t (*blocks)();
};
inline constexpr const char *kTwinCallsSymbol = "segue_twin_calls";

/// A kernel k is the symbol `k.twin`. It takes its parameters as cuLaunchKernel does:
/// pointers to them.
using TwinEntry = void (*)(void *const *parameters);
inline constexpr const char *kTwinSuffix = ".twin";

namespace twins {
inline constexpr unsigned kWarpThreads = 32;
inline constexpr size_t kStackBytes = 64 << 10;

enum class State { Ready, AtBlock, AtWarp, AtShuffle, Done };

struct Fiber {
  jmp_buf place;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool begun = false;
  State state = State::Ready;
  uint32_t thread = 0, word = 0, distance = 0;
};

class Blocks {
public:
  Blocks(TwinEntry entry, unsigned threads, uint64_t blocks, void *const *parameters)
      : entry(entry), threads(threads), blocks(uint32_t(blocks)), parameters(parameters), fibers(threads) {}

  std::string run(uint64_t number, const std::vector<uint32_t> &order) {
    block = uint32_t(number);
    for (Fiber &fiber : fibers)
      fiber.state = State::Ready;
    while (true) {
      for (uint32_t thread : order)
        if (fibers[thread].state == State::Ready)
          resume(fibers[thread]);
      bool allDone = std::ranges::all_of(fibers, [](const Fiber &fiber) { return fiber.state == State::Done; });
      if (allDone)
        return {};
      if (!release())
        return "threads of block " + std::to_string(number) + " wait for others that do not come";
    }
  }

  void wait(State state) {
    Fiber &fiber = *current;
    fiber.state = state;
    if (!_setjmp(fiber.place))
      _longjmp(home, 1);
  }

  ~Blocks() {
    for (Fiber &fiber : fibers)
      if (fiber.stack)
        spareStacks.push_back(std::move(fiber.stack));
  }

  static inline thread_local Blocks *running = nullptr;
  TwinEntry entry;
  unsigned threads;
  uint32_t blocks;
  void *const *parameters;
  uint32_t block = 0;
  Fiber *current = nullptr;

private:
  /// A fiber does the work of its thread in one block after another.
  static void live() {
    Blocks &blocks = *running;
    while (true) {
      blocks.entry(blocks.parameters);
      blocks.wait(State::Done);
    }
  }

  void resume(Fiber &fiber) {
    current = &fiber;
    if (_setjmp(home))
      return;
    if (fiber.begun)
      _longjmp(fiber.place, 1);
    fiber.begun = true;
    fiber.thread = uint32_t(&fiber - fibers.data());
    if (spareStacks.empty()) {
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    } else {
      fiber.stack = std::move(spareStacks.back());
      spareStacks.pop_back();
    }
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, live, 0);
    setcontext(&fiber.context);
  }

  /// Lets those go on who wait for threads that all have come. Threads that are done are not waited for.
  bool release() {
    bool released = false;
    for (unsigned first = 0; first < threads; first += kWarpThreads) {
      std::span<Fiber> warp(fibers.data() + first, std::min(kWarpThreads, threads - first));
      auto all = [&](State state) {
        bool some = false;
        for (const Fiber &fiber : warp) {
          if (fiber.state != state && fiber.state != State::Done)
            return false;
          some |= fiber.state == state;
        }
        return some;
      };
      if (all(State::AtShuffle)) {
        std::vector<uint32_t> words;
        for (const Fiber &fiber : warp) {
          size_t other = (fiber.thread - first) ^ fiber.distance;
          words.push_back(other < warp.size() && warp[other].state == State::AtShuffle ? warp[other].word : fiber.word);
        }
        for (size_t i = 0; i < warp.size(); ++i)
          warp[i].word = words[i];
      } else if (!all(State::AtWarp)) {
        continue;
      }
      released = true;
      for (Fiber &fiber : warp)
        if (fiber.state != State::Done)
          fiber.state = State::Ready;
    }
    if (released)
      return true;
    for (const Fiber &fiber : fibers)
      if (fiber.state != State::AtBlock && fiber.state != State::Done)
        return false;
    for (Fiber &fiber : fibers)
      if (fiber.state == State::AtBlock)
        fiber.state = State::Ready;
    return true;
  }

  static inline thread_local std::vector<std::unique_ptr<char[]>> spareStacks;
  std::vector<Fiber> fibers;
  jmp_buf home;
};

} // namespace twins

/// The functions that `kTwinCallsSymbol` of an object must point to before its kernels run.
inline const TwinCalls &twinCalls() {
  static constexpr TwinCalls calls = {
      [] { return twins::Blocks::running->current->thread; },
      [] { return twins::Blocks::running->block; },
      [] { twins::Blocks::running->wait(twins::State::AtBlock); },
      [] { twins::Blocks::running->wait(twins::State::AtWarp); },
      [](uint32_t word, uint32_t distance) {
        twins::Fiber &fiber = *twins::Blocks::running->current;
        fiber.word = word;
        fiber.distance = distance;
        twins::Blocks::running->wait(twins::State::AtShuffle);
        return fiber.word;
      },
      [] { return twins::Blocks::running->blocks; },
  };
  return calls;
}

/// Runs `blocks` blocks on this thread. Returns why they cannot end, or an empty text.
inline std::string runTwin(TwinEntry entry, unsigned threads, uint64_t blocks, void *const *parameters, TwinOrder order,
                           uint64_t seed) {
  std::vector<uint32_t> threadOrder(threads);
  std::iota(threadOrder.begin(), threadOrder.end(), 0);
  std::vector<uint64_t> blockOrder(blocks);
  std::iota(blockOrder.begin(), blockOrder.end(), uint64_t(0));
  std::mt19937_64 random(seed);
  if (order == TwinOrder::Reverse) {
    std::ranges::reverse(threadOrder);
    std::ranges::reverse(blockOrder);
  } else if (order == TwinOrder::Shuffled) {
    std::ranges::shuffle(threadOrder, random);
    std::ranges::shuffle(blockOrder, random);
  }
  twins::Blocks all(entry, threads, blocks, parameters);
  twins::Blocks::running = &all;
  std::string error;
  for (uint64_t block : blockOrder)
    if (error = all.run(block, threadOrder); !error.empty())
      break;
  twins::Blocks::running = nullptr;
  return error;
}

} // namespace segue

#endif // SEGUE_SCHEMAS_TWINBLOCKS_H
