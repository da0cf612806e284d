# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""A repeated call launches with what a first call would: the kernel is replaced by one that notes its arguments. No GPU."""
import gc
import weakref

import numpy as np
import pytest
import torch
from launched import launches  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4 import BlockMask, create_block_mask, flex_attention
from flexfa4.errors import ShapeError, UnsupportedError
from flexfa4.runtime import kernels, native, relaunch, repeat, store

B, H, S, D = 1, 2, 300, 64


def inputs(length=S, heads=H, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(B, heads, length, D, generator=g).to(dtype) for _ in range(3)]


def plain(given):
    """Arguments as values: tensors by layout and content; out and lse (the last two of five) and parts (values and statistics),
    which the kernels write, by layout."""
    if isinstance(given, torch.Tensor):
        return layout(given), given.float().flatten().tolist()
    if isinstance(given, tuple):
        tensors = [isinstance(x, torch.Tensor) for x in given]
        if len(given) >= 5 and all(tensors[3:5]):
            return tuple(map(plain, given[:3])) + tuple(map(layout, given[3:5])) + given[5:]
        if tensors == [True, True] and given[0].shape[:-1] == given[1].shape[:-1]:
            return tuple(map(layout, given))
        return tuple(map(plain, given))
    return given


def layout(t):
    return t.shape, t.stride(), t.dtype


def same_as_first(launches, call) -> bool:
    """Runs `call` as it comes, twice more, and as a first call; True if it was a repeated one. All must launch alike."""
    again, known, made = repeat.again, [], []
    repeat.again = lambda *a: known.append(again(*a)) or known[-1]
    try:
        for i in range(4):
            del launches[:]
            if i == 3:
                repeat._known.clear()
                repeat._ready.clear()
                repeat._hints.clear()
            call()
            made.append(list(launches))
    finally:
        repeat.again = again
    assert len({len(calls) for calls in made}) == 1 and made[0]
    for one, *others in zip(*made):
        for other in others:
            assert one[:2] == other[:2] and plain(one[2]) == plain(other[2])
    assert known[1] is not None and known[2] is not None and known[3] is None
    return known[0] is not None


def window(size):
    return lambda b, h, q, kv: (q >= kv) & (q - kv < size)


@pytest.mark.parametrize("arguments", [
    lambda: {},
    lambda: dict(mask_mod=window(100)),
    lambda: dict(block_mask=create_block_mask(window(100), None, None, S, S)),
    lambda: dict(score_mod=lambda s, b, h, q, kv, t=torch.rand(H): s + t[h] * (kv - q)),
    lambda: dict(score_mod=lambda s, b, h, q, kv, t=torch.tensor(3.0): s * t, mask_mod=window(100)),
    lambda: dict(score_mod=lambda s, b, h, q, kv, t=torch.rand(S, S).bool().t(): torch.where(t[q, kv], s, s + 1.5)),
    lambda: dict(out_mod=lambda out, lse, b, h, q, d: out * 2.0, scale=0.3),
])
def test_a_repeated_call_launches_as_the_first(launches, arguments):
    q, k, v = inputs()
    given = arguments()
    flex_attention(q, k, v, **given)
    assert len(repeat._known) == 1
    assert same_as_first(launches, lambda: flex_attention(q, k, v, **given))
    assert flex_attention(q, k, v, **given, return_lse=True)[1].shape == (B, H, S)


def test_splits_are_combined_in_repeated_calls_too(launches):
    q, k, v = inputs(length=1500)
    q = q[:, :1, :50]
    flex_attention(q, k[:, :1], v[:, :1])
    assert [kind for kind, *_ in launches] == ["forward", "combine"]
    assert same_as_first(launches, lambda: flex_attention(q, k[:, :1], v[:, :1]))


def test_a_number_that_changes_reaches_the_launch(launches):
    q, k, v = inputs()
    for size in (100, 50, 100, 10):
        flex_attention(q, k, v, mask_mod=window(size))
        assert launches[-1][2][4:] == (None, (size,))
    assert len(repeat._known) == 3
    assert same_as_first(launches, lambda: flex_attention(q, k, v, mask_mod=window(50)))


