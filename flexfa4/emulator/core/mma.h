// Operand fetch and the product shared by wgmma and tcgen05.mma.
#pragma once
#include "machine.h"

constexpr int KMAX = 16;
enum Elem { E_F16, E_BF16, E_TF32 };
struct Operand {
    Cta *cta;
    u32 start, lbo, sbo, span;
    bool mn_major;
    Elem elem;
};

// Bytes an operand of `rows` rows and one K block touches: [lo, hi).
Range operand_range(const Operand &d, int rows);
// Tells race checks that `a` reads rows [first, first + rows) of one K block of an operand.
void watch_operand(Machine &M, const Async &a, const Operand &d, int first, int rows);
// out[k][row], k < 16 for halves and < 8 for tf32; returns the number of k.
int fetch_operand(const Operand &d, int rows, float *out, const Ins &I);
// d[n][m] += sum_k a[k][m] * b[k][n], or = without `accumulate`; m contiguous, m a multiple of 16.
void product(float *d, int d_stride, const float *a, const float *b, int m, int n, int k, int a_stride, int b_stride,
             bool accumulate);
