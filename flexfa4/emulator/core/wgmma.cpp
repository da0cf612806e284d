// wgmma (sm_90a). Each warp of the warpgroup computes its own 16 rows, in the order it issued them.
#include "lanes.h"
#include "mma.h"
#include "order.h"

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
// {D}, A, B, scale-d, imm-scale-a, imm-scale-b (, trans-a, trans-b). A: 64-bit descriptor or four registers.
template <Elem E, bool A_REGS> Result mma(Warp &w, const Ins &I) {
    const int N = I.aux;
    const s32 *d = I.o;
    const s32 *a = I.o + N / 2;
    const s32 *b = a + (A_REGS ? 4 : 1);
    const s32 *p = b + 1;
    s32 sa = p[2], sb = p[3];
    bool ta = E != E_TF32 && !A_REGS && p[4], tb = E != E_TF32 && p[A_REGS ? 4 : 5];
    if (w.cta->warps.size() % 4) w.M->fail("operand", I, "wgmma needs whole warpgroups", &w);
    Operand ob = smem_operand(w, I, b[0], tb, E), oa{};
    auto x = std::make_shared<Async>();
    if (!A_REGS) {
        oa = smem_operand(w, I, a[0], ta, E);
        x->reads.push_back(operand_range(oa, 64));
    }
    x->reads.push_back(operand_range(ob, N));
    bool acc = w.pred(p, w.leader());
    float sign = (float)(sa * sb);
    int quarter = 16 * (w.id % 4);
    Warp *wp = &w;
    const Ins *ins = &I;
    // A in registers is read when the instruction runs, like the accumulators.
    x->run = [=] {
        alignas(64) float fa[KMAX * 64], fb[KMAX * 256], acc_t[256 * 16];
        int k, stride = 64, shift = quarter;
        k = fetch_operand(ob, N, fb, *ins);
        if (A_REGS) {
            stride = 16;
            shift = 0;
            for (int i = 0; i < 4; i++)
                for (int l = 0; l < LANES; l++) {
                    u32 v = wp->r(a[i])[l];
                    int row = l / 4 + 8 * (i & 1);
                    if (E == E_TF32) {
                        fa[(l % 4 + 4 * (i / 2)) * 16 + row] = as_f(v & ~0x1fffu);
                        continue;
                    }
                    int c = (l % 4) * 2 + 8 * (i / 2);
                    fa[c * 16 + row] = E == E_BF16 ? bf2f(v & 0xffff) : h2f(v & 0xffff);
                    fa[(c + 1) * 16 + row] = E == E_BF16 ? bf2f(v >> 16) : h2f(v >> 16);
                }
        } else
            fetch_operand(oa, 64, fa, *ins);
        if (sign < 0)
            for (int i = 0; i < k * stride; i++) fa[i] = -fa[i];
        if (acc)
            for (int j = 0; j < N / 2; j++) {
                const u32 *r = wp->r(d[j]);
                for (int l = 0; l < LANES; l++)
                    acc_t[((j / 4) * 8 + (l % 4) * 2 + (j & 1)) * 16 + l / 4 + 8 * ((j >> 1) & 1)] = as_f(r[l]);
            }
        product(acc_t, 16, fa + shift, fb, 16, N, k, stride, N, acc);
        for (int j = 0; j < N / 2; j++) {
            u32 *r = wp->r(d[j]);
            for (int l = 0; l < LANES; l++)
                r[l] = as_u(acc_t[((j / 4) * 8 + (l % 4) * 2 + (j & 1)) * 16 + l / 4 + 8 * ((j >> 1) & 1)]);
        }
    };
    queue(w, I, x, A_REGS ? nullptr : &oa, ob, N);
    return NEXT;
}
Result fence(Warp &w, const Ins &) {
    if (w.M->hb) w.M->hb->wgmma_fence(w);
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
void shape(int n) {
    std::string head = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n);
    std::string d = "{" + std::string(n / 2, 'd') + "}";
    def(head + "k16.f32.bf16.bf16", d + " S S P i i i i", mma<E_BF16, false>, true, n);
    def(head + "k16.f32.bf16.bf16", d + " {ssss} S P i i i", mma<E_BF16, true>, true, n);
    def(head + "k16.f32.f16.f16", d + " S S P i i i i", mma<E_F16, false>, true, n);
    def(head + "k16.f32.f16.f16", d + " {ssss} S P i i i", mma<E_F16, true>, true, n);
    def(head + "k8.f32.tf32.tf32", d + " S S P i i", mma<E_TF32, false>, true, n);
    def(head + "k8.f32.tf32.tf32", d + " {ssss} S P i i", mma<E_TF32, true>, true, n);
}
} // namespace

void define_wgmma() {
    for (int n = 8; n <= 256; n += 8) shape(n);
    def("wgmma.fence.sync.aligned", "", fence, true);
    def("wgmma.commit_group.sync.aligned", "", commit, true);
    def("wgmma.wait_group.sync.aligned", "i", wait, true);
}
