"""The report as one page, made from its JSON data alone: no script, nothing from elsewhere, every text escaped.

It is laid out for phones and paper too, and follows the reader's colour scheme.
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from ortplugin.errors import printable
from ortplugin.report.advice import size

_OPERATORS = 14  # rows of the table of times; the others share one
_TIMES = "\N{MULTIPLICATION SIGN}"
_KINDS = {"fused": "Fused", "replaced": "Replaced", "removed": "Removed"}
Data = Mapping[str, Any]


def to_html(data: Data) -> str:
    """The page. `data` is the JSON report (schema.json)."""
    became = "would become" if data["action"] == "profile" else "became"
    sections = [
        ("summary", "Summary", _summary(data)),
        ("time", "Time per operator", _time(data)),
        ("regions", f"What {became} of the graph", _regions(data)),
        ("near-misses", "Near misses", _near_misses(data)),
        ("verification", "Verification", _verification(data)),
        ("tuning", "Tuning", _tuning(data)),
        ("memory", "Memory", _memory(data)),
        ("next", "What to try next", _next(data)),
    ]
    shown = [each for each in sections if each[2]]
    name = (data["input"] or "model in memory").replace("\\", "/").rpartition("/")[2]
    done = {"optimize": "Optimized", "restore": "Restored to standard ONNX", "profile": "Profiled, not rewritten"}
    paths = f"{done[data['action']]} by ortplugin {data['version']}: {data['input'] or 'a model in memory'}"
    if data["output"]:
        paths += f" → {data['output']}"
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        title=text(name),
        paths=text(paths),
        verdict=_verdict(data),
        links="".join(f'<a href="#{key}">{text(title)}</a>' for key, title, _ in shown),
        body="".join(f'<section id="{key}"><h2>{text(title)}</h2>{body}</section>' for key, title, body in shown),
        steps=text(", ".join(f"{step} {seconds:.2f} s" for step, seconds in data["seconds"].items())),
    )


def text(value: object) -> str:
    """A text of the model or of ours, so that a browser takes none of it for markup and shows control characters."""
    return html.escape(printable(str(value)))


# --------------------------------------------------------------------------------------------------------------- parts


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are markup. `numbers`: columns that are aligned to the right."""
    kinds = [' class="n"' if index in numbers else "" for index in range(len(head))]
    top = "".join(f"<th{kind}>{text(title)}</th>" for kind, title in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _details(summary: str, body: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{body}</details>"


def _note(words: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{text(words)}</p>'


def _tile(title: str, value: str, more: str = "") -> str:
    return f"<div><dt>{text(title)}</dt><dd><b>{text(value)}</b><small>{text(more)}</small></dd></div>"


def _operator(name: str) -> str:
    return text(name.removeprefix("ai.onnx::"))


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _type(label: str) -> str:
    """The operator in 'name (OpType)'."""
    return label.rpartition("(")[2].rstrip(")")


def _ms(value: float) -> str:
    return "" if not value else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _error(value: object) -> str:
    return f"{value:.2e}" if isinstance(value, (int, float)) else "" if value is None else text(value)


def _bar(value: float, most: float, kind: str, inner: str = "") -> str:
    return f'<i class="{kind}" style="width:{100 * value / most:.1f}%">{inner}</i>' if value else ""


# ------------------------------------------------------------------------------------------------------------ sections


def _verdict(data: Data) -> str:
    results = [each for each in data["verification"] if not each["skipped"]]
    if any(not each["passed"] for each in results):
        return '<p class="verdict bad">✗ Outputs differ; nothing was written</p>'
    if results:
        return '<p class="verdict good">✓ Original and result agree</p>'
    if data["action"] == "profile":
        return ""
    return f'<p class="verdict warn">{"Outputs were not compared" if data["changes"] else "Nothing to rewrite"}</p>'


def _summary(data: Data) -> str:
    tiles = []
    for each in data["verification"]:
        if each["original_ms"] is not None and each["optimized_ms"] is not None:
            factor = each["original_ms"] / max(each["optimized_ms"], 1e-9)
            times = f"{_ms(each['original_ms'])} → {_ms(each['optimized_ms'])} ms"
            tiles.append(_tile(f"{_short(each['provider'])} speed", f"{factor:.2f}{_TIMES}", times))
    original = (data["profile"] or {}).get("original")
    if data["action"] == "profile" and original:
        tiles.append(_tile("One run", f"{_ms(original['run_ms'])} ms", f"median of {original['runs']} runs, CPU"))
        tiles.append(_tile("We could take", f"{original['taken_share']:.0%}", "of the time of its nodes"))
    before, after = (sum(data["operators"][side].values()) for side in ("before", "after"))
    tiles.append(_tile("Nodes", f"{before:,} → {after:,}", f"{after - before:+,}"))
    fused = [region for region in data["regions"] if region["kind"] == "fused"]
    if data["action"] != "restore":
        more = f"from {_plural(len({node for region in fused for node in region['nodes']}), 'node')}"
        tiles.append(_tile("Fused regions", f"{len(fused):,}", more))
    errors = [
        each["max_abs_error"]
        for result in data["verification"]
        for case in result["inputs"]
        for each in case["outputs"]
        if isinstance(each["max_abs_error"], (int, float))
    ]
    if errors:
        tiles.append(_tile("Largest error", f"{max(errors):.1e}", "absolute, any output"))
    weights = data["memory"]["before"], data["memory"]["after"]
    if weights[0] and weights[1]:
        same = weights[0]["bytes"] == weights[1]["bytes"]
        more = "as before" if same else f"before: {size(weights[0]['bytes'])}"
        tiles.append(_tile("Weights", size(weights[1]["bytes"]), more))
    lines = [_note(f"Upgraded from opset {data['opset'][0]} to {data['opset'][1]}.")] if data["opset"] else []
    if data["precision"]:
        kept = f"{data['precision']['converted']} operators converted, {data['precision']['kept']} kept their dtype."
        lines.append(_note(f"Precision {data['precision']['name']}: {kept}"))
    if data["functions"]:
        lines.append(_note("Local functions whose calls became their bodies: " + ", ".join(data["functions"])))
    for each in data["dropped"]:
        lines.append(_note(f"Left out the pass '{each['rewrite']}': {each['reason']}", "warn"))
    if data["guilty"]:
        lines.append(_note(f"To blame: '{data['guilty']['rewrite']}' of {', '.join(data['guilty']['nodes'])}", "bad"))
    return f'<dl class="tiles">{"".join(tiles)}</dl>{"".join(lines)}{_counts(data)}'


def _counts(data: Data) -> str:
    sides = data["operators"]["before"], data["operators"]["after"]
    rows = []
    for name in sorted({*sides[0], *sides[1]}):
        before, after = (side.get(name, 0) for side in sides)
        rows.append((_operator(name), f"{before:,}", f"{after:,}", f"{after - before:+,}" if before != after else ""))
    return _details("Operators, before and after", _table(("operator", "before", "after", "change"), rows, (1, 2, 3)))


def _time(data: Data) -> str:
    profile = data["profile"]
    gpu = [_short(each["provider"]) for each in data["verification"] if each["provider"].startswith("CUDA")]
    if profile is None:
        return _note("Not measured: time per operator is profiled where outputs are compared, too.")
    if profile["skipped"]:
        return _note(f"Not measured: {profile['skipped']}.")
    original, optimized = profile["original"], profile["optimized"]
    sides = [side for side in (original, optimized) if side]
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for index, side in enumerate(sides):
        for each in side["operators"]:
            totals[each["operator"]][index] += each["ms"]
            if index == 0:
                totals[each["operator"]][2:] = each["taken_share"], each["share"]
    order = sorted(totals, key=lambda name: -max(totals[name][:2]))
    rows = [(_operator(name), totals[name]) for name in order[:_OPERATORS]]
    most = max((max(each[:2]) for _, each in rows), default=0.0)
    two = optimized is not None
    plain = [("all operators", [sum(each[index] for each in totals.values()) for index in range(4)])]
    if order[_OPERATORS:]:
        rest = [sum(totals[name][index] for name in order[_OPERATORS:]) for index in range(4)]
        plain.append((_plural(len(order) - _OPERATORS, "other"), rest))
    cells = [(_bars(name, each, most, two), *_values(each, two)) for name, each in rows]
    for place, (title, each) in zip((0, len(rows) + 1), plain, strict=False):
        cells.insert(place, (text(title), *_values(each, two)))
    where = f"Milliseconds of one run on this machine's {_short(profile['provider'])}, by ONNX Runtime's profile; "
    where += f"inputs: {profile['inputs']}; medians of {original['runs']} runs. Operators are those that it runs."
    if gpu:
        where += " On the GPU, the whole model was timed (Summary): that profile does not reach into its kernels."
    names = ("original", "optimized") if two else ("left to ONNX Runtime", "we could take")
    key = f'<p class="key"><i class="b"></i>{names[0]}<i class="a"></i>{names[1]}</p>'
    table = _table(("operator", "before, ms" if two else "ms", "after, ms" if two else "we could take"), cells, (1, 2))
    more = _slowest("Slowest nodes of the original", original, "taken by")
    return _note(where) + key + table + more + (_slowest("Slowest nodes now", optimized, "ours") if two else "")


def _bars(name: str, each: Sequence[float], most: float, two: bool) -> str:
    """The operator's name above bars: before and after, or before and which of it could be taken."""
    before, after, taken, share = each
    if two:
        return name + _bar(before, most, "b") + _bar(after, most, "a")
    return name + _bar(before, most, "b", _bar(taken, share, "a"))


def _values(each: Sequence[float], two: bool) -> tuple[str, str]:
    return _ms(each[0]), _ms(each[1]) if two else f"{each[2]:.0%}" if each[2] else ""


def _slowest(title: str, side: Data, taken: str) -> str:
    rows = [
        (text(each["node"]), _operator(each["operator"]), _ms(each["ms"]), f"{each['share']:.1%}", size(each["bytes"]),
         text(each["taken_by"] or ""))
        for each in side["nodes"]
    ]  # fmt: skip
    head = ("node", "operator", "ms", "share", "writes", taken)
    return _details(f"{text(title)} ({len(rows)})", _table(head, rows, (2, 3, 4)))


def _regions(data: Data) -> str:
    if not data["regions"]:
        return "" if data["action"] == "restore" else _note("No rewrite changed it.")
    alike: dict[tuple[str, str, str], list[Data]] = defaultdict(list)
    for region in data["regions"]:
        counts = Counter(map(_type, region["nodes"]))
        parts = ", ".join(f"{count} {op}" if count > 1 else op for op, count in counts.most_common(8))
        if len(counts) > 8:
            parts += f" and {len(counts) - 8} more"
        alike[region["kind"], _type(region["result"]), parts].append(region)
    chips = "".join(f"<li>{text(name)} <b>{count:,}</b></li>" for name, count in data["rewrites"].items())
    found = [_note("How often each rewrite fired:"), f'<ul class="chips">{chips}</ul>']
    for kind, title in _KINDS.items():
        groups = sorted((each for each in alike.items() if each[0][0] == kind), key=lambda each: -len(each[1]))
        if groups:
            found.append(f"<h3>{title} <small>{sum(len(regions) for _, regions in groups):,}</small></h3>")
        for (_, result, parts), regions in groups:
            became = f' → <b class="{kind}">{text(result)}</b>' if result else ""
            rows = [
                (text(region["result"] or "nothing"), "<br>".join(text(node) for node in region["nodes"]),
                 "<br>".join(text(f"{name} {count}") for name, count in region["rewrites"].items()))
                for region in regions
            ]  # fmt: skip
            table = _table(("now", "original nodes", "rewrites"), rows)
            found.append(_details(f"<b>{len(regions):,} {_TIMES}</b> {text(parts)}{became}", table))
    left = {name: count for name, count in data["operators"]["after"].items() if not name.startswith("ortplugin::")}
    chips = "".join(f"<li>{_operator(name)} <b>{count:,}</b></li>" for name, count in left.items())
    return "".join(found) + f'<h3>Left to ONNX Runtime</h3><ul class="chips">{chips or "<li>nothing</li>"}</ul>'


def _near_misses(data: Data) -> str:
    if data["action"] == "restore":
        return ""
    if not data["near_misses"]:
        return _note("None: nothing resembled a rewrite without being rewritten.")
    groups: dict[str, list[Data]] = defaultdict(list)
    for miss in data["near_misses"]:
        groups[miss["rewrite"]].append(miss)
    lines = [
        _details(
            f"<b>{len(misses):,} {_TIMES}</b> {text(rewrite)}",
            _table(
                ("node", "why it was not rewritten"), [(text(each["node"]), text(each["reason"])) for each in misses]
            ),
            opened=len(misses) <= 3,
        )
        for rewrite, misses in groups.items()
    ]
    return _note("Places that resembled a rewrite, and why it did not apply.") + "".join(lines)


def _verification(data: Data) -> str:
    found = []
    for result in data["verification"]:
        provider = _short(result["provider"])
        if result["skipped"]:
            found.append(_note(f"{provider}: not compared, {result['skipped']}", "warn"))
            continue
        rows = []
        for case in result["inputs"]:
            for each in case["outputs"]:
                verdict = '<b class="good">✓ agrees</b>' if each["passed"] else '<b class="bad">✗ differs</b>'
                errors = _error(each["max_abs_error"]), _error(each["max_rel_error"])
                remark = f"<br>{text(each['message'])}" if each["message"] else ""
                mode = "" if case["mode"] == "plain" else f", {case['mode']}"
                name = f"{text(each['name'])}<br><small>{text(case['name'] + mode)}</small>"
                rows.append((name, verdict + remark, *errors))
        head = ("output, on which inputs", "verdict", "largest error", "relative")
        found.append(f"<h3>{text(provider)}</h3>" + _table(head, rows, (2, 3)))
        if result["replays"]:
            found.append(_note(f"{result['replays']} replays of CUDA graphs were compared."))
        if result["graph_skipped"]:
            found.append(_note(f"CUDA graphs were not compared: {result['graph_skipped']}", "warn"))
        found += [_note(note, "warn") for note in result["notes"]]
    if found or data["action"] == "profile":
        return "".join(found)
    return _note("Outputs were not compared.", "warn" if data["changes"] else "note")


def _tuning(data: Data) -> str:
    rows = []
    for each in data["tuning"]:
        tried = (
            f"{name or 'as it was'}: {'wrong' if name in each['wrong'] else 'not measurable' if time is None else time}"
            for name, time in each["microseconds"].items()
        )
        rows.append((text(each["node"]), text(each["choice"] or "unchanged"), "<br>".join(map(text, tried))))
    return _table(("node", "chosen", "tried, microseconds"), rows) if rows else ""


def _memory(data: Data) -> str:
    memory = data["memory"]
    before, after = memory["before"], memory["after"]
    if not before or not after:
        return ""
    rows: list[Sequence[str]] = [("weights", size(before["bytes"]), size(after["bytes"]))]
    for name in sorted({*before["dtypes"], *after["dtypes"]}):
        rows.append((f"of these {text(name)}", *(size(side["dtypes"].get(name, 0)) for side in (before, after))))
    if memory["written_before"] is not None:
        written = (memory["written_before"], memory["written_after"])
        rows.append(("activations written in a run", *("" if each is None else size(each) for each in written)))
    largest = [
        (
            text(each["name"]),
            text(each["dtype"]),
            text(_TIMES.join(map(str, each["shape"])) or "scalar"),
            size(each["bytes"]),
        )
        for each in after["largest"]
    ]
    table = _table(("", "before", "after"), rows, (1, 2))
    return table + _details("Largest weights", _table(("name", "dtype", "shape", "bytes"), largest, (3,)))


def _next(data: Data) -> str:
    lines = "".join(
        f"<dt><code>{text(each['option'])}</code></dt><dd>{text(each['why'])}</dd>" for each in data["next"]
    )
    return (
        f'<dl class="next">{lines}</dl>' if lines else _note("Nothing: no near miss and no option left that may help.")
    )
