// Norm + rotary of more elements than 32 bits count, of very many short rows and very many heads: run by
// `make test-large` alone, in about 5 GB. The rows lie in one place, which is also the results'; all else that a row
// needs is one row or one number, repeated by strides of 0.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"
#include "tests/support/problem.h"
#include "tests/support/signs.h"

namespace gyrograd::testing {
namespace {

using Elements = std::vector<std::uint16_t>;

// The extents and strides that views refer to.
struct Axes {
  Shape shape, strides;

  template <class Pointer>
  BasicTensorView<Pointer> View(Pointer data, DType dtype) const {
    return {data, dtype, shape, strides};
  }
};

struct Large {
  const char* name;
  std::int64_t batch, positions, heads, width;
};

void PrintTo(const Large& large, std::ostream* out) { *out << large.name; }

constexpr Large kLarge[] = {{"MoreThan2To31Elements", 1, 21474837, 1, 100},
                            {"RowsOfTwo", 1, std::int64_t{1} << 28, 1, 2},
                            {"RowsOfEight", std::int64_t{1} << 14, std::int64_t{1} << 14, 1, 8},
                            {"ManyHeads", 1, 3, std::int64_t{1} << 26, 8}};

// A segment, of which the positions from `first_turned` on turn; and what its views refer to.
struct Sizes {
  Sizes(const Large& of, std::int64_t first_turned)
      : rows(of.batch * of.positions * of.heads),
        width(of.width),
        positions(of.positions),
        heads(of.heads),
        first(first_turned),
        x{{of.batch, positions, heads, width}, {positions * heads * width, heads * width, width, 1}},
        y{{of.batch, heads, positions, width}, {positions * heads * width, width, heads * width, 1}},
        dy{{of.batch, heads, positions, width}, {0, 0, 0, 1}},
        statistics{{of.batch, positions, heads, 1}, {0, 0, 0, 0}},
        tables{{positions - first, width}, {0, 1}},
        parameters{{width}, {1}} {}

  bool Turns(std::int64_t row) const { return row / heads % positions >= first; }

  std::int64_t rows, width, positions, heads, first;
  Axes x, y, dy, statistics, tables, parameters;
};

// Small whole numbers, and a mean and an rstd under which +1 and -1 become 3/8 and -5/8: every sum is exact.
class Row {
 public:
  explicit Row(std::int64_t width) : width_(static_cast<std::size_t>(width)) {
    for (std::size_t i = 0; i < width_; ++i) {
      const auto phase = static_cast<int>(i % 5);
      dy_.push_back(phase < 2 ? 0x3f80 : 0xc000);  // 1, -2
      cos_.push_back(static_cast<float>(phase % 3 - 1));
      sin_.push_back(static_cast<float>(1 - phase % 2));
      weight_.push_back(phase == 1 ? -0.5f : 2.f);
      bias_.push_back(0.25f * static_cast<float>(phase));
    }
  }

  // g: dy, turned back.
  std::vector<double> Gradient(bool turned) const {
    std::vector<double> g;
    for (const std::uint16_t bits : dy_) g.push_back(bits == 0x3f80 ? 1 : -2);
    const std::vector<double> dy = g;
    const std::size_t half = width_ / 2;
    for (std::size_t p = 0; turned && p < half; ++p) {
      g[p] = cos_[p] * dy[p] + sin_[p + half] * dy[p + half];
      g[p + half] = cos_[p + half] * dy[p + half] - sin_[p] * dy[p];
    }
    return g;
  }

  NormRopeRotation Rotation(const Sizes& sizes) const {
    return {.cos = sizes.tables.View<const void*>(cos_.data(), DType::kF32),
            .sin = sizes.tables.View<const void*>(sin_.data(), DType::kF32),
            .first = sizes.first};
  }

  // Every gradient; dx lies on x.
  NormRopeBackwardSegment Backward(const Sizes& sizes, void* x, std::vector<float>* dweight,
                                   std::vector<float>* dbias) const {
    NormRopeBackwardSegment segment;
    segment.dy = sizes.dy.View<const void*>(dy_.data(), DType::kBF16);
    segment.x = sizes.x.View<const void*>(x, DType::kBF16);
    segment.norm_type = NormType::kLayerAffine;
    segment.weight = sizes.parameters.View<const void*>(weight_.data(), DType::kF32);
    segment.mean = sizes.statistics.View<const void*>(&mean_, DType::kF32);
    segment.rstd = sizes.statistics.View<const void*>(&rstd_, DType::kF32);
    segment.rotation = Rotation(sizes);
    segment.dx = sizes.x.View(x, DType::kBF16);
    dweight->resize(width_);
    dbias->resize(width_);
    segment.dweight = sizes.parameters.View<void*>(dweight->data(), DType::kF32);
    segment.dbias = sizes.parameters.View<void*>(dbias->data(), DType::kF32);
    return segment;
  }

  // y lies on x.
  NormRopeSegment Forward(const Sizes& sizes, void* x) const {
    NormRopeSegment segment;
    segment.x = sizes.x.View<const void*>(x, DType::kBF16);
    segment.norm_type = NormType::kLayerAffine;
    segment.weight = sizes.parameters.View<const void*>(weight_.data(), DType::kF32);
    segment.bias = sizes.parameters.View<const void*>(bias_.data(), DType::kF32);
    segment.rotation = Rotation(sizes);
    segment.y = sizes.y.View(x, DType::kBF16);
    return segment;
  }

