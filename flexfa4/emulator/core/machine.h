// State of the emulated device: registers, warps, CTAs, clusters, pending asynchronous work, and the handler table.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

constexpr u32 FULL = 0xffffffffu;
constexpr int LANES = 32;
constexpr int ROW = 128;                       // bytes of one 32-bit register of all 32 lanes
constexpr u32 SMEM_BASE = 1024;                // the hardware keeps the first KiB of shared memory for itself
constexpr u64 SHARED_WINDOW = 0x7f00ull << 48; // generic addresses of shared memory; never a host pointer
constexpr int TMEM_COLS = 512, TMEM_LANES = 128;

struct Warp;
struct Cta;
struct Cluster;
struct Machine;
struct Ins;
struct Order;
struct Trace;
struct Timed;
struct AsyncOrder;
struct WarpOrder;
struct CtaOrder;
struct ClusterOrder;
enum Result : int { NEXT, JUMP, BLOCKED, DIVERGED }; // DIVERGED: waits for the other lanes of the warp
using Handler = Result (*)(Warp &, const Ins &);

struct Ins {
    Handler fn = nullptr;
    const s32 *o = nullptr; // encoded operands, see `operands` in decode.py
    s32 pred = -1;          // byte offset of the guard predicate, -1: none
    u8 neg = 0;
    u8 aligned = 0; // needs all live lanes of the warp
    u16 op = 0;
    s32 line = 0; // line of the PTX text
    s32 aux = 0;  // a number the table row gives its handler
    u8 sem = 0;   // memory semantics, see order.h
    u8 watch_kind = 0;
    s32 watch = -1; // registers that race checks follow, a place in Program::watch; -1: none
};

struct OpDef {
    std::string name, spec;
    Handler fn;
    bool aligned;
    s32 aux;
};
std::vector<OpDef> &op_table();
// Adds one row to the handler table. spec: operand forms, see docs/emulator.md.
void def(const std::string &name, const std::string &spec, Handler fn, bool aligned = false, s32 aux = 0);
void define_alu();
void define_float();
void define_convert();
void define_convert_float();
void define_halves();
void define_integer();
void define_memory();
void define_atomics();
void define_mbarrier();
void define_tma();
void define_wgmma();
void define_tcgen05();
void define_tcgen05_moves();
void define_control();
void define_warp();
void define_matrix();
void define_launch_control();
void define_hints();
void define_remote();

struct Fill {
    s32 off;
    s32 kind;
    s64 value;
    s32 wide;
    s32 pad;
}; // a register filled at warp start
struct Program {
    std::vector<Ins> ins;
    std::vector<s32> pool;
    std::vector<Fill> fills;
    s64 reg_bytes = 0;
    std::vector<u16> watch; // count, then register << 1 | written
    bool dependent = false; // uses griddepcontrol
    s32 watched = 0;        // number of registers that are followed
};

struct EmuError : std::runtime_error { // kind: see errors.py
    std::string kind;
    EmuError(std::string k, const std::string &m) : std::runtime_error(m), kind(std::move(k)) {}
};

struct alignas(64) Row {
    u32 v[LANES];
};

struct Range {
    Cta *cta;
    u32 lo, hi;
}; // bytes [lo, hi) of shared memory
struct TRange {
    Cta *cta;
    u32 lo, hi;
}; // columns [lo, hi) of tensor memory
struct Async {
    std::function<void()> run;
    const Ins *ins = nullptr;
    Cta *cta = nullptr;
    std::vector<Range> reads, writes;
    std::vector<TRange> treads, twrites;
    Cta *bar_cta = nullptr;
    u32 bar = 0;        // the mbarrier it signals (bar_cta null: none)
    bool store = false; // global store: completed last among equals
    bool done = false;
    int queue = -1; // in-order queue, -1: unordered
    u64 work = 0;   // multiply-adds of a matrix instruction
    u32 bytes = 0;  // that one reads from the shared memory of each of its CTAs
    double end = 0; // the clock it is done at, in modelled time
    std::shared_ptr<AsyncOrder> order;
};
using AsyncRef = std::shared_ptr<Async>;

struct MBar {
    s32 expected = 0, pending = 0;
    s64 tx = 0;
    u32 phase = 0;
    bool live = false;
};

struct NamedBar {
    u32 count = 0, expected = 0;
    u64 generation = 0;
    u32 ones = 0, last_ones = 0; // bar.red: lanes that brought a true predicate, so far and in the last generation
};

