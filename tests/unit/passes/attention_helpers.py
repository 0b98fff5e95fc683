"""What the tests of attention share: graphs of q, k and v, and the fused node's attributes."""

import numpy as np
import onnx
import pytest
from pass_helpers import add_weights, all_attributes, assert_close, model, nodes_of, restore, run, run_pass, seeded

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_ATTENTION
from ortplugin.passes.attention import attention_operators, core

# 2 images or texts, 5 rows, 7 columns where they differ from the rows, 4 heads of 8.
SIZES = "b s (h d)"
X = "float[2,5,16] x"
STANDARD = {"q_layout": SIZES, "k_layout": SIZES, "v_layout": SIZES, "y_layout": SIZES}


@pytest.fixture
def in_float(monkeypatch):
  """Fuses float32 too, in which ONNX Runtime computes the original so exactly that mistakes show."""
  for module in (core, attention_operators):
    monkeypatch.setattr(module, "DTYPES", ("float16", "bfloat16", "float"))


def graph(nodes, inputs, y="float[2,5,32] y", constants="", opset=18):
  return model(f"({inputs}) => ({y}) <{constants}> {{ {nodes} }}", opset)


def with_weights(original, **shapes):
  generator = seeded(original)
  for name, shape in shapes.items():
    values = generator.standard_normal(shape).astype(np.float32) * 0.3
    add_weights(original, **{name: values})
  return original


def feeds(original, scale=1.0, rng=None, **lengths):
  """Values for every input, not so large that one score outweighs all others."""
  found = {}
  rng = rng or seeded(original)
  given = {each.name for each in original.graph.initializer}
  for each in original.graph.input:
    if each.name in given:
      continue
    tensor = each.type.tensor_type
    shape = [dim.dim_value or lengths[dim.dim_param] for dim in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind in "biu":
      found[each.name] = (rng.random(shape) < 0.7).astype(dtype)
    else:
      found[each.name] = (rng.standard_normal(shape) * scale).astype(dtype)
  return found


def attributes(node):
  """Those of a fused node but for dtype and heads, texts as str and numbers rounded."""
  plain = {name: each.decode() if isinstance(each, bytes) else each for name, each in all_attributes(node).items()}
  return {
    name: round(each, 5) if isinstance(each, float) else each
    for name, each in plain.items()
    if name not in ("qkv_dtype", "heads", "kv_heads")
  }


def attentions(optimized):
  return nodes_of(optimized, "FusedAttention")


def fused(original, *passes, into=None, given=None, **lengths):
  """The model with its one attention fused, whose outputs equal the original's, and the node.

  `into` as of run_pass; `given` are inputs that are not random.
  """
  optimized, _ = run_pass(original, FUSE_ATTENTION, *passes, DEAD_NODES, into=into)
  (node,) = attentions(optimized)
  assert_equal(original, optimized, feeds(original, **lengths) | (given or {}))
  return optimized, node


def assert_equal(original, optimized, given):
  for expected, found in zip(run(original, given), run(restore(optimized), given), strict=True):
    assert_close(expected, found)
