"""Names inside an archive of models: each number says how many back it is, so equal layers have equal bytes."""

from ortplugin.graph import walk_graphs

NEXT, BACK, STEP = "\x01", "\x02", "\x03"  # inside an archive: the next number; so many back; so many from the last


def unpack_names(proto, named):
  """Gives values the names that they had before they were packed, and nodes where they were `named`."""
  count = last = 0
  for place, node in enumerate(_nodes(proto) if named else ()):
    node.name = f"n{place}"

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
