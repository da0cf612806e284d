// Floating-point arithmetic: f32, packed f32x2, f64, approximations.
#include "small_floats.h"
#include "special.h"

namespace {
// PTX max/min: a NaN operand loses, two NaNs give the canonical NaN, -0 < +0.
inline float fmax_ptx(float a, float b) {
    float x = a > b ? a : a < b ? b : as_f(as_u(a) & as_u(b)); // no branches, so that lanes run side by side
    x = b != b ? a : x;
    return a != a ? cn(b) : x;
}
inline float fmin_ptx(float a, float b) {
    float x = a < b ? a : a > b ? b : as_f(as_u(a) | as_u(b));
    x = b != b ? a : x;
    return a != a ? cn(b) : x;
}
inline float fmax_nan(float a, float b) { return a != a || b != b ? nan_f() : fmax_ptx(a, b); }
inline float fmin_nan(float a, float b) { return a != a || b != b ? nan_f() : fmin_ptx(a, b); }
inline float sat(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; } // NaN becomes 0

template <auto F> constexpr auto FT1 = [](float a) { return ftz(F(ftz(a))); };
template <auto F> constexpr auto FT2 = [](float a, float b) { return ftz(F(ftz(a), ftz(b))); };
template <auto F> constexpr auto FT3 = [](float a, float b, float c) { return ftz(F(ftz(a), ftz(b), ftz(c))); };
template <auto F> constexpr auto SA2 = [](float a, float b) { return sat(F(a, b)); };
template <auto F> constexpr auto SA3 = [](float a, float b, float c) { return sat(F(a, b, c)); };

constexpr auto ADD = [](float a, float b) { return cn(a + b); };
constexpr auto SUB = [](float a, float b) { return cn(a - b); };
constexpr auto MUL = [](float a, float b) { return cn(a * b); };
constexpr auto DIV = [](float a, float b) { return cn(a / b); };
constexpr auto FMA = [](float a, float b, float c) { return cn(std::fma(a, b, c)); };

template <auto F> void f32_two(const std::string &op, bool modes) {
    def(op + ".f32", "d s s", op2<float, float, float, F>);
    def(op + ".rn.f32", "d s s", op2<float, float, float, F>);
    def(op + ".ftz.f32", "d s s", op2<float, float, float, FT2<F>>);
    def(op + ".rn.ftz.f32", "d s s", op2<float, float, float, FT2<F>>);
    def(op + ".sat.f32", "d s s", op2<float, float, float, SA2<F>>);
    def(op + ".rn.sat.f32", "d s s", op2<float, float, float, SA2<F>>);
    def(op + ".rm.f32", "d s s", rounded<1, op2<float, float, float, F>>);
    def(op + ".rp.f32", "d s s", rounded<2, op2<float, float, float, F>>);
    def(op + ".rz.f32", "d s s", rounded<3, op2<float, float, float, F>>);
    def(op + ".rm.ftz.f32", "d s s", rounded<1, op2<float, float, float, FT2<F>>>);
    def(op + ".rp.ftz.f32", "d s s", rounded<2, op2<float, float, float, FT2<F>>>);
    def(op + ".rz.ftz.f32", "d s s", rounded<3, op2<float, float, float, FT2<F>>>);
    def(op + ".ftz.sat.f32", "d s s", op2<float, float, float, SA2<FT2<F>>>);
    if (!modes) return;
    def(op + ".f32x2", "D S S", pair2<F>);
    def(op + ".rn.f32x2", "D S S", pair2<F>);
    def(op + ".ftz.f32x2", "D S S", pair2<FT2<F>>);
    def(op + ".rn.ftz.f32x2", "D S S", pair2<FT2<F>>);
    def(op + ".rm.f32x2", "D S S", rounded<1, pair2<F>>);
    def(op + ".rp.f32x2", "D S S", rounded<2, pair2<F>>);
    def(op + ".rz.f32x2", "D S S", rounded<3, pair2<F>>);
    def(op + ".rm.ftz.f32x2", "D S S", rounded<1, pair2<FT2<F>>>);
    def(op + ".rp.ftz.f32x2", "D S S", rounded<2, pair2<FT2<F>>>);
    def(op + ".rz.ftz.f32x2", "D S S", rounded<3, pair2<FT2<F>>>);
}
template <auto F> void f32_minmax(const std::string &op, const std::string &mod) {
    def(op + mod + ".f32", "d s s", op2<float, float, float, F>);
    def(op + ".ftz" + mod + ".f32", "d s s", op2<float, float, float, FT2<F>>);
    def(op + mod + ".f32", "d s s s", op3<float, float, float, float, [](float a, float b, float c) { return F(F(a, b), c); }>);
}
// F: of any input. FLUSHED: inputs and results below 2^-126 count as zero.
template <auto F, auto FLUSHED = FT1<F>> void approx(const std::string &op) {
    def(op + ".approx.f32", "d s", op1<float, float, F>);
    def(op + ".approx.ftz.f32", "d s", op1<float, float, FLUSHED>);
}
// Around the special function unit, which flushes, ptxas scales what is too small or large (its output for sm_90a says how).
inline bool small(float a) { return !(std::fabs(a) >= 0x1p-126f); }
template <bool FLUSHED> Result ex2(Warp &w, const Ins &I) {
    Rows t, x;
    std::memcpy(x.v, w.r(I.o[1]), ROW);
    const Rows given = x;
    if constexpr (!FLUSHED)
        for (int l = 0; l < LANES; l++) x.v[l] = as_f(given.v[l]) < -126.0f ? as_u(0.5f * as_f(given.v[l])) : given.v[l];
    mufu_ex2(x.v, t.v);
    if constexpr (!FLUSHED)
        for (int l = 0; l < LANES; l++)
            if (as_f(given.v[l]) < -126.0f) t.v[l] = as_u(as_f(t.v[l]) * as_f(t.v[l]));
    store_rows<float>(w, I.o[0], t);
    return NEXT;
}
inline float lg2(float a) { return small(a) ? mufu_lg2(a * 0x1p24f) - 24.0f : mufu_lg2(a); }
inline float rsqrt(float a) { return small(a) ? mufu_rsqrt(a * 0x1p24f) * 0x1p12f : mufu_rsqrt(a); }
inline float rcp(float a) {
    float scale = small(a) ? 0x1p24f : std::fabs(a) > 0x1p126f ? 0.25f : 1.0f;
    return cn(scale * mufu_rcp(a * scale));
}
inline float root(float a) { return cn(small(a) ? mufu_sqrt(a * 0x1p24f) * 0x1p-12f : mufu_sqrt(a)); }
// The unit takes turns: a / 2 pi, cut to 24 bits. What is too small for a normal number counts as zero there.
template <u32 QUARTERS> float sine(float a) {
    u64 turns = std::bit_cast<u64>((double)a * (double)0x1.45f306p-3f); // exact
    return mufu_sine((float)std::bit_cast<double>(turns >> 29 << 29), QUARTERS);
}
template <auto F> void f64_two(const std::string &op) {
    def(op + ".f64", "D S S", op2<double, double, double, F>);
    def(op + ".rn.f64", "D S S", op2<double, double, double, F>);
    def(op + ".rm.f64", "D S S", rounded<1, op2<double, double, double, F>>);
    def(op + ".rp.f64", "D S S", rounded<2, op2<double, double, double, F>>);
    def(op + ".rz.f64", "D S S", rounded<3, op2<double, double, double, F>>);
}
// x y + c, x y - c and c - x y: what ptx/contract.py makes of a product and an addition.
inline double cn(double x) { return x; }
template <class T> T fused_add(T x, T y, T c) { return cn(std::fma(x, y, c)); }
template <class T> T fused_sub(T x, T y, T c) { return cn(std::fma(x, y, -c)); }
template <class T> T fused_from(T x, T y, T c) { return cn(std::fma(-x, y, c)); }
template <auto F32, auto F64> void contracted(const std::string &op) {
    def("contract." + op + ".f32", "d s s s", op3<float, float, float, float, F32>);
    def("contract." + op + ".ftz.f32", "d s s s", op3<float, float, float, float, FT3<F32>>);
    def("contract." + op + ".f32x2", "D S S S", pair3<F32>);
    def("contract." + op + ".ftz.f32x2", "D S S S", pair3<FT3<F32>>);
    def("contract." + op + ".f64", "D S S S", op3<double, double, double, double, F64>);
}
void define_contracted() {
    contracted<fused_add<float>, fused_add<double>>("add");
    contracted<fused_sub<float>, fused_sub<double>>("sub");
    contracted<fused_from<float>, fused_from<double>>("from");
}
double max64(double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
}
double min64(double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}
void define_f64() {
    using f = double;
    constexpr auto fma64 = [](f a, f b, f c) { return std::fma(a, b, c); };
    f64_two<[](f a, f b) { return a + b; }>("add");
    f64_two<[](f a, f b) { return a - b; }>("sub");
    f64_two<[](f a, f b) { return a * b; }>("mul");
    def("div.rn.f64", "D S S", op2<f, f, f, [](f a, f b) { return a / b; }>);
    def("rcp.rn.f64", "D S", op1<f, f, [](f a) { return 1.0 / a; }>);
    def("fma.rn.f64", "D S S S", op3<f, f, f, f, fma64>);
    def("fma.rm.f64", "D S S S", rounded<1, op3<f, f, f, f, fma64>>);
    def("fma.rp.f64", "D S S S", rounded<2, op3<f, f, f, f, fma64>>);
    def("fma.rz.f64", "D S S S", rounded<3, op3<f, f, f, f, fma64>>);
    def("sqrt.rn.f64", "D S", op1<f, f, [](f a) { return std::sqrt(a); }>);
    def("neg.f64", "D S", op1<f, f, [](f a) { return -a; }>);
    def("abs.f64", "D S", op1<f, f, [](f a) { return std::fabs(a); }>);
    def("max.f64", "D S S", op2<f, f, f, max64>);
    def("min.f64", "D S S", op2<f, f, f, min64>);
}
} // namespace

