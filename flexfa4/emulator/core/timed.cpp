// See timed.h. Arithmetic latencies are not modelled: the compiler fills them with the warp's other instructions, and the order
// of PTX says nothing of how.
#include "timed.h"
#include "order.h"
#include "trace.h"
#include <algorithm>
#include <set>

void Timed::start(Cta &c) {
    sms[&c] = Sm();
    for (auto &w : c.warps) {
        w->ready = now;
        events.push({now, turns++, w.get(), nullptr});
    }
}
double Timed::ready(const Warp &w, const Cost &c) const {
    const Sm &sm = sms.at(w.cta);
    int q = w.id % QUARTERS;
    if (c.issue == 0) return w.ready;
    double t = std::max(w.ready, sm.slot[q]);
    if (c.kind != LOAD) t = std::max(t, w.loaded);
    if (c.kind == RESULT) t = std::max(t, w.done_at);
    return c.unit ? std::max(t, sm.unit[q][c.unit] - pace.ahead) : t;
}
double Timed::served(const Warp &w, const Cost &c) const {
    double begin = c.kind == STORE ? std::max(now, w.done_at) : now;
    if (c.unit) begin = std::max(begin, sms.at(w.cta).unit[w.id % QUARTERS][c.unit]);
    return begin + c.busy;
}
void Timed::issue(Machine &M, Warp &w) {
    u64 steps = w.steps;
    bool slept = w.blocked;
    w.epoch = M.epoch;
    w.blocked = w.poll.sleeps = false;
    until = 0;
    running = &w;
    if (M.trace) M.trace->current = &w;
    if (M.step_many(w, 1) == BLOCKED) {
        w.blocked = true;
        if (M.trace) M.trace->turn(M, w, slept ? (u64)now : w.runs_since, steps, true);
        return;
    }
    if (slept) {
        w.runs_since = (u64)now;
        if (M.trace) M.trace->turn(M, w, (u64)now, steps, false);
    }
    if (w.done) {
        if (M.trace) M.trace->turn(M, w, w.runs_since, steps, false);
        M.leave(w);
        return;
    }
    const Cost &c = cost[w.ran];
    Sm &sm = sms.at(w.cta);
    int q = w.id % QUARTERS;
    if (issues.size() < pace.most_issues)
        issues.push_back({(u32)now, (u32)w.ran, M.trace ? M.trace->number_of(*w.cta) : (u16)0, (u16)w.id, (u32)(now - w.ready)});
    sm.slot[q] = std::max(sm.slot[q], now) + c.issue;
    w.ready = now + c.issue;
    if (!w.masked) {
        double end = served(w, c);
        if (c.unit) sm.unit[q][c.unit] = end;
        if (c.kind == LOAD) w.loaded = std::max(w.loaded, end + c.latency);
        w.done_at = std::max(w.done_at, end);
        w.ready = std::max(w.ready + c.after, until);
    }
    events.push({w.ready, turns++, &w, nullptr});
}
void Timed::begun(Machine &M, Async &a) {
    const Cost &c = cost[a.ins - M.P->ins.data()];
    std::set<Cta *> owners;
    for (auto &r : a.twrites) owners.insert(r.cta);
    if (owners.empty()) owners.insert(a.cta);
    double end = running ? served(*running, c) : now;
    auto take = [&](double &free, double clocks) {
        free = std::max(free, now) + clocks;
        end = std::max(end, free);
    };
    u64 bytes = 0;
    for (auto *list : {&a.reads, &a.writes})
        for (auto &r : *list) bytes += r.hi - r.lo;
    for (Cta *owner : owners) {
        auto found = sms.find(owner);
        if (found == sms.end()) continue;
        Sm &sm = found->second;
        if (a.work) {
            take(sm.tensor, (double)a.work / (double)owners.size() / pace.tensor);
            take(sm.shared, a.bytes / pace.shared);
        }
        if (c.copy) take(sm.copy, (double)bytes / pace.copy);
    }
    end += c.latency;
    if (a.queue >= 0) {
        double &last = queue_end[a.queue];
        end = last = std::max(last, end);
    }
    a.end = end;
}
void Timed::wake(Machine &M) {
    if (M.epoch == seen_epoch && M.writes == seen_writes) return;
    seen_epoch = M.epoch;
    seen_writes = M.writes;
    for (Warp *w : M.order)
        if (!w->done && w->blocked && !w->woken && (w->epoch != M.epoch || (w->poll.sleeps && w->poll.writes != M.writes))) {
            w->woken = true;
            w->ready = std::max(w->ready, now + pace.wake);
            events.push({w->ready, turns++, w, nullptr});
        }
}
void Timed::again(Machine &M) {
    for (Warp *w : M.order)
        if (!w->done) events.push({std::max(now, w->ready), turns++, w, nullptr});
}
bool Timed::next(Machine &M) {
    while (!events.empty()) {
        Event e = events.top();
        events.pop();
        if (e.work) {
            if (e.work->done) continue;
            now = e.clock;
            M.finish(e.work);
            return true;
        }
        Warp &w = *e.warp;
        double t = ready(w, cost[w.pc]);
        if (t > e.clock) {
            events.push({t, e.turn, &w, nullptr});
            continue;
        }
        now = e.clock;
        w.woken = false;
        issue(M, w);
        return true;
    }
    return false;
}

void Timed::add(const AsyncRef &a) { events.push({a->end, turns++, nullptr, a}); }

u64 Machine::clock() const { return timed ? (u64)timed->now : total; }
void Machine::run_timed() {
    u64 last = 0, timeouts = 0, n = (u64)cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2];
    size_t slots = std::max<u64>(1, cfg.sms / n);
    while (true) {
        while (resident.size() < slots && next_cluster < clusters) launch(next_cluster++);
        if (resident.empty()) break;
        timed->wake(*this);
        if (!timed->next(*this)) {
            nobody_runs(last, timeouts);
            timed->again(*this);
        }
        if (total > cfg.max_steps)
            throw EmuError("steps", deadlock_report(fmt("more than %llu steps", (unsigned long long)cfg.max_steps).c_str()));
    }
    while (complete_one()) {}
}
