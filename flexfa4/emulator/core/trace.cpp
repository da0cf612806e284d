#include "trace.h"

void Trace::begin(const Machine &M) {
    warps = (M.cfg.block[0] * M.cfg.block[1] * M.cfg.block[2] + 31) / 32;
    instructions = M.P->ins.size();
    counts.assign(warps * instructions, 0);
}
void Trace::launched(Cta &c) { numbers[&c] = next_cta++; }
size_t Trace::add(const TraceEvent &e) {
    if (events.size() >= LIMIT) {
        dropped++;
        return LIMIT;
    }
    events.push_back(e);
    return events.size() - 1;
}
static u16 kind_of(const Warp &w, const Ins &I, u32 &object) {
    const std::string &name = op_table()[I.op].name;
    if (name.rfind("mbarrier.", 0) == 0) {
        object = (u32)w.addr(I.o + 1, __builtin_ctz(w.act)) & 0xffffff;
        return WAIT_MBARRIER;
    }
    if (w.in_bar) {
        object = w.bar_id;
        return WAIT_BARRIER;
    }
    if (name.rfind("barrier.cluster", 0) == 0) return WAIT_CLUSTER;
    if (name.rfind("setmaxnreg", 0) == 0) return WAIT_REGISTERS;
    if (name.rfind("tcgen05.alloc", 0) == 0) return WAIT_TMEM;
    return WAIT_OTHER;
}
void Trace::turn(Machine &M, Warp &w, u64 before, u64 steps, bool blocked) {
    auto open = waiting.find(&w);
    if (w.steps != steps && open != waiting.end() && open->second.steps != w.steps - (blocked ? 1 : 0)) {
        // The blocking instruction itself counts a step each time it is tried, and is tried again when blocked.
        if (open->second.event < LIMIT) events[open->second.event].end = before;
        waiting.erase(open);
        open = waiting.end();
    }
    u16 cta = numbers[w.cta];
    if (M.clock() > before) add({before, M.clock(), 0, w.pc, 0, cta, (u16)w.id, RUN_WARP, 0});
    if (!blocked) return;
    if (open != waiting.end()) {
        open->second.steps = w.steps;
        return;
    }
    u32 object = 0;
    u16 kind = kind_of(w, M.P->ins[(size_t)w.pc], object);
    waiting[&w] = {add({M.clock(), 0, 0, w.pc, object, cta, (u16)w.id, kind, 0}), w.steps};
}
void Trace::range(s32 pc, u32 lo, u32 hi, u32 kind) {
    u64 key = ((u64)pc << 40) ^ ((u64)lo << 20) ^ ((u64)hi << 3) ^ kind;
    if (seen.emplace(key, true).second) ranges.push_back({pc, lo, hi, kind});
}
void Trace::issued(Machine &M, const Async &a) {
    s32 pc = (s32)(a.ins - M.P->ins.data());
    u32 bytes = 0;
    for (auto &r : a.writes) {
        range(pc, r.lo, r.hi, 1);
        bytes += r.hi - r.lo;
    }
    for (auto &r : a.reads) {
        range(pc, r.lo, r.hi, 0);
        if (a.writes.empty()) bytes += r.hi - r.lo;
    }
    for (auto &r : a.treads) range(pc, r.lo, r.hi, 2);
    for (auto &r : a.twrites) range(pc, r.lo, r.hi, 3);
    if (!current) return;
    flying[&a] = add({M.clock(), 0, a.work, pc, bytes, numbers[current->cta], (u16)current->id, WORK, 0});
}
void Trace::completed(Machine &M, const Async &a) {
    auto f = flying.find(&a);
    if (f == flying.end()) return;
    if (f->second < LIMIT) events[f->second].end = M.clock();
    flying.erase(f);
}
void Trace::retired(const Cta &c) {
    for (size_t i = 0; i < c.bar_index.size(); i++)
        if (c.bar_index[i] >= 0) range(-1, (u32)i * 8, (u32)i * 8 + 8, 4);
}
