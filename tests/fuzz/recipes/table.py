"""The table of what random graphs are made of: functions that add a few nodes to a graph."""

GLUE = []  # any operator, one or two nodes
MOTIFS = []  # what passes look for, as exporters write it


def glue(weight=1.0):
  def enter(recipe):
    GLUE.append((weight, recipe))
    return recipe

  return enter


def motif(weight=1.0):
  def enter(recipe):
    MOTIFS.append((weight, recipe))
    return recipe

  return enter
