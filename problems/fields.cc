// Parsing of values and of the line.
#include "problems/fields.h"

#include <charconv>
#include <cstddef>
#include <span>

namespace gyrograd::problems {
namespace {

template <class Number>
bool ParseNumber(std::string_view text, Number* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
constexpr NormType kNorms[] = {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms,
                               NormType::kRmsAffine};
constexpr ConcatOrder kOrders[] = {ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst};
constexpr CpuTarget kTargets[] = {CpuTarget::kBest, CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon,
                                  CpuTarget::kPortable};

template <class Named>
bool ParseNamed(std::string_view text, std::span<const Named> all, Named* value) {
  for (const Named each : all) {
    if (text != Name(each)) continue;
    *value = each;
    return true;
  }
  return false;
}

template <class Named>
std::string NamesOf(std::span<const Named> all) {
  std::string text;
  for (const Named each : all) text += std::string(text.empty() ? "; it must be " : ", ") + Name(each);
  return text;
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

bool ParseValue(std::string_view text, DType* value) { return ParseNamed<DType>(text, kTypes, value); }
bool ParseValue(std::string_view text, RotaryMode* value) { return ParseNamed<RotaryMode>(text, kModes, value); }
bool ParseValue(std::string_view text, NormType* value) { return ParseNamed<NormType>(text, kNorms, value); }
bool ParseValue(std::string_view text, ConcatOrder* value) { return ParseNamed<ConcatOrder>(text, kOrders, value); }
bool ParseValue(std::string_view text, CpuTarget* value) { return ParseNamed<CpuTarget>(text, kTargets, value); }
bool ParseValue(std::string_view text, Layout* value) { return ParseNamed<Layout>(text, kInputLayouts, value); }

std::string Choices(const DType*) { return NamesOf<DType>(kTypes); }
std::string Choices(const RotaryMode*) { return NamesOf<RotaryMode>(kModes); }
std::string Choices(const NormType*) { return NamesOf<NormType>(kNorms); }
std::string Choices(const ConcatOrder*) { return NamesOf<ConcatOrder>(kOrders); }
std::string Choices(const CpuTarget*) { return NamesOf<CpuTarget>(kTargets); }
std::string Choices(const Layout*) { return NamesOf<Layout>(kInputLayouts); }

FieldReader::FieldReader(std::string_view text, std::string_view name) {
  if (NameOf(text) != name) {
    Refuse("it is no problem of " + std::string(name) + ": it must start with '" + std::string(name) + ":'");
  }
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
