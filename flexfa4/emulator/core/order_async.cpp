// Accesses of threads and of asynchronous work: which component and time they bear, and what the waits for them prove.
#include "order.h"
#include <algorithm>

using namespace past;

// ---- threads
Look Order::look(Warp &w, Cta *c, const char *space, bool write, const Ins &I) {
    WarpOrder &o = *w.order;
    u32 comp = __builtin_popcount(w.m) == 1 ? o.one : o.many;
    u64 a = shadow.access(comp, shadow.now[comp], I, write) | (I.sem & SEM_ATOMIC ? past::ATOMIC : 0);
    return {&o.view, &I, &w, c, space, a};
}
void Order::shared(Warp &w, Cta *c, u32 off, u32 bytes, bool write, const Ins &I) {
    Look L = look(w, c, "shared byte", write, I);
    if (bytes < 4) L.access |= SUBWORD;
    shadow.bytes(c->order->smem, off, off + bytes, L);
}
// Reads of global memory are compared with writes, and not kept.
void Order::global(Warp &w, u64 address, u64 bytes, bool write, const Ins &I, bool same) {
    check_grid(w.order->view, I);
    if (!write && shadow.pages.empty()) return;
    if (address - (u64)M.local.data() < M.local.size()) return; // of one thread
    Look L = look(w, nullptr, "global address", write, I);
    if (bytes < 4) L.access |= SUBWORD;
    L.record = write;
    L.same = same;
    shadow.global(address, address + bytes, L);
}
static void columns(Shadow &s, Cta *c, u32 lo, u32 hi, int first, int last, Look &L) {
    if (s.M.hb->idle) s.M.hb->idle->access(comp(L.access), time(L.access));
    for (u32 i = lo; i < hi; i++) {
        L.at = i;
        for (int q = first; q < last; q++) s.touch(c->order->tmem[i * 4 + (u32)q], L, 15);
    }
}
u32 Order::engine(Warp &w, u32 &comp, const char *what) {
    if (!comp)
        comp =
            shadow.component(w.cta->order->comps,
                             fmt("%s of warp %d of CTA %u,%u,%u", what, w.id, w.cta->id[0], w.cta->id[1], w.cta->id[2]), false);
    return shadow.tick(comp);
}
void Order::tmem(Warp &w, u32 lo, u32 hi, bool write, const Ins &I) {
    WarpOrder &o = *w.order;
    Look L = look(w, w.cta, "tensor column", write, I);
    u32 &comp = write ? o.tmem_store : o.tmem_load;
    u32 t = engine(w, comp, write ? "tcgen05.st" : "tcgen05.ld");
    L.access = shadow.access(comp, t, I, write);
    if (write)
        L.own = comp;
    else if (!strict)
        o.view.raise(comp, t); // the reading of registers waits for the load
    if (strict) L.tensor = &o;
    columns(shadow, w.cta, lo, hi, w.id % 4, w.id % 4 + 1, L);
}
void Order::tmem_alloc(Cta &c, u32 lo, u32 hi) {
    c.order->tmem.resize(TMEM_COLS * 4);
    for (u32 i = lo * 4; i < hi * 4; i++) c.order->tmem[i] = Granule{};
}
void Order::tmem_free(Warp &w, u32 lo, u32 hi, const Ins &I) {
    Look L = look(w, w.cta, "tensor column", true, I);
    columns(shadow, w.cta, lo, hi, 0, 4, L);
}
void Order::tmem_stored(Warp &w) {
    if (w.order->tmem_store) w.order->view.raise(w.order->tmem_store, shadow.now[w.order->tmem_store]);
}
void Order::tensor_fence(Warp &w, bool after) {
    WarpOrder &o = *w.order;
    if (after)
        o.tensor = o.view.seen;
    else
        for (u32 comp : {o.tmem_store, o.tmem_load}) shadow.tensor_before[comp] = shadow.now[comp];
}
// A kernel that uses griddepcontrol may start before the grids it depends on have ended (PTX ISA, griddepcontrol).
void Order::grid_wait(Warp &w) {
    if (!grid) grid = shadow.component(own, "an earlier grid", false);
    w.order->view.raise(grid, shadow.now[grid]);
}
void Order::check_grid(const View &v, const Ins &I) {
    if (strict && M.P->dependent && (!grid || v.seen.at(grid) < shadow.now[grid]))
        shadow.report("order", I, fmt("grid %d", I.line),
                      "touches global memory before griddepcontrol.wait, which an earlier grid may still be writing "
                      "(PTX ISA, griddepcontrol)");
}
void Order::tmem_loaded(Warp &w) {
    WarpOrder &o = *w.order;
    if (o.tmem_load) o.view.raise(o.tmem_load, shadow.now[o.tmem_load]);
    for (auto &r : o.registers) r.loading = 0;
}

