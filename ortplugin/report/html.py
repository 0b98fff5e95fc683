"""The report as one page, made from its JSON data alone: no script, nothing from elsewhere, every text escaped."""

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from ..errors import printable
from .advice import size

_OPERATORS = 14  # rows of the table of times; the others share one
_X = "\N{MULTIPLICATION SIGN}"
_DONE = {"optimize": "Optimized", "restore": "Restored to standard ONNX", "profile": "Profiled, not rewritten"}
Data = Mapping[str, Any]


def to_html(data: Data) -> str:
  """The page. `data` is the JSON report (schema.py)."""
  path = data["input"] or "a model in memory"
  done = f"{_DONE[data['action']]} by ortplugin {data['version']}: {path}"
  sections = [
    ("Summary", _summary(data)),
    ("Time per operator", _time(data)),
    ("Regions", _regions(data)),
    ("Near misses", _near_misses(data)),
    ("Verification", _verification(data)),
    ("Memory", _memory(data["memory"])),
    ("What to try next", _next(data)),
  ]
  parts = [(title.lower().replace(" ", "-"), title, body) for title, body in sections]
  return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
    title=text(path.rpartition("/")[2]),
    paths=text(f"{done} → {data['output']}" if data["output"] else done),
    verdict=_verdict(data),
    links="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in parts),
    body="".join(f'<section id="{key}"><h2>{title}</h2>{body}</section>' for key, title, body in parts),
    steps=text(", ".join(f"{step} {seconds:.2f} s" for step, seconds in data["seconds"].items())),
  )


class _Markup(str):
  """What is escaped already."""

  __slots__ = ()


def text(value: object) -> str:
  """A text of the model or of ours, so that a browser takes none of it for markup and shows control characters."""
  return value if isinstance(value, _Markup) else html.escape(printable(str(value)))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
  """A table of texts and markup. `numbers`: columns that are aligned to the right."""
  lines = [[text(cell) for cell in row] for row in (head, *rows)]
  kinds = [' class="n"' if index in numbers else "" for index in range(len(head))]
  made = ["".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, line, strict=True)) for line in lines]
  top = made[0].replace("<td", "<th").replace("</td", "</th")
  body = "".join(f"<tr>{line}</tr>" for line in made[1:])
  return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _lines(values: Iterable[object]) -> _Markup:
  return _Markup("<br>".join(map(text, values)))


def _details(summary: str, body: str, opened: bool = False) -> str:
  return f"<details{' open' if opened else ''}><summary>{summary}</summary>{body}</details>"


def _note(words: str, kind: str = "note") -> str:
  return f'<p class="{kind}">{text(words)}</p>'


def _chips(counts: Mapping[str, int]) -> str:
  items = "".join(f"<li>{text(_op(name))} <b>{count:,}</b></li>" for name, count in counts.items())
  return f'<ul class="chips">{items or "<li>none</li>"}</ul>'


def _op(name: str) -> str:
  return name.removeprefix("ai.onnx::").removesuffix("ExecutionProvider")


def _type(label: str) -> str:
  return label.rpartition("(")[2].rstrip(")")  # of 'name (OpType)'


def _ms(value: float) -> str:
  return "" if not value else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _error(value: object) -> str:
  return f"{value:.2e}" if isinstance(value, (int, float)) else str(value or "")


def _verdict(data: Data) -> str:
  results = [each["passed"] for each in data["verification"] if not each["skipped"]]
  if not results:
    return _note("" if data["action"] == "profile" else "Outputs were not compared", "verdict warn")
  if all(results):
    return _note("✓ Original and result agree", "verdict good")
  return _note("✗ Outputs differ; nothing was written", "verdict bad")


