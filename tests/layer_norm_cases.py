"""The cases on which FusedLayerNorm must equal its reference, on every provider.

A case is a program, the shapes of its inputs and what stands in them.
"""

import math
from dataclasses import dataclass

import numpy as np
from node_cases import UNIT_ROUNDOFF, VALUES, Expectation, ProgramCase, check_results, named, typed
from onnx import helper

from ortplugin.ops.layer_norm import OPERATOR, order_of
from ortplugin.ops.layer_norm.reference import in_order, layer_norm, with_groups
from ortplugin.program import FLOATING, NUMPY_DTYPES


@dataclass(frozen=True)
class Case(ProgramCase):
  """One node with its inputs. `values` makes the first parameter only; the others hold normal numbers.

  `attributes`: ordered, order and image.
  """

  operator = OPERATOR
  node_name = "norm"
  attributes: tuple[tuple[int, ...], ...] = ()

  def node(self):
    node = super().node()
    for name, values in zip(("ordered", "order", "image"), self.attributes, strict=False):
      node.attribute.append(helper.make_attribute(name, values))
    return node

  def model(self, shapes=None):
    return self.model_of(self.text, self.shapes if shapes is None else shapes, [self.node()])

  def _numbers(self, rng, number, shape):
    return VALUES[self.values](rng, shape) if number == 0 else rng.standard_normal(shape)


node_of, model_of = Case.node_of, Case.model_of


# ---- comparison

# Roundings of the arithmetic that may add up in one element, all in the same direction: a row's sums (in lanes, then in
# a tree), the mean, the scale and the pointwise statements. Rows of equal numbers, whose sums' roundings have all the
# same sign, reach two fifths of it; all else stays under a tenth.
ROUNDINGS = 32.0


def expect(case, inputs=None, unit=None):
  program = case.program
  arrays = case.inputs() if inputs is None else list(inputs)
  ordered, order = order_of(case.node(), program)
  arrays = [in_order(each, order) if i in ordered else each for i, each in enumerate(arrays)]
  core = program.core
  # The normalised value is asked for too, for the conditioning of its rows.
  summed = core.names[0]
  names = [result.name for result in program.results]
  asked = program if summed in names else program.with_result(summed)
  everything = layer_norm(asked, arrays, rounded=False)
  s = everything[names.index(summed) if summed in names else -1]
  wide = everything[: len(names)]
  outputs = []
  for result, value in zip(program.results, wide, strict=True):
    with np.errstate(over="ignore"):
      outputs.append(np.asarray(value).astype(NUMPY_DTYPES[result.dtype]))
  (shape, axes), epsilon = with_groups(core, s.shape), core.number("epsilon")
  order = [*(axis for axis in range(len(shape)) if axis not in axes), *axes]  # rows of what is normalised

  def rows_of(array):
    moved = array.reshape(shape).transpose(order)
    rows = math.prod(moved.shape[: len(shape) - len(axes)])
    return moved.reshape(rows, -1) if s.size else moved.reshape(rows, 0)

  with np.errstate(all="ignore"):
    flat = rows_of(s)
    condition = _conditioning(flat, core.op, epsilon)
    in_double = set(program.dtypes.values()) <= {"double", "bool"}
    compute = UNIT_ROUNDOFF["double" if in_double else "float"] if unit is None else unit
    slack = []
    for value in wide:
      magnitude = _largest(rows_of(np.abs(np.asarray(value, np.float64))))
      of_rows = ROUNDINGS * compute * (magnitude + condition * np.maximum(magnitude, 1))
      moved = np.broadcast_to(of_rows, flat.shape).reshape([shape[axis] for axis in order])
      slack.append(moved.transpose(np.argsort(order)).reshape(s.shape))
  return Expectation(wide, outputs, slack)


def _largest(rows):
  """The largest finite number of each row, [rows, 1]; 0 in rows that have none."""
  return np.where(np.isfinite(rows), rows, 0).max(axis=1, keepdims=True, initial=0)


def _conditioning(s, op, epsilon):
  """By how much normalisation magnifies an error relative to the largest element: max|s| / sqrt(v + epsilon)."""
  if s.shape[1] == 0:
    return np.zeros((s.shape[0], 1))
  centred = s - s.mean(axis=1, keepdims=True) if op == "LayerNormalization" else s
  deviation = np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + epsilon)
  condition = _largest(np.abs(s)) / deviation
  return np.where(np.isfinite(condition), condition, 0)


