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


def test_no_carriage_returns_where_the_output_is_no_terminal(tmp_path, capfd):
    """Nothing on either stream: in a log file a progress bar is a heap of lines."""
    pictures.run(tmp_path)
    assert "".join(capfd.readouterr()) == ""


def test_masks_leave_no_empty_place(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(pictures.Figure, "savefig", lambda figure, path: figures.append(figure))
    pictures.masks(tmp_path / "masks.png")
    *panels, last = figures[0].axes
    assert all(axes.images for axes in panels) and last.get_legend() is not None and not figures[0].legends


@pytest.mark.parametrize("heads, some", [(2, False), (1, True)])
def test_split_rows_have_a_colour_of_their_own(tmp_path, monkeypatch, heads, some):
    """With one head the long document outlasts the even share, so its rows are split; with two it does not."""
    figures = []
    monkeypatch.setattr(pictures.Figure, "savefig", lambda figure, path: figures.append(figure))
    monkeypatch.setattr(pictures, "HEADS", heads)
    pictures.schedule(tmp_path / "schedule.png")
    natural, scheduled = figures[0].axes[:2]
    split = pictures.to_rgba(pictures.SPLIT)
    assert not any(bar.get_facecolor() == split for bar in natural.patches)
    assert (sum(bar.get_facecolor() == split for bar in scheduled.patches) > 10) == some
    legend = scheduled.get_legend()
    assert "split over its keys" in legend.get_texts()[0].get_text() if some else legend is None
