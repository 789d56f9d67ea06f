// Product profiles: which Ascend products accept a problem's shapes, and which rule refuses. Pure functions of the
// shapes; the library itself computes without these limits ("native").
#ifndef GYROGRAD_CANN_PROFILES_H_
#define GYROGRAD_CANN_PROFILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gyrograd/rotary.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::cann {

enum class Profile { kNative, kAtlasA2, kAtlasA3, kAscend950 };

// "native", "atlas-a2", "atlas-a3", "ascend-950".
const char* Name(Profile profile);
std::optional<Profile> ParseProfile(std::string_view name);

struct RotaryProblem {
  std::vector<std::int64_t> x;    // the shape of x, dy and dx
  std::vector<std::int64_t> cos;  // the shape of the tables and their gradients
  std::int64_t mode = 0;          // a value of RotaryMode, checked
  DType dtype = DType::kF32;
  bool backward = false;
  bool table_gradients = false;  // dcos and dsin are wanted
  // What the library takes and CANN's operator does not: RotaryOptions, and tables of another type.
  bool per_pair_tables = false;
  std::optional<std::int64_t> rotary_dim = {};
  std::optional<DType> table_dtype = {};
};

// How the axes of a shape can be read: a layout, and the tables' pattern in it.
struct LayoutReading {
  std::string layout;  // "BNSD"
  std::string tables;  // "11SD", or "any broadcast"
};

struct ProfileVerdict {
  std::string product = {};  // a profile's name, or an unsupported product's
  bool accepted = false;
  std::vector<LayoutReading> readings = {};  // where accepted by a product: all under which the shapes are legal
  std::string rule = {};                     // where refused: the rule and the value received
  std::vector<std::string> remarks = {};  // where pages and code of CANN differ, and what the shapes alone do not tell
};

// A shape is legal on a product when it is legal under at least one reading of its layout.
ProfileVerdict ExplainRotary(const RotaryProblem& problem, Profile profile);

// Every profile, then the products on which the operator is not offered at all.
std::vector<ProfileVerdict> ExplainRotary(const RotaryProblem& problem);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_PROFILES_H_
