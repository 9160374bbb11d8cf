//===- ProgressLine.cpp - how far a run is, on a terminal -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ProgressLine.h"
#include "segue/runtime/Mebibytes.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

namespace segue::tool {

template <typename... Args> static std::string formatted(const char *format, Args... args) {
  char text[128];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

/// Hours, minutes and seconds as a clock has them.
static std::string clock(double seconds) {
  auto whole = int64_t(std::ceil(std::min(seconds, 1e9)));
  long long hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours ? formatted("%lld:%02lld:%02lld", hours, minutes, rest) : formatted("%lld:%02lld", minutes, rest);
}

std::string progressText(const ProgressState &state, size_t width) {
  std::vector<std::string> parts{formatted("%lld/%lld", (long long)state.step, (long long)state.steps)};
  if (state.secondsLeft > 0)
    parts.push_back(clock(state.secondsLeft) + " left");
  if (!state.speed.empty())
    parts.push_back(state.speed);
  if (state.hasLoss)
    parts.push_back(formatted("loss %.5g", state.loss));
  if (state.capBytes)
    parts.push_back(formatted("%.0f of %.0f MiB", double(state.peakBytes) / bytesPerMiB, double(state.capBytes) / bytesPerMiB));
  else if (state.peakBytes)
    parts.push_back(formatted("%.0f MiB", double(state.peakBytes) / bytesPerMiB));
  std::string text;
  for (const std::string &part : parts)
    if (size_t room = text.empty() ? 0 : 2; text.size() + room + part.size() <= width)
      text += (room ? ", " : "") + part;
    else
      break;
  constexpr size_t cells = 20;
  if (text.size() + cells + 3 > width)
    return text;
  size_t done = state.steps ? size_t(double(cells) * double(state.step) / double(state.steps)) : 0;
  std::string bar(std::min(done, cells), '=');
  if (bar.size() < cells)
    bar += '>';
  bar.resize(cells, ' ');
  return "[" + bar + "] " + text;
}

ProgressLine::ProgressLine(bool isWanted) {
  const char *terminal = std::getenv("TERM");
  isDrawn_ = isWanted && ::isatty(STDERR_FILENO) && terminal && *terminal && std::string_view(terminal) != "dumb";
  isAmongOutput_ = isDrawn_ && ::isatty(STDOUT_FILENO);
}

void ProgressLine::draw(const ProgressState &state) {
  auto now = std::chrono::steady_clock::now();
  if (!isDrawn_ || (isVisible_ && now - last_ < std::chrono::milliseconds(100)))
    return;
  last_ = now;
  isVisible_ = true;
  winsize size = {};
  size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
  // One column stays free: a terminal goes to the next line when the last is filled.
  std::fprintf(stderr, "\r\x1b[K%s", progressText(state, width - 1).c_str());
  std::fflush(stderr);
}

void ProgressLine::erase() {
  if (!isVisible_)
    return;
  isVisible_ = false;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

void ProgressLine::eraseForOutput() {
  if (isAmongOutput_)
    erase();
}

} // namespace segue::tool
