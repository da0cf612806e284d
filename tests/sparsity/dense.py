"""Independent references: a mask evaluated by calling it on plain tensors, and the kinds of its tiles counted one by one."""
import torch


def dense(mask_mod, B, H, q_len, kv_len) -> torch.Tensor:
    """bool [B, H, q_len, kv_len], by calling the function on index grids."""
    b, h = torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None]
    q, kv = torch.arange(q_len)[:, None], torch.arange(kv_len)
    return torch.as_tensor(mask_mod(b, h, q, kv)).expand(B, H, q_len, kv_len)


def kinds(mask: torch.Tensor, q_tile: int, kv_tile: int) -> torch.Tensor:
    """uint8 [B, H, q tiles, kv tiles]: 0 empty, 1 partial, 2 full, from the dense mask."""
    B, H, Q, K = mask.shape
    rows, columns = -(-Q // q_tile), -(-K // kv_tile)
    out = torch.empty(B, H, rows, columns, dtype=torch.uint8)
    for i in range(rows):
        for j in range(columns):
            tile = mask[:, :, i * q_tile:(i + 1) * q_tile, j * kv_tile:(j + 1) * kv_tile].flatten(2)
            out[:, :, i, j] = tile.any(2).to(torch.uint8) + tile.all(2).to(torch.uint8)
    return out


def check_spans(spans, expected: torch.Tensor, exact: bool = True):
    """The spans say `expected` (uint8 [B, H, q tiles, kv tiles], broadcast over the batches and heads they tell apart), and are
    ascending, disjoint and maximal. With exact=False a tile may also be PARTIAL."""
    got = spans.states().expand(expected.shape)
    wrong = (got != expected) if exact else (got != expected) & (got != 1)
    assert not wrong.any(), \
        f"{int(wrong.sum())} tiles, first {wrong.nonzero()[0].tolist()}: got {got[wrong][0]}, is {expected[wrong][0]}"
    row_ptr, runs = spans.row_ptr.tolist(), spans.runs.tolist()
    assert spans.runs.dtype is torch.int32 and spans.row_ptr.dtype is torch.int32
    assert len(row_ptr) == spans.rows + 1 and row_ptr[0] == 0 and row_ptr[-1] == len(runs)
    for r in range(spans.rows):
        mine = runs[row_ptr[r]:row_ptr[r + 1]]
        for begin, end, kind in mine:
            assert 0 <= begin < end <= spans.columns and kind in (1, 2)
        for (_, end, kind), (begin, _, after) in zip(mine, mine[1:]):
            assert begin > end or (begin == end and kind != after), "runs overlap, descend, or could be one"
