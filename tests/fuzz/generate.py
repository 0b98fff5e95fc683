"""`make_case(seed)`: a random model with what it is fed and the options that it is optimized with."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from . import naming
from .evaluate import Array, imports, ir_version, to_onnx
from .graph import HALVES, Graph, Style, UnfitError
from .narrow import narrow_feeds, narrow_model, walk
from .recipes import GLUE, MOTIFS
from .recipes.networks import new_image

OPSETS = [7, 8, 9, 10, *[11, 12, 13] * 2, *[14, 15, 16], *[17] * 4, *[18] * 3, 19, 20, 21, 22, 23, 24, 25]
VARYING = ("NonZero", "Compress", "Unique", "Loop", "Range", "TopK", "SequenceAt")  # their values decide shapes


@dataclass
class Case:
  """A model, its feeds and options.

  `wide`: the model one precision wider, the oracle of fp16 and bf16; else None. `dtype`: fp32, fp64, fp16 or bf16.
  `kept`: initializers that are float32 in both. `checks`: what else is tried: "again", "restore", "ort" (ONNX
  Runtime's own optimizations on), "shapes" (inferred.py). `dead`: whether it needs the nodes that nothing reads.
  """

  seed: int
  dtype: str
  model: onnx.ModelProto
  wide: onnx.ModelProto | None
  kept: frozenset[str]
  feeds: list[dict[str, Array]]
  options: dict[str, Any] = field(default_factory=dict)
  checks: tuple[str, ...] = ()
  dead: bool = False

  @property
  def oracle(self):
    return self.model if self.wide is None else self.wide

  def narrowed(self, feeds):
    """Feeds of the oracle as the model takes them."""
    return dict(feeds) if self.wide is None else narrow_feeds(feeds, self.dtype, self.kept)


def style_of(rng):
  dtype = rng.choices(["fp32", "fp16", "fp64", "bf16"], [62, 22, 6, 10])[0]
  opset = rng.choice(OPSETS if dtype != "bf16" else [each for each in OPSETS if each >= 13])
  return Style(opset, dtype, rng.random() < 0.1, rng.choice([4, 6, 9, 16]))


def make_case(seed, evaluator):
  """The case of a seed, always the same one."""
  rng = random.Random(seed)
  graph = Graph(style_of(rng), rng, np.random.default_rng(seed), evaluator)
  _grow(graph)
  return _finish(graph, seed)


def _grow(g):
  if g.chance(0.55):
    new_image(g, g.choice([4, 4, 4, 3, 5]))
  while len(g.values) < g.choice([1, 2, 3]):
    g.input(g.numbers([g.dim() for _ in range(g.choice([0, 1, 2, 2, 3, 3, 4, 4, 5, 6]))]))
  share = g.choice([0.2, 0.5, 0.5, 0.8])  # of motifs
  only = g.rng.sample(range(len(MOTIFS)), 3) if g.chance(0.35) else None  # a graph of few kinds
  motifs = MOTIFS if only is None else [MOTIFS[index] for index in only]
  size = g.choice([3, 6, 10, 16, 24, 36])
  for _ in range(3 * size):
    if len(g.nodes) >= size:
      break
    table = motifs if g.chance(share) else GLUE
    recipe = g.rng.choices([each for _, each in table], [weight for weight, _ in table])[0]
    mark = g.mark()
    try:
      recipe(g)
    except UnfitError:
      if g.chance(0.7):
        g.rollback(mark)


def _finish(g, seed):
  computed = [name for node in g.nodes if node.op_type != "Constant" for name in node.output]
  if not computed:
    try:
      g.op("Identity", g.values[0])
    except UnfitError:  # it is not finite
      g.op("Shape", g.values[0])
    computed = [g.nodes[-1].output[0]]
  values = {value.name: value for value in g.values}
  outputs = _outputs(g, [values[name] for name in computed if name in values])
  if g.chance(0.85):
    _prune(g, {each.name for each in outputs})
  names = naming.rename(g, [each.name for each in outputs])
  overridable = _overridable(g)
  symbols = _symbols(g)
  model = _model(g, names, outputs, symbols, overridable, values)
  if model.ir_version < 4:
    overridable = {}
  feeds = [{names[name]: array for name, array in each.items()} for each in _feeds(g, symbols, overridable)]
  kept = frozenset(names[name] for name in g.kept if name in names)
  half = g.style.dtype in HALVES
  narrow = narrow_model(model, g.style.dtype, kept) if half else model
  options = _options(g, feeds[0], model)
  if g.random:  # a second run of a session makes other random numbers
    del feeds[1:]
  fixed = options.get("input_shapes", {})
  feeds = [each for each in feeds if all(list(each[name].shape) == shape for name, shape in fixed.items())]
  shares = {"again": 0.12, "restore": 0.12, "ort": 0.15, "shapes": 0.3}
  checks = tuple(name for name, share in shares.items() if g.chance(share))
  return Case(seed, g.style.dtype, narrow, model if half else None, kept, feeds, options, checks)


def _outputs(g, made):
  read = {name for node in g.nodes for name in reads(node)}
  sinks = [value for value in made if value.name not in read]
  chosen = g.rng.sample(sinks, min(len(sinks), g.choice([1, 2, 4, 9])))
  if made[-1] not in chosen:
    chosen.append(made[-1])
  for _ in range(g.choice([0, 0, 1, 2])):
    chosen.append(g.rng.choice(made))
  return list(dict.fromkeys(chosen))


def reads(node):
  yield from (name for name in node.input if name)
  for attribute in node.attribute:
    if attribute.type == AttributeProto.GRAPH:
      for body in walk(attribute.g):
        for inner in body.node:
          yield from (name for name in inner.input if name)
        yield from (each.name for each in body.output)


def _prune(g, needed):
  kept = []
  for node in reversed(g.nodes):
    if needed & set(node.output):
      needed |= set(reads(node))
      kept.append(node)
  g.nodes[:] = kept[::-1]


def _overridable(g):
  """Initializers that are inputs too, with what a caller may give instead."""
  share = g.choice([0.0, 0.0, 0.0, 0.1, 1.0])
  read = {name for node in g.nodes for name in reads(node)}
  floats = [n for n, a in g.constants.items() if n in read and n not in g.kept and a.dtype == g.style.main]
  return {name: g.numbers(g.constants[name].shape) for name in floats if g.chance(share)}


def _symbols(g):
  """Open dimensions: (input, axis) to a name, which is '' where it has none."""
  mode = g.choice(["none", "none", "none", "batch", "some", "all"])
  if mode == "none":
    return {}
  found = {}
  by_size = {}
  words = iter(["N", "batch", "seq", "height", "width", "M", "s0", "s1", "s2", *(f"d{n}" for n in range(99))])
  for name, array in g.inputs.items():
    for axis, size in enumerate(array.shape):
      if mode == "all" or (mode == "batch" and axis == 0) or (mode == "some" and g.chance(0.4)):
        known = by_size.setdefault(size, [])
        if known and g.chance(0.75):
          found[name, axis] = g.choice(known)
        elif g.chance(0.15):
          found[name, axis] = ""
        else:
          known.append(next(words))
          found[name, axis] = known[-1]
  return found


def _model(g, names, outputs, symbols, overridable, values):
  read = {name for node in g.nodes for name in reads(node)} | {names[each.name] for each in outputs}

  def info(name, array, is_input):
    shape = [symbols.get((name, axis), size) if is_input else size for axis, size in enumerate(array.shape)]
    return helper.make_tensor_value_info(
      names[name], to_onnx(array.dtype), [each or None if isinstance(each, str) else each for each in shape]
    )

  used = [name for name in g.inputs if names[name] in read or g.chance(0.5)]
  given = [info(name, g.inputs[name], True) for name in used]
  stored = [name for name in g.constants if names[name] in read or name in overridable]
  version, inputs_too = ir_version(g.opset), list(overridable)
  if version == 4 and g.chance(0.4):
    # Every initializer was an input then, though ONNX Runtime asks for none, and lets nobody override them.
    version, inputs_too = 3, stored if g.chance(0.7) else []
  given += [info(name, g.constants[name], False) for name in inputs_too]
  constants = [numpy_helper.from_array(g.constants[name], names[name]) for name in stored]
  is_open = bool(symbols) or any(node.op_type in VARYING for node in g.nodes)
  if is_open:
    for node in g.nodes:
      _open_bodies(node)
  declared = g.choice(["inferred", "none"]) if is_open else g.choice(["exact", "exact", "inferred", "none"])
  if g.chance(0.03):
    declared = "nothing"  # ONNX asks for a shape, ONNX Runtime does not
  rankless = declared == "nothing" or (is_open and any(_has_open_rank(node) for node in g.nodes))
  wanted = []
  for each in outputs:
    shape = list(each.shape) if declared == "exact" else None if rankless else [None] * each.rank
    wanted.append(helper.make_tensor_value_info(names[each.name], to_onnx(each.dtype), shape))
  graph = helper.make_graph(g.nodes, "random", given, wanted, constants)
  functions = [each for each in g.functions if any(node.op_type == each.name for node in g.nodes)]
  model = helper.make_model(graph, opset_imports=imports(g.opset), ir_version=version, functions=functions)
  drop_imports(model)
  if declared == "inferred":
    inferred = onnx.shape_inference.infer_shapes(model)
    for own, other in zip(model.graph.output, inferred.graph.output, strict=True):
      own.CopyFrom(other)
    if g.chance(0.6):
      model.graph.value_info.extend(inferred.graph.value_info)
  elif not is_open and g.chance(0.25):
    known = [each for each in g.values if each.source == "node" and names.get(each.name) in read]
    model.graph.value_info.extend(
      info(each.name, each.array, False) for each in known if each not in outputs and g.chance(0.7)
    )
  return model


def _has_open_rank(node):
  """Whether it is a Squeeze of whatever lengths are 1."""
  axes = [*node.input[1:], *(each.name for each in node.attribute)]
  return node.op_type == "Squeeze" and not any(axes)


def _open_bodies(node):
  """Takes the lengths from what bodies declare: they are those of the first feed alone."""
  for attribute in node.attribute:
    for info in (*attribute.g.input, *attribute.g.output):
      for dim in info.type.tensor_type.shape.dim:
        dim.ClearField("dim_value")


def drop_imports(model):
  used = {node.domain for graph in walk(model.graph) for node in graph.node} | {""}
  kept = [each for each in model.opset_import if each.domain in used]
  del model.opset_import[:]
  model.opset_import.extend(kept)


def _feeds(g, symbols, overridable):
  """What the model runs on: the values that it was made with, other values and sizes."""
  result = [dict(g.inputs)]
  if g.chance(0.5):
    other = {n: a if a.dtype.kind in "iu" else g.numbers(a.shape, dtype=a.dtype) for n, a in g.inputs.items()}
    result.append({**other, **overridable})
  named = sorted({symbol for symbol in symbols.values() if symbol})
  if named:
    symbol = g.choice(named)
    old = next(g.inputs[name].shape[axis] for (name, axis), each in symbols.items() if each == symbol)
    new = g.choice([size for size in (0, 1, 1, 2, 3, 5, old + 1) if size != old])
    sized = {}
    for name, array in g.inputs.items():
      for axis in range(array.ndim):
        if symbols.get((name, axis)) == symbol:
          array = np.take(array, np.arange(new) % max(1, old), axis) if old else np.repeat(
              np.ones([1 if i == axis else s for i, s in enumerate(array.shape)], array.dtype), new, axis
          )  # fmt: skip
      sized[name] = np.ascontiguousarray(array).reshape(array.shape)
    result.append(sized)
  return result


def _options(g, feeds, model):
  from ortplugin.optimizer import PIPELINE

  options = {"layout": g.choice(["auto", "auto", "nhwc", "nhwc", "nchw"])}
  names = [step.name for step in PIPELINE]
  if g.chance(0.5):  # in the form for a GPU, which a CPU runs as well
    options["providers"] = ["cuda"]
  kind = g.rng.random()
  if kind < 0.06:
    options["only"] = sorted(g.rng.sample(names, g.rng.randint(1, len(names) // 2)))
  elif kind < 0.14:
    options["skip"] = sorted(g.rng.sample(names, g.rng.randint(1, 8)))
  if g.style.dtype in ("fp32", "fp64") and g.chance(0.3):
    options["precision"] = g.choice(["fp16", "fp16", "bf16", "tf32"])
    if options["precision"] != "tf32" and g.chance(0.3):
      options["precision_io"] = True
  elif g.style.dtype in HALVES and g.chance(0.12):
    options["precision"] = "fp32"
  if g.chance(0.1):
    given = {each.name for each in model.graph.initializer}
    open_inputs = [each for each in model.graph.input if each.name not in given and each.name in feeds
                   and any(not dim.HasField("dim_value") for dim in each.type.tensor_type.shape.dim)]  # fmt: skip
    if open_inputs:
      options["input_shapes"] = {each.name: list(feeds[each.name].shape) for each in open_inputs}
  return options
