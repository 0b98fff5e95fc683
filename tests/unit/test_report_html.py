"""The page of a report: what it holds, that it links and loads nothing from elsewhere, and that no name is markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_report import full_report
from test_report_data import data_of, rich_report

from ortplugin.passes.base import Change, NearMiss
from ortplugin.report import (
    CONVERSION,
    Dropped,
    InputComparison,
    NodeTime,
    OutputComparison,
    Profile,
    ProviderVerification,
    Report,
    Timeline,
    TunedNode,
    Weights,
)
from ortplugin.report.html import to_html

VOID = {"meta", "br"}
LOADING = {"src", "srcset", "action", "data", "poster", "background", "formaction", "ping", "xlink:href"}
TAGS = (
    "html head meta title style body header h1 p nav div a main section h2 h3 dl dt dd b small details summary table "
    "thead tbody tr th td i ul li br code footer"
)


class Page(HTMLParser):
    """The page's tags, ids, links and text; AssertionError where a tag is left open or closed twice."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []
        self.text = " ".join("".join(self.words).split()).replace("\N{MULTIPLICATION SIGN}", "x")

    def values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in VOID:
            self.words.append(" ")
        else:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag not in ("b", "i", "a", "code", "small"):
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)


def page_of(report: Report) -> Page:
    return Page(to_html(data_of(report)))


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;\x1b[2J\u202e$title${x}"


def hostile_report() -> Report:
    """A stranger's text wherever a model, an error or a file name puts one."""
    name = HOSTILE
    parts = name, f"{name} (A)", f"{name} (B)"
    label = f"{name} (FusedConv)"
    nodes = (NodeTime(name, f"{name}::{name}", 2.0, 8, (label,)),)
    weights = Weights(1, 8, {name: 8}, ({"name": name, "dtype": name, "shape": [1, 2], "bytes": 8},))
    return Report(
        input=f"a/{name}",
        output=name,
        before={f"ai.onnx::{name}": 1},
        after={f"{name}::x": 1},
        changes=[Change(name, (part,), result) for part, result in zip(parts, (label, name, ""), strict=True)],
        near_misses=[NearMiss(each, name, f"{name} unknown") for each in (name, CONVERSION)],
        functions={name: 1},
        precision="fp16",
        seconds={name: 1.0},
        verification=[
            ProviderVerification(
                name, (InputComparison(name, (OutputComparison(name, False, 1.0, float("nan"), name),), name),),
                1.0, 2.0, replays=3, graph_skipped=name, notes=(name,),
            ),
            ProviderVerification("CUDAExecutionProvider", (), skipped=name),
        ],
        tuning=[TunedNode(name, name, {"": 1.0, name: None}, (name,))],
        guilty=Change(name, (name,), name),
        dropped=[Dropped(name, (name,), name)],
        labels_before=frozenset(parts),
        labels_after=frozenset({label, name}),
        weights_before=weights,
        weights_after=weights,
        profile=Profile(name, name, Timeline(3.0, 2, nodes), Timeline(2.0, 2, nodes)),
    )  # fmt: skip


REPORTS = {
    "empty": Report(),
    "restore": Report("restore"),
    "profile": Report("profile", profile=rich_report().profile),
    "full": full_report(),
    "rich": rich_report(),
    "hostile": hostile_report(),
    "skipped": Report(profile=Profile(HOSTILE, skipped=HOSTILE)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_whole_and_on_its_own(name: str) -> None:
    page = page_of(REPORTS[name])
    assert set(page.tags) <= set(TAGS.split())
    ids = page.values("id")
    assert len(ids) == len(set(ids)) >= 4
    assert page.values("href") == [f"#{each}" for each in ids]
    assert not LOADING & {key for key, _ in page.attributes}
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    source = to_html(data_of(REPORTS[name]))
    assert not re.search(r"https?:|@import|url\(", source)
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.values("content")
    assert all(re.fullmatch(r"width:\d+\.\d%", style) for style in page.values("style"))


def test_names_are_text() -> None:
    """Found in every part: none is a tag, none leaves its attribute, none reaches the reader as a control character."""
    source = to_html(data_of(hostile_report()))
    assert "<script" not in source
    assert "<img" not in source
    assert "\x1b" not in source
    assert "\u202e" not in source
    shown = r"""<script>alert(1)</script><img src=x onerror=alert(2)>"'&lt;\x1b[2J\u202e$title${x}"""
    assert Page(source).text.count(shown) > 45
    assert set(Page(source).tags) == set(page_of(rich_report()).tags) | {"br"}


def test_a_page_shows_what_the_data_say() -> None:
    text = page_of(rich_report()).text
    for words in (
        "in.onnx", "→ out.onnx", "2.00x", "2 → 1 ms", "Nodes 3 → 2", "1.0e-06", "Upgraded from opset 9 to 11", "f::g",
        "Precision fp16", "Left out the pass 'norm-prologue'", "To blame: 'remove-identities' of id (Identity)",
        "all operators 4 1.5", "LayerNormalization 3", "ortplugin::FusedLayerNorm 1.5", "medians of 9 runs",
        "ln LayerNormalization 3 75.0% 64 bytes ln (FusedLayerNorm)", "norm-prologue 1", "1 x Add, LayerNormalization",
        "1 x Identity", "1 x fuse-layer-norm", "the axes [1] are not the trailing ones", "✓ agrees a remark",
        "CUDA: not compared, no kernels", "y generated, batch=2", "inf", "a=2: wrong",
        "weights 4.0 kB 0 bytes", "activations written in a run 128 bytes 64 bytes", "--drop-guilty", "passes 1.50 s",
    ):  # fmt: skip
        assert words in text, words
    assert "✓ Original and result agree" in text
    failed = hostile_report()
    assert "✗ Outputs differ" in page_of(failed).text
    assert "✗ differs" in page_of(failed).text
    profiled = page_of(REPORTS["profile"]).text
    assert "We could take 0%" in profiled
    assert "What would become of the graph" in profiled
    assert "Outputs were not compared" in page_of(Report(changes=full_report().changes)).text


def test_alike_regions_share_a_line() -> None:
    changes = [Change("fuse-conv", (f"c{i} (Conv)", f"r{i} (Relu)"), f"c{i} (FusedConv)") for i in range(7)]
    before = frozenset(node for change in changes for node in change.nodes)
    page = page_of(Report(changes=changes, labels_before=before, labels_after=frozenset(c.result for c in changes)))
    assert "7 x Conv, Relu → FusedConv" in page.text
    assert all(f"c{i} (Conv)" in page.text for i in range(7))


def test_a_page_reads_on_phones_in_the_dark_and_on_paper() -> None:
    source = to_html(data_of(full_report()))
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in source
    for words in ("prefers-color-scheme: dark", "@media print", "@media (max-width"):
        assert words in source
    variables = re.findall(r":root \{([^}]*)\}", source)
    light, dark = (re.findall(r"--\w+", each) for each in variables)
    assert light == dark


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; the tests above parse the page")
@pytest.mark.parametrize("name", ["rich", "hostile"])
def test_a_browser_shows_it_without_a_word_to_the_console(name: str, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    file = tmp_path / "report.html"
    # The page fits a phone: nothing outside of a table's own scrolled box is wider than the window.
    probe = "<script>addEventListener('load',()=>{const d=document.documentElement;d.dataset.fits=d.scrollWidth<=innerWidth})</script>"  # noqa: E501
    source = to_html(data_of(REPORTS[name]))
    file.write_text(source, "utf-8")
    base = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    base += ["--window-size=500,900", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    done = subprocess.run([*base, "--dump-dom", str(file)], capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    assert Page(done.stdout[done.stdout.index("<html") :]).text == Page(source).text
    file.write_text(re.sub(r"<meta http-equiv[^>]*>", probe, source), "utf-8")
    done = subprocess.run([*base, "--dump-dom", str(file)], capture_output=True, text=True, check=True, timeout=120)
    assert 'data-fits="true"' in done.stdout


def test_the_page_is_made_from_the_json_alone() -> None:
    assert to_html(json.loads(rich_report().to_json())) == to_html(data_of(rich_report()))
