// What loads, stores and atomics share: the host bytes of an access, after all checks of one.
#pragma once
#include "lanes.h"

enum Space { GLOBAL, SHARED, GENERIC, PARAM };
// memory.cpp holds the instances.
template <int SPACE, bool WRITE> u8 *locate(Warp &w, const Ins &I, u64 address, u32 bytes);
// Is an access of this space at `address` one of global memory?
inline bool in_global(int space, u64 address) {
    return space == GLOBAL || (space == GENERIC && (address & SHARED_WINDOW) != SHARED_WINDOW);
}
// `count` operands of one letter, as a vector where `vec`.
inline std::string regs(const char *one, int count, bool vec) {
    std::string s;
    for (int i = 0; i < count; i++) s += one;
    return vec ? "{" + s + "}" : s;
}
