// Which warp runs next, when asynchronous work completes, launching and retiring CTAs, and what is said when nothing can run.
#include "order.h"
#include "timed.h"
#include "trace.h"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <set>

std::string fmt(const char *f, ...) {
    char b[2048];
    va_list v;
    va_start(v, f);
    vsnprintf(b, sizeof b, f, v);
    va_end(v);
    return b;
}
std::vector<OpDef> &op_table() {
    static std::vector<OpDef> t;
    return t;
}
void def(const std::string &n, const std::string &s, Handler fn, bool aligned, s32 aux) {
    op_table().push_back({n, s, fn, aligned, aux});
}

void Machine::fail(const char *kind, const Ins &I, const std::string &text, const Warp *w) {
    std::string where;
    if (w) where = fmt(" [CTA %u,%u,%u warp %d lanes %08x]", w->cta->id[0], w->cta->id[1], w->cta->id[2], w->id, w->m);
    throw EmuError(kind, fmt("line %d: %s: ", I.line, op_table()[I.op].name.c_str()) + text + where);
}
void Machine::note(const std::string &kind, const Ins &I, const std::string &text) {
    std::string s = kind + "\t" + fmt("line %d: %s: ", I.line, op_table()[I.op].name.c_str()) + text;
    if (findings.size() < 200 && std::find(findings.begin(), findings.end(), s) == findings.end()) findings.push_back(s);
}
void Machine::check_global(u64 a, u64 n, const Ins &I) {
    auto it = std::upper_bound(ranges.begin(), ranges.end(), std::pair<u64, u64>(a, ~(u64)0));
    if (it != ranges.begin()) {
        --it;
        if (a >= it->first && a + n <= it->second) return;
    }
    fail("bounds", I,
         fmt("global address 0x%llx (%llu bytes) is in no tensor that was passed", (unsigned long long)a, (unsigned long long)n));
}

// ---- asynchronous work
void check_async(Machine &M, const Async &a, const Ins &I) {
    auto hit = [&](const Range &x, const Range &y) { return x.cta == y.cta && x.lo < y.hi && y.lo < x.hi; };
    auto report = [&](const char *what, const Range &r, const Async *b) {
        M.fail(
            "race", I,
            fmt("%s shared bytes [0x%x, 0x%x) that line %d may still be using asynchronously", what, r.lo, r.hi, b->ins->line));
    };
    std::set<Cta *> seen;
    for (auto *list : {&a.reads, &a.writes})
        for (const Range &r : *list) {
            if (!seen.insert(r.cta).second) continue;
            for (Async *b : r.cta->pending) {
                if (b->queue >= 0 && b->queue == a.queue) continue;
                for (const Range &x : a.writes) {
                    for (const Range &y : b->writes)
                        if (hit(x, y)) report("writes", x, b);
                    for (const Range &y : b->reads)
                        if (hit(x, y)) report("overwrites", x, b);
                }
                for (const Range &x : a.reads)
                    for (const Range &y : b->writes)
                        if (hit(x, y)) report("reads", x, b);
            }
        }
}
template <class F> static void touched(const Async &a, F f) {
    Cta *seen[8];
    int n = 0;
    auto add = [&](Cta *c) {
        for (int i = 0; i < n; i++)
            if (seen[i] == c) return;
        if (n < 8) {
            seen[n++] = c;
            f(c);
        }
    };
    for (auto &r : a.reads) add(r.cta);
    for (auto &r : a.writes) add(r.cta);
    for (auto &r : a.treads) add(r.cta);
    for (auto &r : a.twrites) add(r.cta);
}
int Machine::new_queue() {
    if (!spare_queues.empty()) {
        int q = spare_queues.back();
        spare_queues.pop_back();
        return q;
    }
    queues.emplace_back();
    return (int)queues.size() - 1;
}
void Machine::free_queue(int q) {
    if (q >= 0) spare_queues.push_back(q);
}