struct BulkState {
    std::vector<AsyncRef> open;
    std::deque<std::vector<AsyncRef>> groups;
};

struct Group {
    u32 mask;
    s32 pc;
    bool stuck;
};

struct Warp {
    u8 *R = nullptr;
    u32 act = 0, m = 0, live = 0; // lanes of the running group; of this instruction; not exited
    s32 pc = 0;
    int id = 0, uid = 0; // within the CTA, within the machine
    Cta *cta = nullptr;
    Machine *M = nullptr;
    std::vector<Group> parked; // other divergent groups
    bool blocked = false, done = false, timeout = false;
    u64 epoch = 0;
    u64 steps = 0;
    u32 priority = 0;
    bool in_bar = false;
    u32 bar_id = 0;
    u64 bar_gen = 0;
    bool in_cluster_bar = false;
    u64 cluster_gen = 0;
    u32 regs = 0; // registers a thread holds (setmaxnreg)
    struct Poll { // the last read of a flag in global memory, see `spins`
        const Ins *ins = nullptr;
        u64 value = 0, steps = 0, writes = 0;
        bool sleeps = false;
    } poll;
    BulkState bulk[LANES], cpasync[LANES];
    std::vector<AsyncRef> wg_open;
    std::deque<std::vector<AsyncRef>> wg_groups;
    std::vector<AsyncRef> tmem_stores;
    int wg_queue = -1;
    std::shared_ptr<WarpOrder> order; // this and the like below: only under race checks
    s32 ran = 0;                      // the last instruction tried,
    bool masked = false;              // and whether its guard held for no lane
    // In modelled time: when it may issue again, what it loads is there, its arithmetic is done; since when it runs; it has been
    // woken.
    double ready = 0, loaded = 0, done_at = 0;
    u64 runs_since = 0;
    bool woken = false;

    u32 *r(s32 off) const { return reinterpret_cast<u32 *>(R + off); }
    u32 &p(s32 off) const { return *reinterpret_cast<u32 *>(R + off); }
    bool pred(const s32 *o, int lane) const { return ((p(o[0]) >> lane) & 1u) != (u32)o[1]; }
    u32 predmask(const s32 *o) const { return o[1] ? ~p(o[0]) : p(o[0]); }
    u64 r64(s32 off, int lane) const { return r(off)[lane] | (u64)r(off + ROW)[lane] << 32; }
    void w64(s32 off, int lane, u64 v) const {
        r(off)[lane] = (u32)v;
        r(off + ROW)[lane] = (u32)(v >> 32);
    }
    // address operand: base register, displacement, base is 64 bits wide
    u64 addr(const s32 *o, int lane) const { return (o[2] ? r64(o[0], lane) : (u64)r(o[0])[lane]) + (s64)o[1]; }
    void put(s32 off, const Row &t) const {
        u32 *d = r(off);
        if (m == FULL) {
            std::memcpy(d, t.v, ROW);
            return;
        }
        for (int l = 0; l < LANES; l++) d[l] = (m >> l) & 1 ? t.v[l] : d[l];
    }
    void putp(s32 off, u32 bits) const { p(off) = (p(off) & ~m) | (bits & m); }
    int leader() const { return __builtin_ctz(m); }
    bool converged(u32 members) const { return (members & live & ~act) == 0; }
    // Does the warp read again, in a tight loop, a flag of `n` registers that nobody can have changed since? Then it need not
    // run.
    bool spins(const Ins &I, const u32 *rows, int n);
};

struct Cta {
    Machine *M;
    Cluster *cluster;
    u32 rank = 0;
    u32 id[3] = {0, 0, 0};
    std::vector<u8> smem;
    std::vector<s32> bar_index;
    std::vector<MBar> bars;
    std::vector<u32> tmem; // [column][lane]
    std::vector<u8> tmem_used;
    bool tmem_locked = false;
    s32 pair_columns = 0; // allocation by a pair: columns asked for and waiting; ~address once the peer chose; 0 none
    NamedBar named[16];
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<u8> regs;
    u32 reg_pool = 0;
    int mma_queue = -1, exited = 0;
    std::vector<Async *> pending; // asynchronous work that touches this CTA
    std::vector<u8> dirty;        // 16-byte granule written by the generic proxy, not yet fenced
    std::shared_ptr<CtaOrder> order;
    MBar &bar(u32 addr, const Ins &I);
    u8 *at(u32 off, u32 n, const char *what, const Ins &I);
};

