// cvt between integer types and the commonest float ones, and cvta.
#include "lanes.h"
#include <limits>

namespace {
template <class D, class A> D clamp_to(A a) {
    if (a < (A)std::numeric_limits<D>::min()) return std::numeric_limits<D>::min();
    if (a > (A)std::numeric_limits<D>::max()) return std::numeric_limits<D>::max();
    return (D)a;
}
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
    // The commonest float conversions, so written that the compiler vectorises them. The first source is the high half.
    def("cvt.rn.bf16.f32", "d s", op1<u32, float, f2bf>);
    def("cvt.rn.f16.f32", "d s", op1<u32, float, f2h>);
    def("cvt.rn.bf16x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return f2bf(h) << 16 | f2bf(l); }>);
    def("cvt.rn.f16x2.f32", "d s s", op2<u32, float, float, [](float h, float l) { return f2h(h) << 16 | f2h(l); }>);
    def("cvta.shared.u64", "D S", shared_to_generic);
    def("cvta.to.shared.u64", "D S", generic_to_shared);
    def("cvta.to.shared::cluster.u64", "D S", generic_to_shared);
    def("cvta.shared::cluster.u64", "D S", shared_to_generic);
    for (const char *s : {"global", "param", "const", "local"}) { // host addresses are used as they are
        def(std::string("cvta.") + s + ".u64", "D S", copy64);
        def(std::string("cvta.to.") + s + ".u64", "D S", copy64);
    }
}
