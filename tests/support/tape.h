// Reverse-mode automatic differentiation of sums and products, and the operators' forwards in the words of their
// definitions: chunks, concatenation, even and odd channels. Nothing here calls the library or the witnesses.
#ifndef GYROGRAD_TESTS_SUPPORT_TAPE_H_
#define GYROGRAD_TESTS_SUPPORT_TAPE_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "gyrograd/rotary.h"

namespace gyrograd::testing {

class Tape {
 public:
  struct Node {
    double value = 0;
    double grad = 0;
    std::size_t parents[2] = {0, 0};
    double partials[2] = {0, 0};
  };

  std::size_t Leaf(double value) { return Push({value, 0, {0, 0}, {0, 0}}); }
  std::size_t Product(std::size_t a, std::size_t b) {
    return Push({nodes_[a].value * nodes_[b].value, 0, {a, b}, {nodes_[b].value, nodes_[a].value}});
  }
  std::size_t Sum(std::size_t a, std::size_t b) { return Push({nodes_[a].value + nodes_[b].value, 0, {a, b}, {1, 1}}); }
  std::size_t Negative(std::size_t a) { return Push({-nodes_[a].value, 0, {a, a}, {-1, 0}}); }
  std::size_t InverseSqrt(std::size_t a) {
    const double value = 1 / std::sqrt(nodes_[a].value);
    return Push({value, 0, {a, a}, {-value * value * value / 2, 0}});
  }

  double Value(std::size_t node) const { return nodes_[node].value; }
  double Grad(std::size_t node) const { return nodes_[node].grad; }
  void AddGrad(std::size_t node, double grad) { nodes_[node].grad += grad; }
  void Backward() {
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      for (int k = 0; k < 2; ++k) nodes_[nodes_[i].parents[k]].grad += nodes_[i].partials[k] * nodes_[i].grad;
    }
  }

 private:
  std::size_t Push(const Node& node) {
    nodes_.push_back(node);
    return nodes_.size() - 1;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);  // node 0 takes what leaves pass on
};

using Row = std::vector<std::size_t>;  // variables of a tape

Row Leaves(Tape& tape, const std::vector<double>& values);
std::vector<double> ValuesOf(const Tape& tape, const Row& row);
std::vector<double> GradsOf(const Tape& tape, const Row& row);

Row Cat(const std::vector<Row>& rows);
Row Multiply(Tape& tape, const Row& a, const Row& b);
Row Add(Tape& tape, const Row& a, const Row& b);

// One row of x, of which the part that `options` names turns by one row of the tables.
Row RotateRow(Tape& tape, const RotaryOptions& options, const Row& x, const Row& cos, const Row& sin);

// (x - mean) / sqrt(variance + eps) of one row; without `centred` x / sqrt(mean of squares + eps).
Row NormalizeRow(Tape& tape, const Row& x, bool centred, double eps);

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_TAPE_H_
