//===- Tensor.h - a value over shared storage -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Tensor is a small value: a description and a reference to storage. Copying
// it copies no data; giving it away is std::move, and a tensor that was given
// away and is the last over its storage may be overwritten by the program that
// received it (a donation).
//
//   auto device = Device::open("cpu");
//   Tensor x = Tensor::zeros(device, TensorDesc({8, 128}, ElementType::i64));
//   x.data<int64_t>()[0] = 65;
//   Tensor view = Tensor::wrap(device, desc, pointer, [owner] {});   // no copy
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_TENSOR_H
#define SEGUE_RUNTIME_TENSOR_TENSOR_H

#include "segue/runtime/Tensor/Storage.h"
#include "segue/runtime/Layout/TensorDesc.h"

namespace segue::inline runtime {

/// The program and output that a tensor came from: see Program/StitchReport.h.
struct TensorOrigin;

class Tensor {
public:
  /// Makes no tensor: `if (tensor)` is false.
  Tensor() = default;

  /// Takes storage for `desc` in the space it names; not
  /// initialised. Throws InvalidArgument for a bad description,
  /// DeviceOom, and Unsupported where the device lacks the space.
  static Tensor empty(const DeviceRef &device, TensorDesc desc);
  static Tensor empty(const DeviceRef &device, std::shared_ptr<const TensorDesc> desc);

  /// Returns a tensor as `empty` does, with every byte 0. On a device with queues, queued work writes them.
  static Tensor zeros(const DeviceRef &device, TensorDesc desc);

  /// Takes dense memory of the host that the caller may write at
  /// once: the way in for values from elsewhere. Not initialised.
  /// On a device of unified memory it is the device's too.
  static Tensor onHost(const DeviceRef &device, Shape shape, ElementType element);

  /// Makes a tensor of one element, in device_dram.
  static Tensor scalar(const DeviceRef &device, float value);
  static Tensor scalar(const DeviceRef &device, int64_t value);

  /// Refers to memory of the caller, without a copy; see Storage::wrap.
  /// `data` is the first element. The alignment of the result is that of the
  /// pointer, whatever `desc` says, so that `submit` knows the truth.
  static Tensor wrap(const DeviceRef &device, TensorDesc desc, void *data, std::function<void()> release,
                     bool writable = true, Space space = Space::Host);

  /// Makes a tensor of `desc` in existing storage, from
  /// desc.layout.offset on. Throws InvalidArgument if it does not fit.
  static Tensor in(std::shared_ptr<Storage> storage, std::shared_ptr<const TensorDesc> desc);

  explicit operator bool() const { return storage_ != nullptr; }

  // These throw InvalidArgument for a null tensor, as one is that was moved from; sharedDesc and storage return null then.
  // A temporary, which may be the last handle, gives copies of what is not shared: `for (int64_t extent : f().shape())`.

  const TensorDesc &desc() const & { return required(); }
  TensorDesc desc() && { return required(); }
  const std::shared_ptr<const TensorDesc> &sharedDesc() const & { return desc_; }
  std::shared_ptr<const TensorDesc> sharedDesc() && { return desc_; }
  const Shape &shape() const & { return required().shape; }
  Shape shape() && { return required().shape; }
  ElementType element() const { return required().element; }
  uint64_t elementCount() const { return required().elementCount(); }
  const std::shared_ptr<Storage> &storage() const & { return storage_; }
  std::shared_ptr<Storage> storage() && { return storage_; }
  const DeviceRef &device() const & { return required(), storage_->device(); }
  DeviceRef device() && { return required(), storage_->device(); }

  /// Returns the address of the first element; where it can be read is a matter of its space.
  std::byte *bytes() const { return required(), storage_->data() + desc_->layout.offset; }
  template <typename T> T *data() const { return reinterpret_cast<T *>(bytes()); }

  /// Returns the only element, converted; blocks until it is there.
  /// 0 on a device without bytes. Throws InvalidArgument for more
  /// than one, and the error of what should have written it.
  double item() const;

  /// Returns true if nobody else holds the storage and it
  /// is not external: what makes a moved tensor a donation.
  bool isSoleOwner() const { return storage_.use_count() == 1 && !storage_->isExternal(); }

  /// Returns the TensorDesc::hash of its description, which `submit` compares. It is kept, not computed.
  uint64_t descHash() const { return descHash_; }

  /// Returns the origin, or null if no program made the tensor. It lives as long as the device.
  const TensorOrigin *origin() const { return origin_; }

private:
  friend class PreparedProgram;
  Tensor(std::shared_ptr<Storage> storage, std::shared_ptr<const TensorDesc> desc, uint64_t descHash,
         const TensorOrigin *origin)
      : storage_(std::move(storage)), desc_(std::move(desc)), descHash_(descHash), origin_(origin) {}

  const TensorDesc &required() const {
    if (!desc_) [[unlikely]]
      failNull();
    return *desc_;
  }
  [[noreturn]] static void failNull();

  std::shared_ptr<Storage> storage_;
  std::shared_ptr<const TensorDesc> desc_;
  uint64_t descHash_ = 0;
  const TensorOrigin *origin_ = nullptr;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_TENSOR_H
