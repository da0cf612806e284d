#include "idle.h"
#include "order.h"
#include <algorithm>

Idle::Idle(Machine &m) : M(m), state(m.P->ins.size(), UNSEEN), why(m.P->ins.size()) {}

void Idle::access(u32 c, u32 t) {
    if (c >= times.size()) times.resize(c + 16);
    if (times[c].empty() || times[c].back() < t) times[c].push_back(t);
}
bool Idle::news(u32 c, u32 from, u32 known) const {
    if (from <= known || c >= times.size()) return false;
    auto next = std::upper_bound(times[c].begin(), times[c].end(), known);
    return next != times[c].end() && *next <= from;
}
bool Idle::news(const Clock &from, const Clock &known) const {
    for (u32 c = 1; c < from.v.size(); c++)
        if (news(c, from.v[c], known.at(c))) return true;
    return false;
}
bool Idle::news(const View &from, const View &known) const {
    return news(from.seen, known.seen) || news(from.fenced, known.fenced);
}
void Idle::mark(const Ins &I, bool adds, const std::string &reason) {
    size_t i = (size_t)(&I - M.P->ins.data());
    if (adds)
        state[i] = ADDS;
    else if (state[i] != ADDS) {
        if (state[i] != IDLE || reason.rfind("line", 0) == 0) why[i] = reason; // one that names a line says more
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
