"""Neighbourhood attention on an image (Hassani et al. 2023, "Neighborhood Attention Transformer", section 3.1)."""


def neighborhood_2d(height, width, kernel):
    """Mask over a height x width grid, flattened row by row, in which each pixel sees a kernel x kernel window.

    The window slides inwards at the borders, so that every pixel has kernel**2 neighbours.
    Raises ValueError where the window is larger than the grid.
    """
    if not 1 <= kernel <= min(height, width):
        raise ValueError(f"kernel={kernel} does not fit a grid of {height} x {width}")
    half, last_row, last_col = kernel // 2, height - kernel, width - kernel

    def mask_mod(b, h, q, kv):
        first_row = (q // width - half).clamp(0, last_row)
        first_col = (q % width - half).clamp(0, last_col)
        row, col = kv // width - first_row, kv % width - first_col
        return (row >= 0) & (row < kernel) & (col >= 0) & (col < kernel)

    return mask_mod
