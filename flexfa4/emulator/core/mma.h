// Operand fetch and the product shared by wgmma and tcgen05.mma.
#pragma once
#include "machine.h"

constexpr int KMAX = 32;
enum Elem { E_F16, E_BF16, E_TF32, E_E4M3, E_E5M2, E_E2M3, E_E3M2, E_E2M1, E_S8, E_U8 }; // from E_E4M3 on: a byte each
constexpr bool is_byte(Elem e) { return e >= E_E4M3; }
constexpr int k_of(Elem e) { return e == E_TF32 ? 8 : is_byte(e) ? 32 : 16; } // one instruction's K
float byte_value(u32 x, Elem e);
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
// out[k][row], k < k_of(elem); returns the number of k.
int fetch_operand(const Operand &d, int rows, float *out, const Ins &I);
// The first `chunks` 16-byte chunks of each row of a K-major operand, one row after the other.
void fetch_chunks(const Operand &d, int rows, int chunks, u8 *out, const Ins &I);
// d[n][m] += sum_k a[k][m] * b[k][n], or = without `accumulate`; m contiguous, m a multiple of 16.
void product(float *d, int d_stride, const float *a, const float *b, int m, int n, int k, int a_stride, int b_stride,
             bool accumulate);
