// Loads, stores, matrix loads/stores of shared memory, and non-bulk asynchronous copies.
#include "memory.h"
#include "order.h"
#include <algorithm>

u8 *Cta::at(u32 off, u32 n, const char *what, const Ins &I) {
    u32 rel = off - SMEM_BASE;
    if (off < SMEM_BASE || rel + n > smem.size())
        M->fail("bounds", I,
                fmt("%s of %u bytes at shared address 0x%x; the CTA has [0x%x, 0x%zx)", what, n, off, SMEM_BASE,
                    SMEM_BASE + smem.size()));
    return smem.data() + rel;
}
Place shared_place(Warp &w, u32 a, const Ins &I) {
    u32 rank = a >> 24;
    if (rank >= w.cta->cluster->ctas.size())
        w.M->fail("address", I, fmt("shared address 0x%x names CTA %u of a cluster of %zu", a, rank, w.cta->cluster->ctas.size()),
                  &w);
    return {w.cta->cluster->ctas[rank].get(), a & 0xffffff};
}

void check_inflight(Warp &w, Cta *c, u32 lo, u32 hi, bool write, const Ins &I) {
    for (Async *a : c->pending) {
        for (const Range &r : a->writes)
            if (r.cta == c && lo < r.hi && r.lo < hi)
                w.M->fail("race", I,
                          fmt("%s shared bytes [0x%x, 0x%x) while an asynchronous write of [0x%x, 0x%x) by line %d may still be "
                              "in flight",
                              write ? "writes" : "reads", lo, hi, r.lo, r.hi, a->ins->line),
                          &w);
        if (!write) continue;
        for (const Range &r : a->reads)
            if (r.cta == c && lo < r.hi && r.lo < hi)
                w.M->fail("race", I,
                          fmt("overwrites shared bytes [0x%x, 0x%x) that line %d may still be reading asynchronously", lo, hi,
                              a->ins->line),
                          &w);
    }
}

template <int SPACE, bool WRITE> u8 *locate(Warp &w, const Ins &I, u64 a, u32 bytes) {
    if (a & (bytes - 1))
        w.M->fail("alignment", I, fmt("address 0x%llx is not aligned to %u bytes", (unsigned long long)a, bytes), &w);
    bool shared = SPACE == SHARED || (SPACE == GENERIC && (a & SHARED_WINDOW) == SHARED_WINDOW);
    if (shared) {
        Place p = shared_place(w, (u32)a, I);
        if (!p.cta->pending.empty()) check_inflight(w, p.cta, p.off, p.off + bytes, WRITE, I);
        u8 *r = p.cta->at(p.off, bytes, WRITE ? "store" : "load", I);
        if (w.M->hb) w.M->hb->shared(w, p.cta, p.off, bytes, WRITE, I);
        if (WRITE && w.M->cfg.checks) {
            u32 g = (p.off - SMEM_BASE) / 16, e = (p.off - SMEM_BASE + bytes - 1) / 16;
            for (; g <= e; g++) p.cta->dirty[g] = (u8)(w.uid % 255 + 1);
        }
        return r;
    }
    if (!w.M->ranges.empty()) w.M->check_global(a, bytes, I);
    if (!WRITE && SPACE != PARAM && w.M->hb) w.M->hb->global(w, a, bytes, false, I);
    return reinterpret_cast<u8 *>(a);
}
template u8 *locate<GLOBAL, true>(Warp &, const Ins &, u64, u32);
template u8 *locate<SHARED, true>(Warp &, const Ins &, u64, u32);
template u8 *locate<GENERIC, true>(Warp &, const Ins &, u64, u32);

u8 *shared_bytes(Warp &w, const Ins &I, u32 a, u32 bytes, bool write) {
    return write ? locate<SHARED, true>(w, I, a, bytes) : locate<SHARED, false>(w, I, a, bytes);
}

