//===- BinaryMutator.cpp - .segue files with one thing wrong --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BinaryMutator.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <xxhash.h>

namespace segue::test {

using namespace schema;

namespace {
/// Walks all fields of a file twice: to count them, then to change one. What
/// joins programs (names, roles, lists) counts more than a number does.
class Walk {
public:
  explicit Walk(std::mt19937_64 &random) : random_(random) {}

  void changeOneOf(BinaryT &root) {
    total_ = 0;
    texts_.clear();
    target_ = onlyCount;
    walk(root);
    target_ = below(std::max<uint64_t>(total_, 1));
    total_ = 0;
    isChanged_ = false;
    walk(root);
  }

private:
  static constexpr uint64_t onlyCount = UINT64_MAX;

  uint64_t below(uint64_t limit) { return random_() % limit; }

  bool take(uint64_t weight) {
    total_ += weight;
    if (isChanged_ || total_ <= target_)
      return false;
    return isChanged_ = true;
  }

  template <typename T> void number(T &field, uint64_t weight = 1) {
    if (!take(weight))
      return;
    if constexpr (std::is_same_v<T, bool>) {
      field = !field;
    } else if constexpr (std::is_enum_v<T>) {
      field = T(std::underlying_type_t<T>(below(10)));
    } else if constexpr (std::is_floating_point_v<T>) {
      const T edges[] = {0, -1, T(1e30), T(INFINITY), T(NAN)};
      field = edges[below(std::size(edges))];
    } else {
      using Bits = std::make_unsigned_t<T>;
      const T highest = std::numeric_limits<T>::max();
      const T edges[] = {0, 1, 2, T(-1), highest, T(highest - 1), T(highest / 2 + 1), T(uint64_t(1) << below(8 * sizeof(T)))};
      switch (below(4)) {
      case 0:
        field = T(Bits(field) + 1u);
        return;
      case 1:
        field = T(Bits(field) - 1u);
        return;
      case 2:
        field = T(below(16));
        return;
      default:
        field = edges[below(std::size(edges))];
      }
    }
  }

  void text(std::string &field) {
    if (target_ == onlyCount)
      texts_.push_back(field);
    if (!take(6))
      return;
    switch (below(8)) {
    case 0:
      field.clear();
      return;
    case 1:
      field += "x";
      return;
    case 2:
      field = std::string(1 + below(300), 'n');
      return;
    default: // what something else is called
      if (!texts_.empty())
        field = texts_[below(texts_.size())];
    }
  }

  template <typename T> static T copyOf(const T &item) { return item; }
  template <typename T> static std::unique_ptr<T> copyOf(const std::unique_ptr<T> &item) {
    return std::make_unique<T>(*item);
  }

  /// Takes out, repeats or exchanges items.
  template <typename T> void list(std::vector<T> &items, uint64_t weight = 3) {
    if (items.empty() || !take(weight))
      return;
    size_t at = below(items.size()), other = below(items.size());
    switch (below(4)) {
    case 0:
      items.erase(items.begin() + ptrdiff_t(at));
      return;
    case 1:
      items.insert(items.begin() + ptrdiff_t(at), copyOf(items[other]));
      return;
    case 2:
      items[at] = copyOf(items[other]);
      return;
    default:
      std::swap(items[at], items[other]);
    }
  }

  template <typename T> void numbers(std::vector<T> &items) {
    list(items, 1);
    for (T &item : items)
      number(item);
  }

  void walk(BinaryT &root) {
    number(root.version_minor);
    for (auto &option : root.options) {
      text(option->key);
      text(option->value);
    }
    list(root.kernels);
    for (auto &kernel : root.kernels)
      walk(*kernel);
    for (auto &segment : root.segments) {
      number(segment->kind);
      number(segment->alignment);
      number(segment->capability);
    }
    list(root.locations);
    for (auto &location : root.locations) {
      number(location->parent);
      number(location->line);
    }
    list(root.programs);
    for (auto &program : root.programs)
      walk(*program);
  }

  void walk(KernelT &kernel) {
    text(kernel.name);
    number(kernel.arguments);
    number(kernel.outputs);
    numbers(kernel.fixed_bytes);
    numbers(kernel.bytes_per_unit);
    number(kernel.flops_per_unit);
    number(kernel.hash);
    list(kernel.variants);
    for (auto &variant : kernel.variants) {
      number(variant->isa);
      number(variant->segment);
      number(variant->blocks);
    }
  }

