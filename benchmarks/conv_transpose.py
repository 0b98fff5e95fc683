"""FusedConvTranspose: the input gradients of ResNet-50's convolutions, alone and with bias and Relu.

The layers of TVM's PR 10110, float16 with float32 sums, channels last, batch 8 and 256: a transposed convolution from
the convolution's output back to its input, stride 2 included. Columns, measured in one run: PyTorch's transposed
convolution and its input gradient (channels last, cuDNN's search on), ours alone, the same two with bias and Relu
after them, and ours with the fastest of the algorithms that --tune would try. Every step has tensors of its own. Every
output is compared with PyTorch's in float32 without TF32. Writes results/conv_transpose.json; --readme fills the table
in docs/benchmarks.md from the results.

    python benchmarks/conv_transpose.py                 measure, write, print
    python benchmarks/conv_transpose.py --batch 8       one batch size
    python benchmarks/conv_transpose.py --from benchmarks/results/conv_transpose.json --readme    no measuring
"""

from __future__ import annotations

import gc
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import timing

ROUNDS = 9
FUSED = "(float16 c, float16 b) => (float16 y) { v = Add(c, b) y = Relu(v) }"
BARE = "(float16 c) => (float16 c) {}"
# Channels and size of the gradient, channels of what it comes from, kernel, stride.
LAYERS = (
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 512, 1, 2), (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2), (128, 28, 128, 3, 1), (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 512, 3, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One layer. `channels`, `size`: of the result."""

    batch: int
    channels: int
    size: int
    given: int
    kernel: int
    stride: int

    @property
    def name(self) -> str:
        stride = f" / {self.stride}" if self.stride > 1 else ""
        return f"{self.given} to {self.channels}x{self.size}x{self.size}, {self.kernel}x{self.kernel}{stride}"

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def small(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def steps(self) -> int:
        """So many that caches hold no step's tensors until the next, and memory is enough."""
        return 9 if self.batch < 64 else 5

    def draw(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Device arrays x, and host arrays w and b, of each step."""
        import cupy

        rng = np.random.default_rng(self.channels + self.size)
        shape = (self.given, self.kernel, self.kernel, self.channels)
        scale = 1 / math.sqrt(self.given * self.kernel**2 / self.stride**2)
        feeds, weights = [], []
        for _ in range(self.steps):
            x = cupy.random.standard_normal((self.batch, self.small, self.small, self.given), np.float32)
            feeds.append({"x": x.astype(np.float16)})
            w = (rng.standard_normal(shape, np.float32) * scale).astype(np.float16)
            weights.append({"w": w, "b": rng.standard_normal(self.channels, np.float32).astype(np.float16)})
        cupy.cuda.Device().synchronize()
        return feeds, weights

    def node(self, step: int, *, fused: bool, algorithm: str) -> onnx.NodeProto:
        names = [f"x{step}", f"w{step}", *([f"b{step}"] if fused else [])]
        return helper.make_node(
            "FusedConvTranspose", names, [f"y{step}"], f"up{step}", domain="ortplugin", layout="NHWC",
            program=FUSED if fused else BARE, algorithm=algorithm, kernel_shape=[self.kernel] * 2,
            pads=[self.pad] * 4, strides=[self.stride] * 2, output_padding=[self.stride - 1] * 2,
        )  # fmt: skip

    def model(self, count: int, weights: Sequence[dict[str, Any]], *, fused: bool, algorithm: str = "auto") -> bytes:
        """A model of `count` steps that share nothing."""
        kind, nodes, inputs, outputs, constants = TensorProto.FLOAT16, [], [], [], []
        for step in range(count):
            shape = (self.batch, self.small, self.small, self.given)
            inputs.append(helper.make_tensor_value_info(f"x{step}", kind, shape))
            shape = (self.batch, self.size, self.size, self.channels)
            outputs.append(helper.make_tensor_value_info(f"y{step}", kind, shape))
            nodes.append(self.node(step, fused=fused, algorithm=algorithm))
            for name in ("w", "b") if fused else ("w",):
                constants.append(numpy_helper.from_array(weights[step][name], f"{name}{step}"))
        graph = helper.make_graph(nodes, "steps", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ortplugin", 1)]
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return made.SerializeToString()

    def variants(self) -> list[str]:
        """The algorithms that --tune would time for the node with bias and Relu."""
        from ortplugin.ops import find
        from ortplugin.ops.base import TensorType

        operator = find("ortplugin", "FusedConvTranspose")
        assert operator is not None
        shapes = [
            (self.batch, self.small, self.small, self.given),
            (self.given, self.kernel, self.kernel, self.channels),
            (self.channels,),
        ]
        half = np.dtype(np.float16)
        listed = operator.device_variants(
            self.node(0, fused=True, algorithm="auto"),
            [TensorType(half, shape) for shape in shapes],
            [False, True, True],
        )
        return [str(each["algorithm"]) for each in listed]


def measure(case: Case, tuned: int) -> dict[str, Any]:
    """One row: microseconds of each contender. `tuned`: how many algorithms are tried for the last column."""
    import torch
    from torch.nn import functional

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    feeds, weights = case.draw()
    contenders, results = {}, {}
    tried = []

    def ours(name: str, *, fused: bool, algorithm: str = "auto") -> None:
        contenders[name], results[name] = timing.session_steps(
            lambda count: case.model(count, weights, fused=fused, algorithm=algorithm), feeds, plugin=True
        )

    ours("bare", fused=False)
    ours("fused", fused=True)
    for algorithm in case.variants()[:tuned] if tuned else ():
        tried.append(f"tuned {algorithm}")
        ours(tried[-1], fused=True, algorithm=algorithm)

    tensors = []
    for feed, weight in zip(feeds, weights, strict=True):
        x = torch.from_dlpack(feed["x"]).permute(0, 3, 1, 2)
        w = torch.from_numpy(weight["w"]).cuda().permute(0, 3, 1, 2)
        tensors.append({"x": x, "w": w, "b": torch.from_numpy(weight["b"]).cuda()})
    window = {"stride": case.stride, "padding": case.pad, "output_padding": case.stride - 1}
    blank = torch.empty((case.batch, case.channels, case.size, case.size), dtype=torch.float16, device="cuda",
                        memory_format=torch.channels_last)  # fmt: skip

    def transposed(x: Any, w: Any, b: Any) -> Any:
        return functional.conv_transpose2d(x, w, None, **window)

    def gradient(x: Any, w: Any, b: Any) -> Any:
        two = [case.stride] * 2, [case.pad] * 2, [1, 1]
        return torch.ops.aten.convolution_backward(
            x, blank, w, None, *two, False, [0, 0], 1, [True, False, False]
        )[0]  # fmt: skip

    def followed(x: Any, w: Any, b: Any) -> Any:
        return functional.relu(functional.conv_transpose2d(x, w, b, **window))

    for name, step in (("torch", transposed), ("torch gradient", gradient), ("torch fused", followed)):
        contenders[name], results[name] = timing.torch_steps(step, tensors)
    times = timing.microseconds(contenders, case.steps, ROUNDS)

    first = {name: tensor.float() for name, tensor in tensors[0].items()}
    expected = functional.conv_transpose2d(first["x"], first["w"], None, **window)
    after = functional.relu(expected + first["b"][:, None, None])
    for name, result in results.items():
        found = torch.from_dlpack(result)
        found = (found if name.startswith("torch") else found.permute(0, 3, 1, 2)).float()
        wanted = after if "fused" in name or name.startswith("tuned") else expected
        error = float((found - wanted).abs().max() / wanted.abs().max())
        if found.shape != wanted.shape or not error < 4e-3:
            raise SystemExit(f"{case.name}, batch {case.batch}: {name} is off by {error:.1e}")
    best = min(["fused", *tried], key=lambda name: times[name])
    row = {
        "case": case.name,
        "batch": case.batch,
        "microseconds": {name: value for name, value in times.items() if not name.startswith("tuned ")},
    }
    if tried:
        row["microseconds"]["tuned"] = times[best]
        row["algorithm"] = best.removeprefix("tuned ") if best != "fused" else "auto"
    return row


COLUMNS = {
    "torch": "torch, transposed",
    "torch gradient": "torch, input gradient",
    "bare": "**ours**",
    "torch fused": "torch, bias, Relu",
    "fused": "**ours, bias, Relu**",
    "tuned": "**ours, tuned**",
}


def table(record: dict[str, Any]) -> str:
    """The rows of the record, in Markdown."""
    columns = {key: title for key, title in COLUMNS.items() if key in record["rows"][0]["microseconds"]}
    lines = [
        "| batch | transposed convolution | " + " | ".join(columns.values()) + " |",
        "|---:|---|" + "---:|" * len(columns),
    ]
    for row in record["rows"]:
        cells = " | ".join(f"{row['microseconds'][key]:.1f}" for key in columns)
        lines.append(f"| {row['batch']} | {row['case']} | {cells} |")

    def mean(ours: str, theirs: str) -> float:
        ratios = [math.log(row["microseconds"][theirs] / row["microseconds"][ours]) for row in record["rows"]]
        return math.exp(sum(ratios) / len(ratios))

    summary = f"Geometric means: {mean('bare', 'torch'):.2f} times PyTorch's speed alone, "
    summary += f"{mean('fused', 'torch fused'):.2f} times with bias and Relu"
    if "tuned" in columns:
        summary += f", {mean('tuned', 'torch fused'):.2f} tuned"
    footer = timing.footer("conv_transpose", f"{summary}. Microseconds of one, medians", record["environment"])
    return "\n".join([*lines, "", footer])


def measure_all(args: Namespace, record: dict[str, Any]) -> Iterator[str]:
    import cupy
    import torch

    for batch in args.batch:
        for layer in args.layers:
            case = Case(batch, *LAYERS[layer])
            record["rows"].append(row := measure(case, args.tuned))
            gc.collect()
            cupy.get_default_memory_pool().free_all_blocks()
            torch.cuda.empty_cache()
            yield f"{batch}: {case.name}: {timing.shown(row)} {row.get('algorithm', '')}"


if __name__ == "__main__":
    several = {"nargs": "+", "type": int}
    options = {
        "--batch": {**several, "default": [8, 256], "help": "batch sizes"},
        "--layers": {**several, "default": list(range(len(LAYERS))), "help": "numbers of layers"},
        "--tuned": {"type": int, "default": 8, "help": "algorithms to try for each layer"},
    }
    timing.run("conv_transpose", __doc__, measure_all, table, options)
