//===- GroupBlocks.cpp - orders ops so that every block begins once -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Time is counted in slots: slot 2k + 1 is the k-th block of the model, slot 2k
// lies before it. What an op reads and who reads it say from which slot to
// which it may run; the block it names, or for an op without one its place in
// the function, says where it would like to. Views and constants are no work:
// they go before their first reader. What is written over an argument of the function
// waits for those who read the argument, and not longer.
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/DebugLog.h"
#include <set>

namespace segue {
#define GEN_PASS_DEF_SEGUEGROUPBLOCKS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-group-blocks"

using namespace mlir;
using namespace segue;

static StringAttr blockOf(Operation *op) { return op->getAttrOfType<StringAttr>(SegueDialect::kBlockAttr); }

/// Returns true for ops that become no command where they stand.
static bool isFollower(Operation *op) {
  return isView(op) || op->hasTrait<OpTrait::ConstantLike>() || isa<ToLayoutOp>(op);
}

namespace {
/// The work of a function as a graph.
class BlockSchedule {
public:
  explicit BlockSchedule(Block &body) : body(body) {
    for (Operation &op : body.without_terminator())
      if (!isFollower(&op)) {
        numbers[&op] = nodes.size();
        nodes.push_back({&op});
      } else {
        followers.push_back(&op);
      }
    for (Node &node : nodes)
      connect(node);
    keepOverwritesLast();
    for (Node &node : nodes) {
      unsigned self = &node - nodes.data();
      for (unsigned source : node.sources)
        nodes[source].readers.push_back(self);
    }
    rankBlocks();
  }

  bool hasBlocks() const { return !ranks.empty(); }

  /// Decides in which slot and block each op runs.
  void assignSlots() {
    // The last slot from which no reader is late, as far as blocks are fixed.
    for (Node &node : llvm::reverse(nodes)) {
      node.latest = 2 * ranks.size();
      for (unsigned reader : node.readers)
        node.latest = std::min(node.latest, latestOf(nodes[reader]));
    }
    unsigned next = 2 * ranks.size();
    SmallVector<unsigned> natural(nodes.size());
    for (unsigned i = nodes.size(); i-- > 0;) {
      if (StringAttr block = blockOf(nodes[i].op))
        next = slotOf(block) - 1;
      natural[i] = next;
    }
    for (auto [i, node] : llvm::enumerate(nodes)) {
      unsigned earliest = 0;
      for (unsigned source : node.sources)
        earliest = std::max(earliest, nodes[source].slot);
      if (isNeededBeforeItsBlock(node)) {
        node.slot = node.latest - node.latest % 2;
        continue;
      }
      node.slot = std::max(earliest, wantedSlot(node, earliest, natural[i]));
      node.block = node.slot % 2 ? blocks[node.slot / 2] : StringAttr();
      // A block that must wait for another begins again.
      if (StringAttr own = blockOf(node.op); own && !mayBelong(node, node.block))
        node.block = own;
    }
  }

  /// All work, by slot; in a slot, as long as there is some, of one block.
  SmallVector<unsigned> order() const {
    SmallVector<unsigned> result, waiting(nodes.size());
    // Ready ops by block name, in their old order.
    std::vector<std::set<unsigned>> ready(2 * ranks.size() + 1);
    for (auto [i, node] : llvm::enumerate(nodes)) {
      waiting[i] = node.sources.size();
      if (!waiting[i])
        ready[node.slot].insert(i);
    }
    StringAttr current;
    for (std::set<unsigned> &slot : ready)
      while (!slot.empty()) {
        auto same = llvm::find_if(slot, [&](unsigned i) { return nodes[i].block == current; });
        unsigned next = same == slot.end() ? *slot.begin() : *same;
        slot.erase(next);
        current = nodes[next].block;
        result.push_back(next);
        for (unsigned reader : nodes[next].readers)
          if (--waiting[reader] == 0)
            ready[nodes[reader].slot].insert(reader);
      }
    return result;
  }

  /// Moves ops and writes their blocks; returns how many changed theirs, and
  /// how often a block begins.
  std::pair<unsigned, unsigned> apply(ArrayRef<unsigned> order) {
    unsigned moved = 0, begins = 0;
    StringAttr current;
    Operation *end = body.getTerminator();
    for (unsigned number : order) {
      Node &node = nodes[number];
      placeFollowers(node.op, node.block);
      node.op->moveBefore(end);
      node.op->removeAttr(SegueDialect::kBlocksAttr);
      if (node.block != blockOf(node.op)) {
        LDBG() << node.op->getName() << " goes from " << blockOf(node.op) << " to " << node.block;
        ++moved;
        if (node.block)
          node.op->setAttr(SegueDialect::kBlockAttr, node.block);
        else
          node.op->removeAttr(SegueDialect::kBlockAttr);
      }
      begins += node.block && node.block != current;
      current = node.block;
    }
    placeFollowers(end, StringAttr());
    for (Operation *follower : followers) // that nobody reads
      place(follower, blockOf(follower));
    return {moved, begins};
  }

private:
  struct Node {
    Operation *op;
    /// The numbers of other work, each once.
    SmallVector<unsigned> sources, readers;
    unsigned slot = 0, latest = 0;
    StringAttr block;
  };

