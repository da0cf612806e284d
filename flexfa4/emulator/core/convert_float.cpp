// cvt from, to and between floating-point types: f64, f32, f16, bf16, tf32, and the 8-, 6- and 4-bit formats.
#include "small_floats.h"
#include <limits>

namespace {
const char *const ROUNDINGS[4] = {"rn", "rm", "rp", "rz"}; // numbered as Rounding, and as the SSE control register
template <class T> const char *letter(bool dst) { return sizeof(T) == 8 ? (dst ? "D" : "S") : (dst ? "d" : "s"); }
template <class T> constexpr bool is16 = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

// ---- to and from integers
enum Whole { NEAR, FLOOR, CEIL, TRUNC };
template <int W> double whole(double a) {
    return W == NEAR ? std::nearbyint(a) : W == FLOOR ? std::floor(a) : W == CEIL ? std::ceil(a) : std::trunc(a);
}
// Saturates. NaN gives 0, or the top bit alone where the source is f64 or the target has 64 bits (PTX ISA, cvt).
template <class D, class A, int W> D float_to_int(A a) {
    double x = (double)a;
    if (x != x) return std::is_same_v<A, double> || sizeof(D) == 8 ? (D)((u64)1 << (8 * sizeof(D) - 1)) : (D)0;
    x = whole<W>(x);
    double lo = (double)std::numeric_limits<D>::min(), hi = std::is_signed_v<D> ? -lo : std::ldexp(1.0, 8 * sizeof(D));
    if (x <= lo) return std::numeric_limits<D>::min();
    if (x >= hi) return std::numeric_limits<D>::max();
    return (D)x;
}
template <class D, class A> void to_int(const std::string &d, const std::string &a) {
    // A signed 8-bit result is sign-extended into its wider register.
    using R = std::conditional_t<sizeof(D) == 1, std::conditional_t<std::is_signed_v<D>, s16, u16>, D>;
    std::string spec = std::string(letter<D>(true)) + " " + letter<A>(false), tail = "." + d + "." + a;
    auto rows = [&](const std::string &m, Handler h) {
        def("cvt." + m + tail, spec, h);
        def("cvt." + m + ".sat" + tail, spec, h);
    };
    rows("rni", op1<R, A, [](A x) { return (R)float_to_int<D, A, NEAR>(x); }>);
    rows("rmi", op1<R, A, [](A x) { return (R)float_to_int<D, A, FLOOR>(x); }>);
    rows("rpi", op1<R, A, [](A x) { return (R)float_to_int<D, A, CEIL>(x); }>);
    rows("rzi", op1<R, A, [](A x) { return (R)float_to_int<D, A, TRUNC>(x); }>);
    if constexpr (std::is_same_v<A, float>) {
        rows("rni.ftz", op1<R, A, [](A x) { return (R)float_to_int<D, A, NEAR>(ftz(x)); }>);
        rows("rmi.ftz", op1<R, A, [](A x) { return (R)float_to_int<D, A, FLOOR>(ftz(x)); }>);
        rows("rpi.ftz", op1<R, A, [](A x) { return (R)float_to_int<D, A, CEIL>(ftz(x)); }>);
        rows("rzi.ftz", op1<R, A, [](A x) { return (R)float_to_int<D, A, TRUNC>(ftz(x)); }>);
    }
}
template <class T, class A, int MODE> u32 int_to_16(A x) { return to16<T>(odd(x), MODE); }
template <class A> void from_int(const std::string &a) {
    std::string s = letter<A>(false);
    constexpr auto f32 = [](A x) { return (float)x; };
    constexpr auto f64 = [](A x) { return (double)x; };
    def("cvt.rn.f32." + a, "d " + s, op1<float, A, f32>);
    def("cvt.rm.f32." + a, "d " + s, rounded<1, op1<float, A, f32>>);
    def("cvt.rp.f32." + a, "d " + s, rounded<2, op1<float, A, f32>>);
    def("cvt.rz.f32." + a, "d " + s, rounded<3, op1<float, A, f32>>);
    def("cvt.rn.f64." + a, "D " + s, op1<double, A, f64>);
    def("cvt.rm.f64." + a, "D " + s, rounded<1, op1<double, A, f64>>);
    def("cvt.rp.f64." + a, "D " + s, rounded<2, op1<double, A, f64>>);
    def("cvt.rz.f64." + a, "D " + s, rounded<3, op1<double, A, f64>>);
    def("cvt.rn.f16." + a, "d " + s, op1<u32, A, int_to_16<Half, A, NEAREST>>);
    def("cvt.rm.f16." + a, "d " + s, op1<u32, A, int_to_16<Half, A, DOWN>>);
    def("cvt.rp.f16." + a, "d " + s, op1<u32, A, int_to_16<Half, A, UP>>);
    def("cvt.rz.f16." + a, "d " + s, op1<u32, A, int_to_16<Half, A, ZERO>>);
    def("cvt.rn.bf16." + a, "d " + s, op1<u32, A, int_to_16<Bfloat, A, NEAREST>>);
    def("cvt.rm.bf16." + a, "d " + s, op1<u32, A, int_to_16<Bfloat, A, DOWN>>);
    def("cvt.rp.bf16." + a, "d " + s, op1<u32, A, int_to_16<Bfloat, A, UP>>);
    def("cvt.rz.bf16." + a, "d " + s, op1<u32, A, int_to_16<Bfloat, A, ZERO>>);
    to_int<A, float>(a, "f32");
    to_int<A, double>(a, "f64");
    to_int<A, Half>(a, "f16");
    to_int<A, Bfloat>(a, "bf16");
}

// ---- between f64, f32, f16 and bf16
inline float relu(float x) { return x > 0 || x != x ? x : 0.0f; }
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; } // NaN becomes 0

