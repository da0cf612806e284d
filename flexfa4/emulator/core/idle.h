// Which synchronisation statements of a launch told nobody anything? Kept only where a launch asks for it (Order::idle).
//
// A wait, a barrier or a fence adds something if it puts at least one access of memory into an order that was not known before;
// an arrival or a commit if some thread waits for the phase that it helps to complete. What never does is idle in this launch.
#pragma once
#include "machine.h"

struct Clock;
struct View;
struct Idle {
    Machine &M;
    enum State : u8 { UNSEEN, IDLE, ADDS };
    std::vector<State> state;            // of each instruction
    std::vector<std::string> why;        // of those that are idle
    std::vector<std::vector<u32>> times; // of each component of the clocks: those that bear accesses, ascending
    explicit Idle(Machine &m);

    void access(u32 component, u32 time);
    // Does `from` hold an access that `known` does not?
    bool news(const Clock &from, const Clock &known) const;
    bool news(const View &from, const View &known) const;
    bool news(u32 component, u32 from, u32 known) const; // an access with known < time <= from
    void mark(const Ins &I, bool adds, const std::string &reason);
    void report(); // one finding of kind "idle" for each idle statement
};
