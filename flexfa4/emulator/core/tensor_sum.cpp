// The arithmetic of NVIDIA's tensor cores: the products of one block of K and the accumulator are aligned to the largest of their
// exponents (of a product: the sum of its factors' exponents, before normalisation), what lies more than `fraction` bits below is
// cut off each, the rest is added exactly, and the sum is cut to the result's mantissa. Sources: Xie et al., "MMA-Sim"
// (arXiv:2511.10909); Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv:2512.07004).
#include "tensor_sum.h"
#include "small_floats.h"
#include "transpose.h"
#include <algorithm>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {
constexpr int LANE = 16;              // floats in a vector
constexpr int LOW = -100, HIGH = 118; // largest exponents for which each step in float or int32 is exact
constexpr int SPECIAL = 2000;         // exponent of infinities and NaN
constexpr int NOTHING = -1000;        // ... of zero, which does not count
typedef s16 Shorts __attribute__((vector_size(64)));
typedef u32 Words __attribute__((vector_size(64)));

inline s32 exponent(float x, int lowest) {
    s32 field = (s32)(as_u(x) >> 23 & 255), e = std::max(field - 127, lowest);
    return x == 0 ? NOTHING : field == 255 ? SPECIAL : e;
}
// A double cut to `mantissa` bits within the range of float.
float cut(double x, int mantissa) {
    double size = std::fabs(x), step = std::ldexp(1.0, -126 - mantissa);
    if (size >= 0x1p128) return (float)std::copysign(INFINITY, x);
    if (size < 0x1p-126) return (float)std::copysign(std::floor(size / step) * step, x);
    return (float)std::bit_cast<double>(std::bit_cast<u64>(x) & ~0ull << (52 - mantissa));
}
float result(const Adder &how, double sum) {
    float x = how.to == TO_F16 ? h2f(encode16<5, 10>(sum, NEAREST)) : cut(sum, how.mantissa);
    return x == 0 ? 0.0f : x; // never -0
}

constexpr int ROWS = 256; // the most of one operand
// e[k][row * COPIES + any] = exponent
template <int COPIES> void exponents(const Factor &f, int rows, int k, s16 *e) {
    for (int i = 0; i < k; i++)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < COPIES; c++) e[(i * ROWS + r) * COPIES + c] = (s16)exponent(f.x[i * f.stride + r], f.lowest);
}
inline bool any(Ints x) {
#ifdef __AVX512F__
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
#else
    s32 r = 0;
    for (int l = 0; l < LANE; l++) r |= x[l];
    return r;
#endif
}
// (first + second) times 2^(top - fraction), cut to the mantissa. Each is below 2^31, their sum may not be.
template <Adder HOW> inline Floats combine(Ints first, Ints second, Ints top) {
    Ints half = (first >> 1) + (second >> 1) + (first & second & 1), minus = half < 0;
    Words size = (((Words)first + (Words)second) ^ (Words)minus) - (Words)minus;
    Floats scale = (Floats)((127 - HOW.fraction + top) << 23);
    if constexpr (HOW.to == TO_F16) {
        Floats f;
        for (int l = 0; l < LANE; l++) f[l] = result(HOW, (minus[l] ? -1.0 : 1.0) * size[l] * scale[l]);
        return f;
    }
    Floats f = __builtin_convertvector(size, Floats); // rounded to nearest
    Ints bits = (Ints)f + (Ints)(__builtin_convertvector(f, Words) > size);
    f = (Floats)(bits & (s32)(~0u << (23 - HOW.mantissa))) * scale;
    return (Floats)((Ints)f | (minus & (s32)0x80000000u));
}

