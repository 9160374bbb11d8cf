//===- SpillFileBench.cpp - a spill file beside the disk's own speed ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   segue-bench-spill [rounds [MiB [folder]]]
//
// The disk's own speed is that of plain pread and pwrite with O_DIRECT, of 1 MiB
// each, on a file that was written before: one after the other, as dd does, and by 8
// threads beside each other, as fio does with 8 jobs. What is compared runs in
// turns. Ratios are to the faster of the two. "Both" writes one half of the file while it
// reads the other.
//
//===----------------------------------------------------------------------===//

#include "../LeastTime.h"
#include "segue/runtime/Disk/SpillFile.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace segue;

static constexpr uint64_t mebibyte = 1 << 20;

[[noreturn]] static void fail(const std::string &where) {
  std::perror(where.c_str());
  std::exit(1);
}

static std::string sizeText(uint64_t bytes) {
  return bytes < mebibyte ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes / mebibyte) + " MiB";
}

namespace {
/// One way to transfer a range of a file.
struct Way {
  std::string name;
  std::function<void(bool isWriting, uint64_t begin, uint64_t end)> transfer;
};

/// A file that is read and written without any of ours.
class PlainFile {
public:
  PlainFile(const std::string &folder, uint64_t bytes) {
    descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (descriptor_ < 0 || ::fallocate(descriptor_, 0, 0, off_t(bytes)) != 0)
      fail(folder);
  }
  ~PlainFile() { ::close(descriptor_); }

  void transfer(std::byte *memory, bool isWriting, uint64_t begin, uint64_t end, unsigned jobs) {
    auto job = [&](unsigned first) {
      for (uint64_t at = begin + first * mebibyte; at < end; at += jobs * mebibyte) {
        size_t size = size_t(std::min(mebibyte, end - at));
        ssize_t done = isWriting ? ::pwrite(descriptor_, memory + at, size, off_t(at))
                                 : ::pread(descriptor_, memory + at, size, off_t(at));
        if (done != ssize_t(size))
          fail("plain file");
      }
    };
    std::vector<std::thread> threads;
    for (unsigned first = 1; first < jobs; ++first)
      threads.emplace_back(job, first);
    job(0);
    for (std::thread &thread : threads)
      thread.join();
  }

private:
  int descriptor_;
};
} // namespace

/// How fast the host sees a sixteenth of the file through the mapping.
static void lookThrough(SpillFile &file, uint64_t bytes, int rounds) {
  uint64_t looked = std::max<uint64_t>(bytes / 16, SpillFile::block);
  volatile unsigned sum = 0;
  auto look = [&] {
    for (uint64_t at = 0; at < looked; at += SpillFile::block)
      sum = sum + unsigned(file.data()[at]);
    file.dropCached(0, looked);
  };
  auto announced = [&] {
    file.expectLook(0, looked);
    look();
  };
  std::vector<double> seconds = bench::leastTimes(rounds, 1, {look, announced});
  std::printf("\nthrough the mapping: %.2f GB/s, announced %.2f GB/s\n", double(looked) / seconds[0] / 1e9,
              double(looked) / seconds[1] / 1e9);
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  uint64_t bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 256) * mebibyte;
  std::string folder = argc > 3 ? argv[3] : ".";
  if (rounds < 1 || bytes == 0) {
    std::fprintf(stderr, "usage: %s [rounds [MiB [folder]]]\n", argv[0]);
    return 2;
  }
  std::unique_ptr<std::byte, decltype(&std::free)> buffer(static_cast<std::byte *>(std::aligned_alloc(4096, bytes)),
                                                          &std::free);
  std::byte *memory = buffer.get();
  for (uint64_t at = 0; at < bytes; ++at) // bytes that no disk makes fewer
    memory[at] = std::byte((at * 2654435761u) >> 13);

  try {
    PlainFile plain(folder, bytes);
    std::vector<std::unique_ptr<SpillFile>> files;
    std::vector<Way> ways;
    for (unsigned jobs : {1u, 8u})
      ways.push_back({"plain, " + std::to_string(jobs) + (jobs == 1 ? " thread" : " threads"),
                      [&plain, memory, jobs](bool isWriting, uint64_t begin, uint64_t end) {
                        plain.transfer(memory, isWriting, begin, end, jobs);
                      }});
    for (auto engine : {SpillOptions::Engine::Ring, SpillOptions::Engine::Threads})
      for (bool mayBeDirect : {true, false}) {
        SpillOptions options;
        options.engine = engine;
        options.mayBeDirect = mayBeDirect;
        try {
          files.push_back(SpillFile::open(folder, bytes, options));
        } catch (const Error &error) {
          if (error.code() != ErrorCode::Unsupported)
            throw;
          std::printf("%s\n", error.what());
          break;
        }
        SpillFile *file = files.back().get();
        std::string name = std::string(file->engine()) + (file->isDirect() ? "" : ", page cache");
        for (uint64_t size : {uint64_t(64) << 10, mebibyte, 16 * mebibyte, bytes})
          if (mayBeDirect || size == 16 * mebibyte)
            ways.push_back({name + ", calls of " + sizeText(size),
                            [file, memory, size](bool isWriting, uint64_t begin, uint64_t end) {
                              for (uint64_t at = begin; at < end; at += size) {
                                uint64_t part = std::min(size, end - at);
                                isWriting ? file->write(at, memory + at, part) : file->read(memory + at, at, part);
                              }
                            }});
      }

    // Writes first: what was never written is not read from the disk.
    std::vector<std::function<void()>> writes, reads, both;
    for (Way &way : ways) {
      writes.push_back([&] { way.transfer(true, 0, bytes); });
      reads.push_back([&] { way.transfer(false, 0, bytes); });
      both.push_back([&] {
        std::thread writer([&] { way.transfer(true, 0, bytes / 2); });
        way.transfer(false, bytes / 2, bytes);
        writer.join();
      });
    }
    std::vector<double> seconds[] = {bench::leastTimes(rounds, 1, writes), bench::leastTimes(rounds, 1, reads),
                                     bench::leastTimes(rounds, 1, both)};
    std::printf("%s in %s, the least of %d rounds\n\n", sizeText(bytes).c_str(), folder.c_str(), rounds);
    std::printf("| | writes, GB/s | of the disk's | reads, GB/s | of the disk's | both, GB/s | of the disk's |\n"
                "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < ways.size(); ++i) {
      std::printf("| %s |", ways[i].name.c_str());
      for (const std::vector<double> &of : seconds)
        std::printf(" %.2f | %.2f |", double(bytes) / of[i] / 1e9, std::min(of[0], of[1]) / of[i]);
      std::printf("\n");
    }
    lookThrough(*files.front(), bytes, rounds);
  } catch (const Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
