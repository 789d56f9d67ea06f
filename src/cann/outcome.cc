// What each operator of the C interface calls the C++ one's arguments, and the codes of its statuses.
#include "cann/outcome.h"

#include <span>
#include <string>
#include <string_view>

#include "cann/message.h"
#include "ops/argument.h"

namespace gyrograd::cann {
namespace {

constexpr Rename kRotaryNames[] = {{"y", "out"}};

constexpr Rename kRotaryGradNames[] = {{"x", "xOptional"}, {"dx", "dxOut"}, {"dcos", "dcosOut"}, {"dsin", "dsinOut"}};

// Of both directions. The last ones are of options that are attributes here, or are not there.
constexpr Rename kNormRopeConcatNames[] = {{"grad_query_output", "gradQueryOutput"},
                                           {"grad_key_output", "gradKeyOutput"},
                                           {"grad_value_output", "gradValueOutput"},
                                           {"query_output", "queryOutput"},
                                           {"key_output", "keyOutput"},
                                           {"value_output", "valueOutput"},
                                           {"encoder_query", "encoderQuery"},
                                           {"encoder_key", "encoderKey"},
                                           {"encoder_value", "encoderValue"},
                                           {"dquery", "gradQuery"},
                                           {"dkey", "gradKey"},
                                           {"dvalue", "gradValue"},
                                           {"dencoder_query", "gradEncoderQuery"},
                                           {"dencoder_key", "gradEncoderKey"},
                                           {"dencoder_value", "gradEncoderValue"},
                                           {"rope_cos", "ropeCos"},
                                           {"rope_sin", "ropeSin"},
                                           {"norm_query.weight", "normQueryWeight"},
                                           {"norm_query.bias", "normQueryBias"},
                                           {"norm_query.mean", "normQueryMean"},
                                           {"norm_query.rstd", "normQueryRstd"},
                                           {"norm_query.dweight", "gradNormQueryWeight"},
                                           {"norm_query.dbias", "gradNormQueryBias"},
                                           {"norm_key.weight", "normKeyWeight"},
                                           {"norm_key.bias", "normKeyBias"},
                                           {"norm_key.mean", "normKeyMean"},
                                           {"norm_key.rstd", "normKeyRstd"},
                                           {"norm_key.dweight", "gradNormKeyWeight"},
                                           {"norm_key.dbias", "gradNormKeyBias"},
                                           {"norm_added_query.weight", "normAddedQueryWeight"},
                                           {"norm_added_query.bias", "normAddedQueryBias"},
                                           {"norm_added_query.mean", "normAddedQueryMean"},
                                           {"norm_added_query.rstd", "normAddedQueryRstd"},
                                           {"norm_added_query.dweight", "gradNormAddedQueryWeight"},
                                           {"norm_added_query.dbias", "gradNormAddedQueryBias"},
                                           {"norm_added_key.weight", "normAddedKeyWeight"},
                                           {"norm_added_key.bias", "normAddedKeyBias"},
                                           {"norm_added_key.mean", "normAddedKeyMean"},
                                           {"norm_added_key.rstd", "normAddedKeyRstd"},
                                           {"norm_added_key.dweight", "gradNormAddedKeyWeight"},
                                           {"norm_added_key.dbias", "gradNormAddedKeyBias"},
                                           {"norm_type", "normType"},
                                           {"norm_added_type", "normAddedType"},
                                           {"concat_order", "concatOrder"},
                                           {"in mode interleave", "with ropeType 1"},
                                           {"in mode half", "with ropeType 2"},
                                           {"rope_start, 0, and its", "its"},
                                           {"must sum to at most the length", "must be at most the length"}};

// The C++ function behind an operator, and the operator's own names.
struct Words {
  std::string_view function;
  std::span<const Rename> names;
};

Words WordsOf(Operator op) {
  switch (op) {
    case Operator::kRotaryPositionEmbedding: return {"rotary", kRotaryNames};
    case Operator::kRotaryPositionEmbeddingGrad: return {"rotary_backward", kRotaryGradNames};
    case Operator::kNormRopeConcat: return {"norm_rope_concat", kNormRopeConcatNames};
    case Operator::kNormRopeConcatBackward: return {"norm_rope_concat_backward", kNormRopeConcatNames};
  }
  return {};
}

// Without a hint at options that this interface does not have.
std::string_view WithoutHint(std::string_view message) {
  const std::size_t hint = message.find(internal::kHint);
  if (hint == message.npos) return message;
  const std::string_view options = message.substr(hint);
  const bool foreign = options.find("per_pair_tables") != options.npos || options.find("rotary_dim") != options.npos;
  return foreign ? message.substr(0, hint) : message;
}

std::string MessageOf(Operator op, const Status& status) {
  const Words words = WordsOf(op);
  const std::string prefix = std::string(words.function) + ": ";
  std::string_view message = WithoutHint(status.message());
  if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  return Renamed(message, words.names);
}

}  // namespace

Outcome ToOutcome(Operator op, const Status& status, int rule_code) {
  switch (status.code()) {
    case StatusCode::kOk: return {};
    case StatusCode::kNullPointer: return {ACLNN_ERR_PARAM_NULLPTR, MessageOf(op, status)};
    case StatusCode::kInvalidType:
    case StatusCode::kInvalidAlias:
    case StatusCode::kWorkspaceTooSmall: return {ACLNN_ERR_PARAM_INVALID, MessageOf(op, status)};
    case StatusCode::kInvalidAttribute:
    case StatusCode::kMissingArgument:
    case StatusCode::kInvalidShape: return {rule_code, MessageOf(op, status)};
    case StatusCode::kOutOfMemory:
    case StatusCode::kInternal: break;
  }
  return {ACLNN_ERR_INNER, MessageOf(op, status)};
}

}  // namespace gyrograd::cann
