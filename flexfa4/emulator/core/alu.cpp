// Integer, logic, predicate and move instructions.
#include "lanes.h"

namespace {
template <class T> struct Bits {
    using U = std::make_unsigned_t<T>;
};
template <class T> constexpr int width = sizeof(T) * 8;

Result mov_pred(Warp &w, const Ins &I) {
    w.putp(I.o[0], w.predmask(I.o + 1));
    return NEXT;
}
Result not_pred(Warp &w, const Ins &I) {
    w.putp(I.o[0], ~w.predmask(I.o + 1));
    return NEXT;
}
Result and_pred(Warp &w, const Ins &I) {
    w.putp(I.o[0], w.predmask(I.o + 1) & w.predmask(I.o + 3));
    return NEXT;
}
Result or_pred(Warp &w, const Ins &I) {
    w.putp(I.o[0], w.predmask(I.o + 1) | w.predmask(I.o + 3));
    return NEXT;
}
Result xor_pred(Warp &w, const Ins &I) {
    w.putp(I.o[0], w.predmask(I.o + 1) ^ w.predmask(I.o + 3));
    return NEXT;
}

template <int N> Result mov_rows(Warp &w, const Ins &I) {
    for (int i = 0; i < N; i++) {
        Row t;
        std::memcpy(t.v, w.R + I.o[1] + i * ROW, ROW);
        w.put(I.o[0] + i * ROW, t);
    }
    return NEXT;
}
template <int N> Result pack(Warp &w, const Ins &I) { // mov.bX d, {N 32-bit registers}
    Row t[N];
    for (int i = 0; i < N; i++) std::memcpy(t[i].v, w.R + I.o[1 + i], ROW);
    for (int i = 0; i < N; i++) w.put(I.o[0] + i * ROW, t[i]);
    return NEXT;
}
template <int N> Result unpack(Warp &w, const Ins &I) { // mov.bX {N 32-bit registers}, s
    Row t[N];
    for (int i = 0; i < N; i++) std::memcpy(t[i].v, w.R + I.o[N] + i * ROW, ROW);
    for (int i = 0; i < N; i++) w.put(I.o[i], t[i]);
    return NEXT;
}
Result pack128(Warp &w, const Ins &I) { // mov.b128 d, {lo64, hi64}
    Row t[4];
    for (int i = 0; i < 4; i++) std::memcpy(t[i].v, w.R + I.o[1 + i / 2] + (i & 1) * ROW, ROW);
    for (int i = 0; i < 4; i++) w.put(I.o[0] + i * ROW, t[i]);
    return NEXT;
}
Result unpack128(Warp &w, const Ins &I) {
    Row t[4];
    for (int i = 0; i < 4; i++) std::memcpy(t[i].v, w.R + I.o[2] + i * ROW, ROW);
    for (int i = 0; i < 4; i++) w.put(I.o[i / 2] + (i & 1) * ROW, t[i]);
    return NEXT;
}
Result unpack16(Warp &w, const Ins &I) { // mov.b32 {lo16, hi16}, s
    Row a, b;
    const u32 *s = w.r(I.o[2]);
    for (int l = 0; l < LANES; l++) {
        a.v[l] = s[l] & 0xffff;
        b.v[l] = s[l] >> 16;
    }
    w.put(I.o[0], a);
    w.put(I.o[1], b);
    return NEXT;
}
Result unpack16x4(Warp &w, const Ins &I) { // mov.b64 {4 x 16}, s
    Row t[4];
    const u32 *s = w.r(I.o[4]);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) t[i].v[l] = (s[l + (i / 2) * LANES] >> (16 * (i & 1))) & 0xffff;
    for (int i = 0; i < 4; i++) w.put(I.o[i], t[i]);
    return NEXT;
}
Result pack16x4(Warp &w, const Ins &I) {
    Row t[2];
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < LANES; l++) t[h].v[l] = (w.r(I.o[1 + 2 * h])[l] & 0xffff) | w.r(I.o[2 + 2 * h])[l] << 16;
    w.put(I.o[0], t[0]);
    w.put(I.o[0] + ROW, t[1]);
    return NEXT;
}
Result pack8x4(Warp &w, const Ins &I) { // mov.b32 d, {4 x 8}
    Row t;
    for (int l = 0; l < LANES; l++) {
        t.v[l] = 0;
        for (int i = 0; i < 4; i++) t.v[l] |= (w.r(I.o[1 + i])[l] & 0xff) << (8 * i);
    }
    w.put(I.o[0], t);
    return NEXT;
}
template <class T> Result selp(Warp &w, const Ins &I) {
    Rows t;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]);
    u32 p = w.predmask(I.o + 3);
    for (int h = 0; h < (sizeof(T) == 8 ? 2 : 1); h++)
        for (int l = 0; l < LANES; l++) t.v[h * LANES + l] = (p >> l) & 1 ? a[h * LANES + l] : b[h * LANES + l];
    store_rows<T>(w, I.o[0], t);
    return NEXT;
}
template <class T> void compares(const std::string &t, const char *s, bool order) {
    def_setp<T, [](T a, T b) { return a == b; }>("eq", "." + t, s);
    def_setp<T, [](T a, T b) { return a != b; }>("ne", "." + t, s);
    if (!order) return;
    if (std::is_unsigned_v<T>) { // lo ls hi hs are the unsigned spellings
        def_setp<T, [](T a, T b) { return a < b; }>("lo", "." + t, s);
        def_setp<T, [](T a, T b) { return a <= b; }>("ls", "." + t, s);
        def_setp<T, [](T a, T b) { return (a > b); }>("hi", "." + t, s);
        def_setp<T, [](T a, T b) { return a >= b; }>("hs", "." + t, s);
    }
    def_setp<T, [](T a, T b) { return a < b; }>("lt", "." + t, s);
    def_setp<T, [](T a, T b) { return a <= b; }>("le", "." + t, s);
    def_setp<T, [](T a, T b) { return (a > b); }>("gt", "." + t, s);
    def_setp<T, [](T a, T b) { return a >= b; }>("ge", "." + t, s);
}
template <class T> T wrap_mul(T a, T b) { return (T)((u64)(s64)a * (u64)(s64)b); }
template <class T> void arith(const std::string &t, const std::string &d, const std::string &s) {
    using U = std::make_unsigned_t<T>;
    std::string s2 = d + " " + s + " " + s, s3 = s2 + " " + s;
    def("add." + t, s2, op2<T, T, T, [](T a, T b) { return (T)((U)a + (U)b); }>);
    def("sub." + t, s2, op2<T, T, T, [](T a, T b) { return (T)((U)a - (U)b); }>);
    def("mul.lo." + t, s2, op2<T, T, T, [](T a, T b) { return (T)((u64)a * (u64)b); }>);
    def("mad.lo." + t, s3, op3<T, T, T, T, [](T a, T b, T c) { return (T)((u64)a * (u64)b + (u64)c); }>);
    def("min." + t, s2, op2<T, T, T, [](T a, T b) { return a < b ? a : b; }>);
    def("max." + t, s2, op2<T, T, T, [](T a, T b) { return (a > b) ? a : b; }>);
    // The result of a division by zero is unspecified: all ones here.
    def("div." + t, s2, op2<T, T, T, [](T a, T b) {
            if (b == 0) return (T)-1;
            if (std::is_signed_v<T> && b == (T)-1) return (T)(0 - (U)a);
            return (T)(a / b);
        }>);
    def("rem." + t, s2, op2<T, T, T, [](T a, T b) {
            if (b == 0) return a;
            if (std::is_signed_v<T> && b == (T)-1) return (T)0;
            return (T)(a % b);
        }>);
    // Shift amounts beyond the width give 0, or copies of the sign.
    def("shr." + t, d + " " + s + " s",
        op2<T, T, u32, [](T a, u32 n) { return n >= (u32)width<T> ? (T)(std::is_signed_v<T> && a < 0 ? -1 : 0) : (T)(a >> n); }>);
    if constexpr (std::is_signed_v<T>) {
        def("neg." + t, d + " " + s, op1<T, T, [](T a) { return (T)(0 - (U)a); }>);
        def("abs." + t, d + " " + s, op1<T, T, [](T a) { return a < 0 ? (T)(0 - (U)a) : a; }>);
    }
}
template <class T> void bits(const std::string &t, const std::string &d, const std::string &s) {
    std::string s2 = d + " " + s + " " + s;
    def("and." + t, s2, op2<T, T, T, [](T a, T b) { return (T)(a & b); }>);
    def("or." + t, s2, op2<T, T, T, [](T a, T b) { return (T)(a | b); }>);
    def("xor." + t, s2, op2<T, T, T, [](T a, T b) { return (T)(a ^ b); }>);
    def("not." + t, d + " " + s, op1<T, T, [](T a) { return (T)~a; }>);
    def("cnot." + t, d + " " + s, op1<T, T, [](T a) { return (T)(a == 0); }>);
    def("shl." + t, d + " " + s + " s", op2<T, T, u32, [](T a, u32 n) { return n >= (u32)width<T> ? (T)0 : (T)(a << n); }>);
    def("shr." + t, d + " " + s + " s", op2<T, T, u32, [](T a, u32 n) { return n >= (u32)width<T> ? (T)0 : (T)(a >> n); }>);
}
u32 lop3(u32 a, u32 b, u32 c, u32 lut) {
    u32 r = 0;
    if (lut & 1) r |= ~a & ~b & ~c;
    if (lut & 2) r |= ~a & ~b & c;
    if (lut & 4) r |= ~a & b & ~c;
    if (lut & 8) r |= ~a & b & c;
    if (lut & 16) r |= a & ~b & ~c;
    if (lut & 32) r |= a & ~b & c;
    if (lut & 64) r |= a & b & ~c;
    if (lut & 128) r |= a & b & c;
    return r;
}
Result lop3_b32(Warp &w, const Ins &I) {
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = lop3(w.r(I.o[1])[l], w.r(I.o[2])[l], w.r(I.o[3])[l], I.o[4]);
    w.put(I.o[0], t);
    return NEXT;
}
u32 prmt(u32 a, u32 b, u32 sel) { // default mode
    u64 x = a | (u64)b << 32;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = (sel >> (4 * i)) & 15, v = (u32)(x >> (8 * (s & 7))) & 0xff;
        if (s & 8) v = v & 0x80 ? 0xff : 0;
        r |= v << (8 * i);
    }
    return r;
}
template <class T> T bfe(T a, u32 pos, u32 len) { // PTX ISA, bfe: sign of the field extends
    pos &= 255;
    len &= 255;
    constexpr u32 msb = width<T> - 1;
    using U = std::make_unsigned_t<T>;
    U sign = 0;
    if (std::is_signed_v<T> && len != 0) {
        u32 top = pos + len - 1;
        sign = ((U)a >> (top < msb ? top : msb)) & 1;
    }
    U out = 0;
    for (u32 i = 0; i <= msb; i++) out |= (U)((i < len && pos + i <= msb) ? ((U)a >> (pos + i)) & 1 : sign) << i;
    return (T)out;
}
template <class T> T bfi(T a, T b, u32 pos, u32 len) {
    pos &= 255;
    len &= 255;
    for (u32 i = 0; i < len && pos + i < (u32)width<T>; i++) b = (T)((b & ~((T)1 << (pos + i))) | ((a >> i) & 1) << (pos + i));
    return b;
}
template <class T> u32 bfind(T a) {
    using U = std::make_unsigned_t<T>;
    U x = std::is_signed_v<T> && a < 0 ? (U)~a : (U)a;
    return x ? (u32)(63 - __builtin_clzll((u64)x)) : 0xffffffffu;
}
} // namespace