  void connect(Node &node) {
    llvm::SmallSetVector<unsigned, 8> sources;
    SmallVector<Value> work(node.op->getOperands());
    while (!work.empty()) {
      Operation *def = work.pop_back_val().getDefiningOp();
      if (!def || def->getBlock() != &body)
        continue;
      if (isFollower(def))
        llvm::append_range(work, def->getOperands());
      else
        sources.insert(numbers.lookup(def));
    }
    node.sources = sources.takeVector();
  }

  /// A result that is returned in the place of an argument is written over it: what
  /// reads the argument before stays before.
  void keepOverwritesLast() {
    auto function = cast<func::FuncOp>(body.getParentOp());
    for (auto [index, value] : llvm::enumerate(body.getTerminator()->getOperands())) {
      auto alias = function.getResultAttrOfType<IntegerAttr>(index, kAliasAttr);
      Operation *writer = value.getDefiningOp();
      if (!alias || !writer || isFollower(writer))
        continue;
      unsigned self = numbers.lookup(writer);
      SmallVector<Value> seen{function.getArgument(alias.getInt())};
      while (!seen.empty())
        for (Operation *reader : seen.pop_back_val().getUsers()) {
          if (isFollower(reader))
            llvm::append_range(seen, reader->getResults());
          else if (auto known = numbers.find(reader);
                   known != numbers.end() && known->second < self &&
                   !llvm::is_contained(nodes[self].sources, known->second))
            nodes[self].sources.push_back(known->second);
        }
    }
  }

  /// Blocks in the order of the middle of their ops: a few that were drawn
  /// forward or pushed back do not change it. Kernels of several blocks count
  /// for a block that has nothing else.
  void rankBlocks() {
    llvm::MapVector<StringAttr, SmallVector<unsigned>> members;
    for (bool several : {false, true}) {
      llvm::SmallDenseSet<StringAttr> known;
      for (auto &[block, ops] : members)
        known.insert(block);
      for (auto [i, node] : llvm::enumerate(nodes))
        if (StringAttr block = blockOf(node.op); block && node.op->hasAttr(SegueDialect::kBlocksAttr) == several)
          if (!known.contains(block))
            members[block].push_back(i);
    }
    auto sorted = members.takeVector();
    llvm::stable_sort(sorted, [](const auto &a, const auto &b) {
      return a.second[a.second.size() / 2] < b.second[b.second.size() / 2];
    });
    for (auto &[block, ops] : sorted) {
      ranks[block] = blocks.size();
      blocks.push_back(block);
    }
  }

  unsigned slotOf(StringAttr block) const { return 2 * ranks.lookup(block) + 1; }

  bool mayBelong(const Node &node, StringAttr block) const {
    auto several = node.op->getAttrOfType<ArrayAttr>(SegueDialect::kBlocksAttr);
    return several ? llvm::is_contained(several, block) : block == blockOf(node.op);
  }

  /// The slots of the blocks that `node` has ops of.
  SmallVector<unsigned> candidates(const Node &node) const {
    SmallVector<unsigned> slots;
    if (auto several = node.op->getAttrOfType<ArrayAttr>(SegueDialect::kBlocksAttr)) {
      for (auto block : several.getAsRange<StringAttr>())
        if (ranks.contains(block))
          slots.push_back(slotOf(block));
    } else if (StringAttr block = blockOf(node.op)) {
      slots.push_back(slotOf(block));
    }
    llvm::sort(slots);
    return slots;
  }

  /// The last slot in which work may run that `node` reads.
  unsigned latestOf(const Node &node) const {
    for (unsigned slot : llvm::reverse(candidates(node)))
      if (slot <= node.latest)
        return slot;
    // The work goes without a block, or in one that has to begin again.
    return candidates(node).empty() ? node.latest : candidates(node).front();
  }

  /// Returns true if a node is needed before its block. Rows of an embedding that backward looks up again hold up no
  /// block that comes before the embedding's: the lookup runs before that, outside of blocks.
  bool isNeededBeforeItsBlock(const Node &node) const {
    SmallVector<unsigned> slots = candidates(node);
    if (!node.sources.empty() || slots.empty() || slots.front() <= node.latest)
      return false;
    auto function = cast<func::FuncOp>(body.getParentOp());
    auto isParameter = [&](Value value) {
      auto argument = dyn_cast<BlockArgument>(value);
      Role role = argument ? argumentRole(function, argument.getArgNumber()) : Role::Input;
      return role == Role::Parameter || role == Role::Frozen;
    };
    auto isIndex = [](Value value) {
      Type element = getElementTypeOrSelf(value);
      return element.isInteger(64) || element.isInteger(32);
    };
    return llvm::any_of(node.op->getOperands(), isParameter) && llvm::any_of(node.op->getOperands(), isIndex);
  }

