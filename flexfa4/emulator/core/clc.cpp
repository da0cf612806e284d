// Cluster launch control (sm_100): a running CTA asks to cancel a cluster that has not been launched, and takes over its work.
#include "lanes.h"
#include "order.h"

namespace {
// The 16-byte answer is opaque to the kernel: x, y, z of the first CTA, then one of these words.
constexpr u32 GRANTED = 0xc1c00001, REFUSED = 0xc1c00000;

void answer(Machine &M, u32 out[4]) {
    const Config &c = M.cfg;
    out[0] = out[1] = out[2] = 0;
    out[3] = REFUSED;
    if (M.next_cluster >= M.clusters) return;
    u64 i = M.next_cluster++;
    u32 g[2] = {c.grid[0] / c.cluster[0], c.grid[1] / c.cluster[1]};
    out[0] = (u32)(i % g[0]) * c.cluster[0];
    out[1] = (u32)(i / g[0] % g[1]) * c.cluster[1];
    out[2] = (u32)(i / g[0] / g[1]) * c.cluster[2];
    out[3] = GRANTED;
}
// [answer], [mbarrier]: both in the own CTA, or at the same offsets of every CTA of the cluster. Completes 16 bytes on each
// mbarrier.
template <bool MULTICAST> Result try_cancel(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        Place to = shared_place(w, (u32)w.addr(I.o, l), I), bar = shared_place(w, (u32)w.addr(I.o + 3, l), I);
        if (to.off & 15) w.M->fail("alignment", I, fmt("answer at 0x%x needs 16 bytes", to.off), &w);
        auto a = std::make_shared<Async>();
        a->ins = &I;
        a->cta = w.cta;
        a->bar_cta = bar.cta;
        a->bar = bar.off;
        std::vector<Cta *> ctas;
        if (MULTICAST)
            for (auto &c : w.cta->cluster->ctas) ctas.push_back(c.get());
        else
            ctas.push_back(to.cta);
        for (Cta *c : ctas) {
            u8 *p = c->at(to.off, 16, "clusterlaunchcontrol.try_cancel", I);
            c->bar(bar.off, I);
            a->writes.push_back({c, to.off, to.off + 16});
            if (w.M->cfg.completion != IMMEDIATE) std::memset(p, 0xff, 16);
        }
        check_async(*w.M, *a, I);
        if (w.M->hb)
            for (Cta *c : ctas) w.M->hb->sent(w, *a, {c, to.off}, 16, {MULTICAST ? c : bar.cta, bar.off}, Order::PROXY);
        Machine *M = w.M;
        const Ins *ins = &I;
        a->run = [=] {
            u32 words[4];
            answer(*M, words);
            for (Cta *c : ctas) {
                std::memcpy(c->at(to.off, 16, "clusterlaunchcontrol.try_cancel", *ins), words, 16);
                mbar_tx(*M, c, bar.off, 16, true, *ins);
            }
        };
        w.M->issue(a);
    }
    return NEXT;
}
void check_answer(Warp &w, const Ins &I, s32 reg) {
    for (int l = 0; l < LANES; l++) {
        u32 word = w.r(reg + 3 * ROW)[l];
        if ((w.m >> l & 1) && word != GRANTED && word != REFUSED)
            w.M->fail("operand", I, "the operand is not an answer of clusterlaunchcontrol.try_cancel", &w);
    }
}
Result is_canceled(Warp &w, const Ins &I) {
    check_answer(w, I, I.o[1]);
    u32 t = 0;
    for (int l = 0; l < LANES; l++) t |= (u32)(w.r(I.o[1] + 3 * ROW)[l] == GRANTED) << l;
    w.putp(I.o[0], t);
    return NEXT;
}
// N results from the first word of the answer; an answer that grants nothing has no CTA id (undefined): all ones.
template <int N> Result first_cta(Warp &w, const Ins &I) {
    s32 from = I.o[N] + (N == 1 ? I.aux * ROW : 0);
    check_answer(w, I, I.o[N]);
    const u32 *granted = w.r(I.o[N] + 3 * ROW);
    Row t[N];
    for (int i = 0; i < N; i++)
        for (int l = 0; l < LANES; l++) t[i].v[l] = granted[l] != GRANTED ? ~0u : i < 3 ? w.r(from + i * ROW)[l] : 0;
    for (int i = 0; i < N; i++) w.put(I.o[i], t[i]);
    return NEXT;
}
} // namespace

void define_launch_control() {
    for (const char *s : {"", ".shared::cta"}) {
        std::string n = std::string("clusterlaunchcontrol.try_cancel.async") + s + ".mbarrier::complete_tx::bytes";
        def(n + ".b128", "a a", try_cancel<false>);
        def(n + ".multicast::cluster::all.b128", "a a", try_cancel<true>);
    }
    std::string q = "clusterlaunchcontrol.query_cancel.";
    def(q + "is_canceled.pred.b128", "p Q", is_canceled);
    def(q + "get_first_ctaid.v4.b32.b128", "{dddd} Q", first_cta<4>);
    def(q + "get_first_ctaid::x.b32.b128", "d Q", first_cta<1>, false, 0);
    def(q + "get_first_ctaid::y.b32.b128", "d Q", first_cta<1>, false, 1);
    def(q + "get_first_ctaid::z.b32.b128", "d Q", first_cta<1>, false, 2);
}
