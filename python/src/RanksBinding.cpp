//===- RanksBinding.cpp - several ranks, as Python has them ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A transport in Python is an object with the methods of Transport
// (segue/distributed.py has one). It is given memory of the host as memoryviews, which are
// good until the call returns. Calls come on the thread of the device's queue, which takes
// the GIL for them.
//
//===----------------------------------------------------------------------===//

#include "RanksBinding.h"
#include "segue/runtime/Cuda/Nccl.h"
#include "segue/runtime/Reports/RunReport.h"
#include "segue/runtime/Error.h"
#include <dlfcn.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

/// Returns true once the interpreter has begun to end. The function that knows is in the stable ABI from Python 3.13 on; before, it
/// has another name.
static bool isPythonEnding() {
  using Answer = int (*)();
  static const auto ask = [] {
    void *found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    return reinterpret_cast<Answer>(found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return ask && ask();
}

/// Returns true while Python code can be run: a thread that wants the GIL of an interpreter that ends is ended itself.
static bool isPythonAlive() { return Py_IsInitialized() && !isPythonEnding(); }

/// Returns true if this thread has the GIL. The function that knows is in no stable ABI.
static bool hasGil() {
  using Answer = int (*)();
  static const auto ask = reinterpret_cast<Answer>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return ask && ask();
}

/// Lets the last holder free collectives without the GIL: a thread of theirs that ends first may be waiting for it.
static std::shared_ptr<Collectives> freedWithoutGil(std::shared_ptr<Collectives> made) {
  Collectives *collectives = made.get();
  return {collectives, [made = std::move(made)](Collectives *) mutable {
            if (!isPythonAlive() || !hasGil())
              return made.reset();
            nb::gil_scoped_release release;
            made.reset();
          }};
}

/// PyBUF_WRITE, whose name is in the stable ABI from Python 3.11 on.
static constexpr int kWritable = 0x200;

static nb::object view(const void *data, uint64_t bytes) {
  // Read-only memory is given as the rest is: PyTorch has no read-only tensors.
  auto *begin = static_cast<char *>(const_cast<void *>(data));
  return nb::steal(PyMemoryView_FromMemory(begin, Py_ssize_t(bytes), kWritable));
}

namespace {
class PythonTransport final : public Transport {
public:
  explicit PythonTransport(nb::object object)
      : rank_(nb::cast<int>(object.attr("rank"))), ranks_(nb::cast<int>(object.attr("ranks"))),
        seconds_(nb::cast<double>(object.attr("seconds"))), object_(std::move(object)) {
    // One that is missing would be found in the midst of a step, and looked like a rank that has failed.
    std::string missing;
    for (const char *method : {"all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "send", "receive",
                               "abandon", "look", "missed"})
      if (!nb::hasattr(object_, method))
        missing += (missing.empty() ? "" : ", ") + std::string(method);
    if (!missing.empty())
      throw Error(ErrorCode::InvalidArgument, "a transport between ranks lacks " + missing +
                                                  "; it has the methods of segue.distributed.GroupTransport");
  }
  ~PythonTransport() override {
    if (!isPythonAlive()) {
      object_.release(); // nobody is left to free it
      return;
    }
    nb::gil_scoped_acquire gil;
    object_.reset();
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void allReduce(float *data, int64_t count) override {
    call("all_reduce", [&] { return nb::make_tuple(view(data, uint64_t(count) * sizeof(float))); });
  }
  void reduce(float *data, int64_t count, int root) override {
    call("reduce", [&] { return nb::make_tuple(view(data, uint64_t(count) * sizeof(float)), root); });
  }
  void reduceScatter(const float *whole, float *part, int64_t count) override {
    uint64_t bytes = uint64_t(count) * sizeof(float);
    call("reduce_scatter", [&] { return nb::make_tuple(view(whole, bytes * uint64_t(ranks_)), view(part, bytes)); });
  }
  void allGather(const void *part, void *whole, uint64_t bytes) override {
    call("all_gather", [&] { return nb::make_tuple(view(part, bytes), view(whole, bytes * uint64_t(ranks_))); });
  }
  void broadcast(void *data, uint64_t bytes, int root) override {
    call("broadcast", [&] { return nb::make_tuple(view(data, bytes), root); });
  }
  void send(const void *data, uint64_t bytes, int to) override {
    call("send", [&] { return nb::make_tuple(view(data, bytes), to); });
  }
  void receive(void *data, uint64_t bytes, int from) override {
    call("receive", [&] { return nb::make_tuple(view(data, bytes), from); });
  }
  void abandon(std::string_view why) noexcept override {
    try {
      call("abandon", [&] { return nb::make_tuple(nb::str(why.data(), why.size())); });
    } catch (const std::exception &) { // who cannot be told waits for the transport's timeout
    }
  }
  double timeoutSeconds() const override { return seconds_; }
  std::string ended() override {
    std::string why;
    try {
      call("look", [] { return nb::make_tuple(); }, &why);
    } catch (const std::exception &error) {
      why = error.what();
    }
    return why;
  }
  std::string missed(std::string_view what) override {
    std::string why;
    try {
      call("missed", [&] { return nb::make_tuple(nb::str(what.data(), what.size())); }, &why);
    } catch (const std::exception &error) {
      why = error.what();
    }
    return why;
  }

private:
  /// Calls the method; `answer` gets what it returns, "" for None.
  template <typename Arguments> void call(const char *method, Arguments arguments, std::string *answer = nullptr) {
    if (!isPythonAlive())
      throw Error(ErrorCode::RankFailed, std::string(method) + ": Python is ending on this rank");
    nb::gil_scoped_acquire gil;
    std::string text;
    try {
      nb::tuple given = arguments();
      nb::object told = object_.attr(method)(*given);
      if (answer && !told.is_none())
        *answer = nb::cast<std::string>(told);
      return;
    } catch (nb::python_error &error) {
      text = nb::cast<std::string>(nb::str(error.value()));
    }
    throw Error(ErrorCode::RankFailed, text);
  }

  int rank_, ranks_;
  double seconds_;
  nb::object object_;
};
} // namespace

void bindRanks(nb::module_ &m) {
  nb::class_<Collectives>(m, "Collectives")
      .def_static(
          "over",
          [](const DeviceRef &device, nb::object transport, uint64_t bucketBytes, bool addsInOrder,
             const std::string &messages, bool isPipeline) {
            auto own = std::make_shared<PythonTransport>(std::move(transport));
            MessageOptions options{.collectives = {.bucketBytes = bucketBytes, .addsInOrder = addsInOrder},
                                   .way = parseMessageWay(messages),
                                   .isPipeline = isPipeline};
            std::string said;
            options.log = [&said](const std::string &text) { said = text; };
            nb::gil_scoped_release release; // threads that send take it
            std::shared_ptr<Collectives> made = joinRanks(device, std::move(own), std::move(options));
            return std::pair(freedWithoutGil(std::move(made)), said);
          },
          "device"_a, "transport"_a, "bucket_bytes"_a, "adds_in_order"_a = false, "messages"_a = "host",
          "is_pipeline"_a = false)
      .def_prop_ro("rank", &Collectives::rank)
      .def_prop_ro("ranks", &Collectives::ranks)
      .def(
          "figures",
          [](const Collectives &collectives, const DeviceRef &device, double secondsPerStep) {
            return rankFigures(*device, collectives, secondsPerStep).dump();
          },
          "device"_a, "seconds_per_step"_a)
      .def(
          "exchange",
          [](Collectives &collectives, const std::string &what, const std::string &message) {
            return collectives.exchange(what, message);
          },
          "what"_a, "message"_a, nb::call_guard<nb::gil_scoped_release>());
}

} // namespace segue::python
