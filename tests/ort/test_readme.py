"""What README.md and the pages beside it show works: its options exist, its Python lines run, its files are there."""

import re
from pathlib import Path

import onnx
import onnxruntime
import pytest
from exported import DATA

import ortplugin
from ortplugin.cli import command

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
  (ROOT / "docs").glob("*.md")
)


def test_the_options_exist():
  known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
  mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README + (ROOT / "docs" / "command_line.md").read_text()))
  assert len(mentioned) > 12
  assert mentioned <= known | {"--help"}


def test_the_python_lines_run(tmp_path, monkeypatch):
  source = DATA / "bert_torchscript_opset17_dynamic.onnx"
  (tmp_path / "model.onnx").write_bytes(source.read_bytes())
  onnx.save(ortplugin.optimize(source)[0], tmp_path / "fast.onnx")
  monkeypatch.chdir(tmp_path)
  (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
  names = {"onnxruntime": onnxruntime, "ortplugin": ortplugin}
  exec(block, names)
  assert names["session"].get_outputs()[0].name == "output"


def anchors(text):
  headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
  return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_folders_exist(page):
  text = page.read_text()
  for link in re.findall(r"\]\(([^)\s]+)\)", text):
    target, _, anchor = link.partition("#")
    file = page.parent / target if target else page
    assert file.exists(), link
    assert not anchor or anchor in anchors(file.read_text()), link
  for path in re.findall(r"`((?:ortplugin|tests|benchmarks|models|examples)/[\w/.]+)`", text):
    assert (ROOT / path).exists(), path
