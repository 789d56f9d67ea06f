// Enumerations that come from C, where a caller may pass any number for one.
#ifndef GYROGRAD_CANN_ENUM_VALUE_H_
#define GYROGRAD_CANN_ENUM_VALUE_H_

#include <cstring>

namespace gyrograd::cann {

// The number, read as bytes: reading it as the enumeration is undefined outside the enumerators' range.
template <class Enum>
int ValueOf(const Enum& argument) {
  static_assert(sizeof(Enum) == sizeof(int));
  int value = 0;
  std::memcpy(&value, &argument, sizeof(value));
  return value;
}

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_ENUM_VALUE_H_