  void walk(ProgramT &program) {
    text(program.name);
    for (auto *values : {&program.inputs, &program.outputs}) {
      list(*values, 6);
      for (auto &value : *values)
        walk(*value);
    }
    list(program.aliases);
    for (auto &alias : program.aliases) {
      number(alias->input);
      number(alias->output);
      number(alias->required, 2);
    }
    list(program.arenas);
    for (auto &arena : program.arenas) {
      number(arena->space);
      number(arena->bytes);
      number(arena->lower_bound);
      number(arena->alignment);
    }
    list(program.buffers);
    for (auto &buffer : program.buffers) {
      number(buffer->kind);
      number(buffer->index);
      number(buffer->offset);
      number(buffer->bytes);
      if (buffer->element)
        number(*buffer->element);
    }
    list(program.commands, 6);
    for (auto &command : program.commands) {
      number(command->location);
      walk(command->body);
    }
    list(program.save_points, 6);
    for (auto &point : program.save_points)
      walk(*point);
  }

  void walk(SavePointT &point) {
    number(point.value, 3);
    number(point.aliases_input, 3);
    number(point.backward_input, 3);
    number(point.backward_order, 3);
    number(point.bytes);
    number(point.recompute_flops);
    text(point.block);
    number(point.recompute_program, 3);
    number(point.recompute_output, 3);
  }

  void walk(ValueT &value) {
    text(value.name);
    number(value.role, 6);
    text(value.of);
    number(value.location);
    numbers(value.desc->shape);
    number(value.desc->element, 2);
    if (value.desc->layout)
      walk(*value.desc->layout);
    list(value.alternatives);
    for (auto &layout : value.alternatives)
      walk(*layout);
  }

  void walk(LayoutT &layout) {
    number(layout.space);
    numbers(layout.strides);
    numbers(layout.tile);
    number(layout.storage);
    number(layout.offset);
    number(layout.alignment);
    number(layout.zero_points);
  }

  void walk(const std::unique_ptr<ViewT> &view) {
    if (!view)
      return;
    number(view->buffer);
    number(view->offset);
    number(view->element);
    numbers(view->shape);
    numbers(view->strides);
    numbers(view->tile);
    number(view->storage);
    number(view->zero_points);
  }

  void walk(CommandBodyUnion &body) {
    if (LaunchT *launch = body.AsLaunch()) {
      number(launch->kernel);
      numbers(launch->args);
      numbers(launch->offsets);
      number(launch->range, 3);
      number(launch->grain);
    } else if (MatmulT *matmul = body.AsMatmul()) {
      for (auto *view : {&matmul->a, &matmul->b, &matmul->c, &matmul->bias})
        walk(*view);
      number(matmul->accumulate);
      number(matmul->b_transposed);
    } else if (AttentionT *attention = body.AsAttention()) {
      for (auto *view : {&attention->q, &attention->k, &attention->v, &attention->mask, &attention->seed,
                         &attention->step, &attention->out, &attention->lse})
        walk(*view);
      number(attention->scale);
      number(attention->causal);
      number(attention->dropout);
      number(attention->dropout_id);
    } else if (AttentionGradT *grad = body.AsAttentionGrad()) {
      for (auto *view : {&grad->q, &grad->k, &grad->v, &grad->mask, &grad->seed, &grad->step, &grad->out, &grad->lse,
                         &grad->grad_out, &grad->grad_q, &grad->grad_k, &grad->grad_v})
        walk(*view);
      number(grad->dropout);
      number(grad->dropout_id);
    } else if (LibraryCallT *call = body.AsLibraryCall()) {
      text(call->operation);
      for (auto *views : {&call->reads, &call->writes})
        for (auto &view : *views)
          walk(view);
      numbers(call->numbers);
    } else if (ToLayoutT *copy = body.AsToLayout()) {
      walk(copy->source);
      walk(copy->target);
    } else if (FillT *fill = body.AsFill()) {
      number(fill->buffer);
      numbers(fill->pattern);
    } else if (SetPhaseT *set = body.AsSetPhase()) {
      number(set->phase, 3);
    } else if (BlockBeginT *begin = body.AsBlockBegin()) {
      text(begin->name);
    } else if (SaveT *save = body.AsSave()) {
      number(save->output, 3);
    } else if (RestoreT *restore = body.AsRestore()) {
      number(restore->input, 3);
    } else if (FreeT *free = body.AsFree()) {
      number(free->input, 3);
    }
  }

