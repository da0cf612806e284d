// wgmma (sm_90a). Each warp of the warpgroup computes its own 16 rows, in the order it issued them.
#include "lanes.h"
#include "mma.h"
#include "order.h"
#include "tensor_sum.h"
#include "transpose.h"

namespace {
const u32 SPANS[4] = {16, 128, 64, 32};

Operand smem_operand(Warp &w, const Ins &I, s32 reg, bool mn, Elem e) {
    u64 d = w.r64(reg, w.leader());
    if (d & ~0xc000000000000000ull & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32))
        w.M->fail("descriptor", I, fmt("matrix descriptor 0x%llx: bits that are not modelled", (unsigned long long)d), &w);
    return {w.cta, (u32)(d & 0x3fff) << 4, (u32)((d >> 16) & 0x3fff) << 4, (u32)((d >> 32) & 0x3fff) << 4, SPANS[d >> 62], mn, e};
}
void queue(Warp &w, const Ins &I, const std::shared_ptr<Async> &a, const Operand *oa, const Operand &ob, int n) {
    if (w.wg_queue < 0) w.wg_queue = w.M->new_queue();
    a->ins = &I;
    a->cta = w.cta;
    a->queue = w.wg_queue;
    check_async(*w.M, *a, I);
    if (w.M->hb) {
        w.M->hb->wgmma(w, *a);
        if (oa) watch_operand(*w.M, *a, *oa, 16 * (w.id % 4), 16);
        watch_operand(*w.M, *a, ob, 0, n);
    }
    w.wg_open.push_back(w.M->issue(a));
}
enum Acc { ACC_F32, ACC_F16, ACC_S32, ACC_S32_SAT };
// Of bytes it keeps 13 bits only: DeepSeek-V3 (arXiv:2412.19437), 3.3.2.
template <Elem E, Acc D>
constexpr Adder ADDER = is_byte(E)     ? D == ACC_F16 ? NARROW_TO_F16 : NARROW
                        : D == ACC_F16 ? WIDE_TO_F16
                                       : WIDE;