static void run_async(Machine &M, Async &a) {
    M.writes++;
    const Async *outer = M.completing;
    M.completing = &a;
    a.run();
    M.completing = outer;
    if (M.trace) M.trace->completed(M, a);
    a.run = nullptr;
}
static void complete(Machine &M, Async &a) {
    if (a.done) return;
    a.done = true;
    touched(a, [&](Cta *c) {
        auto it = std::find(c->pending.begin(), c->pending.end(), &a);
        if (it != c->pending.end()) c->pending.erase(it);
    });
    run_async(M, a);
    M.progress++;
}
AsyncRef Machine::issue(AsyncRef a) {
    if (trace) trace->issued(*this, *a);
    progress++;
    if (timed) timed->begun(*this, *a);
    if (cfg.completion == IMMEDIATE) {
        run_async(*this, *a);
        a->done = true;
        return a;
    }
    touched(*a, [&](Cta *c) { c->pending.push_back(a.get()); });
    if (a->queue >= 0)
        queues[a->queue].push_back(a);
    else
        loose.push_back(a);
    if (timed) timed->add(a);
    return a;
}
void Machine::finish(const AsyncRef &a) {
    if (timed) timed->until = std::max(timed->until, a->end);
    if (a->done) return;
    if (a->queue >= 0) {
        auto &q = queues[a->queue];
        while (!a->done) {
            AsyncRef f = q.front();
            q.pop_front();
            complete(*this, *f);
        }
        return;
    }
    auto it = std::find(loose.begin(), loose.end(), a);
    if (it != loose.end()) {
        *it = loose.back();
        loose.pop_back();
    }
    complete(*this, *a);
}
static void barriers_of(Warp *w, const Program &P, std::vector<std::pair<Cta *, u32>> &out) {
    const Ins &I = P.ins[w->pc];
    if (op_table()[I.op].name.rfind("mbarrier.", 0) != 0) return;
    for (int l = 0; l < LANES; l++)
        if (w->act >> l & 1) {
            out.push_back({w->cta, (u32)w->addr(I.o + 1, l) & 0xffffff});
            break;
        }
}
// LATE completes what a waiting warp needs; otherwise any head, loads before stores.
bool Machine::complete_one() {
    if (cfg.completion == LATE) {
        std::vector<Warp *> waiting;
        for (Warp *w : order)
            if (!w->done && w->blocked) waiting.push_back(w);
        std::shuffle(waiting.begin(), waiting.end(), rng);
        std::vector<std::pair<Cta *, u32>> wanted;
        for (Warp *w : waiting) barriers_of(w, *P, wanted);
        for (auto &[c, bar] : wanted) {
            std::vector<AsyncRef> fit;
            for (auto &a : loose)
                if (a->bar_cta == c && a->bar == bar) fit.push_back(a);
            for (auto &q : queues)
                for (auto &a : q)
                    if (a->bar_cta == c && a->bar == bar) {
                        fit.push_back(a);
                        break;
                    }
            if (!fit.empty()) {
                finish(fit[rng() % fit.size()]);
                return true;
            }
        }
    }
    std::vector<AsyncRef> heads;
    for (auto &q : queues)
        if (!q.empty()) heads.push_back(q.front());
    for (auto &a : loose)
        if (!a->store) heads.push_back(a);
    if (heads.empty()) heads = loose;
    if (heads.empty()) return false;
    finish(heads[rng() % heads.size()]);
    return true;
}

