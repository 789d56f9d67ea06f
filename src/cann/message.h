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

// The message with every word that is a `from` replaced.
inline std::string Renamed(std::string_view message, std::span<const Rename> names) {
  const auto in_word = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::string text;
  while (!message.empty()) {
    const auto end = std::ranges::find_if_not(message, in_word);
    const std::string_view word = message.substr(0, std::max<std::size_t>(end - message.begin(), 1));
    const auto name = std::ranges::find(names, word, &Rename::from);
    text += name == names.end() ? word : name->to;
    message.remove_prefix(word.size());
  }
  return text;
}

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_MESSAGE_H_
