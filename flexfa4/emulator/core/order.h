// Happens-before between warps and the asynchronous engines they start, kept as vector clocks, and the last accesses of each
// granule of memory that are compared with it. Present only when a launch asks for race checks (Machine::order).
//
// A clock has one component for each source of memory accesses:
//   - a warp: two, for accesses of several lanes and of one lane (an elected lane speaks for the others only after a barrier);
//   - an mbarrier: copies that complete on it; its time is the number of completed phases;
//   - an engine of a warp: tcgen05.mma, .st, .ld, bulk stores (reading, writing), cp.async, and wgmma of its warpgroup; its time
//     is the number of operations, which complete in order;
//   - mbarrier.init of a warp, which fence.mbarrier_init publishes apart from everything else.
#pragma once
#include "idle.h"
#include "machine.h"
#include <unordered_map>
#include <unordered_set>

struct Clock {
    std::vector<u32> v;
    u32 at(u32 c) const { return c < v.size() ? v[c] : 0; }
    void raise(u32 c, u32 t) {
        if (c >= v.size()) v.resize(c + 16, 0);
        if (v[c] < t) v[c] = t;
    }
    void lower(u32 c, u32 t) {
        if (c < v.size() && v[c] > t) v[c] = t;
    }
    void join(const Clock &o) {
        if (o.v.size() > v.size()) v.resize(o.v.size(), 0);
        for (size_t i = 0; i < o.v.size(); i++) v[i] = v[i] > o.v[i] ? v[i] : o.v[i];
    }
};
// What a thread knows: `seen` happened before it; generic writes to shared memory among `fenced`, and those to global memory
// among `fenced_global`, are visible to the asynchronous proxy too.
struct View {
    Clock seen, fenced, fenced_global;
    void join(const View &o) {
        seen.join(o.seen);
        fenced.join(o.fenced);
        fenced_global.join(o.fenced_global);
    }
    void raise(u32 c, u32 t) { // asynchronous work: nothing to fence
        seen.raise(c, t);
        fenced.raise(c, t);
    }
    void clear() {
        for (Clock *c : {&seen, &fenced, &fenced_global}) c->v.clear();
    }
};

// One access of a granule in 64 bits, 0: none. Component 13 bits, time 24, instruction 20, words touched 4, then three flags.
namespace past {
constexpr u64 WORDS = 15ull << 57, WRITE = 1ull << 61, ATOMIC = 1ull << 62, SUBWORD = 1ull << 63;
constexpr u32 COMPS = 1 << 13, TIMES = 1 << 24, INSTRUCTIONS = 1 << 20;
inline u32 comp(u64 x) { return (u32)x & (COMPS - 1); }
inline u32 time(u64 x) { return (u32)(x >> 13) & (TIMES - 1); }
inline u32 ins(u64 x) { return (u32)(x >> 37) & (INSTRUCTIONS - 1); }
} // namespace past
constexpr int SLOTS = 8;
struct alignas(64) Granule { // 16 bytes of shared or global memory, or a column of 32 lanes of tensor memory
    u64 slot[SLOTS] = {};    // filled from the front; what does not fit is in Shadow::overflow
};
struct AsyncOrder { // what asynchronous work knew when it was issued, and the component and time that its completion proves
    View view;
    u32 comp = 0, time = 0;
    u32 read_comp = 0, read_time = 0;  // of a bulk store: its reads alone
    const WarpOrder *issuer = nullptr; // of tcgen05.mma
};
struct Look { // an access about to be made
    const View *view;
    const Ins *ins;
    const Warp *warp; // null: asynchronous work
    const Cta *cta;   // of shared or tensor memory
    const char *space;
    u64 access;         // without words
    u32 own = 0;        // accesses of this component are in order with it
    bool async = false; // through the asynchronous proxy
    bool record = true;
    bool same = false;                 // a write of what is there already
    const WarpOrder *tensor = nullptr; // strict: the warp that accesses tensor memory
    u64 at = 0, fine[2] = {0, 0};      // fine: accesses found in order before
};

// The sources of accesses and the memory of what each did last.
struct Shadow {
    Machine &M;
    explicit Shadow(Machine &m) : M(m) {}
    struct Source {
        std::string name;
        bool generic;
    };
    std::vector<Source> sources{{"", false}};
    std::vector<u32> tensor_before{0}; // of each component, its time at the last tcgen05.fence::before_thread_sync
    std::vector<u32> now{0}, spare;    // time of each component, also of those given back: a new owner goes on from there
    std::unordered_map<const Granule *, std::vector<u64>> overflow;
    std::unordered_map<u64, std::vector<Granule>> pages; // global memory by 4 KiB
    std::unordered_set<std::string> said;

