// Branches, exits, barriers of a CTA and of a cluster, register budget, fences and hints without a functional effect.
#include "lanes.h"
#include "order.h"

namespace {
Result bra(Warp &w, const Ins &I) {
    s32 target = I.o[0];
    if (w.m == w.act) {
        w.pc = target;
        return JUMP;
    }
    w.parked.push_back({w.act & ~w.m, w.pc + 1, false});
    w.act = w.m;
    w.pc = target;
    return JUMP;
}
Result ret(Warp &w, const Ins &) {
    w.live &= ~w.m;
    w.act &= ~w.m;
    if (w.act) {
        w.pc++;
        return JUMP;
    }
    return JUMP;
}
Result nop(Warp &, const Ins &) { return NEXT; }
Result trap(Warp &w, const Ins &I) { w.M->fail("trap", I, "the kernel executed trap", &w); }

u32 uniform(Warp &w, s32 off, const char *what, const Ins &I) {
    u32 v = w.r(off)[w.leader()];
    for (int l = 0; l < LANES; l++)
        if ((w.m >> l & 1) && w.r(off)[l] != v) w.M->fail("divergence", I, fmt("%s differs between lanes", what), &w);
    return v;
}
// One warp counts as 32 threads. wait: bar.sync; otherwise bar.arrive.
Result barrier(Warp &w, const Ins &I, u32 id, u32 threads, bool wait) {
    if (!w.converged(FULL)) return DIVERGED;
    if (id > 15) w.M->fail("barrier", I, fmt("barrier %u does not exist (0..15)", id), &w);
    if (threads == 0 || threads % 32)
        w.M->fail("barrier", I, fmt("barrier %u: thread count %u is not a positive multiple of 32", id, threads), &w);
    NamedBar &b = w.cta->named[id];
    if (w.in_bar) {
        if (b.generation == w.bar_gen) return BLOCKED;
        w.in_bar = false;
        if (w.M->hb) w.M->hb->met(w, w.cta->order->named[id], w.bar_gen);
        return NEXT;
    }
    if (b.count && b.expected != threads)
        w.M->fail("barrier", I, fmt("barrier %u is waiting for %u threads, this warp names %u", id, b.expected, threads), &w);
    b.expected = threads;
    b.count += 32;
    if (b.count > threads) w.M->fail("barrier", I, fmt("barrier %u: %u arrivals for %u threads", id, b.count, threads), &w);
    if (w.M->hb) w.M->hb->meet(w, w.cta->order->named[id], wait, I);
    if (b.count == threads) {
        b.count = 0;
        if (w.M->hb) {
            w.cta->order->named[id].complete(b.generation);
            if (wait) w.M->hb->met(w, w.cta->order->named[id], b.generation);
        }
        b.generation++;
        w.M->epoch++;
        w.M->progress++;
        return NEXT;
    }
    if (!wait) return NEXT;
    w.in_bar = true;
    w.bar_id = id;
    w.bar_gen = b.generation;
    return BLOCKED;
}
u32 all_threads(Warp &w) { return ((u32)w.cta->warps.size() - w.cta->exited) * 32; }
Result bar_sync0(Warp &w, const Ins &I) { return barrier(w, I, uniform(w, I.o[0], "barrier id", I), all_threads(w), true); }
Result bar_sync(Warp &w, const Ins &I) {
    return barrier(w, I, uniform(w, I.o[0], "barrier id", I), uniform(w, I.o[1], "thread count", I), true);
}
Result bar_arrive(Warp &w, const Ins &I) {
    return barrier(w, I, uniform(w, I.o[0], "barrier id", I), uniform(w, I.o[1], "thread count", I), false);
}
// d, barrier (, threads), predicate. Every warp brings its predicate with its arrival and leaves with the result over all.
enum { POPC, AND, OR };
template <int MODE, bool COUNTED> Result bar_red(Warp &w, const Ins &I) {
    if (!w.converged(FULL)) return DIVERGED;
    u32 id = uniform(w, I.o[1], "barrier id", I), n = COUNTED ? uniform(w, I.o[2], "thread count", I) : all_threads(w);
    const s32 *p = I.o + (COUNTED ? 3 : 2);
    NamedBar &b = w.cta->named[id & 15];
    bool arrives = !w.in_bar;
    if (arrives) b.ones += (u32)__builtin_popcount(w.predmask(p) & w.m);
    Result r = barrier(w, I, id, n, true);
    if (r != NEXT) return r;
    if (arrives) { // the last one
        b.last_ones = b.ones;
        b.ones = 0;
    }
    if (MODE == POPC) {
        Row t;
        for (int l = 0; l < LANES; l++) t.v[l] = b.last_ones;
        w.put(I.o[0], t);
    } else
        w.putp(I.o[0], (MODE == AND ? b.last_ones == n : b.last_ones > 0) ? FULL : 0);
    return NEXT;
}
Result cluster_arrive(Warp &w, const Ins &I) {
    if (!w.converged(FULL)) return DIVERGED;
    if (w.in_cluster_bar) w.M->fail("barrier", I, "barrier.cluster.arrive twice without a wait between", &w);
    Cluster &c = *w.cta->cluster;
    w.in_cluster_bar = true;
    w.cluster_gen = c.bar_gen;
    c.bar_count += 32;
    if (w.M->hb) w.M->hb->meet(w, c.order->meeting, true, I);
    if (c.bar_count == c.threads) {
        c.bar_count = 0;
        if (w.M->hb) c.order->meeting.complete(c.bar_gen);
        c.bar_gen++;
        w.M->epoch++;
        w.M->progress++;
    }
    return NEXT;
}
Result cluster_wait(Warp &w, const Ins &I) {
    if (!w.converged(FULL)) return DIVERGED;
    if (!w.in_cluster_bar) w.M->fail("barrier", I, "barrier.cluster.wait without an arrive", &w);
    if (w.cta->cluster->bar_gen == w.cluster_gen) return BLOCKED;
    w.in_cluster_bar = false;
    if (w.M->hb) w.M->hb->met(w, w.cta->cluster->order->meeting, w.cluster_gen);
    return NEXT;
}
Result bar_warp(Warp &w, const Ins &I) {
    if (!w.converged(w.r(I.o[0])[w.leader()])) return DIVERGED;
    if (w.M->hb) w.M->hb->warp_barrier(w, &I);
    return NEXT;
}

Result maxnreg(Warp &w, const Ins &I, bool inc) {
    u32 n = I.o[0];
    if (n < 24 || n > 256 || n % 8) w.M->fail("registers", I, fmt("setmaxnreg %u is not a multiple of 8 in 24..256", n), &w);
    if (inc ? n < w.regs : n > w.regs)
        w.M->fail("registers", I, fmt("setmaxnreg.%s %u from %u registers", inc ? "inc" : "dec", n, w.regs), &w);
    u32 need = (n - w.regs) * 32;
    if (inc && need > w.cta->reg_pool) return BLOCKED;
    w.cta->reg_pool -= need; // modulo 2^32: a decrease gives registers back
    w.regs = n;
    if (w.M->hb) w.M->hb->set_registers(w, I);
    if (!inc) {
        w.M->epoch++;
        w.M->progress++;
    }
    return NEXT;
}
Result maxnreg_inc(Warp &w, const Ins &I) { return maxnreg(w, I, true); }
Result maxnreg_dec(Warp &w, const Ins &I) { return maxnreg(w, I, false); }
Result nanosleep(Warp &w, const Ins &) {
    (void)w;
    return NEXT;
}

// Makes generic writes of this CTA visible to the asynchronous proxy.
Result proxy_fence(Warp &w, const Ins &I) {
    if (w.M->hb) w.M->hb->proxy_fence(w, I);
    for (auto &c : w.cta->cluster->ctas)
        if (!c->dirty.empty() && I.aux & FENCES_SHARED)
            for (u8 &d : c->dirty)
                if (d == w.uid % 255 + 1) d = 0;
    return NEXT;
}
Result grid_wait(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->grid_wait(w);
    return NEXT;
}
template <bool AFTER> Result tensor_fence(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->tensor_fence(w, AFTER);
    return NEXT;
}
Result init_fence(Warp &w, const Ins &I) {
    if (w.M->hb) w.M->hb->init_fence(w, I);
    return NEXT;
}
Result fence(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->fence(w);
    return NEXT;
}
} // namespace

