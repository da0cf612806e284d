"""The numbers of the gallery table, and that a wrong engine or a wrong tile would show in its checks."""

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("tqdm")

from flexfa4.demo import gallery, texts, tiles  # noqa: E402
from flexfa4.demo.checks import Checks  # noqa: E402
from flexfa4.mods import GALLERY, causal_mask  # noqa: E402
from flexfa4.sparsity import create_block_mask  # noqa: E402

BY_NAME = {e.name: e for e in GALLERY}


def failed(row) -> list[str]:
    checks = Checks()
    gallery.judge([row], checks)
    assert len(checks.done) == 4
    return [c.name for c in checks.done if not c.passed]


@pytest.mark.parametrize("name", ["causal", "alibi", "attention_sink"])
def test_a_row_and_its_checks_pass(name):
    row = gallery.examine(BY_NAME[name])
    assert not failed(row)
    assert len(row.cells()) == len(gallery.HEADERS)
    captured = [n for n in row.single if n not in gallery.TENSORS]
    assert captured == {"causal": [], "alibi": ["dslopes"], "attention_sink": ["dsinks"]}[name]


def test_tiles_of_causal_are_those_counted_by_hand():
    cells = dict(zip(gallery.HEADERS, gallery.examine(BY_NAME["causal"]).cells()))
    n = 16384 // 128
    assert (cells["full"], cells["partial"], cells["empty"]) == (f"{n * (n - 1) // 2:,}", f"{n}", f"{n * (n - 1) // 2:,}")
    assert cells["spans"] == f"{2 * n - 1}"


@pytest.mark.parametrize("damage", [1e-3, math.nan])
def test_a_wrong_output_fails_its_check(monkeypatch, damage):
    real = gallery.flex_attention

    def damaged(q, *args, **options):
        out = real(q, *args, **options)
        return out + torch.zeros_like(out).index_fill(2, torch.tensor([7]), damage)

    monkeypatch.setattr(gallery, "flex_attention", damaged)
    names = failed(gallery.examine(BY_NAME["causal"]))
    assert [n.split(",")[0] for n in names] == ["gallery: float32 errors", "gallery: float64 errors"]


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("wrong_tiles", 1, "wrong tiles"),
        ("scheduled", 9.0, "schedule over"),
        ("natural", math.nan, "schedule over"),
    ],
)
def test_each_other_check_can_fail(field, value, said):
    row = gallery.examine(BY_NAME["causal"])
    (name,) = failed(replace(row, **{field: value}))
    assert said in name


def test_the_worst_mod_is_named():
    good = gallery.examine(BY_NAME["causal"])
    checks = Checks()
    gallery.judge([good, replace(good, name="lame", single={**good.single, "dk": math.nan}), good], checks)
    assert checks.done[0].name == "gallery: float32 errors, worst of 3 (lame)" and not checks.done[0].passed


def test_wrong_tiles_are_counted():
    mask = create_block_mask(causal_mask, 1, 1, 100, 100)
    spans = mask.spans(32, 32)
    assert tiles.wrong(spans, mask.to_dense()) == 0
    runs = spans.compact.clone()
    runs[0, 2] = 3 - runs[0, 2]  # PARTIAL <-> FULL
    assert tiles.wrong(replace(spans, compact=runs), mask.to_dense()) == 1
    assert tiles.wrong(spans, torch.ones(1, 1, 100, 100, dtype=torch.bool)) == 10
    assert tiles.saved(spans) == 6 / 16


def test_texts_are_real_and_different():
    sentences = texts.sentences(320)
    assert len(set(sentences)) == 320
    lengths = sorted(len(s.split()) for s in sentences)
    assert 3 <= lengths[0] < 8 and 40 < lengths[-1] <= 80
    assert len(texts.long_text()) > 200_000
    documents = texts.documents(6, 800, 2500)
    assert len({d[:200] for d in documents}) == 6 and all(800 <= len(d) <= 2500 for d in documents)
    with pytest.raises(ValueError, match="topics of 1 to 2 characters, 3 wanted"):
        texts.documents(3, 1, 2)
