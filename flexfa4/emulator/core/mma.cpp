#include "mma.h"
#include "order.h"
#include "small_floats.h"
#include "transpose.h"
#include <array>

namespace {
// Byte address of the 16-byte chunk that holds (row, chunk) of a K-major operand.
u32 chunk_k(const Operand &d, int row, int chunk) {
    if (d.span == 16) return d.start + (u32)(row / 8) * d.sbo + (u32)(row % 8) * 16 + (u32)chunk * d.lbo;
    return swizzle(d.start + (u32)(row / 8) * d.sbo + (u32)(row % 8) * d.span + (u32)chunk * 16, d.span);
}
// ... that holds rows 8g..8g+7 of column k of an MN-major operand.
u32 chunk_mn(const Operand &d, int g, int k) {
    if (d.span == 16) return d.start + (u32)g * d.sbo + (u32)(k / 8) * d.lbo + (u32)(k % 8) * 16;
    u32 per = d.span / 16;
    return swizzle(d.start + (u32)(g / per) * d.lbo + (u32)(g % per) * 16 + (u32)(k / 8) * d.sbo + (u32)(k % 8) * d.span, d.span);
}
inline void widen(const u8 *p, float *out, Elem e) { // eight halves
    u16 h[8];
    std::memcpy(h, p, 16);
    if (e == E_BF16)
        for (int i = 0; i < 8; i++) out[i] = bf2f(h[i]);
    else
        for (int i = 0; i < 8; i++) out[i] = h2f(h[i]);
}
// What each byte of a format stands for; 6- and 4-bit formats lie in the low bits of theirs.
std::array<std::array<float, 256>, 5> byte_tables() {
    std::array<std::array<float, 256>, 5> t;
    for (u32 i = 0; i < 256; i++) {
        t[0][i] = decode8<4, 3>(i);
        t[1][i] = decode8<5, 2>(i);
        t[2][i] = decode8<2, 3>(i & 63);
        t[3][i] = decode8<3, 2>(i & 63);
        t[4][i] = decode8<2, 1>(i & 15);
    }
    return t;
}
const std::array<std::array<float, 256>, 5> TABLES = byte_tables();
} // namespace

float byte_value(u32 x, Elem e) { return e == E_S8 ? (float)(s8)x : e == E_U8 ? (float)(u8)x : TABLES[e - E_E4M3][x & 255]; }
Range operand_range(const Operand &d, int rows) {
    u32 hi = d.start;
    if (d.mn_major && is_byte(d.elem))
        hi += d.span == 16 ? (u32)((rows - 1) / 16) * d.sbo + 3 * d.lbo + 128
                           : (u32)((rows - 1) / (int)d.span) * d.lbo + 3 * d.sbo + 8 * d.span;
    else if (!d.mn_major)
        hi += (u32)((rows - 1) / 8) * d.sbo + (d.span == 16 ? 128 + d.lbo : 7 * d.span + 32);
    else if (d.span == 16)
        hi += (u32)((rows - 1) / 8) * d.sbo + d.lbo + 128;
    else
        hi += (u32)((rows - 1) / (int)(d.span / 2)) * d.lbo + d.sbo + 8 * d.span;
    return {d.cta, d.start, hi};
}

void fetch_chunks(const Operand &d, int rows, int chunks, u8 *out, const Ins &I) {
    for (int row = 0; row < rows; row++)
        for (int c = 0; c < chunks; c++)
            std::memcpy(out + 16 * (row * chunks + c), d.cta->at(chunk_k(d, row, c), 16, "tcgen05.cp", I), 16);
}
int fetch_operand(const Operand &d, int rows, float *out, const Ins &I) {
    Range r = operand_range(d, rows);
    u8 *base = d.cta->at(r.lo & ~1023u, ((r.hi + 127) & ~127u) - (r.lo & ~1023u), "matrix operand", I) - (r.lo & ~1023u);
    if (d.elem == E_TF32) {
        if (d.mn_major) d.cta->M->fail("descriptor", I, "tf32 operand that is not K-major");
        for (int row = 0; row < rows; row++)
            for (int c = 0; c < 2; c++) {
                u32 x[4];
                std::memcpy(x, base + chunk_k(d, row, c), 16);
                for (int i = 0; i < 4; i++) out[(4 * c + i) * rows + row] = as_f(x[i] & ~0x1fffu);
            }
        return 8;
    }
    if (is_byte(d.elem)) {
        for (int line = 0; line < (d.mn_major ? 32 : rows); line++)
            for (int c = 0; c < (d.mn_major ? rows / 16 : 2); c++) {
                const u8 *p = base + (d.mn_major ? chunk_mn(d, c, line) : chunk_k(d, line, c));
                for (int i = 0; i < 16; i++)
                    out[d.mn_major ? line * rows + 16 * c + i : (16 * c + i) * rows + line] = byte_value(p[i], d.elem);
            }
        return 32;
    }
    if (d.mn_major) {
        for (int k = 0; k < 16; k++)
            for (int g = 0; g < rows / 8; g++) widen(base + chunk_mn(d, g, k), out + k * rows + 8 * g, d.elem);
        return 16;
    }
    for (int row = 0; row < rows; row += 16) {
        alignas(64) float x[16][16];
        const int n = rows - row < 16 ? 8 : 16; // multiples of 8
        for (int r = 0; r < n; r++)
            for (int c = 0; c < 2; c++) widen(base + chunk_k(d, row + r, c), x[r] + 8 * c, d.elem);
        if (n == 8) {
            for (int r = 0; r < n; r++)
                for (int k = 0; k < 16; k++) out[k * rows + row + r] = x[r][k];
            continue;
        }
        Floats v[16];
        for (int r = 0; r < 16; r++) v[r] = floats(x[r]);
        transpose(v);
        for (int k = 0; k < 16; k++) store(out + k * rows + row, v[k]);
    }
    return 16;
}

void watch_operand(Machine &M, const Async &a, const Operand &d, int first, int rows) {
    Look L = M.hb->operand(a, d.cta);
    auto &memory = d.cta->order->smem;
    auto chunk = [&](u32 at) {
        L.at = at;
        size_t g = (at - SMEM_BASE) / 16;
        if (at >= SMEM_BASE && g < memory.size()) M.hb->shadow.touch(memory[g], L, 15);
    };
    const int per = is_byte(d.elem) ? 16 : 8; // rows in a chunk of an MN-major operand
    if (d.mn_major)
        for (int k = 0; k < k_of(d.elem); k++)
            for (int g = first / per; g < (first + rows) / per; g++) chunk(chunk_mn(d, g, k));
    else
        for (int row = first; row < first + rows; row++)
            for (int c = 0; c < 2; c++) chunk(chunk_k(d, row, c));
}