// The accumulators of one warp, 16 rows, as floats (f16: two to a register).
template <Acc D> float acc_value(const u32 *r, int lane, int part) {
    return D == ACC_F16 ? h2f(r[lane] >> (16 * part) & 0xffff) : as_f(r[lane]);
}
template <Acc D> void write_acc(u32 *r, int lane, int part, float x, bool accumulate) {
    if (D == ACC_F32)
        r[lane] = as_u(x);
    else if (D == ACC_F16)
        r[lane] = part ? (r[lane] & 0xffff) | f2h(x) << 16 : (r[lane] & 0xffff0000u) | f2h(x);
    else { // x is an exact sum of products below 2^24
        s64 total = (accumulate ? (s64)(s32)r[lane] : 0) + (s64)x;
        if (D == ACC_S32_SAT) total = total > 2147483647 ? 2147483647 : total < -2147483648ll ? -2147483648ll : total;
        r[lane] = (u32)total;
    }
}
// The accumulators of one warp as columns of 16 rows, and back. Register j holds columns 8 (j / 4) + 2 (lane % 4) + j % 2 and
// rows lane / 4, or of j % 4 >= 2 those 8 further down.
template <Acc D> void read_accumulators(const Warp &w, const s32 *d, int n, float *columns) {
    constexpr int PACK = D == ACC_F16 ? 2 : 1; // accumulators in a register
    if (D == ACC_F32) {
        for (int j = 0; j < n / 2; j += 4)
            for (int odd = 0; odd < 2; odd++)
                to_columns(reinterpret_cast<float *>(w.r(d[j + odd])), reinterpret_cast<float *>(w.r(d[j + 2 + odd])),
                           columns + (2 * j + odd) * 16, 32);
        return;
    }
    for (int j = 0; j < n / 2; j++)
        for (int l = 0; l < LANES; l++)
            columns[((j / 4) * 8 + (l % 4) * 2 + (j & 1)) * 16 + l / 4 + 8 * ((j >> 1) & 1)] =
                acc_value<D>(w.r(d[j / PACK]), l, j & 1);
}
template <Acc D> void write_accumulators(const Warp &w, const s32 *d, int n, const float *columns, bool accumulate) {
    constexpr int PACK = D == ACC_F16 ? 2 : 1;
    if (D == ACC_F32) {
        for (int j = 0; j < n / 2; j += 4)
            for (int odd = 0; odd < 2; odd++)
                from_columns(columns + (2 * j + odd) * 16, 32, reinterpret_cast<float *>(w.r(d[j + odd])),
                             reinterpret_cast<float *>(w.r(d[j + 2 + odd])));
        return;
    }
    for (int j = 0; j < n / 2; j++)
        for (int l = 0; l < LANES; l++)
            write_acc<D>(w.r(d[j / PACK]), l, j & 1,
                         columns[((j / 4) * 8 + (l % 4) * 2 + (j & 1)) * 16 + l / 4 + 8 * ((j >> 1) & 1)], accumulate);
}
// Four registers of A, 16 rows: out[k][row].
template <Elem E> void read_fragment(const Warp &w, const s32 *a, float *out) {
    if (E == E_F16 || E == E_BF16) {
        alignas(64) float half[4][2][LANES]; // of each register: lower, upper
        for (int i = 0; i < 4; i++) {
            const u32 *r = w.r(a[i]);
            for (int l = 0; l < LANES; l++) {
                half[i][0][l] = E == E_BF16 ? bf2f(r[l] & 0xffff) : h2f(r[l] & 0xffff);
                half[i][1][l] = E == E_BF16 ? bf2f(r[l] >> 16) : h2f(r[l] >> 16);
            }
        }
        for (int i = 0; i < 4; i += 2)
            for (int odd = 0; odd < 2; odd++) to_columns(half[i][odd], half[i + 1][odd], out + (4 * i + odd) * 16, 32);
        return;
    }
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < LANES; l++) {
            u32 v = w.r(a[i])[l];
            int row = l / 4 + 8 * (i & 1);
            if (E == E_TF32)
                out[(l % 4 + 4 * (i / 2)) * 16 + row] = as_f(v & ~0x1fffu);
            else
                for (int e = 0; e < 4; e++) out[((l % 4) * 4 + e + 16 * (i / 2)) * 16 + row] = byte_value(v >> (8 * e) & 255, E);
        }
}
// {D}, A, B, scale-d (, imm-scale-a, imm-scale-b) (, trans-a, trans-b). A: 64-bit descriptor or four registers.
template <Elem E, Elem EB, bool A_REGS, Acc D> Result mma(Warp &w, const Ins &I) {
    const int N = I.aux;
    constexpr int PACK = D == ACC_F16 ? 2 : 1; // accumulators in a register
    constexpr bool INTEGER = D == ACC_S32 || D == ACC_S32_SAT, TRANSPOSES = E == E_F16 || E == E_BF16;
    const s32 *d = I.o;
    const s32 *a = I.o + N / 2 / PACK;
    const s32 *b = a + (A_REGS ? 4 : 1);
    const s32 *p = b + 1;
    s32 sa = INTEGER ? 1 : p[2], sb = INTEGER ? 1 : p[3];
    bool ta = TRANSPOSES && !A_REGS && p[4], tb = TRANSPOSES && p[A_REGS ? 4 : 5];
    if (w.cta->warps.size() % 4) w.M->fail("operand", I, "wgmma needs whole warpgroups", &w);
    Operand ob = smem_operand(w, I, b[0], tb, EB), oa{};
    auto x = std::make_shared<Async>();
    Operand own{}; // a warp reads its 16 rows only; MN-major ones lie among those of the others
    const int rows = A_REGS || !ta ? 16 : 64, shift = rows == 16 ? 0 : 16 * (w.id % 4);
    if (!A_REGS) {
        own = oa = smem_operand(w, I, a[0], ta, E);
        if (!ta) own.start += (u32)(w.id % 4) * 2 * own.sbo;
        x->reads.push_back(operand_range(own, rows));
    }
    x->reads.push_back(operand_range(ob, N));
    x->work = 16ull * (u64)N * k_of(E);
    x->bytes = (u32)N / 4 * 32 + (A_REGS ? 0 : 16 * 32); // of one warp: the four share B
    bool acc = w.pred(p, w.leader());
    float sign = (float)(sa * sb);
    Warp *wp = &w;
    const Ins *ins = &I;
    // A in registers is read when the instruction runs, like the accumulators.
    x->run = [=] {
        alignas(64) float fa[KMAX * 64], fb[KMAX * 256], acc_t[256 * 16];
        int k = fetch_operand(ob, N, fb, *ins);
        if (A_REGS)
            read_fragment<E>(*wp, a, fa);
        else
            fetch_operand(own, rows, fa, *ins);
        if (sign < 0)
            for (int i = 0; i < k * rows; i++) fa[i] = -fa[i];
        if (acc && !INTEGER) read_accumulators<D>(*wp, d, N, acc_t);
        const Factor a16{fa + shift, rows, lowest(E)}, bn{fb, N, lowest(EB)};
        if (INTEGER)
            exact_product(acc_t, 16, a16, bn, {16, N, k});
        else
            product(ADDER<E, D>, acc_t, 16, a16, bn, {16, N, k}, acc);
        write_accumulators<D>(*wp, d, N, acc_t, acc);
    };
    queue(w, I, x, A_REGS ? nullptr : &oa, ob, N);
    return NEXT;
}
Result fence(Warp &w, const Ins &I) {
    if (w.M->hb) w.M->hb->wgmma_fence(w, I);
    return NEXT;
}
Result commit(Warp &w, const Ins &) {
    w.wg_groups.push_back(std::move(w.wg_open));
    w.wg_open.clear();
    return NEXT;
}
Result wait(Warp &w, const Ins &I) {
    while (w.wg_groups.size() > (size_t)I.o[0]) {
        for (auto &a : w.wg_groups.front()) {
            w.M->finish(a);
            if (w.M->hb) w.M->hb->engine_done(w, *a);
        }
        w.wg_groups.pop_front();
    }
    return NEXT;
}
const char *const NAMES[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "", "", "", "s8", "u8"};
// Rows with A as a descriptor and in registers. tail: of a descriptor form, and of a register form.
template <Elem E, Elem EB, Acc D> void forms(int n, const char *k, const char *descriptor, const char *registers) {
    std::string type = D == ACC_F32 ? ".f32." : D == ACC_F16 ? ".f16." : ".s32.";
    std::string name = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + k + type + NAMES[E] + "." + NAMES[EB];
    if (D == ACC_S32_SAT)
        name = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + k + ".satfinite" + type + NAMES[E] + "." + NAMES[EB];
    std::string d = "{" + std::string((size_t)(D == ACC_F16 ? n / 4 : n / 2), 'd') + "}";
    def(name, d + " S S P" + descriptor, mma<E, EB, false, D>, true, n);
    def(name, d + " {ssss} S P" + registers, mma<E, EB, true, D>, true, n);
}
template <Elem E, Elem EB> void integer_forms(int n) {
    forms<E, EB, ACC_S32>(n, "k32", "", "");
    forms<E, EB, ACC_S32_SAT>(n, "k32", "", "");
}
template <Elem E, Elem EB> void byte_forms(int n) {
    forms<E, EB, ACC_F32>(n, "k32", " i i", " i i");
    forms<E, EB, ACC_F16>(n, "k32", " i i", " i i");
}
void shape(int n) {
    forms<E_BF16, E_BF16, ACC_F32>(n, "k16", " i i i i", " i i i");
    forms<E_F16, E_F16, ACC_F32>(n, "k16", " i i i i", " i i i");
    forms<E_F16, E_F16, ACC_F16>(n, "k16", " i i i i", " i i i");
    forms<E_TF32, E_TF32, ACC_F32>(n, "k8", " i i", " i i");
    byte_forms<E_E4M3, E_E4M3>(n);
    byte_forms<E_E4M3, E_E5M2>(n);
    byte_forms<E_E5M2, E_E4M3>(n);
    byte_forms<E_E5M2, E_E5M2>(n);
    if (n > 32 && n % 16 && n != 24) return; // integers: multiples of 16 beyond 32
    integer_forms<E_S8, E_S8>(n);
    integer_forms<E_S8, E_U8>(n);
    integer_forms<E_U8, E_S8>(n);
    integer_forms<E_U8, E_U8>(n);
}
} // namespace

void define_wgmma() {
    for (int n = 8; n <= 256; n += 8) shape(n);
    def("wgmma.fence.sync.aligned", "", fence, true);
    def("wgmma.commit_group.sync.aligned", "", commit, true);
    def("wgmma.wait_group.sync.aligned", "i", wait, true);
}