def check(case, outputs, expected=None):
  """Compares a kernel's outputs with the reference, as `check_results` does, with the slack

      ROUNDINGS c (m + max(m, 1) max|s| / sqrt(v + epsilon))

  where m is the largest magnitude of `wide` in the row and c the unit roundoff of the arithmetic. The factor with s is
  how much a mean that is wrong in its last bit is magnified in a row whose elements lie close together, which x_hat,
  of the order of 1, shows even where it is 0. float64's own errors are the reference's; in double they are of c's
  order.

  Returns the largest part of it that was used.
  """
  return check_results(case, outputs, expect(case) if expected is None else expected)


# ---- programs
# T stands for the dtype at hand. Two more names keep the rows short.

BARE = "(T x) => (T y) { y = LayerNormalization(x) }"
BARE_RMS = "(T x) => (T y) { y = RMSNormalization<epsilon=1e-06>(x) }"
AFFINE = "(T x, T gamma, T beta) => (T y) { n = LayerNormalization(x) g = Mul(n, gamma) y = Add(g, beta) }"
SCALED_RMS = "(T x, T gamma) => (T y) { n = RMSNormalization<epsilon=1e-06>(x) y = Mul(n, gamma) }"
RESIDUAL = """(T x, T b, T r, T gamma, T beta) => (T y, T s) {
  t = Add(x, b)
  s = Add(t, r)
  n = LayerNormalization<epsilon=1e-12>(s)
  g = Mul(n, gamma)
  y = Add(g, beta)
}"""
ADD = "(T x, T r) => (T y, T s) { s = Add(x, r) y = LayerNormalization(s) }"

W = -1  # the width, in the shapes of PROGRAMS
FULL = (3, 7, W)