    u32 component(std::vector<u32> &owner, const std::string &name, bool generic);
    void give_back(const std::vector<u32> &owner);
    u32 tick(u32 comp);
    u64 access(u32 comp, u32 time, const Ins &I, bool write) const;
    void touch(Granule &g, Look &L, u64 words);
    void bytes(std::vector<Granule> &memory, u32 lo, u32 hi, Look &L); // [lo, hi) of shared memory
    void global(u64 lo, u64 hi, Look &L);
    void report(const std::string &kind, const Ins &I, const std::string &key, const std::string &text);

  private:
    bool ordered(u64 other, Look &L);
    void check_tensor_fence(u64 other, Look &L);
    u64 settle(u64 other, Look &L, u64 mine);
    void slow(Granule &g, Look &L, u64 mine);
};

struct BarOrder { // beside Cta::bars
    u32 comp = 0, init_comp = 0, init_time = 0;
    s32 init_line = 0;
    u32 off = 0, phases = 0, first = 0; // phases: completed ones; first: at init
    View now, done;                     // arrivals of the current phase; of the last completed one
    struct Arrival {
        u32 comp, time;
        const Ins *ins;
    };
    std::vector<Arrival> remote, engine;          // the last arrival of each other CTA's warp; of each tcgen05 engine
    const Ins *last = nullptr, *waiter = nullptr; // the last instructions that arrived and that waited
    std::vector<const Ins *> by, done_by;         // what arrived in the current phase, in the last completed one (Order::idle)
};
struct Meeting {                    // a barrier of a CTA or of a cluster
    std::vector<const Warp *> here; // warps that arrived, and did not wait, in this generation
    const Ins *last = nullptr;
    std::vector<const Ins *> by, done_by[8]; // who arrived (Order::idle)
    View now, done[8];                       // done by generation: a slow warp may leave after later generations completed
    void complete(u64 generation) {
        done[generation & 7] = now;
        done_by[generation & 7] = std::move(by);
        by.clear();
        now.clear();
        here.clear();
    }
};
struct WarpOrder {
    Clock tensor;                  // seen at the last tcgen05.fence::after_thread_sync
    View view, released, observed; // released: as of the last fence, what relaxed operations publish; observed: by relaxed reads
    u32 many = 0, one = 0, init = 0;                     // components
    u32 synced = 0, loads_synced = 0, stores_synced = 0; // `many`, `tmem_load`, `tmem_store` at the warp's last barrier
    u32 mma = 0, tmem_store = 0, tmem_load = 0, bulk_read = 0, bulk_write = 0, copies = 0, wgmma = 0, wgmma_time = 0;
    const Ins *bulk_ins = nullptr, *init_ins = nullptr; // the last bulk store, the last mbarrier.init
    u32 init_time = 0;
    std::vector<u32> register_times; // `many` at each setmaxnreg
    const Ins *register_ins = nullptr;
    // For Order::idle: what taught something last; the last fences; an init fence that nothing was published after.
    const Ins *learnt = nullptr, *proxy_ins = nullptr, *fence_ins = nullptr, *init_fence = nullptr;
    u64 fence_before = 0;             // of the wgmma.fence before the last
    std::shared_ptr<AsyncOrder> copy; // shared by the lanes of one cp.async
    u64 copy_step = ~0ull;
    u64 fence_step = 0; // of the last wgmma.fence, 0: none yet
    struct Register {
        u64 step = 0; // of the last ordinary access
        const Ins *by = nullptr, *user = nullptr;
        u32 flight = 0;  // time of the wgmma that uses it, 0: none
        u32 loading = 0; // time of the tcgen05.ld that fills it, 0: none
        u64 wgmma = 0;   // step of the last wgmma that used it, as an accumulator?
        bool summed = false;
    };
    std::vector<Register> registers; // watched ones
};
struct CtaOrder {
    std::vector<Granule> smem, tmem; // tmem: [column][quarter of the lanes]
    std::vector<BarOrder> bars;
    Meeting named[16];
    std::vector<std::pair<u32, u32>> wgmma; // of each warpgroup: component, time at start
    View exit;
    std::vector<u32> comps;
};
struct ClusterOrder {
    Meeting meeting;
};

struct Order {
    Machine &M;
    Shadow shadow;
    bool strict; // also the rules that kernels known to be right break, see docs/emulator.md
    std::unique_ptr<Idle> idle;
    Order(Machine &m, bool s) : M(m), shadow(m), strict(s) {}

    void start(Cluster &c);
    void exit(Warp &w);
    void retire(Cluster &c);

