// What the special function unit computes, bit for bit (inputs and results below 2^-126 count as zero).
#pragma once
#include "special_tables.h"
#include "lanes.h"

// x squared / 2^19 for x below 2^17, as the unit's truncated multiplier forms it: a partial product loses its lowest 18 bits.
inline u32 rough_square(u32 x) {
    u32 sum = 0;
    for (int i = 2; i < 17; i++) sum += x >> i & 1 ? x >> (18 - i) : 0;
    return sum >> 1;
}
inline s64 piecewise(const Piece &p, u32 low, u32 square) { return p.a + (s64)p.b * low + (s64)p.c * square; }
inline bool tiny(u32 x) { return !(x & 0x7f800000u); }
inline bool not_a_number(u32 x) { return (x & 0x7fffffffu) > 0x7f800000u; }
// Sign, biased exponent and a significand in [2^23, 2^24], which may carry.
inline u32 assemble(u32 sign, s32 exponent, s32 significand) {
    s32 bits = exponent * (1 << 23) + (significand - (1 << 23));
    return bits < 1 << 23 ? sign : bits >= 255 << 23 ? sign | 0x7f800000u : sign | (u32)bits;
}
// A sum with `fraction` fraction bits, cut to 24 bits.
inline u32 normalized(u32 sign, u64 size, int fraction) {
    int top = 63 - __builtin_clzll(size | 1);
    s32 significand = (s32)(top >= 23 ? size >> (top - 23) : size << (23 - top));
    return size ? assemble(sign, 127 + top - fraction, significand) : sign;
}

