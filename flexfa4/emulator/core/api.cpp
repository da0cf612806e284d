// The C interface that native.py loads.
#include "order.h"
#include "timed.h"
#include "trace.h"
#include <mutex>

static void load_table() {
    static std::once_flag once;
    std::call_once(once, [] {
        define_alu();
        define_float();
        define_convert();
        define_convert_float();
        define_halves();
        define_integer();
        define_memory();
        define_atomics();
        define_mbarrier();
        define_tma();
        define_wgmma();
        define_tcgen05();
        define_control();
        define_warp();
        define_matrix();
        define_launch_control();
        define_hints();
        define_remote();
    });
}
struct RawIns {
    s32 op, pred, neg, at, count, line;
}; // mirrored in native.py

extern "C" {
// Every row of the handler table as "name\tspec\n".
const char *emu_table() {
    load_table();
    static std::string text;
    if (text.empty())
        for (auto &d : op_table()) text += d.name + "\t" + d.spec + "\n";
    return text.c_str();
}
void *emu_program(const RawIns *ins, s64 n, const s32 *pool, s64 pool_n, const Fill *fills, s64 nfills, s64 reg_bytes) {
    load_table();
    auto *p = new Program;
    p->pool.assign(pool, pool + pool_n);
    p->fills.assign(fills, fills + nfills);
    p->reg_bytes = reg_bytes;
    p->ins.resize((size_t)n);
    for (s64 i = 0; i < n; i++) {
        const OpDef &d = op_table()[(size_t)ins[i].op];
        Ins &x = p->ins[(size_t)i];
        x.fn = d.fn;
        x.aligned = d.aligned;
        x.aux = d.aux;
        x.sem = memory_semantics(d.name);
        p->dependent = p->dependent || d.name.rfind("griddepcontrol", 0) == 0;
        x.op = (u16)ins[i].op;
        x.pred = ins[i].pred;
        x.neg = (u8)ins[i].neg;
        x.line = ins[i].line;
        x.o = p->pool.data() + ins[i].at;
    }
    watch_registers(*p);
    return p;
}
void emu_program_free(void *p) { delete static_cast<Program *>(p); }

struct Report {
    char *text;
    u64 text_n;
    u64 *counts;
    u64 total;
    u64 findings_n;
    char *findings;
    void *trace; // a Trace, or null; the caller frees it
};
// 0: ran to the end. 1: stopped; text holds "kind\tmessage". counts: one per instruction.
int emu_run(void *program, const Config *cfg, Report *out) {
    Machine M;
    M.cfg = *cfg;
    M.P = static_cast<Program *>(program);
    const u64 *r = reinterpret_cast<const u64 *>(cfg->ranges);
    for (u64 i = 0; i < cfg->nranges; i++) M.ranges.push_back({r[2 * i], r[2 * i + 1]});
    if (cfg->races) M.hb = std::make_shared<Order>(M, cfg->races >= 2);
    if (cfg->races == 3) M.hb->idle = std::make_unique<Idle>(M);
    if (cfg->trace) M.trace = std::make_shared<Trace>();
    if (cfg->costs)
        M.timed = std::make_shared<Timed>(reinterpret_cast<const Cost *>(cfg->costs), *reinterpret_cast<const Pace *>(cfg->pace));
    int rc = 0;
    std::string text;
    try {
        M.run();
        if (M.hb && M.hb->idle) M.hb->idle->report();
    } catch (const EmuError &e) {
        rc = 1;
        text = e.kind + "\t" + e.what();
    }
    std::string all;
    for (auto &f : M.findings) all += f + "\n";
    snprintf(out->text, out->text_n, "%s", text.c_str());
    snprintf(out->findings, out->findings_n, "%s", all.c_str());
    if (M.trace) {
        for (size_t i = 0; i < M.trace->counts.size(); i++) M.counts[i % M.counts.size()] += M.trace->counts[i];
        if (M.timed) M.trace->issues = std::move(M.timed->issues);
        out->trace = new Trace(*M.trace);
    }
    if (!M.counts.empty()) std::memcpy(out->counts, M.counts.data(), M.counts.size() * 8);
    out->total = M.total;
    return rc;
}
// events, ranges, warps, instructions, events dropped, issues
void emu_trace_sizes(const Trace *t, u64 *out) {
    u64 n[6] = {t->events.size(), t->ranges.size(), t->warps, t->instructions, t->dropped, t->issues.size()};
    std::memcpy(out, n, sizeof n);
}
void emu_trace_copy(const Trace *t, TraceEvent *events, TraceRange *ranges, u64 *counts, TraceIssue *issues) {
    std::memcpy(events, t->events.data(), t->events.size() * sizeof(TraceEvent));
    std::memcpy(ranges, t->ranges.data(), t->ranges.size() * sizeof(TraceRange));
    std::memcpy(counts, t->counts.data(), t->counts.size() * 8);
    std::memcpy(issues, t->issues.data(), t->issues.size() * sizeof(TraceIssue));
}
void emu_trace_free(Trace *t) { delete t; }
}
