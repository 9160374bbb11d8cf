//===- SpillFile.h - room on a disk, beside memory --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A file without a name in a folder, which takes what has no room in memory and, unless something is
// sealed in it, is gone when its process ends, however it ends. All of its room is reserved at
// the start, so that a full disk is met there and not in the middle of a step.
//
//   std::unique_ptr<SpillFile> file = SpillFile::open("/mnt/ssd", 64ull << 30);
//   file->write(0, moments, bytes);
//   file->read(moments, 0, bytes);
//
// Reads and writes are cut into pieces, many of which are in flight at once, and
// go past the page cache (O_DIRECT) where the file system can do that; elsewhere
// the pages are written out and dropped within the call. So what lies on the disk
// takes no memory in either case. The fastest are addresses, offsets and sizes
// that are multiples of SpillFile::block; all others work.
//
// The file is also mapped: an offset is an address from data() on, through which
// the host may look at what lies there, and change it. The mapping and the calls
// see one content: what `write` wrote is at its address when the call returns,
// and `read` returns what was stored through the mapping before it was called.
// Pages that are touched there stay in memory until dropCached() or a direct
// write of their range.
//
// Ranges can be sealed: their bytes stay as they are whatever is written there later, and
// outlive the process, until the next seal takes its place. For that, a write to a sealed
// range gets fresh blocks of the file behind the same offsets and addresses. So nothing is
// copied to seal, and none of it is read. A later reader needs to know where the bytes lie,
// which is to be written down:
//
//   file->addSpare(16ull << 30, 8ull << 30);        // as much as is written between two seals
//   file->keep("segue-1.sealed");                   // on the disk now, under a name
//   writeDown(file->path(), file->extentsOf(0, bytes));
//   file->seal({{0, bytes}});                       // what the seal before had is free again
//
// Between keep() and seal() nothing may be written to the ranges that are to be sealed, and the seal
// before is whole: a process that ends there, however it ends, leaves that one.
//
// Threads: any thread may call anything at any time. Calls of one direction take
// turns, reads and writes run beside each other. Ranges that are in use at once,
// by calls or through the mapping, must be disjoint by bytes, if either use writes;
// they may share a block. After fork, only the parent may use the file;
// the child may destroy the object, and holds the room of a parent that is killed until it
// ends itself.
//
// Offsets and sizes count bytes.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DISK_SPILLFILE_H
#define SEGUE_RUNTIME_DISK_SPILLFILE_H

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace segue::inline runtime {

struct SpillSeam;

/// The way in which a spill file reads and writes. The defaults are the fastest that were
/// measured (bench/RESULTS.md).
struct SpillOptions {
  /// Ring is io_uring; Threads are pread and pwrite, each on a thread that waits
  /// for it. Best takes Ring, and Threads where the kernel or the build has none.
  enum class Engine { Best, Ring, Threads };

  Engine engine = Engine::Best;
  /// With false, transfers go through the page cache even where the file system could do without.
  bool mayBeDirect = true;
  /// If above 0, ranges of fewer bytes than this, and the odd bytes at both ends of others,
  /// go through the page cache beside direct transfers, and stay there until the system
  /// wants the room. They then take no time; but if the disk refuses such a page later, only
  /// a check of the bytes finds that (the mapping and `read` show the old ones).
  uint64_t cachedBelow = 0;
  /// Bytes of one piece, a multiple of SpillFile::block, and the number of pieces
  /// in flight in each direction: 1 to 1024.
  uint32_t pieceBytes = 512 << 10;
  uint32_t depth = 32;
  /// Replaced calls of the system, for tests (runtime/lib/Disk/SpillEngine.h). Must outlive the file.
  const SpillSeam *seam = nullptr;
};

/// SpillTraffic counts one direction since the file was opened. Calls that failed count
/// with their time and without bytes; time that a call waits for its turn does not count.
struct SpillTraffic {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  double seconds = 0;
};

/// A SpillExtent is a range of offsets, or of places in the file: whole blocks.
struct SpillExtent {
  uint64_t offset = 0, bytes = 0;
  friend bool operator==(const SpillExtent &, const SpillExtent &) = default;
};

class SpillFile {
public:
  /// The size of a block, in bytes. Reads and writes go past the page cache in whole
  /// blocks; the odd bytes at both ends of a range go through it.
  static constexpr uint64_t block = 4096;
  /// Returns the bytes of the blocks that hold `bytes`.
  static constexpr uint64_t inBlocks(uint64_t bytes) { return (bytes + block - 1) / block * block; }

  /// Makes a file of `capacityBytes`, rounded up to whole blocks, in `folder`,
  /// readable by this process alone. It reads as zeros.
  ///
  /// Reserves the room by fallocate, and by writing zeros on file systems that have
  /// no fallocate (which takes as long as it takes to write them).
  ///
  /// Throws InvalidArgument for a capacity of 0 or beyond any file, for options out of
  /// range, and for a folder that lies in memory (tmpfs, ramfs, a disk of zram), where a
  /// file frees no memory. Throws IoFailed if there is no such folder, it is a file, it
  /// cannot be written to, it has less room than is asked for, or a limit of the process
  /// (ulimit -f) or a quota forbids it; Unsupported for Engine::Ring without io_uring. A
  /// failed call leaves nothing in the folder.
  static std::unique_ptr<SpillFile> open(const std::filesystem::path &folder, uint64_t capacityBytes,
                                         const SpillOptions &options = {});
  /// Gives the room back at once, except for what is sealed. No call may be running.
  ~SpillFile();
  SpillFile(const SpillFile &) = delete;
  SpillFile &operator=(const SpillFile &) = delete;

  const std::filesystem::path &folder() const;
  uint64_t capacity() const;
  /// Returns the mapping of the whole file, for reads and stores, aligned to a block; valid
  /// as long as the file. It counts to the process's address space (RLIMIT_AS), and to its
  /// memory only where it was touched. A page that the disk cannot read raises SIGBUS
  /// there: use read() to get an error instead.
  std::byte *data() const;
  /// Returns true if reads and writes go past the page cache.
  bool isDirect() const;
  /// Returns "io_uring" or "threads".
  std::string_view engine() const;

  /// Fills `target` with the `bytes` from `offset` on; blocks until they are there.
  /// Throws InvalidArgument for a range beyond the capacity, and IoFailed, with the
  /// system's reason, the folder and the range, for what the disk refuses; `target` then
  /// holds anything. In either case nothing is in flight any more.
  void read(void *target, uint64_t offset, uint64_t bytes);
  /// Puts the `bytes` at `source` to `offset`; blocks until the disk has taken them
  /// (which is no promise that they survive a loss of power: the file does not). Throws
  /// like `read`; the range then holds anything.
  void write(uint64_t offset, const void *source, uint64_t bytes);

  /// Begins to bring a range into memory that the host is about to look at through the
  /// mapping: a touch of a page that is not there brings that page alone. This halves the
  /// time, which is still ten times that of read(). A hint; throws InvalidArgument for a
  /// range beyond the capacity.
  void expectLook(uint64_t offset, uint64_t bytes);
  /// Takes the pages of a range out of memory after the host looked at the mapping
  /// there; writes out first what it stored. Touching them again reads them again.
  /// Throws like `write`, with all stored bytes still in place.
  void dropCached(uint64_t offset, uint64_t bytes);

  //===--------------------------------------------------------------------===//
  // Seals
  //===--------------------------------------------------------------------===//

  /// Gives the blocks of a range, whose offsets nobody uses from now on, to writes to sealed ranges. Throws
  /// InvalidArgument for a range that is not of whole blocks or lies beyond the capacity.
  void addSpare(uint64_t offset, uint64_t bytes);
  /// Returns the bytes of spare blocks that no write has taken.
  uint64_t spareBytes() const;
  /// Brings all that was written to the disk, and gives the file `name` in its folder if it has none
  /// yet; a lock (flock) on it says that this process lives. Unless something is sealed, the name goes when the file
  /// does. Its owner may execute it as long as nothing is sealed, so that others know one that no checkpoint
  /// names. Throws IoFailed, and Unsupported on a file system where a file without a name cannot get one, and where
  /// the name that it has got leads to it no more.
  void keep(const std::string &name);
  /// Returns the path of the file, which is empty as long as it has no name.
  std::filesystem::path path() const;
  /// Returns the places in the file at which a range lies, in its order. The range begins and ends at multiples of
  /// `block`.
  std::vector<SpillExtent> extentsOf(uint64_t offset, uint64_t bytes) const;
  /// Seals these ranges, which are disjoint and of whole blocks, in the place of what was sealed before. Throws nothing
  /// but bad_alloc.
  void seal(const std::vector<SpillExtent> &ranges);
  /// Returns the bytes of a range, of whole blocks, that are sealed and to which nobody has written since.
  uint64_t sealedBytes(uint64_t offset, uint64_t bytes) const;
  /// Ends the seal, so that the file goes with its process or object.
  void unseal();
  /// Must be called before stores through the mapping where something may be sealed: copies those sealed blocks of the
  /// range to fresh ones. Throws like `write`. (`write` does this itself.) Stores without this call are seen by nobody
  /// but this mapping where the system allows that (no RLIMIT_DATA), and spoil the seal elsewhere.
  void expectStores(uint64_t offset, uint64_t bytes);

  SpillTraffic readTraffic() const;
  SpillTraffic writeTraffic() const;

private:
  struct Impl;
  explicit SpillFile(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DISK_SPILLFILE_H
