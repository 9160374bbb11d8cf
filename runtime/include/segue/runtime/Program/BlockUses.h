//===- BlockUses.h - which block reads which input --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program opens and closes blocks between its commands. What a command reads
// within one need not be on the device before that block begins, and may leave
// when it ends: this is what weights are streamed by.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_BLOCKUSES_H
#define SEGUE_RUNTIME_PROGRAM_BLOCKUSES_H

#include "segue/runtime/Program/Events.h"
#include <map>

namespace segue::inline runtime {

/// One opening of a block. A block that is opened again is another BlockUse.
struct BlockUse {
  std::string name;
  /// The streamable inputs that its commands are the first to touch, ascending, and those
  /// that no command after it touches. (A block within it is another block.)
  std::vector<uint32_t> firstTouched, lastTouched;
  /// The outputs of role gradient that no command after it touches, ascending.
  std::vector<uint32_t> finished;
  /// The values that its commands read of others, ascending: inputs that are no parameters,
  /// states or hypers, by index, and results of other blocks, as indices into
  /// BlockUses::results.
  std::vector<uint32_t> inputsRead, resultsRead;
};

/// A value that leaves its block: the block's commands are the last to write it,
/// and commands outside of the block read it or the program returns it. Values of
/// several blocks belong to the last. Outputs that are inputs written in place,
/// and statistics, are none.
struct BlockResult {
  /// The index into BlockUses::blocks, and that of the command after which the value is final.
  uint32_t block = 0, command = 0;
  uint32_t buffer = 0;
  /// The index of the output, or -1 for a temporary: `bytes` of an arena from `offset` on.
  int32_t output = -1;
  uint32_t arena = 0;
  uint64_t offset = 0, bytes = 0;
  ElementType element = ElementType::f32;
  /// True if a block of the same program reads it.
  bool isRead = false;
};

struct BlockUses {
  /// The blocks, in the order in which they are opened.
  std::vector<BlockUse> blocks;
  /// The results, in the order in which they are final, without temporaries
  /// whose element type the file does not tell (before version 0.3).
  std::vector<BlockResult> results;
  /// Per input, true for a parameter, trained or frozen, a gradient of one
  /// or a state of an optimizer that commands touch within blocks alone.
  std::vector<bool> streamable;
  /// Per input, true if some command touches it.
  std::vector<bool> touched;
  /// Per input, true if some command writes it in place.
  std::vector<bool> written;
};

/// Returns the blocks of a program; walks all commands.
BlockUses blockUses(const Program &program);

/// Returns a text for people: the output's name, or "temporary of matmul at model.py:12:3".
std::string describe(const Program &program, const BlockResult &result);

/// A BlockCursor knows which of a program's blocks begins and ends,
/// as events name the program alone. One program runs at a time.
class BlockCursor {
public:
  /// Returns the uses of a program, for every one that begins with blocks.
  const BlockUses &usesOf(const Program &program);
  /// These return the block that begins, and the one that ends, as an index into blocks.
  size_t begin(const Program &program);
  size_t end(const Program &program);
  /// Forgets the blocks that are open: whatever runs has been given up.
  void reset();

private:
  struct Place {
    /// The program, which keeps alive the image whose address is the key.
    Program program;
    BlockUses uses;
    size_t begun = 0;
    std::vector<size_t> open;
  };
  Place &placeOf(const Program &program);

  std::map<std::pair<const void *, size_t>, Place> places_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_BLOCKUSES_H
