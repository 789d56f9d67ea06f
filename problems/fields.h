// A problem as one line of text, "operator:key=value,key=value", written and read by the same list of fields.
//
// A problem type P gives that list as
//
//   template <class Visitor, class P> void VisitFields(Visitor& visit, P& problem);
//
// which calls visit(key, value, default) for each field. What has its default is not written.
#ifndef GYROGRAD_PROBLEMS_FIELDS_H_
#define GYROGRAD_PROBLEMS_FIELDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "gyrograd/execution.h"
#include "gyrograd/norm_rope_concat.h"
#include "gyrograd/rotary.h"
#include "problems/layout.h"

namespace gyrograd::problems {

// ---- Values

// "2x4096x32x128".
bool ParseValue(std::string_view text, Shape* value);
bool ParseValue(std::string_view text, std::int64_t* value);
bool ParseValue(std::string_view text, std::uint64_t* value);
bool ParseValue(std::string_view text, int* value);
bool ParseValue(std::string_view text, bool* value);  // 0 or 1
bool ParseValue(std::string_view text, DType* value);
bool ParseValue(std::string_view text, RotaryMode* value);
bool ParseValue(std::string_view text, NormType* value);
bool ParseValue(std::string_view text, ConcatOrder* value);
bool ParseValue(std::string_view text, CpuTarget* value);
bool ParseValue(std::string_view text, Layout* value);

// Of values with names: "; it must be " and the names.
std::string Choices(const DType*);
std::string Choices(const RotaryMode*);
std::string Choices(const NormType*);
std::string Choices(const ConcatOrder*);
std::string Choices(const CpuTarget*);
std::string Choices(const Layout*);
inline std::string Choices(const void*) { return std::string(); }

inline std::string ValueText(const Shape& value) { return ToString(value); }
template <class Number>
  requires std::is_arithmetic_v<Number>
std::string ValueText(Number value) {
  return std::to_string(value);
}
template <class Named>
  requires std::is_enum_v<Named>
std::string ValueText(Named value) {
  return Name(value);
}

template <class Value>
bool ParseValue(std::string_view text, std::optional<Value>* value) {
  return ParseValue(text, &value->emplace());
}
template <class Value>
std::string ValueText(const std::optional<Value>& value) {
  return value ? ValueText(*value) : std::string();
}

// ---- Visitors

class FieldWriter {
 public:
  explicit FieldWriter(std::string_view name) : text_(name) {}

  template <class Value>
  void operator()(const char* key, const Value& value, const std::type_identity_t<Value>& otherwise) {
    if (value == otherwise) return;
    text_ += is_first_ ? ':' : ',';
    is_first_ = false;
    text_ += std::string(key) + '=' + ValueText(value);
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  bool is_first_ = true;
};

class FieldReader {
 public:
  // `text` is "name:key=value,...".
  FieldReader(std::string_view text, std::string_view name);

  template <class Value>
  void operator()(const char* key, Value& value, const std::type_identity_t<Value>&) {
    const auto found = fields_.find(key);
    if (found == fields_.end()) return;
    if (!ParseValue(found->second, &value)) {
      Refuse(std::string(key) + " is '" + std::string(found->second) + "'" + Choices(&value));
    }
    fields_.erase(found);
  }

  void Require(const char* key, bool is_there);
  // False, and *error says why, where the text is no such problem.
  bool Finish(std::string* error);

 private:
  void Refuse(const std::string& why);

  std::map<std::string_view, std::string_view, std::less<>> fields_;
  std::string error_;
};

// The operator's name that a text begins with.
std::string_view NameOf(std::string_view text);

}  // namespace gyrograd::problems

#endif  // GYROGRAD_PROBLEMS_FIELDS_H_