  unsigned wantedSlot(const Node &node, unsigned earliest, unsigned natural) const {
    SmallVector<unsigned> slots = candidates(node);
    if (slots.empty())
      return std::min(std::max(natural, earliest + earliest % 2), node.latest);
    for (unsigned slot : llvm::reverse(slots))
      if (earliest <= slot && slot <= node.latest)
        return slot;
    for (unsigned slot : slots)
      if (earliest <= slot)
        return slot;
    return slots.back();
  }

  /// Moves the views and constants that `op` reads to the end, into `block`.
  void placeFollowers(Operation *op, StringAttr block) {
    for (Value operand : op->getOperands())
      if (Operation *def = operand.getDefiningOp(); def && def->getBlock() == &body && isFollower(def))
        place(def, block);
  }

  void place(Operation *follower, StringAttr block) {
    if (!placed.insert(follower).second)
      return;
    placeFollowers(follower, block);
    follower->moveBefore(body.getTerminator());
    if (block)
      follower->setAttr(SegueDialect::kBlockAttr, block);
    else
      follower->removeAttr(SegueDialect::kBlockAttr);
  }

  Block &body;
  std::vector<Node> nodes;
  DenseMap<Operation *, unsigned> numbers;
  DenseMap<StringAttr, unsigned> ranks;
  SmallVector<StringAttr> blocks;
  SmallVector<Operation *> followers;
  llvm::SmallPtrSet<Operation *, 32> placed;
};

/// The last op of the block that reads `value`, or what a view shows of it; null if none does but `reader` itself.
Operation *lastReader(Value value, Operation *reader) {
  Operation *last = nullptr;
  SmallVector<Value> seen{value};
  while (!seen.empty())
    for (Operation *user : seen.pop_back_val().getUsers()) {
      if (isFollower(user))
        llvm::append_range(seen, user->getResults());
      else if (user != reader && !user->hasTrait<OpTrait::IsTerminator>() && (!last || last->isBeforeInBlock(user)))
        last = user;
    }
  return last;
}

/// Moves ops whose results are written over arguments up, as far as what they read is known and nothing below reads the
/// arguments: there what they read dies. They stay in their block of the model, and in their order. Returns how many moved.
unsigned hoistOverwrites(func::FuncOp function) {
  Block &body = function.getBody().front();
  llvm::MapVector<Operation *, SmallVector<BlockArgument>> overwriting;
  for (auto [index, value] : llvm::enumerate(body.getTerminator()->getOperands()))
    if (auto alias = function.getResultAttrOfType<IntegerAttr>(index, kAliasAttr))
      if (Operation *op = value.getDefiningOp(); op && !isFollower(op))
        overwriting[op].push_back(function.getArgument(alias.getInt()));
  SmallVector<Operation *> inOrder;
  for (Operation &op : body)
    if (overwriting.contains(&op))
      inOrder.push_back(&op);
  unsigned moved = 0;
  llvm::DenseMap<Operation *, Operation *> lastBehind; // what was put behind an op
  for (Operation *op : inOrder) {
    Operation *behind = nullptr;
    auto note = [&](Operation *other) {
      if (other && (!behind || behind->isBeforeInBlock(other)))
        behind = other;
    };
    for (Value operand : op->getOperands())
      note(operand.getDefiningOp());
    for (BlockArgument argument : overwriting[op])
      note(lastReader(argument, op));
    if (!behind || blockOf(behind) != blockOf(op) || !behind->isBeforeInBlock(op))
      continue;
    Operation *after = lastBehind.lookup(behind) ? lastBehind.lookup(behind) : behind;
    lastBehind[behind] = op;
    if (after->getNextNode() == op || !after->isBeforeInBlock(op))
      continue;
    op->moveAfter(after);
    ++moved;
  }
  return moved;
}

struct GroupBlocks : segue::impl::SegueGroupBlocksBase<GroupBlocks> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    if (function.isExternal() || !function.getBody().hasOneBlock())
      return;
    Block &body = function.getBody().front();
    // The order of effects is not ours to change.
    if (!llvm::all_of(body.without_terminator(), [](Operation &op) { return isMemoryEffectFree(&op); }))
      return;
    BlockSchedule schedule(body);
    if (schedule.hasBlocks()) {
      schedule.assignSlots();
      auto [changed, begun] = schedule.apply(schedule.order());
      moved += changed;
      begins += begun;
    }
    moved += hoistOverwrites(function);
    for (Operation &op : body)
      op.removeAttr(SegueDialect::kBlocksAttr);
  }
};
} // namespace
