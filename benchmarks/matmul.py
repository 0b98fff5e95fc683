"""FusedMatMul: matrix products with what follows them, of the sizes that transformers have.

    y = epilogue(x W^T)        x [M, K], W [N, K], float16

Measures, in one run: FusedMatMul inside ONNX Runtime as it is by default and with the fastest of the algorithms that
--tune would try, ONNX Runtime's own operators, and where PyTorch is there its linear layer (cuBLASLt) with the
operators after it, eager and compiled. Every step has tensors of its own, weights too, so that caches hold no more than
they do in a network. Every output is compared with float64. Writes results/matmul.json.

    python benchmarks/matmul.py                       measure, write, print
    python benchmarks/matmul.py --only "4096 x 768"   rows whose name begins so
    python benchmarks/matmul.py --no-tune             without trying all algorithms
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import timing

STEPS = 9  # each on tensors of its own
ROUNDS = 9
COLUMNS = {
    "ort": "ORT's operators",
    "eager": "torch",
    "compile": "torch.compile",
    "ortplugin": "**ortplugin**",
    "tuned": "**tuned**",
}
# What follows the product c: the program, ONNX's nodes from c to y, and the operands.
EPILOGUES: dict[str, tuple[str, tuple[tuple[str, str, tuple[str, ...]], ...], str]] = {
    "": ("(float16 c) => (float16 c) {}", (), ""),
    "bias": ("(float16 c, float16 b) => (float16 y) { y = Add(c, b) }", (("y", "Add", ("c", "b")),), "b"),
    "bias, Gelu": (
        "(float16 c, float16 b) => (float16 y) { v = Add(c, b) y = Gelu(v) }",
        (("v", "Add", ("c", "b")), ("y", "Gelu", ("v",))),
        "b",
    ),
    "bias, residual": (
        "(float16 c, float16 b, float16 r) => (float16 y) { v = Add(c, b) y = Add(v, r) }",
        (("v", "Add", ("c", "b")), ("y", "Add", ("v", "r"))),
        "br",
    ),
    "gate": ("(float16 c, float16 r) => (float16 y) { y = Mul(c, r) }", (("y", "Mul", ("c", "r")),), "r"),
}


@dataclass(frozen=True)
class Case:
    m: int
    k: int
    n: int
    epilogue: str = ""

    @property
    def name(self) -> str:
        return f"{self.m} x {self.k} x {self.n}" + (f", {self.epilogue}" if self.epilogue else "")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        whole = {"b": (self.n,), "r": (self.m, self.n)}
        return {"x": (self.m, self.k), "w": (self.n, self.k)} | {
            name: whole[name] for name in EPILOGUES[self.epilogue][2]
        }

    def model(self, count: int, *, fused: bool, attributes: Mapping[str, Any] | None = None) -> bytes:
        """A model of `count` steps that share nothing."""
        program, chain, operands = EPILOGUES[self.epilogue]
        nodes, inputs, outputs = [], [], []
        for step in range(count):
            inputs += [
                helper.make_tensor_value_info(f"{name}{step}", TensorProto.FLOAT16, shape)
                for name, shape in self.shapes.items()
            ]
            outputs.append(helper.make_tensor_value_info(f"y{step}", TensorProto.FLOAT16, [self.m, self.n]))
            names = [f"{name}{step}" for name in ("x", "w", *operands)]
            if fused:
                nodes.append(
                    helper.make_node("FusedMatMul", names, [f"y{step}"], f"product{step}", domain="ortplugin",
                                     program=program, trans_b=1, **(attributes or {}))
                )  # fmt: skip
                continue
            result = "c" if chain else "y"
            nodes.append(helper.make_node("Gemm", names[:2], [f"{result}{step}"], transB=1))
            nodes += [helper.make_node(op, [f"{each}{step}" for each in given], [f"{name}{step}"])
                      for name, op, given in chain]  # fmt: skip
        graph = helper.make_graph(nodes, "steps", inputs, outputs)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ortplugin", 1)]
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return made.SerializeToString()

    def step(self, torch: Any) -> Callable[..., Any]:
        """The same in PyTorch."""
        linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu

        def eager(x: Any, w: Any, b: Any = None, r: Any = None) -> Any:
            y = linear(x, w, b)
            if "Gelu" in self.epilogue:
                y = gelu(y)
            return (y * r if self.epilogue == "gate" else y if r is None else y + r,)

        return eager


def cases() -> list[Case]:
    """The layers of BERT-base and ViT, GPT-2 and a Llama form, at the rows of one token to a large batch."""
    layers = [
        (768, 2304, "bias"), (768, 768, "bias, residual"), (768, 3072, "bias, Gelu"), (3072, 768, "bias, residual"),
        (1024, 1536, ""), (1024, 2816, "gate"), (2816, 1024, "bias, residual"),
    ]  # fmt: skip
    made = [Case(m, *layer) for m in (1, 16, 128, 256, 1024, 1576, 4096, 16384) for layer in layers]
    return [*made, Case(1, 768, 50257), Case(256, 768, 50257), Case(256, 1024, 32000)]


def check(case: Case, feed: dict[str, Any], results: dict[str, Any]) -> dict[str, float]:
    """The largest difference of each contender's first step from float64, over the largest value."""
    wide = {name: each.get().astype(np.float64) for name, each in feed.items()}
    y = wide["x"] @ wide["w"].T + wide.get("b", 0)
    if "Gelu" in case.epilogue:
        y = y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    if "r" in wide:
        y = y * wide["r"] if case.epilogue == "gate" else y + wide["r"]
    errors = {name: timing.relative_error(found, y) for name, found in results.items()}
    for name, error in errors.items():
        if not error < 3e-3:
            raise SystemExit(f"{case.name}: {name} is off by {error:.1e} of the largest value")
    return errors


