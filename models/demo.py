"""The demo behind ``make demo``: two models, optimized, and the proof that they still agree.

A sentence-embedding transformer: all-MiniLM-L6-v2 with its published weights. ``optimize-model`` runs on it, original
and optimized model embed ten sentences in ONNX Runtime, and the embeddings' difference, the nearest neighbour of each
sentence under both, and the times are shown.

A convolutional network: ResNet-50 as the installed onnx package has it, of opset 9, with random weights in place of its
constants. The same, with the class scores of random images.

Exits with 1 if anything disagrees.

    python models/demo.py [--folder build/demo] [--runs 10]
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# `models` lies beside this file's folder. Appended, so that an installed ortplugin comes before the source folder.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import ortplugin
from models import light, minilm
from ortplugin.cli import main as optimize_model

SENTENCES = (
  "The cat sleeps on the warm windowsill.",
  "A kitten is napping in the sun.",
  "The central bank raised interest rates again.",
  "Borrowing money has become more expensive this year.",
  "She plays the violin in a string quartet.",
  "The cellist and her friends perform chamber music.",
  "Heavy rain flooded several streets downtown.",
  "The storm left parts of the city under water.",
  "Simmer the tomatoes with garlic and basil.",
  "This recipe makes a simple pasta sauce.",
)
MAX_DIFFERENCE = 1e-5  # between embeddings of length 1; fp32 arithmetic in another order differs by about 1e-7
MAX_SCORE_DIFFERENCE = 1e-4  # between class scores, as a fraction of the largest

Array = NDArray[Any]


@dataclass(frozen=True)
class Comparison:
  """Both models on one provider. One row for each sentence or image; times are medians in milliseconds."""

  provider: str
  original: Array
  optimized: Array
  original_ms: float
  optimized_ms: float

  @property
  def max_difference(self):
    """The largest absolute difference of two values of the same place."""
    return float(np.abs(self.original - self.optimized).max())

  @property
  def min_cosine(self):
    """The smallest cosine between a sentence's two embeddings."""
    return float((self.original * self.optimized).sum(axis=1).min())

  @property
  def same_classes(self):
    """Whether class scores are equal within MAX_SCORE_DIFFERENCE and each row has the same best one."""
    same_best = np.array_equal(self.original.argmax(axis=1), self.optimized.argmax(axis=1))
    return self.max_difference <= MAX_SCORE_DIFFERENCE * float(np.abs(self.original).max()) and same_best

  @property
  def agrees(self):
    """Whether embeddings are equal within MAX_DIFFERENCE and nearest neighbours the same."""
    same_neighbours = np.array_equal(nearest(self.original), nearest(self.optimized))
    return self.max_difference <= MAX_DIFFERENCE and same_neighbours  # False for NaN


def nearest(embeddings):
  """For each row of length 1 the index of the other row with the largest dot product."""
  similarity = embeddings @ embeddings.T
  np.fill_diagonal(similarity, -np.inf)
  return np.asarray(similarity.argmax(axis=1))


def median_ms(runs, *functions):
  """Median time of each function in milliseconds. They take turns, so that a busy machine slows all alike."""
  times = [[] for _ in functions]
  for _ in range(runs):
    for function, own in zip(functions, times, strict=True):
      start = time.perf_counter()
      function()
      own.append(1000 * (time.perf_counter() - start))
  return [float(np.median(own)) for own in times]


def providers():
  """The providers to run on: CPU, and CUDA where this ONNX Runtime can start it."""
  names = ["CPUExecutionProvider"]
  if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and Path("/dev/nvidiactl").exists():
    names.append("CUDAExecutionProvider")
  return names


def compare(original, optimized, provider, feeds, runs):
  """Runs and times both models on one provider."""
  options = [onnxruntime.SessionOptions() for _ in range(2)]
  for each in options:
    each.log_severity_level = 3  # without the warning of an initializer that the onnx package's model does not use
  before = onnxruntime.InferenceSession(original, options[0], providers=[provider])
  after = ortplugin.session(optimized, providers=[provider], session_options=options[1])
  first, second = before.run(None, feeds)[0], after.run(None, feeds)[0]
  times = median_ms(runs, lambda: before.run(None, feeds), lambda: after.run(None, feeds))
  return Comparison(provider, first, second, *times)


def fused(path, *operators):
  """Nodes of these operators of ortplugin's in a model file."""
  nodes = onnx.load(path, load_external_data=False).graph.node
  return sum(node.domain == "ortplugin" and node.op_type in operators for node in nodes)


