// atom and red: read, change and write back, in order with all others at the address.
#include "memory.h"
#include "order.h"

namespace {
// An atomic operation reads what others published at its address, then publishes.
void synchronise(Warp &w, int space, u64 a, const u8 *p, u32 bytes, const Ins &I) {
    if (in_global(space, a)) w.M->hb->global(w, a, bytes, true, I);
    w.M->hb->observe(w, p, I);
    w.M->hb->publish(w, p, I);
}
// The number of a table row: its space, and whether the old value is returned.
constexpr s32 row(int space, bool returns) { return space << 1 | returns; }
u8 *bytes_of(Warp &w, const Ins &I, u64 a, u32 bytes) {
    int space = I.aux >> 1;
    u8 *p = space == GLOBAL   ? locate<GLOBAL, true>(w, I, a, bytes)
            : space == SHARED ? locate<SHARED, true>(w, I, a, bytes)
                              : locate<GENERIC, true>(w, I, a, bytes);
    if (w.M->hb) synchronise(w, space, a, p, bytes, I);
    return p;
}
template <class T, auto F> Result atomic(Warp &w, const Ins &I) {
    int d = I.aux & 1;
    Rows t;
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        u8 *p = bytes_of(w, I, w.addr(I.o + d, l), sizeof(T));
        T old, v = get<T>(w.r(I.o[d + 3]), l);
        std::memcpy(&old, p, sizeof(T));
        T n = F(old, v);
        std::memcpy(p, &n, sizeof(T));
        set<T>(t.v, l, old);
    }
    w.M->writes++;
    if (d) store_rows<T>(w, I.o[0], t);
    return NEXT;
}
template <class T> Result cas(Warp &w, const Ins &I) {
    Rows t;
    bool wrote = false;
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        u8 *p = bytes_of(w, I, w.addr(I.o + 1, l), sizeof(T));
        T old;
        std::memcpy(&old, p, sizeof(T));
        if (old == get<T>(w.r(I.o[4]), l)) {
            T n = get<T>(w.r(I.o[5]), l);
            std::memcpy(p, &n, sizeof(T));
            wrote = true;
        }
        set<T>(t.v, l, old);
    }
    if (wrote)
        w.M->writes++;
    else if (w.spins(I, t.v, sizeof(T) / 4 + (sizeof(T) < 4))) // a lock that stays taken
        return BLOCKED;
    store_rows<T>(w, I.o[0], t);
    return NEXT;
}
// N registers side by side in global memory (red and atom with a vector), each halves or f32.
template <class T, auto F, int N, bool RETURN> Result atomic_vector(Warp &w, const Ins &I) {
    constexpr int d = RETURN ? N : 0;
    Row t[N];
    for (int l = 0; l < LANES; l++) {
        if (!(w.m >> l & 1)) continue;
        u8 *p = locate<GLOBAL, true>(w, I, w.addr(I.o + d, l), sizeof(T) * N);
        for (int i = 0; i < N; i++, p += sizeof(T)) {
            T old, n;
            std::memcpy(&old, p, sizeof(T));
            n = F(old, get<T>(w.r(I.o[d + 3 + i]), l));
            std::memcpy(p, &n, sizeof(T));
            t[i].v[l] = 0;
            std::memcpy(&t[i].v[l], &old, sizeof(T));
        }
    }
    w.M->writes++;
    if (RETURN)
        for (int i = 0; i < N; i++) w.put(I.o[i], t[i]);
    return NEXT;
}
// Halves: adds round to nearest; subnormals are kept (.noftz). The bits travel in an unsigned register.
template <bool BF> float half_value(u32 x) { return BF ? bf2f(x & 0xffff) : h2f(x & 0xffff); }
template <bool BF, int OP> u16 half_atomic(u16 a, u16 b) {
    float x = half_value<BF>(a), y = half_value<BF>(b), r = x + y;
    if (OP != 0) r = x != x ? y : y != y ? x : (OP == 1) == (x < y) ? x : y; // 1 min, 2 max
    return (u16)(BF ? f2bf(r) : f2h(r));
}
template <bool BF, int OP> u32 half2_atomic(u32 a, u32 b) {
    return half_atomic<BF, OP>((u16)a, (u16)b) | (u32)half_atomic<BF, OP>((u16)(a >> 16), (u16)(b >> 16)) << 16;
}
template <class T, auto F, int N> void vector_rows(const std::string &op, const std::string &type) {
    std::string d = regs("d", N, true), s = regs("s", N, true);
    for (const char *sem :
         {"", ".relaxed.gpu", ".relaxed.cta", ".relaxed.cluster", ".relaxed.sys", ".release.gpu", ".acq_rel.gpu"}) {
        std::string n = std::string(sem) + ".global." + op + ".v" + std::to_string(N) + type;
        def("red" + n, "a " + s, atomic_vector<T, F, N, false>);
        def("atom" + n, d + " a " + s, atomic_vector<T, F, N, true>);
    }
}
template <bool BF, int OP> void half_vectors(const std::string &op) {
    std::string t = BF ? ".bf16" : ".f16", n = op + ".noftz";
    vector_rows<u16, half_atomic<BF, OP>, 2>(n, t);
    vector_rows<u16, half_atomic<BF, OP>, 4>(n, t);
    vector_rows<u16, half_atomic<BF, OP>, 8>(n, t);
    vector_rows<u32, half2_atomic<BF, OP>, 2>(n, t + "x2");
    vector_rows<u32, half2_atomic<BF, OP>, 4>(n, t + "x2");
}
template <class T, auto F> void atom(int in, const std::string &space, const std::string &op, const std::string &type) {
    const char *d = sizeof(T) == 8 ? "D" : "d";
    const char *s = sizeof(T) == 8 ? " S" : " s";
    for (const char *sem : {"", ".relaxed", ".acquire", ".release", ".acq_rel"})
        for (const char *scope : {"", ".cta", ".cluster", ".gpu", ".sys"}) {
            if (*sem && !*scope) continue;
            std::string m = std::string(sem) + scope + space + "." + op + "." + type;
            def("atom" + m, std::string(d) + " a" + s, atomic<T, F>, false, row(in, true));
            def("red" + m, std::string("a") + s, atomic<T, F>, false, row(in, false));
        }
}
void atoms(int in, const std::string &sp) {
    atom<u32, [](u32 a, u32 b) { return a + b; }>(in, sp, "add", "u32");
    atom<u32, [](u32 a, u32 b) { return a + b; }>(in, sp, "add", "s32");
    atom<u64, [](u64 a, u64 b) { return a + b; }>(in, sp, "add", "u64");
    atom<float, [](float a, float b) { return a + b; }>(in, sp, "add", "f32");
    atom<double, [](double a, double b) { return a + b; }>(in, sp, "add", "f64");
    atom<u32, [](u32 a, u32 b) { return (a > b) ? a : b; }>(in, sp, "max", "u32");
    atom<s32, [](s32 a, s32 b) { return (a > b) ? a : b; }>(in, sp, "max", "s32");
    atom<u32, [](u32 a, u32 b) { return (a < b) ? a : b; }>(in, sp, "min", "u32");
    atom<s32, [](s32 a, s32 b) { return (a < b) ? a : b; }>(in, sp, "min", "s32");
    atom<u32, [](u32 a, u32 b) { return a & b; }>(in, sp, "and", "b32");
    atom<u32, [](u32 a, u32 b) { return a | b; }>(in, sp, "or", "b32");
    atom<u32, [](u32 a, u32 b) { return a ^ b; }>(in, sp, "xor", "b32");
    atom<u32, [](u32, u32 b) { return b; }>(in, sp, "exch", "b32");
    atom<u64, [](u64, u64 b) { return b; }>(in, sp, "exch", "b64");
    atom<u32, [](u32 a, u32 b) { return a >= b ? 0u : a + 1; }>(in, sp, "inc", "u32");
    atom<u32, [](u32 a, u32 b) { return a == 0 || (a > b) ? b : a - 1; }>(in, sp, "dec", "u32");
    atom<u64, [](u64 a, u64 b) { return (a > b) ? a : b; }>(in, sp, "max", "u64");
    atom<s64, [](s64 a, s64 b) { return (a > b) ? a : b; }>(in, sp, "max", "s64");
    atom<u64, [](u64 a, u64 b) { return (a < b) ? a : b; }>(in, sp, "min", "u64");
    atom<s64, [](s64 a, s64 b) { return (a < b) ? a : b; }>(in, sp, "min", "s64");
    atom<u64, [](u64 a, u64 b) { return a & b; }>(in, sp, "and", "b64");
    atom<u64, [](u64 a, u64 b) { return a | b; }>(in, sp, "or", "b64");
    atom<u64, [](u64 a, u64 b) { return a ^ b; }>(in, sp, "xor", "b64");
    atom<u16, half_atomic<false, 0>>(in, sp, "add.noftz", "f16");
    atom<u16, half_atomic<true, 0>>(in, sp, "add.noftz", "bf16");
    atom<u32, half2_atomic<false, 0>>(in, sp, "add.noftz", "f16x2");
    atom<u32, half2_atomic<true, 0>>(in, sp, "add.noftz", "bf16x2");
    for (const char *sem : {"", ".relaxed.gpu", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu", ".relaxed.cta", ".acquire.cta",
                            ".release.cta", ".acq_rel.cta", ".relaxed.sys", ".acquire.sys", ".release.sys", ".acq_rel.sys"}) {
        def("atom" + std::string(sem) + sp + ".cas.b16", "d a s s", cas<u16>, false, row(in, true));
        def("atom" + std::string(sem) + sp + ".cas.b32", "d a s s", cas<u32>, false, row(in, true));
        def("atom" + std::string(sem) + sp + ".cas.b64", "D a S S", cas<u64>, false, row(in, true));
    }
}
} // namespace

void define_atomics() {
    for (const char *s : {".shared", ".shared::cta", ".shared::cluster"}) atoms(SHARED, s);
    atoms(GLOBAL, ".global");
    atoms(GENERIC, "");
    vector_rows<float, [](float a, float b) { return a + b; }, 2>("add", ".f32");
    vector_rows<float, [](float a, float b) { return a + b; }, 4>("add", ".f32");
    half_vectors<false, 0>("add");
    half_vectors<true, 0>("add");
    half_vectors<false, 1>("min");
    half_vectors<true, 1>("min");
    half_vectors<false, 2>("max");
    half_vectors<true, 2>("max");
}
