"""Names of values and nodes as converters write them: unique, missing, equal, colliding with what passes make."""

from onnx import AttributeProto

SUFFIXES = ("", "_nhwc", "/Transpose", "_before", "_after", "_parts", "/Reshape", "_float16", "_bfloat16", "/Cast",
            "_1", "_2", "/parts", "_row", "_updated", "/Gather", "_nhwc_1")  # fmt: skip


def value_names(g, count):
  """Unique names in one of several styles."""
  style = g.choice(["plain", "plain", "torch", "number", "clash", "odd"])
  if style == "plain":
    yield from (f"t{index}" for index in range(count))
  elif style == "torch":
    yield from (f"/layer{index // 5}/op.{index % 5}/Op_output_{index}" for index in range(count))
  elif style == "number":
    yield from (str(index + 1) for index in range(count))
  elif style == "clash":
    yield from (
      f"{'xyzw'[index % 4] * (1 + index // 4 // len(SUFFIXES))}{SUFFIXES[index // 4 % len(SUFFIXES)]}"
      for index in range(count)
    )
  else:
    odd = ["a b", "ä", "x:0", "1.5", "-", "n.weight", "If", "N", "batch", "c'", "p[0]"]
    yield from (odd[index] if index < len(odd) else f"{odd[index % len(odd)]}{index}" for index in range(count))


def rename(g, outputs):
  """Gives values and nodes other names, in place; returns the values' names by what they were."""
  order = [*g.inputs, *g.constants, *(name for node in g.nodes for name in node.output)]
  order += [name for name in outputs if name not in order]
  order = list(dict.fromkeys(order))
  names = dict(zip(order, value_names(g, len(order)), strict=True))
  for node in g.nodes:
    _rename_values(node, names)
  _name_nodes(g)
  return names


def _rename_values(node, names):
  for field in (node.input, node.output):
    for index, name in enumerate(field):
      field[index] = names.get(name, name)
  for attribute in node.attribute:
    if attribute.type == AttributeProto.GRAPH:
      for inner in attribute.g.node:
        _rename_values(inner, names)
      for each in attribute.g.output:
        each.name = names.get(each.name, each.name)


def _name_nodes(g):
  """Node names, which ONNX Runtime wants to be unique where there are any."""
  style = g.choice(["unique", "unique", "output", "output", "empty", "operator", "others", "mixed"])
  made = [node.output[0] for node in g.nodes]
  others = g.rng.sample(made, len(made))
  for index, node in enumerate(g.nodes):
    own = style if style != "mixed" else g.choice(["unique", "output", "empty", "operator"])
    node.name = {
      "unique": f"node_{index}",
      "output": node.output[0],  # as MXNet's and Darknet's converters name them
      "empty": "",
      "operator": f"{node.op_type}_{index}",
      "others": others[index],  # each by another node's output
    }[own]
