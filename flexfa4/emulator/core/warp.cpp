// Instructions that exchange data between the lanes of a warp.
#include "lanes.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

u32 pack_mask(const u32 *t) {
    u32 m = 0;
#if defined(__AVX512F__)
    __m512i a = _mm512_loadu_si512(t), b = _mm512_loadu_si512(t + 16);
    m = _mm512_test_epi32_mask(a, a) | (u32)_mm512_test_epi32_mask(b, b) << 16;
#else
    for (int l = 0; l < LANES; l++) m |= (u32)(t[l] != 0) << l;
#endif
    return m;
}
namespace {
bool members(Warp &w, s32 off) { return w.converged(w.r(off)[w.leader()]); }

Result elect(Warp &w, const Ins &I) { // d|p, mask
    u32 mask = w.r(I.o[2])[w.leader()];
    if (!w.converged(mask)) return DIVERGED;
    u32 first = (u32)__builtin_ctz(mask & w.act);
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = first;
    w.put(I.o[0], t);
    w.putp(I.o[1], 1u << first);
    return NEXT;
}
enum { IDX, UP, DOWN, BFLY };
// shfl.sync.mode.b32 d|p, a, b, c, mask (PTX ISA, shfl.sync).
template <int MODE> Result shfl(Warp &w, const Ins &I) {
    const s32 *o = I.o;
    if (!members(w, o[5])) return DIVERGED;
    Row t;
    u32 inside = 0;
    const u32 *a = w.r(o[2]);
    for (int l = 0; l < LANES; l++) {
        u32 b = w.r(o[3])[l] & 31, c = w.r(o[4])[l], seg = (c >> 8) & 31, clamp = c & 31;
        s32 top = (s32)((l & seg) | (clamp & ~seg)), low = (s32)(l & seg), j;
        bool ok;
        if (MODE == UP) {
            j = l - (s32)b;
            ok = j >= top;
        } else if (MODE == DOWN) {
            j = l + (s32)b;
            ok = j <= top;
        } else if (MODE == BFLY) {
            j = l ^ (s32)b;
            ok = j <= top;
        } else {
            j = low | (s32)(b & ~seg);
            ok = j <= top;
        }
        if (!ok) j = l;
        inside |= (u32)ok << l;
        t.v[l] = a[j & 31];
    }
    w.put(o[0], t);
    w.putp(o[1], inside);
    return NEXT;
}
Result ballot(Warp &w, const Ins &I) {
    if (!members(w, I.o[3])) return DIVERGED;
    u32 v = w.predmask(I.o + 1) & w.m;
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = v;
    w.put(I.o[0], t);
    return NEXT;
}
enum { ALL, ANY, UNI };
template <int MODE> Result vote(Warp &w, const Ins &I) {
    if (!members(w, I.o[3])) return DIVERGED;
    u32 v = w.predmask(I.o + 1) & w.m;
    bool r = MODE == ALL ? v == w.m : MODE == ANY ? v != 0 : v == 0 || v == w.m;
    w.putp(I.o[0], r ? FULL : 0);
    return NEXT;
}
template <class T, auto F> Result redux(Warp &w, const Ins &I) {
    if (!members(w, I.o[2])) return DIVERGED;
    bool first = true;
    T acc{};
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            T x = get<T>(w.r(I.o[1]), l);
            acc = first ? x : F(acc, x);
            first = false;
        }
    Row t;
    for (int l = 0; l < LANES; l++) set<T>(t.v, l, acc);
    w.put(I.o[0], t);
    return NEXT;
}
template <auto F, auto BEFORE, bool KEEP_NAN> Result redux_float(Warp &w, const Ins &I) {
    if (!members(w, I.o[2])) return DIVERGED;
    float acc = nan_f();
    bool nan = false;
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            float x = BEFORE(as_f(w.r(I.o[1])[l]));
            nan = nan || x != x;
            acc = F(acc, x);
        }
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = as_u(KEEP_NAN && nan ? nan_f() : cn(acc));
    w.put(I.o[0], t);
    return NEXT;
}
Result match_any(Warp &w, const Ins &I) {
    if (!members(w, I.o[2])) return DIVERGED;
    Row t;
    const u32 *a = w.r(I.o[1]);
    for (int l = 0; l < LANES; l++) {
        t.v[l] = 0;
        for (int j = 0; j < LANES; j++) t.v[l] |= (u32)((w.m >> j & 1) && a[j] == a[l]) << j;
    }
    w.put(I.o[0], t);
    return NEXT;
}
Result match_all(Warp &w, const Ins &I) { // d|p, a, mask
    if (!members(w, I.o[3])) return DIVERGED;
    const u32 *a = w.r(I.o[2]);
    bool same = true;
    for (int l = 0; l < LANES; l++) same = same && (!(w.m >> l & 1) || a[l] == a[w.leader()]);
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = same ? w.m : 0;
    w.put(I.o[0], t);
    w.putp(I.o[1], same ? FULL : 0);
    return NEXT;
}
Result activemask(Warp &w, const Ins &I) {
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = w.act;
    w.put(I.o[0], t);
    return NEXT;
}
} // namespace