void define_float() {
    f32_two<ADD>("add", true);
    f32_two<SUB>("sub", true);
    f32_two<MUL>("mul", true);
    for (const char *r : {"fma.rn", "mad.rn"}) {
        std::string m(r);
        def(m + ".f32", "d s s s", op3<float, float, float, float, FMA>);
        def(m + ".ftz.f32", "d s s s", op3<float, float, float, float, FT3<FMA>>);
        def(m + ".sat.f32", "d s s s", op3<float, float, float, float, SA3<FMA>>);
    }
    define_contracted();
    def("fma.rm.f32", "d s s s", rounded<1, op3<float, float, float, float, FMA>>);
    def("fma.rp.f32", "d s s s", rounded<2, op3<float, float, float, float, FMA>>);
    def("fma.rz.f32", "d s s s", rounded<3, op3<float, float, float, float, FMA>>);
    def("fma.rn.f32x2", "D S S S", pair3<FMA>);
    def("fma.rn.ftz.f32x2", "D S S S", pair3<FT3<FMA>>);
    def("fma.rm.f32x2", "D S S S", rounded<1, pair3<FMA>>);
    def("fma.rp.f32x2", "D S S S", rounded<2, pair3<FMA>>);
    def("fma.rz.f32x2", "D S S S", rounded<3, pair3<FMA>>);
    def("fma.rm.ftz.f32", "d s s s", rounded<1, op3<float, float, float, float, FT3<FMA>>>);
    def("fma.rp.ftz.f32", "d s s s", rounded<2, op3<float, float, float, float, FT3<FMA>>>);
    def("fma.rz.ftz.f32", "d s s s", rounded<3, op3<float, float, float, float, FT3<FMA>>>);
    def("fma.rm.ftz.f32x2", "D S S S", rounded<1, pair3<FT3<FMA>>>);
    def("fma.rz.ftz.f32x2", "D S S S", rounded<3, pair3<FT3<FMA>>>);
    def("div.rm.f32", "d s s", rounded<1, op2<float, float, float, DIV>>);
    def("div.rp.f32", "d s s", rounded<2, op2<float, float, float, DIV>>);
    def("div.rz.f32", "d s s", rounded<3, op2<float, float, float, DIV>>);
    def("div.rn.f32", "d s s", op2<float, float, float, DIV>);
    def("div.rn.ftz.f32", "d s s", op2<float, float, float, FT2<DIV>>);
    for (const char *t : {"div.approx.f32", "div.full.f32"}) def(t, "d s s", op2<float, float, float, DIV>);
    for (const char *t : {"div.approx.ftz.f32", "div.full.ftz.f32"}) def(t, "d s s", op2<float, float, float, FT2<DIV>>);
    f32_minmax<fmax_ptx>("max", "");
    f32_minmax<fmin_ptx>("min", "");
    f32_minmax<fmax_nan>("max", ".NaN");
    f32_minmax<fmin_nan>("min", ".NaN");
    def("neg.f32", "d s", op1<float, float, [](float a) { return cn(-a); }>);
    def("abs.f32", "d s", op1<float, float, [](float a) { return cn(std::fabs(a)); }>);
    def("neg.ftz.f32", "d s", op1<float, float, [](float a) { return cn(ftz(-a)); }>);
    def("abs.ftz.f32", "d s", op1<float, float, [](float a) { return cn(ftz(std::fabs(a))); }>);
    def("copysign.f32", "d s s", op2<u32, u32, u32, [](u32 a, u32 b) { return (b & 0x7fffffffu) | (a & 0x80000000u); }>);
    def("ex2.approx.f32", "d s", ex2<false>);
    def("ex2.approx.ftz.f32", "d s", ex2<true>);
    approx<[](float a) { return cn(lg2(a)); }, mufu_lg2>("lg2");
    approx<rcp, mufu_rcp>("rcp");
    approx<[](float a) { return cn(rsqrt(a)); }, mufu_rsqrt>("rsqrt");
    approx<root, mufu_sqrt>("sqrt");
    approx<sine<0>, sine<0>>("sin");
    approx<sine<1>, sine<1>>("cos");
    def("tanh.approx.f32", "d s", op1<float, float, mufu_tanh>);
    def("rcp.rn.f32", "d s", op1<float, float, [](float a) { return cn(1.0f / a); }>);
    def("rcp.rn.ftz.f32", "d s", op1<float, float, FT1<[](float a) { return cn(1.0f / a); }>>);
    constexpr auto inverse = [](float a) { return cn(1.0f / a); };
    constexpr auto correct_root = [](float a) { return cn(std::sqrt(a)); };
    def("rcp.rm.f32", "d s", rounded<1, op1<float, float, inverse>>);
    def("rcp.rp.f32", "d s", rounded<2, op1<float, float, inverse>>);
    def("rcp.rz.f32", "d s", rounded<3, op1<float, float, inverse>>);
    def("sqrt.rm.f32", "d s", rounded<1, op1<float, float, correct_root>>);
    def("sqrt.rp.f32", "d s", rounded<2, op1<float, float, correct_root>>);
    def("sqrt.rz.f32", "d s", rounded<3, op1<float, float, correct_root>>);
    def("sqrt.rn.f32", "d s", op1<float, float, [](float a) { return cn(std::sqrt(a)); }>);
    def("sqrt.rn.ftz.f32", "d s", op1<float, float, FT1<[](float a) { return cn(std::sqrt(a)); }>>);
    def("testp.finite.f32", "p s", [](Warp &w, const Ins &I) {
        u32 t = 0;
        for (int l = 0; l < LANES; l++) t |= (u32)((w.r(I.o[1])[l] & 0x7f800000u) != 0x7f800000u) << l;
        w.putp(I.o[0], t);
        return NEXT;
    });
    cmp_float<float>(".f32", "s");
    cmp_float<double>(".f64", "S");
    def_setp<float, [](float a, float b) { return ftz(a) < ftz(b); }>("lt", ".ftz.f32", "s");
    def_setp<float, [](float a, float b) { return (ftz(a) > ftz(b)); }>("gt", ".ftz.f32", "s");
    def_setp<float, [](float a, float b) { return ftz(a) == ftz(b); }>("eq", ".ftz.f32", "s");
    define_f64();
}
