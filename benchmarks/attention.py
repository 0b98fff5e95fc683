"""Attention, as image, language and diffusion models have it.

Measures, in one run: FusedAttention inside ONNX Runtime, ONNX Runtime's MultiHeadAttention (which its optimizer makes;
without groups of heads), the operators apart in ONNX Runtime, PyTorch's scaled_dot_product_attention, and a device copy
of as many bytes as the operator must move. Every step has tensors of its own. Checks the outputs against float64 in the
same run. Writes results/attention.json.

    python benchmarks/attention.py                  measure, write, print
    python benchmarks/attention.py --readme         the same, then fill docs/benchmarks.md
    python benchmarks/attention.py --from benchmarks/results/attention.json --readme    no measuring
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import timing
from ortplugin.graph.domains import DOMAIN
from ortplugin.ops.attention import OPERATOR

STEPS = 7  # each on tensors of its own
ROUNDS = 9
COLUMNS = {
    "apart": "ORT's operators",
    "ort": "ORT MultiHeadAttention",
    "torch": "torch SDPA",
    "ortplugin": "**ortplugin**",
    "copy": "device copy of the bytes",
}
LAYOUT = "b s (h d)"  # of all tensors
DTYPES = {"float16": (TensorProto.FLOAT16, np.float16), "float": (TensorProto.FLOAT, np.float32)}


@dataclass(frozen=True)
class Case:
    """One operator. `sizes`: batch, heads, heads of K and V, queries, keys, head size."""

    name: str
    sizes: tuple[int, int, int, int, int, int]
    causal: bool = False
    dtype: str = "float16"

    @property
    def scale(self) -> float:
        return float(np.float32(self.sizes[-1] ** -0.5))

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        batch, heads, kv_heads, queries, keys, size = self.sizes
        return {"q": (batch, queries, heads * size), "k": (batch, keys, kv_heads * size),
                "v": (batch, keys, kv_heads * size)}  # fmt: skip

    def node(self) -> onnx.NodeProto:
        layouts = {f"{tensor}_layout": LAYOUT for tensor in "qkvy"}
        causal = {"causal": "lower_right"} if self.causal else {}
        return helper.make_node(
            "FusedAttention", ["q", "k", "v"], ["y"], "node", domain=DOMAIN, dtype=self.dtype, heads=self.sizes[1],
            kv_heads=self.sizes[2], scale=self.scale, **layouts, **causal,
        )  # fmt: skip

    def nodes(self, contender: str) -> list[onnx.NodeProto]:
        if contender == "ortplugin":
            return [self.node()]
        if contender == "apart":
            return OPERATOR.decompose(self.node(), 18)
        return [
            helper.make_node(
                "MultiHeadAttention", ["q", "k", "v"], ["y"], "node", domain="com.microsoft", num_heads=self.sizes[1],
                scale=self.scale, unidirectional=int(self.causal),
            )
        ]  # fmt: skip

    def model(self, count: int, contender: str) -> bytes:
        """A model of `count` steps that share nothing."""
        kind = DTYPES[self.dtype][0]
        nodes, inputs, outputs = [], [], []
        for step in range(count):
            for node in self.nodes(contender):
                for names in (node.input, node.output):
                    names[:] = [f"{name}{step}" if name else "" for name in names]
                node.name = f"{node.name}/{step}"
                nodes.append(node)
            inputs += [
                helper.make_tensor_value_info(f"{name}{step}", kind, each) for name, each in self.shapes().items()
            ]
            outputs.append(helper.make_tensor_value_info(f"y{step}", kind, None))
        graph = helper.make_graph(nodes, "steps", inputs, outputs)
        opsets = [helper.make_opsetid(*each) for each in (("", 18), (DOMAIN, 1), ("com.microsoft", 1))]
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return model.SerializeToString()

    def torch_step(self) -> Callable[..., Any]:
        from torch.nn import functional

        heads, kv_heads, size = self.sizes[1], self.sizes[2], self.sizes[-1]

        def step(q: Any, k: Any, v: Any) -> Any:
            apart = [x.unflatten(2, (n, size)).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))]
            y = functional.scaled_dot_product_attention(*apart, is_causal=self.causal, enable_gqa=heads != kv_heads)
            return y.transpose(1, 2).flatten(2)

        return step


CASES = (
    *(Case("ViT-B, 224x224", (n, 12, 12, 197, 197, 64)) for n in (1, 8, 64)),
    Case("ViT-B, 224x224", (8, 12, 12, 197, 197, 64), dtype="float"),
    *(Case("BERT-base", (n, 12, 12, 384, 384, 64)) for n in (1, 16)),
    Case("GPT-2, prompt", (4, 12, 12, 1024, 1024, 64), causal=True),
    Case("Llama-3-8B, prompt", (1, 32, 8, 2048, 2048, 128), causal=True),
    Case("Stable Diffusion, self", (2, 8, 8, 4096, 4096, 40)),
    Case("Stable Diffusion, cross", (2, 8, 8, 4096, 77, 40)),
    Case("windows of Swin-T", (512, 3, 3, 49, 49, 32)),
)


def check(case: Case, feeds: dict[str, Any], results: dict[str, Any]) -> None:
    """Raises SystemExit where a result is off by more than its dtype's rounding and the arithmetic's."""
    import cupy

    first = [cupy.asnumpy(feeds[name][:1]).astype(np.float64) for name in "qkv"]
    node = case.node()
    next(each for each in node.attribute if each.name == "dtype").s = b"double"
    wanted = OPERATOR.reference(node, first)[0]
    unit = float(np.finfo(DTYPES[case.dtype][1]).eps)
    for name, result in results.items():
        found = cupy.asnumpy(cupy.asarray(result)[:1]).astype(np.float64)
        error = float(np.abs(found - wanted).max()) / float(np.abs(wanted).max())
        if not error <= (2e-3 if name == "torch" and case.dtype == "float" else 4 * unit + 1e-5):  # torch may use TF32
            raise SystemExit(f"{case.name} {case.sizes}: {name} is off by {error:.1e}")


def measure(case: Case) -> dict[str, Any]:
    """One row of the table: microseconds of each contender."""
    import cupy

    cupy.random.seed(case.sizes[0] + case.sizes[3])
    numpy = DTYPES[case.dtype][1]
    steps = [
        {name: cupy.random.standard_normal(shape, np.float32).astype(numpy) for name, shape in case.shapes().items()}
        for _ in range(STEPS)
    ]
    cupy.cuda.Device().synchronize()
    contenders, results = {}, {}
    for name in ("ortplugin", "apart", *(["ort"] if case.sizes[1] == case.sizes[2] else [])):
        contenders[name], results[name] = timing.session_steps(
            lambda count, name=name: case.model(count, name), steps, plugin=name == "ortplugin"
        )
    elements = sum(int(np.prod(shape)) for shape in case.shapes().values()) + results["ortplugin"].size
    try:
        import torch
    except ImportError:
        pass
    else:
        tensors = [{name: torch.from_dlpack(array) for name, array in step.items()} for step in steps]
        contenders["torch"], results["torch"] = timing.torch_steps(case.torch_step(), tensors)
        copies = [{"x": tensors[0]["q"].new_empty(elements // 2).normal_()} for _ in steps]  # read and written
        contenders["copy"], _ = timing.torch_steps(lambda x: x.clone(), copies)
    times = timing.microseconds(contenders, STEPS, ROUNDS)
    check(case, steps[0], results)
    row = {"case": case.name, "dtype": case.dtype, "sizes": list(case.sizes), "causal": case.causal,
           "bytes": elements * np.dtype(numpy).itemsize, "microseconds": times}  # fmt: skip
    del contenders, results, steps
    timing.free_memory()
    return row


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = timing.table(
        record, COLUMNS, "| attention | batch, heads, of K and V, queries, keys, head size", "|---|---|",
        lambda row: f"| {row['case']}, {row['dtype']} | {', '.join(map(str, row['sizes']))}",
    )  # fmt: skip
    lines += ["", timing.footer("attention", "Microseconds of a step, medians", record["environment"])]
    return "\n".join(lines)


def measure_all(args: Namespace, record: dict[str, Any]) -> Iterator[str]:
    for case in CASES:
        record["rows"].append(measure(case))
        yield f"{case.name}: {timing.shown(record['rows'][-1])}"


if __name__ == "__main__":
    timing.run("attention", __doc__, measure_all, table)