def test_captures_of_a_mask_that_change_in_place(launches):
    q, k, v = inputs()
    documents = torch.arange(S) // 100

    def same(b, h, i, j):
        return documents[i] == documents[j]

    mask = create_block_mask(same, None, None, S, S)
    for given in (dict(mask_mod=same), dict(block_mask=mask)):
        flex_attention(q, k, v, **given)
        assert same_as_first(launches, lambda: flex_attention(q, k, v, **given))
        documents += torch.arange(S) // 150
        assert not same_as_first(launches, lambda: flex_attention(q, k, v, **given))
        assert same_as_first(launches, lambda: flex_attention(q, k, v, **given))


def test_a_capture_that_lies_otherwise(launches):
    q, k, v = inputs()
    table = torch.rand(S, S)

    def bias(score, b, h, i, j):
        return score + table[i, j]

    flex_attention(q, k, v, bias)
    table.as_strided_((S, S), (1, S))
    assert not same_as_first(launches, lambda: flex_attention(q, k, v, bias))
    assert same_as_first(launches, lambda: flex_attention(q, k, v, bias))
    table.requires_grad_()
    with torch.no_grad():
        assert same_as_first(launches, lambda: flex_attention(q, k, v, bias))
    assert not launches[-1][2][4][0].requires_grad


def test_inputs_that_lie_otherwise(launches):
    q, k, v = inputs()
    flex_attention(q, k, v)
    wide = torch.zeros(B, S, H, D + 8, dtype=torch.bfloat16).transpose(1, 2)
    columns_first = q.transpose(2, 3).contiguous().transpose(2, 3)
    for other in (wide[..., :D], wide[..., 4:4 + D], inputs(heads=2 * H)[0][:, ::2], columns_first):
        flex_attention(other, k, v)
        assert same_as_first(launches, lambda: flex_attention(other, k, v))
    room = torch.zeros(B * H * S * D + 4, dtype=torch.bfloat16)
    for offset in (0, 4):               # the same shape and strides, another alignment
        view = room[offset:offset + B * H * S * D].view(B, H, S, D)
        flex_attention(view, k, v)
        assert launches[-1][2][0][0].data_ptr() % 16 == 0


def test_lazy_negatives_reach_the_kernel_as_numbers(launches):
    """The imaginary part of a conjugate is a view whose memory holds the negative."""
    tensors, table = inputs(), torch.randn(S)
    lazy = [t.neg()._neg_view() for t in (*tensors, table)]
    assert all(t.is_neg() for t in lazy)

    def call(q, k, v, bias):
        del launches[:]
        flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j])
        given = launches[0][2][0], launches[0][2][4]
        assert not any(t.is_neg() for tensors in given for t in tensors)
        return tuple(map(plain, given))

    right = call(*tensors, table)
    for _ in range(3):
        for at in range(4):
            assert call(*[mine if i == at else t for i, (mine, t) in enumerate(zip(lazy, (*tensors, table)))]) == right
        assert call(*tensors, table) == right


def test_what_a_first_call_refuses_is_refused_after_one_that_went_well(launches):
    q, k, v = inputs()
    flex_attention(q, k, v)
    few = inputs(heads=1)
    flex_attention(q, few[1], few[2], enable_gqa=True)
    for bad in ((q, k[..., :32], v), (q, k.half(), v), (q, few[1], few[2]), (q, k[0], v), (q.to_sparse(), k, v)):
        with pytest.raises(ShapeError):
            flex_attention(*bad)
    mask = create_block_mask(window(9), None, None, S, S)
    flex_attention(q, k, v, block_mask=mask)
    short = inputs(length=200)
    with pytest.raises(ShapeError):
        flex_attention(*short, block_mask=mask)
    with pytest.raises(ShapeError):
        flex_attention(q, k, v, lambda s, b, h, i, j, t=torch.zeros(H, device="meta"): s + t[h])


def test_a_trace_of_torch_jit_is_refused(launches):
    """It would keep the output of that one call."""
    def traced(kernel_mask):
        return torch.jit.trace(lambda *qkv: flex_attention(*qkv, mask_mod=kernel_mask), tuple(inputs()), check_trace=False)

    mask = window(7)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="torch.jit.trace.*torch.export"):
            traced(mask)
        flex_attention(*inputs(), mask_mod=mask)
    assert len(launches) == 2


