// Bulk and tensor copies between global and shared memory, multicast, reductions, bulk groups.
#include "lanes.h"
#include "order.h"
#include <algorithm>
#include <array>

namespace {
struct Tensor { // decoded tensor map (128 bytes, as the host code writes it)
    u64 base;
    int rank, elem, span;
    u32 type;
    u64 stride[5];
    u32 size[5], box[5];
};
const int ELEM_BYTES[16] = {1, 2, 4, 0, 8, 0, 2, 4, 0, 8, 2, 0, 0, 0, 0, 0};

Tensor decode(Warp &w, const Ins &I, u64 addr) {
    if (addr & 63) w.M->fail("descriptor", I, fmt("tensor map at 0x%llx is not 64-byte aligned", (unsigned long long)addr), &w);
    u64 d[8];
    std::memcpy(d, reinterpret_cast<void *>(addr), 64);
    Tensor t{};
    t.base = d[0];
    t.rank = (int)((d[1] >> 4) & 7) + 1;
    t.type = (d[1] >> 7) & 15;
    t.elem = ELEM_BYTES[t.type];
    const int spans[4] = {16, 32, 64, 128};
    t.span = spans[(d[1] >> 13) & 3];
    auto bad = [&](const char *what, u64 v) {
        w.M->fail("descriptor", I, fmt("tensor map: %s 0x%llx is not modelled", what, (unsigned long long)v), &w);
    };
    if ((d[1] & 15) != 2) bad("low bits of word 1", d[1] & 15);
    if (t.rank > 5) bad("rank", t.rank);
    if (!t.elem) bad("element type", t.type);
    if ((d[1] >> 11) & 3) bad("interleave", (d[1] >> 11) & 3);
    if ((d[1] >> 15) & 1) bad("swizzle", (d[1] >> 13) & 7);
    if ((d[1] >> 19) & 3) bad("swizzle atom", (d[1] >> 19) & 3);
    if ((d[6] >> 32) & 0xffffff) bad("element strides", (d[6] >> 32) & 0xffffff);
    const u32 lo[4] = {(u32)(d[1] >> 32), (u32)d[2], (u32)(d[2] >> 32), (u32)d[3]};
    t.stride[0] = t.elem;
    for (int i = 1; i < 5; i++) t.stride[i] = (((u64)((d[3] >> (28 + 4 * i)) & 15) << 32) | lo[i - 1]) << 4;
    const u32 sizes[5] = {(u32)d[4], (u32)(d[4] >> 32), (u32)d[5], (u32)(d[5] >> 32), (u32)d[6]};
    for (int i = 0; i < 5; i++) {
        t.size[i] = sizes[i] + 1;
        t.box[i] = 1;
    }
    t.box[0] = (u32)(d[6] >> 56) + 1;
    for (int i = 1; i < 5; i++) t.box[i] = (u32)((d[7] >> (8 * (i - 1))) & 255) + 1;
    for (int i = t.rank; i < 5; i++) {
        t.box[i] = 1;
        t.size[i] = 1;
        t.stride[i] = 0;
    }
    if (t.span > 16 && t.box[0] * t.elem > (u32)t.span) bad("inner box wider than the swizzle span", t.box[0]);
    if (t.box[0] * t.elem % 16) bad("inner box bytes", t.box[0] * t.elem);
    return t;
}
u32 box_bytes(const Tensor &t) { return t.box[0] * t.box[1] * t.box[2] * t.box[3] * t.box[4] * (u32)t.elem; }

// Calls f(global address, byte offset in the box, bytes inside) for each row of the box; inside 0: outside the tensor.
template <class F> void rows(const Tensor &t, const s32 *c, F f) {
    u32 off = 0, row = t.box[0] * t.elem, i[5] = {0, 0, 0, 0, 0};
    s64 lo = c[0] < 0 ? -(s64)c[0] : 0, hi = std::min<s64>(t.box[0], (s64)t.size[0] - c[0]);
    for (i[4] = 0; i[4] < t.box[4]; i[4]++)
        for (i[3] = 0; i[3] < t.box[3]; i[3]++)
            for (i[2] = 0; i[2] < t.box[2]; i[2]++)
                for (i[1] = 0; i[1] < t.box[1]; i[1]++, off += row) {
                    u64 g = t.base;
                    bool in = hi > lo;
                    for (int k = 1; k < 5; k++) {
                        s64 x = (s64)c[k] + i[k];
                        in = in && x >= 0 && x < (s64)t.size[k];
                        g += (u64)x * t.stride[k];
                    }
                    f(g + (u64)((s64)c[0] * t.elem), off, in ? (u32)lo * t.elem : 0, in ? (u32)hi * t.elem : 0);
                }
}
void load_box(Machine &M, const Tensor &t, const s32 *c, Cta *cta, u32 dst, const Ins &I) {
    u32 bytes = box_bytes(t);
    u8 *base = cta->at(dst, bytes, "TMA load", I) - dst;
    rows(t, c, [&](u64 g, u32 off, u32 lo, u32 hi) {
        if (hi > lo && !M.ranges.empty()) M.check_global(g + lo, hi - lo, I);
        if (hi > lo && M.hb) M.hb->global_async(*M.completing, g + lo, hi - lo, false, false);
        for (u32 x = 0; x < t.box[0] * t.elem; x += 16) {
            u8 *d = base + swizzle(dst + off + x, t.span);
            if (x >= lo && x + 16 <= hi) {
                std::memcpy(d, reinterpret_cast<u8 *>(g + x), 16);
                continue;
            }
            for (u32 b = 0; b < 16; b++) d[b] = x + b >= lo && x + b < hi ? reinterpret_cast<u8 *>(g + x)[b] : 0;
        }
    });
}
enum Reduce { COPY, ADD, MIN, MAX, INC, DEC, AND, OR, XOR };
template <class T> void combine(T *d, T s, int op) {
    switch (op) {
    case ADD: *d = *d + s; break;
    case MIN: *d = s < *d ? s : *d; break;
    case MAX: *d = *d < s ? s : *d; break;
    }
}
void combine_bits(u32 *d, u32 s, int op) { *d = op == AND ? *d & s : op == OR ? *d | s : *d ^ s; }
// Element type codes are those of the tensor map.
void reduce(u8 *d, const u8 *s, u32 bytes, u32 type, int op, bool sign) {
    for (u32 i = 0; i < bytes; i += (u32)ELEM_BYTES[type]) {
        u8 *x = d + i;
        const u8 *y = s + i;
        if (type == 7)
            combine(reinterpret_cast<float *>(x), *reinterpret_cast<const float *>(y), op);
        else if (type == 9)
            combine(reinterpret_cast<double *>(x), *reinterpret_cast<const double *>(y), op);
        else if (type == 10 || type == 6) {
            u16 a, b;
            std::memcpy(&a, x, 2);
            std::memcpy(&b, y, 2);
            float fa = type == 10 ? bf2f(a) : h2f(a), fb = type == 10 ? bf2f(b) : h2f(b);
            combine(&fa, fb, op);
            a = (u16)(type == 10 ? f2bf(fa) : f2h(fa));
            std::memcpy(x, &a, 2);
        } else if (op >= AND) // bits: 32 at a time will do
            for (int k = 0; k < ELEM_BYTES[type]; k += 4)
                combine_bits(reinterpret_cast<u32 *>(x + k), *reinterpret_cast<const u32 *>(y + k), op);
        else if (type == 2 && sign)
            combine(reinterpret_cast<s32 *>(x), *reinterpret_cast<const s32 *>(y), op);
        else if (type == 2)
            combine(reinterpret_cast<u32 *>(x), *reinterpret_cast<const u32 *>(y), op);
        else if (sign)
            combine(reinterpret_cast<s64 *>(x), *reinterpret_cast<const s64 *>(y), op);
        else
            combine(reinterpret_cast<u64 *>(x), *reinterpret_cast<const u64 *>(y), op);
    }
}
void store_box(Machine &M, const Tensor &t, const s32 *c, Cta *cta, u32 src, int op, const Ins &I) {
    u8 *base = cta->at(src, box_bytes(t), "TMA store", I) - src;
    rows(t, c, [&](u64 g, u32 off, u32 lo, u32 hi) {
        if (hi > lo && !M.ranges.empty()) M.check_global(g + lo, hi - lo, I);
        if (hi > lo && M.hb) M.hb->global_async(*M.completing, g + lo, hi - lo, true, op != COPY);
        for (u32 x = lo & ~15u; x < hi; x += 16) {
            const u8 *s = base + swizzle(src + off + x, t.span);
            u32 a = std::max(x, lo), b = std::min(x + 16, hi);
            if (op == COPY)
                std::memcpy(reinterpret_cast<u8 *>(g + a), s + (a - x), b - a);
            else
                reduce(reinterpret_cast<u8 *>(g + a), s + (a - x), b - a, t.type, op, false);
        }
    });
    M.epoch++;
}
// A load into `dst` of one CTA that signals `bar`.
void start_load(Warp &w, const Ins &I, Cta *to, u32 dst, u32 bytes, Cta *bar_cta, u32 bar, std::function<void()> copy,
                bool from_shared = false, u32 src = 0) {
    if (dst & (from_shared ? 15 : 15)) w.M->fail("alignment", I, fmt("destination 0x%x of a bulk copy", dst), &w);
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = to;
    a->bar_cta = bar_cta;
    a->bar = bar;
    a->writes.push_back({to, dst, dst + bytes});
    if (from_shared) a->reads.push_back({w.cta, src, src + bytes});
    u8 *d = to->at(dst, bytes, "bulk copy", I);
    bar_cta->bar(bar, I);
    check_async(*w.M, *a, I);
    if (w.M->hb) w.M->hb->load(w, *a, to, dst, bytes, from_shared, src);
    if (w.M->cfg.completion != IMMEDIATE) std::memset(d, 0xff, bytes);
    Machine *M = w.M;
    const Ins *ins = &I;
    a->run = [=] {
        copy();
        mbar_tx(*M, bar_cta, bar, bytes, true, *ins);
    };
    w.M->issue(a);
}
// [dst], [map, {coords}], [bar] (, mask)
template <int DIM, bool MULTI, bool PAIR> Result tensor_load(Warp &w, const Ins &I) {
    const s32 *map = I.o + 3, *cs = I.o + 6, *bar = I.o + 6 + DIM;
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Tensor t = decode(w, I, w.addr(map, l));
            if (t.rank != DIM) w.M->fail("descriptor", I, fmt("tensor map of rank %d used by a %dd copy", t.rank, DIM), &w);
            std::array<s32, 5> c{};
            for (int i = 0; i < DIM; i++) c[i] = (s32)w.r(cs[i])[l];
            Place to = shared_place(w, (u32)w.addr(I.o, l), I), b = shared_place(w, (u32)w.addr(bar, l), I);
            if (to.off & 127) w.M->fail("alignment", I, fmt("TMA destination 0x%x needs 128 bytes", to.off), &w);
            u32 mask = MULTI ? w.r(bar[3])[l] & 0xffff : 1u << to.cta->rank;
            Machine *M = w.M;
            const Ins *ins = &I;
            for (u32 r = 0; r < 16; r++)
                if (mask >> r & 1) {
                    if (r >= w.cta->cluster->ctas.size())
                        w.M->fail("operand", I, fmt("multicast mask 0x%x beyond the cluster", mask), &w);
                    Cta *cta = w.cta->cluster->ctas[r].get();
                    Cta *bc = PAIR ? w.cta->cluster->ctas[(r & ~1u) | (b.cta->rank & 1)].get() : cta;
                    if (!MULTI) {
                        bc = b.cta;
                        if (!PAIR && bc != cta)
                            w.M->fail("mbarrier", I, "the mbarrier and the destination are in different CTAs", &w);
                    }
                    u32 dst = to.off;
                    start_load(w, I, cta, dst, box_bytes(t), bc, b.off, [=] { load_box(*M, t, c.data(), cta, dst, *ins); });
                }
        }
    return NEXT;
}
bool unfenced(Cta *c, u32 lo, u32 hi) {
    if (c->dirty.empty() || c->M->hb) return false;
    for (u32 g = (lo - SMEM_BASE) / 16; g <= (hi - 1 - SMEM_BASE) / 16; g++)
        if (c->dirty[g]) return true;
    return false;
}
void start_store(Warp &w, const Ins &I, u32 lanes, u32 src, u32 bytes, std::function<void()> run) {
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = w.cta;
    a->reads.push_back({w.cta, src, src + bytes});
    a->store = true;
    a->run = std::move(run);
    w.cta->at(src, bytes, "bulk store", I);
    check_async(*w.M, *a, I);
    if (unfenced(w.cta, src, src + bytes))
        w.M->note("proxy", I,
                  fmt("reads shared bytes [0x%x, 0x%x) written by the generic proxy with no fence.proxy.async since", src,
                      src + bytes));
    if (w.M->hb) w.M->hb->bulk_store(w, *a, src, bytes);
    w.M->issue(a);
    for (int l = 0; l < LANES; l++)
        if (lanes >> l & 1) w.bulk[l].open.push_back(a);
}
// [map, {coords}], [src]. Lanes that ask for the same copy share it; reductions are never merged.
template <int DIM, int OP> Result tensor_store(Warp &w, const Ins &I) {
    const s32 *cs = I.o + 3, *from = I.o + 3 + DIM;
    u32 todo = w.m;
    while (todo) {
        int l = __builtin_ctz(todo);
        u64 map = w.addr(I.o, l);
        u32 src = (u32)w.addr(from, l);
        u32 same = 0;
        std::array<s32, 5> c{};
        for (int i = 0; i < DIM; i++) c[i] = (s32)w.r(cs[i])[l];
        for (int j = l; j < LANES; j++)
            if (todo >> j & 1) {
                bool eq = w.addr(I.o, j) == map && (u32)w.addr(from, j) == src;
                for (int i = 0; i < DIM; i++) eq = eq && (s32)w.r(cs[i])[j] == c[i];
                if (eq && (OP == COPY || j == l)) same |= 1u << j;
            }
        todo &= ~same;
        Tensor t = decode(w, I, map);
        if (t.rank != DIM) w.M->fail("descriptor", I, fmt("tensor map of rank %d used by a %dd copy", t.rank, DIM), &w);
        for (int i = 0; i < DIM; i++) // an H200 stops with an illegal instruction
            if (c[i] < 0) w.M->fail("operand", I, fmt("a tensor store starts at coordinate %d of dimension %d", c[i], i), &w);
        Place p = shared_place(w, src, I);
        if (p.cta != w.cta || p.off & 127) w.M->fail("alignment", I, fmt("TMA source 0x%x: own CTA, 128 bytes aligned", src), &w);
        Machine *M = w.M;
        Cta *cta = w.cta;
        const Ins *ins = &I;
        u32 off = p.off;
        start_store(w, I, same, off, box_bytes(t), [=] { store_box(*M, t, c.data(), cta, off, OP, *ins); });
    }
    return NEXT;
}
// [dst], [src], size, [bar] (, mask)
template <bool MULTI> Result bulk_load(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place to = shared_place(w, (u32)w.addr(I.o, l), I), b = shared_place(w, (u32)w.addr(I.o + 7, l), I);
            u64 src = w.addr(I.o + 3, l);
            u32 n = w.r(I.o[6])[l];
            if (n % 16 || src % 16)
                w.M->fail("alignment", I, fmt("bulk copy of %u bytes from 0x%llx", n, (unsigned long long)src), &w);
            if (!w.M->ranges.empty()) w.M->check_global(src, n, I);
            u32 mask = MULTI ? w.r(I.o[10])[l] & 0xffff : 1u << to.cta->rank;
            for (u32 r = 0; r < w.cta->cluster->ctas.size(); r++)
                if (mask >> r & 1) {
                    Cta *cta = w.cta->cluster->ctas[r].get();
                    u8 *d = cta->at(to.off, n, "bulk copy", I);
                    start_load(w, I, cta, to.off, n, MULTI ? cta : b.cta, b.off, [=, M = w.M] {
                        if (M->hb) M->hb->global_async(*M->completing, src, n, false, false);
                        std::memcpy(d, reinterpret_cast<u8 *>(src), n);
                    });
                }
        }
    return NEXT;
}
Result bulk_shared(Warp &w, const Ins &I) { // shared::cluster <- shared::cta
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            Place to = shared_place(w, (u32)w.addr(I.o, l), I), from = shared_place(w, (u32)w.addr(I.o + 3, l), I),
                  b = shared_place(w, (u32)w.addr(I.o + 7, l), I);
            u32 n = w.r(I.o[6])[l];
            if (n % 16 || from.off % 16) w.M->fail("alignment", I, fmt("bulk copy of %u bytes from 0x%x", n, from.off), &w);
            u8 *d = to.cta->at(to.off, n, "bulk copy", I), *s = from.cta->at(from.off, n, "bulk copy", I);
            if (unfenced(from.cta, from.off, from.off + n))
                w.M->note("proxy", I,
                          fmt("reads shared bytes [0x%x, 0x%x) written by the generic proxy with no fence.proxy.async since",
                              from.off, from.off + n));
            start_load(w, I, to.cta, to.off, n, b.cta, b.off, [=] { std::memcpy(d, s, n); }, true, from.off);
        }
    return NEXT;
}
// [dst], [src], size: plain store or reduction to global memory.
template <u32 TYPE, int OP, bool SIGN> Result bulk_store(Warp &w, const Ins &I) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            u64 dst = w.addr(I.o, l);
            u32 n = w.r(I.o[6])[l];
            Place from = shared_place(w, (u32)w.addr(I.o + 3, l), I);
            if (n % 16 || dst % 16 || from.off % 16)
                w.M->fail("alignment", I, fmt("bulk store of %u bytes to 0x%llx", n, (unsigned long long)dst), &w);
            if (!w.M->ranges.empty()) w.M->check_global(dst, n, I);
            u8 *s = from.cta->at(from.off, n, "bulk store", I);
            Machine *M = w.M;
            start_store(w, I, 1u << l, from.off, n, [=] {
                if (M->hb) M->hb->global_async(*M->completing, dst, n, true, OP != COPY);
                if (OP == COPY)
                    std::memcpy(reinterpret_cast<u8 *>(dst), s, n);
                else
                    reduce(reinterpret_cast<u8 *>(dst), s, n, TYPE, OP, SIGN);
                M->epoch++;
            });
        }
    return NEXT;
}
Result commit(Warp &w, const Ins &) {
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1) {
            w.bulk[l].groups.push_back(std::move(w.bulk[l].open));
            w.bulk[l].open.clear();
        }
    return NEXT;
}
Result wait_group(Warp &w, const Ins &I) {
    if (w.M->hb && w.M->hb->idle) w.M->hb->idle->mark(I, false, "nothing is left to wait for");
    for (int l = 0; l < LANES; l++)
        if (w.m >> l & 1)
            while (w.bulk[l].groups.size() > (size_t)I.o[0]) {
                for (auto &a : w.bulk[l].groups.front()) {
                    w.M->finish(a);
                    if (w.M->hb) w.M->hb->bulk_done(w, *a, I.aux);
                }
                w.bulk[l].groups.pop_front();
            }
    return NEXT;
}
Result prefetch(Warp &, const Ins &) { return NEXT; }

