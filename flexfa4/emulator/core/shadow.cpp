// The last accesses of each granule of memory, compared with each new one, and the reports of accesses in no order.
#include "order.h"
#include <algorithm>

using namespace past;

u32 Shadow::component(std::vector<u32> &owner, const std::string &name, bool generic) {
    u32 c;
    if (!spare.empty()) {
        c = spare.back();
        spare.pop_back();
        sources[c] = {name, generic};
    } else {
        c = (u32)sources.size();
        if (c >= COMPS)
            throw EmuError("races", "more warps and mbarriers than race checks can tell apart: fewer sms, or races=False");
        sources.push_back({name, generic});
        now.push_back(0);
        tensor_before.push_back(0);
    }
    owner.push_back(c);
    tick(c);
    return c;
}
void Shadow::give_back(const std::vector<u32> &owner) { spare.insert(spare.end(), owner.begin(), owner.end()); }
u32 Shadow::tick(u32 c) {
    if (++now[c] >= TIMES) throw EmuError("races", "a launch too long for race checks: shorten it, or races=False");
    return now[c];
}
u64 Shadow::access(u32 c, u32 t, const Ins &I, bool write) const {
    u64 i = (u64)(&I - M.P->ins.data()) & (INSTRUCTIONS - 1);
    return (u64)c | (u64)t << 13 | i << 37 | (write ? WRITE : 0);
}

void Shadow::report(const std::string &kind, const Ins &I, const std::string &key, const std::string &text) {
    if (said.insert(kind + " " + key).second) M.note(kind, I, text);
}
static std::string place(const Warp &w) { return fmt("warp %d of CTA %u,%u,%u", w.id, w.cta->id[0], w.cta->id[1], w.cta->id[2]); }