# name: the program, the parameters' shapes
PROGRAMS = {
  "bare": (BARE, (FULL,)),
  "bare RMS": (BARE_RMS, (FULL,)),
  "gamma": ("(T x, T gamma) => (T y) { n = LayerNormalization(x) y = Mul(n, gamma) }", (FULL, (W,))),
  "beta": ("(T x, T beta) => (T y) { n = LayerNormalization(x) y = Add(beta, n) }", (FULL, (W,))),
  "gamma and beta": (AFFINE, (FULL, (W,), (W,))),
  "RMS with 1 + gamma": (
    "(T x, T gamma) => (T y) { n = RMSNormalization(x) g = Add(gamma, 1) y = Mul(n, g) }",
    (FULL, (W,)),
  ),
  "bias, residual, sum kept": (RESIDUAL, (FULL, (W,), FULL, (W,), (W,))),
  "two biases and a residual": (
    """(T x, T a, T b, T r, T gamma) => (T y, T s) {
        t = Add(a, b)
        u = Add(t, x)
        s = Add(r, u)
        n = RMSNormalization(s)
        y = Mul(gamma, n)
      }""",
    (FULL, (W,), (W,), FULL, (W,)),
  ),
  "residual of the width": (ADD, (FULL, (W,))),
  "residual that repeats": (ADD, (FULL, (1, 7, W))),
  "residual of lower rank": (ADD, (FULL, (7, W))),
  "residual a sequence": (ADD, (FULL, (3, 1, W))),
  "residual a column": (ADD, (FULL, (3, 1, 1))),
  "residual a row number": (ADD, (FULL, (1, 7, 1))),
  "residual a scalar": (ADD, (FULL, ())),
  "residual of one element": (ADD, (FULL, (1,))),
  "x is what repeats": (ADD, ((7, W), FULL)),
  "S is larger than both": (ADD, ((3, 1, W), (7, 1))),
  "gains of rows and of all": (
    """(T x, T column, T scalar, T one, T row) => (T y) {
        n = LayerNormalization(x)
        a = Mul(n, column)
        b = Add(a, scalar)
        c = Mul(b, one)
        y = Add(c, row)
      }""",
    (FULL, (3, 1, 1), (), (1,), (7, 1)),
  ),
  "post-norm residual": (
    "(T x, T r, T gamma) => (T y, T s) { s = Add(x, r) n = RMSNormalization(s) g = Mul(n, gamma) y = Add(s, g) }",
    (FULL, FULL, (W,)),
  ),
  "x again after the norm": (
    "(T x, T b) => (T y) { s = Add(x, b) n = LayerNormalization(s) y = Sub(n, x) }",
    (FULL, (W,)),
  ),
  "a parameter used everywhere": (
    "(T x, T b) => (T y) { s = Mul(x, b) t = Add(s, b) n = LayerNormalization(t) g = Mul(n, b) y = Add(g, b) }",
    (FULL, (W,)),
  ),
  "prologue's intermediates kept": (
    "(T x, T r, T b) => (T t, T y, T u) { t = Add(x, r) u = Mul(t, 0.5) s = Add(u, b) y = LayerNormalization(s) }",
    (FULL, FULL, (W,)),
  ),
  "normalised and activated": (
    "(T x, T gamma) => (T n, T y) { n = LayerNormalization(x) g = Mul(n, gamma) y = Relu(g) }",
    (FULL, (W,)),
  ),
  "Gelu": (
    "(T x, T gamma, T beta) => (T y) { n = LayerNormalization(x) g = Mul(n, gamma) a = Add(g, beta) y = Gelu(a) }",
    (FULL, (W,), (W,)),
  ),
  "gated": (
    "(T x, T gate, T gamma) => (T y) { n = RMSNormalization(x) g = Mul(n, gamma) a = Swish(gate) y = Mul(g, a) }",
    (FULL, FULL, (W,)),
  ),
  "adaptive": (  # a DiT's modulation
    """(T x, T shift, T scale) => (T y) {
        n = LayerNormalization<epsilon=1e-06>(x)
        g = Add(scale, 1)
        m = Mul(n, g)
        y = Add(m, shift)
      }""",
    (FULL, (3, 1, W), (3, 1, W)),
  ),
  "literals": (
    "(T x) => (T y) { t = Sub(1, x) n = LayerNormalization<epsilon=0.01>(t) c = Clip(n, -1.5, 0.75) y = Div(c, 3) }",
    (FULL,),
  ),
  "mask": (
    "(T x, bool m, T z) => (T y) { n = LayerNormalization(x) y = Where(m, n, z) }",
    (FULL, (3, 7, 1), (1, 1, W)),
  ),
  "mask of the width": (
    "(T x, bool m, T z) => (T y) { n = RMSNormalization(x) y = Where(m, z, n) }",
    (FULL, (W,), FULL),
  ),
  "mask of all elements": (
    "(T x, bool m) => (T y) { t = Where(m, x, 0) n = LayerNormalization(t) y = Where(m, n, -inf) }",
    (FULL, FULL),
  ),
  "a bool result": ("(T x) => (bool bad, T y) { y = LayerNormalization(x) bad = IsNaN(y) }", (FULL,)),
  "bools computed": (
    """(T x, bool m, T b) => (T y, bool e) {
        n = RMSNormalization(x)
        big = Greater(x, b)
        no = Not(big)
        e = And(no, m)
        y = Where(e, n, b)
      }""",
    (FULL, (7, 1), (W,)),
  ),
  "statistics in float": (  # how exporters write it: Cast up, normalise, Cast down
    """(T x, T gamma) => (T y) {
        w = Cast<to=float>(x)
        n = RMSNormalization<epsilon=1e-06>(w)
        h = Cast<to=T>(n)
        y = Mul(h, gamma)
      }""",
    (FULL, (W,)),
  ),
  "float gamma": (
    """(T x, float gamma, float beta) => (T y) {
        n = LayerNormalization(x)
        w = Cast<to=float>(n)
        g = Mul(w, gamma)
        a = Add(g, beta)
        y = Cast<to=T>(a)
      }""",
    (FULL, (W,), (W,)),
  ),
  "results of all dtypes": (
    """(T x) => (float16 h, bfloat16 b, float f, double d, bool t) {
        n = LayerNormalization(x)
        h = Cast<to=float16>(n)
        b = Cast<to=bfloat16>(n)
        f = Cast<to=float>(n)
        d = Cast<to=double>(n)
        t = Cast<to=bool>(x)
      }""",
    (FULL,),
  ),
  "a parameter is a result": ("(T x, T g) => (T y, T x) { n = LayerNormalization(x) y = Mul(n, g) }", (FULL, (W,))),
  "small values become results": (
    "(T x, T a, T b) => (T y, T c, T a) { n = LayerNormalization(x) c = Add(a, b) y = Mul(n, c) }",
    (FULL, (W,), (7, 1)),
  ),
}


