// Modelled time: discrete events by warp, from costs of instructions and rates of units that the caller gives as data.
// A launch with such costs runs in the order of the modelled clocks instead of a seed's (Machine::run_timed).
#pragma once
#include "trace.h"
#include <queue>

constexpr int UNITS = 8, QUARTERS = 4; // units of a quarter of an SM; unit 0: none. Warp w belongs to quarter w % 4.

struct Cost {      // of one instruction, in clocks; mirrored in clocks.py
    float issue;   // slots of the quarter's scheduler
    float busy;    // that it takes its unit
    float after;   // until its warp may issue again, beside `issue`
    float latency; // of a load until the next instruction that is no load; of asynchronous work beside the units it takes
    u16 unit;
    u8 kind; // of Kind
    u8 copy; // its bytes go through the copy engine
};
// Arithmetic of a warp may queue at its unit, as the compiler would interleave it with other arithmetic. A STORE queues behind
// what the warp has queued before; a RESULT waits for that: it announces it. After a LOAD a warp goes on with other loads only.
enum Kind : u8 { ARITHMETIC, RESULT, LOAD, STORE };
struct Pace {        // of what an SM has once; mirrored in clocks.py
    double tensor;   // multiply-adds a clock
    double shared;   // bytes a clock, operands of products
    double copy;     // bytes a clock
    double wake;     // clocks from an event until a warp that slept for it issues
    double ahead;    // clocks of work a unit may have queued when a warp adds to it
    u64 most_issues; // issues recorded, later ones are only counted
};
struct Sm { // when each is free again
    double slot[QUARTERS] = {}, unit[QUARTERS][UNITS] = {}, tensor = 0, shared = 0, copy = 0;
};
struct Timed {
    const Cost *cost;
    Pace pace;
    double now = 0, until = 0; // until: work that the running instruction has waited for
    const Warp *running = nullptr;
    std::vector<TraceIssue> issues;

    Timed(const Cost *c, const Pace &p) : cost(c), pace(p) {}
    void start(Cta &c);                                // a CTA begins on an SM of its own
    double ready(const Warp &w, const Cost &c) const;  // when its next instruction can issue
    double served(const Warp &w, const Cost &c) const; // when its unit has done it, issued now
    void issue(Machine &M, Warp &w);                   // runs one instruction at `now`, or puts the warp to sleep
    void begun(Machine &M, Async &a);                  // asynchronous work is issued: when will it be done?
    bool next(Machine &M);                             // the next event; false: there is none
    void add(const AsyncRef &a);                       // it completes at its end
    void wake(Machine &M);                             // warps for which something may have changed
    void again(Machine &M);                            // all warps

  private:
    struct Event {
        double clock;
        u64 turn; // the warp that issued longest ago first
        Warp *warp;
        AsyncRef work;
        bool operator<(const Event &o) const { return clock != o.clock ? clock > o.clock : turn > o.turn; }
    };
    std::priority_queue<Event> events;
    std::unordered_map<const Cta *, Sm> sms;
    std::unordered_map<int, double> queue_end; // of work that completes in order
    u64 turns = 0, seen_epoch = 0, seen_writes = 0;
};
