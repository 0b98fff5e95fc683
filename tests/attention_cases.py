"""The cases on which FusedAttention must equal its reference, on every provider.

A case is one node, its sizes, how its tensors lie and what stands in them.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from node_cases import OPSET, SMALLEST, UNIT_ROUNDOFF, VALUES, Shape, compare, model_with, named
from onnx import helper

from ortplugin.graph import DOMAIN
from ortplugin.ops.attention import OPERATOR, attributes_of, operands, scores_of
from ortplugin.ops.attention.layout import Sizes, parse, shape_of
from ortplugin.ops.attention.reference import laid_out, scores, softmax
from ortplugin.program import FLOATING, NUMPY_DTYPES

ABSORBING = 1e30  # a score is lost beside such a number, in float64 too
TF32 = 2.0**-11  # the unit roundoff that it has

# Layouts of Q, K, V and Y. In those that begin with "packed", Q, K and V are one tensor. {h}, {k} and {t}: the heads of
# Q, of K, and of both and V.
LAYOUTS = {
  "standard": ("b h s d",) * 4,
  "merged": ("b s (h d)",) * 4,
  "channels first": ("b (h d) s",) * 4,
  "K transposed": ("b s h d", "b h d s", "b s h d", "b s h d"),
  "sequence first": ("s b (h d)", "s b (h d)", "s b (h d)", "s b (h d)"),
  "heads in the batch": ("(b h) s d",) * 4,
  "rows of a matrix": ("b h s d", "b h s d", "b h s d", "(b s) (h d)"),
  "one of two": ("b s (h 1/2 d)", "b 0/2 s h d", "1/2 s b (h d)", "d s h b"),
  "packed": ("b s (0/3 h d)", "b s (1/3 h d)", "b s (2/3 h d)", "b s (h d)"),
  "packed, heads first": ("b s (h 0/3 d)", "b s (h 1/3 d)", "b s (h 2/3 d)", "b s (h d)"),
  "packed, an axis": ("b s 0/3 h d", "b s 1/3 h d", "b s 2/3 h d", "b s (h d)"),
  "packed, in front": ("0/3 b h s d", "1/3 b h s d", "2/3 b h s d", "b s (h d)"),
  "packed, fewer heads": ("b s (h:0/{t} d)", "b s (h:{h}/{t} d)", "b s (h:{hk}/{t} d)", "b s (h d)"),
}


@dataclass(frozen=True)
class Case:
  """One node with its inputs.

  `sizes`: batch, heads, heads of K and V, queries, keys, head size of Q and K, head size of V. `mask`: its dtype and
  shape; `tables`: those of cos and sin. `values` is the row of VALUES that makes Q and K; those of V are normal.
  `past`: how many of the keys are a cache's, None without one; `position`: those from which on K and V
  replace them, and how many rows these have. `hidden`: what a mask adds to scores that it masks.
  """

  name: str
  dtype: str
  sizes: tuple[int, int, int, int, int, int, int]
  layout: str = "standard"
  attributes: tuple[tuple[str, Any], ...] = ()
  mask: tuple[str, Shape] | None = None
  values: str = "normal"
  tables: tuple[str, Shape] | None = None
  past: int | None = None
  hidden: float = -np.inf
  position: tuple[tuple[int, ...], int] | None = None

  @property
  def layouts(self):
    _, heads, kv_heads, *_ = self.sizes
    return [text.format(h=heads, hk=heads + kv_heads, t=heads + 2 * kv_heads) for text in LAYOUTS[self.layout]]

  @property
  def is_packed(self):
    return self.layout.startswith("packed")

  @property
  def shapes(self):
    batch, heads, kv_heads, queries, keys, head_size, value_size = self.sizes
    made = []
    for text, count, s, d in zip(
      self.layouts,
      (heads, kv_heads, kv_heads),
      (queries, *[keys - (self.past or 0) if self.position is None else self.position[1]] * 2),
      (head_size, head_size, value_size),
      strict=False,
    ):
      shape = shape_of(parse(text), count, Sizes(batch, s, d))
      made.append(tuple(int(dim) for dim in shape if isinstance(dim, int)))
    made += [self.mask[1]] if self.mask else []
    made += [self.tables[1]] * 2 if self.tables else []
    if self.past is not None:
      layout = parse(str(dict(self.attributes).get("past_layout", "b h s d")))
      shapes = (shape_of(layout, kv_heads, Sizes(batch, self.past, d)) for d in (head_size, value_size))
      made += [tuple(dim for dim in shape if isinstance(dim, int)) for shape in shapes]
    made += [] if self.position is None else [(len(self.position[0]),)]
    return tuple(made)

  @property
  def names(self):
    tables = ["cos", "sin"] if self.tables else []
    past = [] if self.past is None else ["past_key", "past_value"]
    position = [] if self.position is None else ["position"]
    return [*(["qkv"] * 3 if self.is_packed else "qkv"), *(["mask"] if self.mask else []), *tables, *past, *position]

  @property
  def outputs(self):
    return ["y"] if self.past is None else ["y", "present_key", "present_value"]

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    made = {}
    for name, shape in zip(self.names, self.shapes, strict=True):
      if name == "mask":
        made[name] = self._mask(rng, shape)
      elif name == "position":
        made[name] = np.asarray(self.position[0], np.int64)
      elif name in ("cos", "sin") and self.tables:
        function = np.cos if name == "cos" else np.sin
        angles = np.random.default_rng(len(self.name)).uniform(-9, 9, shape)  # of both
        made[name] = np.asarray(function(angles)).astype(NUMPY_DTYPES[self.tables[0]])
      elif name not in made:
        values = VALUES["normal" if name in ("v", "past_value") else self.values]
        numbers = values(rng, shape) if np.prod(shape) else np.zeros(shape)
        made[name] = np.asarray(numbers, np.float64).astype(NUMPY_DTYPES[self.dtype])
    return [made[name] for name in self.names]

  def _mask(self, rng, shape):
    """Half of it is seen; every fifth row of keys is masked whole."""
    seen = rng.random(shape) < 0.5
    if shape and shape[-1] > 1:
      seen.reshape(-1, shape[-1])[::5] = False
    if self.mask[0] == "bool":
      return np.asarray(seen)
    return np.asarray(np.where(seen, rng.standard_normal(shape), self.hidden)).astype(NUMPY_DTYPES[self.mask[0]])

  def feeds(self):
    return dict(zip(self.names, self.inputs(), strict=True))

  def node(self, name="attention"):
    _, heads, kv_heads, *_ = self.sizes
    given = {"qkv_dtype": self.dtype, "heads": heads, "kv_heads": kv_heads, **dict(self.attributes)}
    if self.mask:
      given["mask_dtype"] = self.mask[0]
    if self.position is not None:
      given["cache"] = "write"
    if self.tables and self.tables[0] != self.dtype:
      given["rotary_dtype"] = self.tables[0]
    words = dict(zip(("q_layout", "k_layout", "v_layout", "y_layout"), self.layouts, strict=True))
    given.update({key: text for key, text in words.items() if text != "b h s d"})
    return helper.make_node("FusedAttention", self.names, self.outputs, name, domain=DOMAIN, **given)

  def model(self, shapes=None):
    return self.model_of([self.node()], shapes)

  def model_of(self, nodes, shapes=None, opset=OPSET):
    """A model of nodes that read the case's inputs and write y."""
    declared = dict(zip(self.names, self.shapes if shapes is None else shapes, strict=True))
    dtypes = {"position": "int64"} | ({"mask": self.mask[0]} if self.mask else {})
    if self.tables:
      dtypes |= dict.fromkeys(("cos", "sin"), self.tables[0])
    inputs = [(name, dtypes.get(name, self.dtype), shape) for name, shape in declared.items()]
    return model_with(nodes, inputs, [(name, self.dtype) for name in self.outputs], opset=opset)


