// Between registers of a warp, rows of shared memory and columns of a matrix, 16 floats at a time.
#pragma once
#include <cstring>

typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef int Ints __attribute__((vector_size(64)));

inline Floats floats(const float *p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float *p, const Floats &v) { std::memcpy(p, &v, sizeof v); }

// Four columns of 16 rows, `step` floats apart, of which lane 4r + c of one register holds row r of column c and the same lane of
// another one row r + 8.
inline void to_columns(const float *top, const float *bottom, float *columns, int step) {
    constexpr Ints LOW{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, HIGH = LOW + 8;
    constexpr Ints FIRST{0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29};
    const Floats a[2] = {floats(top), floats(top + 16)}, b[2] = {floats(bottom), floats(bottom + 16)};
    for (int pair = 0; pair < 2; pair++) { // two columns
        Floats t = __builtin_shuffle(a[0], a[1], FIRST + 2 * pair), u = __builtin_shuffle(b[0], b[1], FIRST + 2 * pair);
        store(columns + 2 * pair * step, __builtin_shuffle(t, u, LOW));
        store(columns + (2 * pair + 1) * step, __builtin_shuffle(t, u, HIGH));
    }
}
inline void from_columns(const float *columns, int step, float *top, float *bottom) {
    constexpr Ints LOW{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, HIGH = LOW + 8;
    constexpr Ints FIRST{0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
    const Floats c[4] = {floats(columns), floats(columns + step), floats(columns + 2 * step), floats(columns + 3 * step)};
    for (int half = 0; half < 2; half++) {
        const Ints rows = half ? HIGH : LOW;
        Floats t = __builtin_shuffle(c[0], c[1], rows), u = __builtin_shuffle(c[2], c[3], rows);
        float *out = half ? bottom : top;
        store(out, __builtin_shuffle(t, u, FIRST));
        store(out + 16, __builtin_shuffle(t, u, FIRST + 4));
    }
}
// 16 rows of 16 floats become columns.
inline void transpose(Floats (&v)[16]) {
    constexpr Ints LANE{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int s = 1; s < 16; s *= 2) { // swaps the off-diagonal halves of blocks of 2s
        const Ints second = (LANE & s) != 0;
        const Ints first_mask = second ? LANE - s + 16 : LANE, second_mask = second ? LANE + 16 : LANE + s;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i & s) continue;
            const Floats a = v[i], b = v[i + s];
            v[i] = __builtin_shuffle(a, b, first_mask);
            v[i + s] = __builtin_shuffle(a, b, second_mask);
        }
    }
}