  std::mt19937_64 &random_;
  std::vector<std::string> texts_;
  uint64_t total_ = 0, target_ = 0;
  bool isChanged_ = false;
};
} // namespace

namespace {
/// Looks at every vector of 8-byte numbers that the schemas have.
class AlignmentCheck {
public:
  bool holds(const schema::Binary &root) {
    each(root.kernels(), [&](const schema::Kernel &kernel) {
      see(kernel.fixed_bytes());
      see(kernel.bytes_per_unit());
    });
    each(root.programs(), [&](const schema::Program &program) {
      for (const auto *values : {program.inputs(), program.outputs()})
        each(values, [&](const schema::Value &value) {
          see(value.desc()->shape());
          see(value.desc()->layout());
          each(value.alternatives(), [&](const schema::Layout &layout) { see(&layout); });
        });
      each(program.commands(), [&](const schema::Command &command) { see(command); });
    });
    return all_;
  }

private:
  template <typename Tables, typename See> static void each(const Tables *tables, See see) {
    for (uint32_t i = 0; tables && i < tables->size(); ++i)
      see(*tables->Get(i));
  }
  template <typename T> void see(const flatbuffers::Vector<T> *numbers) {
    all_ &= !numbers || reinterpret_cast<uintptr_t>(numbers->data()) % sizeof(T) == 0;
  }
  void see(const schema::Layout *layout) {
    if (layout)
      see(layout->strides());
  }
  void see(std::initializer_list<const schema::View *> views) {
    for (const schema::View *view : views)
      if (view) {
        see(view->shape());
        see(view->strides());
      }
  }
  void see(const schema::Command &command) {
    if (const auto *launch = command.body_as_Launch())
      see(launch->offsets());
    if (const auto *m = command.body_as_Matmul())
      see({m->a(), m->b(), m->c(), m->bias()});
    if (const auto *a = command.body_as_Attention())
      see({a->q(), a->k(), a->v(), a->mask(), a->seed(), a->step(), a->out(), a->lse()});
    if (const auto *g = command.body_as_AttentionGrad())
      see({g->q(), g->k(), g->v(), g->mask(), g->seed(), g->step(), g->out(), g->lse(), g->grad_out(), g->grad_q(),
           g->grad_k(), g->grad_v()});
    if (const auto *copy = command.body_as_ToLayout())
      see({copy->source(), copy->target()});
    if (const auto *call = command.body_as_LibraryCall()) {
      see(call->numbers());
      for (const auto *views : {call->reads(), call->writes()})
        each(views, [&](const schema::View &view) { see({&view}); });
    }
  }

  bool all_ = true;
};
} // namespace

bool areNumbersAligned(const schema::Binary &root) { return AlignmentCheck().holds(root); }

std::optional<TestFile> readTables(std::span<const std::byte> file) {
  uint64_t flatBufferBytes;
  if (file.size() < 40)
    return std::nullopt;
  std::memcpy(&flatBufferBytes, file.data() + file.size() - 16, sizeof flatBufferBytes);
  auto *data = reinterpret_cast<const uint8_t *>(file.data());
  if (flatBufferBytes > file.size() - 32 || flatBufferBytes < 8 ||
      uint64_t(flatbuffers::GetPrefixedSize(data)) + 4 > flatBufferBytes)
    return std::nullopt;
  flatbuffers::Verifier verifier(data, size_t(flatBufferBytes), 64, flatbuffers::uoffset_t(flatBufferBytes / 4));
  if (!VerifySizePrefixedBinaryBuffer(verifier) || !areNumbersAligned(*GetSizePrefixedBinary(data)))
    return std::nullopt;
  TestFile result;
  GetSizePrefixedBinary(data)->UnPackTo(&result.root);
  for (const auto &program : result.root.programs)
    for (const auto &command : program->commands)
      if (!command->body.value)
        return std::nullopt; // of a kind that does not exist: it could not be written again
  for (const auto &segment : result.root.segments) {
    if (segment->offset > file.size() || segment->length > file.size() - segment->offset)
      return std::nullopt;
    auto bytes = file.subspan(segment->offset, segment->length);
    result.segments.emplace_back(bytes.begin(), bytes.end());
  }
  return result;
}

/// Offsets and hashes of segments are found again, those of programs too.
static Bytes sealed(TestFile &file) {
  for (size_t i = 0; i < file.segments.size(); ++i) {
    file.root.segments[i]->length = file.segments[i].size();
    file.root.segments[i]->hash = XXH3_64bits(file.segments[i].data(), file.segments[i].size());
  }
  return file.serialize();
}

/// Changes a byte of each cubin at times, mostly one that says where its parts lie.
static void changeCubins(TestFile &file, std::mt19937_64 &random) {
  constexpr size_t headerBytes = 64;
  for (size_t i = 0; i < file.segments.size(); ++i) {
    Bytes &bytes = file.segments[i];
    if (file.root.segments[i]->kind != SegmentKind::cubin || bytes.empty() || random() % 2)
      continue;
    size_t range = random() % 2 ? bytes.size() : std::min(bytes.size(), headerBytes);
    bytes[random() % range] ^= std::byte(1u << random() % 8);
  }
}

Bytes mutate(TestFile file, std::mt19937_64 &random) {
  Walk walk(random);
  for (uint64_t changes = 1 + random() % 3; changes--;)
    walk.changeOneOf(file.root);
  changeCubins(file, random);
  return sealed(file);
}

Bytes replaceKernels(TestFile file, const Bytes &code) {
  for (size_t i = 0; i < file.segments.size(); ++i)
    if (file.root.segments[i]->kind == SegmentKind::elf)
      file.segments[i] = code;
  for (auto &kernel : file.root.kernels)
    for (auto &variant : kernel->variants)
      variant->symbol = kernel->hash < 16 ? "failing" : "nothing";
  return sealed(file);
}

} // namespace segue::test