template <int DIM> void tensor_forms() {
    std::string d = std::to_string(DIM), T = "T" + d;
    for (const char *sp : {"shared::cta", "shared::cluster"})
        for (const char *tile : {"", ".tile"}) {
            std::string n = "cp.async.bulk.tensor." + d + "d." + sp + ".global" + tile + ".mbarrier::complete_tx::bytes";
            def(n, "a " + T + " a", tensor_load<DIM, false, false>);
            def(n + ".multicast::cluster", "a " + T + " a s", tensor_load<DIM, true, false>);
            def(n + ".cta_group::1", "a " + T + " a", tensor_load<DIM, false, false>);
            def(n + ".cta_group::2", "a " + T + " a", tensor_load<DIM, false, true>);
            def(n + ".multicast::cluster.cta_group::1", "a " + T + " a s", tensor_load<DIM, true, false>);
            def(n + ".multicast::cluster.cta_group::2", "a " + T + " a s", tensor_load<DIM, true, true>);
        }
    for (const char *tile : {"", ".tile"}) {
        std::string t(tile);
        def("cp.async.bulk.tensor." + d + "d.global.shared::cta" + t + ".bulk_group", T + " a", tensor_store<DIM, COPY>);
        std::string n = "cp.reduce.async.bulk.tensor." + d + "d.global.shared::cta";
        def(n + ".add" + t + ".bulk_group", T + " a", tensor_store<DIM, ADD>);
        def(n + ".min" + t + ".bulk_group", T + " a", tensor_store<DIM, MIN>);
        def(n + ".max" + t + ".bulk_group", T + " a", tensor_store<DIM, MAX>);
        def(n + ".and" + t + ".bulk_group", T + " a", tensor_store<DIM, AND>);
        def(n + ".or" + t + ".bulk_group", T + " a", tensor_store<DIM, OR>);
        def(n + ".xor" + t + ".bulk_group", T + " a", tensor_store<DIM, XOR>);
        def("cp.async.bulk.prefetch.tensor." + d + "d.L2.global" + t, T, prefetch);
    }
}
} // namespace