template <class T, class A, int MODE, bool RELU, bool FINITE> u32 narrow(A a) {
    double x = (double)a;
    if (std::is_same_v<A, double> && x != x) { // the upper bits of the payload stay (seen on an H200)
        constexpr u32 quiet = ((1u << T::exponent) - 1) << T::mantissa | 1u << (T::mantissa - 1);
        return quiet | ((u32)(std::bit_cast<u64>(x) >> (52 - T::mantissa)) & ((1u << T::mantissa) - 1));
    }
    if (RELU) x = x > 0 || x != x ? x : 0.0;
    return to16<T>(x, MODE, FINITE);
}
template <class T, int MODE, bool RELU, bool FINITE> u32 pair(float high, float low) {
    return narrow<T, float, MODE, RELU, FINITE>(high) << 16 | narrow<T, float, MODE, RELU, FINITE>(low);
}
template <class T, class A, int MODE> void narrow_rows(const std::string &t, const std::string &a) {
    std::string r = std::string("cvt.") + ROUNDINGS[MODE], spec = std::string("d ") + letter<A>(false);
    constexpr bool fast = std::is_same_v<A, float> && MODE == NEAREST; // convert.cpp has these rows
    if constexpr (!fast) def(r + "." + t + "." + a, spec, op1<u32, A, narrow<T, A, MODE, false, false>>);
    if constexpr (!std::is_same_v<A, float>)
        return;
    else {
        def(r + ".relu." + t + ".f32", spec, op1<u32, A, narrow<T, A, MODE, true, false>>);
        def(r + ".satfinite." + t + ".f32", spec, op1<u32, A, narrow<T, A, MODE, false, true>>);
        def(r + ".relu.satfinite." + t + ".f32", spec, op1<u32, A, narrow<T, A, MODE, true, true>>);
        auto packed = [&](const char *m, Handler f) { def(r + m + "." + t + "x2.f32", "d s s", f); };
        if constexpr (!fast)
            packed("", op2<u32, float, float, [](float h, float l) { return pair<T, MODE, false, false>(h, l); }>);
        packed(".relu", op2<u32, float, float, [](float h, float l) { return pair<T, MODE, true, false>(h, l); }>);
        packed(".satfinite", op2<u32, float, float, [](float h, float l) { return pair<T, MODE, false, true>(h, l); }>);
        packed(".relu.satfinite", op2<u32, float, float, [](float h, float l) { return pair<T, MODE, true, true>(h, l); }>);
    }
}
template <class A, int MODE> void narrow_both(const std::string &a) {
    if constexpr (!std::is_same_v<A, Half>) narrow_rows<Half, A, MODE>("f16", a);
    if constexpr (!std::is_same_v<A, Bfloat>) narrow_rows<Bfloat, A, MODE>("bf16", a);
}
template <class A> void narrow_all(const std::string &a) {
    narrow_both<A, NEAREST>(a);
    narrow_both<A, DOWN>(a);
    narrow_both<A, UP>(a);
    narrow_both<A, ZERO>(a);
}
template <class T> void widen(const std::string &t) {
    // bf16 is widened by a shift, so the payload of a NaN stays; f16 gives the canonical one (both seen on an H200).
    constexpr bool bf = std::is_same_v<T, Bfloat>;
    def("cvt.f32." + t, "d s", op1<u32, T, [](T a) { return bf ? (u32)a.b << 16 : as_u(cn((float)a)); }>);
    def("cvt.ftz.f32." + t, "d s", op1<float, T, [](T a) { return ftz(cn((float)a)); }>);
    def("cvt.sat.f32." + t, "d s", op1<float, T, [](T a) { return saturate((float)a); }>);
    def("cvt.f64." + t, "D s", op1<double, T, [](T a) { return (double)a; }>);
}
// Integral values within one type.
template <class T, int W> T integral(T a) {
    if constexpr (is16<T>)
        return T(to16<T>(whole<W>((double)a)));
    else
        return a != a ? (T)(sizeof(T) == 4 ? (T)nan_f() : a) : (T)whole<W>((double)a);
}
template <class T> using Register = std::conditional_t<is16<T>, u32, T>;
template <class T> Register<T> bits(T a) {
    if constexpr (is16<T>)
        return a.b;
    else
        return a;
}
template <class T> void integrals(const std::string &t) {
    std::string spec = std::string(letter<T>(true)) + " " + letter<T>(false), tail = "." + t + "." + t;
    using R = Register<T>;
    def("cvt.rni" + tail, spec, op1<R, T, [](T a) { return bits(integral<T, NEAR>(a)); }>);
    def("cvt.rmi" + tail, spec, op1<R, T, [](T a) { return bits(integral<T, FLOOR>(a)); }>);
    def("cvt.rpi" + tail, spec, op1<R, T, [](T a) { return bits(integral<T, CEIL>(a)); }>);
    def("cvt.rzi" + tail, spec, op1<R, T, [](T a) { return bits(integral<T, TRUNC>(a)); }>);
}
void define_wide() {
    narrow_all<float>("f32");
    narrow_all<double>("f64");
    narrow_all<Half>("f16");
    narrow_all<Bfloat>("bf16");
    widen<Half>("f16");
    widen<Bfloat>("bf16");
    integrals<float>("f32");
    integrals<double>("f64");
    integrals<Half>("f16");
    integrals<Bfloat>("bf16");
    def("cvt.sat.f32.f32", "d s", op1<float, float, saturate>);
    def("cvt.ftz.f32.f32", "d s", op1<float, float, ftz>);
    def("cvt.f64.f32", "D s", op1<double, float, [](float a) { return (double)a; }>);
    constexpr auto single = [](double a) {
        return a != a ? as_f(0x7fc00000u | ((u32)(std::bit_cast<u64>(a) >> 29) & 0x7fffff)) : (float)a;
    };
    def("cvt.rn.f32.f64", "d S", op1<float, double, single>);
    def("cvt.rm.f32.f64", "d S", rounded<1, op1<float, double, single>>);
    def("cvt.rp.f32.f64", "d S", rounded<2, op1<float, double, single>>);
    def("cvt.rz.f32.f64", "d S", rounded<3, op1<float, double, single>>);
}