namespace {
// N registers of SIZE bytes; SIGN extends what is narrower than a register.
template <int SPACE, int SIZE, int N, bool SIGN> Result load(Warp &w, const Ins &I) {
    constexpr int words = SIZE > 4 ? SIZE / 4 : 1;
    const s32 *a = I.o + N;
    Row t[N * words];
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        const u8 *p = locate<SPACE, false>(w, I, w.addr(a, l), SIZE * N);
        if (I.sem && w.M->hb) w.M->hb->observe(w, p, I);
        for (int i = 0; i < N; i++, p += SIZE) {
            if constexpr (SIZE == 1)
                t[i].v[l] = SIGN ? (u32)(s32)(s8)*p : *p;
            else if constexpr (SIZE == 2) {
                u16 x;
                std::memcpy(&x, p, 2);
                t[i].v[l] = SIGN ? (u32)(s32)(s16)x : x;
            } else
                for (int k = 0; k < words; k++) std::memcpy(&t[i * words + k].v[l], p + 4 * k, 4);
        }
    }
    if constexpr (SPACE == GLOBAL || SPACE == GENERIC)
        if (I.sem && w.spins(I, t[0].v, N * words)) return BLOCKED;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < words; k++) w.put(I.o[i] + k * ROW, t[i * words + k]);
    return NEXT;
}
// 64-bit registers for at most 32 bits (PTX ISA, "Operand Size Exceeding Instruction-Type Size": sign-extended for signed types,
// zero-extended for the others).
template <Handler NARROW, int N, bool SIGN> Result widened(Warp &w, const Ins &I) {
    Result r = NARROW(w, I);
    if (r != NEXT) return r;
    for (int i = 0; i < N; i++) {
        Row high;
        for (int l = 0; l < LANES; l++) high.v[l] = SIGN && (s32)w.r(I.o[i])[l] < 0 ? ~0u : 0;
        w.put(I.o[i] + ROW, high);
    }
    return NEXT;
}
template <int SPACE, int SIZE, int N> Result store(Warp &w, const Ins &I) {
    constexpr int words = SIZE > 4 ? SIZE / 4 : 1;
    const s32 *v = I.o + 3;
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        u8 *p = locate<SPACE, true>(w, I, w.addr(I.o, l), SIZE * N);
        if (I.sem && w.M->hb) w.M->hb->publish(w, p, I);
        u8 value[SIZE * N];
        for (int i = 0; i < N; i++)
            if constexpr (SIZE < 4)
                std::memcpy(value + i * SIZE, &w.r(v[i])[l], SIZE);
            else
                for (int k = 0; k < words; k++) std::memcpy(value + i * SIZE + 4 * k, &w.r(v[i] + k * ROW)[l], 4);
        if (w.M->hb && in_global(SPACE, w.addr(I.o, l)))
            w.M->hb->global(w, (u64)p, SIZE * N, true, I, !std::memcmp(p, value, SIZE * N));
        std::memcpy(p, value, SIZE * N);
    }
    if (SPACE != SHARED) w.M->writes++;
    return NEXT;
}
template <int SPACE, int SIZE, int N>
void forms(const std::string &ld, const std::string &st, const std::string &type, bool sign) {
    std::string vec = N == 1 ? "" : N == 2 ? ".v2" : N == 4 ? ".v4" : ".v8";
    const char *d = SIZE == 16 ? "Q" : SIZE == 8 ? "D" : "d";
    const char *s = SIZE == 16 ? "Q" : SIZE == 8 ? "S" : "s";
    constexpr Handler zero = load<SPACE, SIZE, N, false>, extend = load<SPACE, SIZE, N, (SIZE < 4)>;
    if (!ld.empty()) def(ld + vec + "." + type, regs(d, N, N > 1) + " a", sign ? extend : zero);
    if constexpr (SIZE <= 4)
        if (!ld.empty() && type[0] != 'f')
            def(ld + vec + "." + type, regs("D", N, N > 1) + " a", sign ? widened<extend, N, true> : widened<zero, N, false>);
    if (!st.empty()) def(st + vec + "." + type, "a " + regs(s, N, N > 1), store<SPACE, SIZE, N>);
}
template <int SPACE, int SIZE> void widths(const std::string &ld, const std::string &st, const char *type, bool sign = false) {
    forms<SPACE, SIZE, 1>(ld, st, type, sign);
    if constexpr (SIZE <= 8) forms<SPACE, SIZE, 2>(ld, st, type, sign);
    if constexpr (SIZE <= 8) forms<SPACE, SIZE, 4>(ld, st, type, sign);
    if constexpr (SIZE == 4) forms<SPACE, SIZE, 8>(ld, st, type, sign);
}
template <int SPACE> void types(const std::string &ld, const std::string &st) {
    widths<SPACE, 1>(ld, st, "b8");
    widths<SPACE, 1>(ld, st, "u8");
    widths<SPACE, 1>(ld, st, "s8", true);
    widths<SPACE, 2>(ld, st, "b16");
    widths<SPACE, 2>(ld, st, "u16");
    widths<SPACE, 2>(ld, st, "s16", true);
    for (const char *t : {"b32", "u32", "f32"}) widths<SPACE, 4>(ld, st, t);
    widths<SPACE, 4>(ld, st, "s32", true);
    for (const char *t : {"b64", "u64", "s64", "f64"}) widths<SPACE, 8>(ld, st, t);
    widths<SPACE, 16>(ld, st, "b128");
}