void define_tma() {
    tensor_forms<1>();
    tensor_forms<2>();
    tensor_forms<3>();
    tensor_forms<4>();
    tensor_forms<5>();
    for (const char *sp : {"shared::cta", "shared::cluster"}) {
        std::string n = std::string("cp.async.bulk.") + sp + ".global.mbarrier::complete_tx::bytes";
        def(n, "a a s a", bulk_load<false>);
        def(n + ".multicast::cluster", "a a s a s", bulk_load<true>);
    }
    def("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "a a s a", bulk_shared);
    def("cp.async.bulk.global.shared::cta.bulk_group", "a a s", bulk_store<0, COPY, false>);
    std::string n = "cp.reduce.async.bulk.global.shared::cta.bulk_group.";
    def(n + "add.f32", "a a s", bulk_store<7, ADD, false>);
    def(n + "add.f64", "a a s", bulk_store<9, ADD, false>);
    def(n + "add.noftz.bf16", "a a s", bulk_store<10, ADD, false>);
    def(n + "add.noftz.f16", "a a s", bulk_store<6, ADD, false>);
    def(n + "add.u32", "a a s", bulk_store<2, ADD, false>);
    def(n + "add.s32", "a a s", bulk_store<2, ADD, true>);
    def(n + "add.u64", "a a s", bulk_store<4, ADD, false>);
    def(n + "min.s32", "a a s", bulk_store<2, MIN, true>);
    def(n + "min.u64", "a a s", bulk_store<4, MIN, false>);
    def(n + "max.u64", "a a s", bulk_store<4, MAX, false>);
    def(n + "min.s64", "a a s", bulk_store<4, MIN, true>);
    def(n + "max.s64", "a a s", bulk_store<4, MAX, true>);
    def(n + "min.f16", "a a s", bulk_store<6, MIN, false>);
    def(n + "max.f16", "a a s", bulk_store<6, MAX, false>);
    def(n + "min.bf16", "a a s", bulk_store<10, MIN, false>);
    def(n + "max.bf16", "a a s", bulk_store<10, MAX, false>);
    def(n + "and.b32", "a a s", bulk_store<2, AND, false>);
    def(n + "or.b32", "a a s", bulk_store<2, OR, false>);
    def(n + "xor.b32", "a a s", bulk_store<2, XOR, false>);
    def(n + "and.b64", "a a s", bulk_store<4, AND, false>);
    def(n + "or.b64", "a a s", bulk_store<4, OR, false>);
    def(n + "xor.b64", "a a s", bulk_store<4, XOR, false>);
    def(n + "max.s32", "a a s", bulk_store<2, MAX, true>);
    def(n + "min.u32", "a a s", bulk_store<2, MIN, false>);
    def(n + "max.u32", "a a s", bulk_store<2, MAX, false>);
    def("cp.async.bulk.commit_group", "", commit);
    def("cp.async.bulk.wait_group", "i", wait_group);
    def("cp.async.bulk.wait_group.read", "i", wait_group, false, 1);
}