def _summary(data: Data) -> str:
  tiles: list[tuple[str, str, str]] = []
  for each in data["verification"]:
    for time in each["timings"]:
      times = f"{_ms(time['original_ms'])} → {_ms(time['optimized_ms'])} ms"
      where = f"{_op(each['provider'])}{' graph' if time['mode'] == 'graph' else ''} speed"
      tiles.append((where, f"{time['original_ms'] / max(time['optimized_ms'], 1e-9):.2f}{_X}", times))
  line = (data["profile"] or {}).get("original")
  if data["action"] == "profile" and line:
    tiles.append(("One run", f"{_ms(line['run_ms'])} ms", f"median of {line['runs']} runs, CPU"))
    tiles.append(("We could take", f"{line['taken_share']:.0%}", "of the time of its nodes"))
  sides = data["operators"]["before"], data["operators"]["after"]
  before, after = (sum(side.values()) for side in sides)
  tiles.append(("Nodes", f"{before:,} → {after:,}", f"{after - before:+,}"))
  fused = [len(region["nodes"]) for region in data["regions"] if region["kind"] == "fused"]
  tiles.append(("Fused regions", f"{len(fused):,}", f"of {sum(fused):,} nodes"))
  outputs = [each for result in data["verification"] for case in result["inputs"] for each in case["outputs"]]
  errors = [float(each["max_abs_error"]) for each in outputs if each["max_abs_error"] is not None]
  if errors:
    tiles.append(("Largest error", f"{max(errors):.1e}", "absolute, any output"))
  lines = [f"Upgraded from opset {data['opset'][0]} to {data['opset'][1]}."] if data["opset"] else []
  if data["precision"]:
    lines.append("Precision {name}: {converted} converted, {kept} kept their dtype.".format(**data["precision"]))
  lines += [f"The calls of '{name}' became its body." for name in data["functions"]]
  lines += [f"Left out the pass '{each['rewrite']}': {each['reason']}" for each in data["dropped"]]
  lines += [f"Took back what made it slower: {', '.join(each['rewrites'])}" for each in data["taken_back"]]
  if data["guilty"]:
    lines.append(f"To blame: '{data['guilty']['rewrite']}' of {', '.join(data['guilty']['nodes'])}")
  counts = [(_op(name), *(f"{side.get(name, 0):,}" for side in sides)) for name in sorted({*sides[0], *sides[1]})]
  shown = "".join(
    f"<div><dt>{text(name)}</dt><dd><b>{text(value)}</b><small>{text(more)}</small></dd></div>"
    for name, value, more in tiles
  )
  table = _details("Operators, before and after", _table(("operator", "before", "after"), counts, (1, 2)))
  return f'<dl class="tiles">{shown}</dl>{"".join(map(_note, lines))}{table}'


def _time(data: Data) -> str:
  if (profile := data["profile"]) is None or profile["skipped"]:
    why = profile["skipped"] if profile else "operators are timed where changes are verified"
    return _note(f"Not measured: {why}.")
  sides = [side for side in (profile["original"], profile["optimized"]) if side]
  two = len(sides) == 2
  rows: dict[str, Counter[str]] = defaultdict(Counter)
  for kind, side in zip("ba", sides, strict=False):
    for each in side["operators"]:
      rows[each["operator"]][kind] += each["ms"]
      rows[each["operator"]]["taken"] += each["taken_share"] * side["nodes_ms"]
  order = sorted(rows, key=lambda name: -max(rows[name]["a"], rows[name]["b"]))
  most = max((max(row["a"], row["b"]) for row in rows.values()), default=0) or 1

  def bar(kind: str, value: float, whole: float, inner: str = "") -> str:
    return f'<i class="{kind}" style="width:{100 * value / whole:.1f}%">{inner}</i>' if value else ""

  def line(title: str, names: Sequence[str], bars: bool = False) -> tuple[object, ...]:
    before, after, taken = (sum(rows[name][key] for name in names) for key in ("b", "a", "taken"))
    shown = bar("b", before, most, "" if two else bar("a", taken, before)) + bar("a", after, most)
    return _Markup(text(title) + (shown if bars else "")), _ms(before), _ms(after if two else taken)

  lines = [line("all operators", order), *(line(_op(name), [name], True) for name in order[:_OPERATORS])]
  if order[_OPERATORS:]:
    lines.append(line(f"{len(order) - _OPERATORS} others", order[_OPERATORS:]))
  where = f"One run on this machine's CPU by ONNX Runtime's profile, medians of {sides[0]['runs']} runs on inputs "
  where += f"{profile['inputs']}. Operators are those that it makes of the model."
  if any(each["provider"].startswith("CUDA") for each in data["verification"]):
    where += " On the GPU the whole model was timed (Summary): that profile does not reach into its kernels."
  names = ("before", "after") if two else ("ONNX Runtime", "we could take")
  key = f'<p class="key"><i class="b"></i>{names[0]}<i class="a"></i>{names[1]}</p>'
  found = (
    _note(where) + key + _table(("operator", f"{'before' if two else 'all'}, ms", f"{names[1]}, ms"), lines, (1, 2))
  )
  for title, side in zip(("Slowest nodes before", "Slowest nodes now"), sides, strict=False):
    slowest = [(each["node"], _op(each["operator"]), _ms(each["ms"]), f"{each['share']:.1%}", size(each["bytes"]),
                each["taken_by"] or "") for each in side["nodes"]]  # fmt: skip
    found += _details(title, _table(("node", "operator", "ms", "share", "writes", "ours"), slowest, (2, 3, 4)))
  return found


