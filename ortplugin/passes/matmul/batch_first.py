"""Products around attention work batch first where Transposes only put the sequence first for them.

    q = FusedMatMul(Transpose<perm = [1, 0, 2]>(x), w)        x [B, S, C]
    a = FusedAttention<q_layout = "s b (0/3 h d)", .., y_layout = "(s b) (h d)">(q, q, q)
    y = Transpose<perm = [1, 0, 2]>(Reshape(FusedMatMul(a, v), [S, B, C]))

becomes

    q = FusedMatMul(x, w)
    a = FusedAttention<q_layout = "b s (0/3 h d)", .., y_layout = "b s (h d)">(q, q, q)
    y = FusedMatMul(a, v)

So PyTorch's nn.MultiheadAttention is exported, in ViT and CLIP: inside it the sequence comes first, whatever comes in.
A product does not care in which order its rows are, and attention reads and writes any. What follows, such as a
residual sum, then stands beside the product.
"""

import re

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, labelled
from ..driver import Applied, Outcome, RulePass, first_of
from .fused import OWN_INPUTS, is_product
from .matmul_views import is_row

ATTENTION = f"{DOMAIN}::FusedAttention"
OPERANDS = ("q_layout", "k_layout", "v_layout")
PLAIN = "b h s d"  # the layout where none is given


def read(scope: Scope, node: gs.Node) -> Outcome:
  """Lets one product before attention read what the Transpose before it reads."""
  if scope.op(node) != ATTENTION:
    return None
  for tensor in node.inputs[: len(OPERANDS)]:
    product = scope.producer(tensor)
    transpose = None if product is None or not _is_of_rows(scope, product) else scope.producer(product.inputs[0])
    perm = None if transpose is None else _perm(scope, transpose)
    if product is None or transpose is None or perm is None or scope.used_beyond(tensor, [node]):
      continue
    places = [at for at, each in enumerate(node.inputs) if each is tensor]
    layouts = [words_of(str(node.attrs.get(name, PLAIN))) for name in OPERANDS]
    if places[-1] >= len(OPERANDS) or any(len(layouts[at]) != len(perm) for at in places):
      continue
    labels = labelled(transpose, product, node)
    back = [perm.index(axis) for axis in range(len(perm))]
    given = scope.shape(tensor)
    made = gs.Variable(
      scope.unique(f"{tensor.name}_moved"), tensor.dtype, None if given is None else tuple(given[i] for i in back)
    )
    new = gs.Node(product.op, product.name, dict(product.attrs), [transpose.inputs[0], *product.inputs[1:]], [], DOMAIN)
    scope.replace([product], new, [made])
    for at in places:
      node.inputs[at] = made
      node.attrs[OPERANDS[at]] = " ".join(layouts[at][axis] for axis in back)
    if not scope.used_beyond(transpose.outputs[0], []):
      scope.remove(transpose)
    return Applied(labels, node)
  return None


def write(scope: Scope, node: gs.Node) -> Outcome:
  """Lets the product after attention write what the Transpose after it writes."""
  if scope.op(node) != ATTENTION:
    return None
  y = node.outputs[0]
  product = only_reader(scope, y)
  if product is None or not _is_of_rows(scope, product) or product.inputs[0] is not y:
    return None
  view = only_reader(scope, product.outputs[0])
  words = words_of(str(node.attrs.get("y_layout", PLAIN)))
  between = [product]
  if view is not None and scope.op(view) == "Reshape":
    words = _divided(scope, node, words, view.outputs[0])
    between.append(view)
    view = only_reader(scope, view.outputs[0])
  perm = None if view is None or not words else _perm(scope, view)
  if view is None or perm is None or len(perm) != len(words):
    return None
  shape, width = scope.shape(view.outputs[0]), (scope.shape(y) or (None,))[-1]
  labels = labelled(node, *between, view)
  new = gs.Node(product.op, product.name, dict(product.attrs), list(product.inputs), [], DOMAIN)
  scope.replace([*between, view], new, [view.outputs[0]])
  node.attrs["y_layout"] = " ".join(words[axis] for axis in perm)
  y.shape = None if shape is None else (*shape[:-1], width)
  return Applied(labels, node)


def words_of(layout: str) -> list[str]:
  """The axes of a layout, each with what it is a product of."""
  return re.findall(r"\([^)]*\)|[^\s()]+", layout)


def _is_of_rows(scope: Scope, node: gs.Node) -> bool:
  """Whether the node is a product whose operands are the same for each row."""
  rows = is_product(scope, node) and len(node.outputs) == 1
  return rows and all(is_row(scope, each) for each in node.inputs[OWN_INPUTS:])


def _perm(scope: Scope, node: gs.Node) -> list[int] | None:
  """The permutation of a Transpose that keeps the last axis; None for another node."""
  perm = [int(axis) for axis in node.attrs.get("perm") or ()] if scope.op(node) == "Transpose" else []
  return perm if perm and perm[-1] == len(perm) - 1 else None


def only_reader(scope: Scope, tensor: gs.Tensor) -> gs.Node | None:
  """The node that alone reads the tensor."""
  readers = scope.consumers(tensor)
  return readers[0] if len(readers) == 1 and not scope.used_beyond(tensor, readers) else None


def _divided(scope: Scope, node: gs.Node, words: list[str], view: gs.Tensor) -> list[str]:
  """The layout after a Reshape that divides the first axis, a product of batch and sequence; [] if it does not."""
  atoms = words[0].strip("()").split() if words else []
  shape = scope.shape(view)
  if len(words) != 2 or sorted(atoms) != ["b", "s"] or shape is None or len(shape) != 3:
    return []
  layout, given = words_of(str(node.attrs.get("q_layout", PLAIN))), scope.shape(node.inputs[0])
  if given is None or len(given) != len(layout) or not {"b", "s"} <= set(layout):
    return []
  lengths = [given[layout.index(atom)] for atom in atoms]
  known = all(isinstance(length, int) for length in lengths)
  return [*atoms, words[1]] if known and lengths == list(shape[:2]) else []


BATCH_FIRST = RulePass(
  "batch-first", "products around attention work on the order of the tensors outside", first_of(read, write)
)
