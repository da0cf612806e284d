// Tensor memory and tcgen05 (sm_100a): allocation, ld/st, mma of one CTA or a pair, commit.
#include "lanes.h"
#include "order.h"
#include "tcgen05.h"
#include "tensor_sum.h"

void columns_used(Cta *c, u32 lo, u32 hi, const Ins &I, const Warp *w) {
    if (hi > TMEM_COLS || lo >= hi) c->M->fail("tmem", I, fmt("columns [%u, %u) of %d", lo, hi, TMEM_COLS), w);
    for (u32 i = lo; i < hi; i++)
        if (!c->tmem_used[i]) c->M->fail("tmem", I, fmt("column %u is not allocated", i), w);
}

namespace {
void wait_mma(Warp &w, const Ins &I, Cta *c, u32 lo, u32 hi, bool write) {
    for (Async *a : c->pending) {
        for (const TRange &r : a->twrites)
            if (r.cta == c && lo < r.hi && r.lo < hi)
                w.M->fail("race", I,
                          fmt("%s tensor columns [%u, %u) that line %d may still be writing", write ? "writes" : "reads", lo, hi,
                              a->ins->line),
                          &w);
        if (write)
            for (const TRange &r : a->treads)
                if (r.cta == c && lo < r.hi && r.lo < hi)
                    w.M->fail("race", I,
                              fmt("overwrites tensor columns [%u, %u) that line %d may still be reading", lo, hi, a->ins->line),
                              &w);
    }
}
// With cta_group::2 one warp of each CTA of the pair allocates together: the first waits for the second.
Cta *peer_of(Warp &w) {
    auto &all = w.cta->cluster->ctas;
    u32 r = w.cta->rank ^ 1;
    return r < all.size() ? all[r].get() : nullptr;
}
bool columns_free(const Cta *c, u32 at, u32 n) {
    for (u32 i = at; i < at + n; i++)
        if (!c->tmem_used.empty() && c->tmem_used[i]) return false;
    return true;
}
// [address in shared memory], columns
void take_columns(Cta *c, u32 at, u32 n) {
    if (c->tmem.empty()) {
        c->tmem.assign(TMEM_COLS * TMEM_LANES, 0x7fffffffu);
        c->tmem_used.assign(TMEM_COLS, 0);
    }
    std::memset(c->tmem_used.data() + at, 1, n);
    for (u32 i = at * TMEM_LANES; i < (at + n) * TMEM_LANES; i++) c->tmem[i] = 0x7fffffffu;
    if (c->M->hb) c->M->hb->tmem_alloc(*c, at, at + n);
}
template <int GROUP> Result alloc(Warp &w, const Ins &I) {
    u32 n = w.r(I.o[3])[w.leader()];
    if (n < 32 || n > 512 || (n & (n - 1)))
        w.M->fail("tmem", I, fmt("allocation of %u columns: a power of two in 32..512", n), &w);
    Cta *c = w.cta, *peer = GROUP == 2 ? peer_of(w) : nullptr;
    if (c->tmem_locked) w.M->fail("tmem", I, "allocation after relinquish_alloc_permit", &w);
    if (GROUP == 2 && !peer) w.M->fail("tmem", I, "cta_group::2 in a cluster without pairs", &w);
    u32 at = 0;
    if (c->pair_columns < 0) { // the peer came second and took the columns of both
        at = (u32)~c->pair_columns;
        c->pair_columns = 0;
    } else {
        while (at + n <= TMEM_COLS && !(columns_free(c, at, n) && (!peer || columns_free(peer, at, n)))) at += n;
        if (at + n > TMEM_COLS) return BLOCKED;
        if (peer && peer->pair_columns <= 0) {
            c->pair_columns = (s32)n;
            return BLOCKED;
        }
        if (peer) {
            if (peer->pair_columns != (s32)n)
                w.M->fail("tmem", I, fmt("allocation of %u columns, the peer CTA asks for %d", n, peer->pair_columns), &w);
            peer->pair_columns = ~(s32)at;
            take_columns(peer, at, n);
        }
        take_columns(c, at, n);
    }
    Place p = shared_place(w, (u32)w.addr(I.o, w.leader()), I);
    std::memcpy(p.cta->at(p.off, 4, "tcgen05.alloc", I), &at, 4);
    if (w.M->hb) w.M->hb->shared(w, p.cta, p.off, 4, true, I);
    w.M->progress++;
    w.M->epoch++;
    return NEXT;
}
Result dealloc(Warp &w, const Ins &I) {
    u32 at = column(w.r(I.o[0])[w.leader()]), n = w.r(I.o[1])[w.leader()];
    columns_used(w.cta, at, at + n, I, &w);
    wait_mma(w, I, w.cta, at, at + n, true);
    if (w.M->hb) w.M->hb->tmem_free(w, at, at + n, I);
    std::memset(w.cta->tmem_used.data() + at, 0, n);
    w.M->epoch++;
    return NEXT;
}
Result relinquish(Warp &w, const Ins &) {
    w.cta->tmem_locked = true;
    return NEXT;
}

u32 lane_base(Warp &w, const Ins &I, u32 taddr) {
    u32 lane = taddr >> 16;
    if (lane != 32u * (w.id % 4))
        w.M->fail("tmem", I, fmt("warp %d may touch lanes %d.. only, the address names lane %u", w.id, 32 * (w.id % 4), lane),
                  &w);
    return lane;
}
} // namespace

