//===- MpiTransport.cpp - ranks that mpirun has started -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MpiShim.h"
#include "segue/runtime/Collectives/Mpi.h"
#include "segue/runtime/Error.h"
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>

namespace segue::inline runtime {

namespace {
class MpiTransport final : public Transport {
public:
  MpiTransport(const SegueMpi &mpi, double seconds) : mpi_(mpi), seconds_(seconds) {
    call([&](char *why) { return mpi_.start(&rank_, &ranks_, why); });
  }
  /// MPI is not left in peace after a call that has failed: the others would be waited for, who may never come.
  ~MpiTransport() override { failure_.empty() ? mpi_.finish() : mpi_.abandon(failure_.c_str()); }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void allReduce(float *data, int64_t count) override {
    call([&](char *why) { return mpi_.allReduce(data, count, seconds_, why); });
  }
  void reduce(float *data, int64_t count, int root) override {
    call([&](char *why) { return mpi_.reduce(data, count, root, seconds_, why); });
  }
  void reduceScatter(const float *whole, float *part, int64_t count) override {
    call([&](char *why) { return mpi_.reduceScatter(whole, part, count, seconds_, why); });
  }
  void allGather(const void *part, void *whole, uint64_t bytes) override {
    call([&](char *why) { return mpi_.allGather(part, whole, bytes, seconds_, why); });
  }
  void broadcast(void *data, uint64_t bytes, int root) override {
    call([&](char *why) { return mpi_.broadcast(data, bytes, root, seconds_, why); });
  }
  void send(const void *data, uint64_t bytes, int to) override {
    call([&](char *why) { return mpi_.send(data, bytes, to, why); });
  }
  bool goOn() override { return failure_.empty() && mpi_.goOn(); }
  void receive(void *data, uint64_t bytes, int from) override {
    call([&](char *why) { return mpi_.receive(data, bytes, from, seconds_, why); });
  }
  /// Nobody can be told otherwise: MPI has no way to end a call of another rank but to end the rank.
  void abandon(std::string_view why) noexcept override {
    mpi_.abandon(("rank " + std::to_string(rank_) + ": " + std::string(why)).c_str());
  }

  double timeoutSeconds() const override { return seconds_; }

private:
  template <typename Call> void call(Call call) {
    char why[segueMpiWhyBytes] = "";
    if (!call(why))
      return;
    failure_ = "rank " + std::to_string(rank_) + ": " + why;
    throw Error(ErrorCode::RankFailed, failure_);
  }

  const SegueMpi &mpi_;
  double seconds_;
  int rank_ = 0, ranks_ = 1;
  /// The words of the call that failed last; empty: none has.
  std::string failure_;
};
} // namespace

static const SegueMpi &openMpi() {
  static constexpr const char *library = "libSegueMPI.so";
  std::string tried;
  std::vector<std::string> places;
  if (const char *named = std::getenv("SEGUE_MPI_LIBRARY")) {
    places = {named};
  } else {
    std::error_code none;
    std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
    places = {(folder / library).string(), (folder.parent_path() / "lib" / library).string(), library};
  }
  for (const std::string &place : places) {
    // MPI looks for parts of itself by its symbols.
    if (void *handle = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) // stays for the life of the process
      if (auto *calls = reinterpret_cast<decltype(&segueMpi)>(dlsym(handle, "segueMpi")))
        return *calls();
    if (const char *why = dlerror())
      tried += (tried.empty() ? "" : "; ") + std::string(why);
  }
  throw Error(ErrorCode::Unsupported, std::string(library) + " is not there, which is built where MPI is (apt-get "
                                          "install libopenmpi-dev openmpi-bin, and build again): " + tried);
}

std::shared_ptr<Transport> mpiTransport(double timeoutSeconds) {
  return std::make_shared<MpiTransport>(openMpi(), timeoutSeconds);
}

} // namespace segue::inline runtime
