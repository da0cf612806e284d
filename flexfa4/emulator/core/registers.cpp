// Registers that wgmma and tcgen05.ld use asynchronously: who may touch them, and when.
#include "order.h"

namespace {
enum Watch { ORDINARY, WGMMA, TMEM_LOAD };
struct Use {
    s32 row;
    bool write;
};
int rows_of(char token) { return token == 'D' || token == 'S' ? 2 : token == 'Q' ? 4 : 1; }

// The register rows that an instruction's operands name; what its table row says about each operand is in `spec`.
void uses(const std::string &spec, const s32 *o, std::vector<Use> &out) {
    auto letter = [&](char t) {
        for (int r = 0; r < rows_of(t); r++) out.push_back({*o + r * ROW, t == 'd' || t == 'D' || t == 'Q'});
        o++;
    };
    for (size_t i = 0; i < spec.size();) {
        size_t end = spec.find(' ', i);
        std::string t = spec.substr(i, end == std::string::npos ? end : end - i);
        i += t.size() + 1;
        if (t[0] == '{')
            for (size_t k = 1; k + 1 < t.size(); k++) letter(t[k]);
        else if (t[0] == 'T') {
            out.push_back({o[0], false});
            o += 3;
            for (int k = 0; k < t[1] - '0'; k++) letter('s');
        } else if (t == "a") {
            out.push_back({o[0], false});
            if (o[2]) out.push_back({o[0] + ROW, false});
            o += 3;
        } else if (t == "d|p") {
            letter('d');
            o++;
        } else if (t == "P" || t == "pp")
            o += 2;
        else if (t == "p" || t == "i" || t == "L")
            o++;
        else
            letter(t[0]);
    }
}
Watch kind(const std::string &name) {
    return name.rfind("wgmma.mma_async", 0) == 0 ? WGMMA : name.rfind("tcgen05.ld", 0) == 0 ? TMEM_LOAD : ORDINARY;
}
} // namespace

void watch_registers(Program &p) {
    std::unordered_map<s32, u16> number;
    std::vector<std::vector<Use>> all(p.ins.size());
    for (size_t i = 0; i < p.ins.size(); i++) {
        const OpDef &d = op_table()[p.ins[i].op];
        uses(d.spec, p.ins[i].o, all[i]);
        Watch k = kind(d.name);
        if (k == ORDINARY) continue;
        // Of wgmma: accumulators {d..} and a fragment {ssss}; the descriptors are read at issue.
        size_t open = d.spec.find("{s"), keep = d.spec.find('}') - 1 + (k == WGMMA && open != std::string::npos ? 4 : 0);
        all[i].resize(std::min(keep, all[i].size()));
        for (const Use &u : all[i])
            if (number.size() < 0x7fff) number.emplace(u.row, (u16)number.size());
    }
    p.watched = (s32)number.size();
    if (number.empty()) return;
    for (size_t i = 0; i < p.ins.size(); i++) {
        size_t at = p.watch.size();
        p.watch.push_back(0);
        for (const Use &u : all[i]) {
            auto it = number.find(u.row);
            if (it != number.end()) p.watch.push_back((u16)(it->second << 1 | (u16)u.write));
        }
        p.watch[at] = (u16)(p.watch.size() - at - 1);
        if (p.watch[at]) {
            p.ins[i].watch = (s32)at;
            p.ins[i].watch_kind = (u8)kind(op_table()[p.ins[i].op].name);
        } else
            p.watch.pop_back();
    }
}

void Order::wgmma_fence(Warp &w, const Ins &I) {
    WarpOrder &o = *w.order;
    if (idle) {
        std::string since = o.fence_ins ? fmt(" since line %d", o.fence_ins->line) : "";
        idle->mark(I, !o.fence_step, "no register of the wgmma that follow was touched" + since);
        o.fence_before = o.fence_step;
        o.fence_ins = &I;
    }
    o.fence_step = w.steps;
}
// PTX ISA, wgmma.fence: only accumulators of wgmma of one shape need none between two uses. Two that read a fragment conflict
// not.
static bool same_use(const Ins &a, bool summed, const Ins &b, bool sums) {
    if (!summed || !sums) return !summed && !sums;
    auto shape = [](const Ins &I) {
        const std::string &n = op_table()[I.op].name;
        size_t at = n.find(".m64");
        return n.substr(at, n.find('.', at + 1) - at);
    };
    return a.op == b.op || shape(a) == shape(b);
}
// Called before each instruction that names a watched register.
void Order::registers(Warp &w, const Ins &I) {
    WarpOrder &o = *w.order;
    const u16 *x = M.P->watch.data() + I.watch;
    u32 done = o.view.seen.at(o.wgmma);
    if (I.watch_kind == WGMMA && !o.fence_step)
        shadow.report("order", I, "first", "no wgmma.fence before the first wgmma.mma_async (PTX ISA, wgmma.fence)");
    for (int i = 1; i <= x[0]; i++) {
        WarpOrder::Register &r = o.registers[x[i] >> 1];
        bool write = x[i] & 1;
        if (I.watch_kind == WGMMA) {
            if (r.step > o.fence_step)
                shadow.report(
                    "order", I, "fence" + std::to_string(I.line),
                    fmt("uses registers that line %d touched, with no wgmma.fence since (PTX ISA, wgmma.fence)", r.by->line));
            if (idle && r.step > o.fence_before && r.step <= o.fence_step) idle->mark(*o.fence_ins, true, "");
            if (r.flight > done && write != r.summed) // two may read one fragment
                shadow.report("order", I, "wait" + std::to_string(r.user->line),
                              fmt("%s that line %d may still be %s: wgmma.wait_group is needed (PTX ISA, wgmma.mma_async)",
                                  write ? "adds to a fragment" : "reads a fragment", r.user->line, write ? "reading" : "using"));
            if (r.wgmma > o.fence_step && !same_use(*r.user, r.summed, I, write))
                shadow.report(
                    "order", I, "shape" + std::to_string(I.line),
                    fmt("uses registers that the wgmma of line %d used otherwise or in another shape, with no wgmma.fence "
                        "since (PTX ISA, wgmma.fence)",
                        r.user->line));
            r.flight = o.wgmma_time + 1;
            r.user = &I;
            r.wgmma = w.steps;
            r.summed = write;
            continue;
        }
        if (r.flight > done)
            shadow.report(
                "order", I, "wait" + std::to_string(r.user->line),
                fmt("%s a register that line %d may still be using: wgmma.wait_group is needed (PTX ISA, wgmma.mma_async)",
                    write ? "writes" : "reads", r.user->line));
        if (strict && r.loading && I.watch_kind == ORDINARY)
            shadow.report("order", I, "load" + std::to_string(r.user->line),
                          fmt("%s a register that line %d loads, with no tcgen05.wait::ld since (PTX ISA, tcgen05.wait)",
                              write ? "writes" : "reads", r.user->line));
        if (I.watch_kind == TMEM_LOAD) {
            r.loading = 1;
            r.user = &I;
        }
        r.step = w.steps;
        r.by = &I;
    }
}