u32 taddr_of(Warp &w, const Ins &I, const s32 *a) {
    u32 t = (u32)w.addr(a, 0);
    for (int l = 1; l < LANES; l++)
        if ((u32)w.addr(a, l) != t) w.M->fail("tmem", I, "the tensor memory address differs between lanes", &w);
    return t;
}
void touch_columns(Warp &w, const Ins &I, u32 lo, u32 hi, bool write) {
    if (w.cta->tmem.empty()) w.M->fail("tmem", I, "no tensor memory was allocated", &w);
    columns_used(w.cta, lo, hi, I, &w);
    wait_mma(w, I, w.cta, lo, hi, write);
    if (w.M->hb) w.M->hb->tmem(w, lo, hi, write, I);
}

namespace {
template <int N, bool PACK> Result load32(Warp &w, const Ins &I) {
    u32 t = taddr_of(w, I, I.o + N), lane = lane_base(w, I, t), col = column(t);
    constexpr int cols = PACK ? 2 * N : N;
    touch_columns(w, I, col, col + cols, false);
    const u32 *m = w.cta->tmem.data() + col * TMEM_LANES + lane;
    for (int i = 0; i < N; i++) {
        if constexpr (PACK)
            for (int l = 0; l < LANES; l++)
                w.r(I.o[i])[l] = (m[2 * i * TMEM_LANES + l] & 0xffff) | m[(2 * i + 1) * TMEM_LANES + l] << 16;
        else
            std::memcpy(w.R + I.o[i], m + i * TMEM_LANES, ROW);
    }
    return NEXT;
}
// Stores may land any time before tcgen05.wait::st: the columns hold NaN until then.
template <int N, bool UNPACK> Result store32(Warp &w, const Ins &I) {
    u32 t = taddr_of(w, I, I.o), lane = lane_base(w, I, t), col = column(t);
    constexpr int cols = UNPACK ? 2 * N : N;
    touch_columns(w, I, col, col + cols, true);
    Cta *c = w.cta;
    u32 *m = c->tmem.data() + col * TMEM_LANES + lane;
    auto data = std::make_shared<std::vector<u32>>(cols * LANES);
    for (int i = 0; i < N; i++) {
        const u32 *r = w.r(I.o[3 + i]);
        if constexpr (UNPACK)
            for (int l = 0; l < LANES; l++) {
                (*data)[2 * i * LANES + l] = r[l] & 0xffff;
                (*data)[(2 * i + 1) * LANES + l] = r[l] >> 16;
            }
        else
            std::memcpy(data->data() + i * LANES, r, ROW);
    }
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = c;
    a->run = [=] {
        for (int i = 0; i < cols; i++) std::memcpy(m + i * TMEM_LANES, data->data() + i * LANES, ROW);
    };
    if (w.M->cfg.completion != IMMEDIATE)
        for (int i = 0; i < cols; i++)
            for (int l = 0; l < LANES; l++) m[i * TMEM_LANES + l] = 0x7fffffffu;
    w.tmem_stores.push_back(w.M->issue(a));
    return NEXT;
}
Result wait_st(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->tmem_stored(w);
    for (auto &a : w.tmem_stores) w.M->finish(a);
    w.tmem_stores.clear();
    return NEXT;
}
Result wait_ld(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->tmem_loaded(w);
    return NEXT;
}

const u32 SPANS[8] = {16, 0, 128, 0, 64, 0, 32, 0};
} // namespace

