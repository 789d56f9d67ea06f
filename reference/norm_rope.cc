// Both witnesses of the norm and rotary segments, row by row in the words of the formulas.
#include "reference/norm_rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "reference/double_double.h"
#include "reference/elements.h"
#include "reference/rotation.h"
#include "reference/walk.h"

namespace gyrograd::reference {
namespace {

// ---- Norms and rows ---------------------------------------------------------------------------------------------

bool HasNorm(NormType type) { return type != NormType::kNone; }
bool HasMean(NormType type) { return type == NormType::kLayer || type == NormType::kLayerAffine; }
bool HasWeight(NormType type) { return type == NormType::kLayerAffine || type == NormType::kRmsAffine; }
bool HasBias(NormType type) { return type == NormType::kLayerAffine; }

// A row of a segment: [b, s, n] in x's order of axes, [b, n, s] in y's.
struct Place {
  Index b = 0, s = 0, n = 0;
};

Index OffsetOfX(const Place& at, std::span<const Index> strides) {
  return Offset(std::array<Index, 3>{at.b, at.s, at.n}, strides);
}

Index OffsetOfY(const Place& at, std::span<const Index> strides) {
  return Offset(std::array<Index, 3>{at.b, at.n, at.s}, strides);
}

// The extents of x, [B, S, N, D], from those of y, [B, N, S, D].
std::array<Index, 4> ShapeOfX(std::span<const Index> y) { return {y[0], y[2], y[1], y[3]}; }

template <class Number>
Number LoadScalar(const ConstTensorView& view, Index offset) {
  return static_cast<Number>(Load(Address(view.data, view.dtype, offset), view.dtype));
}

template <class Body>
void ForEachPlace(std::span<const Index> x_shape, const Body& body) {
  ForEachRow(x_shape, [&](const Indices& index) { body(Place{index[0], index[1], index[2]}); });
}

template <class Number>
std::vector<Number> Vector(const ConstTensorView& view) {
  std::vector<Number> values(static_cast<std::size_t>(view.shape.back()));
  LoadRow(view, 0, 0, values);
  return values;
}

// ---- The rotation of a segment's rows ---------------------------------------------------------------------------

// Which positions turn, and the tables' rows there.
template <class Number>
class Turns {
 public:
  Turns(const std::optional<NormRopeRotation>& rotation, Index head_dim) {
    if (!rotation) return;
    given_ = *rotation;
    rotation_ = MakeRotation(given_.options, head_dim);
    cos_.resize(static_cast<std::size_t>(given_.cos.shape.back()));
    sin_.resize(cos_.size());
    in_.resize(static_cast<std::size_t>(rotation_.width));
    out_.resize(in_.size());
    length_ = given_.cos.shape[2];
  }

  // Reads the tables' rows at a position; false where the position passes.
  bool Load(const Place& at) {
    const Index position = at.s - given_.first;
    if (position < 0 || position >= length_) return false;
    const std::array<Index, 3> index = {at.b, at.n, position};
    LoadRow(given_.cos, BroadcastOffset(index, given_.cos.shape, given_.cos.strides), 0, cos_);
    LoadRow(given_.sin, BroadcastOffset(index, given_.sin.shape, given_.sin.strides), 0, sin_);
    return true;
  }

  // Rotates the row in place.
  void Forward(std::vector<Number>& row) { Apply(ForwardRow<Number>, row); }
  void Backward(std::vector<Number>& row) { Apply(BackwardRow<Number>, row); }

  // R from dy: |cos * dy| + |sin * partner's dy|.
  void Magnitudes(const std::vector<Number>& dy, std::vector<double>& magnitudes) const {
    for (Index p = 0; p < rotation_.pairs(); ++p) {
      const Index t0 = ChannelOfTable(rotation_, p, 0), t1 = ChannelOfTable(rotation_, p, 1);
      const double dy0 = High(dy[rotation_.first + ChannelOfY(rotation_, p, 0)]);
      const double dy1 = High(dy[rotation_.first + ChannelOfY(rotation_, p, 1)]);
      magnitudes[rotation_.first + ChannelOfX(rotation_, p, 0)] =
          std::fabs(High(cos_[t0]) * dy0) + std::fabs(High(sin_[t1]) * dy1);
      magnitudes[rotation_.first + ChannelOfX(rotation_, p, 1)] =
          std::fabs(High(cos_[t1]) * dy1) + std::fabs(High(sin_[t0]) * dy0);
    }
  }

