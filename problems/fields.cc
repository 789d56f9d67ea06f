// Parsing of values and of the line.
#include "problems/fields.h"

#include <charconv>
#include <cstddef>

namespace gyrograd::problems {
namespace {

template <class Number>
bool ParseNumber(std::string_view text, Number* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

template <class Named, std::size_t count>
bool ParseNamed(std::string_view text, const Named (&all)[count], Named* value) {
  for (const Named each : all) {
    if (text != Name(each)) continue;
    *value = each;
    return true;
  }
  return false;
}

}  // namespace

bool ParseValue(std::string_view text, Shape* value) {
  value->clear();
  for (;;) {
    const std::size_t end = text.find('x');
    if (!ParseNumber(text.substr(0, end), &value->emplace_back()) || value->back() < 0) return false;
    if (end == text.npos) return true;
    text.remove_prefix(end + 1);
  }
}

bool ParseValue(std::string_view text, std::int64_t* value) { return ParseNumber(text, value); }
bool ParseValue(std::string_view text, std::uint64_t* value) { return ParseNumber(text, value); }
bool ParseValue(std::string_view text, int* value) { return ParseNumber(text, value); }

bool ParseValue(std::string_view text, bool* value) {
  *value = text == "1";
  return text == "0" || text == "1";
}

bool ParseValue(std::string_view text, DType* value) {
  constexpr DType kAll[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  return ParseNamed(text, kAll, value);
}

bool ParseValue(std::string_view text, RotaryMode* value) {
  constexpr RotaryMode kAll[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
  return ParseNamed(text, kAll, value);
}

bool ParseValue(std::string_view text, NormType* value) {
  constexpr NormType kAll[] = {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms,
                               NormType::kRmsAffine};
  return ParseNamed(text, kAll, value);
}

bool ParseValue(std::string_view text, ConcatOrder* value) {
  constexpr ConcatOrder kAll[] = {ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst};
  return ParseNamed(text, kAll, value);
}

bool ParseValue(std::string_view text, CpuTarget* value) {
  constexpr CpuTarget kAll[] = {CpuTarget::kBest, CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon,
                                CpuTarget::kPortable};
  return ParseNamed(text, kAll, value);
}

bool ParseValue(std::string_view text, Layout* value) { return ParseNamed(text, kInputLayouts, value); }

FieldReader::FieldReader(std::string_view text, std::string_view name) {
  if (NameOf(text) != name) Refuse("it is no problem of " + std::string(name));
  const std::size_t colon = text.find(':');
  text.remove_prefix(colon == text.npos ? text.size() : colon + 1);
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view field = text.substr(0, comma);
    const std::size_t equals = field.find('=');
    if (equals == field.npos) {
      Refuse(std::string("'").append(field).append("' is no key=value"));
    } else if (!fields_.emplace(field.substr(0, equals), field.substr(equals + 1)).second) {
      Refuse(std::string(field.substr(0, equals)) + " stands twice");
    }
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
  }
}

void FieldReader::Refuse(const std::string& why) {
  if (error_.empty()) error_ = why;
}

void FieldReader::Require(const char* key, bool is_there) {
  if (!is_there) Refuse(std::string(key) + " is missing");
}

bool FieldReader::Finish(std::string* error) {
  if (!fields_.empty()) Refuse("there is no field " + std::string(fields_.begin()->first));
  *error = error_;
  return error_.empty();
}

std::string_view NameOf(std::string_view text) { return text.substr(0, text.find(':')); }

}  // namespace gyrograd::problems