def tuned(case: Case, feeds: list[dict[str, Any]]) -> tuple[str, Any] | None:
    """The algorithm that is the fastest of what --tune would try, and its contender."""
    from ortplugin.graph.shapes import TensorType
    from ortplugin.ops import find

    operator = find("ortplugin", "FusedMatMul")
    assert operator is not None
    (node,) = onnx.load_model_from_string(case.model(1, fused=True)).graph.node
    types = [TensorType(np.dtype(np.float16), shape) for shape in case.shapes.values()]
    found = {}
    for each in operator.device_variants(node, types, [False] * len(types)):
        text = str(each["algorithm"])
        found[text], _ = timing.session_steps(
            lambda count, each=each: case.model(count, fused=True, attributes=each), feeds, plugin=True
        )
    if not found:
        return None
    times = timing.microseconds(found, STEPS, 3)
    best = min(times, key=lambda text: times[text])
    return best, found[best]


def measure(case: Case, tune: bool) -> dict[str, Any]:
    """One row of the table: microseconds of each contender and its error."""
    import cupy

    import ortplugin

    cupy.random.seed(case.m + case.k + case.n)
    scale = {"w": case.k**-0.5}
    feeds = [
        {name: (cupy.random.standard_normal(shape, np.float32) * scale.get(name, 1)).astype(np.float16)
         for name, shape in case.shapes.items()}
        for _ in range(STEPS)
    ]  # fmt: skip
    cupy.cuda.Device().synchronize()
    contenders, results = {}, {}
    for name, fused in (("ortplugin", True), ("ort", False)):
        contenders[name], _ = timing.session_steps(
            lambda count, fused=fused: case.model(count, fused=fused), feeds, plugin=fused
        )
        session = ortplugin.session(case.model(1, fused=fused), providers=["CUDAExecutionProvider"])
        found = ortplugin.run(session, {f"{key}0": each for key, each in feeds[0].items()})
        results[name] = cupy.asnumpy(found["y0"])
    best = tuned(case, feeds) if tune else None
    if best is not None:
        contenders["tuned"] = best[1]
    for name, step, tensors in timing.torch_contenders(case.step, feeds, "x"):
        if name != "copy":
            contenders[name], first = timing.torch_steps(step, tensors)
            results[name] = first[0].cpu().numpy()
    row = {
        "case": case.name,
        "microseconds": timing.microseconds(contenders, STEPS, ROUNDS),
        "error": check(case, feeds[0], results),
        "algorithm": best[0] if best else "auto",
    }
    del contenders, feeds
    timing.free_memory()
    return row


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = timing.table(record, COLUMNS, "| M x K x N", "|---|", lambda row: f"| {row['case']}")
    return "\n".join([*lines, "", timing.footer("matmul", "Microseconds of a step, medians", record["environment"])])


def measure_all(args: Namespace, record: dict[str, Any]) -> Iterator[str]:
    for case in cases():
        if not args.only or any(case.name.startswith(word) for word in args.only):
            record["rows"].append(row := measure(case, not args.no_tune))
            yield f"{case.name}: {timing.shown(row)} ({row['algorithm']})"


if __name__ == "__main__":
    options: dict[str, Any] = {
        "--only": {"nargs": "+", "default": [], "help": "words that the cases' names begin with"},
        "--no-tune": {"action": "store_true", "help": "leave out the column of all algorithms' fastest"},
    }
    timing.run("matmul", __doc__, measure_all, table, options)
