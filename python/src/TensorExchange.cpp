//===- TensorExchange.cpp - tensors to and from Python --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//

#include "TensorExchange.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

namespace nb = nanobind;
using namespace segue;

namespace {
struct TypePair {
  ElementType element;
  nb::dlpack::dtype dtype;
};

constexpr nb::dlpack::dtype dtypeOf(nb::dlpack::dtype_code code, uint8_t bits) { return {uint8_t(code), bits, 1}; }

constexpr TypePair typePairs[] = {
    {ElementType::f32, dtypeOf(nb::dlpack::dtype_code::Float, 32)},
    {ElementType::f64, dtypeOf(nb::dlpack::dtype_code::Float, 64)},
    {ElementType::bf16, dtypeOf(nb::dlpack::dtype_code::Bfloat, 16)},
    {ElementType::f16, dtypeOf(nb::dlpack::dtype_code::Float, 16)},
    {ElementType::i64, dtypeOf(nb::dlpack::dtype_code::Int, 64)},
    {ElementType::i32, dtypeOf(nb::dlpack::dtype_code::Int, 32)},
    {ElementType::i8, dtypeOf(nb::dlpack::dtype_code::Int, 8)},
    {ElementType::i1, dtypeOf(nb::dlpack::dtype_code::Bool, 8)},
};
} // namespace

static ElementType elementOf(nb::dlpack::dtype dtype) {
  for (const TypePair &pair : typePairs)
    if (pair.dtype == dtype)
      return pair.element;
  throw Error(ErrorCode::InvalidArgument, "a tensor of DLPack type code " + std::to_string(dtype.code) + " with " +
                                              std::to_string(dtype.bits) +
                                              " bits was given; Segue has f64, f32, bf16, f16, i64, i32, i8 and bool");
}

namespace {
/// The memory of others that tensors lie in, by device: first byte and size, once per tensor.
class OutsideMemory {
public:
  /// One tensor's range, as long as this lives.
  class Counted;

  uint64_t bytesFor(const Device *device) {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0, end = 0;
    for (auto at = ranges_.lower_bound({device, 0, 0}); at != ranges_.end() && std::get<0>(*at) == device; ++at) {
      uint64_t first = std::max<uint64_t>(std::get<1>(*at), end), last = std::get<1>(*at) + std::get<2>(*at);
      bytes += last > first ? last - first : 0;
      end = std::max(end, last);
    }
    return bytes;
  }

  /// It outlives every tensor.
  static OutsideMemory &ofProcess() {
    static auto *memory = new OutsideMemory;
    return *memory;
  }

private:
  using Range = std::tuple<const Device *, uintptr_t, uint64_t>;
  std::mutex mutex_;
  std::multiset<Range> ranges_;
};

class OutsideMemory::Counted {
public:
  Counted(const Device &device, const void *begin, uint64_t bytes)
      : range_(&device, reinterpret_cast<uintptr_t>(begin), bytes) {
    OutsideMemory &memory = ofProcess();
    std::lock_guard lock(memory.mutex_);
    memory.ranges_.insert(range_);
  }
  ~Counted() {
    OutsideMemory &memory = ofProcess();
    std::lock_guard lock(memory.mutex_);
    memory.ranges_.erase(memory.ranges_.find(range_));
  }
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;

private:
  Range range_;
};
} // namespace

uint64_t segue::python::outsideBytes(const Device &device) { return OutsideMemory::ofProcess().bytesFor(&device); }

Tensor segue::python::wrapArray(const DeviceRef &device, const nb::ndarray<nb::ro> &array, bool writable,
                                std::optional<uintptr_t> stream, std::optional<uint64_t> behind) {
  bool isOnGpu = array.device_type() == nb::device::cuda::value;
  if (!isOnGpu && array.device_type() != nb::device::cpu::value)
    throw Error(ErrorCode::InvalidArgument, "a tensor on DLPack device type " + std::to_string(array.device_type()) +
                                                " was given; move it to the CPU first");
  TensorDesc desc;
  desc.element = elementOf(array.dtype());
  for (size_t i = 0; i < array.ndim(); ++i) {
    desc.shape.push_back(int64_t(array.shape(i)));
    desc.layout.strides.push_back(array.stride(i));
    if (array.stride(i) < 0)
      throw Error(ErrorCode::InvalidArgument, "a tensor with a negative stride was given; make it contiguous first");
  }
  if (isDense(desc.shape, desc.layout.strides))
    desc.layout.strides.clear();

  // The last handle may go on any thread, so the reference is dropped under
  // the GIL; not at all once the interpreter is gone.
  std::shared_ptr<nb::ndarray<nb::ro>> kept(new nb::ndarray<nb::ro>(array), [](nb::ndarray<nb::ro> *array) {
    if (!nb::is_alive())
      return;
    nb::gil_scoped_acquire gil;
    delete array;
  });
  auto counted = std::make_shared<OutsideMemory::Counted>(*device, array.data(), desc.spanBytes());
  auto release = [kept = std::move(kept), counted]() mutable {
    counted.reset();
    kept.reset();
  };
  auto *data = const_cast<void *>(static_cast<const void *>(array.data()));
  if (!isOnGpu)
    return Tensor::wrap(device, std::move(desc), data, std::move(release), writable);
  Tensor tensor = Tensor::wrap(device, std::move(desc), data, std::move(release), writable, Space::DeviceDram);
  if (stream) {
    auto *owner = reinterpret_cast<void *>(*stream);
    tensor.storage()->letGoBehind(owner);
    tensor.storage()->addWrite(Fence(Queue::Compute, behind ? *behind : device->enqueueWaitForStream(owner)));
  }
  return tensor;
}