def _programs():
  cases = []
  for name, (text, shapes) in PROGRAMS.items():
    # 256 is reached in whole accesses; rows of 1023 and of 33 begin at every alignment.
    for dtype, width in (("float16", 1023), ("float", 256), ("bfloat16", 33), ("double", 33)):
      cases.append(
        Case(
          f"{name}, {dtype}, {width}",
          typed(text, dtype),
          tuple(tuple(width if size == W else size for size in shape) for shape in shapes),
        )
      )
  return cases


def _widths():
  cases = []
  for width in (1, 3, 7, 33, 128, 384, 768, 1023, 5140, 5142, 20480, 40961, 100000):
    rows = 37 if width <= 1023 else 5
    for dtype in FLOATING:
      shapes = ((rows, width), (width,), (width,))
      cases.append(Case(f"width {width}, {dtype}", typed(AFFINE, dtype), shapes))
    dtype = ("float16", "float")[width % 2]
    cases.append(Case(f"width {width}, RMS, {dtype}", typed(SCALED_RMS, dtype), ((rows, width), (width,))))
  return cases


LONG = 1 << 21


def _shapes():
  inner = "(T x, T b, T gamma) => (T y) { s = Mul(x, b) n = LayerNormalization<axis=-2>(s) y = Mul(n, gamma) }"
  holes = "(T x, T b) => (T y) { s = Mul(x, b) y = RMSNormalization<axis=-3>(s) }"
  masked = """(T x, bool m, T b, T gamma) => (T y) {
      s = Mul(x, b)
      n = LayerNormalization<axis=-2>(s)
      w = Where(m, n, b)
      y = Mul(w, gamma)
    }"""
  rows = [
    ("one row", BARE, ((1, 1, 1023),)),
    ("awkward", BARE, ((3, 7, 256),)),
    ("a column", BARE, ((5, 1),)),
    ("a column, RMS", BARE_RMS, ((5, 1),)),
    ("one element", AFFINE, ((1,), (1,), ())),
    ("rank 1", AFFINE, ((77,), (77,), (1,))),
    ("three axes", BARE.replace("(x)", "<axis=1>(x)"), ((2, 3, 4, 5),)),
    ("two axes", BARE_RMS.replace("epsilon", "axis=2, epsilon"), ((2, 3, 4, 5),)),
    ("all axes", BARE.replace("(x)", "<axis=-4>(x)"), ((2, 3, 4, 5),)),
    ("last axis", BARE.replace("(x)", "<axis=3>(x)"), ((2, 3, 4, 5),)),
    ("broadcast within rows", inner, ((6, 11, 24), (11, 1), (24,))),
    ("broadcast within rows, 2", inner, ((6, 11, 24), (1, 24), (11, 1))),
    ("broadcast within rows, by row", inner, ((6, 11, 24), (6, 1, 24), (6, 11, 1))),
    ("broadcast within rows, period", inner, ((2, 3, 11, 24), (3, 1, 24), (1, 11, 1))),
    ("broadcast within rows, holes", holes, ((3, 4, 5, 6), (4, 1, 6))),
    ("mask within rows", masked, ((6, 11, 24), (11, 1), (11, 24), (24,))),
    ("no rows", AFFINE, ((0, 8), (8,), (8,))),
    ("no rows within", RESIDUAL, ((4, 0, 8), (8,), (4, 0, 8), (8,), (8,))),
    ("no rows by broadcast", ADD, ((0, 8), (1, 8))),
    ("no width", BARE, ((3, 0),)),
    ("nothing", BARE, ((0, 0),)),
    ("many axes", AFFINE, ((2, 1, 3, 1, 2, 1, 5, 16), (5, 16), (2, 1, 1, 1))),
    ("one long row", AFFINE, ((1, LONG + 3), (LONG + 3,), (LONG + 3,))),
    ("one long row, aligned", SCALED_RMS, ((1, LONG), (LONG,))),
    ("long rows with everything", RESIDUAL, ((2, 3, 70001), (70001,), (3, 70001), (70001,), (3, 1))),
  ]
  cases = []
  for name, text, shapes in rows:
    for dtype in ("float16", "float"):
      cases.append(Case(f"{name}, {dtype}", typed(text, dtype), shapes))
  sums = "(T x, " + ", ".join(f"T p{i}" for i in range(31)) + ") => (T y) { s0 = Add(x, p0)"
  sums += "".join(f" s{i} = Add(s{i - 1}, p{i})" for i in range(1, 31)) + " y = LayerNormalization(s30) }"
  for dtype in ("float16", "double"):
    shapes = ((4, 129), *((129,) if i % 3 else (4, 129) if i % 2 else (4, 1) for i in range(31)))
    cases.append(Case(f"32 parameters, {dtype}", typed(sums, dtype), shapes))
  return cases