def _regions(data: Data) -> str:
  alike: dict[tuple[str, str, str], list[Data]] = defaultdict(list)
  for region in data["regions"]:
    counts = Counter(map(_type, region["nodes"])).most_common()
    parts = ", ".join(f"{count} {op}" if count > 1 else op for op, count in counts[:8])
    alike[region["kind"], parts + ("..." if counts[8:] else ""), _type(region["result"])].append(region)
  fires = "would fire" if data["action"] == "profile" else "fired"
  found = [_note(f"How often each rewrite {fires}:"), _chips(data["rewrites"])]
  for kind in ("fused", "replaced", "removed"):
    groups = sorted((each for each in alike.items() if each[0][0] == kind), key=lambda each: -len(each[1]))
    found += [f"<h3>{kind.capitalize()}</h3>"] if groups else []
    for (_, parts, result), regions in groups:
      became = f' → <b class="{kind}">{text(result)}</b>' if result else ""
      rows = [(each["result"], _lines(each["nodes"]), _lines(each["rewrites"])) for each in regions]
      table = _table(("now", "original nodes", "rewrites"), rows)
      found.append(_details(f"<b>{len(regions):,} {_X}</b> {text(parts)}{became}", table))
  left = {name: count for name, count in data["operators"]["after"].items() if not name.startswith("ortplugin::")}
  return "".join(found) + f"<h3>Left to ONNX Runtime</h3>{_chips(left)}"


def _near_misses(data: Data) -> str:
  groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
  for miss in data["near_misses"]:
    groups[miss["rewrite"]].append((miss["node"], miss["reason"]))
  lines = [
    _details(f"<b>{len(rows):,} {_X}</b> {text(name)}", _table(("node", "why not"), rows), opened=len(rows) <= 3)
    for name, rows in groups.items()
  ]
  return "".join(lines) or _note("None: nothing resembled a rewrite without being rewritten.")


def _verification(data: Data) -> str:
  found = []
  for result in data["verification"]:
    rows = []
    for case in result["inputs"]:
      where = case["name"] + ("" if case["mode"] == "plain" else f", {case['mode']}")
      for each in case["outputs"]:
        verdict = '<b class="good">✓ agrees</b>' if each["passed"] else '<b class="bad">✗ differs</b>'
        name = _lines((each["name"], _Markup(f"<small>{text(where)}</small>")))
        errors = _error(each["max_abs_error"]), _error(each["max_rel_error"])
        rows.append((name, _lines((_Markup(verdict), each["message"])), *errors))
    head = ("output, on which inputs", "verdict", "largest error", "relative")
    found.append(f"<h3>{text(_op(result['provider']))}</h3>" + (_table(head, rows, (2, 3)) if rows else ""))
    notes = [f"{result['replays']} replays of CUDA graphs were compared."] if result["replays"] else []
    notes += [f"Not compared: {result['skipped']}"] if result["skipped"] else []
    notes += [f"CUDA graphs were not compared: {result['graph_skipped']}"] if result["graph_skipped"] else []
    found += [_note(note, "warn") for note in (*notes, *result["notes"])]
  return "".join(found) or _note("Outputs were not compared.")


def _memory(memory: Data) -> str:
  sides = [memory[side] or {"bytes": 0, "dtypes": {}, "largest": []} for side in ("before", "after")]
  rows: list[Sequence[object]] = [("weights", *(size(side["bytes"]) for side in sides))]
  for name in sorted({*sides[0]["dtypes"], *sides[1]["dtypes"]}):
    rows.append((f"of these {name}", *(size(side["dtypes"].get(name, 0)) for side in sides)))
  written = [memory["written_before"], memory["written_after"]]
  rows.append(("activations written in a run", *("" if each is None else size(each) for each in written)))
  largest = [
    (each["name"], each["dtype"], _X.join(map(str, each["shape"])), size(each["bytes"])) for each in sides[1]["largest"]
  ]
  more = _details("Largest weights", _table(("name", "dtype", "shape", "bytes"), largest, (3,)))
  return _table(("", "before", "after"), rows, (1, 2)) + more


def _next(data: Data) -> str:
  lines = "".join(f"<dt><code>{text(each['option'])}</code></dt><dd>{text(each['why'])}</dd>" for each in data["next"])
  return f'<dl class="next">{lines}</dl>' if lines else _note("Nothing: no near miss and no option that may help.")