u8 *matrix_row(Warp &w, const Ins &I, const s32 *a, int lane, bool write) {
    u32 x = (u32)w.addr(a, lane);
    return write ? locate<SHARED, true>(w, I, x, 16) : locate<SHARED, false>(w, I, x, 16);
}
// N 8x8 matrices of 16-bit elements: lane 8i + r holds the address of row r of matrix i; lane l holds elements (l/4,
// 2(l%4)+{0,1}).
template <int N, bool TRANS, bool STORE> Result matrix(Warp &w, const Ins &I) {
    const s32 *a = STORE ? I.o : I.o + N;
    const s32 *reg = STORE ? I.o + 3 : I.o;
    for (int i = 0; i < N; i++) {
        u16 *rows[8];
        for (int r = 0; r < 8; r++) rows[r] = reinterpret_cast<u16 *>(matrix_row(w, I, a, 8 * i + r, STORE));
        u32 *v = w.r(reg[i]);
        for (int l = 0; l < LANES; l++)
            for (int h = 0; h < 2; h++) {
                int y = l / 4, x = 2 * (l % 4) + h;
                u16 &e = TRANS ? rows[x][y] : rows[y][x];
                if (STORE)
                    e = (u16)(v[l] >> (16 * h));
                else
                    v[l] = h ? (v[l] & 0xffff) | (u32)e << 16 : (v[l] & 0xffff0000u) | e;
            }
    }
    return NEXT;
}
template <int N> void matrices(const std::string &x) {
    std::string list = regs("d", N, true), src = regs("s", N, true);
    for (const char *sp : {"shared", "shared::cta"}) {
        std::string s(sp);
        def("ldmatrix.sync.aligned.m8n8." + x + "." + s + ".b16", list + " a", matrix<N, false, false>, true);
        def("ldmatrix.sync.aligned.m8n8." + x + ".trans." + s + ".b16", list + " a", matrix<N, true, false>, true);
        def("stmatrix.sync.aligned.m8n8." + x + "." + s + ".b16", "a " + src, matrix<N, false, true>, true);
        def("stmatrix.sync.aligned.m8n8." + x + ".trans." + s + ".b16", "a " + src, matrix<N, true, true>, true);
    }
}
// cp.async: 4, 8 or 16 bytes a lane, the rest of the destination beyond the source size is zero.
template <bool SIZED> Result cp_async(Warp &w, const Ins &I) {
    u32 n = I.o[6];
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        u64 src = w.addr(I.o + 3, l);
        u32 have = SIZED ? w.r(I.o[7])[l] : n;
        if (have > n) w.M->fail("operand", I, fmt("source size %u exceeds %u", have, n), &w);
        Place p = shared_place(w, (u32)w.addr(I.o, l), I);
        if ((p.off | src) & (n - 1)) w.M->fail("alignment", I, fmt("cp.async of %u bytes needs that alignment", n), &w);
        if (have && !w.M->ranges.empty()) w.M->check_global(src, have, I);
        u8 *dst = p.cta->at(p.off, n, "cp.async", I);
        auto a = std::make_shared<Async>();
        a->ins = &I;
        a->cta = p.cta;
        a->writes.push_back({p.cta, p.off, p.off + n});
        a->run = [=] {
            std::memset(dst, 0, n);
            std::memcpy(dst, reinterpret_cast<u8 *>(src), have);
        };
        check_async(*w.M, *a, I);
        if (w.M->hb) w.M->hb->cp_async(w, *a, p.cta, p.off, n);
        if (w.M->cfg.completion != IMMEDIATE) std::memset(dst, 0xff, n);
        w.cpasync[l].open.push_back(w.M->issue(a));
    }
    return NEXT;
}
Result cp_commit(Warp &w, const Ins &) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            w.cpasync[l].groups.push_back(std::move(w.cpasync[l].open));
            w.cpasync[l].open.clear();
        }
    return NEXT;
}
void copied(Warp &w, const AsyncRef &a) {
    w.M->finish(a);
    if (w.M->hb) w.M->hb->engine_done(w, *a);
}
Result cp_wait(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1)
            while (w.cpasync[l].groups.size() > (size_t)I.o[0]) {
                for (auto &a : w.cpasync[l].groups.front()) copied(w, a);
                w.cpasync[l].groups.pop_front();
            }
    return NEXT;
}
void drain(Warp &w, int l) {
    for (auto &g : w.cpasync[l].groups)
        for (auto &a : g) copied(w, a);
    for (auto &a : w.cpasync[l].open) copied(w, a);
    w.cpasync[l].groups.clear();
    w.cpasync[l].open.clear();
}
Result cp_wait_all(Warp &w, const Ins &) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) drain(w, l);
    return NEXT;
}
// The arrive happens when the thread's earlier copies are done; noinc: it is one of the expected arrivals.
template <bool NOINC> Result cp_arrive(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o, l), I);
            auto a = std::make_shared<Async>();
            a->ins = &I;
            a->cta = p.cta;
            a->bar_cta = p.cta;
            a->bar = p.off;
            std::vector<AsyncRef> before = w.cpasync[l].open;
            for (auto &g : w.cpasync[l].groups) before.insert(before.end(), g.begin(), g.end());
            Machine *M = w.M;
            const Ins *ins = &I;
            if (!NOINC) p.cta->bar(p.off, I).pending++;
            a->run = [=] {
                for (auto &b : before) M->finish(b);
                mbar_arrive(*M, p.cta, p.off, 1, *ins);
            };
            if (M->hb) M->hb->cp_arrive(w, *a);
            M->issue(a);
        }
    return NEXT;
}
Result mapa(Warp &w, const Ins &I) { // d, a, rank
    Row t;
    for (int l = 0; l < LANES; l++) t.v[l] = (w.r(I.o[1])[l] & 0xffffff) | w.r(I.o[2])[l] << 24;
    w.put(I.o[0], t);
    return NEXT;
}
} // namespace

