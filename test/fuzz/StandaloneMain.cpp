//===- StandaloneMain.cpp - fuzz targets without libFuzzer ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   segue-fuzz-X [-max_total_time=SECONDS] [-seed=N] files and folders...
//
// Runs each file, then mutations of them until the time is over: bytes set,
// bits flipped, numbers replaced by edges, ranges cut, doubled and taken from
// another file, or what a mutator of the target's own makes of them. Blind, where libFuzzer follows coverage, but it needs nothing
// of the compiler, so that every build can run it, under any sanitizer. The
// flags are libFuzzer's. An input that kills the process is in `crash-input`.
//
//===----------------------------------------------------------------------===//

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/// Targets that have a mutator define it.
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t mostBytes,
                                                                unsigned int seed);

using Bytes = std::vector<uint8_t>;

static Bytes read(const std::filesystem::path &path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

namespace {
class Mutator {
public:
  Mutator(uint64_t seed, const std::vector<Bytes> &corpus) : random_(seed), corpus_(corpus) {}

  Bytes next() {
    Bytes bytes = corpus_[below(corpus_.size())];
    if (LLVMFuzzerCustomMutator && below(8) != 0) {
      size_t size = bytes.size();
      bytes.resize(2 * size + 4096);
      bytes.resize(LLVMFuzzerCustomMutator(bytes.data(), size, bytes.size(), unsigned(random_())));
      return bytes;
    }
    for (size_t changes = 1 + below(4); changes && !bytes.empty(); --changes)
      change(bytes);
    return bytes;
  }

private:
  size_t below(size_t limit) { return size_t(random_() % limit); }

  void change(Bytes &bytes) {
    size_t at = below(bytes.size());
    switch (below(7)) {
    case 0:
      bytes[at] = uint8_t(random_());
      break;
    case 1:
      bytes[at] ^= uint8_t(1 << below(8));
      break;
    case 2:
      putEdge(bytes, at);
      break;
    case 3: // cut
      bytes.erase(bytes.begin() + ptrdiff_t(at),
                  bytes.begin() + ptrdiff_t(at + std::min(bytes.size() - at, 1 + below(32))));
      break;
    case 4: // double
    {
      Bytes part(bytes.begin() + ptrdiff_t(at),
                 bytes.begin() + ptrdiff_t(at + std::min(bytes.size() - at, 1 + below(32))));
      bytes.insert(bytes.begin() + ptrdiff_t(at), part.begin(), part.end());
      break;
    }
    case 5: // from another file
    {
      const Bytes &other = corpus_[below(corpus_.size())];
      if (other.empty())
        break;
      size_t from = below(other.size());
      size_t count = std::min({other.size() - from, bytes.size() - at, 1 + below(64)});
      std::memcpy(bytes.data() + at, other.data() + from, count);
      break;
    }
    default: // from another place
      std::memmove(bytes.data() + at, bytes.data() + below(bytes.size() - std::min(bytes.size() - 1, size_t(8))),
                   std::min(bytes.size() - at, size_t(4)));
    }
  }

  /// A little-endian number of 1, 2, 4 or 8 bytes where checks tend to break.
  void putEdge(Bytes &bytes, size_t at) {
    size_t width = size_t(1) << below(4);
    uint64_t highest = UINT64_MAX >> (64 - 8 * width);
    const uint64_t edges[] = {0, 1, 2, highest, highest - 1, highest / 2, highest / 2 + 1, 1 + below(1024)};
    uint64_t edge = edges[below(std::size(edges))];
    std::memcpy(bytes.data() + at, &edge, std::min(width, bytes.size() - at));
  }

  std::mt19937_64 random_;
  const std::vector<Bytes> &corpus_;
};
} // namespace

/// Kept before each run: a process that dies cannot say why.
static void keep(const Bytes &bytes) {
  std::ofstream("crash-input", std::ios::binary)
      .write(reinterpret_cast<const char *>(bytes.data()), std::streamsize(bytes.size()));
}

int main(int argc, char **argv) {
  double seconds = 0;
  uint64_t seed = 1;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument.starts_with("-max_total_time="))
      seconds = std::atof(argument.c_str() + 16);
    else if (argument.starts_with("-seed="))
      seed = std::strtoull(argument.c_str() + 6, nullptr, 10);
    else if (argument.starts_with("-"))
      continue; // libFuzzer's
    else if (std::filesystem::is_directory(argument)) {
      std::vector<std::filesystem::path> paths(std::filesystem::directory_iterator(argument), {});
      std::ranges::sort(paths);
      for (const auto &path : paths)
        corpus.push_back(read(path));
    } else {
      corpus.push_back(read(argument));
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [-max_total_time=SECONDS] [-seed=N] files and folders...\n", argv[0]);
    return 2;
  }
  for (const Bytes &bytes : corpus)
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  Mutator mutator(seed, corpus);
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    Bytes bytes = mutator.next();
    keep(bytes);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::remove("crash-input");
  std::fprintf(stderr, "Done %llu runs of %zu seeds\n", static_cast<unsigned long long>(runs), corpus.size());
  return 0;
}