struct Cluster {
    std::vector<std::unique_ptr<Cta>> ctas;
    u32 dim[3];
    u32 bar_count = 0;
    u64 bar_gen = 0;
    int exited = 0;
    u32 threads = 0;
    u32 local_slot = 0; // its part of Machine::local
    std::shared_ptr<ClusterOrder> order;
};

struct Config { // mirrored in native.py
    u32 grid[3], block[3], cluster[3];
    u32 smem_dynamic, smem_static, sms, completion, checks, local_bytes, races, trace, pad; // races: see native.py
    u64 seed, max_steps;
    u64 params, param_bytes, ranges, nranges; // ranges: pairs of host addresses the kernel may touch; 0: unchecked
    u64 costs, pace;                          // of timed.h, in modelled time; 0: by seed
};
enum Completion { IMMEDIATE, RANDOM, LATE };

// SplitMix64, a small generator that <algorithm> takes too.
struct Random {
    using result_type = u64;
    u64 state = 0;
    void seed(u64 s) { state = s; }
    static constexpr u64 min() { return 0; }
    static constexpr u64 max() { return ~0ull; }
    u64 operator()() {
        u64 z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
};
struct Machine {
    Config cfg;
    Program *P;
    std::vector<std::unique_ptr<Cluster>> resident;
    std::vector<Warp *> order;
    std::vector<std::vector<u8>> spare_regs;
    std::vector<u8> local; // local memory of every thread that can be resident
    std::vector<u32> spare_local;
    u64 local_base(const Cta &c, u32 thread) const;
    void make_local(u32 clusters);
    Random rng;
    u64 epoch = 1, total = 0, progress = 0;
    u64 writes = 1;                     // to global memory, and asynchronous work completed: what can end a poll
    u64 next_cluster = 0, clusters = 0; // the next one to launch (or to cancel, clc.cpp); of the grid
    std::vector<AsyncRef> loose;        // unordered pending work
    std::vector<std::deque<AsyncRef>> queues;
    std::vector<int> spare_queues;
    std::vector<u64> counts; // executions of each instruction
    std::vector<std::string> findings;
    std::vector<std::pair<u64, u64>> ranges;
    std::shared_ptr<Trace> trace; // null: nothing is recorded
    std::shared_ptr<Order> hb;    // null: no race checks
    std::shared_ptr<Timed> timed; // null: in the order of a seed
    const Async *completing = nullptr;

    int new_queue();
    void free_queue(int q);
    AsyncRef issue(AsyncRef a);     // starts asynchronous work; may complete it at once
    void finish(const AsyncRef &a); // completes it (and what its queue holds before it)
    bool complete_one();            // completes one pending piece; false: nothing pending
    void run();
    void run_timed();
    u64 clock() const; // what trace events are dated by: steps, or modelled clocks
    void nobody_runs(u64 &last, u64 &timeouts);
    bool leave(Warp &w);                    // a warp has ended; true: its cluster too
    Result step_many(Warp &w, int quantum); // in modelled time one instruction
    void launch(u64 first);
    void retire(size_t index);
    void note(const std::string &kind, const Ins &I, const std::string &text);
    std::string waiting(Warp &w);
    std::string deadlock_report(const char *title);
    void check_global(u64 a, u64 n, const Ins &I);
    [[noreturn]] void fail(const char *kind, const Ins &I, const std::string &text, const Warp *w = nullptr);
};

std::string fmt(const char *f, ...) __attribute__((format(printf, 1, 2)));

// Shared memory of address `a` (cta rank in bits 31:24) as seen from warp w.
struct Place {
    Cta *cta;
    u32 off;
};
Place shared_place(Warp &w, u32 a, const Ins &I);
// Host address of shared memory for a generic access, after all checks of one.
u8 *shared_bytes(Warp &w, const Ins &I, u32 a, u32 bytes, bool write);
void mbar_arrive(Machine &M, Cta *c, u32 off, u32 n, const Ins &I);
void mbar_tx(Machine &M, Cta *c, u32 off, s64 bytes, bool complete, const Ins &I);
// Reports a generic access that meets asynchronous work in flight.
void check_inflight(Warp &w, Cta *c, u32 lo, u32 hi, bool write, const Ins &I);
void check_async(Machine &M, const Async &a, const Ins &I);
inline u32 swizzle(u32 a, u32 span) { // span: 32, 64 or 128 bytes; 16: none
    if (span == 128) return a ^ (((a >> 7) & 7) << 4);
    if (span == 64) return a ^ (((a >> 7) & 3) << 4);
    if (span == 32) return a ^ (((a >> 7) & 1) << 4);
    return a;
}
