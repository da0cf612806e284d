// How a tensor core adds the products of one block of K to an accumulator: see tensor_sum.cpp.
#pragma once
#include "machine.h"

// k values for each of many rows: x[k * stride + row], exact as floats. lowest: exponent of the format's smallest normal number.
struct Factor {
    const float *x;
    int stride, lowest;
};
struct Extent {
    int m, n, k;
};
enum Result16 { TO_F32, TO_F16 };
// fraction: bits kept below the largest exponent of all terms. mantissa: of the result (TO_F32).
struct Adder {
    int fraction, mantissa;
    Result16 to = TO_F32;
};
constexpr Adder WIDE{25, 23}, NARROW{13, 13}, WIDE_TO_F16{25, 10, TO_F16}, NARROW_TO_F16{13, 10, TO_F16};

// c + sum_k a[k] b[k] for one row of each factor.
float tensor_sum(const Adder &how, float c, const Factor &a, const Factor &b, int k);
// d[n][m] = d[n][m] (`accumulate`) or 0, + sum_k a[k][m] b[k][n]; m contiguous, a multiple of 16; n a multiple of 8.
void product(const Adder &how, float *d, int d_stride, const Factor &a, const Factor &b, const Extent &size, bool accumulate);
// The same for values whose sums are exact in any order (integers below 2^24).
void exact_product(float *d, int d_stride, const Factor &a, const Factor &b, const Extent &size);
