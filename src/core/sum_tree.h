// The order in which the terms of one table element are added: a function of the number of terms and of table elements
// alone, so that neither threads nor layouts nor the outputs wanted can change a bit.
//
//   run    16 terms, one after the other, in the arithmetic type (f32, or f64 for f64)
//   chunk  its runs, one after the other, in f64 (for f64: with compensation)
//   sum    the chunks, in index order, in f64 (for f64: with compensation); then one rounding
//
// A chunk is a multiple of 16 terms. There is more than one only where the tables are small: then the chunks are what
// several threads can work on.
#ifndef GYROGRAD_CORE_SUM_TREE_H_
#define GYROGRAD_CORE_SUM_TREE_H_

#include <algorithm>
#include <cstdint>

namespace gyrograd::internal {

struct SumTree {
  static constexpr std::int64_t kRunTerms = 16;
  static constexpr std::int64_t kMaxChunks = 64;
  // Chunk totals never take more than this many f64 values for each of dcos and dsin.
  static constexpr std::int64_t kMaxPartials = std::int64_t{1} << 16;
  // A chunk has at least this many products, or it is not worth a visit.
  static constexpr std::int64_t kMinChunkWork = std::int64_t{1} << 14;

  std::int64_t terms = 1;
  std::int64_t chunks = 1;
  std::int64_t chunk_terms = 1;  // of every chunk but the last

  static SumTree For(std::int64_t terms, std::int64_t table_elements) {
    const std::int64_t most = std::clamp<std::int64_t>(kMaxPartials / table_elements, 1, kMaxChunks);
    const std::int64_t wanted = std::max((terms - 1) / most + 1, (kMinChunkWork - 1) / table_elements + 1);
    SumTree tree;
    tree.terms = terms;
    tree.chunk_terms = most == 1 ? terms : std::min(terms, (wanted + kRunTerms - 1) / kRunTerms * kRunTerms);
    tree.chunks = (terms - 1) / tree.chunk_terms + 1;
    return tree;
  }
};

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_SUM_TREE_H_