def optimize(console, original, optimized):
  """Runs the command line tool, whose report goes to the terminal; whether it succeeded."""
  arguments = [str(original), "-o", str(optimized)]
  print(f"\n$ optimize-model {' '.join(arguments)}", flush=True)
  if status := optimize_model(arguments):
    console.print(f"[red]optimize-model exited with {status}[/red]")
  return not status


def show_neighbours(console, comparison):
  """Prints each sentence with the number of its nearest neighbour, and their cosine, under both models."""
  table = Table("", "sentence", "nearest, original", "nearest, optimized", title="Nearest neighbours")
  both = [(e, nearest(e)) for e in (comparison.original, comparison.optimized)]
  for row, sentence in enumerate(SENTENCES):
    cells = [f"{n[row] + 1:2d}   cosine {e[row] @ e[n[row]]:.4f}" for e, n in both]
    table.add_row(str(row + 1), sentence, *cells)
  console.print(table)


def show_agreement(console, comparisons, measure, values):
  """Prints differences, one more measure of agreement, and times, a row for each provider."""
  table = Table("provider", "max difference", measure, "original ms", "optimized ms", title="Original and optimized")
  for c, value in zip(comparisons, values, strict=True):
    figures = f"{c.max_difference:.1e}", value, f"{c.original_ms:.2f}", f"{c.optimized_ms:.2f}"
    table.add_row(c.provider.removesuffix("ExecutionProvider"), *figures)
  console.print(table)


def transformer(console, folder, runs):
  """The sentence-embedding model; whether original and optimized agree."""
  original, optimized = folder / "minilm.onnx", folder / "minilm.fast.onnx"
  onnx.save(minilm.build(), original)
  console.print(f"built {original}: all-MiniLM-L6-v2, {original.stat().st_size / 1e6:.0f} MB")
  if not optimize(console, original, optimized):
    return False

  feeds = minilm.tokenize(SENTENCES)
  comparisons = [compare(original, optimized, provider, feeds, runs) for provider in providers()]
  show_neighbours(console, comparisons[0])
  show_agreement(console, comparisons, "min cosine", [f"{c.min_cosine:.6f}" for c in comparisons])

  count, norms = fused(optimized, "FusedLayerNorm", "FusedMatMulNorm"), minilm.config().norms
  console.print(f"{count} of {norms} layer norms are fused")
  if count != norms or not all(c.agrees for c in comparisons):
    console.print("[red]the optimized model does not agree with the original[/red]")
    return False
  console.print(f"[green]embeddings and nearest neighbours of all {len(SENTENCES)} sentences agree[/green]")
  return True


def convolutional(console, folder, runs):
  """ResNet-50; whether original and optimized agree."""
  original, optimized = folder / "resnet50.onnx", folder / "resnet50.fast.onnx"
  model = light.randomized("resnet50", logits=True)
  layers = sum(node.op_type in ("Conv", "Gemm") for node in model.graph.node)
  onnx.save(model, original)
  console.print(f"\nbuilt {original}: light_resnet50 with random weights, {original.stat().st_size / 1e6:.0f} MB")
  if not optimize(console, original, optimized):
    return False

  (name,) = (each.name for each in onnx.load(optimized, load_external_data=False).graph.input)
  image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
  comparisons = [compare(original, optimized, provider, {name: image}, runs) for provider in providers()]
  classes = [f"{c.original.argmax()} and {c.optimized.argmax()}" for c in comparisons]
  show_agreement(console, comparisons, "best class", classes)

  count = fused(optimized, "FusedConv")
  console.print(f"{count} of {layers} convolutions and linear layers are fused with what follows them")
  if count != layers or not all(c.same_classes for c in comparisons):
    console.print("[red]the optimized model does not agree with the original[/red]")
    return False
  console.print("[green]all class scores agree[/green]")
  return True


def main(arguments=None):
  """Runs the demo; 0 if everything agrees."""
  parser = argparse.ArgumentParser(description="Optimizes two models and compares them with the originals.")
  parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where the models are written")
  parser.add_argument("--runs", type=int, default=10, help="timed runs of each model")
  options = parser.parse_args(arguments)
  console = Console()

  options.folder.mkdir(parents=True, exist_ok=True)
  agree = [each(console, options.folder, options.runs) for each in (transformer, convolutional)]
  return 0 if all(agree) else 1


if __name__ == "__main__":
  sys.exit(main())