void define_alu() {
    def("mov.pred", "p P", mov_pred);
    def("not.pred", "p P", not_pred);
    def("and.pred", "p P P", and_pred);
    def("or.pred", "p P P", or_pred);
    def("xor.pred", "p P P", xor_pred);
    for (const char *t : {"b16", "u16", "s16", "b32", "u32", "s32", "f32"}) def(std::string("mov.") + t, "d s", mov_rows<1>);
    for (const char *t : {"b64", "u64", "s64", "f64"}) def(std::string("mov.") + t, "D S", mov_rows<2>);
    def("mov.b128", "Q Q", mov_rows<4>);
    def("mov.b64", "D {ss}", pack<2>);
    def("mov.b64", "{dd} S", unpack<2>);
    def("mov.b128", "Q {SS}", pack128);
    def("mov.b128", "{DD} Q", unpack128);
    def("mov.b32", "d {ss}", op2<u32, u16, u16, [](u16 a, u16 b) { return (u32)a | (u32)b << 16; }>);
    def("mov.b32", "{dd} s", unpack16);
    def("mov.b32", "d {ssss}", pack8x4);
    def("mov.b64", "{dddd} S", unpack16x4);
    def("mov.b64", "D {ssss}", pack16x4);
    for (const char *t : {"b16", "u16", "s16", "b32", "u32", "s32", "f32"}) def(std::string("selp.") + t, "d s s P", selp<u32>);
    for (const char *t : {"b64", "u64", "s64", "f64"}) def(std::string("selp.") + t, "D S S P", selp<u64>);
    compares<s16>("s16", "s", true);
    compares<u16>("u16", "s", true);
    compares<u16>("b16", "s", false);
    compares<s32>("s32", "s", true);
    compares<u32>("u32", "s", true);
    compares<u32>("b32", "s", false);
    compares<s64>("s64", "S", true);
    compares<u64>("u64", "S", true);
    compares<u64>("b64", "S", false);
    arith<s16>("s16", "d", "s");
    arith<u16>("u16", "d", "s");
    arith<s32>("s32", "d", "s");
    arith<u32>("u32", "d", "s");
    arith<s64>("s64", "D", "S");
    arith<u64>("u64", "D", "S");
    bits<u16>("b16", "d", "s");
    bits<u32>("b32", "d", "s");
    bits<u64>("b64", "D", "S");
    def("mul.wide.s16", "d s s", op2<s32, s16, s16, [](s16 a, s16 b) { return (s32)a * b; }>);
    def("mul.wide.u16", "d s s", op2<u32, u16, u16, [](u16 a, u16 b) { return (u32)a * b; }>);
    def("mul.wide.s32", "D s s", op2<s64, s32, s32, [](s32 a, s32 b) { return (s64)a * b; }>);
    def("mul.wide.u32", "D s s", op2<u64, u32, u32, [](u32 a, u32 b) { return (u64)a * b; }>);
    def("mad.wide.s16", "d s s s",
        op3<s32, s16, s16, s32, [](s16 a, s16 b, s32 c) { return (s32)((u32)((s32)a * b) + (u32)c); }>);
    def("mad.wide.u16", "d s s s", op3<u32, u16, u16, u32, [](u16 a, u16 b, u32 c) { return (u32)a * b + c; }>);
    def("mad.wide.s32", "D s s S",
        op3<s64, s32, s32, s64, [](s32 a, s32 b, s64 c) { return (s64)((u64)((s64)a * b) + (u64)c); }>);
    def("mad.wide.u32", "D s s S", op3<u64, u32, u32, u64, [](u32 a, u32 b, u64 c) { return (u64)a * b + c; }>);
    def("mul.hi.s32", "d s s", op2<s32, s32, s32, [](s32 a, s32 b) { return (s32)(((s64)a * b) >> 32); }>);
    def("mul.hi.u32", "d s s", op2<u32, u32, u32, [](u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }>);
    def("mul.hi.s64", "D S S", op2<s64, s64, s64, [](s64 a, s64 b) { return (s64)(((__int128)a * b) >> 64); }>);
    def("mul.hi.u64", "D S S", op2<u64, u64, u64, [](u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }>);
    def("mad.hi.s32", "d s s s",
        op3<s32, s32, s32, s32, [](s32 a, s32 b, s32 c) { return (s32)((u32)(((s64)a * b) >> 32) + (u32)c); }>);
    def("mad.hi.u32", "d s s s", op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 c) { return (u32)(((u64)a * b) >> 32) + c; }>);
    def("max.relu.s32", "d s s", op2<s32, s32, s32, [](s32 a, s32 b) {
            s32 m = (a > b) ? a : b;
            return m < 0 ? 0 : m;
        }>);
    def("min.relu.s32", "d s s", op2<s32, s32, s32, [](s32 a, s32 b) {
            s32 m = (a < b) ? a : b;
            return m < 0 ? 0 : m;
        }>);
    def("lop3.b32", "d s s s i", lop3_b32);
    def("prmt.b32", "d s s s", op3<u32, u32, u32, u32, prmt>);
    def("popc.b32", "d s", op1<u32, u32, [](u32 a) { return (u32)__builtin_popcount(a); }>);
    def("popc.b64", "d S", op1<u32, u64, [](u64 a) { return (u32)__builtin_popcountll(a); }>);
    def("clz.b32", "d s", op1<u32, u32, [](u32 a) { return a ? (u32)__builtin_clz(a) : 32u; }>);
    def("clz.b64", "d S", op1<u32, u64, [](u64 a) { return a ? (u32)__builtin_clzll(a) : 64u; }>);
    def("brev.b32", "d s", op1<u32, u32, [](u32 a) {
            u32 r = 0;
            for (int i = 0; i < 32; i++) r |= ((a >> i) & 1) << (31 - i);
            return r;
        }>);
    def("bfind.u32", "d s", op1<u32, u32, bfind<u32>>);
    def("bfind.s32", "d s", op1<u32, s32, bfind<s32>>);
    def("bfind.u64", "d S", op1<u32, u64, bfind<u64>>);
    def("bfind.s64", "d S", op1<u32, s64, bfind<s64>>);
    def("bfe.u32", "d s s s", op3<u32, u32, u32, u32, bfe<u32>>);
    def("bfe.s32", "d s s s", op3<s32, s32, u32, u32, bfe<s32>>);
    def("bfi.b32", "d s s s s", [](Warp &w, const Ins &I) {
        Row t;
        for (int l = 0; l < LANES; l++) t.v[l] = bfi<u32>(w.r(I.o[1])[l], w.r(I.o[2])[l], w.r(I.o[3])[l], w.r(I.o[4])[l]);
        w.put(I.o[0], t);
        return NEXT;
    });
    def("shf.l.wrap.b32", "d s s s",
        op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 n) { return (u32)((((u64)b << 32 | a) << (n & 31)) >> 32); }>);
    def("shf.r.wrap.b32", "d s s s",
        op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 n) { return (u32)(((u64)b << 32 | a) >> (n & 31)); }>);
    def("shf.l.clamp.b32", "d s s s",
        op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 n) { return (u32)((((u64)b << 32 | a) << (n > 32 ? 32 : n)) >> 32); }>);
    def("shf.r.clamp.b32", "d s s s",
        op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 n) { return (u32)(((u64)b << 32 | a) >> (n > 32 ? 32 : n)); }>);
}
