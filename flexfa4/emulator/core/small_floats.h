// Formats narrower than f32: exact rounding from double, and 16-bit values as types that compare as floats.
#pragma once
#include "lanes.h"

enum Rounding { NEAREST, DOWN, UP, ZERO };

// Magnitude bits of |x| rounded once to E exponent and M mantissa bits; overflow shows as a code beyond the format's largest.
template <int E, int M> inline u64 round_code(double x, int mode) {
    u64 b = std::bit_cast<u64>(x), sign = b >> 63, mag = b & ~(1ull << 63), field = mag >> 52;
    u64 sig = field ? (mag & ((1ull << 52) - 1)) | 1ull << 52 : mag;
    int e = field ? (int)field - 1023 : -1022;
    constexpr int lowest = 2 - (1 << (E - 1)); // exponent of the smallest normal number
    int shift = 52 - M + (e < lowest ? lowest - e : 0);
    if (shift > 62) shift = 62;
    u64 q = sig >> shift, rest = sig & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    bool up = mode == NEAREST ? rest > half || (rest == half && (q & 1)) : rest && (mode == DOWN ? sign : mode == UP ? !sign : 0);
    q += up;
    return e < lowest ? q : q + ((u64)(e - lowest) << M);
}
// IEEE-like format with infinities (f16, bf16). SAT: the largest finite value instead of infinity.
template <int E, int M> inline u16 encode16(double x, int mode, bool finite = false) {
    constexpr u64 inf = (u64)((1 << E) - 1) << M;
    u16 sign = (u16)(std::bit_cast<u64>(x) >> 63 << 15);
    if (x != x) return 0x7fff;
    if (std::isinf(x)) return (u16)(sign | (finite ? inf - 1 : inf));
    u64 c = round_code<E, M>(x, mode);
    if (c >= inf) {
        bool to_inf = mode == NEAREST || (mode == UP && !sign) || (mode == DOWN && sign);
        c = to_inf && !finite ? inf : inf - 1;
    }
    return (u16)(sign | c);
}
// Format without infinities, saturating (e4m3, e5m2 with satfinite, e2m3, e3m2, e2m1). NAN_CODE: what a NaN becomes.
template <int E, int M, u32 MAX, u32 NAN_CODE> inline u32 encode8(double x) {
    if (x != x) return NAN_CODE;
    u32 sign = (u32)(std::bit_cast<u64>(x) >> 63) << (E + M);
    if (std::isinf(x)) return sign | MAX;
    u64 c = round_code<E, M>(x, NEAREST);
    return sign | (u32)(c > MAX ? MAX : c);
}
template <int E, int M> inline float decode8(u32 c) {
    constexpr int bias = (1 << (E - 1)) - 1;
    u32 e = (c >> M) & ((1 << E) - 1), m = c & ((1 << M) - 1);
    float s = (c >> (E + M)) & 1 ? -1.0f : 1.0f;
    if (E == 4 && M == 3 && (c & 0x7f) == 0x7f) return nan_f();
    if (E == 5 && e == 31) return m ? nan_f() : s * INFINITY;
    return e ? s * std::ldexp((float)(m | (1 << M)), (int)e - bias - M) : s * std::ldexp((float)m, 1 - bias - M);
}

struct Half {
    static constexpr int exponent = 5, mantissa = 10;
    u16 b;
    explicit Half(u32 x) : b((u16)x) {}
    operator float() const { return h2f(b); }
};
struct Bfloat {
    static constexpr int exponent = 8, mantissa = 7;
    u16 b;
    explicit Bfloat(u32 x) : b((u16)x) {}
    operator float() const { return bf2f(b); }
};
template <class T> inline u16 to16(double x, int mode = NEAREST, bool finite = false) {
    return encode16<T::exponent, T::mantissa>(x, mode, finite);
}

// The sum of two doubles rounded to odd: rounding it again to fewer than 52 bits is one rounding.
inline double add_odd(double a, double b) {
    double s = a + b;
    if (!std::isfinite(s)) return s;
    double bb = s - a, err = (a - (s - bb)) + (b - bb);
    u64 bits = std::bit_cast<u64>(s);
    if (err == 0 || (bits & 1)) return s;
    return std::bit_cast<double>(bits + ((err > 0) == (s > 0) ? 1 : (u64)-1));
}
// A 64-bit integer as a double, rounded to odd.
template <class T> inline double odd(T x) {
    __int128 v = x, a = v < 0 ? -v : v;
    double d = (double)(u64)a;
    if ((__int128)d != a) {
        if ((__int128)d > a) d = std::bit_cast<double>(std::bit_cast<u64>(d) - 1);
        d = std::bit_cast<double>(std::bit_cast<u64>(d) | 1);
    }
    return v < 0 ? -d : d;
}

template <class T> void cmp_float(const std::string &t, const std::string &s) {
    def_setp<T, [](T a, T b) { return a == b; }>("eq", t, s);
    def_setp<T, [](T a, T b) { return (a < b || a > b); }>("ne", t, s);
    def_setp<T, [](T a, T b) { return a < b; }>("lt", t, s);
    def_setp<T, [](T a, T b) { return a <= b; }>("le", t, s);
    def_setp<T, [](T a, T b) { return (a > b); }>("gt", t, s);
    def_setp<T, [](T a, T b) { return a >= b; }>("ge", t, s);
    def_setp<T, [](T a, T b) { return !(a < b || a > b); }>("equ", t, s);
    def_setp<T, [](T a, T b) { return a != b; }>("neu", t, s);
    def_setp<T, [](T a, T b) { return !(a >= b); }>("ltu", t, s);
    def_setp<T, [](T a, T b) { return !((a > b)); }>("leu", t, s);
    def_setp<T, [](T a, T b) { return !(a <= b); }>("gtu", t, s);
    def_setp<T, [](T a, T b) { return !(a < b); }>("geu", t, s);
    def_setp<T, [](T a, T b) { return a == a && b == b; }>("num", t, s);
    def_setp<T, [](T a, T b) { return a != a || b != b; }>("nan", t, s);
}