void define_control() {
    def("bra", "L", bra);
    def("bra.uni", "L", bra);
    def("ret", "", ret);
    def("ret.uni", "", ret);
    def("exit", "", ret);
    def("trap", "", trap);
    for (const char *b : {"bar", "barrier", "bar.cta", "barrier.cta"}) {
        std::string n(b);
        for (const char *a : {"", ".aligned"}) {
            def(n + ".sync" + a, "s", bar_sync0);
            def(n + ".sync" + a, "s s", bar_sync);
            def(n + ".arrive" + a, "s s", bar_arrive);
            def(n + ".red.popc" + a + ".u32", "d s P", bar_red<POPC, false>);
            def(n + ".red.popc" + a + ".u32", "d s s P", bar_red<POPC, true>);
            def(n + ".red.and" + a + ".pred", "p s P", bar_red<AND, false>);
            def(n + ".red.and" + a + ".pred", "p s s P", bar_red<AND, true>);
            def(n + ".red.or" + a + ".pred", "p s P", bar_red<OR, false>);
            def(n + ".red.or" + a + ".pred", "p s s P", bar_red<OR, true>);
        }
    }
    for (const char *m : {"", ".aligned"}) {
        for (const char *s : {"", ".release", ".relaxed"}) def(std::string("barrier.cluster.arrive") + s + m, "", cluster_arrive);
        for (const char *s : {"", ".acquire"}) def(std::string("barrier.cluster.wait") + s + m, "", cluster_wait);
    }
    def("bar.warp.sync", "s", bar_warp);
    def("setmaxnreg.inc.sync.aligned.u32", "i", maxnreg_inc, true);
    def("setmaxnreg.dec.sync.aligned.u32", "i", maxnreg_dec, true);
    for (const char *f : {"fence", "membar"}) {
        std::string n = std::string(f) + ".proxy.async";
        def(n, "", proxy_fence, false, FENCES_SHARED | FENCES_GLOBAL);
        def(n + ".global", "", proxy_fence, false, FENCES_GLOBAL);
        for (const char *s : {".shared::cta", ".shared::cluster"}) def(n + s, "", proxy_fence, false, FENCES_SHARED);
    }
    def("fence.mbarrier_init.release.cluster", "", init_fence);
    for (const char *s : {"membar.gl", "membar.cta", "membar.sys"}) def(s, "", fence);
    for (const char *s : {"griddepcontrol.launch_dependents", "fence.proxy.alias"}) def(s, "", nop);
    def("griddepcontrol.wait", "", grid_wait);
    def("tcgen05.fence::before_thread_sync", "", tensor_fence<false>);
    def("tcgen05.fence::after_thread_sync", "", tensor_fence<true>);
    for (const char *o : {"sc", "acq_rel", "acquire", "release"})
        for (const char *s : {"cta", "cluster", "gpu", "sys"}) def(std::string("fence.") + o + "." + s, "", fence);
    def("prefetch.tensormap", "a", nop);
    def("prefetch.param.tensormap", "a", nop);
    def("prefetch.global.L2", "a", nop);
    def("prefetch.global.L1", "a", nop);
    def("nanosleep.u32", "s", nanosleep);
    def("pragma", "", nop);
}