def _values():
  exact_sum = ("s",)
  shape = (8, 515)
  cases = []
  for values in ("constant rows", "ones", "offset", "large", "large positive", "special rows", "denormal", "spike"):
    for dtype in FLOATING:
      cases.append(Case(f"{values}, {dtype}", typed(BARE, dtype), (shape,), values))
    for dtype in ("float16", "float"):
      cases.append(Case(f"{values}, RMS, {dtype}", typed(BARE_RMS, dtype), (shape,), values))
  tiny = "(T x) => (T y, T s) { s = Add(x, x) y = RMSNormalization(s) }"
  for dtype in FLOATING:
    # The sum of two numbers rounds to the same bits from float32 as from float64, in every dtype.
    for values in ("denormal", "large", "special rows", "negative zero"):
      again = "(T x) => (T y, T s, T z) { s = Add(x, x) y = LayerNormalization(s) z = Neg(x) }"
      cases.append(Case(f"sums of {values}, {dtype}", typed(again, dtype), (shape,), values, ("s", "z")))
    cases.append(Case(f"exact sums, {dtype}", typed(ADD, dtype), (shape, shape), "normal", exact_sum))
  for text, what in ((BARE, ""), (BARE_RMS, ", RMS")):
    zero = typed(text, "float").replace("<epsilon=1e-06>", "").replace("(x)", "<epsilon=0>(x)")
    cases.append(Case(f"epsilon 0{what}", zero, (shape,), "normal"))
    cases.append(Case(f"epsilon 0, 0 / 0{what}", zero, (shape,), "ones" if not what else "negative zero"))
    cases.append(Case(f"large epsilon{what}", zero.replace("=0", "=1e+30"), (shape,)))
  cases.append(Case("denormals of float stay", typed(tiny, "float"), (shape,), "denormal float", exact_sum))
  repaired = "(T x) => (T y, bool b) { b = IsNaN(x) t = Where(b, 0, x) y = LayerNormalization(t) }"
  cases.append(Case("NaN repaired", typed(repaired, "float16"), (shape,), "special rows"))
  maxima = """(T x) => (T y, T a, T i, T l) {
      n = LayerNormalization(x) y = Relu(n) a = Max(n, 0.5) i = Min(0.5, n) l = Clip(n, -1, 1)
    }"""
  for dtype in FLOATING:
    cases.append(Case(f"NaN goes through maxima, {dtype}", typed(maxima, dtype), (shape,), "special rows"))
  overflow = "(T x) => (T y) { n = RMSNormalization(x) y = Mul(n, 40000) }"
  cases.append(Case("results overflow to infinity", typed(overflow, "float16"), (shape,)))
  return cases


GROUPS = """(T x, T gamma, T beta) => (T z) {
  n = LayerNormalization<axes="1 3">(x)
  g = Mul(n, gamma)
  y = Add(g, beta)
  z = Swish(y)
}"""
# A residual, its sum kept, one number for each sample and channel before and after.
GROUPS_WITH_EVERYTHING = """(T x, T r, T t, bool m, T gamma) => (T y, T s) {
  a = Add(x, r)
  s = Add(a, t)
  n = LayerNormalization<axes="1 3", epsilon=1e-06>(s)
  g = Mul(n, gamma)
  w = Where(m, g, t)
  y = Add(w, r)
}"""
RMS_GROUPS = '(T x, T gamma) => (T y) { n = RMSNormalization<axes="1 3">(x) y = Mul(n, gamma) }'