  bool TablesFinite() const {
    const auto finite = [](const Number& value) { return std::isfinite(High(value)); };
    return std::all_of(cos_.begin(), cos_.end(), finite) && std::all_of(sin_.begin(), sin_.end(), finite);
  }

 private:
  template <class RowFunction>
  void Apply(RowFunction function, std::vector<Number>& row) {
    std::copy_n(row.begin() + rotation_.first, rotation_.width, in_.begin());
    function(rotation_, in_, cos_, sin_, out_);
    std::copy(out_.begin(), out_.end(), row.begin() + rotation_.first);
  }

  NormRopeRotation given_;
  Rotation rotation_;
  Index length_ = 0;
  std::vector<Number> cos_, sin_, in_, out_;
};

// ---- Statistics -------------------------------------------------------------------------------------------------

struct RowStatistics {
  DoubleDouble mean, rstd;
  double mean_bound = 0, rstd_bound = 0;
};

RowStatistics StatisticsOf(const std::vector<DoubleDouble>& x, NormType type, double eps, double c) {
  RowStatistics result;
  const auto count = static_cast<double>(x.size());
  double magnitude = 0;
  if (HasMean(type)) {
    DoubleDouble sum;
    for (const DoubleDouble& value : x) {
      sum = sum + value;
      magnitude += std::fabs(value.high);
    }
    result.mean = sum / count;
    result.mean_bound = c * (magnitude / count);
  }
  DoubleDouble squares;
  for (const DoubleDouble& value : x) {
    const DoubleDouble deviation = value - result.mean;
    squares = squares + deviation * deviation;
  }
  const DoubleDouble variance = squares / count + eps;
  result.rstd = DoubleDouble(1) / Sqrt(variance);
  const double shift = result.mean_bound == 0 ? 0 : result.mean_bound / std::sqrt(variance.high);
  result.rstd_bound = result.rstd.high * (c + shift * shift);
  return result;
}

double StatisticsError(DType activations) { return activations == DType::kF64 ? 1e-14 : 1e-12; }

// ---- formula: the forward ---------------------------------------------------------------------------------------

// y = rotary(norm(x)) on every row in the arithmetic of Real, from statistics of its own or from the saved ones.
template <class Real>
class Forward {
 public:
  Forward(const NormRopeSegment& segment, bool saved_statistics)
      : segment_(segment),
        type_(segment.norm_type),
        saved_statistics_(saved_statistics),
        turns_(segment.rotation, segment.x.shape.back()),
        row_(static_cast<std::size_t>(segment.x.shape.back())) {
    if (HasWeight(type_) && segment.weight) weight_ = Vector<Real>(*segment.weight);  // rows without elements need none
    if (HasBias(type_) && segment.bias) bias_ = Vector<Real>(*segment.bias);
  }

  void Run() {
    ForEachPlace(segment_.x.shape, [&](const Place& at) { Row(at); });
  }

 private:
  void Row(const Place& at) {
    const Index x_offset = OffsetOfX(at, segment_.x.strides);
    LoadRow(segment_.x, x_offset, 0, row_);
    if (HasNorm(type_)) Normalize(at, x_offset);
    if (turns_.Load(at)) turns_.Forward(row_);
    StoreRow(at);
  }

  void Normalize(const Place& at, Index x_offset) {
    const auto [mean, rstd] = saved_statistics_ ? SavedStatistics(at) : OwnStatistics(at, x_offset);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      if (HasMean(type_)) row_[i] = row_[i] - mean;
      row_[i] = row_[i] * rstd;
      if (HasWeight(type_)) row_[i] = row_[i] * weight_[i];
      if (HasBias(type_)) row_[i] = row_[i] + bias_[i];
    }
  }

