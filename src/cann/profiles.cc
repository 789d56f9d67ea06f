// The rules of CANN's pages, product by product, and what of them the C interface holds.
#include "cann/profiles.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

namespace gyrograd::cann {
namespace {

using Extents = std::span<const std::int64_t>;

// Why something is refused; nothing where it is not.
using Refusal = std::optional<std::string>;

std::string ToString(Extents values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

std::string Is(const char* name, std::int64_t value) { return std::string(name) + " is " + std::to_string(value); }

// Of extents, which are not negative; the largest value where it overflows.
std::int64_t Product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

bool IsProduct(Profile profile) { return profile != Profile::kNative; }
bool IsAtlas(Profile profile) { return profile == Profile::kAtlasA2 || profile == Profile::kAtlasA3; }

// One way to read the axes: their letters in order, and where batch, sequence and heads are (-1: no such axis).
struct Reading {
  const char* name;
  std::size_t rank;
  int batch;
  int sequence;
  int heads;
};
constexpr std::array<Reading, 4> kReadings{{
    {"BNSD", 4, 0, 2, 1},
    {"BSND", 4, 0, 1, 2},
    {"SBND", 4, 1, 0, 2},
    {"TND", 3, -1, 0, 1},
}};

// A problem under one reading.
class View {
 public:
  View(const RotaryProblem& problem, const Reading& reading) : problem_(problem), reading_(reading) {}

  const RotaryProblem& problem() const { return problem_; }
  const Reading& reading() const { return reading_; }
  bool packed() const { return reading_.batch < 0; }
  std::int64_t batch() const { return packed() ? 1 : problem_.x[reading_.batch]; }
  std::int64_t sequence() const { return problem_.x[reading_.sequence]; }
  std::int64_t heads() const { return problem_.x[reading_.heads]; }
  std::int64_t head_dim() const { return problem_.x.back(); }

  // Whether the tables vary along the axes of `kept` ("B", "S", "N"; "S" is T where packed), and along no other.
  bool TablesKeep(std::string_view kept) const {
    return AxisIs(reading_.batch, kept, 'B') && AxisIs(reading_.sequence, kept, 'S') &&
           AxisIs(reading_.heads, kept, 'N');
  }

  // The tables' pattern in the layout's letters, such as "11SD".
  std::string Pattern(std::string_view kept) const {
    std::string pattern = reading_.name;
    if (kept.find('B') == kept.npos && !packed()) pattern[reading_.batch] = '1';
    if (kept.find('N') == kept.npos) pattern[reading_.heads] = '1';
    return pattern;
  }

 private:
  bool AxisIs(int axis, std::string_view kept, char letter) const {
    if (axis < 0) return true;
    return problem_.cos[axis] == (kept.find(letter) == kept.npos ? 1 : problem_.x[axis]);
  }

  const RotaryProblem& problem_;
  const Reading& reading_;
};

// The argument whose shape `x` is, as the operator calls it.
std::string Leading(const RotaryProblem& problem) { return problem.backward ? "dy" : "x"; }

// The channels that turn.
std::int64_t RotaryDim(const RotaryProblem& problem) { return problem.rotary_dim.value_or(problem.x.back()); }

// What no product's operator has: those of `extensions` that are asked for.
struct Extension {
  bool asked;
  std::string what;
};

Refusal CheckExtensions(std::initializer_list<Extension> extensions) {
  std::string absent;
  for (const auto& [asked, what] : extensions) {
    if (asked) absent += (absent.empty() ? "no " : ", no ") + what;
  }
  return absent.empty() ? Refusal{} : "its operator has " + absent;
}

Refusal CheckExtensions(const RotaryProblem& problem) {
  return CheckExtensions({{problem.per_pair_tables, "tables per pair"},
                          {RotaryDim(problem) != problem.x.back(), "partial rotary"},
                          {problem.table_dtype.value_or(problem.dtype) != problem.dtype, "tables of another type"}});
}

// What holds everywhere: the operator's own rules.
Refusal CheckShapes(const RotaryProblem& problem, Profile profile) {
  const Extents x = problem.x;
  const Extents cos = problem.cos;
  const std::string name = Leading(problem);
  if (problem.mode < 0 || problem.mode > 3) return Is("mode", problem.mode) + "; it must be 0, 1, 2 or 3";
  if (x.empty()) return name + " has rank 0; it must be at least 1";
  if (IsProduct(profile) && x.size() != 3 && x.size() != 4) {
    return name + " has rank " + std::to_string(x.size()) + "; it must be 3 (TND) or 4 (BNSD, BSND, SBND)";
  }
  if (std::ranges::any_of(x, [](std::int64_t extent) { return extent < 0; })) {
    return name + " has shape " + ToString(x) + "; extents must not be negative";
  }
  if (IsProduct(profile)) {
    if (Refusal refusal = CheckExtensions(problem)) return refusal;
  }
  if (cos.size() != x.size()) {
    return "cos has shape " + ToString(cos) + "; it must have " + name + "'s rank, " + std::to_string(x.size());
  }
  for (std::size_t i = 0; i + 1 < x.size(); ++i) {
    if (cos[i] != x[i] && cos[i] != 1) {
      return "cos has shape " + ToString(cos) + "; its extents must be 1 or " + name + "'s, " + ToString(x);
    }
  }
  const std::int64_t dim = RotaryDim(problem);
  const std::int64_t width = problem.per_pair_tables ? dim / 2 : dim;
  if (cos.back() != width) {
    return "cos has shape " + ToString(cos) + "; its last extent must " +
           (width == x.back() ? "equal " + name + "'s, " : "be ") + std::to_string(width);
  }
  if (IsProduct(profile) && x.back() == 0) return "D is 0; it must be positive";
  const std::int64_t divisor = problem.mode == 2 ? 4 : 2;
  if (dim % divisor != 0) return Is("D", dim) + "; it must be divisible by " + std::to_string(divisor);
  return std::nullopt;
}

Refusal CheckType(DType type) {
  return type == DType::kF64 ? Refusal("the type is f64; it must be f32, f16 or bf16") : Refusal{};
}

// The rules of a product that no reading changes.
Refusal CheckProduct(const RotaryProblem& problem, Profile profile) {
  if (Refusal refusal = CheckType(problem.dtype)) return refusal;
  const std::int64_t head_dim = problem.x.back();
  if (!IsAtlas(profile)) {
    return head_dim <= 1024 ? Refusal{} : Is("D", head_dim) + "; it must be at most 1024";
  }
  if (problem.mode > 1) return Is("mode", problem.mode) + "; it must be 0 (half) or 1 (interleave)";
  return head_dim < 896 ? Refusal{} : Is("D", head_dim) + "; it must be below 896";
}

// The tables' patterns that one reading allows: the axes along which they vary.
std::vector<std::string_view> AllowedTables(const View& view, Profile profile) {
  const bool half = view.problem().mode == 0;
  if (IsAtlas(profile) && !half) return {"S"};
  if (view.packed()) return {"S", "SN"};
  return {"S", "BS", "BSN"};
}

// B1SD and BS1D ask for B < S; SB1D does not.
bool NeedsShortBatch(const View& view, std::string_view kept) { return kept == "BS" && view.reading().batch == 0; }

Refusal MatchTables(const View& view, Profile profile, std::string* pattern) {
  if (!IsAtlas(profile) && !view.packed()) {
    *pattern = "any broadcast";
    return std::nullopt;
  }
  std::string allowed;
  for (const std::string_view kept : AllowedTables(view, profile)) {
    allowed += (allowed.empty() ? "" : ", ") + view.Pattern(kept);
    if (!view.TablesKeep(kept)) continue;
    *pattern = view.Pattern(kept);
    if (!NeedsShortBatch(view, kept) || view.batch() < view.sequence()) return std::nullopt;
    // All heads alike may also read as one head: then the next pattern takes it.
    if (view.TablesKeep("BSN")) continue;
    return Is("B", view.batch()) + " and S is " + std::to_string(view.sequence()) + "; tables " + *pattern +
           " need B < S";
  }
  return "tables of shape " + ToString(view.problem().cos) + " are none of " + allowed;
}

// The limits of Atlas A2 and A3 on batch and heads.
Refusal CheckSizes(const View& view) {
  const RotaryProblem& problem = view.problem();
  const std::int64_t product = Product(view.batch(), view.heads());
  if (problem.mode == 1) {
    if (product < 1000) return std::nullopt;
    return Is(view.packed() ? "N" : "B*N", product) + "; it must be below 1000 in interleave mode";
  }
  if (view.batch() >= 1000) return Is("B", view.batch()) + "; it must be below 1000 in half mode";
  if (view.heads() >= 1000) return Is("N", view.heads()) + "; it must be below 1000 in half mode";
  if (problem.table_gradients && product > 1024) {
    return Is("B*N", product) + "; it must be at most 1024 when dcos and dsin are wanted";
  }
  return std::nullopt;
}

bool IsForwardHalfBnsd(const View& view) {
  return !view.problem().backward && view.problem().mode == 0 && std::string_view(view.reading().name) == "BNSD";
}

bool HalfRowsAreWholeBlocks(const RotaryProblem& problem) {
  return problem.x.back() / 2 * static_cast<std::int64_t>(SizeOf(problem.dtype)) % 32 == 0;
}

// The forward of Atlas A2 and A3, half mode, BNSD.
Refusal CheckForward(const View& view) {
  if (!IsForwardHalfBnsd(view) || !HalfRowsAreWholeBlocks(view.problem())) return std::nullopt;
  const std::int64_t product = Product(view.batch(), view.heads());
  const std::int64_t limit = Product(8, view.sequence());
  if (product <= limit) return std::nullopt;
  return Is("B*N", product) + "; it must be at most 8*S, " + std::to_string(limit) + ", in the forward's half mode";
}

Refusal CheckReading(const View& view, Profile profile, std::string* pattern) {
  if (Refusal refusal = MatchTables(view, profile, pattern)) return refusal;
  if (!IsAtlas(profile)) return std::nullopt;
  if (Refusal refusal = CheckSizes(view)) return refusal;
  return CheckForward(view);
}

// One text for the refusals of all readings; the same words are said once.
std::string Join(const std::vector<std::pair<const char*, std::string>>& refusals) {
  const bool alike = std::ranges::all_of(refusals, [&](const auto& r) { return r.second == refusals.front().second; });
  if (alike) return refusals.front().second;
  std::string text;
  for (const auto& [name, refusal] : refusals) {
    text += (text.empty() ? "read as " : "; read as ") + std::string(name) + ": " + refusal;
  }
  return text;
}

void JudgeReadings(const RotaryProblem& problem, Profile profile, ProfileVerdict* verdict) {
  std::vector<std::pair<const char*, std::string>> refusals;
  for (const Reading& reading : kReadings) {
    if (reading.rank != problem.x.size()) continue;
    const View view(problem, reading);
    std::string pattern;
    if (Refusal refusal = CheckReading(view, profile, &pattern)) {
      refusals.emplace_back(reading.name, *refusal);
      continue;
    }
    verdict->readings.push_back({reading.name, pattern});
    if (IsAtlas(profile) && IsForwardHalfBnsd(view) && !HalfRowsAreWholeBlocks(problem)) {
      verdict->remarks.push_back(
          "read as BNSD, half a row is not a multiple of 32 bytes: CANN's forward then also asks for D >= 80, or for "
          "few heads (2*B*N <= S / cores), which shapes alone do not tell");
    }
  }
  verdict->accepted = !verdict->readings.empty();
  if (!verdict->accepted) verdict->rule = Join(refusals);
}

void AddAtlasRemarks(const RotaryProblem& problem, ProfileVerdict* verdict) {
  const Extents x = problem.x;
  if (x.size() == 3) {
    verdict->remarks.push_back(
        "TND: CANN's older page does not list it for this product, its newer page does and counts");
  }
  if (problem.mode != 0) return;
  if (x.back() == 896) verdict->remarks.push_back("CANN's code accepts D = 896; its page says below 896, and counts");
  if (!verdict->accepted && std::ranges::any_of(x.first(x.size() - 1), [](std::int64_t e) { return e >= 1000; }) &&
      verdict->rule.find("below 1000") != std::string::npos) {
    verdict->remarks.push_back("B, N < 1000 is on CANN's page alone; its code does not check it");
  }
}

void Add950Remarks(const RotaryProblem& problem, ProfileVerdict* verdict) {
  if (problem.x.size() == 3 && !verdict->accepted && verdict->rule.find("are none of") != std::string::npos) {
    verdict->remarks.push_back("CANN's code takes more table shapes for TND than its page, which counts");
  }
}

// The library's own verdict, with a word on what the C interface refuses that the library does not.
ProfileVerdict NativeVerdict(const Refusal& refusal, const Refusal& c_refusal) {
  ProfileVerdict verdict{.product = Name(Profile::kNative), .accepted = !refusal, .rule = refusal.value_or("")};
  if (refusal) return verdict;
  verdict.limits = "no limits beyond the operator's";
  if (c_refusal) verdict.remarks.push_back("the C interface refuses it: " + *c_refusal);
  return verdict;
}

// What the C interface holds under every profile.
Refusal CheckCInterface(const RotaryProblem& problem) {
  if (Refusal refusal = CheckType(problem.dtype)) return refusal;
  return CheckShapes(problem, Profile::kAscend950);
}

constexpr Profile kProfiles[] = {Profile::kNative, Profile::kAtlasA2, Profile::kAtlasA3, Profile::kAscend950};

// Every profile, then the products on which no operator is offered.
template <class Problem>
std::vector<ProfileVerdict> ExplainAll(const Problem& problem,
                                       ProfileVerdict (*explain)(const Problem& problem, Profile profile)) {
  std::vector<ProfileVerdict> verdicts;
  for (const Profile profile : kProfiles) verdicts.push_back(explain(problem, profile));
  for (const char* product : {"Atlas 200I/500 A2 inference", "Atlas inference", "Atlas training"}) {
    verdicts.push_back({.product = product, .rule = "the operator is not offered on this product"});
  }
  return verdicts;
}

}  // namespace

const char* Name(Profile profile) {
  switch (profile) {
    case Profile::kNative: return "native";
    case Profile::kAtlasA2: return "atlas-a2";
    case Profile::kAtlasA3: return "atlas-a3";
    case Profile::kAscend950: return "ascend-950";
  }
  return "unknown";
}

std::optional<Profile> ParseProfile(std::string_view name) {
  for (const Profile profile : kProfiles) {
    if (name == Name(profile)) return profile;
  }
  return std::nullopt;
}

ProfileVerdict ExplainRotary(const RotaryProblem& problem, Profile profile) {
  const Refusal shapes = CheckShapes(problem, profile);
  if (!IsProduct(profile)) return NativeVerdict(shapes, CheckCInterface(problem));
  ProfileVerdict verdict{.product = Name(profile)};
  if (shapes) {
    verdict.rule = *shapes;
    return verdict;
  }
  if (Refusal refusal = CheckProduct(problem, profile)) {
    verdict.rule = *refusal;
  } else {
    JudgeReadings(problem, profile, &verdict);
  }
  IsAtlas(profile) ? AddAtlasRemarks(problem, &verdict) : Add950Remarks(problem, &verdict);
  return verdict;
}

std::vector<ProfileVerdict> ExplainRotary(const RotaryProblem& problem) { return ExplainAll(problem, ExplainRotary); }

// ---- the fused operator

namespace {

// Of extents, which are not negative; the largest value where it overflows.
std::int64_t Sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

Refusal CheckChoice(const char* name, std::int64_t value, std::int64_t last) {
  if (value >= 0 && value <= last) return std::nullopt;
  return Is(name, value) + "; it must be 0 to " + std::to_string(last);
}

Refusal CheckTypes(const NormRopeConcatProblem& p, Profile profile) {
  if (IsProduct(profile)) {
    if (Refusal refusal = CheckType(p.dtype)) return refusal;
  }
  const bool wider = !IsProduct(profile) && (p.dtype == DType::kF16 || p.dtype == DType::kBF16);
  const auto check = [&](const char* what, DType type) -> Refusal {
    if (type == p.dtype || (wider && type == DType::kF32)) return std::nullopt;
    return std::string("the ") + what + " have type " + Name(type) + "; it must be the activations', " + Name(p.dtype) +
           (wider ? ", or f32" : "");
  };
  if (Refusal refusal = check("tables", p.tables_dtype.value_or(p.dtype))) return refusal;
  return check("weights", p.weights_dtype.value_or(p.dtype));
}

std::int64_t LastNorm(const NormRopeConcatProblem& p, Profile profile) {
  return p.backward && IsProduct(profile) ? 2 : 4;
}

Refusal CheckAttributes(const NormRopeConcatProblem& p, Profile profile) {
  const std::int64_t last_norm = LastNorm(p, profile);
  if (Refusal refusal = CheckChoice("normType", p.norm_type, last_norm)) return refusal;
  if (Refusal refusal = CheckChoice("normAddedType", p.norm_added_type, last_norm)) return refusal;
  return CheckChoice("concatOrder", p.concat_order, 1);
}

Refusal CheckHeads(const NormRopeConcatProblem& p, Profile profile) {
  const std::int64_t key_heads = p.key_heads.value_or(p.heads);
  if (IsProduct(profile) && key_heads != p.heads) {
    return Is("key's N", key_heads) + "; it must be query's, " + std::to_string(p.heads);
  }
  if (IsProduct(profile) && (p.head_dim < 1 || p.head_dim > 1024)) {
    return Is("D", p.head_dim) + "; it must be 1 to 1024";
  }
  if (IsProduct(profile) && p.head_dim % 2 != 0) return Is("D", p.head_dim) + "; it must be even";
  return std::nullopt;
}

// The channels that turn.
Refusal CheckRotaryDim(const NormRopeConcatProblem& p) {
  if (!p.rope_mode) return std::nullopt;
  const std::int64_t dim = p.rotary_dim.value_or(p.head_dim);
  const std::int64_t fewest = std::min<std::int64_t>(p.head_dim, 2);
  const char* const name = p.rotary_dim ? "rotary_dim" : "D";
  if (p.rotary_dim && (dim < fewest || dim > p.head_dim)) {
    return Is(name, dim) + "; it must be " + std::to_string(fewest) + " to D, " + std::to_string(p.head_dim);
  }
  const std::int64_t divisor = *p.rope_mode == RotaryMode::kQuarter ? 4 : 2;
  if (dim % divisor == 0) return std::nullopt;
  return Is(name, dim) + "; it must be " + (divisor == 2 ? "even" : "divisible by 4");
}

Refusal CheckTableRows(const NormRopeConcatProblem& p) {
  if (!p.rope_mode) return std::nullopt;
  const std::int64_t joint = std::min(Sum(p.seq_query, p.seq_encoder_query), Sum(p.seq_key, p.seq_encoder_key));
  const std::int64_t fewest = joint > 0 ? 1 : 0;
  const auto check = [&](const char* name, std::int64_t value, std::int64_t first, std::int64_t last) -> Refusal {
    if (value >= first && value <= last) return std::nullopt;
    return Is(name, value) + "; it must be " + std::to_string(first) + " to " + std::to_string(last) +
           ", the shorter of the joint sequences";
  };
  if (p.rope_start < 0) return Is("rope_start", p.rope_start) + "; it must be at least 0";
  Refusal refusal = check("seqRope", p.seq_rope, fewest, joint);
  if (refusal || p.rope_start == 0) return refusal;
  return check("rope_start + seqRope", Sum(p.rope_start, p.seq_rope), fewest, joint);
}

// What the products' operator does not have. Without rotation its options count for nothing.
Refusal CheckExtensions(const NormRopeConcatProblem& p) {
  if (!p.rope_mode) return std::nullopt;
  const bool named = *p.rope_mode == RotaryMode::kHalf || *p.rope_mode == RotaryMode::kInterleave;
  return CheckExtensions({{p.per_pair_tables, "tables per pair"},
                          {p.rotary_dim.value_or(p.head_dim) != p.head_dim, "partial rotary"},
                          {!named, std::string("rope type ") + Name(*p.rope_mode)},
                          {p.rope_start != 0, "rope_start"}});
}

// What the checks leave to a product.
std::string LimitsOf(const NormRopeConcatProblem& p) {
  return std::string("within its limits: D even, 1 to 1024; one of f32, f16 and bf16 for all but means and rstds; ") +
         "norm types 0 to " + std::to_string(LastNorm(p, Profile::kAscend950)) +
         "; rope types none, interleave and half; key's heads query's; tables no longer than the shorter joint "
         "sequence";
}

Refusal CheckNormRopeConcat(const NormRopeConcatProblem& p, Profile profile) {
  if (IsProduct(profile)) {
    if (Refusal refusal = CheckExtensions(p)) return refusal;
  }
  if (Refusal refusal = CheckTypes(p, profile)) return refusal;
  if (Refusal refusal = CheckAttributes(p, profile)) return refusal;
  for (const std::int64_t extent : {p.batch, p.heads, p.key_heads.value_or(0), p.head_dim, p.seq_query, p.seq_key,
                                    p.seq_encoder_query, p.seq_encoder_key}) {
    if (extent < 0) return Is("an extent", extent) + "; none may be negative";
  }
  if (Refusal refusal = CheckHeads(p, profile)) return refusal;
  if (Refusal refusal = CheckRotaryDim(p)) return refusal;
  return CheckTableRows(p);
}

}  // namespace

ProfileVerdict ExplainNormRopeConcat(const NormRopeConcatProblem& problem, Profile profile) {
  const Refusal refusal = CheckNormRopeConcat(problem, profile);
  // The C interface's limits are the products'.
  if (!IsProduct(profile)) return NativeVerdict(refusal, CheckNormRopeConcat(problem, Profile::kAscend950));
  ProfileVerdict verdict{.product = Name(profile), .accepted = !refusal, .rule = refusal.value_or("")};
  if (!refusal) verdict.limits = LimitsOf(problem);
  return verdict;
}

std::vector<ProfileVerdict> ExplainNormRopeConcat(const NormRopeConcatProblem& problem) {
  return ExplainAll(problem, ExplainNormRopeConcat);
}

}  // namespace gyrograd::cann