// ---- copies
static Look async_look(const Async &a, Cta *c, const char *space, u64 access) {
    Look L{&a.order->view, a.ins, nullptr, c, space, access};
    L.async = true;
    return L;
}
// Bytes [dst, dst + bytes) of `to`, signalled at a's mbarrier; from shared memory of the issuing CTA at `src`, or from global
// memory.
void Order::load(Warp &w, Async &a, Cta *to, u32 dst, u32 bytes, bool from_shared, u32 src) {
    snapshot(w, a);
    used(a.order->view, a.bar_cta, a.bar, true, *a.ins);
    BarOrder &b = bar(a.bar_cta, a.bar);
    a.order->comp = b.comp;
    a.order->time = b.phases + 1;
    Look L = async_look(a, to, "shared byte", shadow.access(b.comp, b.phases + 1, *a.ins, true));
    shadow.bytes(to->order->smem, dst, dst + bytes, L);
    if (!from_shared) return;
    Look R = async_look(a, w.cta, "shared byte", shadow.access(b.comp, b.phases + 1, *a.ins, false));
    shadow.bytes(w.cta->order->smem, src, src + bytes, R);
}
void Order::sent(Warp &w, Async &a, Place to, u32 bytes, Place to_bar, Send how) {
    if (!a.order) snapshot(w, a); // its component is that of each mbarrier it signals
    used(a.order->view, to_bar.cta, to_bar.off, how == PROXY, *a.ins);
    BarOrder &b = bar(to_bar.cta, to_bar.off);
    u64 x = shadow.access(b.comp, b.phases + 1, *a.ins, true) | (how == REDUCE ? past::ATOMIC : 0);
    Look L = async_look(a, to.cta, "shared byte", x);
    L.async = how == PROXY;
    shadow.bytes(to.cta->order->smem, to.off, to.off + bytes, L);
}
void Order::bulk_store(Warp &w, Async &a, u32 src, u32 bytes) {
    WarpOrder &o = *w.order;
    snapshot(w, a);
    AsyncOrder &x = *a.order;
    x.read_time = engine(w, o.bulk_read, "a bulk store");
    x.read_comp = o.bulk_read;
    x.time = engine(w, o.bulk_write, "a bulk store");
    x.comp = o.bulk_write;
    o.bulk_ins = a.ins;
    Look L = async_look(a, w.cta, "shared byte", shadow.access(x.read_comp, x.read_time, *a.ins, false));
    shadow.bytes(w.cta->order->smem, src, src + bytes, L);
}
void Order::bulk_done(Warp &w, const Async &a, bool reads_only) {
    if (idle && w.order->view.seen.at(a.order->read_comp) < a.order->read_time) idle->mark(M.P->ins[(size_t)w.pc], true, "");
    w.order->view.raise(a.order->read_comp, a.order->read_time);
    if (!reads_only) engine_done(w, a);
}
void Order::cp_async(Warp &w, Async &a, Cta *to, u32 dst, u32 bytes) {
    WarpOrder &o = *w.order;
    if (o.copy_step != w.steps) {
        o.copy_step = w.steps;
        snapshot(w, a);
        a.order->time = engine(w, o.copies, "cp.async");
        a.order->comp = o.copies;
        o.copy = a.order;
    }
    a.order = o.copy;
    Look L = async_look(a, to, "shared byte", shadow.access(a.order->comp, a.order->time, *a.ins, true));
    L.async = false; // cp.async works in the generic proxy
    shadow.bytes(to->order->smem, dst, dst + bytes, L);
}
void Order::cp_arrive(Warp &w, Async &a) {
    snapshot(w, a);
    if (!w.order->copies) engine(w, w.order->copies, "cp.async");
    a.order->comp = w.order->copies;
    a.order->time = shadow.now[w.order->copies];
}
void Order::global_async(const Async &a, u64 address, u64 bytes, bool write, bool atomic) {
    if (!a.order) return;
    check_grid(a.order->view, *a.ins);
    if (!write && shadow.pages.empty()) return;
    Look L = async_look(a, nullptr, "global address",
                        shadow.access(a.order->comp, a.order->time, *a.ins, write) | (atomic ? past::ATOMIC : 0));
    L.record = write;
    shadow.global(address, address + bytes, L);
}

// ---- tensor cores
void Order::mma(Warp &w, Async &a) {
    snapshot(w, a);
    a.order->issuer = w.order.get();
    a.order->time = engine(w, w.order->mma, "tcgen05.mma");
    a.order->comp = w.order->mma;
}
void Order::commit(Warp &w, Async &a) {
    mma(w, a);
    used(a.order->view, a.bar_cta, a.bar, true, *a.ins);
    bar(a.bar_cta, a.bar).last = a.ins;
    if (idle) idle->mark(*a.ins, false, "no thread waits for the phase that it helps to complete");
}
void Order::wgmma(Warp &w, Async &a) {
    snapshot(w, a);
    a.order->comp = w.order->wgmma;
    a.order->time = ++w.order->wgmma_time;
    u32 &now = shadow.now[w.order->wgmma];
    if (now < a.order->time) now = a.order->time;
}
Look Order::operand(const Async &a, Cta *c) {
    return async_look(a, c, "shared byte", shadow.access(a.order->comp, a.order->time, *a.ins, false));
}
void Order::accumulator(const Async &a, Cta *c, u32 lo, u32 hi, bool write) {
    Look L = async_look(a, c, "tensor column", shadow.access(a.order->comp, a.order->time, *a.ins, write));
    L.async = false; // tensor memory has no proxies
    L.own = a.order->comp;
    if (strict) L.tensor = a.order->issuer;
    columns(shadow, c, lo, hi, 0, 4, L);
}
