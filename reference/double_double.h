// Arithmetic of about 106 bits, and sums that are exact but for their last bits. Independent of the library.
#ifndef GYROGRAD_REFERENCE_DOUBLE_DOUBLE_H_
#define GYROGRAD_REFERENCE_DOUBLE_DOUBLE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gyrograd::reference {

// high + low, high being that rounded to double. Not finite: high alone.
struct DoubleDouble {
  constexpr DoubleDouble(double high_part = 0, double low_part = 0)  // NOLINT(runtime/explicit): a double is one
      : high(high_part), low(low_part) {}
  double high;
  double low;
};

inline DoubleDouble TwoSum(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return {sum, 0};
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

inline DoubleDouble TwoProduct(double a, double b) {
  const double product = a * b;
  if (!std::isfinite(product)) return {product, 0};
  return {product, std::fma(a, b, -product)};
}

inline DoubleDouble operator-(const DoubleDouble& a) { return {-a.high, -a.low}; }

inline DoubleDouble operator+(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble sum = TwoSum(a.high, b.high);
  return TwoSum(sum.high, sum.low + (a.low + b.low));
}

inline DoubleDouble operator-(const DoubleDouble& a, const DoubleDouble& b) { return a + -b; }

inline DoubleDouble operator*(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble product = TwoProduct(a.high, b.high);
  if (!std::isfinite(product.high)) return product;
  return TwoSum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

inline DoubleDouble operator/(const DoubleDouble& a, const DoubleDouble& b) {
  const double first = a.high / b.high;
  if (!std::isfinite(first) || std::isinf(b.high)) return first;
  const DoubleDouble rest = a - DoubleDouble(first) * b;
  const double second = rest.high / b.high;
  const DoubleDouble last = rest - DoubleDouble(second) * b;
  return DoubleDouble(first) + DoubleDouble(second) + DoubleDouble(last.high / b.high);
}

inline DoubleDouble Sqrt(const DoubleDouble& a) {
  const double root = std::sqrt(a.high);
  if (root == 0 || !std::isfinite(root)) return root;
  const DoubleDouble rest = a - TwoProduct(root, root);
  return TwoSum(root, rest.high / (2 * root));
}

// The two parts of a number, for templates that also run on double.
inline double High(double value) { return value; }
inline double High(const DoubleDouble& value) { return value.high; }
inline double Low(double) { return 0; }
inline double Low(const DoubleDouble& value) { return value.low; }

// Sums, each exact up to 2^-100 of magnitude for each term. Terms that are infinite or NaN make high what IEEE addition
// makes.
struct ExactSums {
  std::vector<double> high;
  std::vector<double> low;
  std::vector<double> magnitude;  // sum of the terms' magnitudes, of the finite ones
  std::int64_t terms = 0;         // the number of terms of every sum
};

// Sums that are being formed.
class Accumulators {
 public:
  Accumulators(std::int64_t count, std::int64_t terms)
      : terms_(terms), sums_(static_cast<std::size_t>(count)), magnitudes_(static_cast<std::size_t>(count)) {}

  void Add(std::int64_t element, const DoubleDouble& term, double magnitude) {
    const auto i = static_cast<std::size_t>(element);
    sums_[i] = terms_ == 1 ? term : sums_[i] + term;  // one term is the sum, its -0 too
    if (std::isfinite(magnitude)) magnitudes_[i] += magnitude;
  }

  ExactSums Finish() && {
    ExactSums result;
    result.terms = terms_;
    for (const DoubleDouble& sum : sums_) {
      result.high.push_back(sum.high);
      result.low.push_back(sum.low);
    }
    result.magnitude = std::move(magnitudes_);
    return result;
  }

 private:
  std::int64_t terms_;
  std::vector<DoubleDouble> sums_;
  std::vector<double> magnitudes_;
};

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_DOUBLE_DOUBLE_H_
