//===- KeptValues.cpp - what a load writes over, as it was ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KeptValues.h"
#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstring>
#include <utility>

namespace segue::inline runtime {

KeptValues::KeptValues(const DeviceRef &device, std::span<const Tensor> values) {
  try {
    for (const Tensor &value : values) {
      TensorDesc desc = value.desc();
      // A load may not take more memory than the budget; the disk has room.
      desc.layout.space = device->hasSpace(Space::Disk) ? Space::Disk : Space::Host;
      kept_.push_back({copyTo(device, value, desc), value});
    }
    for (const Kept &each : kept_)
      wait(each.copy);
    isWhole_ = true;
  } catch (const Error &error) {
    kept_.clear();
    if (error.code() != ErrorCode::DeviceOom)
      throw;
  }
}

bool KeptValues::putBack() const {
  if (!isWhole_)
    return false;
  try {
    for (const Kept &each : kept_)
      copyInto(each.copy, each.value);
    for (const Kept &each : kept_)
      wait(each.value);
  } catch (const Error &) {
    return false;
  }
  return true;
}

KeptValues SessionState::keep(std::span<const Tensor> values) {
  if (values.empty() || !torn.empty() || lostState())
    return {};
  try {
    flush(); // the values that a step left on the device
  } catch (const Error &) {
    return {}; // they are lost: nothing whole is written over
  }
  return KeptValues(device, values);
}

bool haveEqualBytes(const Tensor &a, const Tensor &b) {
  if (!a.device()->hasBytes())
    return true;
  Tensor x = toHost(a), y = toHost(b);
  return std::memcmp(x.bytes(), y.bytes(), x.desc().spanBytes()) == 0;
}

void SessionState::assignAll(std::vector<Tensor> sources, const std::vector<FileEntry> &files, TensorMap states,
                               const std::function<void()> &checkSources) {
  if (ranks)
    ranks->valuesGiven();
  if (torn.empty() && !lostState())
    makeDeferred(); // an update that waits is of what is here, and not of what comes
  deferred.reset();
  std::vector<Tensor> fresh(values.size()), from, into;
  loading = &fresh;
  struct Scope {
    const std::vector<Tensor> *&loading;
    ~Scope() { loading = nullptr; }
  } scope{loading};
  auto livesInFile = [&](size_t slot) { return !files.empty() && files[slot].file; };
  for (size_t slot = 0; slot < values.size(); ++slot) {
    Tensor source = std::move(sources[slot]);
    if (livesInFile(slot)) {
      fresh[slot] = std::move(source);
    } else if (!source || (streamed->isInSlab(slot)
                               ? haveEqualBytes(source, streamed->dequantized(device, slot))
                               : streamed->isBacked(slot) && haveEqualBytes(source, values[slot]))) {
      continue; // it stays
    } else if (!values[slot] || !values[slot].storage()->isWritable()) {
      fresh[slot] = placed(slot, source);
      giveBack(source);
      wait(fresh[slot]);
    } else {
      from.push_back(std::move(source));
      into.push_back(values[slot]);
    }
  }
  bool hasStates = !states.empty();
  for (auto &[key, state] : states) {
    from.push_back(std::move(state));
    into.push_back(optimizerState.find(key)->second);
  }
  states.clear();
  KeptValues kept = keep(into);
  // Nothing has changed so far.
  std::string before = std::exchange(torn, loadTorn);
  try {
    streamed->replacedAll();
    if (residency && hasStates)
      residency->homesWritten(); // of the state before
    for (size_t i = 0; i < into.size(); ++i) {
      copyInto(from[i], into[i]);
      giveBack(from[i]);
      wait(into[i]);
      from[i] = Tensor(); // pages of a mapped file are given up
    }
    checkSources();
  } catch (...) {
    for (const Tensor &source : from)
      if (source)
        giveBack(source);
    if (kept.putBack())
      torn = std::move(before);
    throw;
  }
  // Nothing fails from here on.
  for (size_t slot = 0; slot < values.size(); ++slot) {
    if (!fresh[slot])
      continue;
    values[slot] = std::move(fresh[slot]);
    if (livesInFile(slot))
      streamed->setFile(slot, files[slot].file, files[slot].name);
    else
      streamed->replaced(slot);
  }
  torn = std::move(before);
}

} // namespace segue::inline runtime