nb::tuple segue::python::describeArray(const nb::ndarray<nb::ro> &array) {
  nb::list shape;
  for (size_t i = 0; i < array.ndim(); ++i)
    shape.append(array.shape(i));
  return nb::make_tuple(nb::tuple(shape), std::string(name(elementOf(array.dtype()))));
}

/// A view of memory that the host can read, or `device` where that is another one, which `owner` keeps.
static nb::ndarray<nb::array_api> viewOf(const Tensor &tensor, nb::handle owner,
                                         int kind = nb::device::cpu::value, int number = 0) {
  std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  std::vector<int64_t> strides = tensor.desc().strides();
  nb::dlpack::dtype dtype = std::find_if(std::begin(typePairs), std::end(typePairs), [&](const TypePair &pair) {
                              return pair.element == tensor.element();
                            })->dtype;
  return nb::ndarray<nb::array_api>(tensor.bytes(), shape.size(), shape.data(), owner, strides.data(), dtype, kind,
                                    number);
}

namespace {
/// A tensor in the hands of another library, which uses it on a stream.
struct LentTensor {
  Tensor tensor;
  void *stream;

  /// The memory serves nobody else until the stream has done what it has been given by now.
  ~LentTensor() {
    try {
      if (stream)
        tensor.storage()->addWrite(Fence(Queue::Compute, tensor.device()->enqueueWaitForStream(stream)));
    } catch (const std::exception &) { // a device that failed uses nothing any more
    }
  }
};
} // namespace

bool segue::python::isThere(const Tensor &tensor) {
  const Layout &layout = tensor.desc().layout;
  return !tensor.device()->hasUnifiedMemory() && layout.space == Space::DeviceDram && layout.tile.empty() &&
         !isQuantized(layout.storage);
}

nb::tuple segue::python::deviceOfView(const Tensor &tensor) {
  return nb::make_tuple(int(nb::device::cuda::value), tensor.device()->number());
}

nb::ndarray<nb::array_api> segue::python::viewOnDevice(const Tensor &tensor, std::optional<intptr_t> stream) {
  if (!isThere(tensor))
    throw Error(ErrorCode::InvalidArgument, tensor.desc().str() + " is no strided tensor in the memory of a GPU");
  tensor.storage()->requireUsable("the tensor");
  // DLPack's numbers of streams are CUDA's handles: none is the default one, -1 asks for no order.
  constexpr intptr_t defaultStream = 1, noStream = -1;
  auto *other = reinterpret_cast<void *>(stream.value_or(defaultStream) == noStream ? 0 : stream.value_or(defaultStream));
  if (other)
    tensor.device()->letStreamWait(other, tensor.storage()->writes());
  nb::capsule owner(new LentTensor{tensor, other}, [](void *data) noexcept { delete static_cast<LentTensor *>(data); });
  return viewOf(tensor, owner, nb::device::cuda::value, tensor.device()->number());
}

nb::ndarray<nb::array_api> segue::python::exportTensor(const Tensor &given, nb::handle owner) {
  Tensor tensor = given;
  nb::object copied;
  // Tiles and codes are nothing that strides show.
  const Layout &layout = given.desc().layout;
  if (!given.device()->hasUnifiedMemory() || !layout.tile.empty() || isQuantized(layout.storage)) {
    nb::gil_scoped_release release;
    tensor = toHost(given);
  }
  if (tensor.storage() != given.storage()) {
    copied = nb::cast(tensor);
    owner = copied;
  }
  return viewOf(tensor, owner);
}

nb::object segue::python::capsuleOf(const Tensor &tensor, nb::handle owner) {
  return nb::cast(nb::ndarray<>(exportTensor(tensor, owner).handle()));
}

std::pair<nb::ndarray<nb::array_api>, bool> segue::python::viewOnDisk(const Tensor &given) {
  Tensor tensor = given;
  const Layout &layout = given.desc().layout;
  bool isThere = given.device()->isHomeSpace(layout.space) && layout.tile.empty() && !isQuantized(layout.storage);
  if (!isThere) {
    nb::gil_scoped_release release;
    auto desc = std::make_shared<TensorDesc>(given.shape(), given.element());
    desc->layout.space = Space::Disk;
    TransferOptions options;
    options.owner = given.device()->memory().intern({.value = "(of PyTorch)", .role = std::string(name(Role::Parameter))});
    tensor = given.device()->transfer().toLayout(given.device(), given, desc, options);
    wait(tensor);
  }
  nb::object owner = nb::cast(tensor);
  return {viewOf(tensor, owner), isThere};
}

nb::ndarray<nb::array_api> segue::python::placeholderFor(nb::handle owner) {
  struct Held {
    int8_t byte;
    nb::object owner;
  };
  auto *held = new Held{0, nb::borrow(owner)};
  nb::capsule capsule(held, [](void *data) noexcept { delete static_cast<Held *>(data); });
  size_t shape[] = {1};
  return nb::ndarray<nb::array_api>(&held->byte, 1, shape, capsule, nullptr, nb::dtype<int8_t>(),
                                    nb::device::cpu::value);
}