// 16 rows by two columns, K products each. By value, so that stores of results do not make the compiler load it again.
template <Adder HOW, int K> struct Tile {
    const float *a, *b; // first row, first column
    s64 a_stride, b_stride;
    const s16 *ea, *eb; // exponents: of a row twice, of a column once
    int a_lowest, b_lowest;
    Floats at(int i) const {
        Floats v;
        std::memcpy(&v, a + i * a_stride, sizeof v);
        return v;
    }
    float by(int i, int which) const { return b[i * b_stride + which]; }
    // The largest exponent of the products: of the first column in the lower half of each word.
    Ints largest() const {
        Shorts top = Shorts{} + (s16)(2 * NOTHING);
        for (int i = 0; i < K; i++) {
            s32 pair;
            std::memcpy(&pair, eb + i * ROWS, sizeof pair);
            Shorts e;
            std::memcpy(&e, ea + 2 * i * ROWS, sizeof e);
            e += (Shorts)(Ints{} + pair);
            top = top > e ? top : e;
        }
        return (Ints)top;
    }
    Ints with_accumulator(Ints products, Floats c) const {
        Ints field = ((Ints)c >> 23) & 255;
        Ints e = field == 255 ? Ints{} + SPECIAL : field == 0 ? Ints{} + NOTHING : field - 127;
        if (HOW.to == TO_F16) e = (e < -14) & (field > 0) ? Ints{} - 14 : e;
        return products > e ? products : e;
    }
    // Lanes of very large or small terms, of infinities and NaN.
    [[gnu::noinline, gnu::cold]] void one_by_one(const Ints &rare, int which, const Floats &c, Floats &out) const {
        Ints seen = (Ints)c << 1;
        for (int i = 0; i < K; i++)
            if (by(i, which) != 0) seen |= (Ints)at(i) << 1;
        const Factor fb{b + which, (int)b_stride, b_lowest};
        for (int l = 0; l < LANE; l++)
            if (rare[l]) out[l] = seen[l] ? tensor_sum(HOW, c[l], {a + l, (int)a_stride, a_lowest}, fb, K) : 0;
    }
    Floats column_sum(int which, Ints products, Floats c) const {
        Ints top = with_accumulator(products, c), rare = (top > HIGH) | (top < LOW);
        top = rare ? Ints{} : top;
        const Floats scale = (Floats)((127 + HOW.fraction - top) << 23);
        Ints sums[2] = {__builtin_convertvector(c * scale, Ints), Ints{}};
        for (int i = 0; i < K; i++) sums[i >= K / 2] += __builtin_convertvector(at(i) * by(i, which) * scale, Ints);
        Floats out = combine<HOW>(sums[0], sums[1], top);
        if (any(rare)) one_by_one(rare, which, c, out);
        return out;
    }
    void run(float *d, int stride, bool accumulate) const {
        const Ints both = largest(), products[2] = {both << 16 >> 16, both >> 16};
        for (int which = 0; which < 2; which++) {
            Floats c{};
            if (accumulate) std::memcpy(&c, d + which * stride, sizeof c);
            c = column_sum(which, products[which], c);
            std::memcpy(d + which * stride, &c, sizeof c);
        }
    }
};
template <Adder HOW, int K> void run(float *d, int ds, const Factor &a, const Factor &b, const Extent &size, bool accumulate) {
    alignas(64) static thread_local s16 ea[2 * K * ROWS], eb[K * ROWS];
    exponents<2>(a, size.m, K, ea);
    exponents<1>(b, size.n, K, eb);
    for (int j = 0; j < size.n; j += 2)
        for (int i = 0; i < size.m; i += LANE)
            Tile<HOW, K>{a.x + i, b.x + j, a.stride, b.stride, ea + 2 * i, eb + j, a.lowest, b.lowest}.run(d + j * ds + i, ds,
                                                                                                           accumulate);
}
} // namespace

float tensor_sum(const Adder &how, float c, const Factor &a, const Factor &b, int k) {
    int top = exponent(c, how.to == TO_F16 ? -14 : -126);
    for (int i = 0; i < k; i++)
        top = std::max(top, exponent(a.x[i * a.stride], a.lowest) + exponent(b.x[i * b.stride], b.lowest));
    bool special = top >= SPECIAL + NOTHING;
    double sum = special ? c : std::trunc(std::ldexp(c, how.fraction - top));
    for (int i = 0; i < k; i++) {
        double p = (double)a.x[i * a.stride] * b.x[i * b.stride];
        sum += special ? p : std::trunc(std::ldexp(p, how.fraction - top));
    }
    return cn(special ? (float)sum : result(how, std::ldexp(sum, top - how.fraction)));
}
void product(const Adder &how, float *d, int ds, const Factor &a, const Factor &b, const Extent &size, bool accumulate) {
    if (how.to == TO_F16)
        how.fraction == WIDE.fraction ? run<WIDE_TO_F16, 16>(d, ds, a, b, size, accumulate)
                                      : run<NARROW_TO_F16, 32>(d, ds, a, b, size, accumulate);
    else if (how.fraction == NARROW.fraction)
        run<NARROW, 32>(d, ds, a, b, size, accumulate);
    else
        (size.k == 8 ? run<WIDE, 8> : size.k == 16 ? run<WIDE, 16> : run<WIDE, 32>)(d, ds, a, b, size, accumulate);
}
void exact_product(float *d, int ds, const Factor &a, const Factor &b, const Extent &size) {
    for (int j = 0; j < size.n; j++)
        for (int i = 0; i < size.m; i += LANE) {
            Floats s{}, v;
            for (int x = 0; x < size.k; x++) {
                std::memcpy(&v, a.x + x * a.stride + i, sizeof v);
                s += v * b.x[x * b.stride + j];
            }
            std::memcpy(d + j * ds + i, &s, sizeof s);
        }
}