def _axes():
  """Norms over other axes than the last ones; [outer, height, groups, run] where nothing else is said."""
  shapes = [
    (2, 49, 32, 8), (2, 200, 32, 10), (1, 5000, 4, 16), (3, 64, 7, 3), (2, 33, 97, 1), (1, 37, 2, 1001), (4, 1, 3, 5),
    (2, 5, 1, 24), (5, 3, 3, 2), (2, 9, 3, 4096), (300, 7, 5, 4), (1, 16, 16, 1), (0, 3, 2, 4),
    (2, 0, 2, 4), (2, 3, 0, 4), (1, 1, 1, 1),
  ]  # fmt: skip
  cases = []
  for shape in shapes:
    for dtype in FLOATING:
      n, _, g, r = shape
      name = f"groups {' '.join(map(str, shape))}, {dtype}"
      cases.append(Case(name, typed(GROUPS, dtype), (shape, (g, r), (g, r))))
      if dtype in ("float16", "float"):
        everything = (shape, shape, (n, 1, g, r), (n, 1, 1, 1), (g, r))
        cases.append(Case(f"{name}, everything", typed(GROUPS_WITH_EVERYTHING, dtype), everything))
        cases.append(Case(f"{name}, RMS", typed(RMS_GROUPS, dtype), (shape, (g, r))))
  rows = [
    ("channels of NCHW", "1", ((2, 24, 7, 9), (24, 1, 1), (24, 1, 1))),
    ("channels of NCHW, many", "1", ((2, 24, 64, 8), (24, 1, 1), (1, 1, 1))),
    ("channels first", "2 3", ((3, 8, 4, 40), (8, 4, 1), (8, 4, 1))),
    ("channels first, one group", "1 2 3", ((2, 6, 40, 41), (6, 1, 1), (6, 1, 1))),
    ("batch", "0 2 3", ((4, 3, 5, 6), (3, 1, 1), (3, 1, 1))),
    ("batch, channels last", "0 1 2", ((4, 5, 6, 17), (17,), (17,))),
    ("first axis", "0", ((33, 40), (40,), (33, 1))),
    ("ones between", "0 2 4", ((6, 5, 1, 1, 8), (8,), (1,))),
    ("operands within groups", "1 3", ((2, 6, 4, 8), (6, 1, 8), (4, 1))),
    ("GroupNorm of NHWC", '1 2", groups=4, axis=-1', ((2, 5, 6, 24), (24,), (24,))),
    ("GroupNorm of NHWC, odd", '1 2", groups=5, axis=3', ((2, 5, 6, 15), (1, 15), (2, 5, 6, 15))),
    ("GroupNorm of NCHW", '2 3", groups=4, axis=1', ((2, 24, 5, 8), (24, 1, 1), (24, 1, 1))),
    ("GroupNorm of NCHW by sample", '2 3", groups=4, axis=1', ((2, 24, 5, 8), (2, 24, 1, 1), (2, 1, 1, 1))),
    ("groups of one", '2", groups=6, axis=1', ((2, 6, 35), (6, 1), (6, 1))),
    ("one group", '1 2", groups=1, axis=-1', ((2, 3, 3, 24), (24,), (1,))),
    ("no samples, groups", '2 3", groups=4, axis=1', ((0, 24, 5, 8), (24, 1, 1), (24, 1, 1))),
    ("a long row in few", "1 2", ((2, 300, 128), (300, 1), (128,))),
  ]
  for name, axes, inputs in rows:
    for dtype in ("float16", "float"):
      cases.append(
        Case(
          f"{name}, {dtype}", typed(GROUPS, dtype).replace('1 3"', f'{axes}"' * ("groups" not in axes) or axes), inputs
        )
      )
  bare = BARE.replace("(x)", '<axes="0">(x)')
  for values in ("constant rows", "offset", "large", "special rows", "spike"):
    for dtype in ("float16", "float", "double"):
      cases.append(Case(f"columns of {values}, {dtype}", typed(bare, dtype), ((515, 24),), values))
  return cases


