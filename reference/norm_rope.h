// The two witnesses of the norm and rotary segments: plain loops over strides, independent of the library's kernels.
//   formula  operation by operation in f32 (f64 for f64): what y, and dx without norm, must equal, bit for bit
//   exact    double (f64: double-double): what statistics, and gradients through a norm, must be close to, with bounds
// Compare with CompareBits and CompareBounded. Arguments must be valid; nothing is checked here. The caller's
// floating-point environment must be the default one.
#ifndef GYROGRAD_REFERENCE_NORM_ROPE_H_
#define GYROGRAD_REFERENCE_NORM_ROPE_H_

#include "gyrograd/norm_rope.h"
#include "reference/compare.h"

namespace gyrograd::reference {

// formula: writes segment.y, and segment.mean and segment.rstd where given, from exact statistics rounded once.
void NormRope(const NormRopeSegment& segment);

// formula: writes segment.y from the mean and rstd that stand in segment.mean and segment.rstd, which it only reads.
void NormRopeFromStatistics(const NormRopeSegment& segment);

// exact: the statistics of the norm's rows, row-major over [B, S, N, 1]; mean is empty where the norm has none. The
// bounds leave room for sums in f64 (f64: compensated): 1e-12 (f64: 1e-14) of mean |x| for the mean; that of rstd, and
// what such an error of the mean does to it, for rstd.
struct NormStatistics {
  BoundedValues mean;
  BoundedValues rstd;
};
NormStatistics ExactStatistics(const NormRopeSegment& segment);

// What the outputs that the segment wants must be, from the saved mean and rstd; empty for the others. Their memory is
// not looked at.
//   dx       without norm the formula's bits. With norm the exact value, and the bound 6e-6 * rstd * (G + mean G +
//            |x_hat| * mean(G * |x_hat|)) + 2^-147 * (1 + max |weight|) * (1 + max |x_hat|)^2 * max(1, rstd), where G
//            is |weight| * R, and R is |cos * dy| + |sin * partner's dy| (unrotated: |dy|); RMS norms without mean G
//   dweight  the exact sum of g * x_hat, and the bound 1.25e-6 * sum of R * |x_hat| + terms * U
//   dbias    the exact sum of g, and the bound 1.25e-6 * sum of R + terms * U
// with U = 2^-149 * 4 * (1 + max |x_hat|) * (1 + max R) over the sum's terms. A sum of one term is the formula's term,
// to the bit; a sum of none +0. f64: 2e-14 and 2^-1071; 1e-14 and 2^-1073.
struct NormRopeGradients {
  BoundedValues dx;  // row-major over [B, S, N, D]
  BoundedValues dweight;
  BoundedValues dbias;
};
NormRopeGradients NormRopeBackward(const NormRopeBackwardSegment& segment);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_NORM_ROPE_H_
