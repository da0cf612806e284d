"""The pictures exist and show something."""

import pytest

pytest.importorskip("tqdm")
image = pytest.importorskip("matplotlib.image")

from flexfa4.demo import pictures  # noqa: E402


def test_three_pictures(tmp_path):
    text = pictures.run(tmp_path / "new" / "folder")
    assert text.splitlines() == [str(tmp_path / "new" / "folder" / n) for n in ("masks.png", "scores.png", "schedule.png")]
    for path in text.splitlines():
        pixels = image.imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 400
        assert (pixels.min(-1) < 0.7).mean() > 0.05, f"{path} is nearly blank"
