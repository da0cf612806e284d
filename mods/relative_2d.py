"""Relative bias on an image (Liu et al. 2021, "Swin Transformer", section 3.2, relative position bias)."""


def relative_bias_2d(table, width):
    """Score edit over a grid `width` pixels wide, flattened row by row.

    `table`: float tensor [heads, 2 * height - 1, 2 * width - 1], indexed by row and column offset from query to key; it may
    require a gradient.
    """
    rows_before, cols_before = table.shape[1] // 2, table.shape[2] // 2

    def score_mod(score, b, h, q, kv):
        rows = kv // width - q // width
        cols = kv % width - q % width
        return score + table[h, rows + rows_before, cols + cols_before]

    return score_mod
