"""Short names for the values of archived models, and shorter ones yet inside an archive.

Of a model whose values are numbered in the order in which nodes name them, equal layers have equal bytes once each name
says how many numbers back it is: archives of such models have half the size.
"""

import re
from collections.abc import Callable

from ortplugin.graph.messages import walk_graphs

NEXT, BACK, STEP = "\x01", "\x02", "\x03"  # inside an archive: the next number; so many back; so many from the last
FAR = 100  # numbers; what is further away, such as a mask, is named as it is: it is the same for all layers
NODE = "n"
_NUMBERED = re.compile(r"_\d+")

Change = Callable[[str], str]


def shorten_names(proto, nodes=False):
  """Numbers for the names of values but inputs and outputs, in whose order initializers and shapes are listed.

  Half of an archive would be names. `nodes`: numbers for the names of nodes, too, which have none otherwise.
  """
  kept = {"", *(each.name for each in (*proto.graph.input, *proto.graph.output))}
  numbers = {}

  def short(name):
    return name if name in kept else numbers.setdefault(name, f"_{len(numbers)}")

  for place, node in enumerate(_nodes(proto)):
    if nodes:
      node.name = f"{NODE}{place}"
    else:
      node.ClearField("name")
  _rename(proto, short, short)
  order = {name: place for place, name in enumerate(numbers.values())}
  for graph in walk_graphs(proto.graph):
    for values in (graph.initializer, graph.value_info):
      values.sort(key=lambda value: order.get(value.name, -1))


def pack_names(proto):
  """Numbers of names become what they are relative to those before them; other names stay."""
  count = last = 0
  for place, node in enumerate(_nodes(proto)):
    if node.name == f"{NODE}{place}":
      node.name = NEXT

  def used(name):
    nonlocal count
    number = _number(name)
    if number == count:
      count += 1
      return NEXT
    return f"{BACK}{count - number}" if number is not None and 0 < count - number <= FAR else name

  def listed(name):
    nonlocal last
    number = _number(name)
    if number is None:
      return name
    step, last = number - last, number
    return f"{STEP}{step}"

  _rename(proto, used, listed)


def unpack_names(proto):
  """The inverse of pack_names."""
  count = last = 0
  for place, node in enumerate(_nodes(proto)):
    if node.name == NEXT:
      node.name = f"{NODE}{place}"

  def used(name):
    nonlocal count
    if name == NEXT:
      count += 1
      return f"_{count - 1}"
    return f"_{count - int(name[1:])}" if name.startswith(BACK) else name

  def listed(name):
    nonlocal last
    if not name.startswith(STEP):
      return name
    last += int(name[1:])
    return f"_{last}"

  _rename(proto, used, listed)


def _number(name):
  """That of a name as shorten_names gives them."""
  if name.startswith((NEXT, BACK, STEP)):
    raise ValueError(f"the name {name!r} has a meaning of its own in an archive; rename the value")
  return int(name[1:]) if _NUMBERED.fullmatch(name) and str(int(name[1:])) == name[1:] else None


def _nodes(proto):
  return (node for graph in walk_graphs(proto.graph) for node in graph.node)


def _rename(proto, used, listed):
  """Gives names in nodes, and then those of values that are listed, what the functions make of each in turn."""
  for graph in walk_graphs(proto.graph):
    for node in graph.node:
      node.input[:] = [used(each) for each in node.input]
      node.output[:] = [used(each) for each in node.output]
    for value in _values(graph):
      value.name = listed(value.name)


def _values(graph):
  yield from (*graph.input, *graph.output, *graph.initializer, *graph.value_info)
