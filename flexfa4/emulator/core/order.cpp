// Who happens before whom: threads that meet, asynchronous work that completes, fences, and what must be over when a CTA exits.
#include "order.h"
#include <algorithm>

u8 memory_semantics(const std::string &n) {
    auto has = [&](const char *s) { return n.find(s) != std::string::npos; };
    bool atom = n.rfind("atom.", 0) == 0 || n.rfind("red.", 0) == 0;
    u8 s = atom ? SEM_ATOMIC : 0;
    if (has(".acq_rel")) s |= SEM_ACQUIRE | SEM_RELEASE;
    if (has(".acquire")) s |= SEM_ACQUIRE;
    if (has(".release")) s |= SEM_RELEASE;
    if (has(".relaxed") || has(".volatile") || (atom && !(s & (SEM_ACQUIRE | SEM_RELEASE)))) s |= SEM_RELAXED;
    if ((n.rfind("ld.", 0) == 0 || n.rfind("st.", 0) == 0) && s) s |= SEM_ATOMIC;
    return s;
}

// ---- life
static std::string name_of(const Warp &w, const char *what) {
    return fmt("%swarp %d of CTA %u,%u,%u", what, w.id, w.cta->id[0], w.cta->id[1], w.cta->id[2]);
}
void Order::start(Cluster &c) {
    c.order = std::make_shared<ClusterOrder>();
    for (auto &t : c.ctas) start(*t);
}
void Order::start(Cta &c) {
    auto o = c.order = std::make_shared<CtaOrder>();
    o->smem.resize(c.smem.size() / 16);
    for (size_t i = 0; i < c.warps.size(); i++) {
        Warp &w = *c.warps[i];
        auto x = w.order = std::make_shared<WarpOrder>();
        x->many = shadow.component(o->comps, name_of(w, ""), true);
        x->one = shadow.component(o->comps, name_of(w, "one thread of "), true);
        x->init = shadow.component(o->comps, name_of(w, ""), true);
        for (u32 comp : {x->many, x->one, x->init}) x->view.seen.raise(comp, shadow.now[comp]);
        x->synced = shadow.now[x->many] - 1;
        x->registers.resize((size_t)M.P->watched);
        if (i % 4 == 0) {
            u32 comp = shadow.component(o->comps, fmt("wgmma of warps %zu-%zu", i, i + 3), false);
            o->wgmma.push_back({comp, shadow.now[comp]});
        }
        x->wgmma = o->wgmma[i / 4].first;
        x->wgmma_time = o->wgmma[i / 4].second;
    }
}
void Order::exit(Warp &w) {
    Cta &c = *w.cta;
    c.order->exit.join(w.order->view);
    if (c.exited + 1 == (int)c.warps.size()) check_exit(c);
}
void Order::retire(Cluster &c) {
    for (auto &t : c.ctas) {
        for (auto &g : t->order->smem)
            if (g.slot[SLOTS - 1]) shadow.overflow.erase(&g);
        shadow.give_back(t->order->comps);
    }
}
void Order::check_exit(Cta &c) {
    const Clock &known = c.order->exit.seen;
    for (auto &w : c.warps) {
        WarpOrder &o = *w->order;
        if (o.bulk_read && known.at(o.bulk_read) < shadow.now[o.bulk_read])
            shadow.report("exit", *o.bulk_ins, std::to_string(o.bulk_ins->line),
                          "a CTA may exit while this copy still reads its shared memory: no cp.async.bulk.wait_group follows it "
                          "(PTX ISA, cp.async.bulk.wait_group)");
    }
    for (BarOrder &b : c.order->bars)
        for (auto &r : b.remote)
            if (known.at(r.comp) < r.time)
                shadow.report(
                    "exit", *r.ins, fmt("%u %u %d", b.off, c.rank, r.ins->line),
                    fmt("arrives on mbarrier 0x%x of CTA rank %u, which may have exited before: nothing in that CTA waits "
                        "for this arrival (PTX ISA, mapa: shared memory of a CTA that has exited)",
                        b.off - SMEM_BASE, c.rank));
    check_registers(c);
    if (strict) check_pairs(c);
}
void Order::check_registers(Cta &c) {
    for (size_t first = 0; first + 4 <= c.warps.size(); first += 4)
        for (size_t i = first + 1; i < first + 4; i++) {
            const WarpOrder &a = *c.warps[first]->order, &b = *c.warps[i]->order;
            if (a.register_times.size() == b.register_times.size()) continue;
            const Ins &more = a.register_times.size() > b.register_times.size() ? *a.register_ins : *b.register_ins;
            shadow.report("registers", more, fmt("count %d", more.line),
                          fmt("the warps of a warpgroup (%zu to %zu) execute setmaxnreg %zu and %zu times (PTX ISA, setmaxnreg)",
                              first, first + 3, a.register_times.size(), b.register_times.size()));
        }
}
// What a barrier was left with: nothing requires it to be otherwise, but every wait of a pipeline's tail shows here.
void Order::check_pairs(Cta &c) {
    const Clock &known = c.order->exit.seen;
    for (BarOrder &b : c.order->bars) {
        std::string name = fmt("mbarrier 0x%x of CTA rank %u", b.off - SMEM_BASE, c.rank);
        for (auto &r : b.engine)
            if (known.at(r.comp) < r.time)
                shadow.report("unawaited", *r.ins, name + std::to_string(r.ins->line),
                              "may signal " + name + " after that CTA has exited: nothing waits for it");
        if (!b.last && b.waiter)
            shadow.report("unawaited", *b.waiter, name, "waits for " + name + ", where nothing ever arrives");
        if (!b.last) continue;
        if (!b.waiter)
            shadow.report("unawaited", *b.last, name, "arrives on " + name + ", which no thread ever waits for");
        else if (b.phases > b.first && known.at(b.comp) < b.phases)
            shadow.report("unawaited", *b.last, name,
                          "completes the last phase of " + name + ", and no thread of the CTA waited for it");
    }
    for (u32 i = 0; i < 16; i++)
        if (c.named[i].count)
            shadow.report(
                "unawaited", *c.order->named[i].last, std::to_string(i),
                fmt("barrier %u is left with %u of %u arrivals when the CTA exits", i, c.named[i].count, c.named[i].expected));
}