  std::pair<Real, Real> SavedStatistics(const Place& at) const {
    const auto read = [&](const TensorView& view) {
      return LoadScalar<Real>({view.data, view.dtype, view.shape, view.strides}, OffsetOfX(at, view.strides));
    };
    return {HasMean(type_) ? read(*segment_.mean) : Real{0}, read(*segment_.rstd)};
  }

  std::pair<Real, Real> OwnStatistics(const Place& at, Index x_offset) {
    std::vector<DoubleDouble> x(row_.size());
    LoadRow(segment_.x, x_offset, 0, x);
    const RowStatistics exact = StatisticsOf(x, type_, segment_.eps, 0);
    const auto write = [&](const std::optional<TensorView>& view, double value) {
      if (view) Store(value, Address(view->data, view->dtype, OffsetOfX(at, view->strides)), view->dtype);
    };
    if (HasMean(type_)) write(segment_.mean, exact.mean.high);
    write(segment_.rstd, exact.rstd.high);
    return {static_cast<Real>(exact.mean.high), static_cast<Real>(exact.rstd.high)};
  }

  void StoreRow(const Place& at) {
    const TensorView& y = segment_.y;
    const Index offset = OffsetOfY(at, y.strides);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      Store(row_[i], Address(y.data, y.dtype, offset + static_cast<Index>(i) * y.strides.back()), y.dtype);
    }
  }

  const NormRopeSegment& segment_;
  NormType type_;
  bool saved_statistics_;
  Turns<Real> turns_;
  std::vector<Real> row_, weight_, bias_;
};

void RunForward(const NormRopeSegment& segment, bool saved_statistics) {
  if (segment.x.dtype == DType::kF64) {
    Forward<double>(segment, saved_statistics).Run();
  } else {
    Forward<float>(segment, saved_statistics).Run();
  }
}

// ---- The backward's rows ----------------------------------------------------------------------------------------

// One row after another of a segment's backward, in the arithmetic of Number, up to the norm's own gradient.
template <class Number>
class BackwardRows {
 public:
  explicit BackwardRows(const NormRopeBackwardSegment& segment)
      : g(static_cast<std::size_t>(segment.dy.shape.back())),
        x(g.size()),
        x_hat(g.size()),
        magnitude(g.size()),
        segment_(segment),
        turns_(segment.rotation, segment.dy.shape.back()) {}

  void Load(const Place& at) {
    LoadGradient(at);
    if (HasNorm(segment_.norm_type)) LoadNormalized(at);
  }

  std::vector<Number> g;         // after rotary is undone
  std::vector<Number> x, x_hat;  // with a norm
  Number mean{}, rstd{};
  std::vector<double> magnitude;  // R: |g| if nothing cancelled
  bool finite = true;             // every input of the row is

 private:
  void LoadGradient(const Place& at) {
    LoadRow(segment_.dy, OffsetOfY(at, segment_.dy.strides), 0, g);
    finite = Finite(g);
    for (std::size_t i = 0; i < g.size(); ++i) magnitude[i] = std::fabs(High(g[i]));
    if (!turns_.Load(at)) return;
    finite = finite && turns_.TablesFinite();
    turns_.Magnitudes(g, magnitude);
    turns_.Backward(g);
  }

  void LoadNormalized(const Place& at) {
    LoadRow(*segment_.x, OffsetOfX(at, segment_.x->strides), 0, x);
    const bool has_mean = HasMean(segment_.norm_type);
    if (has_mean) mean = LoadScalar<Number>(*segment_.mean, OffsetOfX(at, segment_.mean->strides));
    rstd = LoadScalar<Number>(*segment_.rstd, OffsetOfX(at, segment_.rstd->strides));
    for (std::size_t i = 0; i < x.size(); ++i) x_hat[i] = (has_mean ? x[i] - mean : x[i]) * rstd;
    finite = finite && Finite(x) && std::isfinite(High(mean)) && std::isfinite(High(rstd));
  }

