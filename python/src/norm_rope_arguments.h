// The arguments of the norm and rotary calls: from the keywords of a Python function to the library's structures.
#ifndef GYROGRAD_PYTHON_NORM_ROPE_ARGUMENTS_H_
#define GYROGRAD_PYTHON_NORM_ROPE_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "calls.h"
#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"

namespace gyrograd::python {

// What an array of the caller is: itself, or in place of it a tuple (shape, type) that plans alone can do with.
enum class ArrayForm { kArray, kShape };

// Keywords by name, and the arrays that were read of them. Views refer to it: it must outlive them.
class Keywords {
 public:
  Keywords(const char* operation, nb::dict values, ArrayForm form = ArrayForm::kArray)
      : operation_(operation), values_(std::move(values)), form_(form) {}
  Keywords(const Keywords&) = delete;
  Keywords& operator=(const Keywords&) = delete;

  const char* operation() const { return operation_; }
  // None where it was not given; `name` must be one of the function's.
  nb::handle operator[](const std::string& name) const;
  // Whether the function has such a keyword and it is not None.
  bool IsGiven(const std::string& name) const;
  Argument argument(const char* name) const { return {operation_, name}; }

  // The view of an array; nothing where it is None.
  std::optional<ConstTensorView> Input(const std::string& name);
  // One whose axes 1 and 2 stand in the order of out_layout, as [B, N, S, D].
  std::optional<ConstTensorView> JointInput(const std::string& name);
  // [B, N, S, D] of an array or result in the order of out_layout. `word` is what messages call it.
  ConstTensorView InOrder(const Array& array, const std::string& word);
  bool bsnd() const { return bsnd_; }

  // The first array that was read: results are of its kind. Null where none was.
  const Array* first() const { return arrays_.empty() ? nullptr : &arrays_.front(); }
  // In messages, views that are not the caller's arrays get the arrays' shapes and strides.
  void AddShapeWords(Words* words) const;
  // Hints as Python writes them: axes of tables, and out_layout for these arguments.
  void AddHintWords(const std::vector<std::string>& in_layout, Words* words) const;

  void ReadLayout();  // once, before the arrays

 private:
  // A view whose axes are others than its array's.
  struct Rearrangement {
    std::string word;
    ConstTensorView view;
    ConstTensorView original;
  };

  const Array* Read(const std::string& name);
  ConstTensorView Rearranged(const Array& array, const std::array<int, 4>& axes, const std::string& word);

  const char* operation_;
  nb::dict values_;
  ArrayForm form_;
  bool bsnd_ = false;
  std::deque<Array> arrays_;
  std::deque<std::array<std::int64_t, 4>> extents_;
  std::vector<Rearrangement> rearrangements_;
  std::map<std::string, std::vector<std::int64_t>> tables_;  // shapes of the cosines
};

// ---- one segment

struct NormRopeBackwardCall {
  NormRopeBackwardSegment segment;
  Execution execution;
};
struct NormRopeForwardCall {
  NormRopeSegment segment;
  Execution execution;
};
NormRopeBackwardCall ReadNormRopeBackward(Keywords& keywords);
NormRopeForwardCall ReadNormRope(Keywords& keywords);

// ---- the joint call

inline constexpr std::array<const char*, 4> kNorms = {"norm_query", "norm_key", "norm_added_query", "norm_added_key"};
inline constexpr std::array<const char*, 6> kStreams = {"query",         "key",         "value",
                                                        "encoder_query", "encoder_key", "encoder_value"};
// The results' names, in their order.
inline constexpr std::array<const char*, 14> kConcatGradients = {"query",
                                                                 "key",
                                                                 "value",
                                                                 "encoder_query",
                                                                 "encoder_key",
                                                                 "encoder_value",
                                                                 "norm_query_weight",
                                                                 "norm_query_bias",
                                                                 "norm_key_weight",
                                                                 "norm_key_bias",
                                                                 "norm_added_query_weight",
                                                                 "norm_added_query_bias",
                                                                 "norm_added_key_weight",
                                                                 "norm_added_key_bias"};

// Everything but the outputs.
NormRopeConcatBackwardArgs ReadNormRopeConcatBackward(Keywords& keywords);
NormRopeConcatArgs ReadNormRopeConcat(Keywords& keywords);

// The outputs of kConcatGradients.
std::array<std::optional<TensorView>*, 14> GradientsOf(NormRopeConcatBackwardArgs& args);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_NORM_ROPE_ARGUMENTS_H_
