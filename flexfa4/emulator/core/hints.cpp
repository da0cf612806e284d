// Instructions without a functional effect here (caches, priorities, launch order), clocks, and reductions over a barrier.
#include "lanes.h"

namespace {
Result nop(Warp &, const Ins &) { return NEXT; }
Result policy(Warp &w, const Ins &I) { // cache policies are opaque; the value is never looked at
    Rows t{};
    store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
// Clocks and timers count the emulator's own steps: they advance, at no rate that means anything.
template <class T> Result clock(Warp &w, const Ins &I) {
    Rows t;
    for (int l = 0; l < LANES; l++) set<T>(t.v, l, (T)w.M->total);
    store_rows<T>(w, I.o[0], t);
    return NEXT;
}
// isspacep: which window a generic address lies in.
template <bool SHARED> Result is_space(Warp &w, const Ins &I) {
    u32 t = 0;
    for (int l = 0; l < LANES; l++) t |= (u32)(((w.r64(I.o[1], l) & SHARED_WINDOW) == SHARED_WINDOW) == SHARED) << l;
    w.putp(I.o[0], t);
    return NEXT;
}
Result cta_rank(Warp &w, const Ins &I) { // getctarank: the CTA that a shared address belongs to
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = w.r(I.o[1])[l] >> 24;
    w.put(I.o[0], t);
    return NEXT;
}
} // namespace

void define_hints() {
    for (const char *n : {"prefetch.global.L2::evict_last", "prefetch.global.L2::evict_normal", "prefetch.L1", "prefetch.L2",
                          "prefetchu.L1", "prefetch.const.tensormap"})
        def(n, "a", nop);
    def("discard.global.L2", "a i", nop);
    def("discard.L2", "a i", nop);
    def("applypriority.global.L2::evict_normal", "a i", nop);
    def("applypriority.L2::evict_normal", "a i", nop);
    for (const char *n : {"cp.async.bulk.prefetch.L2.global"}) def(n, "a s", nop);
    for (const char *n : {"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"}) {
        def(std::string("createpolicy.fractional.") + n + ".b64", "D", policy);
        def(std::string("createpolicy.fractional.") + n + ".b64", "D s", policy);
    }
    for (const char *s : {"cta", "cluster", "gpu", "sys"}) {
        def(std::string("fence.proxy.tensormap::generic.release.") + s, "", nop);
        def(std::string("fence.proxy.tensormap::generic.acquire.") + s, "a i", nop);
    }
    def("pmevent", "i", nop);
    def("pmevent.mask", "i", nop);
    for (const char *t : {"u32", "b32"}) def(std::string("mov.") + t, "d C", clock<u32>);
    for (const char *t : {"u64", "b64"}) def(std::string("mov.") + t, "D C", clock<u64>);
    for (const char *s : {"shared", "shared::cta", "shared::cluster"}) def(std::string("isspacep.") + s, "p S", is_space<true>);
    def("isspacep.global", "p S", is_space<false>);
    def("getctarank.shared::cluster.u32", "d s", cta_rank);
}