def case_of(
  name,
  dtype,
  sizes,
  layout="standard",
  mask=None,
  values="normal",
  tables=None,
  past=None,
  hidden=-np.inf,
  position=None,
  **attributes,
):
  """A case with softmax's usual scale, 1 / sqrt(head size). `sizes`: without kv_heads and value size, as heads."""
  batch, heads, *rest = sizes
  if len(rest) == 3:
    queries, keys, head_size = rest
    sizes = (batch, heads, heads, queries, keys, head_size, head_size)
  given = {"scale": float(np.float32(sizes[5] ** -0.5)), **attributes}
  assert len(sizes) == 7
  return Case(name, dtype, tuple(sizes), layout, tuple(given.items()), mask, values, tables, past, hidden, position)


# ---- comparison


def check(case, found, unit=None, inputs=None):
  """Compares the outputs with the reference.

  Shape and dtype are equal, so are the masks of NaN. Otherwise

      |got - wide| <= u |wide| + smallest / 2 + slack        slack = (2 c (d + e) + p) * sum of softmax(s) |v|

  where `wide` is the reference before its rounding, u the unit roundoff of the dtype and c that of the arithmetic
  (`unit`, where that is not the kernel's). A score is off by no more than c d, d of all its products' sizes, whose
  number counts as its root, and of those of its mask and its maximum; as an exponent that is the error of softmax's
  numerator, and the denominator has as much again. A mask of ABSORBING leaves nothing of a score in either. e, 16,
  is what exp and the sums take besides, and p what rounding softmax to the dtype takes: its unit roundoff, and its
  smallest subnormal number for each key. What is rotated is rounded to the dtype; near the middle of two numbers
  the kernel may take the other one, about once in 2^13 elements, so that a score may differ by the largest of its
  products, twice, times 2 u. TF32 rounds both factors of each product.

  What is present has the bits of the past and of what is new, but for a rotation, which is off by some c of its row.
  """
  inputs = case.inputs() if inputs is None else inputs
  node = case.node()
  wide, wanted = OPERATOR.reference(node, inputs, False)[0], OPERATOR.reference(node, inputs)
  attention = attributes_of(node)
  c = UNIT_ROUNDOFF["double" if case.dtype == "double" else "float"] if unit is None else unit
  viewed = operands(attention, inputs)
  _check_present(case, found[1:], wanted[1:], inputs, c)
  q = viewed[0].astype(np.float64)
  group = attention.heads // attention.kv_heads
  signed = np.repeat(viewed[1].astype(np.float64), group, axis=1)
  k = np.abs(signed)
  v = np.repeat(np.abs(viewed[2].astype(np.float64)), group, axis=1)
  mask = inputs[3] if case.mask else None
  how = scores_of(attention, inputs)
  s = scores(q, signed, mask, how)
  with np.errstate(all="ignore"):
    products = np.einsum("bhsd,bhtd->bhst", np.abs(q), k) * abs(how.scale)
    size = products * np.sqrt(q.shape[3]) + 2 * np.where(np.abs(s) < ABSORBING, np.abs(s), 0)
    if mask is not None and mask.dtype != np.bool_:
      added = np.abs(mask.astype(np.float64))
      size = size + np.where(added < ABSORBING, added, 0)
    if case.tables and case.dtype in ("float16", "bfloat16"):
      one = np.max(np.abs(q), axis=3)[..., None] * np.max(k, axis=3)[:, :, None]  # no product is larger
      size = size + one * (abs(how.scale) * 4 * UNIT_ROUNDOFF[case.dtype] / c)
    tf32 = TF32 if dict(case.attributes).get("allow_tf32") else 0.0
    size = size + products * (2 * tf32 / c)
    off = np.max(np.where(s == -np.inf, 0, size), axis=3, keepdims=True, initial=0)
    weights = np.nan_to_num(softmax(s, True))
    p = (UNIT_ROUNDOFF[case.dtype], SMALLEST[case.dtype]) if case.dtype in ("float16", "bfloat16") else (tf32, 0.0)
    slack = (2 * c * (off + 16) + 2 * p[0]) * np.einsum("bhst,bhte->bhse", weights, np.nan_to_num(v))
    slack = slack + p[1] * np.nan_to_num(v).sum(axis=2, keepdims=True)
  return compare(case.name, found[0], wanted[0], wide, laid_out(slack, attention.y))


