// What tcgen05.cpp and tcgen05_move.cpp share.
#pragma once
#include "mma.h"

inline u32 column(u32 taddr) { return taddr & 0xffff; }
// The address of an .aligned instruction, the same in all lanes.
u32 taddr_of(Warp &w, const Ins &I, const s32 *a);
// Checks of an access to columns [lo, hi) by this warp: allocated, not in flight, and race checks.
void touch_columns(Warp &w, const Ins &I, u32 lo, u32 hi, bool write);
void columns_used(Cta *c, u32 lo, u32 hi, const Ins &I, const Warp *w);
Operand smem_operand(Warp &w, const Ins &I, u64 descriptor, bool mn_major, Elem e);
// Tells race checks that `a`, in the queue of tcgen05.mma, writes columns and reads rows of an operand.
void watch_copy(Warp &w, Async &a, Cta *c, u32 lo, u32 hi);
