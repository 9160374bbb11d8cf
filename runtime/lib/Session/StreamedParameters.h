//===- StreamedParameters.h - parameters that live on the host --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Says which parameters of a session come to the device with their block and
// lie in the host's memory, or in a file, between two uses: those that every
// program touches within one block, and that are no tie between two names. All
// others stay on the device. The session holds a tensor for each as before; for
// one that lives in a file it is the mapped file.
//
// A program of the optimizer phase that does not keep to blocks is no reason to
// stay: the session brings what it updates, and saves it back.
//
// Weight Stagehand brings them (WeightStreamer), or a plan for all of the step
// (Residency). States of optimizers and gradients come by the plan, whoever
// brings parameters, or without a plan where State Stagehand has a Residency for them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_STREAMEDPARAMETERS_H
#define SEGUE_RUNTIME_LIB_SESSION_STREAMEDPARAMETERS_H

#include "OptimizerPlan.h"
#include <set>

namespace segue::inline runtime {

class StreamedParameters {
public:
  /// Finds the streamed parameters. `streamer` and `residency` may be null. With
  /// `isPlanned`, parameters come by a plan, unless there is a streamer. All arguments that
  /// are referred to outlive this; `values` are the session's, by slot.
  /// Says which rank alone has a parameter that the streamer gathers; null: none does. With it, optimizers are given
  /// what they update at once, as that is another part on every rank.
  using RankOf = std::function<std::optional<int>(size_t slot)>;
  StreamedParameters(WeightStreamer *streamer, Residency *residency, bool isPlanned, const std::vector<Module> &modules,
                     const std::vector<OptimizerPlan> &plans, const ParameterTable &table,
                     const std::vector<Tensor> &values, RankOf rankOf = nullptr);
  StreamedParameters(const StreamedParameters &) = delete;
  StreamedParameters &operator=(const StreamedParameters &) = delete;

  /// Returns true if parameters come by a plan.
  bool arePlanned() const { return arePlanned_; }
  /// Notes the programs of the same modules for batches of other extents. Called between two steps. Throws Unsupported,
  /// with nothing noted, where the ring cannot serve them.
  void addSizes(const std::vector<Module> &modules, const std::vector<Module> &like);
  /// Makes states and gradients come by block from now on. Called between two steps.
  void bringStates(Residency &residency, const std::vector<Module> &modules, const std::vector<OptimizerPlan> &plans) {
    residency_ = &residency;
    findResidents(modules, plans);
  }
  bool has(size_t slot) const { return !streamed_.empty() && streamed_[slot]; }
  /// Returns true if the program gets a streamed parameter by block.
  bool comesByBlock(const Program &program) const;
  /// Returns true if states and gradients of the program come by block, too: input `input`
  /// is one.
  bool comesByBlock(const Program &program, size_t input) const;
  /// Returns memory of the host for a streamed parameter, page-locked where there is any
  /// left and Conductor grants it. It is not initialised.
  Tensor allocate(const DeviceRef &device, size_t slot);

  /// Returns true if the parameter can live in a file: a frozen one can be read from it
  /// again and again, which is checked each time. Codes that products read are made of the file's floats once, and
  /// live on the host.
  bool canLiveInFile(size_t slot) const {
    const ParameterInfo &info = table_.infos()[slot];
    return streamer_ && has(slot) && !info.trained && !isQuantized(info.desc.layout.storage);
  }
  /// Makes the parameter live in the file under `name`; its value is the tensor mapped from
  /// there.
  void setFile(size_t slot, std::shared_ptr<const SafetensorsFile> file, std::string name);
  /// Puts tensors that stand for them in the place of the frozen parameters that
  /// the slab holds, but for those that another rank has; their bytes are the slab's.
  void takeFromSlab(const DeviceRef &device, std::vector<Tensor> &values,
                    const std::function<bool(size_t slot)> &isElsewhere);
  /// Sets how to read such a parameter as it was before it was quantised: that serves where
  /// the slab is damaged.
  void setOriginal(size_t slot, std::function<Tensor()> read);
  bool isInSlab(size_t slot) const;
  /// Returns true for a parameter of the slab that comes by no block, and was served when the
  /// session was made.
  bool wasServed(size_t slot) const { return served_.contains(slot); }
  /// Returns its value, dequantised, which is made on the host each time that it is read. It keeps the slab.
  DeferredTensor dequantizing(const DeviceRef &device, size_t slot) const;
  /// Returns its value on the host, dequantised; kept until the next call for another.
  const Tensor &dequantized(const DeviceRef &device, size_t slot);
  bool isBacked(size_t slot) const { return backings_.contains(slot); }
  /// Returns a number that stands for the bytes that such a parameter has in a file or in the slab, and for no others
  /// that it had before; 0 for a parameter that lives elsewhere.
  uint64_t backingNumber(size_t slot) const;
  /// Returns the files in which parameters live.
  std::set<std::shared_ptr<const SafetensorsFile>> files() const;
  /// Notes that it has another tensor for its value from now on, in memory of the host.
  void replaced(size_t slot);
  /// Notes that all of them may have another tensor.
  void replacedAll();

  /// Returns a tensor that stands for a parameter whose bytes come from elsewhere; reading it is the error `why`.
  Tensor standIn(const DeviceRef &device, size_t slot, const std::string &why) const;

  /// Gives the ring back until the next prepare().
  void release();
  /// Makes sources known and takes the ring. Called before a step or an evaluation. Throws
  /// what WeightStreamer::start throws.
  void prepare();
  /// Brings the values of the last step to the host. Throws TransferFailed.
  void flush();
  /// Returns true if the value of a tensor of the host, a parameter or a state, is on the
  /// device, whatever became of its copies home.
  bool isOnDevice(const Tensor &home) const;
  /// Throws SourceChanged if what lives in a file is not there any more.
  void checkFiles() const;
  /// Blocks until programs have written what they change.
  void wait();
  /// Notes that the value of a slot, flushed before, was written on the host.
  void written(size_t slot);

private:
  std::optional<WeightSource> sourceOf(size_t slot) const;
  WeightStreamer::Sources sourcesOf(size_t module) const;

  void giveHomeBack(size_t slot);
  void findResidents(const std::vector<Module> &modules, const std::vector<OptimizerPlan> &plans);

  WeightStreamer *streamer_;
  Residency *residency_;
  bool arePlanned_;
  const ParameterTable &table_;
  const std::vector<Tensor> &values_;
  RankOf rankOf_;
  std::vector<bool> streamed_;
  /// Says which inputs of the optimizer's programs come by block, where there is a `residency_`.
  std::map<const Program *, std::vector<bool>> byBlock_;
  struct Backing {
    /// The file; null if it lives in the slab.
    std::shared_ptr<const SafetensorsFile> file;
    std::string name;
    uint64_t number = 0;
  };
  std::map<size_t, Tensor> dequantized_;
  std::set<size_t> served_;
  /// The slots whose page-locked memory is reserved.
  std::set<size_t> homes_;
  std::map<size_t, Backing> backings_;
  uint64_t lastBacking_ = 0;
  /// True if the streamer knows other sources.
  bool isStale_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_STREAMEDPARAMETERS_H