Operand smem_operand(Warp &w, const Ins &I, u64 d, bool mn, Elem e) {
    if (d >> 46 != ((d >> 61) << 15 | 1) || !SPANS[d >> 61] || d & (3ull << 14 | 3ull << 30))
        w.M->fail("descriptor", I, fmt("shared memory descriptor 0x%llx: bits that are not modelled", (unsigned long long)d), &w);
    return {w.cta, (u32)(d & 0x3fff) << 4, (u32)((d >> 16) & 0x3fff) << 4, (u32)((d >> 32) & 0x3fff) << 4, SPANS[d >> 61], mn, e};
}

namespace {
struct Mma {
    int m, n, group;
    Elem ea, eb;
    bool a_mn, b_mn, accumulate, a_tmem;
    bool integer, saturate;
    float sign;
    u32 d_col, a_col;
    Operand a, b;
    std::vector<Cta *> ctas;
};
// Adds what a product wrote (it left NaN elsewhere) onto integer accumulators.
void add_integers(const Mma &x, u32 *d, const std::vector<float> &sums) {
    for (size_t i = 0; i < sums.size(); i++) {
        if (sums[i] != sums[i]) continue;
        s64 total = (x.accumulate ? (s64)(s32)d[i] : 0) + (s64)sums[i];
        if (x.saturate) total = total > 2147483647 ? 2147483647 : total < -2147483648ll ? -2147483648ll : total;
        d[i] = (u32)total;
    }
}
void run_mma(const Mma &x, const Ins &I) {
    int rows = x.m / x.group, part = x.n / x.group, k = 0; // rows of A, rows of B in one CTA
    alignas(64) static thread_local float fa[KMAX * 128], fb[KMAX * 256], piece[KMAX * 256];
    static thread_local std::vector<float> sums; // of integers, exact below 2^24
    for (int g = 0; g < x.group; g++) {
        Operand b = x.b;
        b.cta = x.ctas[g];
        k = fetch_operand(b, part, x.group == 1 ? fb : piece, I);
        if (x.group == 2)
            for (int i = 0; i < k; i++) std::memcpy(fb + i * x.n + g * part, piece + i * part, part * 4);
    }
    for (int g = 0; g < x.group; g++) {
        Cta *c = x.ctas[g];
        float *d = reinterpret_cast<float *>(c->tmem.data()) + x.d_col * TMEM_LANES;
        if (x.integer) {
            sums.assign((size_t)x.n * TMEM_LANES, NAN);
            d = sums.data();
        }
        if (x.a_tmem) {
            const u32 *t = c->tmem.data() + x.a_col * TMEM_LANES;
            for (int i = 0; i < 8; i++)
                for (int l = 0; l < 128; l++) {
                    u32 v = t[i * TMEM_LANES + l];
                    fa[2 * i * 128 + l] = x.ea == E_BF16 ? bf2f(v & 0xffff) : h2f(v & 0xffff);
                    fa[(2 * i + 1) * 128 + l] = x.ea == E_BF16 ? bf2f(v >> 16) : h2f(v >> 16);
                }
        } else {
            Operand a = x.a;
            a.cta = c;
            fetch_operand(a, rows, fa, I);
        }
        if (x.sign < 0)
            for (int i = 0; i < k * rows; i++) fa[i] = -fa[i];
        auto part_of = [&](int lane, int row, int m, int column, int n) {
            const Factor a{fa + row, rows, lowest(x.ea)}, b{fb + column, x.n, lowest(x.eb)};
            if (x.integer)
                exact_product(d + lane, TMEM_LANES, a, b, {m, n, k});
            else
                product(WIDE, d + lane, TMEM_LANES, a, b, {m, n, k}, x.accumulate);
        };
        if (rows == 128)
            part_of(0, 0, 128, 0, x.n);
        else if (x.group == 2) { // 64 rows: halves of N on lanes 0-63 and 64-127
            part_of(0, 0, 64, 0, part);
            part_of(64, 0, 64, part, part);
        } else { // 64 rows: rows 16i.. on lanes 32i..
            for (int i = 0; i < 4; i++) part_of(32 * i, 16 * i, 16, 0, x.n);
        }
        if (x.integer) add_integers(x, c->tmem.data() + x.d_col * TMEM_LANES, sums);
    }
}
// Tells race checks what one mma reads and writes, in each of its CTAs.
void watch_mma(Warp &w, Async &a, const Mma &x, u32 d_cols) {
    Order &hb = *w.M->hb;
    hb.mma(w, a);
    for (Cta *c : x.ctas) {
        hb.accumulator(a, c, x.d_col, x.d_col + d_cols, true);
        Operand b = x.b;
        b.cta = c;
        watch_operand(*w.M, a, b, 0, x.n / x.group);
        if (x.a_tmem) {
            hb.accumulator(a, c, x.a_col, x.a_col + 8, false);
            continue;
        }
        Operand p = x.a;
        p.cta = c;
        watch_operand(*w.M, a, p, 0, x.m / x.group);
    }
}
enum Kind { KIND_F16, KIND_TF32, KIND_F8F6F4, KIND_I8 };
// Operand type numbers of an instruction descriptor; E_F16 stands for what is not modelled.
const Elem BYTES[8] = {E_E4M3, E_E5M2, E_F16, E_F16, E_F16, E_F16, E_F16, E_F16};
// [d], A, B, idesc, (disable mask,) enable-input-d
template <int GROUP, int KIND, bool A_TMEM, int MASK> Result mma(Warp &w, const Ins &I) {
    int l = w.leader();
    if (__builtin_popcount(w.m) != 1) w.M->fail("operand", I, "tcgen05.mma is issued by more than one thread of the warp", &w);
    const s32 *o = I.o, *oa = o + 3, *ob = oa + (A_TMEM ? 3 : 1), *oi = ob + 1, *om = oi + 1, *op = om + MASK;
    u32 id = w.r(oi[0])[l];
    Mma x{};
    x.group = GROUP;
    x.m = (int)((id >> 24) & 31) * 16;
    x.n = (int)((id >> 17) & 63) * 8;
    u32 ta = (id >> 7) & 7, tb = (id >> 10) & 7;
    auto bad = [&](const char *what, u32 v) {
        w.M->fail("descriptor", I, fmt("instruction descriptor 0x%08x: %s %u is not modelled", id, what, v), &w);
    };
    if (((id >> 4) & 3) != (KIND == KIND_I8 ? 2 : 1)) bad("accumulator type", (id >> 4) & 3);
    x.integer = KIND == KIND_I8;
    x.saturate = KIND == KIND_I8 && (id & 8);
    if (id & (KIND == KIND_I8 ? 0x7 : 0xf)) bad("sparsity or saturation bits", id & 0xf);
    if (id & (1u << 6 | 1u << 23 | 7u << 29)) bad("reserved bits", id & (1u << 6 | 1u << 23 | 7u << 29));
    if (KIND == KIND_TF32 ? ta != 2 || tb != 2 : ta > 1 || tb > 1) bad("operand type", ta > 1 ? ta : tb);
    auto type = [](u32 t) {
        return KIND == KIND_TF32     ? E_TF32
               : KIND == KIND_F8F6F4 ? BYTES[t]
               : KIND == KIND_I8     ? (t ? E_S8 : E_U8)
                                     : (t ? E_BF16 : E_F16);
    };
    x.ea = type(ta);
    x.eb = type(tb);
    if (KIND == KIND_I8 && ((id >> 13) & 3)) bad("negation of integers", (id >> 13) & 3);
    x.sign = ((id >> 13) & 1) != ((id >> 14) & 1) ? -1.0f : 1.0f;
    bool m_ok = GROUP == 1 ? x.m == 64 || x.m == 128 : x.m == 128 || x.m == 256;
    if (!m_ok) bad("M", x.m);
    int step = x.m == 64 ? 8 : GROUP == 1 ? 16 : 32;
    if (x.n < step || x.n > 256 || x.n % step) bad("N", x.n);
    for (int i = 0; i < MASK; i++)
        if (w.r(om[i])[l]) bad("disable-output-lane mask", w.r(om[i])[l]);
    x.accumulate = w.pred(op, l);
    x.b = smem_operand(w, I, w.r64(ob[0], l), (id >> 16) & 1, x.eb);
    x.a_tmem = A_TMEM;
    x.d_col = column((u32)w.addr(o, l));
    if ((u32)w.addr(o, l) >> 16) bad("lane of the accumulator address", (u32)w.addr(o, l) >> 16);
    u32 d_cols = (u32)(GROUP == 2 && x.m == 128 ? x.n / 2 : x.n);
    auto &all = w.cta->cluster->ctas;
    if (GROUP == 2) {
        if (w.cta->rank & 1 || w.cta->rank + 1 >= all.size())
            w.M->fail("operand", I, "cta_group::2 is issued by the even CTA of a pair", &w);
        x.ctas = {all[w.cta->rank].get(), all[w.cta->rank + 1].get()};
    } else
        x.ctas = {w.cta};
    if (A_TMEM) {
        x.a_col = column((u32)w.addr(oa, l));
        if (KIND != KIND_F16 || x.m / GROUP != 128) bad("M with A in tensor memory", x.m);
    } else
        x.a = smem_operand(w, I, w.r64(oa[0], l), (id >> 15) & 1, x.ea);
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = w.cta;
    for (Cta *c : x.ctas) {
        if (c->tmem.empty()) w.M->fail("tmem", I, "no tensor memory was allocated", &w);
        columns_used(c, x.d_col, x.d_col + d_cols, I, &w);
        a->twrites.push_back({c, x.d_col, x.d_col + d_cols});
        Operand b = x.b;
        b.cta = c;
        a->reads.push_back(operand_range(b, x.n / GROUP));
        if (A_TMEM) {
            columns_used(c, x.a_col, x.a_col + 8, I, &w);
            a->treads.push_back({c, x.a_col, x.a_col + 8});
        } else {
            Operand p = x.a;
            p.cta = c;
            a->reads.push_back(operand_range(p, x.m / GROUP));
        }
    }
    if (w.cta->mma_queue < 0) w.cta->mma_queue = w.M->new_queue();
    a->queue = w.cta->mma_queue;
    a->work = (u64)x.m * (u64)x.n * k_of(x.ea);
    a->bytes = (u32)(x.n + (A_TMEM ? 0 : x.m)) / GROUP * 32; // a K block has 32 bytes a row
    check_async(*w.M, *a, I);
    if (w.M->hb) watch_mma(w, *a, x, d_cols);
    const Ins *ins = &I;
    a->run = [x, ins] { run_mma(x, *ins); };
    w.M->issue(a);
    return NEXT;
}
template <int GROUP, bool MULTI> Result commit(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place p = shared_place(w, (u32)w.addr(I.o, l), I);
            u32 mask = MULTI ? w.r(I.o[3])[l] & 0xffff : 1u << p.cta->rank;
            if (w.cta->mma_queue < 0) w.cta->mma_queue = w.M->new_queue();
            for (u32 r = 0; r < w.cta->cluster->ctas.size(); r++)
                if (mask >> r & 1) {
                    auto a = std::make_shared<Async>();
                    Cta *c = w.cta->cluster->ctas[r].get();
                    u32 off = p.off;
                    a->ins = &I;
                    a->cta = w.cta;
                    a->queue = w.cta->mma_queue;
                    a->bar_cta = c;
                    a->bar = off;
                    Machine *M = w.M;
                    const Ins *ins = &I;
                    a->run = [=] { mbar_arrive(*M, c, off, 1, *ins); };
                    c->bar(off, I);
                    if (M->hb) M->hb->commit(w, *a);
                    M->issue(a);
                }
        }
    return NEXT;
}
template <int N> void moves() {
    std::string x = ".x" + std::to_string(N), d(N, 'd'), s(N, 's');
    std::string ld = "tcgen05.ld.sync.aligned.32x32b" + x, st = "tcgen05.st.sync.aligned.32x32b" + x;
    for (bool vec : {true, false}) {
        if (!vec && N > 1) continue;
        std::string dd = vec ? "{" + d + "}" : d, ss = vec ? "{" + s + "}" : s;
        def(ld + ".b32", dd + " a", load32<N, false>, true);
        def(ld + ".pack::16b.b32", dd + " a", load32<N, true>, true);
        def(st + ".b32", "a " + ss, store32<N, false>, true);
        def(st + ".unpack::16b.b32", "a " + ss, store32<N, true>, true);
    }
    if constexpr (N < 128) moves<2 * N>();
}
template <int GROUP, int KIND> void mmas(const char *kind) {
    constexpr int MASK = GROUP == 1 ? 4 : 8;
    std::string n = "tcgen05.mma.cta_group::" + std::to_string(GROUP) + ".kind::" + kind,
                mask = " {" + std::string(MASK, 's') + "}";
    for (const char *c : {"", ".collector::a::discard", ".collector::a::lastuse", ".collector::a::fill", ".collector::a::use"}) {
        def(n + c, "a S S s P", mma<GROUP, KIND, false, 0>);
        def(n + c, "a S S s" + mask + " P", mma<GROUP, KIND, false, MASK>);
        def(n + c, "a a S s P", mma<GROUP, KIND, true, 0>);
        def(n + c, "a a S s" + mask + " P", mma<GROUP, KIND, true, MASK>);
    }
}
template <int GROUP> void group() {
    std::string g = ".cta_group::" + std::to_string(GROUP);
    for (const char *sp : {".shared::cta", ".shared"})
        def("tcgen05.alloc" + g + ".sync.aligned" + sp + ".b32", "a s", alloc<GROUP>, true);
    def("tcgen05.dealloc" + g + ".sync.aligned.b32", "s s", dealloc, true);
    def("tcgen05.relinquish_alloc_permit" + g + ".sync.aligned", "", relinquish, true);
    mmas<GROUP, KIND_F16>("f16");
    mmas<GROUP, KIND_TF32>("tf32");
    mmas<GROUP, KIND_F8F6F4>("f8f6f4");
    mmas<GROUP, KIND_I8>("i8");
    def("tcgen05.commit" + g + ".mbarrier::arrive::one.shared::cluster.b64", "a", commit<GROUP, false>);
    def("tcgen05.commit" + g + ".mbarrier::arrive::one.b64", "a", commit<GROUP, false>);
    def("tcgen05.commit" + g + ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64", "a s", commit<GROUP, true>);
}
} // namespace

void define_tcgen05() {
    define_tcgen05_moves();
    moves<1>();
    group<1>();
    group<2>();
    def("tcgen05.wait::st.sync.aligned", "", wait_st, true);
    def("tcgen05.wait::ld.sync.aligned", "", wait_ld, true);
}

void watch_copy(Warp &w, Async &a, Cta *c, u32 lo, u32 hi) {
    w.M->hb->mma(w, a);
    w.M->hb->accumulator(a, c, lo, hi, true);
}