  // The sums over all rows of Signs().
  void CheckSums(const Sizes& sizes, const std::vector<float>& dweight, const std::vector<float>& dbias) const {
    std::vector<double> want_weight(width_), want_bias(width_);
    const std::vector<double> gradients[] = {Gradient(false), Gradient(true)};
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      const std::vector<double>& g = gradients[sizes.Turns(row)];
      for (std::size_t i = 0; i < width_; ++i) {
        const bool negative = IsNegative(static_cast<std::uint64_t>(row) * width_ + i);
        want_weight[i] += g[i] * (negative ? -0.625 : 0.375);
        want_bias[i] += g[i];
      }
    }
    for (std::size_t i = 0; i < width_; ++i) {
      EXPECT_EQ(dweight[i], static_cast<float>(want_weight[i])) << i;
      EXPECT_EQ(dbias[i], static_cast<float>(want_bias[i])) << i;
    }
  }

 private:
  std::size_t width_;
  Elements dy_;
  std::vector<float> cos_, sin_, weight_, bias_;
  float mean_ = 0.25f, rstd_ = 0.5f;
};

// The rows of `data` are what `compute` makes of each alone: (sizes of one row, the row, whether it turns).
template <class Compute>
void CompareRows(const Sizes& sizes, const Elements& data, const Compute& compute) {
  for (const std::int64_t row : RowsToCompare(sizes.rows, sizes.width)) {
    Elements one = Signs(sizes.width, row * sizes.width);
    ASSERT_TRUE(Ok(compute(Sizes({"", 1, 1, 1, sizes.width}, sizes.Turns(row) ? 0 : 1), &one)));
    const std::size_t bytes = one.size() * sizeof(one[0]);
    EXPECT_EQ(std::memcmp(one.data(), data.data() + row * sizes.width, bytes), 0) << "row " << row;
  }
}

Status BackwardOfOne(const Row& row, const Sizes& sizes, Elements* x) {
  std::vector<float> dweight, dbias;
  const NormRopeBackwardSegment segments[] = {row.Backward(sizes, x->data(), &dweight, &dbias)};
  return NormRopeBackward({segments});
}

class NormRopeLarge : public ::testing::TestWithParam<Large> {
 protected:
  static Sizes SizesOf(const Large& large) { return Sizes(large, large.positions / 2); }
};

TEST_P(NormRopeLarge, BackwardInPlace) {
  const Sizes sizes = SizesOf(GetParam());
  const Row row(sizes.width);
  Elements data = Signs(sizes.rows * sizes.width);
  std::vector<float> dweight, dbias;
  const NormRopeBackwardSegment segments[] = {row.Backward(sizes, data.data(), &dweight, &dbias)};
  ASSERT_TRUE(Ok(NormRopeBackward({segments})));
  row.CheckSums(sizes, dweight, dbias);
  CompareRows(sizes, data, [&](const Sizes& one, Elements* x) { return BackwardOfOne(row, one, x); });
}

TEST_P(NormRopeLarge, ForwardInPlace) {
  const Sizes sizes = SizesOf(GetParam());
  const Row row(sizes.width);
  Elements data = Signs(sizes.rows * sizes.width);
  const NormRopeSegment segments[] = {row.Forward(sizes, data.data())};
  ASSERT_TRUE(Ok(NormRope({segments})));
  CompareRows(sizes, data, [&](const Sizes& one, Elements* x) {
    const NormRopeSegment alone[] = {row.Forward(one, x->data())};
    return NormRope({alone});
  });
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeLarge, ::testing::ValuesIn(kLarge),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// The joint call: an encoder stream of five positions before a stream of more elements than 32 bits count.
TEST(NormRopeConcatLarge, BackwardInPlace) {
  constexpr std::int64_t kEncoder = 5, kHeads = 2, kWidth = 64, kPositions = (std::int64_t{1} << 24) + 3;
  const Sizes stream({"", 1, kPositions, kHeads, kWidth}, kPositions / 2);
  const Sizes encoder({"", 1, kEncoder, kHeads, kWidth}, kEncoder);
  const Axes joint = {{1, kHeads, kEncoder + kPositions, kWidth}, {0, 0, 0, 1}};
  const Row row(kWidth);
  Elements data = Signs(stream.rows * kWidth), encoder_data = Signs(encoder.rows * kWidth);
  std::vector<float> dweight, dbias, encoder_dweight, encoder_dbias;
  const auto first = row.Backward(encoder, encoder_data.data(), &encoder_dweight, &encoder_dbias);
  const auto second = row.Backward(stream, data.data(), &dweight, &dbias);
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = joint.View(second.dy.data, DType::kBF16);
  args.query = second.x;
  args.encoder_query = first.x;
  args.rope_cos = second.rotation->cos;
  args.rope_sin = second.rotation->sin;
  args.norm_query = {second.weight, second.mean, second.rstd, second.dweight, second.dbias};
  args.norm_added_query = {first.weight, first.mean, first.rstd, first.dweight, first.dbias};
  args.dquery = second.dx;
  args.dencoder_query = first.dx;
  args.options = {.norm_type = NormType::kLayerAffine,
                  .norm_added_type = NormType::kLayerAffine,
                  .rotary = RotaryOptions{},
                  .concat_order = ConcatOrder::kEncoderFirst,
                  .rope_start = kEncoder + stream.first};
  ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
  row.CheckSums(stream, dweight, dbias);
  row.CheckSums(encoder, encoder_dweight, encoder_dbias);
  const auto alone = [&](const Sizes& one, Elements* x) { return BackwardOfOne(row, one, x); };
  CompareRows(stream, data, alone);
  CompareRows(encoder, encoder_data, alone);
}

}  // namespace
}  // namespace gyrograd::testing
