//===- HeldPointer.h - what a handle holds until it is moved from -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A handle such as a Session is a pointer to what it stands for, and has none once
// it was moved from. Whoever uses it then gets an Error with the name of its class:
//
//   HeldPointer<std::unique_ptr<State>, "Stitcher"> state_;
//
// Handles over what is shared and never changes (Binary, Program, Executor, Config) need
// none of this: they have no move, so that a move copies, and stay as they were.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_HELDPOINTER_H
#define SEGUE_RUNTIME_HELDPOINTER_H

#include <algorithm>
#include <cstddef>
#include <utility>

namespace segue::inline runtime {

/// Throws InvalidArgument: a handle of that class was moved from, and used.
[[noreturn]] void failMovedFrom(const char *handle);

/// The name of a class as a template takes it.
template <size_t size> struct HandleName {
  constexpr HandleName(const char (&name)[size]) { std::copy_n(name, size, text); }
  char text[size];
};

/// A smart pointer that refuses to be followed where it is null.
template <typename Pointer, HandleName name> class HeldPointer {
public:
  HeldPointer() = default;
  HeldPointer(Pointer pointer) : pointer_(std::move(pointer)) {}

  explicit operator bool() const { return pointer_ != nullptr; }
  auto &operator*() const { return *operator->(); }
  auto *operator->() const {
    if (!pointer_) [[unlikely]]
      failMovedFrom(name.text);
    return pointer_.get();
  }
  void reset() { pointer_.reset(); }

private:
  Pointer pointer_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_HELDPOINTER_H