@pytest.mark.parametrize("flag", ["enable_gqa", "precise", "return_lse", "debug"])
def test_a_flag_that_is_equal_to_that_of_a_known_kind_and_no_bool_is_refused(launches, flag):
    q, k, v = inputs()
    for _ in range(2):
        flex_attention(q, k, v)
    for value in (0, 0.0, np.False_):
        with pytest.raises(ShapeError, match=f"{flag}=.*: expected True or False"):
            flex_attention(q, k, v, **{flag: value})


def test_gradients_modes_and_transforms_go_through_the_op(launches, monkeypatch):
    q, k, v = inputs()
    flex_attention(q, k, v)
    leaf = q.clone().requires_grad_()

    class Seen(TorchDispatchMode):
        names = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    def again(*arguments):
        found = known(*arguments)
        assert found is None
        return found

    known = repeat.again
    monkeypatch.setattr(repeat, "again", again)
    assert flex_attention(leaf, k, v).requires_grad
    with Seen() as seen:
        flex_attention(q, k, v)
    assert "flexfa4.attention.default" in seen.names
    torch.vmap(lambda t: flex_attention(t, k, v))(q[None])
    with torch.autocast("cpu", torch.float16):
        assert flex_attention(q, k, v).dtype is torch.float16
    monkeypatch.setattr(repeat, "again", known)
    with torch.no_grad():
        assert same_as_first(launches, lambda: flex_attention(leaf, k, v)) is True


