"""An LSTM with constant weights becomes the product of all its inputs and a FusedLSTM.

    y = Reshape(Transpose<perm = [0, 2, 1, 3]>(LSTM(x, w, r, b)), [T, B, D * H])

becomes

    y = FusedLSTM(FusedMatMul(x, v, c), r)                v [D * H * 4, I], c = both biases, in FusedLSTM's order

Where other nodes read ONNX's Y [T, D, B, H], views make it of [T, B, D * H]. Where Transposes only put the sequence
first, as those of a module of PyTorch with batch_first do, products and recurrences between them work batch first:

    Transpose<perm = [1, 0, 2]>(FusedLSTM(FusedMatMul(Transpose<perm = [1, 0, 2]>(x), v), r))

becomes `FusedLSTM<batch_first = 1>(FusedMatMul(x, v), r)`, and so do several layers. The columns of images, sequences
that a model makes of x [N, H, W, C] by a Transpose and a Reshape to [N * W, H, C], are read and written where they lie.

Of float32 it is a pass of its own, for sessions that allow TF32.
"""

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import DOMAIN, ELEMENTS, Scope, labelled, show
from ...graph.lengths import same_length
from ...ops.lstm import DIRECTIONS, FAST_HIDDEN, FAST_HIDDEN_TF32, GATES, NAME
from ..conditions import unknown_rank, unsupported
from ..conv.fused import biased
from ..driver import Applied, Missed, Outcome, RulePass, first_of
from ..emit import integers
from .batch_first import only_reader
from .fused import OWN_INPUTS, is_product, product_node
from .matmul_to_fused import VECTOR
from .matmul_views import is_row

DTYPES = ("float16", "bfloat16")
FUSED = f"{DOMAIN}::{NAME}"
ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]
PARTS = ("Expand", "Slice", "Split", "Reshape", "Unsqueeze", "Squeeze")  # whose elements are the first input's
SWAPPED = [1, 0, 2]  # the batch and the sequence
SIDE_BY_SIDE = [0, 2, 1, 3]  # [T, D, B, H] as [T, B, D, H]


def rewrite(scope: Scope, node: gs.Node, dtypes: Sequence[str] = DTYPES) -> Outcome:
  """Replaces one LSTM of ONNX."""
  if scope.op(node) != "LSTM" or scope.dtype(node.inputs[0]) not in dtypes:
    return None
  reason = _fault(scope, node)
  if reason is not None:
    return Missed(node, reason)
  x, r = node.inputs[0], node.inputs[2]
  directions, hidden = _directions(node), int((scope.shape(r) or (0,))[-1] or 0)
  h0, c0 = _input(node, 5), _input(node, 6)
  states = [] if _is_zero(scope, h0) and _is_zero(scope, c0) else [h0, c0]
  rows = (scope.shape(x) or ())[:2]
  g = gs.Variable(scope.unique(f"{node.outputs[0].name}_gates"), x.dtype, (*rows, directions * hidden * GATES))
  product = _product(scope, node)
  product.outputs.append(g)
  scope.insert(product, node)
  attributes = {
    "hidden_size": hidden,
    "dtype": scope.dtype(x),
    "direction": str(node.attrs.get("direction", DIRECTIONS[0])),
  }
  fused = gs.Node(NAME, node.name, attributes, [g, r, *states], [], DOMAIN)
  views, y = _side_by_side(scope, node, directions)
  wanted, *last = node.outputs
  while last and not scope.used_beyond(last[-1], []):
    last.pop()
  labels = labelled(node, *views)
  made = y or gs.Variable(scope.unique(f"{g.name}_rows"), x.dtype, (*rows, directions * hidden))
  scope.replace([node, *views], fused, [made, *(_unread(scope, g) if each.is_empty() else each for each in last)])
  if y is None and scope.used_beyond(wanted, []):
    _restore(scope, fused, made, wanted, directions, hidden)
  return Applied(labels, fused)