def _check_present(case, found, wanted, inputs, c):
  attention = attributes_of(case.node())
  assert len(found) == len(wanted) == (0 if attention.past is None else 2)
  if attention.past is None:
    return
  wide = operands(attention, [x if x.dtype in (np.bool_, np.int64) else x.astype(np.float64) for x in inputs])[1]
  one = np.nan_to_num(np.max(np.abs(wide), axis=3, keepdims=True, initial=0), posinf=0)
  slack = laid_out(np.broadcast_to(8 * c * one, wide.shape), attention.past)
  compare(
    f"{case.name}, present_key", found[0], wanted[0], laid_out(wide, attention.past), slack, exact=not case.tables
  )
  compare(
    f"{case.name}, present_value", found[1], wanted[1], wanted[1].astype(np.float64), slack[..., :1] * 0, exact=True
  )


# ---- cases

CAUSAL = {
  "upper left": {"causal": "upper_left"},
  "lower right": {"causal": "lower_right"},
  "window": {"causal": "lower_right", "window": 5},
  "window, upper left": {"causal": "upper_left", "window": 40},
}


def _sizes():
  """Keys and heads of awkward sizes."""
  made = []
  for number, (queries, keys) in enumerate(
    ((1, 1), (1, 7), (7, 1), (49, 49), (5, 64), (3, 65), (64, 128), (197, 197), (1, 257), (63, 33), (130, 31))
  ):
    for at, head_size in enumerate((1, 8, 40, 64, 72, 128, 33, 256)):
      if (number + at) % 3 == 0:
        dtype = FLOATING[(number + at // 2) % 4]
        made.append(
          case_of(f"{queries} by {keys}, head of {head_size}, {dtype}", dtype, (2, 3, queries, keys, head_size))
        )
  return made


def _layouts():
  made = []
  for name in LAYOUTS:
    for dtype in FLOATING:
      sizes = (2, 4, 2, 9, 9, 16, 16) if name == "packed, fewer heads" else (2, 3, 3, 9, 9, 16, 16)
      made.append(case_of(f"{name}, {dtype}", dtype, sizes, name))
    if not name.startswith("packed"):
      made.append(case_of(f"{name}, of other sizes", "float16", (2, 6, 2, 5, 70, 24, 12), name))
  return made


def _masks():
  sizes, full = (2, 4, 2, 20, 70, 16, 16), (2, 4, 20, 70)
  shapes = {"all": full, "of keys": (2, 1, 1, 70), "of queries and keys": (20, 70), "of queries": (1, 4, 20, 1),
            "of the batch": (2, 1, 1, 1), "of heads": (4, 1, 70), "a number": ()}  # fmt: skip
  made = []
  for number, (name, shape) in enumerate(shapes.items()):
    for dtype in FLOATING:
      for mask in dict.fromkeys(("bool", "float", dtype)):
        for rows in ("nan", "zero"):
          if (number + (rows == "zero") + (mask == "bool")) % 2 == 0 or name == "all":
            made.append(
              case_of(f"mask {name}, {mask} of {dtype}, {rows}", dtype, sizes, mask=(mask, shape), masked_rows=rows)
            )
  # The lowest number: in base 2 it is beyond float32, and still no -inf.
  for dtype in FLOATING:
    for mask, hidden in (("float", -3.4028234663852886e38), ("bfloat16", -3.3895313892515355e38)):
      if mask in ("float", dtype):
        for of, past in ((sizes, None), ((2, 4, 2, 1, 70, 16, 16), 69)):
          made.append(case_of(f"mask of the lowest {mask}, {dtype}, {of[3]} queries", dtype, of, past=past,
                              mask=(mask, (2, 1, of[3], 70)), hidden=hidden))  # fmt: skip
  return made


def _causal():
  made = []
  for name, given in CAUSAL.items():
    for number, (queries, keys) in enumerate(((70, 70), (20, 90), (90, 20), (1, 100), (100, 1))):
      for dtype in (FLOATING[number % 4], "float"):
        for mask in (None, ("bool", (queries, keys))):
          made.append(case_of(f"{name}, {queries} by {keys}, {dtype}, {'mask' if mask else 'alone'}", dtype,
                              (1, 4, 2, queries, keys, 8, 24), mask=mask,
                              masked_rows=("nan", "zero")[number % 2], **given))  # fmt: skip
  return list({case.name: case for case in made}.values())


def _values():
  made = []
  for dtype in FLOATING:
    for values in ("special rows", "denormal", "negative zero"):
      made.append(case_of(f"{values}, {dtype}", dtype, (2, 2, 20, 70, 16), values=values))
    made.append(case_of(f"softcap, {dtype}", dtype, (2, 2, 20, 70, 16), softcap=2.0))
    made.append(case_of(f"softcap and mask, {dtype}", dtype, (2, 2, 20, 70, 16), softcap=2.0, mask=("float", (20, 70))))
    made.append(case_of(f"scale 1, {dtype}", dtype, (1, 2, 5, 70, 8), scale=1.0))
    made.append(case_of(f"scale -0.5, {dtype}", dtype, (1, 2, 5, 70, 8), scale=-0.5))
    made.append(case_of(f"scale 0, {dtype}", dtype, (1, 2, 5, 70, 8), scale=0.0))
    made.append(case_of(f"special rows, causal, {dtype}", dtype, (2, 2, 20, 70, 16), values="special rows",
                        causal="lower_right", masked_rows="zero"))  # fmt: skip
  # Products of 256 x 60000: beyond float16, and so large that one key takes all.
  made.append(case_of("products beyond float16", "float16", (1, 2, 5, 70, 64), values="large", scale=2.0**-20))
  return made


def _empty():
  made = []
  for dtype in ("float16", "float"):
    for layout in ("standard", "merged", "channels first"):
      for name, sizes in (("no batch", (0, 2, 5, 7, 8)), ("no queries", (2, 2, 0, 7, 8)),
                          ("no keys", (2, 2, 5, 0, 8)), ("nothing", (0, 2, 0, 0, 8))):  # fmt: skip
        made.append(case_of(f"{name}, {layout}, {dtype}", dtype, sizes, layout))
    for rows in ("nan", "zero"):
      mask = ("bool", (5, 0))
      made.append(
        case_of(f"no keys, {rows}, {dtype}", dtype, (2, 2, 5, 0, 8), mask=mask, masked_rows=rows, causal="lower_right")
      )
  return made


# Rows, head size and pairs.
ROTATED = (
  (70, 64, 32), (130, 40, 20), (197, 64, 16), (33, 24, 6), (65, 33, 5), (1, 2, 1), (9, 128, 64), (67, 256, 128),
)  # fmt: skip


def _rotary():
  """Tables of each form and dtype; heads that are rotated whole or in part, by pairs in chunks of 8, 4, 2 and 1."""
  made = []
  for rotary in ("half", "interleaved"):
    for number, (rows, size, pairs) in enumerate(ROTATED):
      for dtype in FLOATING if number < 2 else (FLOATING[number % 4], "float16"):
        for kind in dict.fromkeys((dtype, "float")):
          name = f"rotary {rotary}, {rows} rows, {pairs} pairs of {size}, {kind} for {dtype}"
          shape = ((rows, pairs), (2, rows, pairs), (1, rows, pairs))[(number + len(kind)) % 3]
          made.append(case_of(name, dtype, (2, 4, 2, rows, rows, size, size), tables=(kind, shape), rotary=rotary))
    for layout in ("merged", "channels first", "one of two", "packed, fewer heads"):
      sizes = (2, 4, 2, 37, 37, 16, 16)
      made.append(
        case_of(f"rotary {rotary}, {layout}", "float16", sizes, layout, rotary=rotary, tables=("float16", (37, 8)))
      )
    for dtype in FLOATING:
      made.append(case_of(f"rotary {rotary}, everything, {dtype}", dtype, (2, 4, 4, 90, 90, 32, 24),
                          mask=("bool", (90, 90)), tables=(dtype, (2, 90, 12)), softcap=2.0, rotary=rotary,
                          causal="lower_right", window=50, masked_rows="zero"))  # fmt: skip
      made.append(case_of(f"rotary {rotary}, special rows, {dtype}", dtype, (2, 2, 70, 70, 16), rotary=rotary,
                          values="special rows", tables=(dtype, (70, 8))))  # fmt: skip
    made.append(
      case_of(f"rotary {rotary}, nothing", "float16", (0, 2, 0, 0, 8), rotary=rotary, tables=("float16", (0, 4)))
    )
  return list({case.name: case for case in made}.values())


def _past():
  """Of a cache of some rows: few queries and many, heads that share keys, rotated in both ways, masks and windows."""
  made = []
  of = ((0, 3, 4), (1, 1, 1), (7, 1, 4), (7, 17, 1), (100, 3, 4), (1024, 1, 1), (1024, 3, 4), (1024, 17, 4),
        (300, 16, 1))  # fmt: skip
  for number, (past, queries, group) in enumerate(of):
    for dtype in FLOATING if past < 1024 and number % 2 == 0 else ("float16", FLOATING[number % 4]):
      sizes = (2, 2 * group, 2, queries, past + queries, 64 if past > 7 else 24, 40 if past == 300 else 64)
      for rotary in ("none", "half", "interleaved"):
        for name, given in (("plain", {}), ("causal", CAUSAL["lower right"]), ("window", CAUSAL["window"])):
          mask = ("bool", (2, 1, queries, past + queries)) if (number + len(name)) % 4 == 0 else None
          tables = (dtype, (queries, 12)) if rotary != "none" else None
          rotated = {"rotary": rotary} if tables else {}
          made.append(case_of(f"past {past}, {queries} queries of {group}, {rotary}, {name}, {dtype}", dtype,
                              sizes, "merged" if number % 2 else "standard", mask, past=past, tables=tables,
                              masked_rows="zero", **given, **rotated))  # fmt: skip
  for layout, of_past in (
    ("packed, fewer heads", "b h s d"),
    ("channels first", "b h d s"),
    ("merged", "b s (h d)"),
    ("sequence first", "s b h d"),
    ("one of two", "(b h) s d"),
    ("K transposed", "s (b h) d"),
    ("heads in the batch", "h b s d"),
  ):
    for dtype in ("float16", "float"):
      sizes = (2, 4, 2, 5, 14, 16, 16) if layout == "packed, fewer heads" else (2, 6, 2, 5, 14, 24, 16)
      made.append(case_of(f"past {of_past}, {layout}, {dtype}", dtype, sizes, layout, past=9, rotary="half",
                          tables=("float", (5, 4)), past_layout=of_past))  # fmt: skip
      made.append(
        case_of(f"past {of_past} {layout}, as it is, {dtype}", dtype, sizes, layout, past=9, past_layout=of_past)
      )
  for dtype in ("float16", "double"):
    made.append(case_of(f"past, nothing new, {dtype}", dtype, (2, 2, 3, 9, 16), past=9))
    made.append(case_of(f"past, no queries, {dtype}", dtype, (2, 2, 0, 9, 16), past=7))
    made.append(case_of(f"past, no keys at all, {dtype}", dtype, (2, 2, 3, 0, 16), past=0))
    made.append(case_of(f"past, no batch, {dtype}", dtype, (0, 2, 3, 9, 16), past=6))
    made.append(case_of(f"past, other keys, {dtype}", dtype, (2, 4, 2, 3, 300, 33, 70), past=290, softcap=2.0,
                        causal="upper_left", mask=("float", (3, 300))))  # fmt: skip
    made.append(case_of(f"past, special rows, {dtype}", dtype, (2, 4, 2, 3, 300, 32, 64), past=290,
                        values="special rows", tables=(dtype, (3, 16)), rotary="half"))  # fmt: skip
  return [case for case in made if not case.tables or case.sizes[3] == case.sizes[4] - (case.past or 0)]


def _written():
  """Of a cache of which some rows are replaced: at its ends, within, all."""
  made = []
  of = ((9, 4, 8, 1), (9, 1, -9, 1), (300, 4, 0, 1), (300, 1, -100, 3), (1024, 4, 777, 1), (1024, 2, 15, 3),
        (40, 1, 0, 40), (130, 1, 20, 20), (7, 2, 0, 0))  # fmt: skip
  for number, (keys, group, start, added) in enumerate(of):
    for dtype in FLOATING if keys < 1024 and number % 2 == 0 else ("float16", FLOATING[1 + number % 3]):
      sizes = (2, 2 * group, 2, added or 2, keys, 64 if keys > 9 else 24, 40 if keys == 300 else 64)
      for rotary in ("none", "half", "interleaved"):
        mask = ("bool", (2, 1, sizes[3], keys)) if (number + len(rotary)) % 2 else None
        tables = (dtype, (added, 12)) if rotary != "none" else None
        given = ({"rotary": rotary} if tables else {}) | (
          {}, CAUSAL["lower right"], CAUSAL["window"], CAUSAL["upper left"])[(number + len(rotary)) % 4]  # fmt: skip
        layout, of_past = ("merged", "b s (h d)") if number % 4 == 1 else ("standard", "b h s d")
        name = f"written {keys}, {added} at {start} of {group}, {rotary}, {dtype}"
        starts = (start, (start + 5) % (keys - added + 1)) if len(rotary) % 2 else (start,)  # for each text, or one
        made.append(case_of(name, dtype, sizes, layout, mask, past=keys, position=(starts, added), tables=tables,
                            masked_rows="zero", past_layout=of_past, **given))  # fmt: skip
  return [case for case in made if not case.tables or case.sizes[3] == case.position[1]]


CASES = (*_sizes(), *_layouts(), *_masks(), *_causal(), *_values(), *_empty(), *_rotary(), *_past(), *_written())


def _large(name, dtype, *sizes_and_layout, **given):
  return case_of(f"large: {name}, {dtype}", dtype, *sizes_and_layout, **given)


# Enough elements for every core and every block.
LARGE_CASES = (
  _large("ViT-B", "float16", (4, 12, 197, 197, 64), "packed"),
  _large("BERT", "float", (2, 12, 12, 384, 384, 64, 64), "merged", mask=("float", (2, 1, 1, 384))),
  _large("Llama", "bfloat16", (1, 16, 4, 300, 1000, 128, 128), causal="lower_right"),
  _large("Stable Diffusion", "float16", (2, 8, 8, 1024, 77, 40, 40), "merged"),
  _large("Swin", "float", (64, 3, 3, 49, 49, 32, 32), "packed, an axis", mask=("float", (64, 1, 49, 49))),
  _large("Llama rotated", "float16", (2, 16, 4, 300, 300, 64, 64), "packed, fewer heads",
         tables=("float16", (300, 32)), causal="upper_left", rotary="half"),
  _large("long and rotated", "float16", (4, 16, 16, 1040, 1040, 64, 64), "merged",
         tables=("float", (1040, 32)), causal="upper_left", rotary="interleaved"),
  _large("decoding", "float16", (8, 32, 8, 1, 2000, 128, 128), causal="lower_right"),
  _large("GPT-2 with a cache", "float16", (1, 12, 12, 1, 1025, 64, 64), "packed", past=1024),
  _large("Llama with a cache", "bfloat16", (2, 16, 4, 1, 1025, 64, 64), "packed, fewer heads",
         tables=("float", (2, 1, 32)), past=1024, rotary="half"),
  _large("GPT-2, written", "float16", (1, 12, 12, 1, 1024, 64, 64), "packed", ("bool", (1, 1, 1, 1024)), past=1024,
         position=((1000,), 1)),
  _large("Llama, written", "bfloat16", (2, 16, 4, 1, 1024, 64, 64), "packed, fewer heads",
         tables=("float", (2, 1, 32)), past=1024, position=((-3, 7), 1), rotary="half", causal="lower_right"),
  # Many keys, for the engine on wgmma: two tiles of queries and more, keys that end within one.
  _large("Whisper", "float16", (1, 6, 700, 700, 64), "packed"),
  _large("lower right", "bfloat16", (2, 4, 2, 333, 777, 128, 128), "merged", causal="lower_right"),
  _large("window", "float16", (1, 2, 1, 500, 500, 80, 80), "sequence first", causal="upper_left", window=100,
         softcap=5.0),
  _large("heads of 72 and 40", "float16", (2, 2, 2, 300, 500, 72, 40), "rows of a matrix"),
  _large("heads of 256", "bfloat16", (1, 2, 1, 200, 333, 256, 256), "heads in the batch"),
  _large("rows without keys", "float16", (1, 2, 2, 700, 300, 64, 64), causal="lower_right", masked_rows="zero"),
  _large("special rows", "bfloat16", (1, 2, 200, 300, 64), values="special rows", causal="upper_left"),
  _large("scale -0.5", "float16", (1, 2, 200, 300, 32), scale=-0.5),
)  # fmt: skip

# Those of float32 in TF32.
TF32_CASES = tuple(
  replace(case, name=f"{case.name}, TF32", attributes=(*case.attributes, ("allow_tf32", 1)))
  for case in (*CASES, *LARGE_CASES)
  if case.dtype == "float"
)

# A session of this model runs with any cache; each run gives the next one's.
GROWING = [["b", "s", 64], ["b", "s", 32], ["b", "s", 32], ["s", 8], ["s", 8], ["b", 2, "p", 16], ["b", 2, "p", 16]]


def growing(past, rows):
  """A run of it with so many rows of past and of queries."""
  return case_of(f"growing, {past} and {rows}", "float16", (2, 4, 2, rows, past + rows, 16, 16), "merged", past=past,
                 tables=("float", (rows, 8)), rotary="half", rotary_dtype="float", causal="lower_right")  # fmt: skip


by_name = named((*CASES, *LARGE_CASES, *TF32_CASES))
