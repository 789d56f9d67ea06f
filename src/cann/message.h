// Messages of the C++ interface in another interface's words.
#ifndef GYROGRAD_CANN_MESSAGE_H_
#define GYROGRAD_CANN_MESSAGE_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gyrograd::cann {

// An argument's name in the C++ interface, and in the other one.
struct Rename {
  std::string_view from;
  std::string_view to;
};

// The message with each `from` that stands as a whole, not inside a word, replaced; of several the longest.
inline std::string Renamed(std::string_view message, std::span<const Rename> names) {
  const auto in_word = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::string text;
  while (!message.empty()) {
    const Rename* best = nullptr;
    for (const Rename& name : names) {
      const bool whole =
          message.starts_with(name.from) && (message.size() == name.from.size() || !in_word(message[name.from.size()]));
      if (whole && (best == nullptr || name.from.size() > best->from.size())) best = &name;
    }
    const auto word = static_cast<std::size_t>(std::ranges::find_if_not(message, in_word) - message.begin());
    const std::size_t size = best != nullptr ? best->from.size() : std::max<std::size_t>(word, 1);
    text += best != nullptr ? best->to : message.substr(0, size);
    message.remove_prefix(size);
  }
  return text;
}

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_MESSAGE_H_