  static bool Finite(const std::vector<Number>& row) {
    return std::all_of(row.begin(), row.end(), [](const Number& value) { return std::isfinite(High(value)); });
  }

  const NormRopeBackwardSegment& segment_;
  Turns<Number> turns_;
};

// The largest magnitude that an intermediate may reach. Infinities that the inputs brought are no overflow.
class Peak {
 public:
  void Reach(double magnitude, bool inputs_finite) {
    if (std::isfinite(magnitude)) {
      peak_ = std::max(peak_, magnitude);
    } else if (inputs_finite) {
      peak_ = std::numeric_limits<double>::infinity();
    }
  }
  bool MayOverflow(DType activations) const {
    return peak_ * (1 + 1e-5) > Largest(activations == DType::kF64 ? DType::kF64 : DType::kF32);
  }

 private:
  double peak_ = 0;
};

// ---- exact: dx --------------------------------------------------------------------------------------------------

// The gradient of one row through its norm, and the magnitudes that its bounds are made of.
template <class Wide>
class NormGradient {
 public:
  explicit NormGradient(const NormRopeBackwardSegment& segment)
      : type_(segment.norm_type), activations_(segment.dy.dtype) {
    const auto head_dim = static_cast<std::size_t>(segment.dy.shape.back());
    weight_.assign(head_dim, Wide(1));
    if (HasWeight(type_) && segment.weight) weight_ = Vector<Wide>(*segment.weight);
    for (const Wide& value : weight_) {
      weights_finite_ = weights_finite_ && std::isfinite(High(value));
      max_weight_ = std::max(max_weight_, std::fabs(High(value)));
    }
    h_.resize(head_dim);
    magnitude_.resize(head_dim);
  }

  void Append(const BackwardRows<Wide>& row, BoundedValues* dx) {
    Means(row);
    const bool f64 = activations_ == DType::kF64;
    const double rstd = std::fabs(High(row.rstd)), spread = 1 + max_x_hat_;
    const double underflow = std::ldexp((1 + max_weight_) * spread * spread * std::max(1.0, rstd), f64 ? -1071 : -147);
    const char may_overflow = MayOverflow(row);
    for (std::size_t i = 0; i < h_.size(); ++i) {
      const Wide centred = HasMean(type_) ? h_[i] - mean_h_ : h_[i];
      const Wide value = row.rstd * (centred - row.x_hat[i] * mean_h_x_hat_);
      dx->high.push_back(High(value));
      if (f64) dx->low.push_back(Low(value));
      dx->bound.push_back((f64 ? 2e-14 : 6e-6) * (rstd * Magnitude(row, i)) + underflow);
      dx->may_overflow.push_back(may_overflow);
    }
  }

 private:
  // mean(h), mean(h * x_hat), and the same of magnitudes.
  void Means(const BackwardRows<Wide>& row) {
    Wide sum_h{}, sum_h_x_hat{};
    sum_magnitude_ = sum_magnitude_x_hat_ = max_x_hat_ = 0;
    for (std::size_t i = 0; i < h_.size(); ++i) {
      const double x_hat = std::fabs(High(row.x_hat[i]));
      h_[i] = row.g[i] * weight_[i];
      magnitude_[i] = std::fabs(High(weight_[i])) * row.magnitude[i];
      sum_h = sum_h + h_[i];
      sum_h_x_hat = sum_h_x_hat + h_[i] * row.x_hat[i];
      sum_magnitude_ += magnitude_[i];
      sum_magnitude_x_hat_ += magnitude_[i] * x_hat;
      max_x_hat_ = std::max(max_x_hat_, x_hat);
    }
    count_ = static_cast<double>(h_.size());
    mean_h_ = sum_h / Wide(count_);
    mean_h_x_hat_ = sum_h_x_hat / Wide(count_);
  }

  // G + mean G + |x_hat| * mean(G * |x_hat|).
  double Magnitude(const BackwardRows<Wide>& row, std::size_t i) const {
    return magnitude_[i] + (HasMean(type_) ? sum_magnitude_ / count_ : 0) +
           std::fabs(High(row.x_hat[i])) * (sum_magnitude_x_hat_ / count_);
  }