// Is the earlier access `x` in order with the one about to be made? Reports it if not.
bool Shadow::ordered(u64 x, Look &L) {
    u32 c = comp(x);
    if (c == L.own) return true;
    bool raced = L.view->seen.at(c) < time(x);
    // A read needs the fence by the letter (proxy-preserved base causality order); kernels known to be right leave it out.
    bool crosses = L.async && sources[c].generic && (x & WRITE || M.hb->strict);
    const Clock &fenced = L.cta ? L.view->fenced : L.view->fenced_global;
    bool unfenced = !raced && crosses && fenced.at(c) < time(x);
    if (!raced && L.tensor) check_tensor_fence(x, L);
    if (!raced && !unfenced) return true;
    const Ins &other = M.P->ins[ins(x)];
    std::string where =
        L.cta ? fmt("%s 0x%llx of CTA %u,%u,%u", L.space, (unsigned long long)L.at, L.cta->id[0], L.cta->id[1], L.cta->id[2])
              : fmt("%s 0x%llx", L.space, (unsigned long long)L.at);
    std::string verb = L.access & WRITE ? "writes" : "reads", done = x & WRITE ? "wrote" : "read";
    std::string who = L.warp ? place(*L.warp) + " " : "asynchronous work ";
    std::string rest =
        fmt(", which %s %s at line %d: %s", sources[c].name.c_str(), done.c_str(), other.line, op_table()[other.op].name.c_str());
    std::string pair = fmt("%d %d", L.ins->line, other.line);
    if (raced)
        report("race", *L.ins, pair,
               who + verb + " " + where + rest + ", and nothing orders the two (PTX ISA, Memory Consistency Model)");
    else
        report("proxy", *L.ins, pair,
               who + verb + " " + where + " through the asynchronous proxy" + rest +
                   " through the generic one, with no fence.proxy.async between (PTX ISA, Async proxy; Causality order)");
    return false;
}
// Tensor memory that passes from one thread to another needs a fence on both sides of what orders them; tcgen05.commit is one.
void Shadow::check_tensor_fence(u64 x, Look &L) {
    u32 c = comp(x);
    const WarpOrder &w = *L.tensor;
    if (c == w.tmem_store || c == w.tmem_load || c == w.mma) return;
    bool before = tensor_before[c] >= time(x) || sources[c].name.rfind("tcgen05.mma", 0) == 0;
    if (before && w.tensor.at(c) >= time(x)) return;
    report("order", *L.ins, fmt("tensor %d %d", L.ins->line, before),
           fmt("tensor column 0x%llx was last used by %s at line %d, with no tcgen05.fence::%s_thread_sync %s (PTX ISA, tcgen05 "
               "memory "
               "consistency model)",
               (unsigned long long)L.at, sources[c].name.c_str(), M.P->ins[ins(x)].line, before ? "after" : "before",
               before ? "since in this thread" : "behind it"));
}
// What is left of the earlier access `x` once `mine` has been made.
u64 Shadow::settle(u64 x, Look &L, u64 mine) {
    if (!(x & mine & WORDS)) return x;
    bool meets = ((x | mine) & WRITE) && !(x & mine & (ATOMIC | SUBWORD)) && !(L.same && (x & WRITE));
    if (meets && (x & ~WORDS) != L.fine[0] && (x & ~WORDS) != L.fine[1] && ordered(x, L)) {
        L.fine[1] = L.fine[0];
        L.fine[0] = x & ~WORDS;
    }
    if ((mine & WRITE) || (comp(x) == comp(mine) && !(x & WRITE))) x &= ~(mine & WORDS);
    return x & WORDS ? x : 0;
}
void Shadow::touch(Granule &g, Look &L, u64 words) {
    u64 mine = L.access | words << 57;
    u64 *s = g.slot;
    if (s[SLOTS - 1]) {
        slow(g, L, mine);
        return;
    }
    int n = 0;
    for (int i = 0; s[i]; i++) {
        if (s[i] == mine && n == i) return; // the same instruction again: compared before
        u64 x = settle(s[i], L, mine);
        if (n != i) s[i] = 0;
        if (x)
            s[n++] = x;
        else
            s[n] = 0;
    }
    if (L.record) s[n] = mine;
}
void Shadow::slow(Granule &g, Look &L, u64 mine) {
    std::vector<u64> all(g.slot, g.slot + SLOTS), left;
    auto more = overflow.find(&g);
    if (more != overflow.end()) {
        all.insert(all.end(), more->second.begin(), more->second.end());
        overflow.erase(more);
    }
    for (u64 x : all) {
        if (x == mine) continue;
        u64 y = settle(x, L, mine);
        // A read before this one that also happened before it: a later write that knows this one knows that one.
        bool covered =
            y && !(y & WRITE) && !(mine & WRITE) && L.record && L.view->seen.at(comp(y)) >= time(y) && !(y & WORDS & ~mine);
        if (y && !covered) left.push_back(y);
    }
    if (L.record) left.push_back(mine);
    for (int i = 0; i < SLOTS; i++) g.slot[i] = (size_t)i < left.size() ? left[(size_t)i] : 0;
    if (left.size() > SLOTS) overflow[&g].assign(left.begin() + SLOTS, left.end());
}
static u64 words_of(u64 lo, u64 hi) { // of the 16-byte granule that holds lo, as far as hi
    u64 first = lo & 15, last = std::min<u64>(hi - (lo & ~15ull), 16);
    return (15ull >> (4 - (last + 3) / 4)) & (15ull << first / 4);
}
void Shadow::bytes(std::vector<Granule> &memory, u32 lo, u32 hi, Look &L) {
    if (M.hb->idle) M.hb->idle->access(comp(L.access), time(L.access));
    for (u32 a = lo; a < hi; a = (a & ~15u) + 16) {
        L.at = a;
        touch(memory[(a - SMEM_BASE) / 16], L, words_of(a, hi));
    }
}
void Shadow::global(u64 lo, u64 hi, Look &L) {
    if (M.hb->idle) M.hb->idle->access(comp(L.access), time(L.access), Idle::GLOBAL);
    u64 number = ~0ull;
    std::vector<Granule> *page = nullptr;
    for (u64 a = lo; a < hi; a = (a & ~15ull) + 16) {
        if (a >> 12 != number) {
            number = a >> 12;
            auto it = pages.find(number);
            if (it == pages.end() && (L.access & WRITE)) it = pages.emplace(number, std::vector<Granule>(256)).first;
            page = it == pages.end() ? nullptr : &it->second;
        }
        if (!page) {
            a |= 4095 & ~15ull; // nothing was written to this page
            continue;
        }
        L.at = a;
        touch((*page)[(a >> 4) & 255], L, words_of(a, hi));
    }
}