// ---- one warp
static void pick_group(Warp &w) { // the lowest program counter first
    size_t best = w.parked.size();
    bool current = w.act != 0;
    for (size_t i = 0; i < w.parked.size();) {
        if (current && w.parked[i].pc == w.pc) {
            w.act |= w.parked[i].mask;
            w.parked.erase(w.parked.begin() + i);
            continue;
        }
        i++;
    }
    best = w.parked.size();
    for (size_t i = 0; i < w.parked.size(); i++)
        if (!w.parked[i].stuck && (best == w.parked.size() || w.parked[i].pc < w.parked[best].pc)) best = i;
    if (best == w.parked.size()) return;
    if (!current) {
        w.act = w.parked[best].mask;
        w.pc = w.parked[best].pc;
        w.parked.erase(w.parked.begin() + best);
        pick_group(w);
        return;
    }
    if (w.parked[best].pc < w.pc) {
        std::swap(w.act, w.parked[best].mask);
        std::swap(w.pc, w.parked[best].pc);
        w.parked[best].stuck = false;
    }
}
static bool other_group(Warp &w) { // the running group cannot go on: try another one
    for (size_t i = 0; i < w.parked.size(); i++)
        if (!w.parked[i].stuck) {
            std::swap(w.act, w.parked[i].mask);
            std::swap(w.pc, w.parked[i].pc);
            w.parked[i].stuck = true;
            for (size_t j = 0; j < w.parked.size();) { // reached lanes that wait here: join them
                if (w.parked[j].pc == w.pc) {
                    w.act |= w.parked[j].mask;
                    w.parked.erase(w.parked.begin() + j);
                } else
                    j++;
            }
            return true;
        }
    return false;
}
bool Warp::spins(const Ins &I, const u32 *rows, int n) {
    constexpr u64 TIGHT = 32; // instructions of a loop that does nothing but wait
    u64 value = m;
    for (int i = 0; i < n; i++)
        for (int l = 0; l < LANES; l++)
            if (m >> l & 1) value = (value ^ rows[i * LANES + l]) * 0x9e3779b97f4a7c15ull;
    bool again = poll.ins == &I && poll.value == value && poll.writes == M->writes && steps - poll.steps <= TIGHT;
    poll.sleeps = again && !timeout;
    if (!poll.sleeps) timeout = false;
    poll.ins = &I, poll.value = value, poll.steps = steps, poll.writes = M->writes;
    return poll.sleeps;
}
Result Machine::step_many(Warp &w, int quantum) {
    const Ins *code = P->ins.data();
    u64 *count = trace ? trace->count_of(w) : counts.data();
    for (auto &g : w.parked) g.stuck = false;
    for (; quantum > 0; quantum--) {
        if (!w.parked.empty()) pick_group(w);
        if (!w.act) {
            w.done = w.parked.empty();
            if (w.done) return NEXT;
            w.act = w.parked.back().mask; // these lanes wait
            w.pc = w.parked.back().pc;
            w.parked.pop_back();
            return BLOCKED;
        }
        const Ins &I = code[w.pc];
        u32 m = w.act;
        w.ran = w.pc;
        count[w.pc]++;
        total++;
        w.steps++;
        if (I.pred >= 0) {
            u32 p = w.p(I.pred);
            m &= I.neg ? ~p : p;
            if (!m) {
                w.pc++;
                w.masked = true;
                if (timed) return NEXT;
                continue;
            }
        }
        w.m = m;
        w.masked = false;
        Result r = NEXT;
        if (I.aligned && m != w.live) {
            if (m != w.act) fail("divergence", I, "an .aligned instruction whose guard differs between lanes", &w);
            r = DIVERGED;
        } else {
            if (I.watch >= 0 && hb) hb->registers(w, I);
            r = I.fn(w, I);
        }
        if (r == NEXT) w.pc++;
        if (r == NEXT || r == JUMP) {
            if (timed) return NEXT;
            continue;
        }
        count[w.pc]--;
        total--;
        if (r == DIVERGED && w.parked.empty())
            fail("divergence", I, fmt("waits for lanes that are not there (live %08x)", w.live), &w);
        if (other_group(w)) continue;
        return BLOCKED;
    }
    return NEXT;
}