  bool MayOverflow(const BackwardRows<Wide>& row) const {
    Peak peak;
    const bool finite = row.finite && weights_finite_;
    const double mean = std::fabs(High(row.mean)), rstd = std::fabs(High(row.rstd));
    for (std::size_t i = 0; i < h_.size(); ++i) {
      peak.Reach(row.magnitude[i], finite);
      peak.Reach(HasMean(type_) ? std::fabs(High(row.x[i])) + mean : 0, finite);
      peak.Reach(std::fabs(High(row.x_hat[i])), finite);
      peak.Reach(Magnitude(row, i), finite);
      peak.Reach(rstd * Magnitude(row, i), finite);
    }
    peak.Reach(HasMean(type_) ? sum_magnitude_ : 0, finite);
    peak.Reach(sum_magnitude_x_hat_, finite);
    return peak.MayOverflow(activations_);
  }

  NormType type_;
  DType activations_;
  std::vector<Wide> weight_, h_;
  std::vector<double> magnitude_;  // G
  bool weights_finite_ = true;
  double max_weight_ = 0, max_x_hat_ = 0, sum_magnitude_ = 0, sum_magnitude_x_hat_ = 0, count_ = 0;
  Wide mean_h_{}, mean_h_x_hat_{};
};

// ---- exact: dweight and dbias -----------------------------------------------------------------------------------

DoubleDouble Exactly(double value) { return value; }
DoubleDouble Exactly(const DoubleDouble& value) { return value; }

// Sums over a segment's rows, one for each channel.
class WeightSums {
 public:
  WeightSums(Index head_dim, Index terms) : terms_(terms), sums_(head_dim, terms), columns_(head_dim) {}

  template <class Wide>
  void AddProducts(const BackwardRows<Wide>& row) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const double x_hat = std::fabs(High(row.x_hat[i])), magnitude = row.magnitude[i] * x_hat;
      sums_.Add(static_cast<Index>(i), Exactly(row.g[i]) * Exactly(row.x_hat[i]), magnitude);
      columns_[i].Note(row.magnitude[i], x_hat);
      const double difference = std::fabs(High(row.x[i])) + std::fabs(High(row.mean));
      for (const double reached : {row.magnitude[i], difference, x_hat, magnitude}) {
        columns_[i].peak.Reach(reached, row.finite);
      }
    }
  }

  template <class Wide>
  void AddGradients(const BackwardRows<Wide>& row) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      sums_.Add(static_cast<Index>(i), Exactly(row.g[i]), row.magnitude[i]);
      columns_[i].Note(row.magnitude[i], std::fabs(High(row.x_hat[i])));
      columns_[i].peak.Reach(row.magnitude[i], row.finite);
    }
  }

  BoundedValues Finish(DType activations) && {
    const bool f64 = activations == DType::kF64;
    ExactSums sums = std::move(sums_).Finish();
    BoundedValues values = {std::move(sums.high), std::move(sums.low), {}};
    for (std::size_t i = 0; i < columns_.size() && terms_ > 1; ++i) {
      Column& column = columns_[i];
      const double underflow = std::ldexp(4 * (1 + column.max_x_hat) * (1 + column.max_magnitude), f64 ? -1073 : -149);
      values.bound.push_back((f64 ? 1e-14 : 1.25e-6) * sums.magnitude[i] + static_cast<double>(terms_) * underflow);
      column.peak.Reach(sums.magnitude[i], true);
      values.may_overflow.push_back(column.peak.MayOverflow(activations));
    }
    return values;
  }

 private:
  // What the bound of one sum needs beside the sum of magnitudes.
  struct Column {
    double max_magnitude = 0, max_x_hat = 0;  // of the finite ones
    Peak peak;

    void Note(double magnitude, double x_hat) {
      if (std::isfinite(magnitude)) max_magnitude = std::max(max_magnitude, magnitude);
      if (std::isfinite(x_hat)) max_x_hat = std::max(max_x_hat, x_hat);
    }
  };

  Index terms_;
  Accumulators sums_;
  std::vector<Column> columns_;
};