def test_nothing_of_the_users_is_kept_alive(launches):
    q, k, v = inputs()
    table = torch.rand(H)
    mask = create_block_mask(lambda b, h, i, j, t=torch.arange(S) // 10: t[i] == t[j], None, None, S, S)
    flex_attention(q, k, v, lambda s, b, h, i, j, t=table: s + t[h], mask)
    gone = [weakref.ref(x) for x in (q, k, v, table, mask)]
    assert len(repeat._known) == 1
    del q, k, v, table, mask, launches[:]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 5
    assert not repeat._known


def unversioned(values):
    """A score mod whose state no check can see: a numpy array."""
    def biased(score, b, h, q, kv):
        calls.append(1)
        return score * 1.5 + torch.as_tensor(values)[h]

    calls = []
    return biased, calls


def test_a_mod_that_is_traced_in_each_call_is_traced_once_a_call(launches):
    q, k, v = inputs()
    values = np.ones(H, np.float32)
    biased, calls = unversioned(values)
    leaf = q.clone().requires_grad_()
    flex_attention(q, k, v, biased)
    assert same_as_first(launches, lambda: flex_attention(q, k, v, biased))
    for wanted, query in enumerate((q, leaf, q)):
        del calls[:]
        values += 1
        flex_attention(query, k, v, biased)
        assert len(calls) == 1
        assert query is leaf or launches[-1][2][4][0].tolist() == [2.0 + wanted] * H
    assert len(repeat._known) == 1 and not repeat._hints


def test_a_mask_that_is_traced_in_each_call_is_traced_once_a_call(launches):
    q, k, v = inputs()
    values = np.arange(S)
    calls = []

    def early(b, h, i, j):
        calls.append(1)
        return torch.as_tensor(values)[j] <= i

    mask = create_block_mask(early, None, None, S, S)
    for given in (dict(mask_mod=early), dict(block_mask=mask)):
        flex_attention(q, k, v, **given)
        for shift in (1, 2):
            del calls[:]
            values += shift
            flex_attention(q, k, v, **given)
            assert len(calls) == 1
            assert launches[-1][2][4][0].tolist() == values.tolist()


def test_old_kinds_make_room(launches):
    q, k, v = inputs()
    for i in range(repeat._KEPT + 20):
        flex_attention(q, k, v, scale=0.1 + i / 1000)
    assert len(repeat._known) == repeat._KEPT


def test_two_masks_of_one_function_are_two(launches):
    q, k, v = inputs()
    first, second = (create_block_mask(window(100), None, None, S, S) for _ in range(2))
    flex_attention(q, k, v, block_mask=first)
    assert isinstance(second, BlockMask)
    assert not same_as_first(launches, lambda: flex_attention(q, k, v, block_mask=second))


def attend(tensors, scale, *_):
    """In the place of a kernel: attention without mods."""
    query, key, value, out, lse = tensors
    scores = query.float() @ key.float().transpose(2, 3) * scale
    lse.copy_(scores.logsumexp(-1))
    out.copy_((scores.softmax(-1) @ value.float()))


TABLE = torch.rand(H, S)
MASK = create_block_mask(window(100), None, None, S, S)


@pytest.mark.parametrize("wanted", ["qkv", "q", "v", "table", "q table"])
@pytest.mark.parametrize("name", ["plain", "table", "block mask", "mask"])
def test_gradients_of_repeated_calls_are_those_of_the_op(launches, monkeypatch, name, wanted):
    monkeypatch.setattr(kernels, "_make", lambda kind, text, signature: attend)
    tensors = [t.requires_grad_(letter in wanted.split()[0]) for t, letter in zip(inputs(), "qkv")]
    table = TABLE.clone().requires_grad_("table" in wanted)
    given = {"plain": {}, "table": dict(score_mod=lambda s, b, h, i, j: s + table[h, j]), "block mask": dict(block_mask=MASK),
             "mask": dict(mask_mod=lambda b, h, i, j: table[h, j] < 0.9)}[name]
    leaves = [t for t in (*tensors, table) if t.requires_grad and (t is not table or name in ("table", "mask"))]
    if not leaves:
        return
    known, found = repeat.again, []
    monkeypatch.setattr(repeat, "again", lambda *a: found.append(known(*a)) or found[-1])

    def gradients(loss):
        return torch.autograd.grad(loss(*flex_attention(*tensors, **given, return_lse=True)), leaves)

    for loss in (lambda out, lse: out.float().square().sum(), lambda out, lse: out.float().sum() + lse.sum(),
                 lambda out, lse: lse.square().sum()):
        repeat._ready.clear()
        repeat._hints.clear()
        first, second = gradients(loss), gradients(loss)
        assert found[-2] is None and found[-1] is not None and found[-1][0].grad_fn is not None
        assert all(torch.equal(a, b) for a, b in zip(first, second))
    with torch.no_grad():
        assert flex_attention(*tensors, **given).grad_fn is None
    tensors[0].requires_grad_(not tensors[0].requires_grad)         # another kind
    assert flex_attention(*tensors, **given).requires_grad is any(t.requires_grad for t in (*tensors, *leaves))


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_loaded_kernel_gets_tensors_that_want_gradients_where_tvm_ffi_takes_them(launches, monkeypatch, exchanged):
    pytest.importorskip("tvm_ffi")
    monkeypatch.setattr(store, "is_loaded", lambda function: True)
    monkeypatch.setattr(native, "takes_leaves", lambda: exchanged)
    leaf, k, v = inputs()
    leaf.requires_grad_()
    for _ in range(3):
        with torch.no_grad():
            flex_attention(leaf, k, v)
    given = launches[-1][2][0][0]
    assert (given is leaf) is exchanged and given.requires_grad is exchanged and given.data_ptr() == leaf.data_ptr()


def test_a_call_without_gradients_is_not_recorded_by_a_kind_that_is(launches, monkeypatch):
    leaf, k, v = inputs()
    leaf.requires_grad_()
    for _ in range(2):
        flex_attention(leaf, k, v)
    applied = []
    monkeypatch.setattr(relaunch.Recorded, "apply", lambda *arguments: applied.append(arguments))
    with torch.no_grad():
        assert flex_attention(leaf, k, v).grad_fn is None
    assert not applied


def test_a_repeated_call_has_no_second_derivative_either(launches, monkeypatch):
    monkeypatch.setattr(kernels, "_make", lambda kind, text, signature: attend)
    q, k, v = (t.requires_grad_() for t in inputs())
    for _ in range(2):
        (grad,) = torch.autograd.grad(flex_attention(q, k, v).float().square().sum(), q, create_graph=True)
        with pytest.raises(UnsupportedError, match="second derivative"):
            grad.sum().backward()
