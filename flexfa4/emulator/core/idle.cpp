#include "idle.h"
#include "order.h"
#include <algorithm>

Idle::Idle(Machine &m) : M(m), state(m.P->ins.size(), UNSEEN), why(m.P->ins.size()) {}

void Idle::access(u32 c, u32 t, Space space) {
    auto &of = times[space];
    if (c >= of.size()) of.resize(c + 16);
    if (of[c].empty() || of[c].back() < t) of[c].push_back(t);
}
bool Idle::news(u32 c, u32 from, u32 known, u8 spaces) const {
    if (from <= known) return false;
    for (u8 space : {ON_CHIP, GLOBAL}) {
        auto &of = times[space];
        if (!(space & spaces) || c >= of.size()) continue;
        auto next = std::upper_bound(of[c].begin(), of[c].end(), known);
        if (next != of[c].end() && *next <= from) return true;
    }
    return false;
}
bool Idle::news(const Clock &from, const Clock &known, u8 spaces) const {
    for (u32 c = 1; c < from.v.size(); c++)
        if (news(c, from.v[c], known.at(c), spaces)) return true;
    return false;
}
bool Idle::news(const View &from, const View &known) const {
    return news(from.seen, known.seen) || news(from.fenced, known.fenced, ON_CHIP) ||
           news(from.fenced_global, known.fenced_global, GLOBAL);
}
void Idle::mark(const Ins &I, bool adds, const std::string &reason) {
    size_t i = (size_t)(&I - M.P->ins.data());
    if (adds)
        state[i] = ADDS;
    else if (state[i] != ADDS) {
        // One that names a line says more, and a fresh mbarrier says nothing of the later turns of a loop.
        bool more = reason.rfind("line", 0) == 0 || why[i].rfind("nobody", 0) == 0;
        if (state[i] != IDLE || more) why[i] = reason;
        state[i] = IDLE;
    }
}
void Idle::report() {
    std::vector<std::string> others = std::move(M.findings); // these come first, whatever the limit
    M.findings.clear();
    for (size_t i = 0; i < state.size(); i++)
        if (state[i] == IDLE) M.note("idle", M.P->ins[i], why[i]);
    M.findings.insert(M.findings.end(), others.begin(), others.end());
}
