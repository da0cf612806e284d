// Integer instructions beyond the plain ones of alu.cpp: carries, 24-bit and packed arithmetic, dot products, bit fields.
#include "lanes.h"
#include <limits>

namespace {
// The carry flag of each lane: a spare row at the start of the register file.
constexpr s32 CARRY = 9 * ROW;

// add{c}{.cc}, sub{c}{.cc}, mad{c}.lo/hi{.cc}: IN reads the flag, OUT writes it.
template <class T, bool SUB, bool IN, bool OUT> Result carry_add(Warp &w, const Ins &I) {
    Rows t;
    u32 old = w.p(CARRY), flag = 0;
    const u32 *a = w.r(I.o[1]), *b = w.r(I.o[2]);
    for (int l = 0; l < LANES; l++) {
        unsigned __int128 x = get<T>(a, l), y = get<T>(b, l), c = IN ? (old >> l) & 1 : 0, r = SUB ? x - y - c : x + y + c;
        set<T>(t.v, l, (T)r);
        flag |= (u32)((r >> (8 * sizeof(T))) & 1) << l;
    }
    store_rows<T>(w, I.o[0], t);
    if (OUT) w.putp(CARRY, flag);
    return NEXT;
}
template <class T, bool HI, bool IN, bool OUT> Result carry_mad(Warp &w, const Ins &I) {
    using W = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    using U = std::make_unsigned_t<T>;
    Rows t;
    u32 old = w.p(CARRY), flag = 0;
    for (int l = 0; l < LANES; l++) {
        W p = (W)get<T>(w.r(I.o[1]), l) * (W)get<T>(w.r(I.o[2]), l);
        U part = (U)(HI ? p >> (8 * sizeof(T)) : p);
        unsigned __int128 r = (unsigned __int128)part + (U)get<T>(w.r(I.o[3]), l) + (IN ? (old >> l) & 1 : 0);
        set<T>(t.v, l, (T)r);
        flag |= (u32)((r >> (8 * sizeof(T))) & 1) << l;
    }
    store_rows<T>(w, I.o[0], t);
    if (OUT) w.putp(CARRY, flag);
    return NEXT;
}
template <class T> void carries(const std::string &t, const std::string &d, const std::string &s) {
    using U = std::make_unsigned_t<T>;
    std::string s2 = d + " " + s + " " + s, s3 = s2 + " " + s;
    def("add.cc." + t, s2, carry_add<U, false, false, true>);
    def("addc." + t, s2, carry_add<U, false, true, false>);
    def("addc.cc." + t, s2, carry_add<U, false, true, true>);
    def("sub.cc." + t, s2, carry_add<U, true, false, true>);
    def("subc." + t, s2, carry_add<U, true, true, false>);
    def("subc.cc." + t, s2, carry_add<U, true, true, true>);
    def("mad.lo.cc." + t, s3, carry_mad<T, false, false, true>);
    def("madc.lo." + t, s3, carry_mad<T, false, true, false>);
    def("madc.lo.cc." + t, s3, carry_mad<T, false, true, true>);
    def("mad.hi.cc." + t, s3, carry_mad<T, true, false, true>);
    def("madc.hi." + t, s3, carry_mad<T, true, true, false>);
    def("madc.hi.cc." + t, s3, carry_mad<T, true, true, true>);
}
template <class T> T low24(T a) { return (T)(std::is_signed_v<T> ? (T)((u32)a << 8) >> 8 : (u32)a & 0xffffff); }
template <class T> s64 product24(T a, T b) { return (s64)low24(a) * (s64)low24(b); } // hi: bits 47..16
template <class T> void multiply24(const std::string &t) {
    def("mul24.lo." + t, "d s s", op2<u32, T, T, [](T a, T b) { return (u32)product24(a, b); }>);
    def("mul24.hi." + t, "d s s", op2<u32, T, T, [](T a, T b) { return (u32)(product24(a, b) >> 16); }>);
    def("mad24.lo." + t, "d s s s", op3<u32, T, T, u32, [](T a, T b, u32 c) { return (u32)product24(a, b) + c; }>);
    def("mad24.hi." + t, "d s s s", op3<u32, T, T, u32, [](T a, T b, u32 c) { return (u32)(product24(a, b) >> 16) + c; }>);
}
template <class A, class B> u32 dot4(u32 a, u32 b, u32 c) {
    for (int i = 0; i < 4; i++) c += (u32)((s32)(A)(a >> (8 * i)) * (s32)(B)(b >> (8 * i)));
    return c;
}
template <class A, class B, bool HI> u32 dot2(u32 a, u32 b, u32 c) {
    using A16 = std::conditional_t<std::is_signed_v<A>, s16, u16>;
    for (int i = 0; i < 2; i++) c += (u32)((s32)(A16)(a >> (16 * i)) * (s32)(B)(b >> (8 * i + (HI ? 16 : 0))));
    return c;
}
template <class A, class B> void dots(const std::string &t) {
    def("dp4a." + t, "d s s s", op3<u32, u32, u32, u32, dot4<A, B>>);
    def("dp2a.lo." + t, "d s s s", op3<u32, u32, u32, u32, dot2<A, B, false>>);
    def("dp2a.hi." + t, "d s s s", op3<u32, u32, u32, u32, dot2<A, B, true>>);
}
template <class T> T field(T a, u32 pos, u32 len) { // bfe
    using U = std::make_unsigned_t<T>;
    constexpr u32 width = 8 * sizeof(T), msb = width - 1;
    pos &= 255;
    len &= 255;
    u32 top = pos + len - 1;
    U sign = std::is_signed_v<T> && len ? ((U)a >> (top < msb ? top : msb)) & 1 : 0, out = 0;
    for (u32 i = 0; i < width; i++) out |= (U)(i < len && pos + i <= msb ? ((U)a >> (pos + i)) & 1 : sign) << i;
    return (T)out;
}
Result insert64(Warp &w, const Ins &I) { // bfi.b64 d, a, b, position, length
    Rows t;
    for (int l = 0; l < LANES; l++) {
        u64 a = w.r64(I.o[1], l), b = w.r64(I.o[2], l);
        u32 pos = w.r(I.o[3])[l] & 255, len = w.r(I.o[4])[l] & 255;
        for (u32 i = 0; i < len && pos + i < 64; i++) b = (b & ~(1ull << (pos + i))) | ((a >> i) & 1) << (pos + i);
        set<u64>(t.v, l, b);
    }
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
u32 reverse(u32 a) {
    u32 r = 0;
    for (int i = 0; i < 32; i++) r |= ((a >> i) & 1) << (31 - i);
    return r;
}
template <class T> u32 shift_amount(T a) { // bfind.shiftamt: left shift that brings the found bit to the top
    using U = std::make_unsigned_t<T>;
    U x = std::is_signed_v<T> && a < 0 ? (U)~a : (U)a;
    return x ? (u32)__builtin_clzll((u64)x) - (64 - 8 * (u32)sizeof(T)) : ~0u;
}
enum { F4E, B4E, RC8, ECL, ECR, RC16 };
template <int MODE> u32 permute(u32 a, u32 b, u32 sel) { // prmt with a mode
    u64 x = a | (u64)b << 32;
    u32 s = sel & 3, r = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 k = MODE == F4E   ? s + i
                : MODE == B4E ? (s - i) & 7
                : MODE == RC8 ? s
                : MODE == ECL ? (i > s ? i : s)
                : MODE == ECR ? (i < s ? i : s)
                              : 2 * (s & 1) + (i & 1);
        r |= (u32)((x >> (8 * k)) & 0xff) << (8 * i);
    }
    return r;
}
template <class T> T saturated(s64 x) {
    s64 lo = std::numeric_limits<T>::min(), hi = std::numeric_limits<T>::max();
    return (T)(x < lo ? lo : x > hi ? hi : x);
}
template <class T, auto F> void packed16(const std::string &name) {
    def(name, "d s s",
        op2<u32, u32, u32, [](u32 a, u32 b) { return (u32)(u16)F((T)a, (T)b) | (u32)(u16)F((T)(a >> 16), (T)(b >> 16)) << 16; }>);
}
// cvt.pack.sat: two 32-bit values narrowed; with a third operand the rest of the word comes from it.
template <class D, class A> u32 pack2(A a, A b) {
    return (u32)(std::make_unsigned_t<D>)saturated<D>((s64)a) << (8 * sizeof(D)) |
           (u32)(std::make_unsigned_t<D>)saturated<D>((s64)b);
}
template <class D> void pack_integers(const std::string &d) {
    def("cvt.pack.sat." + d + ".s32", "d s s", op2<u32, s32, s32, pack2<D, s32>>);
    if constexpr (sizeof(D) == 1)
        def("cvt.pack.sat." + d + ".s32.b32", "d s s s",
            op3<u32, s32, s32, u32, [](s32 a, s32 b, u32 c) { return c << 16 | pack2<D, s32>(a, b); }>);
}
} // namespace

