import numpy as np
from pass_helpers import add_weights, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import ROW_ORDER

NUMBERS = {
  "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "end": 2**63 - 1, "last": -1, "minus": -2,
  "split": [2, 2, 3, 2, 3, 4], "windows": [8, 9, 4], "merged": [2, 2, 2, 3, 3, 4], "image": [2, 6, 6, 4],
  "cut": [2, 2, 2, 3, 3, 4], "planes": [2, 4, 3, 2, 3, 2], "cells": [2, 9, 4, 4], "channels": [2, 4, 36],
  "divided": [2, 2, 2, 36], "flat": [2, 36, 4], "narrow": [2, 6, 12, 2], "first": [0], "some": [3, 0, 0, -1],
}  # fmt: skip
ROLL = """b = Slice({0}, zero, two, {1}, one)  c = Slice({0}, two, six, {1})  {2} = Concat<axis={3}>(c, b)"""
ROLLED = ROLL.format("x", "one", "r", "1")
BACK = """p = Reshape(x, merged)  q = Transpose<0,1,3,2,4,5>(p)  d = Reshape(q, image)
  e = Slice(d, zero, four, two)  f = Slice(d, four, six, two)  y = Concat<axis=2>(f, e)"""
PATCHES = """a = Slice(x, zero, end, one, two)  b = Slice(x, one, end, one, two)
  c = Slice(a, zero, end, two, two)  d = Slice(b, zero, end, two, two)  e = Slice(a, one, end, two, two)
  f = Slice(b, one, end, two, two)  y = Concat<axis=-1>(c, d, e, f)"""
GRID = """p = Reshape(x, cut)  q = Transpose<0,5,1,3,2,4>(p)  r = Reshape(q, planes)
  s = Transpose<0,2,4,3,5,1>(r)  t = Reshape(s, cells)  y = Transpose<0,2,1,3>(t)"""
WINDOWS = "p = Reshape(r, split)  q = Transpose<0,1,3,2,4,5>(p)  y = Reshape(q, windows)"

CASES = {
  "a roll": (ROLLED.replace("r =", "y ="), "2,6,6,4", "2,6,6,4", 36),
  "a roll in windows": (f"{ROLLED}  {WINDOWS}", "2,6,6,4", "8,9,4", 36),
  "a roll of both axes in windows": (
      f"{ROLL.format('x', 'one', 's', '1')}  "
      + ROLL.format("s", "two", "r", "2").replace("b ", "g ").replace("c ", "h ").replace("(c, b)", "(h, g)")
      + f"  {WINDOWS}", "2,6,6,4", "8,9,4", 36),
  "windows, rolled back": (BACK, "8,9,4", "2,6,6,4", 36),
  "merged patches": (PATCHES, "2,6,6,4", "2,3,3,16", 36),
  "a Gather of a transposed tensor": (
      "t = Transpose<1,0,2>(x)  y = Gather<axis=0>(t, first)", "2,6,4", "1,2,4", 1),
  "with rows that come twice": (
      "t = Transpose<0,2,1,3>(x)  y = Gather<axis=2>(t, some)", "2,6,6,4", "2,6,4,4", 24),
  "windows to a grid, channels first in between": (GRID, "2,4,9,4", "2,4,9,4", 36),
  "three Transposes in place": (
      "t = Transpose<0,3,1,2>(x)  r = Reshape(t, channels)  u = Transpose<0,2,1>(r)  "
      "v = Reshape(u, image)  w = Transpose<1,2,0,3>(v)  y = Transpose<2,0,1,3>(w)",
      "2,6,6,4", "2,6,6,4", None),
  "in place": (f"{ROLLED}  u = Slice(r, zero, four, one)  v = Slice(r, four, six, one)  "
               "y = Concat<axis=1>(v, u)", "2,6,6,4", "2,6,6,4", None),
}  # fmt: skip


def graph(nodes, given, made, dtype="float", more=""):
  original = model(f"({dtype}[{given}] x) => ({dtype}[{made}] y{more}) {{ {nodes} }}")
  for name, number in NUMBERS.items():
    if any(name in node.input for node in original.graph.node):
      add_weights(original, **{name: np.atleast_1d(np.int64(number))})
  return original