    // ---- threads that meet
    void bar_init(Warp &w, Cta *c, u32 off, const Ins &I);
    void arrive(Warp &w, Cta *c, u32 off, const Ins &I);
    void wait(Warp &w, Cta *c, u32 off, const Ins &I);
    void signal(const Async &a, Cta *c, u32 off); // asynchronous work arrives or completes bytes
    void flip(Cta *c, const MBar &b);
    void meet(Warp &w, Meeting &m, bool waits, const Ins &I); // arrives
    void met(Warp &w, const Meeting &m, u64 generation);      // leaves
    void tick(Warp &w);                                       // after publishing
    void warp_barrier(Warp &w, const Ins *I = nullptr);
    void proxy_fence(Warp &w, const Ins &I); // I.aux: the state spaces it covers, bits of Fenced
    void init_fence(Warp &w, const Ins &I);
    void set_registers(Warp &w, const Ins &I); // setmaxnreg
    void fence(Warp &w);
    void publish(Warp &w, const void *variable, const Ins &I); // before an atomic or releasing access
    void observe(Warp &w, const void *variable, const Ins &I); // after an atomic or acquiring one

    // ---- memory
    void shared(Warp &w, Cta *c, u32 off, u32 bytes, bool write, const Ins &I);
    // same: the write leaves the value as it is, which conflicts with no other write.
    void global(Warp &w, u64 address, u64 bytes, bool write, const Ins &I, bool same = false);
    void tmem(Warp &w, u32 lo, u32 hi, bool write, const Ins &I);
    void tmem_alloc(Cta &c, u32 lo, u32 hi);
    void tmem_free(Warp &w, u32 lo, u32 hi, const Ins &I);
    void global_async(const Async &a, u64 address, u64 bytes, bool write, bool atomic);

    // ---- asynchronous work as it is issued, and the waits for it
    void load(Warp &w, Async &a, Cta *to, u32 dst, u32 bytes, bool from_shared, u32 src);
    // One of the places that `a` writes, and the mbarrier that it completes bytes on.
    enum Send { STORE, REDUCE, PROXY };
    void sent(Warp &w, Async &a, Place to, u32 bytes, Place bar, Send how);
    void bulk_store(Warp &w, Async &a, u32 src, u32 bytes);
    void bulk_done(Warp &w, const Async &a, bool reads_only);
    void cp_async(Warp &w, Async &a, Cta *to, u32 dst, u32 bytes);
    void cp_arrive(Warp &w, Async &a);
    void engine_done(Warp &w, const Async &a) { w.order->view.raise(a.order->comp, a.order->time); }
    void mma(Warp &w, Async &a);
    Look operand(const Async &a, Cta *c);
    void accumulator(const Async &a, Cta *c, u32 lo, u32 hi, bool write);
    void commit(Warp &w, Async &a);
    void wgmma(Warp &w, Async &a);
    void tmem_stored(Warp &w);
    void tmem_loaded(Warp &w);
    void tensor_fence(Warp &w, bool after);
    void grid_wait(Warp &w); // griddepcontrol.wait

    // ---- registers of wgmma and tcgen05.ld
    void registers(Warp &w, const Ins &I);
    void wgmma_fence(Warp &w, const Ins &I);

  private:
    void start(Cta &c);
    void snapshot(Warp &w, Async &a);
    void release(Warp &w, View &into, const Ins &I);
    void acquire(WarpOrder &o, const View &from);
    void one_lane(Warp &w, Clock &c, u32 before = 0);
    void used(const View &v, Cta *c, u32 off, bool async, const Ins &I);
    void check_exit(Cta &c);
    void check_inits(const WarpOrder &o, const Ins &I);
    void check_pairs(Cta &c);
    void check_registers(Cta &c);
    void learn(Warp &w, const Ins &I, const View &from, const std::vector<const Ins *> &by, bool awaited);
    void published(WarpOrder &o);
    BarOrder &bar(Cta *c, u32 off) { return c->order->bars[(size_t)c->bar_index[off / 8]]; }
    u32 engine(Warp &w, u32 &comp, const char *what);
    Look look(Warp &w, Cta *c, const char *space, bool write, const Ins &I);
    std::unordered_map<const void *, View> variables;
    void check_grid(const View &v, const Ins &I);
    std::vector<u32> own;
    u32 grid = 0; // component of the grids that this one depends on
};

enum Fenced { FENCES_SHARED = 1, FENCES_GLOBAL = 2 };
enum Semantics : u8 { SEM_ACQUIRE = 1, SEM_RELEASE = 2, SEM_RELAXED = 4, SEM_ATOMIC = 8 };
// The memory semantics that an opcode names.
u8 memory_semantics(const std::string &opcode);
// Finds the registers that wgmma and tcgen05.ld use asynchronously, and the instructions that touch them.
void watch_registers(Program &p);