void define_warp() {
    def("elect.sync", "d|p s", elect);
    def("shfl.sync.idx.b32", "d|p s s s s", shfl<IDX>);
    def("shfl.sync.up.b32", "d|p s s s s", shfl<UP>);
    def("shfl.sync.down.b32", "d|p s s s s", shfl<DOWN>);
    def("shfl.sync.bfly.b32", "d|p s s s s", shfl<BFLY>);
    def("vote.sync.ballot.b32", "d P s", ballot);
    def("vote.sync.all.pred", "p P s", vote<ALL>);
    def("vote.sync.any.pred", "p P s", vote<ANY>);
    def("vote.sync.uni.pred", "p P s", vote<UNI>);
    def("activemask.b32", "d", activemask);
    def("match.any.sync.b32", "d s s", match_any);
    def("match.all.sync.b32", "d|p s s", match_all);
    // f32 forms (sm_100a): a NaN loses unless asked for; abs: of the magnitudes.
    constexpr auto larger = [](float a, float b) { return a != a || b > a || (a == b && std::signbit(a)) ? b : a; };
    constexpr auto smaller = [](float a, float b) { return a != a || b < a || (a == b && std::signbit(b)) ? b : a; };
    constexpr auto magnitude = [](float a) { return std::fabs(a); };
    constexpr auto same = [](float a) { return a; };
    def("redux.sync.max.f32", "d s s", redux_float<larger, same, false>);
    def("redux.sync.min.f32", "d s s", redux_float<smaller, same, false>);
    def("redux.sync.max.NaN.f32", "d s s", redux_float<larger, same, true>);
    def("redux.sync.min.NaN.f32", "d s s", redux_float<smaller, same, true>);
    def("redux.sync.max.abs.f32", "d s s", redux_float<larger, magnitude, false>);
    def("redux.sync.min.abs.f32", "d s s", redux_float<smaller, magnitude, false>);
    def("redux.sync.max.abs.NaN.f32", "d s s", redux_float<larger, magnitude, true>);
    def("redux.sync.min.abs.NaN.f32", "d s s", redux_float<smaller, magnitude, true>);
    def("redux.sync.add.u32", "d s s", redux<u32, [](u32 a, u32 b) { return a + b; }>);
    def("redux.sync.add.s32", "d s s", redux<u32, [](u32 a, u32 b) { return a + b; }>);
    def("redux.sync.max.u32", "d s s", redux<u32, [](u32 a, u32 b) { return (a > b) ? a : b; }>);
    def("redux.sync.max.s32", "d s s", redux<s32, [](s32 a, s32 b) { return (a > b) ? a : b; }>);
    def("redux.sync.min.u32", "d s s", redux<u32, [](u32 a, u32 b) { return (a < b) ? a : b; }>);
    def("redux.sync.min.s32", "d s s", redux<s32, [](s32 a, s32 b) { return (a < b) ? a : b; }>);
    def("redux.sync.and.b32", "d s s", redux<u32, [](u32 a, u32 b) { return a & b; }>);
    def("redux.sync.or.b32", "d s s", redux<u32, [](u32 a, u32 b) { return a | b; }>);
    def("redux.sync.xor.b32", "d s s", redux<u32, [](u32 a, u32 b) { return a ^ b; }>);
}
