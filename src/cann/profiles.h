// Product profiles: which Ascend products accept a problem's shapes, and which rule refuses. Pure functions of the
// shapes; the library itself computes without these limits ("native"), its C interface with some of them.
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
  std::string limits = {};                   // where accepted without readings: what holds there
  // Where pages and code of CANN differ, what the shapes alone do not tell, and, for native, what the C interface
  // refuses all the same.
  std::vector<std::string> remarks = {};
};

// A shape is legal on a product when it is legal under at least one reading of its layout.
ProfileVerdict ExplainRotary(const RotaryProblem& problem, Profile profile);

// Every profile, then the products on which the operator is not offered at all.
std::vector<ProfileVerdict> ExplainRotary(const RotaryProblem& problem);

// A problem of the fused operator. The lengths of a stream that is absent are 0, and so is seq_rope without rotation.
// What the library takes and CANN's operator does not: two of the modes, RotaryOptions, rope_start, tables and weights
// of another type.
struct NormRopeConcatProblem {
  std::int64_t batch = 0;
  std::int64_t heads = 0;                      // of the query
  std::optional<std::int64_t> key_heads = {};  // the query's where not given
  std::int64_t head_dim = 0;
  std::int64_t seq_query = 0;
  std::int64_t seq_key = 0;
  std::int64_t seq_encoder_query = 0;
  std::int64_t seq_encoder_key = 0;
  std::int64_t seq_rope = 0;   // the tables' rows
  std::int64_t norm_type = 0;  // a value of NormType
  std::int64_t norm_added_type = 0;
  std::optional<RotaryMode> rope_mode = {};  // none where nothing turns
  bool per_pair_tables = false;
  std::optional<std::int64_t> rotary_dim = {};
  std::int64_t rope_start = 0;
  std::int64_t concat_order = 0;            // a value of ConcatOrder
  DType dtype = DType::kF32;                // of the activations
  std::optional<DType> tables_dtype = {};   // the activations' where not given
  std::optional<DType> weights_dtype = {};  // likewise
  bool backward = true;
};

// The products have the same rules.
ProfileVerdict ExplainNormRopeConcat(const NormRopeConcatProblem& problem, Profile profile);
std::vector<ProfileVerdict> ExplainNormRopeConcat(const NormRopeConcatProblem& problem);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_PROFILES_H_
