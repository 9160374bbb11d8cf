//===- RunConverter.cpp - converts runs of elements -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RunConverter.h"
#include <algorithm>
#include <atomic>
#include <cstring>

namespace segue::inline runtime {

/// The number of elements that are converted at a time: their f32 stay in the first-level cache.
static constexpr int64_t blockElements = 512;

RunConverter::RunConverter(ElementType source, StorageType sourceStorage, ElementType target, StorageType targetStorage,
                           bool dropsZeroPoints, const ElementKernels &kernels)
    : kernels_(&kernels), sourceBytes_(uint8_t(storedByteSize(source, sourceStorage))),
      targetBytes_(uint8_t(storedByteSize(target, targetStorage))) {
  auto from = size_t(source), to = size_t(target);
  bool sourceRows = isRowStorage(sourceStorage), targetRows = isRowStorage(targetStorage);
  decoder_ = sourceRows ? uint8_t(sourceStorage) - 1 : 0;
  encoder_ = targetRows ? uint8_t(targetStorage) - 1 : 0;
  if (sourceRows && targetRows) {
    keepsRows_ = sourceStorage == targetStorage;
    kind_ = keepsRows_ && !dropsZeroPoints ? Kind::Move : Kind::Requantize;
  } else if (sourceRows) {
    kind_ = Kind::Dequantize;
    fromFloat_ = isFloat(target) ? kernels.fromFloat[to] : kernels.roundFloat[to];
  } else if (targetRows) {
    kind_ = Kind::Quantize;
    toFloat_ = kernels.toFloat[from];
  } else if (source != target) {
    kind_ = Kind::Cast;
    throughInt64_ = !isFloat(source) && !isFloat(target);
    throughDouble_ = source == ElementType::f64 || target == ElementType::f64;
    toDouble_ = kernels.toDouble[from];
    fromDouble_ = kernels.fromDouble[to];
    toFloat_ = kernels.toFloat[from];
    fromFloat_ = kernels.fromFloat[to];
    toInt64_ = kernels.toInt64[from];
    fromInt64_ = kernels.fromInt64[to];
  }
}

/// Returns `values` of the rows of a run, side by side: where they lie, or in `buffer`.
static const float *gatherRows(int64_t count, const float *values, RowIndex row, float *buffer) {
  if (!values || row.step == 1)
    return values ? values + row.first : nullptr;
  for (int64_t i = 0; i < count; ++i)
    buffer[i] = values[row.first + i * row.step];
  return buffer;
}

const float *RunConverter::load(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row,
                                float *buffer) const {
  if (kind_ == Kind::Quantize) {
    if (!toFloat_)
      return reinterpret_cast<const float *>(source);
    toFloat_(count, source, buffer);
    return buffer;
  }
  auto *codes = reinterpret_cast<const uint8_t *>(source);
  if (row.step == 0) {
    float zeroPoint = rows.sourceZeroPoints ? rows.sourceZeroPoints[row.first] : 0.0f;
    kernels_->decode[decoder_](count, codes, rows.sourceScales[row.first], zeroPoint, buffer);
  } else {
    float scales[blockElements], zeroPoints[blockElements];
    kernels_->decodeEach[decoder_](count, codes, gatherRows(count, rows.sourceScales, row, scales),
                                   gatherRows(count, rows.sourceZeroPoints, row, zeroPoints), buffer);
  }
  return buffer;
}

void RunConverter::encode(int64_t count, const float *values, const RowParameters &rows, RowIndex row,
                          uint8_t *codes) const {
  if (row.step == 0) {
    kernels_->encode[encoder_](count, values, rows.targetScales[row.first], codes);
    return;
  }
  float scales[blockElements];
  kernels_->encodeEach[encoder_](count, values, gatherRows(count, rows.targetScales, row, scales), codes);
}

void RunConverter::requantize(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row,
                              uint8_t *codes) const {
  auto keeps = [&](int64_t i) { return keepsRows_ && rows.sourceZeroPoints[row.first + i * row.step] == 0.0f; };
  if (row.step == 0 && keeps(0)) {
    std::memcpy(codes, source, size_t(count));
    return;
  }
  alignas(64) float buffer[blockElements];
  encode(count, load(count, source, rows, row, buffer), rows, row, codes);
  for (int64_t i = 0; row.step != 0 && i < count; ++i)
    if (keeps(i))
      codes[i] = uint8_t(source[i]);
}

void RunConverter::run(int64_t count, const std::byte *source, std::byte *target, const RowParameters &rows,
                       RowIndex row) const {
  if (kind_ == Kind::Move) {
    std::memcpy(target, source, size_t(count) * sourceBytes_);
    return;
  }
  // One kernel is enough from or to the type between.
  if (throughDouble_) { // one side is that type
    if (toDouble_)
      toDouble_(count, source, reinterpret_cast<double *>(target));
    else
      fromDouble_(count, reinterpret_cast<const double *>(source), target);
    return;
  }
  if (kind_ == Kind::Cast && throughInt64_ && !(toInt64_ && fromInt64_)) {
    if (toInt64_)
      toInt64_(count, source, reinterpret_cast<int64_t *>(target));
    else
      fromInt64_(count, reinterpret_cast<const int64_t *>(source), target);
    return;
  }
  if (kind_ == Kind::Cast && !throughInt64_ && !(toFloat_ && fromFloat_)) {
    if (toFloat_)
      toFloat_(count, source, reinterpret_cast<float *>(target));
    else
      fromFloat_(count, reinterpret_cast<const float *>(source), target);
    return;
  }
  for (int64_t done = 0; done < count; done += blockElements) {
    int64_t block = std::min(blockElements, count - done);
    const std::byte *from = source + done * sourceBytes_;
    std::byte *to = target + done * targetBytes_;
    RowIndex at{row.first + done * row.step, row.step};
    if (kind_ == Kind::Requantize) {
      requantize(block, from, rows, at, reinterpret_cast<uint8_t *>(to));
    } else if (kind_ == Kind::Dequantize && !fromFloat_) {
      load(block, from, rows, at, reinterpret_cast<float *>(to));
    } else if (throughInt64_) {
      alignas(64) int64_t buffer[blockElements];
      toInt64_(block, from, buffer);
      fromInt64_(block, buffer, to);
    } else {
      alignas(64) float buffer[blockElements];
      if (kind_ == Kind::Cast) {
        toFloat_(block, from, buffer);
        fromFloat_(block, buffer, to);
      } else if (kind_ == Kind::Dequantize) {
        fromFloat_(block, load(block, from, rows, at, buffer), to);
      } else {
        encode(block, load(block, from, rows, at, buffer), rows, at, reinterpret_cast<uint8_t *>(to));
      }
    }
  }
}

static void raise(float &scale, uint32_t bits, bool shared) {
  auto &largest = reinterpret_cast<uint32_t &>(scale);
  if (!shared) {
    largest = std::max(largest, bits);
    return;
  }
  std::atomic_ref atomic(largest);
  uint32_t seen = atomic.load(std::memory_order_relaxed);
  while (seen < bits && !atomic.compare_exchange_weak(seen, bits, std::memory_order_relaxed))
    ;
}

void RunConverter::scan(int64_t count, const std::byte *source, const RowParameters &rows, RowIndex row, bool finite,
                        bool shared) const {
  alignas(64) float buffer[blockElements];
  for (int64_t done = 0; done < count; done += blockElements) {
    int64_t block = std::min(blockElements, count - done);
    RowIndex at{row.first + done * row.step, row.step};
    const float *values = load(block, source + done * sourceBytes_, rows, at, buffer);
    if (row.step == 0) {
      raise(rows.targetScales[row.first], (finite ? kernels_->largestFinite : kernels_->largest)(block, values),
            shared);
    } else if (row.step == 1 && !shared) {
      auto *largest = reinterpret_cast<uint32_t *>(rows.targetScales + at.first);
      (finite ? kernels_->largestFiniteEach : kernels_->largestEach)(block, values, largest);
    } else {
      for (int64_t i = 0; i < block; ++i)
        raise(rows.targetScales[at.first + i * at.step],
              (finite ? kernels_->largestFinite : kernels_->largest)(1, values + i), shared);
    }
  }
}

} // namespace segue::inline runtime