// ---- what a thread publishes
// One lane speaks: accesses of the others count up to the last barrier of the warp (PTX ISA, bar.warp.sync). Strictly, so do
// their accesses of tensor memory; tcgen05.wait is otherwise taken to speak for the warp.
void Order::one_lane(Warp &w, Clock &c, u32 before) {
    WarpOrder &o = *w.order;
    if (__builtin_popcount(w.m) != 1 || w.m == w.live) return;
    c.lower(o.many, std::max(before, o.synced));
    if (!strict) return;
    c.lower(o.tmem_load, o.loads_synced);
    c.lower(o.tmem_store, o.stores_synced);
}
// What a thread learns from another it may say of its own warp's other lanes too, if they told that other one.
void Order::acquire(WarpOrder &o, const View &from) {
    o.view.join(from);
    o.synced = std::max(o.synced, from.seen.at(o.many));
    o.loads_synced = std::max(o.loads_synced, from.seen.at(o.tmem_load));
    o.stores_synced = std::max(o.stores_synced, from.seen.at(o.tmem_store));
}
void Order::release(Warp &w, View &into, const Ins &I) {
    if (idle) published(*w.order);
    View v = I.sem & SEM_RELAXED ? w.order->released : w.order->view;
    one_lane(w, v.seen);
    one_lane(w, v.fenced);
    one_lane(w, v.fenced_global);
    into.join(v);
}
void Order::snapshot(Warp &w, Async &a) {
    a.order = std::make_shared<AsyncOrder>();
    a.order->view = w.order->view;
    one_lane(w, a.order->view.seen);
    one_lane(w, a.order->view.fenced);
    one_lane(w, a.order->view.fenced_global);
}
void Order::tick(Warp &w) {
    WarpOrder &o = *w.order;
    o.view.seen.raise(o.many, shadow.tick(o.many));
    o.view.seen.raise(o.one, shadow.tick(o.one));
}
void Order::warp_barrier(Warp &w, const Ins *I) {
    WarpOrder &o = *w.order;
    if (idle && I)
        idle->mark(*I,
                   idle->news(o.many, shadow.now[o.many], o.synced) ||
                       idle->news(o.tmem_load, o.view.seen.at(o.tmem_load), o.loads_synced) ||
                       idle->news(o.tmem_store, o.view.seen.at(o.tmem_store), o.stores_synced),
                   "the warp has touched no memory since its last barrier");
    o.synced = shadow.now[o.many];
    o.loads_synced = o.view.seen.at(o.tmem_load);
    o.stores_synced = o.view.seen.at(o.tmem_store);
    tick(w);
}