def _orders():
  """Rows that are read in an order: names, programs, shapes, what they are read in."""
  image, mixed = (3, 2), (5, 0, 0, 3, 1, 2)
  rows = [
    ("x and r", ADD, ((2, 6, W), (2, 6, W)), ((0, 1), mixed)),
    ("r of two", ADD, ((2, *image, W), (2, 9, W)), ((1,), mixed, image)),
    ("r of one image", ADD, ((2, *image, W), (1, 6, W)), ((1,), mixed, image)),
    ("one row", ADD, ((2, 6, W), (2, 6, W)), ((1, 0), (4,))),
    ("columns", ADD, ((2, 6, W), (2, 6, 1)), ((0, 1), mixed)),
    ("merged", AFFINE, ((2, 12, W), (2 * W,), (2 * W,)), ((0,), (11, 3, *range(10)), image)),
    ("merged residual", RESIDUAL, ((1, 3, 2 * W), (2 * W,), (2, 7, W), (2 * W,), ()), ((2,), mixed)),
    ("after the norm", PROGRAMS["gated"][0], ((2, 6, W), (2, 6, W), (W,)), ((1,), mixed)),
    ("no images", ADD, ((0, 6, W), (0, 6, W)), ((0, 1), mixed)),
  ]
  cases = []
  for name, text, shapes, order in rows:
    order = (*order, (3,)) if name == "merged residual" else order
    for dtype, width in (("float16", 96), ("float", 33), ("bfloat16", 1023), ("float16", 40000), ("double", 8)):
      given = tuple(tuple(-size * width if size < 0 else size for size in shape) for shape in shapes)
      cases.append(Case(f"{name} in order, {dtype}, {width}", typed(text, dtype), given, attributes=order))
  return cases


CASES = (*_programs(), *_widths(), *_shapes(), *_values(), *_axes(), *_orders())

# Enough rows to fill a GPU, where the kernel takes its other schedules: several rows a block and two at once, blocks
# that stay and read ahead, operands in shared memory.
LARGE_CASES = tuple(
  Case(f"{rows} rows of {width}, {what}, {dtype}", typed(text, dtype), shapes)
  for rows, width, dtype in (
      (20011, 7, "float16"), (20011, 33, "float"), (9001, 100, "bfloat16"), (9001, 128, "float16"),
      (4099, 768, "float16"), (9001, 768, "float16"), (4099, 770, "bfloat16"), (4099, 1023, "float16"),
      (4099, 1023, "float"), (2003, 1023, "double"), (3001, 2048, "double"), (2003, 4096, "float"),
      (1501, 5140, "float16"), (1501, 5142, "float16"), (1001, 8192, "bfloat16"), (701, 12288, "float16"),
      (701, 20480, "float16"), (701, 20481, "bfloat16"), (401, 40961, "float16"),
  )
  for what, text, shapes in (
      ("affine", AFFINE, ((rows, width), (width,), (width,))),
      ("residual", RESIDUAL, ((rows, width), (width,), (rows, width), (width,), (width,))),
  )
) + tuple(
  Case(f"{n} x {h} x {g} x {r}, {what}, {dtype}", typed(text, dtype), (((n, h, g, r), *others, (g, r))))
  for n, h, g, r in (
      (8, 3136, 32, 8), (2, 4096, 32, 10), (8, 3136, 1, 96), (1, 70000, 2, 8), (8, 784, 256, 1), (64, 49, 7, 9),
  )
  for dtype in ("float16", "float", "double")
  for what, text, others in (
      ("Swish", GROUPS, ((g, r),)),
      ("everything", GROUPS_WITH_EVERYTHING, ((n, h, g, r), (n, 1, g, r), (n, 1, 1, 1))),
  )
)  # fmt: skip

LARGE_CASES += tuple(
  Case(f"{what} in order", typed(ADD, "float16"), ((64, *image, 4 * c if what == "patches" else c), (64, rows, c)),
       attributes=((1,), tuple(np.random.default_rng(c).permutation(rows).tolist()), image))
  for what, c, rows, image in (("windows", 96, 3136, (56, 56)), ("patches", 192, 784, (14, 14)))
)  # fmt: skip

by_name = named((*CASES, *LARGE_CASES))
