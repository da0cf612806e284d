"""The documents are true: their Python blocks run, the files they name exist, the listed errors are raised with those words."""
import inspect
import re
from pathlib import Path

import pytest
import torch

import flexfa4
from flexfa4 import mods
from flexfa4.errors import TraceError
from flexfa4.trace import trace

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("writing_mods.md", "scheduling.md", "masks.md"))]


@pytest.mark.parametrize("path", RUN, ids=lambda p: p.name)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """All blocks of a document, one after the other, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    source = tmp_path / "blocks.py"
    source.write_text("\n".join(blocks))
    exec(compile(source.read_text(), str(source), "exec"), {"__name__": "document"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_named_files_exist(path):
    named = re.findall(r"`((?:docs|mods|tests|benchmarks|flexfa4|\.ci)/[\w./-]*)`", path.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """What `page#...` may name: its headings as GitHub spells them, and ids written out."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    named = set(re.findall(r'<a id="([\w-]+)">', text))
    return named | {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert target.startswith("https://") or (page.exists() and (not anchor or anchor in anchors(page))), target


@pytest.mark.parametrize("name", ["performance.md", "performance_blackwell.md"])
def test_written_tables_are_those_of_the_results(name):
    """A script's table and the file of its results are one text, and it stands on one page."""
    tables = re.findall(r"<!-- table: begin \(benchmarks/(\w+)\.py\) -->(.*?)<!-- table: end \(benchmarks/(\w+)\.py\) -->",
                        (ROOT / "docs" / name).read_text(), re.S)
    assert tables
    for script, table, closed in tables:
        assert script == closed
        assert table.strip() == (ROOT / "benchmarks" / "results" / f"{script}.md").read_text().strip(), script
        marked = [page.name for page in DOCUMENTS if f"<!-- table: begin (benchmarks/{script}.py) -->" in page.read_text()]
        assert marked == [name]


def test_the_gallery_page_lists_every_mod_with_its_arguments():
    rows = re.findall(r"^\| `(\w+)(\(.*?\))?` \| (\w+) \|", (ROOT / "docs" / "gallery.md").read_text(), re.M)
    kinds = {"causal_mask": "mask", **{name: kind for name, _, kind in rows}}
    assert sorted(name for name, *_ in rows) == sorted(set(mods.__all__) - {"GALLERY", "Example"})
    for name, arguments, _ in rows:
        assert name == "causal_mask" or arguments == str(inspect.signature(getattr(mods, name)))
    for kind in ("mask", "score", "out"):
        assert sum(k == kind for k in kinds.values()) == sum(e.kind == kind for e in mods.GALLERY)


def test_the_call_is_described_argument_by_argument():
    text = (ROOT / "docs" / "writing_mods.md").read_text().split("\n## The call\n")[1].split("\n## ")[0]
    table = text.split("|---|---|")[1].split("\n\n")[0]
    described = [name for row in table.strip().splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    signature = inspect.signature(flexfa4.flex_attention)
    assert sorted(described) == sorted(signature.parameters)
    for name, p in signature.parameters.items():
        assert p.default is p.empty or f"{name}={p.default}" in " ".join(text.split())


table_2d = torch.zeros(4, 4)


def _writes(score, b, h, q, kv):
    table_2d[0, 0] = 1.0
    return score


REFUSED = {
    "`if` on a traced value": ("score", lambda score, b, h, q, kv: score if q > kv else -score),
    "... draws random numbers": ("score", lambda score, b, h, q, kv: score + torch.rand(())),
    "`.item()` on a traced value": ("score", lambda score, b, h, q, kv: score + q.item()),
    "... is a reduction": ("score", lambda score, b, h, q, kv: score.softmax(-1)),
    "... returns dtype ..., it must return a bool": ("mask", lambda b, h, q, kv: q * 1.0),
    "... returns a bool where a float is wanted": ("score", lambda score, b, h, q, kv: q > kv),
    "... has the signature ...": ("score", lambda score, b, h: score),
    "... returns a vector of shape ...": ("score", lambda score, b, h, q, kv: score + table_2d[h]),
    "a write to a captured tensor": ("score", _writes),
    "... is not supported in a mod": ("score", lambda score, b, h, q, kv: torch.special.bessel_j0(score)),
}


def listed_errors():
    text = (ROOT / "docs" / "writing_mods.md").read_text().split("| message begins with")[1].split("\n\n")[0]
    return [row.split("|")[1].strip() for row in text.splitlines()[2:]]


def test_every_listed_error_has_a_case():
    assert set(listed_errors()) == set(REFUSED)


@pytest.mark.parametrize("listed", REFUSED)
def test_listed_error_is_raised_in_those_words(listed):
    kind, mod = REFUSED[listed]
    with pytest.raises(TraceError) as caught:
        trace(mod, kind)
    message = str(caught.value)
    for part in filter(None, (p.strip(" ,") for p in listed.replace("`", "").split("..."))):
        assert part.lower() in message.replace("`", "").lower()
    assert Path(__file__).name in message and "Write instead" in message


OTHER_ARGUMENTS = {"sum", "mean", "any", "all", "amax", "where", "isin", "bucketize", "searchsorted", "clamp", "masked_fill",
                   "type_as"}


def test_writing_mods_lists_only_operations_that_trace():
    """Each `name` of the operations table that torch has as a function records a node."""
    text = (ROOT / "docs" / "writing_mods.md").read_text().split("| group | what may be used |")[1].split("\n\n")[0]
    names = set(re.findall(r"`(?:torch\.)?([a-z][a-z0-9_]*)`", text)) - {"dot", "embedding", "lerp", "addcmul", "addcdiv", "pow"}
    checked = 0
    for name in sorted(names):
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
        if function is None or name in OTHER_ARGUMENTS:
            continue
        for arity in (1, 2):
            try:
                trace(lambda score, b, h, q, kv, f=function, n=arity: f(*[score] * n).float(), "score")
                checked += 1
                break
            except TraceError as error:
                assert "not supported" not in str(error), name
    assert checked > 40


def test_versions_agree():
    assert f'version = "{flexfa4.__version__}"' in (ROOT / "pyproject.toml").read_text()