// ---- mbarriers
void Order::bar_init(Warp &w, Cta *c, u32 off, const Ins &I) {
    CtaOrder &o = *c->order;
    size_t i = (size_t)c->bar_index[off / 8];
    if (o.bars.size() <= i) o.bars.resize(i + 1);
    BarOrder &b = o.bars[i];
    if (!b.comp) b.comp = shadow.component(o.comps, fmt("a copy that completes on mbarrier 0x%x", off - SMEM_BASE), false);
    b.phases = b.first = shadow.now[b.comp];
    b.init_comp = w.order->init;
    b.init_time = w.order->init_time = shadow.tick(w.order->init);
    w.order->init_ins = &I;
    w.order->view.seen.raise(b.init_comp, b.init_time);
    b.init_line = I.line;
    if (idle) idle->access(b.init_comp, b.init_time);
    b.off = off;
    b.now.clear();
    b.done.clear();
}
void Order::used(const View &v, Cta *c, u32 off, bool async, const Ins &I) {
    BarOrder &b = bar(c, off);
    bool known = v.seen.at(b.init_comp) >= b.init_time;
    if (known && (!async || v.fenced.at(b.init_comp) >= b.init_time)) return;
    std::string which = fmt("mbarrier 0x%x of CTA rank %u, initialised at line %d", off - SMEM_BASE, c->rank, b.init_line);
    if (!known)
        shadow.report("race", I, which + std::to_string(I.line),
                      "uses " + which + ", and nothing orders the two (PTX ISA, fence.mbarrier_init, barrier.cluster)");
    else
        shadow.report("proxy", I, which + std::to_string(I.line),
                      "signals " + which +
                          " asynchronously, with no fence.mbarrier_init or fence.proxy.async between "
                          "(PTX ISA, membar/fence: .mbarrier_init; Async proxy)");
}
void Order::arrive(Warp &w, Cta *c, u32 off, const Ins &I) {
    used(w.order->view, c, off, false, I);
    BarOrder &b = bar(c, off);
    release(w, b.now, I);
    b.last = &I;
    if (idle) {
        idle->mark(I, false, "no thread waits for the phase that it helps to complete");
        b.by.push_back(&I);
    }
    if (w.cta == c) return;
    u32 comp = __builtin_popcount(w.m) == 1 ? w.order->one : w.order->many, time = shadow.now[comp];
    for (auto &r : b.remote)
        if (r.comp == comp) {
            r = {comp, time, &I};
            return;
        }
    b.remote.push_back({comp, time, &I});
}
void Order::signal(const Async &a, Cta *c, u32 off) {
    if (!a.order) return;
    BarOrder &b = bar(c, off);
    b.last = a.ins;
    if (idle) b.by.push_back(a.ins);
    // The bytes of a copy order what the copy did, and nothing that its thread did before (PTX ISA, Asynchronous Operations).
    if (!a.order->comp || a.order->comp == b.comp) {
        b.now.raise(b.comp, b.phases + 1);
        return;
    }
    b.now.join(a.order->view);
    b.now.raise(a.order->comp, a.order->time);
    for (auto &r : b.engine)
        if (r.comp == a.order->comp) {
            r = {r.comp, a.order->time, a.ins};
            return;
        }
    b.engine.push_back({a.order->comp, a.order->time, a.ins});
}
void Order::flip(Cta *c, const MBar &m) {
    BarOrder &b = c->order->bars[(size_t)(&m - c->bars.data())];
    b.done = std::move(b.now);
    b.now.clear();
    b.done_by = std::move(b.by);
    b.by.clear();
    b.phases = shadow.tick(b.comp);
    b.done.raise(b.comp, b.phases);
}
void Order::wait(Warp &w, Cta *c, u32 off, const Ins &I) {
    used(w.order->view, c, off, false, I);
    const View &v = bar(c, off).done;
    bar(c, off).waiter = &I;
    if (idle) learn(w, I, v, bar(c, off).done_by, true);
    if (I.sem & SEM_RELAXED)
        w.order->observed.join(v);
    else
        acquire(*w.order, v);
}

