// st.async and red.async (into shared memory of the cluster, completing bytes on an mbarrier there), and the rarer forms of
// mbarrier.arrive.
#include "lanes.h"
#include "order.h"

namespace {
// [destination], value(s), [mbarrier]. combine: null for a store.
using Combine = void (*)(u8 *to, const u8 *from);
Result send(Warp &w, const Ins &I, u32 bytes, Combine combine, int registers) {
    u32 each = bytes / (u32)registers;
    const s32 *bar = I.o + 3 + registers;
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        Place to = shared_place(w, (u32)w.addr(I.o, l), I), b = shared_place(w, (u32)w.addr(bar, l), I);
        if (to.off & (bytes - 1)) w.M->fail("alignment", I, fmt("destination 0x%x needs %u bytes", to.off, bytes), &w);
        if (b.cta != to.cta) w.M->fail("mbarrier", I, "the mbarrier and the destination are in different CTAs", &w);
        b.cta->bar(b.off, I);
        u8 *p = to.cta->at(to.off, bytes, "asynchronous store", I);
        std::vector<u8> data(bytes);
        for (int i = 0; i < registers; i++)
            for (u32 k = 0; k < each; k += 4)
                std::memcpy(data.data() + (u32)i * each + k, &w.r(I.o[3 + i] + (s32)k / 4 * ROW)[l], 4);
        auto a = std::make_shared<Async>();
        a->ins = &I;
        a->cta = to.cta;
        a->bar_cta = b.cta;
        a->bar = b.off;
        // Reductions of one place may be in flight together: they are atomic.
        if (!combine) a->writes.push_back({to.cta, to.off, to.off + bytes});
        check_async(*w.M, *a, I);
        if (w.M->hb) w.M->hb->sent(w, *a, to, bytes, b, combine ? Order::REDUCE : Order::STORE);
        if (!combine && w.M->cfg.completion != IMMEDIATE) std::memset(p, 0xff, bytes);
        Machine *M = w.M;
        const Ins *ins = &I;
        a->run = [=] {
            if (combine)
                combine(p, data.data());
            else
                std::memcpy(p, data.data(), bytes);
            mbar_tx(*M, b.cta, b.off, bytes, true, *ins);
        };
        w.M->issue(a);
    }
    return NEXT;
}
template <int EACH, int N> Result store(Warp &w, const Ins &I) { return send(w, I, EACH * N, nullptr, N); }
template <class T, auto F> Result reduce(Warp &w, const Ins &I) {
    return send(
        w, I, sizeof(T),
        [](u8 *to, const u8 *from) {
            T x, y;
            std::memcpy(&x, to, sizeof(T));
            std::memcpy(&y, from, sizeof(T));
            x = F(x, y);
            std::memcpy(to, &x, sizeof(T));
        },
        1);
}
template <int EACH> void stores(const std::string &type) {
    std::string n = "st.async", tail = ".mbarrier::complete_tx::bytes", s = EACH == 8 ? "S" : "s";
    for (const char *weak : {"", ".weak"})
        for (const char *space : {"", ".shared::cluster"}) {
            std::string head = n + weak + space + tail;
            def(head + "." + type, "a " + s + " a", store<EACH, 1>);
            def(head + ".v2." + type, "a {" + s + s + "} a", store<EACH, 2>);
            if constexpr (EACH == 4) def(head + ".v4." + type, "a {" + s + s + s + s + "} a", store<EACH, 4>);
        }
}
template <class T, auto F> void reductions(const std::string &op) {
    for (const char *space : {"", ".shared::cluster"})
        def(std::string("red.async.relaxed.cluster") + space + ".mbarrier::complete_tx::bytes." + op,
            sizeof(T) == 8 ? "a S a" : "a s a", reduce<T, F>);
}
// arrive_drop: this arrival, and one fewer expected in every phase after. A count may follow the address.
template <bool COUNT, bool STATE> Result arrive_drop(Warp &w, const Ins &I) {
    const s32 *a = I.o + (STATE ? 1 : 0);
    Rows t{};
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        Place p = shared_place(w, (u32)w.addr(a, l), I);
        u32 n = COUNT ? w.r(a[3])[l] : 1;
        MBar &b = p.cta->bar(p.off, I);
        if ((s32)n > b.expected) w.M->fail("mbarrier", I, fmt("drops %u of %d expected arrivals", n, b.expected), &w);
        set<u64>(t.v, l, (u64)b.phase << 63);
        b.expected -= (s32)n;
        if (w.M->hb) w.M->hb->arrive(w, p.cta, p.off, I);
        mbar_arrive(*w.M, p.cta, p.off, n, I);
    }
    if (w.M->hb) w.M->hb->tick(w);
    if (STATE) store_rows<u64>(w, I.o[0], t);
    return NEXT;
}
} // namespace

void define_remote() {
    for (const char *t : {"b32", "u32", "s32", "f32"}) stores<4>(t);
    for (const char *t : {"b64", "u64", "s64", "f64"}) stores<8>(t);
    reductions<u32, [](u32 a, u32 b) { return a + b; }>("add.u32");
    reductions<u32, [](u32 a, u32 b) { return a + b; }>("add.s32");
    reductions<u64, [](u64 a, u64 b) { return a + b; }>("add.u64");
    reductions<u32, [](u32 a, u32 b) { return a < b ? a : b; }>("min.u32");
    reductions<s32, [](s32 a, s32 b) { return a < b ? a : b; }>("min.s32");
    reductions<u32, [](u32 a, u32 b) { return a < b ? b : a; }>("max.u32");
    reductions<s32, [](s32 a, s32 b) { return a < b ? b : a; }>("max.s32");
    reductions<u32, [](u32 a, u32 b) { return a >= b ? 0 : a + 1; }>("inc.u32");
    reductions<u32, [](u32 a, u32 b) { return a == 0 || (a > b) ? b : a - 1; }>("dec.u32");
    reductions<u32, [](u32 a, u32 b) { return a & b; }>("and.b32");
    reductions<u32, [](u32 a, u32 b) { return a | b; }>("or.b32");
    reductions<u32, [](u32 a, u32 b) { return a ^ b; }>("xor.b32");
    for (const char *sem : {"", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster"})
        for (const char *space : {".shared", ".shared::cta", ".shared::cluster"}) {
            std::string n = std::string("mbarrier.arrive_drop") + sem + space + ".b64";
            def(n, "a", arrive_drop<false, false>);
            def(n, "a s", arrive_drop<true, false>);
            def(n, "D a", arrive_drop<false, true>);
            def(n, "D a s", arrive_drop<true, true>);
        }
}