def rewrite_tf32(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one of float32."""
  return rewrite(scope, node, ("float",))


def _fault(scope: Scope, node: gs.Node) -> str | None:
  """Why the LSTM stays."""
  x, w, r = node.inputs[:3]
  reason = unsupported(scope) or unknown_rank(scope, x)
  usual = ACTIVATIONS * _directions(node)
  for name in ("clip", "input_forget", "layout"):
    if reason is None and node.attrs.get(name, 0):
      reason = f"its attribute '{name}' is {node.attrs[name]}"
  activations = [str(each) for each in node.attrs.get("activations", usual)]
  if reason is None and activations != usual:
    reason = f"its activations are {', '.join(activations)}"
  for at, what in ((4, "sequence_lens"), (7, "peepholes")):
    if reason is None and not _input(node, at).is_empty():
      reason = f"it has {what}, '{_input(node, at).name}'"
  if reason is not None:
    return reason
  for tensor in (w, r, _input(node, 3)):
    if not tensor.is_empty() and scope.constant(tensor, ELEMENTS) is None:
      return f"'{tensor.name}' of shape {show(scope.shape(tensor))} is no constant that no caller may override"
  hidden, k = (scope.shape(r) or (None,))[-1], (scope.shape(w) or (0,))[-1]
  is_float = scope.dtype(x) == "float"
  fast = FAST_HIDDEN_TF32 if is_float else FAST_HIDDEN
  if hidden not in fast:
    return f"its hidden size is {hidden}; there is a fast kernel for multiples of 16 up to {fast[-1]}"
  if is_float and int(k or 0) % VECTOR:
    return f"its inputs have {k} elements; TF32's products take multiples of {VECTOR}"
  if _input(node, 5).is_empty() != _input(node, 6).is_empty():
    return "one of its initial states is given and the other is not"
  return None


def _directions(node: gs.Node) -> int:
  """D."""
  return 2 if node.attrs.get("direction") == "bidirectional" else 1


def _input(node: gs.Node, place: int) -> gs.Tensor:
  """The input, empty where it is left out."""
  return node.inputs[place] if place < len(node.inputs) else gs.Variable.empty()


def _is_zero(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether an initial state is surely zero everywhere."""
  if tensor.is_empty():
    return True
  known = scope.constant(tensor, ELEMENTS)
  if known is not None:
    return not np.any(known)
  if (filled := scope.producer(tensor, "ConstantOfShape")) is not None:
    return "value" not in filled.attrs or not np.any(filled.attrs["value"].values)
  maker = scope.producer(tensor, *PARTS)
  return maker is not None and _is_zero(scope, maker.inputs[0])


def _product(scope: Scope, node: gs.Node) -> gs.Node:
  """The product of the inputs, without outputs."""
  x, w, bias = node.inputs[0], node.inputs[1], _input(node, 3)
  dtype = scope.dtype(x) or ""

  def by_unit(array: Array) -> Array:  # [D, 4 * H, ..] as [D * H * 4, ..]
    d, rows, *rest = array.shape
    moved: Array = array.reshape(d, GATES, rows // GATES, *rest).swapaxes(1, 2).reshape(d * rows, *rest)
    return moved

  weights = scope.constant(w, ELEMENTS)
  assert weights is not None
  inputs = [x, scope.add_constant(by_unit(weights), f"{w.name}_by_unit")]
  both = None if bias.is_empty() else scope.constant(bias, ELEMENTS)
  if both is not None:
    of_input, of_state = np.split(both.astype(np.float32), 2, axis=1)
    inputs.append(scope.add_constant(by_unit((of_input + of_state).astype(both.dtype)), f"{bias.name}_by_unit"))
  return product_node(scope.unique(f"{node.name}/gates"), biased(dtype, both is not None), inputs, True)


def _unread(scope: Scope, like: gs.Tensor) -> gs.Variable:
  """An output that nobody reads, in front of one that is read."""
  return gs.Variable(scope.unique(f"{like.name}_state"), like.dtype, None)


def _side_by_side(scope: Scope, node: gs.Node, directions: int) -> tuple[list[gs.Node], gs.Tensor | None]:
  """The views that make [T, B, D * H] of Y, and what they make; none where Y is read otherwise."""
  y, views = node.outputs[0], []
  view = None if y.is_empty() else only_reader(scope, y)
  if view is not None and _swaps(scope, view, SIDE_BY_SIDE):
    views.append(view)
    view = only_reader(scope, view.outputs[0])
  elif directions == 2:
    return [], None
  if view is None or not _joins(scope, node, view, directions, is_moved=bool(views)):
    return [], None
  return [*views, view], view.outputs[0]


def _joins(scope: Scope, node: gs.Node, view: gs.Node, directions: int, *, is_moved: bool) -> bool:
  """Whether the view makes [T, B, D * H] of [T, B, D, H], or where it is not moved of [T, D, B, H] with D = 1."""
  made, x = view.outputs[0], node.inputs[0]
  width = directions * int((scope.shape(node.inputs[2]) or (0,))[-1] or 0)
  if scope.op(view) == "Squeeze":
    given = view.attrs.get("axes") if len(view.inputs) < 2 else scope.constant(view.inputs[1])
    axes = [] if given is None else [int(axis) % 4 for axis in np.asarray(given).reshape(-1)]
    return directions == 1 and axes == [2 if is_moved else 1]
  if scope.op(view) != "Reshape" or view.inputs[0] is made or scope.rank(made) != 3:
    return False
  if (scope.shape(made) or ())[-1] != width:
    return False
  known = scope.constant(view.inputs[1])
  keeps = known is not None and is_moved and list(known[:2]) == [0, 0] and not view.attrs.get("allowzero", 0)
  return keeps or all(same_length(scope, x, made, axis) for axis in (0, 1))


def _restore(scope: Scope, fused: gs.Node, y: gs.Tensor, wanted: gs.Tensor, directions: int, hidden: int) -> None:
  """Makes ONNX's Y [T, D, B, H] of [T, B, D * H]."""
  rows = (scope.shape(y) or ())[:2]
  dims = integers(scope, [0, 0, directions, hidden], f"{y.name}_shape")
  apart = gs.Variable(scope.unique(f"{y.name}_apart"), y.dtype, (*rows, directions, hidden))
  move = gs.Node("Transpose", scope.unique(f"{y.name}_moved"), {"perm": SIDE_BY_SIDE}, [apart], [wanted])
  scope.insert_after(move, fused)
  scope.insert_after(gs.Node("Reshape", apart.name, {}, [y, dims], [apart]), fused)


def batch_first(scope: Scope, node: gs.Node) -> Outcome:
  """Lets recurrences between two Transposes, with their products, work on the order of the tensors outside."""
  if scope.op(node) != FUSED or node.attrs.get("batch_first", 0):
    return None
  product = _product_before(scope, node)
  before = None if product is None else scope.producer(product.inputs[0])
  if product is None or before is None or not _swaps(scope, before):
    return None
  products, layers = [product], [node]
  while (reader := only_reader(scope, layers[-1].outputs[0])) is not None and not _swaps(scope, reader):
    following = only_reader(scope, reader.outputs[0])
    if following is None or scope.op(following) != FUSED or following.attrs.get("batch_first", 0):
      return None
    if _product_before(scope, following) is not reader:
      return None
    products.append(reader)
    layers.append(following)
  y = layers[-1].outputs[0]
  if reader is None and (y.outputs or scope.is_output(y)):
    return None
  labels = labelled(before, *layers, *([reader] if reader else []))
  product.inputs[0] = before.inputs[0]
  if not scope.used_beyond(before.outputs[0], []):
    scope.remove(before)
  for tensor in (each.outputs[0] for each in (*products, *layers)):
    tensor.shape = None if tensor.shape is None else tuple(tensor.shape[axis] for axis in SWAPPED)
  for layer in layers:
    layer.attrs["batch_first"] = 1
  if reader is not None:
    _take_over(scope, layers[-1], reader)
  return Applied(labels, node)


def columns(scope: Scope, node: gs.Node) -> Outcome:
  """Lets a recurrence along the columns of images read and write the images as they lie."""
  if scope.op(node) != FUSED or not node.attrs.get("batch_first", 0):
    return None
  product = _product_before(scope, node)
  view = None if product is None else scope.producer(product.inputs[0], "Reshape")
  move = None if view is None else scope.producer(view.inputs[0])
  apart = only_reader(scope, node.outputs[0])
  back = None if apart is None or scope.op(apart) != "Reshape" else only_reader(scope, apart.outputs[0])
  if product is None or view is None or move is None or apart is None or back is None:
    return None
  if not (_swaps(scope, move, SIDE_BY_SIDE) and _swaps(scope, back, SIDE_BY_SIDE)):
    return None
  images, rows, made = (scope.shape(each.outputs[0]) or () for each in (move, view, apart))  # [N, W, H, C]
  if not all(isinstance(dim, int) for dim in images[1:]) or rows[1:] != images[2:] or made[1:3] != images[1:3]:
    return None
  if len(made) != 4 or made[3] != (scope.shape(node.outputs[0]) or (None,))[-1]:
    return None
  labels = labelled(move, view, product, node, apart, back)
  product.inputs[0] = move.inputs[0]
  for each in (view, move):
    if not scope.used_beyond(each.outputs[0], []):
      scope.remove(each)
  n, w, h, _ = images
  product.outputs[0].shape = (n, h, w, (scope.shape(product.outputs[0]) or (None,))[-1])
  _take_over(scope, node, back)
  scope.remove(apart)
  return Applied(labels, node)


def _product_before(scope: Scope, node: gs.Node) -> gs.Node | None:
  """The product that makes G for the node alone, of which each row depends on a row of its first operand."""
  product = scope.producer(node.inputs[0])
  if product is None or not is_product(scope, product) or len(product.outputs) != 1:
    return None
  of_rows = scope.rank(product.inputs[0]) == 3 and all(is_row(scope, each) for each in product.inputs[OWN_INPUTS:])
  return product if of_rows and not scope.used_beyond(node.inputs[0], [node]) else None


def _swaps(scope: Scope, node: gs.Node, perm: Sequence[int] = SWAPPED) -> bool:
  """Whether the node is this Transpose, which swaps batch and sequence."""
  return scope.op(node) == "Transpose" and list(node.attrs.get("perm") or ()) == list(perm)


def _take_over(scope: Scope, node: gs.Node, view: gs.Node) -> None:
  """Makes the view's output the node's first."""
  outputs, y = list(node.outputs), view.outputs[0]
  scope.remove(view)
  node.outputs.clear()
  node.outputs.extend([y, *outputs[1:]])


FUSE_LSTM = RulePass(
  "fuse-lstm",
  "an LSTM with constant weights, in float16 and bfloat16, becomes a product and a FusedLSTM",
  first_of(rewrite, batch_first, columns),
)
LSTM_TO_TF32 = RulePass(
  "lstm-to-tf32",
  "an LSTM of float32 that may round to TF32 becomes a product and a FusedLSTM",
  first_of(rewrite_tf32, batch_first, columns),
)
