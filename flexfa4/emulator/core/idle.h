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
    std::vector<State> state;     // of each instruction
    std::vector<std::string> why; // of those that are idle
    enum Space : u8 { ON_CHIP = 1, GLOBAL = 2 };
    // Of each component of the clocks: the times that bear accesses, ascending; of shared and tensor memory, of global memory.
    std::vector<std::vector<u32>> times[3];
    explicit Idle(Machine &m);

    void access(u32 component, u32 time, Space space = ON_CHIP);
    // Does `from` hold an access, of one of the spaces, that `known` does not?
    bool news(const Clock &from, const Clock &known, u8 spaces = ON_CHIP | GLOBAL) const;
    bool news(const View &from, const View &known) const;
    bool news(u32 component, u32 from, u32 known, u8 spaces = ON_CHIP | GLOBAL) const; // an access with known < time <= from
    void mark(const Ins &I, bool adds, const std::string &reason);
    void report(); // one finding of kind "idle" for each idle statement
};
