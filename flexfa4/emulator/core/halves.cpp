// Arithmetic, comparison and approximations of f16 and bf16, single and packed.
#include "small_floats.h"
#include "special.h"

namespace {
// Scalar functions on 16-bit codes. The work is done in double, with one rounding at the end.
template <class T> constexpr auto ADD = [](u16 a, u16 b) { return to16<T>(add_odd((double)T(a), (double)T(b))); };
template <class T> constexpr auto SUB = [](u16 a, u16 b) { return to16<T>(add_odd((double)T(a), -(double)T(b))); };
template <class T> constexpr auto MUL = [](u16 a, u16 b) { return to16<T>((double)T(a) * (double)T(b)); };
template <class T>
constexpr auto FMA = [](u16 a, u16 b, u16 c) { return to16<T>(add_odd((double)T(a) * (double)T(b), (double)T(c))); };

template <class T> u16 larger(u16 a, u16 b) { // NaN loses, -0 < +0
    float x = T(a), y = T(b);
    if (x != x) return y != y ? 0x7fff : b;
    if (y != y) return a;
    return x > y || (x == y && !(a & 0x8000)) ? a : b;
}
template <class T> u16 smaller(u16 a, u16 b) {
    float x = T(a), y = T(b);
    if (x != x) return y != y ? 0x7fff : b;
    if (y != y) return a;
    return x < y || (x == y && (a & 0x8000)) ? a : b;
}
template <class T> bool nan(u16 a) { return (float)T(a) != (float)T(a); }
template <class T> constexpr auto MAX = [](u16 a, u16 b) { return larger<T>(a, b); };
template <class T> constexpr auto MIN = [](u16 a, u16 b) { return smaller<T>(a, b); };
template <class T> constexpr auto MAX_NAN = [](u16 a, u16 b) { return nan<T>(a) || nan<T>(b) ? (u16)0x7fff : larger<T>(a, b); };
template <class T> constexpr auto MIN_NAN = [](u16 a, u16 b) { return nan<T>(a) || nan<T>(b) ? (u16)0x7fff : smaller<T>(a, b); };
// Of the magnitudes, with the sign of the product.
template <class T, auto F>
constexpr auto XORSIGN = [](u16 a, u16 b) { return (u16)((F(a & 0x7fff, b & 0x7fff) & 0x7fff) | ((a ^ b) & 0x8000)); };

// Modifiers around a function: subnormal operands and results become zero; clamp to [0, 1]; negative results become zero.
template <class T> u16 flush(u16 a) { return (a & (((1 << T::exponent) - 1) << T::mantissa)) ? a : (u16)(a & 0x8000); }
template <class T> u16 clamp01(u16 a) {
    float x = T(a);
    return x > 0 ? (x < 1 ? a : to16<T>(1.0)) : (u16)0;
}
template <class T> u16 relu(u16 a) { return nan<T>(a) ? (u16)0x7fff : a & 0x8000 ? (u16)0 : a; }
template <class T, auto F> constexpr auto FTZ2 = [](u16 a, u16 b) { return flush<T>(F(flush<T>(a), flush<T>(b))); };
template <class T, auto F>
constexpr auto FTZ3 = [](u16 a, u16 b, u16 c) { return flush<T>(F(flush<T>(a), flush<T>(b), flush<T>(c))); };
template <class T, auto F> constexpr auto SAT2 = [](u16 a, u16 b) { return clamp01<T>(F(a, b)); };
template <class T, auto F> constexpr auto SAT3 = [](u16 a, u16 b, u16 c) { return clamp01<T>(F(a, b, c)); };
template <class T, auto F> constexpr auto RELU3 = [](u16 a, u16 b, u16 c) { return relu<T>(F(a, b, c)); };

template <auto F> void one(const std::string &name, const std::string &t) {
    def(name + t, "d s", op1<u32, u32, [](u32 a) { return (u32)F((u16)a); }>);
    def(name + t + "x2", "d s", op1<u32, u32, [](u32 a) { return (u32)F((u16)a) | (u32)F((u16)(a >> 16)) << 16; }>);
}
template <auto F> void two(const std::string &name, const std::string &t) {
    def(name + t, "d s s", op2<u32, u32, u32, [](u32 a, u32 b) { return (u32)F((u16)a, (u16)b); }>);
    def(name + t + "x2", "d s s",
        op2<u32, u32, u32, [](u32 a, u32 b) { return (u32)F((u16)a, (u16)b) | (u32)F((u16)(a >> 16), (u16)(b >> 16)) << 16; }>);
}
template <auto F> void three(const std::string &name, const std::string &t) {
    def(name + t, "d s s s", op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 c) { return (u32)F((u16)a, (u16)b, (u16)c); }>);
    def(name + t + "x2", "d s s s", op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 c) {
            return (u32)F((u16)a, (u16)b, (u16)c) | (u32)F((u16)(a >> 16), (u16)(b >> 16), (u16)(c >> 16)) << 16;
        }>);
}
template <class T, auto F> void rounded_two(const std::string &op, const std::string &t) {
    for (const char *r : {"", ".rn"}) {
        std::string n = op + r;
        two<F>(n, t);
        if (t != ".f16") continue;
        two<FTZ2<T, F>>(n + ".ftz", t);
        two<SAT2<T, F>>(n + ".sat", t);
        two<SAT2<T, FTZ2<T, F>>>(n + ".ftz.sat", t);
    }
}
template <class T, auto F, auto G> void extremes(const std::string &op, const std::string &t) {
    two<F>(op, t);
    two<G>(op + ".NaN", t);
    two<XORSIGN<T, F>>(op + ".xorsign.abs", t);
    two<XORSIGN<T, G>>(op + ".NaN.xorsign.abs", t);
    if (t != ".f16") return;
    two<FTZ2<T, F>>(op + ".ftz", t);
    two<FTZ2<T, G>>(op + ".ftz.NaN", t);
}
// setp.cmp.f16x2 p|q: p from the low halves, q from the high ones.
template <class T, auto F> Result setp_x2(Warp &w, const Ins &I) {
    u32 lo = 0, hi = 0;
    const u32 *a = w.r(I.o[2]), *b = w.r(I.o[3]);
    for (int l = 0; l < LANES; l++) {
        lo |= (u32)F(T(a[l]), T(b[l])) << l;
        hi |= (u32)F(T(a[l] >> 16), T(b[l] >> 16)) << l;
    }
    w.putp(I.o[0], lo);
    w.putp(I.o[1], hi);
    return NEXT;
}
template <class T> void half_ops(const std::string &t) {
    rounded_two<T, ADD<T>>("add", t);
    rounded_two<T, SUB<T>>("sub", t);
    rounded_two<T, MUL<T>>("mul", t);
    three<FMA<T>>("fma.rn", t);
    three<RELU3<T, FMA<T>>>("fma.rn.relu", t);
    if (t == ".f16") {
        three<FTZ3<T, FMA<T>>>("fma.rn.ftz", t);
        three<SAT3<T, FMA<T>>>("fma.rn.sat", t);
        three<RELU3<T, FTZ3<T, FMA<T>>>>("fma.rn.ftz.relu", t);
        three<SAT3<T, FTZ3<T, FMA<T>>>>("fma.rn.ftz.sat", t);
    }
    extremes<T, MAX<T>, MAX_NAN<T>>("max", t);
    extremes<T, MIN<T>, MIN_NAN<T>>("min", t);
    one<[](u16 a) { return nan<T>(a) ? (u16)0x7fff : (u16)(a ^ 0x8000); }>("neg", t);
    one<[](u16 a) { return nan<T>(a) ? (u16)0x7fff : (u16)(a & 0x7fff); }>("abs", t);
    if (t == ".f16") {
        one<[](u16 a) { return nan<T>(a) ? (u16)0x7fff : (u16)(flush<T>(a) ^ 0x8000); }>("neg.ftz", t);
        one<[](u16 a) { return nan<T>(a) ? (u16)0x7fff : (u16)(flush<T>(a) & 0x7fff); }>("abs.ftz", t);
    }
    // The unit's result for f32, cut; bf16 has the flushing form of ex2 only, f16 the other.
    one<[](u16 a) { return to16<T>(mufu_tanh(T(a)), ZERO); }>("tanh.approx", t);
    one<[](u16 a) {
        float x = mufu_ex2(T(a));
        return to16<T>(T::exponent == 5 && x >= 0x1p16f ? INFINITY : x, ZERO);
    }>(t == ".f16" ? "ex2.approx" : "ex2.approx.ftz", t);
    // Mixed precision (sm_100): the halves widen exactly, one rounding to f32.
    def("fma.rn.f32" + t, "d s s s",
        op3<float, u16, u16, float, [](u16 a, u16 b, float c) { return cn(std::fma((float)T(a), (float)T(b), c)); }>);
    for (const char *r : {"", ".rn"}) {
        def(std::string("add") + r + ".f32" + t, "d s s",
            op2<float, u16, float, [](u16 a, float c) { return cn((float)T(a) + c); }>);
        def(std::string("sub") + r + ".f32" + t, "d s s",
            op2<float, u16, float, [](u16 a, float c) { return cn((float)T(a) - c); }>);
    }
    cmp_float<T>(t, "s");
    std::string x2 = t + "x2";
    def("setp.eq" + x2, "pp s s", setp_x2<T, [](T a, T b) { return a == b; }>);
    def("setp.ne" + x2, "pp s s", setp_x2<T, [](T a, T b) { return (a < b || a > b); }>);
    def("setp.lt" + x2, "pp s s", setp_x2<T, [](T a, T b) { return a < b; }>);
    def("setp.le" + x2, "pp s s", setp_x2<T, [](T a, T b) { return a <= b; }>);
    def("setp.gt" + x2, "pp s s", setp_x2<T, [](T a, T b) { return (a > b); }>);
    def("setp.ge" + x2, "pp s s", setp_x2<T, [](T a, T b) { return a >= b; }>);
    def("setp.nan" + x2, "pp s s", setp_x2<T, [](T a, T b) { return a != a || b != b; }>);
}
} // namespace

void define_halves() {
    half_ops<Half>(".f16");
    half_ops<Bfloat>(".bf16");
}