@parametrize("dtype", ["float", "float16"])
@parametrize("case", CASES)
def test_one_gather(case, dtype):
  nodes, given, made, rows = CASES[case]
  optimized, _ = run_same(graph(nodes, given, made, dtype), ROW_ORDER)
  assert set(operators(optimized)) == ({"Gather", "Reshape"} if rows else {"Reshape"})
  orders = [node.input[1] for node in optimized.graph.node if node.op_type == "Gather"]
  assert [list(each.dims) for each in optimized.graph.initializer if each.name in orders] == [[rows]] * bool(rows)


STAY = {
  "one Transpose": ("y = Transpose<0,2,1,3>(x)", "2,6,6,4", "2,6,6,4"),
  "Transposes": ("t = Transpose<0,2,1,3>(x)  r = Reshape(t, image)  "
                 "y = Transpose<1,0,2,3>(r)", "2,6,6,4", "6,2,6,4"),
  "three Transposes that end with channels first": (
      "t = Transpose<0,2,1,3>(x)  r = Reshape(t, image)  u = Transpose<0,2,1,3>(r)  "
      "v = Reshape(u, image)  y = Transpose<0,3,2,1>(v)", "2,6,6,4", "2,4,6,6"),
  "rows that are divided while they are first": (
      "t = Transpose<0,3,1,2>(x)  r = Reshape(t, divided)  u = Transpose<0,2,1,3>(r)  "
      "v = Reshape(u, channels)  y = Transpose<0,2,1>(v)", "2,6,6,4", "2,36,4"),
  "a Gather alone": ("r = Reshape(x, flat)  y = Gather<axis=1>(r, some)", "2,6,6,4", "2,4,4"),
  "parts of rows": (ROLL.format("x", "three", "y", "3"), "2,6,6,6", "2,6,6,6"),
  "rows that a Reshape divides": (f"{ROLLED}  n = Reshape(r, narrow)  y = Transpose<0,2,1,3>(n)".replace(
      ROLLED, "r = Transpose<0,3,2,1>(x)"), "2,6,6,4", "2,12,6,2"),
  "two tensors": ("b = Slice(x, zero, two, one)  n = Neg(x)  c = Slice(n, two, six, one)  y = Concat<axis=1>(c, b)",
                  "2,6,6,4", "2,6,6,4"),
  "backwards": ("b = Slice(x, last, minus, one, last)  c = Slice(x, two, six, one)  y = Concat<axis=1>(c, b)",
                "2,6,6,4", "2,5,6,4"),
  "integers, which may be a shape": (ROLLED.replace("r =", "y ="), "2,6,6,4", "2,6,6,4"),
}  # fmt: skip


@parametrize("case", STAY)
def test_stays(case):
  stays(graph(*STAY[case], dtype="int64" if "integers" in case else "float"), ROW_ORDER)


def test_rows_of_unknown_number_stay():
  stays(graph(ROLLED.replace("r =", "y ="), "N,6,6,4", "N,6,6,4"), [ROW_ORDER], "the shape of 'x' is not known")


def test_what_something_else_reads_stays():
  """A roll that is an output too is made; what follows it is a Transpose, as before."""
  run_same(
    graph(f"{ROLLED}  {WINDOWS}", "2,6,6,4", "8,9,4", more=", float[2,6,6,4] r"),
    ROW_ORDER,
    into="Reshape Gather Reshape Reshape Transpose Reshape",
  )


def test_an_order_too_long_to_write_stays():
  text = "b = Slice(x, zero, two, zero)  c = Slice(x, two, end, zero)  y = Concat<axis=0>(c, b)"
  stays(graph(text, "70000,4", "70000,4"), ROW_ORDER)


def test_a_small_file_that_asks_for_many_rows():
  """Each Concat is of the one before, twice: an order of a terabyte, were it written."""
  doubled = "  ".join(f"d{i + 1} = Concat<axis=0>(d{i}, d{i})" for i in range(30))
  optimized, _ = run_pass(graph(f"d0 = Identity(x)  {doubled}  y = Identity(d30)", "1024,4", "A,4"), ROW_ORDER)
  assert operators(optimized).count("Concat") == 30 - 6  # 2 ** 16 rows have an order
