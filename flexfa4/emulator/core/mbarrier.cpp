// mbarrier objects and the waits on them (PTX ISA, "Parallel Synchronization: mbarrier").
#include "lanes.h"
#include "order.h"

MBar &Cta::bar(u32 off, const Ins &I) {
    if (off & 7) M->fail("mbarrier", I, fmt("address 0x%x is not 8-byte aligned", off));
    at(off, 8, "mbarrier", I);
    s32 i = bar_index[off / 8];
    if (i < 0) M->fail("mbarrier", I, fmt("no mbarrier was initialised at shared address 0x%x", off));
    return bars[i];
}

namespace {
void settle(Machine &M, Cta *c, MBar &b) {
    if (b.pending == 0 && b.tx == 0) {
        if (M.hb) M.hb->flip(c, b);
        b.phase ^= 1;
        b.pending = b.expected;
        M.epoch++;
        M.progress++;
    }
}
} // namespace

void mbar_arrive(Machine &M, Cta *c, u32 off, u32 n, const Ins &I) {
    MBar &b = c->bar(off, I);
    if ((s32)n > b.pending)
        M.fail("mbarrier", I,
               fmt("mbarrier 0x%x: arrive of %u with %d arrivals pending (expected %d)", off, n, b.pending, b.expected));
    if (M.hb && M.completing) M.hb->signal(*M.completing, c, off);
    b.pending -= (s32)n;
    settle(M, c, b);
}
void mbar_tx(Machine &M, Cta *c, u32 off, s64 bytes, bool complete, const Ins &I) {
    MBar &b = c->bar(off, I);
    b.tx += complete ? -bytes : bytes;
    if (b.tx > (1 << 20) - 1 || b.tx < -((1 << 20) - 1))
        M.fail("mbarrier", I, fmt("mbarrier 0x%x: tx-count %lld leaves the legal range", off, (long long)b.tx));
    if (M.hb && M.completing) M.hb->signal(*M.completing, c, off);
    if (complete) settle(M, c, b);
}