// ---- barriers and fences
void Order::meet(Warp &w, Meeting &m, bool waits, const Ins &I) {
    if (!waits) { // an arrive and a sync of one warp may count twice; two arrives cannot be meant
        if (std::find(m.here.begin(), m.here.end(), &w) != m.here.end())
            shadow.report("barrier", I, std::to_string(I.line),
                          fmt("warp %d arrives twice before the barrier completes: another participant did not come "
                              "(PTX ISA, barrier{.cta})",
                              w.id));
        m.here.push_back(&w);
    }
    m.last = &I;
    if (idle) {
        published(*w.order);
        idle->mark(I, false, "no participant learns of an access from it");
        m.by.push_back(&I);
    }
    if (strict && I.sem & SEM_RELAXED) check_inits(*w.order, I);
    m.now.join(I.sem & SEM_RELAXED ? w.order->released : w.order->view);
    warp_barrier(w);
}
// A relaxed arrival guarantees nothing of what came before it (PTX ISA, barrier.cluster): what it is to publish needs its fence.
void Order::check_inits(const WarpOrder &o, const Ins &I) {
    if (o.init_ins && o.released.seen.at(o.init) < o.init_time)
        shadow.report("order", I, fmt("init %d %d", I.line, o.init_ins->line),
                      fmt("a relaxed arrival after the mbarrier.init of line %d, with no fence.mbarrier_init between (PTX ISA, "
                          "barrier.cluster; membar/fence: .mbarrier_init)",
                          o.init_ins->line));
}
void Order::met(Warp &w, const Meeting &m, u64 generation) {
    const View &v = m.done[generation & 7];
    if (idle) learn(w, M.P->ins[(size_t)w.pc], v, m.done_by[generation & 7], false);
    acquire(*w.order, v);
}
// A wait that is over. by: what arrived. awaited: that it waits is reason enough for the arrivals.
void Order::learn(Warp &w, const Ins &I, const View &from, const std::vector<const Ins *> &by, bool awaited) {
    WarpOrder &o = *w.order;
    bool adds = idle->news(from, o.view);
    std::string since = o.learnt ? fmt(" since line %d", o.learnt->line) : "";
    idle->mark(I, adds, by.empty() ? "nobody has used the mbarrier yet" : "the thread knows all that it proves" + since);
    if (adds) o.learnt = &I;
    if (adds || awaited)
        for (const Ins *x : by) idle->mark(*x, true, "");
}
void Order::published(WarpOrder &o) {
    if (o.init_fence) idle->mark(*o.init_fence, true, "");
    o.init_fence = nullptr;
}
// PTX ISA, setmaxnreg: all warps of a warpgroup execute it, and meet before they execute another one.
void Order::set_registers(Warp &w, const Ins &I) {
    WarpOrder &o = *w.order;
    size_t first = (size_t)w.id / 4 * 4, n = o.register_times.size();
    for (size_t i = first; n && i < std::min(first + 4, w.cta->warps.size()); i++) {
        const WarpOrder &x = *w.cta->warps[i]->order;
        if (&x != &o && (x.register_times.size() < n || o.view.seen.at(x.many) < x.register_times[n - 1]))
            shadow.report("registers", I, std::to_string(I.line),
                          "the warps of the warpgroup have not met since their last setmaxnreg (PTX ISA, setmaxnreg)");
    }
    o.register_times.push_back(shadow.now[o.many]);
    o.register_ins = &I;
    tick(w);
}
void Order::proxy_fence(Warp &w, const Ins &I) {
    WarpOrder &o = *w.order;
    bool news = false;
    for (auto [space, fenced] : {std::pair{FENCES_SHARED, &o.view.fenced}, {FENCES_GLOBAL, &o.view.fenced_global}}) {
        if (!(I.aux & space)) continue;
        news |= idle && idle->news(o.view.seen, *fenced, space == FENCES_SHARED ? Idle::ON_CHIP : Idle::GLOBAL);
        u32 before = fenced->at(o.many);
        fenced->join(o.view.seen);
        one_lane(w, *fenced, before);
    }
    if (idle) {
        std::string since = o.proxy_ins ? fmt(" since line %d", o.proxy_ins->line) : "";
        idle->mark(I, news, "nothing was touched through the generic proxy" + since);
        o.proxy_ins = &I;
    }
    tick(w);
}
void Order::init_fence(Warp &w, const Ins &I) {
    WarpOrder &o = *w.order;
    u32 t = shadow.now[o.init];
    if (idle) {
        bool first = o.init_ins && o.released.seen.at(o.init) < o.init_time;
        if (o.init_fence) idle->mark(*o.init_fence, false, fmt("line %d follows before anything is published", I.line));
        if (!first && !o.init_fence) idle->mark(I, false, "the thread has initialised no mbarrier since its last fence");
        if (first || o.init_fence) o.init_fence = &I;
    }
    o.released.raise(o.init, t);
    o.view.raise(o.init, t);
}
void Order::fence(Warp &w) {
    acquire(*w.order, w.order->observed);
    w.order->released.join(w.order->view);
    tick(w);
}
void Order::publish(Warp &w, const void *variable, const Ins &I) {
    if (I.sem & SEM_RELEASE || I.sem & SEM_RELAXED) release(w, variables[variable], I);
    tick(w);
}
void Order::observe(Warp &w, const void *variable, const Ins &I) {
    auto it = variables.find(variable);
    if (it == variables.end()) return;
    if (I.sem & SEM_ACQUIRE)
        acquire(*w.order, it->second);
    else
        w.order->observed.join(it->second);
}
