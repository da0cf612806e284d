// Matrix work of one warp on registers: mma.sync and movmatrix. Fragment layouts are those of the PTX ISA,
// "Matrix Fragments for mma": lane l holds row l / 4 (and + 8) of A and C, column l / 4 of B.
#include "small_floats.h"
#include "tensor_sum.h"

namespace {
enum Type { F16, BF16, TF32, E4M3, E5M2, S8, U8, F64 };
constexpr int width(Type t) { return t == F64 ? 64 : t == TF32 ? 32 : t == F16 || t == BF16 ? 16 : 8; }
template <Type T> auto element(const Warp &w, s32 reg, int lane, int part) { // `part` counts elements within the register
    if constexpr (T == F64)
        return std::bit_cast<double>(w.r64(reg, lane));
    else {
        u32 x = w.r(reg)[lane] >> (width(T) * part % 32);
        if constexpr (T == F16) return h2f(x & 0xffff);
        if constexpr (T == BF16) return bf2f(x & 0xffff);
        if constexpr (T == TF32) return as_f(x & ~0x1fffu);
        if constexpr (T == E4M3) return decode8<4, 3>(x & 255);
        if constexpr (T == E5M2) return decode8<5, 2>(x & 255);
        if constexpr (T == S8) return (s32)(s8)x;
        if constexpr (T == U8) return (s32)(u8)x;
    }
}
constexpr bool is_fp8(Type t) { return t == E4M3 || t == E5M2; }
constexpr int lowest(Type t) { return t == F16 || is_fp8(t) ? -14 : -126; }
// Bytes become f16: ptxas makes two steps, of the lower and the upper two bytes of each register, and adds c to their sum.
template <bool HALF, int K> float fp8_sum(float c, const float *a, const float *b, int stride) {
    constexpr Adder how = HALF ? WIDE_TO_F16 : WIDE;
    float sum = 0;
    for (int part = 0; part < 2; part++) {
        float x[K / 2], y[K / 2];
        for (int k = 0; k < K / 2; k++) {
            int at = k / 2 * 4 + 2 * part + k % 2;
            x[k] = a[at];
            y[k] = b[at * stride];
        }
        sum = tensor_sum(how, sum, {x, 1, lowest(F16)}, {y, 1, lowest(F16)}, K / 2);
    }
    return HALF ? h2f(f2h(sum + c)) : sum + c;
}
inline double accumulate(double c, double a, double b) { return std::fma(a, b, c); }
inline s32 accumulate(s32 c, s32 a, s32 b) { return (s32)((u32)c + (u32)a * (u32)b); }

// d[M][N] = a[M][K] b[K][N] + c. C: float, double or s32; HALF: C and D are packed f16; SAT: integers saturate at the end.
template <int M, int K, Type A, Type B, class C, bool HALF, bool SAT> Result mma(Warp &w, const Ins &I) {
    constexpr int N = 8, per = A == F64 ? 1 : 32 / width(A); // elements a register
    constexpr int na = M * K / 32 / per, nb = N * K / 32 / per, nc = M * N / 32 / (HALF ? 2 : 1);
    using E = decltype(element<A>(w, 0, 0, 0));
    const s32 *d = I.o, *ra = d + nc, *rb = ra + na, *rc = rb + nb;
    E a[M][K], b[K][N];
    C c[M][N];
    // Columns advance within a register, then over rows l / 4 and l / 4 + 8, then over the next block of 4 lanes * per columns.
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < na; i++)
            for (int e = 0; e < per; e++) {
                constexpr int halves = M / 8;
                a[l / 4 + 8 * (i % halves)][(i / halves) * 4 * per + (l % 4) * per + e] = element<A>(w, ra[i], l, e);
            }
        for (int i = 0; i < nb; i++)
            for (int e = 0; e < per; e++) b[i * 4 * per + (l % 4) * per + e][l / 4] = element<B>(w, rb[i], l, e);
        for (int i = 0; i < M * N / 32; i++) {
            C &x = c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2];
            if constexpr (HALF)
                x = h2f((w.r(rc[i / 2])[l] >> (16 * (i % 2))) & 0xffff);
            else
                x = get<C>(w.r(rc[i]), l);
        }
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            if constexpr (is_fp8(A))
                c[i][j] = fp8_sum<HALF, K>(c[i][j], a[i], &b[0][j], N);
            else if constexpr (std::is_same_v<C, float>) {
                c[i][j] = tensor_sum(HALF ? WIDE_TO_F16 : WIDE, c[i][j], {a[i], 1, lowest(A)}, {&b[0][j], N, lowest(B)}, K);
            } else if constexpr (SAT) {
                s64 s = c[i][j];
                for (int k = 0; k < K; k++) s += (s64)a[i][k] * b[k][j];
                c[i][j] = (C)(s > 2147483647 ? 2147483647 : s < -2147483648ll ? -2147483648ll : s);
            } else
                for (int k = 0; k < K; k++) c[i][j] = accumulate(c[i][j], a[i][k], b[k][j]);
        }
    for (int i = 0; i < M * N / 32; i++)
        for (int l = 0; l < LANES; l++) {
            C x = c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2];
            if constexpr (HALF) {
                u32 &r = w.r(d[i / 2])[l], h = f2h((float)x);
                r = i % 2 ? (r & 0xffff) | h << 16 : (r & 0xffff0000u) | h;
            } else {
                if constexpr (std::is_same_v<C, float>) x = cn(x);
                set<C>(w.r(d[i]), l, x);
            }
        }
    return NEXT;
}
std::string list(char c, int n) { return "{" + std::string((size_t)n, c) + "}"; }
template <int M, int K, Type A, Type B, class C, bool HALF = false> void shape(const char *types) {
    constexpr int per = A == F64 ? 1 : 32 / width(A);
    constexpr bool wide = A == F64;
    std::string head = "mma.sync.aligned.m" + std::to_string(M) + "n8k" + std::to_string(K) + ".row.col";
    constexpr int nc = M * 8 / 32 / (HALF ? 2 : 1);
    std::string spec = list(wide ? 'D' : 'd', nc) + " " + list(wide ? 'S' : 's', M * K / 32 / per) + " " +
                       list(wide ? 'S' : 's', 8 * K / 32 / per) + " " + list(wide ? 'S' : 's', nc);
    def(head + types, spec, mma<M, K, A, B, C, HALF, false>, true);
    if constexpr (A == F64 || A == E4M3 || A == E5M2) def(head + ".rn" + types, spec, mma<M, K, A, B, C, HALF, false>, true);
    if constexpr (std::is_same_v<C, s32>) def(head + ".satfinite" + types, spec, mma<M, K, A, B, C, HALF, true>, true);
}
template <int M, int K> void integers() {
    shape<M, K, S8, S8, s32>(".s32.s8.s8.s32");
    shape<M, K, S8, U8, s32>(".s32.s8.u8.s32");
    shape<M, K, U8, S8, s32>(".s32.u8.s8.s32");
    shape<M, K, U8, U8, s32>(".s32.u8.u8.s32");
}
template <int K> void eight_bit_floats(const std::string &kind) {
    for (bool half : {false, true}) {
        std::string d = kind + (half ? ".f16" : ".f32"), c = half ? ".f16" : ".f32";
        auto name = [&](const char *ab) { return d + ab + c; };
        if (half) {
            shape<16, K, E4M3, E4M3, float, true>(name(".e4m3.e4m3").c_str());
            shape<16, K, E4M3, E5M2, float, true>(name(".e4m3.e5m2").c_str());
            shape<16, K, E5M2, E4M3, float, true>(name(".e5m2.e4m3").c_str());
            shape<16, K, E5M2, E5M2, float, true>(name(".e5m2.e5m2").c_str());
        } else {
            shape<16, K, E4M3, E4M3, float>(name(".e4m3.e4m3").c_str());
            shape<16, K, E4M3, E5M2, float>(name(".e4m3.e5m2").c_str());
            shape<16, K, E5M2, E4M3, float>(name(".e5m2.e4m3").c_str());
            shape<16, K, E5M2, E5M2, float>(name(".e5m2.e5m2").c_str());
        }
    }
}
Result transpose(Warp &w, const Ins &I) { // movmatrix: lane l holds elements (l / 4, 2 (l % 4) + {0, 1}) of an 8x8 matrix
    u16 x[8][8];
    for (int l = 0; l < LANES; l++)
        for (int h = 0; h < 2; h++) x[l / 4][2 * (l % 4) + h] = (u16)(w.r(I.o[1])[l] >> (16 * h));
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = x[2 * (l % 4)][l / 4] | (u32)x[2 * (l % 4) + 1][l / 4] << 16;
    w.put(I.o[0], t);
    return NEXT;
}
// ldmatrix m16n16 b8, transposed: lane 16 i + r holds the address of row r (16 bytes) of matrix i. Register 2 i + h of lane l
// holds rows 4 (l % 4).. of column l / 4 + 8 h.
template <int N> Result load_bytes(Warp &w, const Ins &I) {
    const s32 *a = I.o + 2 * N;
    for (int i = 0; i < N; i++) {
        const u8 *rows[16];
        for (int r = 0; r < 16; r++) rows[r] = shared_bytes(w, I, (u32)w.addr(a, 16 * i + r), 16, false);
        for (int h = 0; h < 2; h++) {
            u32 *v = w.r(I.o[2 * i + h]);
            for (int l = 0; l < LANES; l++) {
                v[l] = 0;
                for (int e = 0; e < 4; e++) v[l] |= (u32)rows[4 * (l % 4) + e][l / 4 + 8 * h] << (8 * e);
            }
        }
    }
    return NEXT;
}
} // namespace

