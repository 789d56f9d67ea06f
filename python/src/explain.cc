// The product profiles' verdicts as lists of dicts.
#include "explain.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "cann/profiles.h"
#include "options.h"

namespace gyrograd::python {
namespace {

using namespace nb::literals;

constexpr const char* kRotary = "rotary_backward";
constexpr const char* kConcat = "norm_rope_concat_backward";

nb::list ReadingsOf(const cann::ProfileVerdict& verdict) {
  nb::list readings;
  for (const cann::LayoutReading& reading : verdict.readings) {
    nb::dict entry;
    entry["layout"] = reading.layout;
    entry["tables"] = reading.tables;
    readings.append(entry);
  }
  return readings;
}

nb::list ListOf(const std::vector<cann::ProfileVerdict>& verdicts) {
  nb::list list;
  for (const cann::ProfileVerdict& verdict : verdicts) {
    nb::dict entry;
    entry["product"] = verdict.product;
    entry["accepted"] = verdict.accepted;
    entry["readings"] = ReadingsOf(verdict);
    entry["rule"] = verdict.rule;
    entry["limits"] = verdict.limits;
    entry["remarks"] = nb::cast(verdict.remarks);
    list.append(entry);
  }
  return list;
}

nb::list ExplainRotaryBackward(const std::vector<std::int64_t>& dy_shape, const std::vector<std::int64_t>& cos_shape,
                               const std::string& dtype, const std::string& table_dtype, bool table_gradients,
                               nb::handle mode, bool per_pair_tables, std::optional<std::int64_t> rotary_dim) {
  cann::RotaryProblem problem;
  problem.x = dy_shape;
  problem.cos = cos_shape;
  problem.mode = static_cast<int>(ParseMode(kRotary, mode));
  problem.dtype = DTypeNamed({kRotary, "dtype"}, dtype);
  problem.backward = true;
  problem.table_gradients = table_gradients;
  problem.per_pair_tables = per_pair_tables;
  problem.rotary_dim = rotary_dim;
  problem.table_dtype = DTypeNamed({kRotary, "table_dtype"}, table_dtype);
  return ListOf(cann::ExplainRotary(problem));
}

nb::list ExplainConcatBackward(nb::dict sizes, const std::string& dtype, const std::string& table_dtype,
                               const std::string& weight_dtype, nb::handle norm_type, nb::handle norm_added_type,
                               nb::handle rope_type, nb::handle concat_order, bool per_pair_tables,
                               std::optional<std::int64_t> rotary_dim, std::int64_t rope_start) {
  cann::NormRopeConcatProblem problem;
  const std::array<std::pair<const char*, std::int64_t*>, 8> extents = {
      {{"batch", &problem.batch},
       {"heads", &problem.heads},
       {"head_dim", &problem.head_dim},
       {"seq_query", &problem.seq_query},
       {"seq_key", &problem.seq_key},
       {"seq_encoder_query", &problem.seq_encoder_query},
       {"seq_encoder_key", &problem.seq_encoder_key},
       {"seq_rope", &problem.seq_rope}}};
  for (const auto& [name, extent] : extents) *extent = ParseInteger({kConcat, name}, sizes[name]);
  problem.key_heads = ParseInteger({kConcat, "key_heads"}, sizes["key_heads"]);
  problem.norm_type = static_cast<int>(ParseNormType({kConcat, "norm_type"}, norm_type));
  problem.norm_added_type = static_cast<int>(ParseNormType({kConcat, "norm_added_type"}, norm_added_type));
  problem.rope_mode = ParseRopeType({kConcat, "rope_type"}, rope_type);
  problem.per_pair_tables = per_pair_tables;
  problem.rotary_dim = rotary_dim;
  problem.rope_start = rope_start;
  problem.concat_order = static_cast<int>(ParseConcatOrder({kConcat, "concat_order"}, concat_order));
  problem.dtype = DTypeNamed({kConcat, "dtype"}, dtype);
  problem.tables_dtype = DTypeNamed({kConcat, "table_dtype"}, table_dtype);
  problem.weights_dtype = DTypeNamed({kConcat, "weight_dtype"}, weight_dtype);
  return ListOf(cann::ExplainNormRopeConcat(problem));
}

}  // namespace

void DefineExplain(nb::module_& module) {
  module.def(
      "explain_rotary_backward", &ExplainRotaryBackward, "dy_shape"_a, "cos_shape"_a, "dtype"_a, "table_dtype"_a,
      nb::kw_only(), "table_gradients"_a = true, "mode"_a.none() = "half", "per_pair_tables"_a = false,
      "rotary_dim"_a = nb::none(),
      "Which products take these shapes, and which rule refuses: a dict each, \"native\" being the library itself.");
  module.def("explain_norm_rope_concat_backward", &ExplainConcatBackward, "sizes"_a, "dtype"_a, "table_dtype"_a,
             "weight_dtype"_a, nb::kw_only(), "norm_type"_a = "none", "norm_added_type"_a = "none",
             "rope_type"_a = "none", "concat_order"_a = "stream_first", "per_pair_tables"_a = false,
             "rotary_dim"_a = nb::none(), "rope_start"_a = 0,
             "The same of a joint call; `sizes` has batch, heads, key_heads, head_dim, seq_query, seq_key,\n"
             "seq_encoder_query, seq_encoder_key and seq_rope.");
}

}  // namespace gyrograd::python