// ---- CTAs
static void fill(Warp &w, const Program &P, bool first) { // first: of its CTA; the others start as copies of that one
    const Config &c = w.M->cfg;
    Cta &t = *w.cta;
    u32 n = c.cluster[0] * c.cluster[1] * c.cluster[2];
    enum {
        CONST,
        PARAM,
        SHARED,
        TID,
        NTID,
        CTAID,
        NCTAID,
        LANE,
        WARP,
        CLUSTER_RANK,
        CLUSTER_CTAID,
        CLUSTER_NCTAID,
        CLUSTERID,
        NCLUSTERID,
        CLUSTER_SIZE,
        SMID,
        NSMID,
        LT,
        LE,
        GT,
        GE,
        EQ,
        DSMEM,
        NWARP,
        EXPLICIT,
        LOCAL
    };
    for (const Fill &f : P.fills) {
        if (!first && f.kind != TID && f.kind != WARP && f.kind != LOCAL) continue;
        for (int l = 0; l < LANES; l++) {
            u32 tid = (u32)w.id * 32 + l, k = (u32)f.value;
            u64 v = 0;
            u32 pos[3] = {tid % c.block[0], tid / c.block[0] % c.block[1], tid / c.block[0] / c.block[1]};
            u32 in[3] = {t.id[0] % c.cluster[0], t.id[1] % c.cluster[1], t.id[2] % c.cluster[2]};
            switch (f.kind) {
            case CONST: v = (u64)f.value; break;
            case PARAM: v = c.params + f.value; break;
            case SHARED: v = SMEM_BASE + f.value + ((u64)t.rank << 24); break;
            case TID: v = pos[k]; break;
            case NTID: v = c.block[k]; break;
            case CTAID: v = t.id[k]; break;
            case NCTAID: v = c.grid[k]; break;
            case LANE: v = l; break;
            case WARP: v = w.id; break;
            case CLUSTER_RANK: v = t.rank; break;
            case CLUSTER_CTAID: v = in[k]; break;
            case CLUSTER_NCTAID: v = c.cluster[k]; break;
            case CLUSTERID: v = t.id[k] / c.cluster[k]; break;
            case NCLUSTERID: v = c.grid[k] / c.cluster[k]; break;
            case CLUSTER_SIZE: v = n; break;
            case SMID: v = t.rank; break;
            case NSMID: v = c.sms; break;
            case LT: v = (1u << l) - 1; break;
            case LE: v = (2u << l) - 1; break;
            case GT: v = ~((2u << l) - 1); break;
            case GE: v = ~((1u << l) - 1); break;
            case EQ: v = 1u << l; break;
            case DSMEM: v = c.smem_dynamic; break;
            case NWARP: v = (c.block[0] * c.block[1] * c.block[2] + 31) / 32; break;
            case EXPLICIT: v = n > 1; break;
            case LOCAL: v = w.M->local_base(t, tid) + k; break;
            }
            w.r(f.off)[l] = (u32)v;
            if (f.wide) w.r(f.off + ROW)[l] = (u32)(v >> 32);
        }
    }
}
void Machine::launch(u64 index) {
    const Config &c = cfg;
    auto cl = std::make_unique<Cluster>();
    u32 n = c.cluster[0] * c.cluster[1] * c.cluster[2], threads = c.block[0] * c.block[1] * c.block[2],
        warps = (threads + 31) / 32;
    u32 g[3] = {c.grid[0] / c.cluster[0], c.grid[1] / c.cluster[1], c.grid[2] / c.cluster[2]};
    u32 at[3] = {(u32)(index % g[0]), (u32)(index / g[0] % g[1]), (u32)(index / g[0] / g[1])};
    cl->threads = n * warps * 32;
    if (c.local_bytes) {
        cl->local_slot = spare_local.back();
        spare_local.pop_back();
    }
    for (u32 r = 0; r < n; r++) {
        auto t = std::make_unique<Cta>();
        t->M = this;
        t->cluster = cl.get();
        t->rank = r;
        u32 in[3] = {r % c.cluster[0], r / c.cluster[0] % c.cluster[1], r / c.cluster[0] / c.cluster[1]};
        for (int k = 0; k < 3; k++) t->id[k] = at[k] * c.cluster[k] + in[k];
        u32 bytes = (c.smem_static + c.smem_dynamic + 1023) & ~1023u;
        t->smem.assign(bytes, 0xff);
        t->bar_index.assign((bytes + SMEM_BASE) / 8, -1);
        if (c.checks) t->dirty.assign(bytes / 16, 0);
        if (!spare_regs.empty()) {
            t->regs = std::move(spare_regs.back());
            spare_regs.pop_back();
        }
        t->regs.resize((size_t)P->reg_bytes * warps + 64);
        u8 *base = reinterpret_cast<u8 *>(((uintptr_t)t->regs.data() + 63) & ~(uintptr_t)63);
        std::memset(base, 0xff, (size_t)P->reg_bytes);
        u32 regs = (65536 / (warps * 32)) & ~7u;
        if (regs > 255) regs = 255 & ~7u;
        t->reg_pool = 65536 - regs * warps * 32;
        for (u32 i = 0; i < warps; i++) {
            auto w = std::make_unique<Warp>();
            w->R = base + (size_t)P->reg_bytes * i;
            w->id = (int)i;
            w->cta = t.get();
            w->M = this;
            w->uid = (int)(rng() & 0x7fffffff);
            w->regs = regs;
            u32 left = threads - i * 32;
            w->live = w->act = left >= 32 ? FULL : (1u << left) - 1;
            w->priority = (u32)rng();
            if (i) std::memcpy(w->R, t->warps[0]->R, P->reg_bytes);
            fill(*w, *P, i == 0);
            order.push_back(w.get());
            t->warps.push_back(std::move(w));
        }
        cl->ctas.push_back(std::move(t));
    }
    if (hb) hb->start(*cl);
    if (trace)
        for (auto &t : cl->ctas) trace->launched(*t);
    if (timed)
        for (auto &t : cl->ctas) timed->start(*t);
    resident.push_back(std::move(cl));
    epoch++;
}
void Machine::retire(size_t k) {
    Cluster &cl = *resident[k];
    for (auto &t : cl.ctas) {
        for (auto &w : t->warps) {
            for (int l = 0; l < LANES; l++) {
                w->bulk[l].groups.push_back(std::move(w->bulk[l].open));
                for (auto &g : w->bulk[l].groups)
                    for (auto &a : g) {
                        if (!a->done && !hb) // race checks see it whenever the copy completes
                            note("exit", *a->ins, "a CTA exits while this copy may still read its shared memory (no wait_group)");
                        finish(a);
                    }
            }
            for (auto &a : w->wg_open) finish(a);
            for (auto &g : w->wg_groups)
                for (auto &a : g) finish(a);
            for (auto &a : w->tmem_stores) finish(a);
            free_queue(w->wg_queue);
        }
        while (t->mma_queue >= 0 && !queues[t->mma_queue].empty()) finish(queues[t->mma_queue].front());
        free_queue(t->mma_queue);
        for (u8 u : t->tmem_used)
            if (u)
                throw EmuError("tmem",
                               fmt("CTA %u,%u,%u exits without deallocating its tensor memory", t->id[0], t->id[1], t->id[2]));
    }
    std::vector<AsyncRef> left;
    for (auto &a : loose)
        for (auto &t : cl.ctas)
            if (a->cta == t.get()) {
                left.push_back(a);
                break;
            }
    for (auto &a : left) {
        note("exit", *a->ins, "still in flight when its cluster has exited");
        finish(a);
    }
    order.erase(std::remove_if(order.begin(), order.end(), [&](Warp *w) { return w->cta->cluster == &cl; }), order.end());
    if (hb) hb->retire(cl);
    if (trace)
        for (auto &t : cl.ctas) trace->retired(*t);
    for (auto &t : cl.ctas) spare_regs.push_back(std::move(t->regs));
    if (cfg.local_bytes) spare_local.push_back(cl.local_slot);
    resident.erase(resident.begin() + (long)k);
    epoch++;
}
std::string Machine::waiting(Warp &w) {
    const Ins &I = P->ins[w.pc];
    const std::string &name = op_table()[I.op].name;
    std::string s = fmt("  CTA %u,%u,%u warp %2d lanes %08x: line %d: %s", w.cta->id[0], w.cta->id[1], w.cta->id[2], w.id, w.act,
                        I.line, name.c_str());
    if (name.rfind("mbarrier.", 0) == 0) {
        int l = __builtin_ctz(w.act);
        u32 a = (u32)w.addr(I.o + 1, l) & 0xffffff;
        MBar &b = w.cta->bar(a, I);
        s += fmt(" mbarrier 0x%x: waits for the end of phase %u, is in phase %u, pending arrivals %d of %d, pending bytes %lld",
                 a - SMEM_BASE, w.r(I.o[4])[l] & 1, b.phase, b.pending, b.expected, (long long)b.tx);
    } else if (w.in_bar) {
        NamedBar &b = w.cta->named[w.bar_id];
        s += fmt(" barrier %u: %u of %u threads arrived", w.bar_id, b.count, b.expected);
    } else if (w.in_cluster_bar)
        s += fmt(" cluster barrier: %u of %u threads arrived", w.cta->cluster->bar_count, w.cta->cluster->threads);
    for (auto &g : w.parked) s += fmt("; lanes %08x at line %d", g.mask, P->ins[g.pc].line);
    return s;
}
std::string Machine::deadlock_report(const char *title) {
    std::string s = title;
    for (Warp *w : order)
        if (!w->done) s += "\n" + waiting(*w);
    return s;
}
void Machine::nobody_runs(u64 &last, u64 &timeouts) { // each warp is let through once
    bool polling = std::any_of(order.begin(), order.end(), [](Warp *x) { return !x->done && x->poll.sleeps; });
    if (progress == last && ++timeouts > (polling ? 10000 : 3)) // a loop may count before it gives up
        throw EmuError("deadlock", deadlock_report("deadlock: no warp can go on and nothing is in flight"));
    if (progress != last) timeouts = 0;
    last = progress;
    for (Warp *x : order)
        if (!x->done) {
            x->blocked = false;
            x->timeout = true;
        }
}
bool Machine::leave(Warp &w) {
    if (hb) hb->exit(w);
    w.cta->exited++;
    epoch++;
    progress++;
    Cluster *cl = w.cta->cluster;
    if (++cl->exited != (int)(cl->ctas.size() * w.cta->warps.size())) return false;
    auto found = std::find_if(resident.begin(), resident.end(), [&](auto &x) { return x.get() == cl; });
    retire((size_t)(found - resident.begin()));
    return true;
}
void Machine::run() {
    rng.seed(cfg.seed);
    u32 n = cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2];
    u64 stale = 0, last = 0, timeouts = 0;
    clusters = (u64)cfg.grid[0] * cfg.grid[1] * cfg.grid[2] / n;
    size_t slots = std::max<u32>(1, cfg.sms / n), turn = 0;
    int style = cfg.seed == 0 ? 0 : 1 + (int)(cfg.seed % 3); // 0, 1: in turn; 2: uniformly random; 3: by priority
    counts.assign(P->ins.size(), 0);
    if (trace) trace->begin(*this);
    make_local((u32)slots);
    if (timed) return run_timed();
    while (true) {
        while (resident.size() < slots && next_cluster < clusters) launch(next_cluster++);
        if (resident.empty()) break;
        Warp *w = nullptr;
        size_t count = order.size(), start = style == 2 ? rng() % count : turn;
        for (size_t i = 0; i < count; i++) {
            Warp *x = order[(start + i) % count];
            if (x->done || (x->blocked && x->epoch == epoch && !(x->poll.sleeps && x->poll.writes != writes))) continue;
            if (!w || (style == 3 && x->priority > w->priority)) {
                w = x;
                turn = (start + i + 1) % count;
            }
            if (style != 3) break;
        }
        if (!w || (stale > 8 * count && cfg.completion != IMMEDIATE)) { // blocked, or polling without effect
            stale = 0;
            if (complete_one()) continue;
            if (!w) {
                nobody_runs(last, timeouts);
                continue;
            }
        }
        int quantum = style == 0 ? 2048 : style == 1 ? 1 + (int)(rng() % 256) : 1 + (int)(rng() % 48);
        if (style == 3 && rng() % 64 == 0) w->priority = (u32)rng();
        u64 before = progress;
        w->epoch = epoch;
        w->blocked = w->poll.sleeps = false;
        if (trace) trace->current = w;
        u64 step = total, steps = w->steps;
        if (step_many(*w, quantum) == BLOCKED) w->blocked = true;
        if (trace) trace->turn(*this, *w, step, steps, w->blocked);
        stale = progress == before ? stale + 1 : 0;
        if (total > cfg.max_steps)
            throw EmuError("steps", deadlock_report(fmt("more than %llu steps", (unsigned long long)cfg.max_steps).c_str()));
        if (w->done) {
            if (leave(*w)) turn = 0;
            continue;
        }
        if (cfg.completion == RANDOM && rng() % 3 == 0) complete_one();
    }
    while (complete_one()) {}
}