// Local memory is host memory, so that generic addresses of it need no translation.
void Machine::make_local(u32 clusters) {
    if (!cfg.local_bytes) return;
    u64 warps = (cfg.block[0] * cfg.block[1] * cfg.block[2] + 31) / 32;
    u64 bytes = clusters * (u64)cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2] * warps * LANES * cfg.local_bytes;
    local.assign(bytes + 64, 0xff);
    for (u32 i = 0; i < clusters; i++) spare_local.push_back(i);
    u64 base = ((u64)local.data() + 63) & ~63ull;
    if (!ranges.empty())
        ranges.insert(std::upper_bound(ranges.begin(), ranges.end(), std::pair<u64, u64>(base, 0)), {base, base + bytes});
}
u64 Machine::local_base(const Cta &c, u32 thread) const {
    u64 warps = (cfg.block[0] * cfg.block[1] * cfg.block[2] + 31) / 32;
    u64 cta = c.cluster->local_slot * (u64)cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2] + c.rank;
    return (((u64)local.data() + 63) & ~63ull) + (cta * warps * LANES + thread) * cfg.local_bytes;
}
void define_memory() {
    types<GLOBAL>("ld.global", "st.global");
    types<GLOBAL>("ld.volatile.global", "st.volatile.global");
    for (const char *scope : {".cta", ".cluster", ".gpu", ".sys"}) {
        for (const char *order : {".relaxed", ".acquire"}) {
            std::string m = std::string(order) + scope;
            types<GLOBAL>("ld" + m + ".global", "");
            types<GLOBAL>("ld.global" + m, ""); // hand-written code puts the space first, and ptxas takes it
            types<GENERIC>("ld" + m, "");
            for (const char *s : {".shared", ".shared::cta", ".shared::cluster"}) types<SHARED>("ld" + m + s, "");
        }
        for (const char *order : {".relaxed", ".release"}) {
            std::string m = std::string(order) + scope;
            types<GLOBAL>("", "st" + m + ".global");
            types<GLOBAL>("", "st.global" + m);
            types<GENERIC>("", "st" + m);
            for (const char *s : {".shared", ".shared::cta", ".shared::cluster"}) types<SHARED>("", "st" + m + s);
        }
    }
    types<GLOBAL>("ld.global.nc", "");
    types<GLOBAL>("ld.const", "");
    for (const char *s : {".shared", ".shared::cta", ".shared::cluster"}) {
        types<SHARED>(std::string("ld") + s, std::string("st") + s);
        types<SHARED>(std::string("ld.volatile") + s, std::string("st.volatile") + s);
    }
    types<GENERIC>("ld", "st");
    types<GLOBAL>("ld.local", "st.local"); // host addresses, see Machine::make_local
    types<PARAM>("ld.param", "");
    matrices<1>("x1");
    matrices<2>("x2");
    matrices<4>("x4");
    for (const char *n : {"cp.async.ca.shared.global", "cp.async.cg.shared.global", "cp.async.ca.shared::cta.global",
                          "cp.async.cg.shared::cta.global"}) {
        def(n, "a a i", cp_async<false>);
        def(n, "a a i s", cp_async<true>);
    }
    def("cp.async.commit_group", "", cp_commit);
    def("cp.async.wait_group", "i", cp_wait);
    def("cp.async.wait_all", "", cp_wait_all);
    def("cp.async.mbarrier.arrive.noinc.shared.b64", "a", cp_arrive<true>);
    def("cp.async.mbarrier.arrive.noinc.shared::cta.b64", "a", cp_arrive<true>);
    def("cp.async.mbarrier.arrive.shared.b64", "a", cp_arrive<false>);
    def("cp.async.mbarrier.arrive.shared::cta.b64", "a", cp_arrive<false>);
    def("mapa.shared::cluster.u32", "d s s", mapa);
}