// A sum of one term is the term, formed in the arithmetic of Real.
template <class Real>
BoundedValues OneTerm(const NormRopeBackwardSegment& segment, bool times_x_hat) {
  BackwardRows<Real> row(segment);
  row.Load({});
  BoundedValues values;
  for (std::size_t i = 0; i < row.g.size(); ++i) {
    values.high.push_back(times_x_hat ? row.g[i] * row.x_hat[i] : row.g[i]);
  }
  return values;
}

// ---- The whole backward -----------------------------------------------------------------------------------------

// Without norm dx is g, rounded once; what passes is its own rounding.
template <class Real>
NormRopeGradients WithoutNorm(const NormRopeBackwardSegment& segment) {
  NormRopeGradients result;
  if (!segment.dx) return result;
  BackwardRows<Real> row(segment);
  ForEachPlace(ShapeOfX(segment.dy.shape), [&](const Place& at) {
    row.Load(at);
    result.dx.high.insert(result.dx.high.end(), row.g.begin(), row.g.end());
  });
  return result;
}

template <class Real, class Wide>
NormRopeGradients WithNorm(const NormRopeBackwardSegment& segment) {
  const std::array<Index, 4> shape = ShapeOfX(segment.dy.shape);
  const Index head_dim = shape[3], terms = shape[0] * shape[1] * shape[2];
  NormRopeGradients result;
  BackwardRows<Wide> row(segment);
  std::optional<NormGradient<Wide>> norm_gradient;
  if (segment.dx && terms > 0) norm_gradient.emplace(segment);
  WeightSums dweight(head_dim, terms), dbias(head_dim, terms);
  ForEachPlace(shape, [&](const Place& at) {
    row.Load(at);
    if (norm_gradient) norm_gradient->Append(row, &result.dx);
    if (segment.dweight) dweight.AddProducts(row);
    if (segment.dbias) dbias.AddGradients(row);
  });
  const auto finish = [&](WeightSums&& sums, bool times_x_hat) {
    return terms == 1 ? OneTerm<Real>(segment, times_x_hat) : std::move(sums).Finish(segment.dy.dtype);
  };
  if (segment.dweight) result.dweight = finish(std::move(dweight), true);
  if (segment.dbias) result.dbias = finish(std::move(dbias), false);
  return result;
}

}  // namespace

void NormRope(const NormRopeSegment& segment) { RunForward(segment, false); }

void NormRopeFromStatistics(const NormRopeSegment& segment) { RunForward(segment, true); }

NormStatistics ExactStatistics(const NormRopeSegment& segment) {
  NormStatistics result;
  if (!HasNorm(segment.norm_type)) return result;
  const double c = StatisticsError(segment.x.dtype);
  std::vector<DoubleDouble> x(static_cast<std::size_t>(segment.x.shape.back()));
  const auto append = [](BoundedValues& values, const DoubleDouble& value, double bound) {
    values.high.push_back(value.high);
    values.low.push_back(value.low);
    values.bound.push_back(bound);
  };
  ForEachPlace(segment.x.shape, [&](const Place& at) {
    LoadRow(segment.x, OffsetOfX(at, segment.x.strides), 0, x);
    const RowStatistics row = StatisticsOf(x, segment.norm_type, segment.eps, c);
    if (HasMean(segment.norm_type)) append(result.mean, row.mean, row.mean_bound);
    append(result.rstd, row.rstd, row.rstd_bound);
  });
  return result;
}

NormRopeGradients NormRopeBackward(const NormRopeBackwardSegment& segment) {
  const bool f64 = segment.dy.dtype == DType::kF64;
  if (segment.norm_type == NormType::kNone) {
    return f64 ? WithoutNorm<double>(segment) : WithoutNorm<float>(segment);
  }
  return f64 ? WithNorm<double, DoubleDouble>(segment) : WithNorm<float, double>(segment);
}

}  // namespace gyrograd::reference