// ---- tf32: the 13 low bits are cleared
template <int MODE> u32 tf32(float x) { // 0 nearest even, 1 nearest away from zero, 2 to zero
    u32 b = as_u(x);
    if (x != x) return 0x7fffffffu;
    return (b + (MODE == 0 ? 0xfff + ((b >> 13) & 1) : MODE == 1 ? 0x1000 : 0)) & ~0x1fffu;
}
template <auto F> u32 finite32(float x) {
    u32 r = F(x);
    return (r & 0x7fffffff) == 0x7f800000 ? (r & 0x80000000) | 0x7f7fe000 : r;
}
template <auto F> void tf32_rows(const std::string &r) {
    def("cvt." + r + ".tf32.f32", "d s", op1<u32, float, F>);
    def("cvt." + r + ".satfinite.tf32.f32", "d s", op1<u32, float, finite32<F>>);
    if (r == "rna") return;
    def("cvt." + r + ".relu.tf32.f32", "d s", op1<u32, float, [](float x) { return F(relu(x)); }>);
    def("cvt." + r + ".satfinite.relu.tf32.f32", "d s", op1<u32, float, [](float x) { return finite32<F>(relu(x)); }>);
}

// ---- pairs of 8-, 6- and 4-bit floats. W: bits between the two elements of a pair.
template <auto ENC, auto DEC, int W> void small_pair(const std::string &t) {
    constexpr u32 mask = (1u << W) - 1;
    for (bool r : {false, true}) {
        std::string head = std::string("cvt.rn.satfinite.") + (r ? "relu." : "") + t + "x2";
        def(head + ".f32", "d s s",
            r ? op2<u32, float, float, [](float h, float l) { return ENC(relu(h)) << W | ENC(relu(l)); }>
              : op2<u32, float, float, [](float h, float l) { return ENC(h) << W | ENC(l); }>);
        def(head + ".f16x2", "d s",
            r ? op1<u32, u32, [](u32 a) { return ENC(relu(h2f(a >> 16))) << W | ENC(relu(h2f(a & 0xffff))); }>
              : op1<u32, u32, [](u32 a) { return ENC(h2f(a >> 16)) << W | ENC(h2f(a & 0xffff)); }>);
        def(head + ".bf16x2", "d s",
            r ? op1<u32, u32, [](u32 a) { return ENC(relu(bf2f(a >> 16))) << W | ENC(relu(bf2f(a & 0xffff))); }>
              : op1<u32, u32, [](u32 a) { return ENC(bf2f(a >> 16)) << W | ENC(bf2f(a & 0xffff)); }>);
        def(std::string("cvt.rn.") + (r ? "relu." : "") + "f16x2." + t + "x2", "d s",
            r ? op1<u32, u32, [](u32 a) { return f2h(relu(DEC(a >> W & mask))) << 16 | f2h(relu(DEC(a & mask))); }>
              : op1<u32, u32, [](u32 a) { return f2h(DEC(a >> W & mask)) << 16 | f2h(DEC(a & mask)); }>);
        def(std::string("cvt.rn.") + (r ? "relu." : "") + "bf16x2." + t + "x2", "d s",
            r ? op1<u32, u32, [](u32 a) { return f2bf(relu(DEC(a >> W & mask))) << 16 | f2bf(relu(DEC(a & mask))); }>
              : op1<u32, u32, [](u32 a) { return f2bf(DEC(a >> W & mask)) << 16 | f2bf(DEC(a & mask)); }>);
    }
}
// ue8m0: a power of two, 0xff NaN. UP: towards infinity; otherwise towards zero.
template <bool UP> u32 exponent_code(float x) {
    if (x != x) return 0xff;
    u32 b = as_u(x) & 0x7fffffff, e = b >> 23;
    if (as_u(x) >> 31 || b == 0) return 0;                      // the format has no sign
    if (e == 0) return UP && (b & 0x7fffff) > 0x400000 ? 1 : 0; // 2^-127 is code 0
    if (UP && (b & 0x7fffff)) e++;
    return e > 254 ? 254 : e;
}
template <bool UP> void exponents(const std::string &r) {
    for (const char *s : {"", ".satfinite"}) {
        std::string n = "cvt." + r + s + ".ue8m0x2";
        def(n + ".f32", "d s s",
            op2<u32, float, float, [](float h, float l) { return exponent_code<UP>(h) << 8 | exponent_code<UP>(l); }>);
        def(n + ".bf16x2", "d s",
            op1<u32, u32, [](u32 a) { return exponent_code<UP>(bf2f(a >> 16)) << 8 | exponent_code<UP>(bf2f(a & 0xffff)); }>);
    }
}
u32 power16(u32 c) { return c == 0xff ? 0x7fff : c ? c << 7 : 0x40; } // ue8m0 as bf16
} // namespace