// 2^x of 32 lanes at once, which softmax spends its time on.
inline void mufu_ex2(const u32 *in, u32 *out) {
    typedef u32 Row __attribute__((vector_size(128)));
    alignas(128) u32 low[LANES];
    alignas(64) s32 whole[LANES];
    alignas(64) double a[LANES], b[LANES], c[LANES];
    for (int l = 0; l < LANES; l++) {
        // |x| cut to 23 fraction bits; a negative one is split into floor and fraction by complementing the fraction's bits.
        s32 e = (s32)(in[l] >> 23 & 255) - 127, minus = (s32)in[l] >> 31;
        s32 left = e < 0 ? 0 : e > 7 ? 7 : e, right = e > 0 ? 0 : e < -24 ? 24 : -e;
        s32 fixed = e >= 7 ? 0 : (s32)(((in[l] & 0x7fffffu) | 1u << 23) << left >> right), down = (fixed ^ minus) - minus;
        whole[l] = down >> 23;
        u32 fraction = (u32)down & 0x7fffffu;
        low[l] = fraction ? fraction + (u32)minus : 0;
    }
    for (int l = 0; l < LANES; l++) {
        const Piece &p = EX2[low[l] >> 17];
        a[l] = (double)p.a;
        b[l] = p.b;
        c[l] = p.c;
    }
    Row lows, square{};
    std::memcpy(&lows, low, sizeof lows);
    lows &= 0x1ffff;
    for (int i = 2; i < 17; i++) square += -(lows >> i & 1) & (lows >> (18 - i)); // rough_square
    square >>= 1;
    for (int l = 0; l < LANES; l++) {
        s32 r = (s32)((a[l] + b[l] * (s32)lows[l] + c[l] * (s32)square[l]) * 0x1p-15); // exact: below 2^53
        s32 bits = (whole[l] + 126) * (1 << 23) + r;
        u32 size = in[l] & 0x7fffffffu, usual = bits < 1 << 23 ? 0 : bits >= 255 << 23 ? 0x7f800000u : (u32)bits;
        u32 extreme = size > 0x7f800000u ? 0x7fffffffu : in[l] >> 31 ? 0 : 0x7f800000u;
        out[l] = size >= 134u << 23 ? extreme : usual;
    }
}
inline float mufu_ex2(float value) {
    u32 in[LANES] = {as_u(value)}, out[LANES];
    mufu_ex2(in, out);
    return as_f(out[0]);
}
inline float mufu_rcp(float value) {
    u32 x = as_u(value), sign = x & 0x80000000u, low = x & 0xffff;
    s64 r = piecewise(RCP[x >> 16 & 127], low, rough_square(low << 1)) >> 15;
    u32 usual = assemble(sign, 253 - (s32)(x >> 23 & 255), (s32)r);
    if (not_a_number(x)) return nan_f();
    return as_f(tiny(x) ? sign | 0x7f800000u : (x & 0x7fffffffu) == 0x7f800000u ? sign : usual);
}
inline float mufu_rsqrt(float value) {
    u32 x = as_u(value);
    s32 e = (s32)(x >> 23 & 255) - 127;
    u32 fraction = (x & 0x7fffffu) | (u32)(e & 1) << 23, low = fraction & 0x1ffff;
    s64 r = piecewise(RSQRT[fraction >> 17], low, rough_square(low)) >> 16;
    u32 usual = assemble(0, 126 - (e >> 1), fraction ? (s32)r : 1 << 24);
    if (tiny(x)) return as_f((x & 0x80000000u) | 0x7f800000u);
    if (not_a_number(x) || x >> 31) return nan_f();
    return as_f(x == 0x7f800000u ? 0 : usual);
}
inline float mufu_lg2(float value) {
    u32 x = as_u(value), fraction = x & 0x7fffffu, low = fraction & 0x1ffff;
    s64 r = x == 0x3f800000u ? 0 : piecewise(LG2[fraction >> 17], low, rough_square(low)) >> 2; // 36 fraction bits
    r += (s64)((s32)(x >> 23 & 255) - 127) * (1ll << 36);
    u32 sign = r < 0 ? 0x80000000u : 0;
    u64 size = (u64)(r < 0 ? ~r : r);
    u32 usual = normalized(size ? sign : 0, size, 36);
    if (tiny(x)) return -INFINITY;
    if (not_a_number(x) || x >> 31) return nan_f();
    return as_f(x == 0x7f800000u ? x : usual);
}
inline float mufu_sqrt(float value) {
    u32 x = as_u(value);
    s32 e = (s32)(x >> 23 & 255) - 127;
    u32 fraction = (x & 0x7fffffu) | (u32)(e & 1) << 23, low = fraction & 0x1ffff;
    s64 r = piecewise(SQRT[fraction >> 17], low, rough_square(low)) >> 17;
    if (tiny(x)) return as_f(x & 0x80000000u);
    if (not_a_number(x) || x >> 31) return nan_f();
    return as_f(x == 0x7f800000u ? x : assemble(0, 127 + (e >> 1), (s32)r));
}
// Sine (quarters: 0) or cosine (1) of 2 pi x: |x| cut to 25 fraction bits; in odd quarters their complement.
inline float mufu_sine(float value, u32 quarters) {
    u32 x = as_u(value), significand = (x & 0x7fffffu) | 1u << 23;
    s32 left = (s32)(x >> 23 & 255) - 125;
    u32 turn = left < -23 || left > 24 ? 0 : left < 0 ? significand >> -left : significand << left;
    u32 quarter = (turn >> 23) + quarters, place = (quarter & 1 ? ~turn : turn) & 0x7fffffu, low = place & 0x1ffff;
    u32 sign = (quarters ? 0 : x & 0x80000000u) ^ (quarter >> 1 & 1) << 31;
    s64 sum = piecewise(SINE[place >> 17], low, rough_square(low));
    return (x & 0x7f800000u) == 0x7f800000u ? nan_f() : as_f(normalized(sign, (u64)sum, 38));
}
// The number itself below 2^-8, 1 from 8 on; between them each binade has pieces of its own.
inline float mufu_tanh(float value) {
    u32 x = as_u(value), sign = x & 0x80000000u, fraction = x & 0x7fffffu;
    if (not_a_number(x)) return nan_f();
    s32 binade = (s32)(x >> 23 & 255) - 127 + 8;
    if (binade < 0) return value;
    if (binade > 10) return as_f(sign | 0x3f800000u);
    int split = TANH_SPLIT[binade];
    u32 low = fraction >> (6 - split) & 0x1ffff;
    const Piece &p = TANH[TANH_FIRST[binade] + (fraction >> (23 - split))];
    return as_f(normalized(sign, (u64)piecewise(p, low, rough_square(low)), 41));
}