void define_integer() {
    carries<s32>("s32", "d", "s");
    carries<u32>("u32", "d", "s");
    carries<s64>("s64", "D", "S");
    carries<u64>("u64", "D", "S");
    multiply24<s32>("s32");
    multiply24<u32>("u32");
    dots<s8, s8>("s32.s32");
    dots<s8, u8>("s32.u32");
    dots<u8, s8>("u32.s32");
    dots<u8, u8>("u32.u32");
    def("mul.hi.s16", "d s s", op2<s16, s16, s16, [](s16 a, s16 b) { return (s16)(((s32)a * b) >> 16); }>);
    def("mul.hi.u16", "d s s", op2<u16, u16, u16, [](u16 a, u16 b) { return (u16)(((u32)a * b) >> 16); }>);
    def("mad.hi.s16", "d s s s", op3<s16, s16, s16, s16, [](s16 a, s16 b, s16 c) { return (s16)((((s32)a * b) >> 16) + c); }>);
    def("mad.hi.u16", "d s s s", op3<u16, u16, u16, u16, [](u16 a, u16 b, u16 c) { return (u16)((((u32)a * b) >> 16) + c); }>);
    def("mad.hi.s64", "D S S S",
        op3<s64, s64, s64, s64, [](s64 a, s64 b, s64 c) { return (s64)((u64)(s64)(((__int128)a * b) >> 64) + (u64)c); }>);
    def("mad.hi.u64", "D S S S",
        op3<u64, u64, u64, u64, [](u64 a, u64 b, u64 c) { return (u64)(((unsigned __int128)a * b) >> 64) + c; }>);
    def("add.sat.s32", "d s s", op2<s32, s32, s32, [](s32 a, s32 b) { return saturated<s32>((s64)a + b); }>);
    def("sub.sat.s32", "d s s", op2<s32, s32, s32, [](s32 a, s32 b) { return saturated<s32>((s64)a - b); }>);
    def("sad.s32", "d s s s",
        op3<u32, s32, s32, u32, [](s32 a, s32 b, u32 c) { return c + (a < b ? (u32)b - (u32)a : (u32)a - (u32)b); }>);
    def("sad.u32", "d s s s", op3<u32, u32, u32, u32, [](u32 a, u32 b, u32 c) { return c + (a < b ? b - a : a - b); }>);
    packed16<u16, [](u16 a, u16 b) { return a + b; }>("add.u16x2");
    packed16<s16, [](s16 a, s16 b) { return a + b; }>("add.s16x2");
    packed16<u16, [](u16 a, u16 b) { return a < b ? b : a; }>("max.u16x2");
    packed16<s16, [](s16 a, s16 b) { return a < b ? b : a; }>("max.s16x2");
    packed16<u16, [](u16 a, u16 b) { return b < a ? b : a; }>("min.u16x2");
    packed16<s16, [](s16 a, s16 b) { return b < a ? b : a; }>("min.s16x2");
    def("bfe.u64", "D S s s", op3<u64, u64, u32, u32, field<u64>>);
    def("bfe.s64", "D S s s", op3<s64, s64, u32, u32, field<s64>>);
    def("bfi.b64", "D S S s s", insert64);
    def("brev.b64", "D S", op1<u64, u64, [](u64 a) { return (u64)reverse((u32)a) << 32 | reverse((u32)(a >> 32)); }>);
    def("bfind.shiftamt.u32", "d s", op1<u32, u32, shift_amount<u32>>);
    def("bfind.shiftamt.s32", "d s", op1<u32, s32, shift_amount<s32>>);
    def("bfind.shiftamt.u64", "d S", op1<u32, u64, shift_amount<u64>>);
    def("bfind.shiftamt.s64", "d S", op1<u32, s64, shift_amount<s64>>);
    def("prmt.b32.f4e", "d s s s", op3<u32, u32, u32, u32, permute<F4E>>);
    def("prmt.b32.b4e", "d s s s", op3<u32, u32, u32, u32, permute<B4E>>);
    def("prmt.b32.rc8", "d s s s", op3<u32, u32, u32, u32, permute<RC8>>);
    def("prmt.b32.ecl", "d s s s", op3<u32, u32, u32, u32, permute<ECL>>);
    def("prmt.b32.ecr", "d s s s", op3<u32, u32, u32, u32, permute<ECR>>);
    def("prmt.b32.rc16", "d s s s", op3<u32, u32, u32, u32, permute<RC16>>);
    pack_integers<s16>("s16");
    pack_integers<u16>("u16");
    pack_integers<s8>("s8");
    pack_integers<u8>("u8");
}
