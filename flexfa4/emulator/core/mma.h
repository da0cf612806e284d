// Operand fetch shared by wgmma and tcgen05.mma.
#pragma once
#include "machine.h"

constexpr int KMAX = 32;
enum Elem { E_F16, E_BF16, E_TF32, E_E4M3, E_E5M2, E_E2M3, E_E3M2, E_E2M1, E_S8, E_U8 }; // from E_E4M3 on: a byte each
constexpr bool is_byte(Elem e) { return e >= E_E4M3; }
constexpr int k_of(Elem e) { return e == E_TF32 ? 8 : is_byte(e) ? 32 : 16; } // one instruction's K
// The exponent of a format's smallest normal number.
constexpr int lowest(Elem e) {
    return e == E_F16 || e == E_E5M2 ? -14 : e == E_E4M3 ? -6 : e == E_E2M3 || e == E_E2M1 ? 0 : e == E_E3M2 ? -2 : -126;
}
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
