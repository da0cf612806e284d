// What happened when: waits of warps, asynchronous work, counts of each warp, and the memory that asynchronous work used.
// Present only when a launch asks for it (Machine::trace). Time is counted in the machine's steps (warp-instructions).
#pragma once
#include "machine.h"

struct TraceEvent { // mirrored in trace.py
    u64 start, end; // steps; end 0: never
    u64 work;       // multiply-adds
    s32 pc;         // the waiting or issuing instruction
    u32 object;     // a wait: mbarrier address, barrier number; a piece of work: bytes it moves
    u16 cta;        // number of the CTA in order of launch
    u16 warp;
    u16 kind;
    u16 pad;
};
struct TraceIssue { // an instruction in modelled time (timed.h); mirrored too
    u32 clock, pc;
    u16 cta, warp;
    u32 held; // clocks its warp was ready before its slot and unit were free
};
enum TraceKind : u16 { WAIT_MBARRIER, WAIT_BARRIER, WAIT_CLUSTER, WAIT_REGISTERS, WAIT_TMEM, WAIT_OTHER, RUN_WARP, WORK = 16 };
struct TraceRange { // shared bytes or tensor columns that one instruction's asynchronous work reads or writes; mirrored too
    s32 pc;
    u32 lo, hi;
    u32 kind; // 0 shared read, 1 shared written, 2 tensor read, 3 tensor written, 4 mbarrier
};
struct Trace {
    static constexpr size_t LIMIT = 1 << 20; // events kept; later ones are only counted
    u32 warps = 0;
    size_t instructions = 0;
    u64 dropped = 0;
    std::vector<TraceEvent> events;
    std::vector<TraceRange> ranges;
    std::vector<TraceIssue> issues;
    std::vector<u64> counts; // [warp][instruction], all CTAs together

    void begin(const Machine &M);
    u64 *count_of(const Warp &w) { return counts.data() + (size_t)w.id * instructions; }
    void launched(Cta &c);
    void turn(Machine &M, Warp &w, u64 before, u64 steps, bool blocked); // a warp had a turn that began at step `before`
    void issued(Machine &M, const Async &a);
    void completed(Machine &M, const Async &a);
    void retired(const Cta &c);
    u16 number_of(const Cta &c) const { return numbers.at(&c); }
    Warp *current = nullptr;

  private:
    struct Open {
        size_t event;
        u64 steps;
    };
    u16 next_cta = 0;
    std::unordered_map<const Cta *, u16> numbers;
    std::unordered_map<const Warp *, Open> waiting;
    std::unordered_map<const Async *, size_t> flying;
    std::unordered_map<u64, bool> seen; // ranges told once
    size_t add(const TraceEvent &e);
    void range(s32 pc, u32 lo, u32 hi, u32 kind);
};
