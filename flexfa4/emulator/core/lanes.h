// Templates that turn a scalar function into a handler for 32 lanes.
#pragma once
#include "machine.h"
#include <bit>
#include <cmath>
#include <xmmintrin.h>

template <class T> inline T get(const u32 *r, int l) {
    if constexpr (sizeof(T) == 8)
        return std::bit_cast<T>((u64)r[l] | (u64)r[l + LANES] << 32);
    else if constexpr (sizeof(T) == 4)
        return std::bit_cast<T>(r[l]);
    else
        return (T)r[l];
}
template <class T> inline void set(u32 *r, int l, T v) {
    if constexpr (sizeof(T) == 8) {
        u64 b = std::bit_cast<u64>(v);
        r[l] = (u32)b;
        r[l + LANES] = (u32)(b >> 32);
    } else if constexpr (sizeof(T) == 4)
        r[l] = std::bit_cast<u32>(v);
    else
        r[l] = (u32)(typename std::make_unsigned<T>::type)v;
}
struct alignas(64) Rows {
    u32 v[2 * LANES];
};
template <class T> inline void store_rows(Warp &w, s32 off, const Rows &t) {
    u32 *d = w.r(off);
    constexpr int n = sizeof(T) == 8 ? 2 : 1;
    if (w.m == FULL) {
        std::memcpy(d, t.v, ROW * n);
        return;
    }
    for (int h = 0; h < n; h++)
        for (int l = 0; l < LANES; l++) d[h * LANES + l] = (w.m >> l) & 1 ? t.v[h * LANES + l] : d[h * LANES + l];
}
template <class D, class A, auto F> Result op1(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]);
    for (int l = 0; l < LANES; l++) set<D>(t.v, l, F(get<A>(a, l)));
    store_rows<D>(w, I.o[0], t);
    return NEXT;
}
template <class D, class A, class B, auto F> Result op2(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]);
    for (int l = 0; l < LANES; l++) set<D>(t.v, l, F(get<A>(a, l), get<B>(b, l)));
    store_rows<D>(w, I.o[0], t);
    return NEXT;
}
template <class D, class A, class B, class C, auto F> Result op3(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]), *c = w.r(I.o[3]);
    for (int l = 0; l < LANES; l++) set<D>(t.v, l, F(get<A>(a, l), get<B>(b, l), get<C>(c, l)));
    store_rows<D>(w, I.o[0], t);
    return NEXT;
}
// Both halves of a packed f32x2.
template <auto F> Result pair1(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]);
    for (int l = 0; l < 2 * LANES; l++) t.v[l] = std::bit_cast<u32>(F(std::bit_cast<float>(a[l])));
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
template <auto F> Result pair2(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]);
    for (int l = 0; l < 2 * LANES; l++) t.v[l] = std::bit_cast<u32>(F(std::bit_cast<float>(a[l]), std::bit_cast<float>(b[l])));
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
template <auto F> Result pair3(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]), *c = w.r(I.o[3]);
    for (int l = 0; l < 2 * LANES; l++)
        t.v[l] = std::bit_cast<u32>(F(std::bit_cast<float>(a[l]), std::bit_cast<float>(b[l]), std::bit_cast<float>(c[l])));
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
// Runs a handler with the SSE rounding mode set: 0 nearest even, 1 down, 2 up, 3 to zero. The barriers keep loads after the
// switch and stores before the switch back, so every operation between them rounds as asked.
template <u32 MODE, Handler H> Result rounded(Warp &w, const Ins &I) {
    u32 old = _mm_getcsr();
    _mm_setcsr((old & ~0x6000u) | MODE << 13);
    asm volatile("" ::: "memory");
    Result r = H(w, I);
    asm volatile("" ::: "memory");
    _mm_setcsr(old);
    return r;
}
u32 pack_mask(const u32 *t); // bit l = t[l] != 0; elsewhere, because <immintrin.h> takes long to compile
template <class A, auto F> inline u32 compare(Warp &w, s32 oa, s32 ob) {
    alignas(64) u32 t[LANES];
    const u32 *a = w.r(oa), *b = w.r(ob);
    for (int l = 0; l < LANES; l++) t[l] = F(get<A>(a, l), get<A>(b, l)) ? 1 : 0;
    return pack_mask(t);
}
// setp d[|q], a, b [, c]: MODE 0 plain, 1 and, 2 or, 3 xor with predicate c.
template <class A, auto F, int MODE> Result setp(Warp &w, const Ins &I) {
    u32 t = compare<A, F>(w, I.o[2], I.o[3]), f = ~t;
    if constexpr (MODE > 0) {
        u32 c = w.predmask(I.o + 4);
        if (MODE == 1) {
            t &= c;
            f &= c;
        } else if (MODE == 2) {
            t |= c;
            f |= c;
        } else {
            t ^= c;
            f ^= c;
        }
    }
    w.putp(I.o[0], t);
    w.putp(I.o[1], f);
    return NEXT;
}
// `setp.<comparison><type>`, alone and combined with a predicate; `s` is the form of an operand.
template <class A, auto F> void def_setp(const std::string &comparison, const std::string &type, const std::string &s) {
    std::string form = "pp " + s + " " + s;
    def("setp." + comparison + type, form, setp<A, F, 0>);
    def("setp." + comparison + ".and" + type, form + " P", setp<A, F, 1>);
    def("setp." + comparison + ".or" + type, form + " P", setp<A, F, 2>);
    def("setp." + comparison + ".xor" + type, form + " P", setp<A, F, 3>);
}
inline float as_f(u32 x) { return std::bit_cast<float>(x); }
inline u32 as_u(float x) { return std::bit_cast<u32>(x); }
inline float nan_f() { return as_f(0x7fffffffu); } // the NaN that NVIDIA's f32 units produce
inline float cn(float x) { return x != x ? nan_f() : x; }
inline float ftz(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }
inline float bf2f(u32 h) { return as_f(h << 16); }
inline u32 f2bf(float x) { // round to nearest even
    u32 b = as_u(x);
    if (x != x) return 0x7fff;
    return (b + 0x7fff + ((b >> 16) & 1)) >> 16;
}
inline float h2f(u32 h) { return (float)std::bit_cast<_Float16>((u16)h); }
inline u32 f2h(float x) { return x != x ? 0x7fffu : (u32)std::bit_cast<u16>((_Float16)x); }