void define_matrix() {
    shape<16, 8, F16, F16, float>(".f32.f16.f16.f32");
    shape<16, 16, F16, F16, float>(".f32.f16.f16.f32");
    shape<16, 8, F16, F16, float, true>(".f16.f16.f16.f16");
    shape<16, 16, F16, F16, float, true>(".f16.f16.f16.f16");
    shape<16, 8, BF16, BF16, float>(".f32.bf16.bf16.f32");
    shape<16, 16, BF16, BF16, float>(".f32.bf16.bf16.f32");
    shape<16, 4, TF32, TF32, float>(".f32.tf32.tf32.f32");
    shape<16, 8, TF32, TF32, float>(".f32.tf32.tf32.f32");
    eight_bit_floats<16>("");
    eight_bit_floats<32>("");
    eight_bit_floats<32>(".kind::f8f6f4");
    integers<8, 16>();
    integers<16, 16>();
    integers<16, 32>();
    shape<8, 4, F64, F64, double>(".f64.f64.f64.f64");
    shape<16, 4, F64, F64, double>(".f64.f64.f64.f64");
    shape<16, 8, F64, F64, double>(".f64.f64.f64.f64");
    shape<16, 16, F64, F64, double>(".f64.f64.f64.f64");
    def("movmatrix.sync.aligned.m8n8.trans.b16", "d s", transpose, true);
    for (const char *s : {"shared", "shared::cta"}) {
        def(std::string("ldmatrix.sync.aligned.m16n16.x1.trans.") + s + ".b8", "{dd} a", load_bytes<1>, true);
        def(std::string("ldmatrix.sync.aligned.m16n16.x2.trans.") + s + ".b8", "{dddd} a", load_bytes<2>, true);
    }
}
