//===- PolicyCall.h - the calls of a policy as data -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A log is a list of calls with the answers they got. Each call is described once,
// by the name of its event, the function of the policy, the fields in which its
// arguments stand, and how its answer is written:
//
//   inline constexpr PolicyCall need{"need", &Widget::need, AnswerOf(), "id", "used_mb"};
//
// Recorded<Widget> (Recorded.h) makes the call and writes its event, `segue-run
// replay` reads the event and makes the call again: neither knows a policy by name,
// and what one writes the other reads. Fields are those of docs/specs/replay.md:
// sizes under a key that ends in `_mb` are MiB there and bytes here; `bytes` may be
// read from `mb`; an std::optional may be absent.
//
// A struct that is an argument has its fields in the event itself: a function
// `visitFields(CallFields &, T &)` beside the calls names them, and its key is "".
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPLAY_POLICYCALL_H
#define SEGUE_RUNTIME_REPLAY_POLICYCALL_H

#include "segue/runtime/EnumNames.h"
#include "segue/runtime/Json.h"
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace segue::inline runtime {

/// A number that may be NaN or infinite, which JSON holds as a text (JsonNumbers.h).
struct AnyNumber {
  double value = 0;
};

/// The fields of one event, in one of two directions: a writer puts the values
/// into an event, a reader takes them from one and throws what its owner throws for
/// a field that is missing or of the wrong type.
class CallFields {
public:
  virtual ~CallFields() = default;

  /// Returns true if a field that may be absent is written, or is there to be read. `isSet`
  /// says whether the writer has a value.
  virtual bool isWanted(const char *key, bool isSet) = 0;
  virtual void visit(const char *key, std::string &value) = 0;
  virtual void visit(const char *key, std::vector<std::string> &value) = 0;
  virtual void visit(const char *key, int64_t &value) = 0;
  virtual void visit(const char *key, double &value) = 0;
  virtual void visit(const char *key, bool &value) = 0;
  virtual void visit(const char *key, AnyNumber &value) = 0;
  virtual void visit(const char *key, Json &value) = 0;
  /// Visits a size, which is in MiB in the event and in bytes here.
  virtual void visitMiB(const char *key, int64_t &bytes) = 0;
  /// Refuses a value that was read: `allowed` says what may stand there.
  [[noreturn]] virtual void refuse(const char *key, const std::string &allowed) = 0;

  /// Visits a field that keeps the value it has where the event lacks it.
  template <typename T> void visitOptional(const char *key, T &value);
  /// Visits a field that is written only if it differs from a new T.
  template <typename T> void visitSparse(const char *key, T &value);
};

template <typename T> void visitField(CallFields &fields, const char *key, T &value) {
  if constexpr (std::is_enum_v<T>) {
    std::string text(nameOf(value));
    fields.visit(key, text);
    if (std::optional<T> read = fromName<T>(text)) {
      value = *read;
      return;
    }
    std::string allowed;
    for (std::string_view name : namesOf<T>())
      if (!name.empty())
        allowed += (allowed.empty() ? "" : ", ") + std::string(name);
    fields.refuse(key, allowed + " are");
  } else if constexpr (std::is_same_v<T, int64_t>) {
    if (std::string_view(key).ends_with("_mb"))
      fields.visitMiB(key, value);
    else if (std::string_view(key) == "bytes" && !fields.isWanted("bytes", true))
      fields.visitMiB("mb", value);
    else
      fields.visit(key, value);
  } else if constexpr (requires { fields.visit(key, value); }) {
    fields.visit(key, value);
  } else if constexpr (requires { value.has_value(); }) {
    if (!fields.isWanted(key, value.has_value()))
      return;
    if (!value)
      value.emplace();
    visitField(fields, key, *value);
  } else {
    visitFields(fields, value);
  }
}

template <typename T> void CallFields::visitOptional(const char *key, T &value) {
  if (isWanted(key, true))
    visitField(*this, key, value);
}

template <typename T> void CallFields::visitSparse(const char *key, T &value) {
  if (isWanted(key, value != T()))
    visitField(*this, key, value);
}

namespace call {

/// The type in which a call keeps an argument.
template <typename T> struct OwnedImpl {
  using Type = T;
};
template <> struct OwnedImpl<std::string_view> {
  using Type = std::string;
};
template <typename T> struct OwnedImpl<std::span<const T>> {
  using Type = std::vector<T>;
};
template <typename T> using Owned = typename OwnedImpl<std::remove_cvref_t<T>>::Type;

template <typename Method> struct Signature;
template <typename P, typename R, typename... A> struct Signature<R (P::*)(A...)> {
  using Policy = P;
  using Result = R;
  using Arguments = std::tuple<Owned<A>...>;
};
template <typename P, typename R, typename... A>
struct Signature<R (P::*)(A...) const> : Signature<R (P::*)(A...)> {};
template <typename P, typename R, typename... A> struct Signature<R (*)(P &, A...)> : Signature<R (P::*)(A...)> {};
template <typename P, typename R, typename... A>
struct Signature<R (*)(const P &, A...)> : Signature<R (P::*)(A...)> {};

template <typename T> T own(const T &given) { return given; }
template <typename T> std::vector<T> own(std::span<const T> given) { return {given.begin(), given.end()}; }
inline std::string own(std::string_view given) { return std::string(given); }

} // namespace call

/// The answer of a call that has none.
struct NoAnswer {
  template <typename... Any> Json operator()(const Any &...) const { return Json::object(); }
};
/// An answer of one field, which holds what the call returns.
struct AnswerAs {
  const char *key;
  template <typename Policy, typename Result> Json operator()(const Policy &, const Result &result) const {
    Json answer = Json::object();
    answer[key] = result;
    return answer;
  }
};
/// The answer that `answerOf(policy, result)` makes, a function that is found beside the policy.
struct AnswerOf {
  template <typename Policy, typename Result> Json operator()(const Policy &policy, const Result &result) const {
    return answerOf(policy, result);
  }
};

template <typename Method, typename Answer, size_t count> struct PolicyCall {
  using Policy = typename call::Signature<Method>::Policy;
  using Result = typename call::Signature<Method>::Result;
  using Arguments = typename call::Signature<Method>::Arguments;
  static_assert(std::tuple_size_v<Arguments> == count, "a key for each argument");

  std::string_view op;
  /// A member function of the policy, or a function whose first parameter is the policy.
  Method method;
  /// Makes the answer of (policy, result), or of (policy) where nothing is returned.
  Answer answer;
  std::array<const char *, count> keys;

  template <typename... Keys>
  constexpr PolicyCall(std::string_view op, Method method, Answer answer, Keys... keys)
      : op(op), method(method), answer(answer), keys{keys...} {}

  void visit(CallFields &fields, Arguments &arguments) const {
    [&]<size_t... i>(std::index_sequence<i...>) {
      (visitField(fields, keys[i], std::get<i>(arguments)), ...);
    }(std::make_index_sequence<count>());
  }

  /// Makes the call on `holder`, which is the policy or converts to it.
  template <typename Holder, typename... Given> Result make(Holder &holder, Given &&...given) const {
    return std::invoke(method, static_cast<Policy &>(holder), std::forward<Given>(given)...);
  }

  /// Makes the call, and hands its answer to `take` before anything is done with the result.
  template <typename Holder, typename Take, typename... Given>
  Result answered(Holder &holder, Take take, Given &&...given) const {
    if constexpr (std::is_void_v<Result>) {
      make(holder, std::forward<Given>(given)...);
      take(answer(static_cast<const Policy &>(holder)));
    } else {
      Result result = make(holder, std::forward<Given>(given)...);
      take(answer(static_cast<const Policy &>(holder), result));
      return result;
    }
  }
};
template <typename Method, typename Answer, typename... Keys>
PolicyCall(std::string_view, Method, Answer, Keys...) -> PolicyCall<Method, Answer, sizeof...(Keys)>;

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPLAY_POLICYCALL_H