void define_convert_float() {
    from_int<s8>("s8");
    from_int<u8>("u8");
    from_int<s16>("s16");
    from_int<u16>("u16");
    from_int<s32>("s32");
    from_int<u32>("u32");
    from_int<s64>("s64");
    from_int<u64>("u64");
    define_wide();
    tf32_rows<tf32<0>>("rn");
    tf32_rows<tf32<1>>("rna");
    tf32_rows<tf32<2>>("rz");
    small_pair<encode8<4, 3, 0x7e, 0x7f>, decode8<4, 3>, 8>("e4m3");
    small_pair<encode8<5, 2, 0x7b, 0x7f>, decode8<5, 2>, 8>("e5m2");
    small_pair<encode8<2, 3, 0x1f, 0x1f>, decode8<2, 3>, 8>("e2m3");
    small_pair<encode8<3, 2, 0x1f, 0x1f>, decode8<3, 2>, 8>("e3m2");
    small_pair<encode8<2, 1, 0x7, 0x7>, decode8<2, 1>, 4>("e2m1");
    exponents<false>("rz");
    exponents<true>("rp");
    def("cvt.rn.bf16x2.ue8m0x2", "d s", op1<u32, u32, [](u32 a) { return power16(a >> 8 & 0xff) << 16 | power16(a & 0xff); }>);
}
