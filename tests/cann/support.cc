// Memory, handles and calls for the tests of the C interface.
#include "tests/cann/support.h"

#include <cctype>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "reference/elements.h"
#include "reference/rotary.h"

namespace gyrograd::testing {
aclDataType AclType(DType dtype) {
  switch (dtype) {
    case DType::kF64: return ACL_DOUBLE;
    case DType::kF32: return ACL_FLOAT;
    case DType::kF16: return ACL_FLOAT16;
    case DType::kBF16: return ACL_BF16;
  }
  return ACL_DT_UNDEFINED;
}

Shape ContiguousStrides(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

TensorHandle MakeHandle(const Shape& shape, aclDataType type, void* data, aclFormat format) {
  return TensorHandle(
      aclCreateTensor(shape.data(), shape.size(), type, nullptr, 0, format, shape.data(), shape.size(), data));
}

void Redescribe(Array& array, const Shape& shape, aclDataType type, aclFormat format) {
  static std::vector<std::uint64_t> ample(1 << 16);
  array.Describe(MakeHandle(shape, type, ample.data(), format));
}

Array::Array(DType dtype, const Shape& shape, Random& random)
    : dtype_(dtype), shape_(shape), strides_(ContiguousStrides(shape)) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  const std::size_t size = reference::ElementSize(dtype);
  bytes_.resize(count * size);
  std::uniform_real_distribution<double> values(-4, 4);
  for (std::size_t i = 0; i < count; ++i) reference::Store(values(random), bytes_.data() + i * size, dtype);
  handle_ = MakeHandle(shape_, AclType(dtype), bytes_.data());
}

std::string RecentMessages() {
  const char* messages = aclGetRecentErrMsg();
  return messages == nullptr ? "" : messages;
}

namespace {

// A name of the C++ interface; nothing where there is none. Names here have no '_' between small letters.
std::string_view ForeignName(std::string_view messages) {
  for (std::size_t i = 1; i + 1 < messages.size(); ++i) {
    if (messages[i] == '_' && std::islower(static_cast<unsigned char>(messages[i + 1])) != 0) {
      return messages.substr(i < 20 ? 0 : i - 20, 40);
    }
  }
  for (const std::string_view name : {"dquery", "dkey", "dvalue", "dencoder"}) {
    if (messages.find(name) != messages.npos) return name;
  }
  return {};
}

}  // namespace

::testing::AssertionResult Gives(aclnnStatus code, aclnnStatus want, const std::vector<std::string>& words) {
  const std::string messages = RecentMessages();
  if (code != want) return ::testing::AssertionFailure() << "code " << code << ", not " << want << "; " << messages;
  if (want == 0 && !messages.empty()) return ::testing::AssertionFailure() << "a message without failure: " << messages;
  if (want != 0 && messages.find(std::to_string(want)) == messages.npos) {
    return ::testing::AssertionFailure() << "no code in: " << messages;
  }
  if (const std::string_view name = ForeignName(messages); !name.empty()) {
    return ::testing::AssertionFailure() << "the C++ interface's '" << name << "' in: " << messages;
  }
  for (const std::string& word : words) {
    if (messages.find(word) == messages.npos) {
      return ::testing::AssertionFailure() << "no '" << word << "' in: " << messages;
    }
  }
  return ::testing::AssertionSuccess();
}

GradProblem::GradProblem(DType dtype, Shape dy_shape, Shape cos_shape, std::uint64_t seed)
    : random(seed),
      dy(dtype, dy_shape, random),
      cos(dtype, cos_shape, random),
      sin(dtype, cos_shape, random),
      x(dtype, dy_shape, random),
      dx(dtype, dy_shape, random),
      dcos(dtype, cos_shape, random),
      dsin(dtype, cos_shape, random) {}

aclnnStatus GradProblem::Plan() {
  return aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(dy.handle(), cos.handle(), sin.handle(),
                                                          with_x ? x.handle() : nullptr, mode, dx.handle(),
                                                          dcos.handle(), dsin.handle(), &workspace_size, &executor);
}

aclnnStatus GradProblem::Run() { return RunWithWorkspace(aclnnRotaryPositionEmbeddingGrad, workspace_size, executor); }

::testing::AssertionResult GradProblem::PlanAndRun() { return PlanAndRunProblem(*this); }

::testing::AssertionResult GradProblem::Check(bool tables) {
  std::vector<std::byte> want(dx.bytes().size());
  RotaryBackwardArgs args;
  args.dy = dy.in();
  args.cos = cos.in();
  args.sin = sin.in();
  args.x = x.in();
  args.dx = dx.out();
  args.options.mode = static_cast<RotaryMode>(mode);
  args.dx->data = want.data();
  reference::RotaryBackwardInput(args);
  ConstTensorView wanted = dx.in();
  wanted.data = want.data();
  ::testing::AssertionResult result = Matches("dx", reference::CompareBits(dx.in(), wanted));
  if (!result || !tables) return result;
  const reference::TableGradients sums = reference::RotaryBackwardTables(args);
  result = Matches("dcos", reference::CompareSums(dcos.in(), sums.dcos, dy.dtype()));
  return result ? Matches("dsin", reference::CompareSums(dsin.in(), sums.dsin, dy.dtype())) : result;
}

ForwardProblem::ForwardProblem(DType dtype, Shape x_shape, Shape cos_shape, std::uint64_t seed)
    : random(seed),
      x(dtype, x_shape, random),
      cos(dtype, cos_shape, random),
      sin(dtype, cos_shape, random),
      out(dtype, x_shape, random) {}

aclnnStatus ForwardProblem::Plan() {
  return aclnnRotaryPositionEmbeddingGetWorkspaceSize(x.handle(), cos.handle(), sin.handle(), mode, out.handle(),
                                                      &workspace_size, &executor);
}

aclnnStatus ForwardProblem::Run() { return RunWithWorkspace(aclnnRotaryPositionEmbedding, workspace_size, executor); }

::testing::AssertionResult ForwardProblem::PlanAndRun() { return PlanAndRunProblem(*this); }

::testing::AssertionResult ForwardProblem::Check() {
  std::vector<std::byte> want(out.bytes().size());
  RotaryArgs args{.x = x.in(), .cos = cos.in(), .sin = sin.in(), .y = out.out()};
  args.options.mode = static_cast<RotaryMode>(mode);
  args.y.data = want.data();
  reference::Rotary(args);
  ConstTensorView wanted = out.in();
  wanted.data = want.data();
  return Matches("out", reference::CompareBits(out.in(), wanted));
}

ScopedEnvironment::ScopedEnvironment(const char* name, const char* value) : name_(name) {
  value == nullptr ? unsetenv(name) : setenv(name, value, 1);
}

ScopedEnvironment::~ScopedEnvironment() { unsetenv(name_.c_str()); }

}  // namespace gyrograd::testing
