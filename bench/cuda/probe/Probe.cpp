//===- Probe.cpp - measure what a CUDA device and its driver do -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   cuda-probe [--cubin FILE] [PART ...]     all parts without a PART
//
// Prints a line of JSON per figure. Exit status 2: no driver or no device.
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>

using namespace probe;

static std::string part_;

static std::string inQuotes(const std::string &text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += '\\';
    out += c < ' ' ? ' ' : c;
  }
  return out + '"';
}

void probe::setPart(const std::string &part) { part_ = part; }

void probe::report(const std::string &name, double value, const char *unit, const std::string &note) {
  std::printf("{\"part\": %s, \"name\": %s, \"value\": %.6g, \"unit\": %s", inQuotes(part_).c_str(),
              inQuotes(name).c_str(), value,
              inQuotes(unit).c_str());
  if (!note.empty())
    std::printf(", \"note\": %s", inQuotes(note).c_str());
  std::printf("}\n");
  std::fflush(stdout);
}

void probe::reportText(const std::string &name, const std::string &text) {
  std::printf("{\"part\": %s, \"name\": %s, \"text\": %s}\n", inQuotes(part_).c_str(), inQuotes(name).c_str(),
              inQuotes(text).c_str());
  std::fflush(stdout);
}

std::string probe::nameOf(CUresult result) {
  const char *name = nullptr;
  cu.errorName(result, &name);
  return std::string(name ? name : "unknown") + " (" + std::to_string(result) + ")";
}

void probe::must(CUresult result, const char *call) {
  if (!result)
    return;
  const char *text = nullptr;
  cu.errorText(result, &text);
  throw std::runtime_error(std::string(call) + ": " + nameOf(result) + ": " + (text ? text : ""));
}

double probe::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double probe::median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

double probe::between(CUevent from, CUevent to) {
  float ms = 0;
  MUST(cu.eventElapsed(&ms, from, to));
  return ms * 1e-3;
}

size_t probe::freeBytes() {
  size_t free = 0, total = 0;
  MUST(cu.memInfo(&free, &total));
  return free;
}

Buffer::Buffer(size_t bytes) : bytes(bytes) {
  MUST(cu.memAlloc(&address, bytes));
  MUST(cu.fill(address, 0x3f9d70a4, bytes / 4, nullptr));
  MUST(cu.ctxSynchronize());
}

Pinned::Pinned(size_t bytes, unsigned flags) : bytes(bytes) {
  MUST(cu.hostAlloc(&data, bytes, flags));
  std::memset(data, 0x5a, bytes);
}

int main(int argc, char **argv) {
  std::string cubin, fault;
  std::vector<std::string> chosen;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--cubin" && i + 1 < argc)
      cubin = argv[++i];
    else if (word == "--fault" && i + 1 < argc)
      fault = argv[++i];
    else
      chosen.push_back(word);
  }
  const std::pair<const char *, std::function<void()>> parts[] = {
      {"link", probeLink},         {"pinned", probePinned},     {"memory", probeMemory}, {"addresses", probeAddresses},
      {"queues", probeQueues},     {"graphs", probeGraphs},     {"priority", probePriority}, {"cache", probeCache},
      {"errors", [&] { probeErrors(argv[0]); }}};
  for (const std::string &word : chosen)
    if (word != "context" && std::ranges::none_of(parts, [&](auto &part) { return word == part.first; })) {
      std::fprintf(stderr, "cuda-probe: there is no part \"%s\"\n", word.c_str());
      return 1;
    }
  if (const char *missing = cu.open()) {
    std::fprintf(stderr, "cuda-probe: no CUDA driver: %s is not there\n", missing);
    return 2;
  }
  double started = now();
  if (CUresult result = cu.init(0)) {
    std::fprintf(stderr, "cuda-probe: cuInit: %s\n", nameOf(result).c_str());
    return 2;
  }
  try {
    if (!fault.empty()) {
      runFault(fault);
      return 0;
    }
    setPart("context");
    report("cuInit", now() - started, "s");
    probeContext(cubin);
    bool failed = false;
    for (auto &[name, run] : parts) {
      if (!chosen.empty() && std::ranges::find(chosen, name) == chosen.end())
        continue;
      setPart(name);
      started = now();
      try {
        run();
      } catch (const std::runtime_error &error) {
        reportText("FAILED", error.what());
        failed = true;
      }
      report("this part took", now() - started, "s");
    }
    return failed;
  } catch (const std::runtime_error &error) {
    std::fprintf(stderr, "cuda-probe: %s\n", error.what());
    return 1;
  }
}