namespace {
Result init(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o, l), I);
            u32 n = w.r(I.o[3])[l];
            if (p.off & 7) w.M->fail("mbarrier", I, fmt("address 0x%x is not 8-byte aligned", p.off), &w);
            if (n == 0 || n > (1 << 20) - 1) w.M->fail("mbarrier", I, fmt("initial count %u out of range", n), &w);
            p.cta->at(p.off, 8, "mbarrier.init", I);
            s32 &i = p.cta->bar_index[p.off / 8];
            if (i < 0) {
                i = (s32)p.cta->bars.size();
                p.cta->bars.push_back({});
            }
            MBar b;
            b.expected = b.pending = (s32)n;
            b.live = true;
            p.cta->bars[i] = b;
            if (w.M->hb) w.M->hb->bar_init(w, p.cta, p.off, I);
        }
    w.M->epoch++;
    return NEXT;
}
Result inval(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o, l), I);
            p.cta->bar(p.off, I);
            p.cta->bar_index[p.off / 8] = -1;
        }
    return NEXT;
}
template <bool TX> void arrive_lanes(Warp &w, const Ins &I, const s32 *a, const u32 *count) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(a, l), I);
            p.cta->bar(p.off, I);
            if (w.M->hb) w.M->hb->arrive(w, p.cta, p.off, I);
            if (TX) {
                mbar_tx(*w.M, p.cta, p.off, count[l], false, I);
                mbar_arrive(*w.M, p.cta, p.off, 1, I);
            } else
                mbar_arrive(*w.M, p.cta, p.off, count ? count[l] : 1, I);
        }
    if (w.M->hb) w.M->hb->tick(w);
}
// The state a plain arrive returns is the phase in bit 63: what try_wait without .parity needs.
void state(Warp &w, const Ins &I, s32 dst, const s32 *a) {
    Rows t;
    for (int l = 0; l < LANES; l++) {
        u64 v = 0;
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(a, l), I);
            v = (u64)p.cta->bar(p.off, I).phase << 63;
        }
        set<u64>(t.v, l, v);
    }
    store_rows<u64>(w, dst, t);
}
template <bool TX, bool STATE, bool COUNT> Result arrive(Warp &w, const Ins &I) {
    if (STATE) state(w, I, I.o[0], I.o + 1);
    arrive_lanes<TX>(w, I, I.o + STATE, COUNT ? w.r(I.o[3 + STATE]) : nullptr);
    return NEXT;
}
template <bool COMPLETE> Result only_tx(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o, l), I);
            mbar_tx(*w.M, p.cta, p.off, w.r(I.o[3])[l], COMPLETE, I);
        }
    return NEXT;
}
// p, [bar], parity (or state): done when the current phase is not the awaited one.
template <bool STATE, bool BLOCK> Result wait(Warp &w, const Ins &I) {
    u32 done = 0, known = 0;
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o + 1, l), I);
            if (p.cta != w.cta) w.M->fail("mbarrier", I, "a wait needs an mbarrier of the own CTA", &w);
            u32 parity = STATE ? (u32)(w.r64(I.o[4], l) >> 63) : w.r(I.o[4])[l];
            if (!STATE && parity > 1) w.M->fail("mbarrier", I, fmt("phase parity %u is neither 0 nor 1", parity), &w);
            bool over = p.cta->bar(p.off, I).phase != parity;
            done |= (u32)over << l;
            if (over && w.M->hb && p.off != known) w.M->hb->wait(w, p.cta, p.off, I);
            if (over) known = p.off;
        }
    // try_wait may give up at any time (PTX ISA, mbarrier.try_wait); so it does now and then, but for seed 0.
    bool gives_up = w.timeout || (w.M->cfg.seed && w.M->rng() % 4 == 0);
    if (BLOCK && done == 0 && !gives_up) return BLOCKED;
    w.timeout = false;
    w.putp(I.o[0], done);
    return NEXT;
}
} // namespace

void define_mbarrier() {
    def("mbarrier.init.shared.b64", "a s", init);
    def("mbarrier.init.shared::cta.b64", "a s", init);
    def("mbarrier.init.b64", "a s", init);
    def("mbarrier.inval.shared.b64", "a", inval);
    def("mbarrier.inval.shared::cta.b64", "a", inval);
    for (const char *sem : {"", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster"})
        for (const char *space : {".shared", ".shared::cta", ".shared::cluster"}) {
            std::string t = std::string(sem) + space + ".b64";
            def("mbarrier.arrive" + t, "a", arrive<false, false, false>);
            def("mbarrier.arrive" + t, "a s", arrive<false, false, true>);
            def("mbarrier.arrive" + t, "D a", arrive<false, true, false>);
            def("mbarrier.arrive" + t, "D a s", arrive<false, true, true>);
            def("mbarrier.arrive.expect_tx" + t, "a s", arrive<true, false, true>);
            def("mbarrier.arrive.expect_tx" + t, "D a s", arrive<true, true, true>);
            def("mbarrier.expect_tx" + t, "a s", only_tx<false>);
            def("mbarrier.complete_tx" + t, "a s", only_tx<true>);
        }
    for (const char *sem : {"", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster"})
        for (const char *space : {".shared", ".shared::cta"}) {
            std::string t = std::string(sem) + space + ".b64";
            def("mbarrier.try_wait.parity" + t, "p a s", wait<false, true>);
            def("mbarrier.try_wait.parity" + t, "p a s s", wait<false, true>);
            def("mbarrier.test_wait.parity" + t, "p a s", wait<false, false>);
            def("mbarrier.try_wait" + t, "p a S", wait<true, true>);
            def("mbarrier.try_wait" + t, "p a S s", wait<true, true>);
            def("mbarrier.test_wait" + t, "p a S", wait<true, false>);
        }
}
