"""Pictures of tile maps. matplotlib is needed only here."""
from __future__ import annotations

from flexfa4.errors import UnsupportedError

from .spans import Spans

# Empty, partial, full: told apart in print and by colour-blind readers (Okabe and Ito 2008).
_COLOURS = ("#f4f4f4", "#e69f00", "#0072b2")


def picture(spans: Spans, title: str, path: str | None = None, mb: int = 0, mh: int = 0):
    """The tile map of one batch and head as a matplotlib figure, saved to `path` if given.

    Raises UnsupportedError without matplotlib.
    """
    try:  # imported here: loading matplotlib takes longer than the rest of the package
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise UnsupportedError("pictures need matplotlib: pip install 'flexfa4[draw]'") from None
    states = spans.states()[mb % spans.Bm, mh % spans.Hm].numpy()
    figure = Figure(figsize=(5, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(states, cmap=ListedColormap(_COLOURS), vmin=0, vmax=2, interpolation="nearest", aspect="auto")
    axes.set_title(title)
    axes.set_xlabel(f"key tiles of {spans.kv_tile}")
    axes.set_ylabel(f"query tiles of {spans.q_tile}")
    labels = ("empty", "partial", "full")
    axes.legend(handles=[Patch(facecolor=c, edgecolor="#888888", label=name) for c, name in zip(_COLOURS, labels)],
                loc="upper right", fontsize="small")
    if path is not None:
        figure.savefig(path)
    return figure
