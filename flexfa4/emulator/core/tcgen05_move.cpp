// tcgen05.ld/st of 16 lanes (16x64b, 16x128b, 16x256b, 16x32bx2), and tcgen05.cp from shared memory. The layouts are those that
// the DSL states for its copy atoms.
#include "lanes.h"
#include "order.h"
#include "tcgen05.h"

namespace {
enum Shape { S64, S128, S256, S32X2 };
constexpr int registers_of(Shape s) { return s == S128 ? 2 : s == S256 ? 4 : 1; } // of one repetition
constexpr int columns_of(Shape s) { return s == S64 ? 2 : s == S128 ? 4 : s == S256 ? 8 : 1; }
struct At {
    u32 row, col;
};
// Where register r of a lane lies: row of 16, column within the instruction. split: distance of the upper half's columns (S32X2).
template <Shape S> At place(int lane, int r, u32 split) {
    u32 l = (u32)lane, rep = (u32)(r / registers_of(S)), e = (u32)(r % registers_of(S));
    if (S == S64) return {l / 4 + 8 * (l % 2), 2 * rep + l / 2 % 2};
    if (S == S128) return {l / 4 + 8 * e, 4 * rep + l % 4};
    if (S == S256) return {l / 4 + 8 * (e / 2), 8 * rep + 2 * (l % 4) + e % 2};
    return {l % 16, rep + (l / 16) * split};
}
// The first lane of the sixteen: the lower or the upper half of the warp's own 32.
u32 half_of(Warp &w, const Ins &I, u32 taddr) {
    u32 lane = taddr >> 16, own = 32u * (u32)(w.id % 4);
    if (lane != own && lane != own + 16)
        w.M->fail("tmem", I,
                  fmt("warp %d may touch lanes %u.. or %u.. only, the address names lane %u", w.id, own, own + 16, lane), &w);
    return lane;
}
// Calls f(register, lane, tensor word) for all words; PACKED: with the word's upper neighbour, each holding 16 bits of a
// register.
template <Shape S, bool PACKED, class F> void each(int n, u32 *tmem, u32 lane0, u32 col, u32 split, F f) {
    for (int r = 0; r < n; r++)
        for (int l = 0; l < LANES; l++) {
            At at = place<S>(l, r, split);
            u32 *word = tmem + (col + at.col * (PACKED ? 2 : 1)) * TMEM_LANES + lane0 + at.row;
            f(r, l, word);
        }
}
// The number of a table row is its repetitions.
template <Shape S, bool PACKED> u32 width(const Ins &I, u32 split) {
    u32 one = S == S32X2 ? split + (u32)I.aux : (u32)(columns_of(S) * I.aux);
    return PACKED ? 2 * one : one;
}
template <Shape S, bool PACKED> Result load(Warp &w, const Ins &I) {
    int n = registers_of(S) * I.aux;
    u32 t = taddr_of(w, I, I.o + n), lane = half_of(w, I, t), col = column(t), split = S == S32X2 ? (u32)I.o[n + 3] : 0;
    touch_columns(w, I, col, col + width<S, PACKED>(I, split), false);
    Row out[128];
    each<S, PACKED>(n, w.cta->tmem.data(), lane, col, split, [&](int r, int l, u32 *word) {
        out[r].v[l] = PACKED ? (word[0] & 0xffff) | word[TMEM_LANES] << 16 : word[0];
    });
    for (int r = 0; r < n; r++) std::memcpy(w.R + I.o[r], out[r].v, ROW);
    return NEXT;
}
// Like the 32x32b form, a store may land any time before tcgen05.wait::st: its words hold NaN until then.
template <Shape S, bool PACKED> Result store(Warp &w, const Ins &I) {
    int n = registers_of(S) * I.aux;
    u32 t = taddr_of(w, I, I.o), lane = half_of(w, I, t), col = column(t), split = S == S32X2 ? (u32)I.o[3] : 0;
    const s32 *from = I.o + (S == S32X2 ? 4 : 3);
    touch_columns(w, I, col, col + width<S, PACKED>(I, split), true);
    u32 *tmem = w.cta->tmem.data();
    auto data = std::make_shared<std::vector<Row>>((size_t)n);
    for (int r = 0; r < n; r++) std::memcpy((*data)[(size_t)r].v, w.R + from[r], ROW);
    auto write = [=](bool poison) {
        each<S, PACKED>(n, tmem, lane, col, split, [&](int r, int l, u32 *word) {
            u32 v = (*data)[(size_t)r].v[l];
            word[0] = poison ? 0x7fffffffu : PACKED ? v & 0xffff : v;
            if (PACKED) word[TMEM_LANES] = poison ? 0x7fffffffu : v >> 16;
        });
    };
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = w.cta;
    a->run = [=] { write(false); };
    if (w.M->cfg.completion != IMMEDIATE) write(true);
    w.tmem_stores.push_back(w.M->issue(a));
    return NEXT;
}
template <Shape S> void moves(const std::string &shape) {
    for (int reps = 1; registers_of(S) * reps <= 128; reps *= 2) {
        size_t count = (size_t)(registers_of(S) * reps);
        std::string n = shape + ".x" + std::to_string(reps), split = S == S32X2 ? " i" : "";
        std::string d = "{" + std::string(count, 'd') + "}", s = "{" + std::string(count, 's') + "}";
        def("tcgen05.ld.sync.aligned." + n + ".b32", d + " a" + split, load<S, false>, true, reps);
        def("tcgen05.ld.sync.aligned." + n + ".pack::16b.b32", d + " a" + split, load<S, true>, true, reps);
        def("tcgen05.st.sync.aligned." + n + ".b32", "a" + split + " " + s, store<S, false>, true, reps);
        def("tcgen05.st.sync.aligned." + n + ".unpack::16b.b32", "a" + split + " " + s, store<S, true>, true, reps);
    }
}

// [tensor address], descriptor: ROWS rows of CHUNKS 16-byte chunks of a K-major matrix in shared memory, to the lanes that
// `copies` names for row r: r itself, or several quarters.
enum Spread { ONCE, FOUR, PAIRS_02_13, PAIRS_01_23 };
template <int ROWS, int CHUNKS, Spread SPREAD, int GROUP> Result copy(Warp &w, const Ins &I) {
    int l = w.leader();
    if (__builtin_popcount(w.m) != 1) w.M->fail("operand", I, "tcgen05.cp is issued by more than one thread of the warp", &w);
    u32 t = (u32)w.addr(I.o, l), col = column(t);
    if (t >> 16) w.M->fail("tmem", I, fmt("tcgen05.cp to lane %u", t >> 16), &w);
    Operand source = smem_operand(w, I, w.r64(I.o[3], l), false, E_E4M3); // two chunks a row, as bytes have
    auto &all = w.cta->cluster->ctas;
    if (GROUP == 2 && (w.cta->rank & 1 || w.cta->rank + 1 >= all.size()))
        w.M->fail("operand", I, "cta_group::2 is issued by the even CTA of a pair", &w);
    auto a = std::make_shared<Async>();
    a->ins = &I;
    a->cta = w.cta;
    std::vector<Cta *> ctas;
    for (int g = 0; g < GROUP; g++) {
        Cta *c = all[w.cta->rank + (u32)g].get();
        if (c->tmem.empty()) w.M->fail("tmem", I, "no tensor memory was allocated", &w);
        columns_used(c, col, col + 4 * CHUNKS, I, &w);
        source.cta = c;
        Range r = operand_range(source, ROWS);
        if (CHUNKS == 1) r.hi = source.start + (u32)((ROWS - 1) / 8) * source.sbo + 8 * source.span;
        a->reads.push_back(r);
        a->twrites.push_back({c, col, col + 4 * CHUNKS});
        ctas.push_back(c);
    }
    if (w.cta->mma_queue < 0) w.cta->mma_queue = w.M->new_queue();
    a->queue = w.cta->mma_queue;
    check_async(*w.M, *a, I);
    if (w.M->hb)
        for (Cta *c : ctas) watch_copy(w, *a, c, col, col + 4 * CHUNKS);
    const Ins *ins = &I;
    a->run = [=] {
        for (Cta *c : ctas) {
            u8 bytes[128 * 32];
            Operand from = source;
            from.cta = c;
            fetch_chunks(from, ROWS, CHUNKS, bytes, *ins);
            for (u32 r = 0; r < ROWS; r++)
                for (u32 quarter = 0; quarter < 4; quarter++) {
                    bool here = SPREAD == ONCE   ? quarter == r / 32
                                : SPREAD == FOUR ? true
                                                 : (SPREAD == PAIRS_02_13 ? quarter % 2 : quarter / 2) == r / 32;
                    if (!here) continue;
                    for (u32 i = 0; i < 4 * CHUNKS; i++)
                        std::memcpy(&c->tmem[(col + i) * TMEM_LANES + 32 * quarter + r % 32], bytes + r * 16 * CHUNKS + 4 * i, 4);
                }
        }
    };
    w.M->issue(a);
    return NEXT;
}
template <int GROUP> void copies() {
    std::string n = "tcgen05.cp.cta_group::" + std::to_string(GROUP);
    def(n + ".128x256b", "a S", copy<128, 2, ONCE, GROUP>);
    def(n + ".128x128b", "a S", copy<128, 1, ONCE, GROUP>);
    def(n + ".32x128b.warpx4", "a S", copy<32, 1, FOUR, GROUP>);
    def(n + ".64x128b.warpx2::02_13", "a S", copy<64, 1, PAIRS_02_13, GROUP>);
    def(n + ".64x128b.warpx2::01_23", "a S", copy<64, 1, PAIRS_01_23, GROUP>);
}
} // namespace

void define_tcgen05_moves() {
    moves<S64>("16x64b");
    moves<S128>("16x128b");
    moves<S256>("16x256b");
    moves<S32X2>("16x32bx2");
    copies<1>();
    copies<2>();
}
