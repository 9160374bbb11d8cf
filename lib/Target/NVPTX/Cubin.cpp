//===- Cubin.cpp - PTX to machine code of GPUs ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Target/NVPTX/Cubin.h"
#include "CubinHeader.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

using namespace mlir;
using namespace segue;
namespace fs = llvm::sys::fs;

/// The most characters of what ptxas says that stand in a diagnostic.
static constexpr size_t kMostSaid = 2000;

namespace {
/// A folder for the files of some processes, which goes with them.
class WorkFolder {
public:
  WorkFolder() { error = fs::createUniqueDirectory("segue-cubin", folder); }
  ~WorkFolder() {
    if (!error)
      (void)fs::remove_directories(folder);
  }
  std::string file(const Twine &name) const {
    SmallString<128> path(folder);
    llvm::sys::path::append(path, name);
    return path.str().str();
  }

  std::error_code error;

private:
  SmallString<128> folder;
};

/// One run of ptxas. It is ended with whoever waits for it.
class Assembly {
public:
  Assembly(const CubinOptions &options, const WorkFolder &folder, unsigned capability)
      : options(options), arch("-arch=sm_" + std::to_string(capability)),
        output(folder.file("sm_" + Twine(capability) + ".cubin")),
        said(folder.file("sm_" + Twine(capability) + ".txt")), source(folder.file("kernels.ptx")),
        capability(capability) {}
  Assembly(const Assembly &) = delete;
  ~Assembly() {
    if (isRunning)
      end();
  }

  /// Returns why it does not start, or nothing.
  std::string start() {
    std::string error;
    bool hasFailed = false;
    StringRef args[] = {options.ptxas, arch, source, "-o", output};
    std::optional<StringRef> streams[] = {StringRef(), StringRef(said), StringRef(said)};
    // The process leads a group of its own, since what is called ptxas may be a script that starts it.
    process = llvm::sys::ExecuteNoWait(options.ptxas, args, std::nullopt, streams, 0, &error, &hasFailed,
                                       /*AffinityMask=*/nullptr, /*DetachProcess=*/true);
    isRunning = !hasFailed;
    return hasFailed ? options.ptxas + " does not start: " + error : "";
  }

  /// Waits for the end, or until `deadline`. Returns what went wrong, or nothing and the bytes.
  std::string finish(std::chrono::steady_clock::time_point deadline, std::string &cubin) {
    std::string error;
    llvm::sys::ProcessInfo ended;
    // The process is asked again and again whether it has ended: LLVM's wait with a limit sets an alarm, which is for
    // programs with one thread.
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
      ended = llvm::sys::Wait(process, /*SecondsToWait=*/0, &error);
      if (ended.Pid)
        break;
      if (std::chrono::steady_clock::now() > deadline) {
        end();
        return command() + " has not ended in " + std::to_string(options.mostSeconds) + " s";
      }
      std::this_thread::sleep_for(pause);
    }
    isRunning = false;
    if (ended.ReturnCode != 0) {
      std::string text = contents(said).substr(0, kMostSaid);
      return command() + (error.empty() ? " has failed" : ": " + error) + ": " +
             (text.empty() ? "it said nothing" : StringRef(text).rtrim().str());
    }
    cubin = contents(output);
    schema::CubinHeader header;
    std::string wrong = schema::readCubinHeader(cubin.data(), cubin.size(), header);
    if (wrong.empty() && header.capability != capability)
      wrong = "it is for sm_" + std::to_string(header.capability);
    return wrong.empty() ? "" : command() + " wrote no cubin: " + wrong;
  }

private:
  std::string command() const { return options.ptxas + " " + arch; }

  static std::string contents(const std::string &file) {
    auto buffer = llvm::MemoryBuffer::getFile(file);
    return buffer ? (*buffer)->getBuffer().str() : std::string();
  }

  void end() {
    (void)::kill(-process.Pid, SIGKILL);
    (void)llvm::sys::Wait(process, std::nullopt);
    isRunning = false;
  }

  const CubinOptions &options;
  const std::string arch, output, said, source;
  const unsigned capability;
  llvm::sys::ProcessInfo process;
  bool isRunning = false;
};
} // namespace

FailureOr<SmallVector<std::string>> segue::assembleCubins(ModuleOp module, StringRef ptx, const CubinOptions &options) {
  auto fail = [&](const Twine &what) -> LogicalResult {
    return emitError(module.getLoc()) << "cubins: " << what << "; --cubin=off does without (cubin=\"off\" in Python)";
  };
  WorkFolder folder;
  if (folder.error)
    return fail("no folder for ptxas can be made: " + folder.error.message());
  llvm::Error unwritten = llvm::writeToOutput(folder.file("kernels.ptx"), [&](raw_ostream &file) {
    file << ptx;
    return llvm::Error::success();
  });
  if (unwritten)
    return fail("cannot write " + llvm::toString(std::move(unwritten)));
  SmallVector<std::unique_ptr<Assembly>> assemblies;
  for (unsigned capability : options.capabilities) {
    assemblies.push_back(std::make_unique<Assembly>(options, folder, capability));
    if (std::string wrong = assemblies.back()->start(); !wrong.empty())
      return fail(wrong);
  }
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.mostSeconds);
  SmallVector<std::string> cubins;
  for (auto &assembly : assemblies)
    if (std::string wrong = assembly->finish(deadline, cubins.emplace_back()); !wrong.empty())
      return fail(wrong);
  return cubins;
}
