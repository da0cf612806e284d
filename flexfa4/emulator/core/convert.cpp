// cvt and cvta: every pair of integer types, and the float conversions CuTe DSL emits.
#include "lanes.h"
#include <limits>

namespace {
template <class D, class A> D clamp_to(A a) {
    if (a < (A)std::numeric_limits<D>::min()) return std::numeric_limits<D>::min();
    if (a > (A)std::numeric_limits<D>::max()) return std::numeric_limits<D>::max();
    return (D)a;
}
// Float to integer saturates, NaN gives 0 for 32-bit targets (PTX ISA, cvt).
template <class D, auto R> D f2i(float a) {
    if (a != a) return sizeof(D) == 8 ? (D)((u64)1 << 63) : (D)0;
    double x = (double)R(a);
    double lo = (double)std::numeric_limits<D>::min(), hi = -(std::is_signed_v<D> ? lo : -std::ldexp(1.0, 8 * sizeof(D)));
    if (x <= lo) return std::numeric_limits<D>::min();
    if (x >= hi) return std::numeric_limits<D>::max();
    return (D)x;
}
inline float r_near(float a) { return std::nearbyint(a); }
inline float r_zero(float a) { return std::trunc(a); }
inline float r_down(float a) { return std::floor(a); }
inline float r_up(float a) { return std::ceil(a); }

template <class T> const char *letter(bool dst) { return sizeof(T) == 8 ? (dst ? "D" : "S") : (dst ? "d" : "s"); }

template <class D, class A> void int_pair(const std::string &d, const std::string &a) {
    std::string spec = std::string(letter<D>(true)) + " " + letter<A>(false);
    // The register is wider than an 8-bit type: a signed result is sign-extended into it.
    using W = std::conditional_t<sizeof(D) == 1, std::conditional_t<std::is_signed_v<D>, s16, u16>, D>;
    def("cvt." + d + "." + a, spec, op1<W, A, [](A x) { return (W)(D)x; }>);
    def("cvt.sat." + d + "." + a, spec, op1<W, A, [](A x) {
            __int128 v = x, lo = std::numeric_limits<D>::min(), hi = std::numeric_limits<D>::max();
            return (W)(v < lo ? lo : v > hi ? hi : v);
        }>);
}
template <class D> void int_from(const std::string &d) {
    int_pair<D, s8>(d, "s8");
    int_pair<D, u8>(d, "u8");
    int_pair<D, s16>(d, "s16");
    int_pair<D, u16>(d, "u16");
    int_pair<D, s32>(d, "s32");
    int_pair<D, u32>(d, "u32");
    int_pair<D, s64>(d, "s64");
    int_pair<D, u64>(d, "u64");
}
template <class A> void int_to_float(const std::string &a) {
    std::string s = letter<A>(false);
    def("cvt.rn.f32." + a, "d " + s, op1<float, A, [](A x) { return (float)x; }>);
    def("cvt.rz.f32." + a, "d " + s, rounded<3, op1<float, A, [](A x) { return (float)x; }>>);
    def("cvt.rn.f64." + a, "D " + s, op1<double, A, [](A x) { return (double)x; }>);
}
template <class D> void float_to_int(const std::string &d) {
    std::string s = std::string(letter<D>(true)) + " s";
    def("cvt.rni." + d + ".f32", s, op1<D, float, f2i<D, r_near>>);
    def("cvt.rzi." + d + ".f32", s, op1<D, float, f2i<D, r_zero>>);
    def("cvt.rmi." + d + ".f32", s, op1<D, float, f2i<D, r_down>>);
    def("cvt.rpi." + d + ".f32", s, op1<D, float, f2i<D, r_up>>);
    def("cvt.rzi.ftz." + d + ".f32", s, op1<D, float, f2i<D, r_zero>>);
    def("cvt.rni.ftz." + d + ".f32", s, op1<D, float, f2i<D, r_near>>);
}
inline u32 f2bf_rz(float x) { return x != x ? 0x7fffu : as_u(x) >> 16; }
inline float relu(float x) { return x > 0 ? x : (x != x ? x : 0.0f); }

// tf32 with rounding to nearest, ties away from zero; the 13 low bits are cleared.
inline u32 tf32_rna(float x) { return x != x ? 0x7fffffffu : (as_u(x) + 0x1000u) & ~0x1fffu; }
inline u32 tf32_rn(float x) {
    u32 b = as_u(x);
    return x != x ? 0x7fffffffu : (b + 0xfffu + ((b >> 13) & 1)) & ~0x1fffu;
}

// f32 to an 8-bit float with saturation to the largest finite value (satfinite). E exponent bits, M mantissa bits.
template <int E, int M, u32 MAXCODE> u32 f2fp8(float x) {
    u32 sign = as_u(x) >> 31 << 7;
    if (x != x) return 0x7f;
    double a = std::fabs((double)x);
    constexpr int bias = (1 << (E - 1)) - 1;
    int e;
    std::frexp(a, &e);
    e -= 1;
    if (a == 0) return sign;
    if (e < 1 - bias) e = 1 - bias;
    double q = std::nearbyint(std::ldexp(a, M - e)); // multiples of the spacing
    if (!(q < std::ldexp(1.0, 40))) return sign | MAXCODE;
    u64 n = (u64)q;
    u64 code = n + ((u64)(e + bias - 1) << M); // carries into the exponent as it should
    if (n < (1u << M)) code = n;
    return sign | (u32)(code > MAXCODE ? MAXCODE : code);
}
template <int E, int M> float fp82f(u32 c) {
    constexpr int bias = (1 << (E - 1)) - 1;
    u32 e = (c >> M) & ((1 << E) - 1), m = c & ((1 << M) - 1);
    float s = c & 0x80 ? -1.0f : 1.0f;
    if (E == 4 && (c & 0x7f) == 0x7f) return nan_f();
    if (E == 5 && e == 31) return m ? nan_f() : s * INFINITY;
    return e ? s * std::ldexp((float)(m | (1 << M)), (int)e - bias - M) : s * std::ldexp((float)m, 1 - bias - M);
}
Result shared_to_generic(Warp &w, const Ins &I) {
    Rows t;
    for (int l = 0; l < LANES; l++) set<u64>(t.v, l, SHARED_WINDOW | (u32)w.r64(I.o[1], l));
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
Result generic_to_shared(Warp &w, const Ins &I) {
    Rows t;
    for (int l = 0; l < LANES; l++) {
        u64 a = w.r64(I.o[1], l);
        if ((w.m >> l & 1) && (a & SHARED_WINDOW) != SHARED_WINDOW)
            w.M->fail("address", I, fmt("lane %d: generic address 0x%llx is not in shared memory", l, (unsigned long long)a), &w);
        set<u64>(t.v, l, a & 0xffffffffu);
    }
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
Result copy64(Warp &w, const Ins &I) {
    Rows t;
    std::memcpy(t.v, w.R + I.o[1], 2 * ROW);
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
} // namespace

void define_convert() {
    int_from<s8>("s8");
    int_from<u8>("u8");
    int_from<s16>("s16");
    int_from<u16>("u16");
    int_from<s32>("s32");
    int_from<u32>("u32");
    int_from<s64>("s64");
    int_from<u64>("u64");
    int_to_float<s8>("s8");
    int_to_float<u8>("u8");
    int_to_float<s16>("s16");
    int_to_float<u16>("u16");
    int_to_float<s32>("s32");
    int_to_float<u32>("u32");
    int_to_float<s64>("s64");
    int_to_float<u64>("u64");
    float_to_int<s16>("s16");
    float_to_int<u16>("u16");
    float_to_int<s32>("s32");
    float_to_int<u32>("u32");
    float_to_int<s64>("s64");
    float_to_int<u64>("u64");
    def("cvt.rni.f32.f32", "d s", op1<float, float, r_near>);
    def("cvt.rzi.f32.f32", "d s", op1<float, float, r_zero>);
    def("cvt.rmi.f32.f32", "d s", op1<float, float, r_down>);
    def("cvt.rpi.f32.f32", "d s", op1<float, float, r_up>);
    def("cvt.sat.f32.f32", "d s", op1<float, float, [](float a) { return (a > 0) ? (a < 1 ? a : 1.0f) : 0.0f; }>);
    def("cvt.f64.f32", "D s", op1<double, float, [](float a) { return (double)a; }>);
    def("cvt.rn.f32.f64", "d S", op1<float, double, [](double a) { return cn((float)a); }>);
    def("cvt.f32.bf16", "d s", op1<float, u16, [](u16 a) { return bf2f(a); }>);
    def("cvt.f32.f16", "d s", op1<float, u16, [](u16 a) { return h2f(a); }>);
    def("cvt.rn.bf16.f32", "d s", op1<u32, float, f2bf>);
    def("cvt.rz.bf16.f32", "d s", op1<u32, float, f2bf_rz>);
    def("cvt.rn.f16.f32", "d s", op1<u32, float, f2h>);
    // The first source is the high half.
    def("cvt.rn.bf16x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return f2bf(h) << 16 | f2bf(l); }>);
    def("cvt.rz.bf16x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return f2bf_rz(h) << 16 | f2bf_rz(l); }>);
    def("cvt.rn.f16x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return f2h(h) << 16 | f2h(l); }>);
    def("cvt.rn.relu.bf16x2.f32", "d s s",
        op2<u32, float, float, [](float h, float l) { return f2bf(relu(h)) << 16 | f2bf(relu(l)); }>);
    def("cvt.rn.relu.f16x2.f32", "d s s",
        op2<u32, float, float, [](float h, float l) { return f2h(relu(h)) << 16 | f2h(relu(l)); }>);
    def("cvt.rna.tf32.f32", "d s", op1<u32, float, tf32_rna>);
    def("cvt.rn.tf32.f32", "d s", op1<u32, float, tf32_rn>);
    constexpr auto e4 = f2fp8<4, 3, 0x7e>;
    constexpr auto e5 = f2fp8<5, 2, 0x7b>;
    def("cvt.rn.satfinite.e4m3x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return e4(h) << 8 | e4(l); }>);
    def("cvt.rn.satfinite.e5m2x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return e5(h) << 8 | e5(l); }>);
    def("cvt.rn.f16x2.e4m3x2", "d s",
        op1<u32, u16, [](u16 a) { return f2h(fp82f<4, 3>(a >> 8)) << 16 | f2h(fp82f<4, 3>(a & 255)); }>);
    def("cvt.rn.f16x2.e5m2x2", "d s",
        op1<u32, u16, [](u16 a) { return f2h(fp82f<5, 2>(a >> 8)) << 16 | f2h(fp82f<5, 2>(a & 255)); }>);
    def("cvta.shared.u64", "D S", shared_to_generic);
    def("cvta.to.shared.u64", "D S", generic_to_shared);
    def("cvta.to.shared::cluster.u64", "D S", generic_to_shared);
    def("cvta.shared::cluster.u64", "D S", shared_to_generic);
    for (const char *s : {"global", "param", "const", "local"}) { // host addresses are used as they are
        def(std::string("cvta.") + s + ".u64", "D S", copy64);
        def(std::string("cvta.to.") + s + ".u64", "D S", copy64);
    }
}
