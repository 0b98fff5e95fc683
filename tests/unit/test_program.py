import math
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx_models import parametrize, raises
from sample import examples

from ortplugin.program import (
  DTYPES,
  FLOATING,
  INTEGERS,
  OPERATORS,
  Parameter,
  Program,
  ProgramError,
  Statement,
  integer_range,
  number_text,
  parse,
  sum_axes,
)

EXAMPLE = """(float16 x, float16 residual, float16 gamma, float16 beta) => (float16 y, float16 s) {
  s = Add(x, residual)
  n = LayerNormalization<axis=-2, epsilon=1e-06>(s)
  g = Mul(n, gamma)
  y = Add(g, beta)
}"""


def body(*statements, parameters="float x", results="float y"):
  return f"({parameters}) => ({results}) {{ {' '.join(statements)} }}"


def test_the_example():
  program = parse(EXAMPLE)
  assert str(program) == EXAMPLE
  names = ("x", "residual", "gamma", "beta")
  assert [str(each) for each in program.parameters] == [f"float16 {name}" for name in names]
  assert [each.name for each in program.results] == ["y", "s"]
  assert program.core.number("axis") == -2
  assert program.core.number("epsilon") == float(np.float32(1e-6))
  assert program.prologue == {"x", "residual", "s"}
  assert program.epilogue == {"n", "g", "y"}
  assert dict(program.dtypes) == dict.fromkeys([*names, "s", "n", "g", "y"], "float16")


def test_white_space_and_defaults_have_no_meaning():
  text = "( float16 x,float16 residual , float16 gamma, float16 beta)=>(float16 y,float16 s){s=Add(x,residual)"
  text += "\tn=LayerNormalization < epsilon = 0.000001,axis=-2 > (s)\r\n g=Mul(n,gamma)y=Add(g,beta)}  \n"
  assert str(parse(text)) == EXAMPLE
  default = parse(body("y = LayerNormalization<axis=-1, epsilon=1e-05>(x)"))
  assert str(default).splitlines()[1] == "  y = LayerNormalization(x)"
  assert default == parse(body("y = LayerNormalization(x)"))
  axes = body('y = RMSNormalization<epsilon=0.5, axes="1 3">(x)')
  assert str(parse(axes)).splitlines()[1] == '  y = RMSNormalization<epsilon=0.5, axes="1 3">(x)'
  assert parse(body('y = LayerNormalization<axes="", axis=-1>(x)')) == default
  assert str(parse(body("y = LayerNormalization<axis=-0>(x)"))).splitlines()[1] == "  y = LayerNormalization<axis=0>(x)"


@parametrize(
  "number, text",
  [
      (1.0, "1"), (-0.0, "-0"), (0.5, "0.5"), (1e-5, "1e-05"), (1e-4, "1e-04"), (0.001, "0.001"), (1.5e-4, "0.00015"),
      (10000.0, "10000"), (100000.0, "1e+05"), (123456.0, "123456"), (1e22, "1e+22"), (0.1, "0.1"),
      (-3.4028234663852886e38, "-3.4028234663852886e+38"), (5e-324, "5e-324"), (math.inf, "inf"), (-math.inf, "-inf"),
      (math.nan, "nan"), (2.0**53, "9007199254740992"), (np.float32(0.1), "0.1"), (np.float32(1e-12), "1e-12"),
  ],
)  # fmt: skip
def test_numbers_as_the_shortest_text(number, text):
  """What std::to_chars writes: the shorter of plain and scientific, plain if equally long."""
  assert number_text(number) == text


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.floats(allow_nan=False))
def test_numbers_read_back(number):
  text = number_text(number)
  literal = parse(body(f"y = Add(x, {text})")).statements[0].operands[1]
  assert isinstance(literal, float)
  assert literal == number
  assert math.copysign(1, literal) == math.copysign(1, number)


def test_attributes_are_32_bit_floats():
  exact = parse(body("y = LeakyRelu<alpha=0.2>(x)"))
  assert exact.statements[0].number("alpha") == float(np.float32(0.2))
  assert exact == parse(body("y = LeakyRelu<alpha=0.200000003>(x)"))
  assert str(exact).splitlines()[1] == "  y = LeakyRelu<alpha=0.2>(x)"


def test_words_and_dtypes_as_attributes():
  assert str(parse(body('y = Gelu<approximate="tanh">(x)'))).splitlines()[1] == '  y = Gelu<approximate="tanh">(x)'
  assert str(parse(body('y = Gelu<approximate="none">(x)'))).splitlines()[1] == "  y = Gelu(x)"
  assert str(parse(body("y = Cast<to=bool>(x)", results="bool y"))).splitlines()[1] == "  y = Cast<to=bool>(x)"


ATTRIBUTES = {"Cast": "<to=double>", "Mod": "<fmod=1>", "BitShift": '<direction="LEFT">', "SumTo": '<axes="0 2">'}


def _some_statement(name, dtype):
  spec = OPERATORS[name]
  operands = ["b" if letter == "B" else "x" for letter in spec.operands]
  result = {"T": dtype, "B": "bool", "C": "double"}[spec.result]
  return f"y = {name}{ATTRIBUTES.get(name, '')}({', '.join(operands)})", result


@parametrize("name", OPERATORS)
def test_every_operator_parses_and_prints(name):
  spec = OPERATORS[name]
  for dtype in DTYPES if "T" in spec.operands else ["bool"]:
    statement, result = _some_statement(name, dtype)
    parameters = ", ".join(each for each, letter in ((f"{dtype} x", "T"), ("bool b", "B")) if letter in spec.operands)
    text = body(statement, parameters=parameters, results=f"{result} y")
    if "T" in spec.operands and dtype not in spec.types:
      with raises(ProgramError, f"{name} takes no {dtype}, as 'x' is"):
        parse(text)
      continue
    program = parse(text)
    assert program.dtypes["y"] == result
    assert parse(str(program)) == program
    too_many = statement.replace("(", "(x, " if "x" in statement else "(b, ", 1)
    with raises(ProgramError, "operands"):
      parse(body(too_many, parameters=parameters, results=f"{result} y"))


def test_the_dtypes_of_the_table():
  """One row of each kind, as docs/programs.md has it."""
  assert OPERATORS["Add"].types == (*FLOATING, *INTEGERS)
  assert OPERATORS["Sqrt"].types == OPERATORS["PRelu"].types == OPERATORS["IsInf"].types == FLOATING
  assert OPERATORS["BitwiseXor"].types == INTEGERS
  assert OPERATORS["BitShift"].types == ("uint8", "uint16", "uint32", "uint64")
  assert OPERATORS["Where"].types == OPERATORS["Equal"].types == OPERATORS["Cast"].types == DTYPES
  assert OPERATORS["SumTo"].types == (*FLOATING, "int32", "int64", "uint32", "uint64")


@parametrize("dtype", INTEGERS)
def test_integer_literals_are_exact(dtype):
  low, high = integer_range(dtype)
  assert high - low + 1 == 2 ** int(dtype.lstrip("uint"))
  assert (low == 0) == dtype.startswith("u")
  for number in (low, 0, 1, high):
    program = parse(body(f"y = Add(x, {number})", parameters=f"{dtype} x", results=f"{dtype} y"))
    literal = program.statements[0].operands[1]
    assert type(literal) is int
    assert literal == number
    assert f"Add(x, {number})" in str(program)
  for text in (str(high + 1), str(low - 1), "1.0", "1e2", "-0", "inf", "nan"):
    with raises(ProgramError, "Add takes no"):
      parse(body(f"y = Add(x, {text})", parameters=f"{dtype} x", results=f"{dtype} y"))
  assert "Add(x, 7)" in str(parse(body("y = Add(x, +007)", parameters=f"{dtype} x", results=f"{dtype} y")))
  zeros = "0" * 5000
  assert "Add(x, 0)" in str(parse(body(f"y = Add(x, {zeros})", parameters=f"{dtype} x", results=f"{dtype} y")))


def test_the_same_text_is_a_float_where_the_dtype_is_one():
  program = parse(body("y = Add(x, 9007199254740993)", parameters="double x", results="double y"))
  literal = program.statements[0].operands[1]
  assert type(literal) is float
  assert literal == 2.0**53
  built = Program((Parameter("float", "x"),), (Parameter("float", "y"),), (Statement("y", "Mul", ("x", 2)),))
  assert type(built.statements[0].operands[1]) is float
  assert str(parse(body("y = Where(c, b, 1.0)", parameters="bool c, bool b", results="bool y"))).endswith("b, 1)\n}")


def test_sums():
  text = """(float x, float w) => (float y, float y2, float16 y3) {
  a = Mul(x, w)
  y = SumTo<axes="0 2 11">(a)
  y2 = SumTo<axes="1", keepdims=0>(x)
  s = SumTo<axes="1">(a)
  y3 = Cast<to=float16>(s)
}"""
  program = parse(text)
  assert str(program) == text
  assert [statement.attribute("axes") for statement in program.cores] == ["0 2 11", "1", "1"]
  assert sum_axes("0 2 11") == (0, 2, 11)
  assert str(program.readable()).splitlines()[1] == "  mul = Mul(x, w)"


BAD = {
  "": "line 1, column 1: found the end, expected '('",
  "(float x) => () { }": "expected a dtype",
  "(float x) => (float y) { y = Relu(x) } more": "found 'more', expected the end",
  "(int4 x) => (float y) { y = Relu(x) }": "found 'int4', expected a dtype",
  "(float x) => (float y) {\n  y = Relu<alpha=1>(x)\n}": "Relu has no attribute 'alpha'",
  "(int32 x) => (int32 y) { y = Mod<fmod=2>(x, x) }": "it must be 0 or 1",
  "(float x) => (bool y) { y = IsInf<detect_negative=0.5>(x) }": "it must be 0 or 1",
  "(uint8 x) => (uint8 y) { y = BitShift(x, x) }": "BitShift needs the attribute 'direction'",
  '(uint8 x) => (uint8 y) { y = BitShift<direction="left">(x, x) }': 'it must be "LEFT" or "RIGHT"',
  '(int8 x) => (int8 y) { y = BitShift<direction="LEFT">(x, x) }': "BitShift takes no int8, as 'x' is",
  "(int32 x, int64 z) => (int64 y) { y = Add(x, z) }": "'z' is int64 where another operand is int32",
  "(int8 x) => (int8 y) { y = Add(x, 128) }": "int8 goes from -128 to 127",
  "(uint64 x) => (uint64 y) { y = Add(x, 18446744073709551616) }": "uint64 goes from 0 to 18446744073709551615",
  "(int64 x) => (int64 y) { y = Add(x, 1.0) }": "takes no 1 there: int64 takes an integer without fraction",
  "(bool x) => (bool y) { y = Equal(x, 2) }": "Equal takes no 2 there",
  "(bool c, bool x) => (bool y) { y = Where(c, x, 0.5) }": "Where takes no 0.5 there",
  **{
    body(f"y = SumTo<axes={axes}>(x)"): "numbers from 0 to 63, ascending"
    for axes in ('""', '"2 0"', '"1 1"', '"0  1"', '" 0"', '"01"', '"64"', "0")
  },
  '(int8 x) => (int8 y) { y = SumTo<axes="0">(x) }': "SumTo takes no int8, as 'x' is",
  "(float x, float z) => (float y) { y = Relu(x) }": "the value 'z' is never used",
  "(float x) => (float z) { y = Relu(x) }": "the result 'z' is never assigned",
  "(float x) => (double y) { y = Relu(x) }": "the result 'y' is declared double, but its value is float",
  "(float x) => (float y, float y) { y = Relu(x) }": "a value is a result twice",
  "(float x, double z) => (float y) { y = Add(x, z) }": "'z' is double where another operand is float",
  "(bool x) => (bool y) { y = Relu(x) }": "Relu takes no bool, as 'x' is",
  "(float x) => (bool y) { y = And(x, x) }": "'x' is float; And takes bool there",
  "(bool x) => (bool y) { y = And(x, 2) }": "And takes no 2 there",
  "(float inf) => (float y) { y = Relu(inf) }": "cannot be a name",
  "(float float) => (float y) { y = Relu(float) }": "cannot be a name",
  "(float é) => (float y) { y = Relu(é) }": "found 'é'",
  f"(float {'a' * 65}) => (float y) {{ y = Relu({'a' * 65}) }}": "at most 64 in all",
  **{
    body(text): words
    for text, words in {
      "y = Rleu(x)": "unknown operator 'Rleu'",
      "y = LeakyRelu<alpha=1, alpha=1>(x)": "attribute 'alpha' is given twice",
      'y = Gelu<approximate="fast">(x)': 'it must be "none" or "tanh"',
      "y = Cast(x)": "Cast needs the attribute 'to'",
      "y = Cast<to=int4>(x)": "found 'int4', expected a number, a string or a dtype",
      'y = Cast<to="float">(x)': "expected a number, a word or a dtype without quotes",
      "y = Mod(x, x)": "Mod of float needs the attribute fmod=1",
      "y = SumTo(x)": "SumTo needs the attribute 'axes'",
      'y = SumTo<axes="0", keepdims=2>(x)': "it must be 0 or 1",
      'n = RMSNormalization(x) y = SumTo<axes="0">(n)': "at most one core operator",
      "y = LayerNormalization<axis=0.5>(x)": "an integer from -1024 to 1024",
      "y = LayerNormalization<axis=2000>(x)": "an integer from -1024 to 1024",
      'y = LayerNormalization<axes="1 1">(x)': "ascending",
      "y = LayerNormalization<groups=2>(x)": "groups needs axes",
      'y = LayerNormalization<axes="1", groups=0.5>(x)': "an integer from 0 to 65536",
      'y = LayerNormalization<axis=-2, axes="1">(x)': "axis or axes, both with groups alone",
      "y = Elu<alpha=1e39>(x)": "within the range of float",
      "y = Add(x, z)": "'z' is used before it is assigned",
      "y = Add(z, x) z = Relu(x)": "'z' is used before it is assigned",
      "x = Relu(x) y = Relu(x)": "the name 'x' is assigned twice",
      "z = Relu(x) y = Relu(x)": "the value 'z' is never used",
      "z = Add(1, 2) y = Add(x, z)": "numbers alone give Add no dtype",
      "z = Cast<to=float>(1) y = Add(x, z)": "numbers alone give Cast no dtype",
      "y = Where(1, x, x)": "Where takes no 1 there",
      "y = Add(x, 1e999)": "a number within the range of double",
      "y = Add(x, 1.)": "expected a name, a number or a mark",
      "y = Add(x, .5)": "expected a name, a number or a mark",
      "y = Add(x, 1x)": "expected a name, a number or a mark",
      "y = Add(x; x)": "line 1, column 35: found ';'",
      "y = Relu(x) \x00": "found '\\x00'",
      "n = LayerNormalization(x) y = RMSNormalization(n)": "at most one core operator",
    }.items()
  },
}


@parametrize("text", BAD)
def test_what_is_wrong_is_said(text):
  with pytest.raises(ProgramError) as caught:
    parse(text)
  assert BAD[text] in str(caught.value)
  assert "\n" not in str(caught.value)


@parametrize("space", ["\v", "\f", "\x1c", "\x1f", "\x85", "\xa0"])
def test_other_white_space_is_refused(space):
  """Python's own functions count these as white space; the language does not."""
  for text in (f"(float x) =>{space}(float y) {{ y = Relu(x) }}", EXAMPLE + space, space, f" \n{space} "):
    with raises(ProgramError, "found " + re.escape(repr(space))):
      parse(text)


def test_limits():
  names = [f"x{i}" for i in range(33)]
  sums = ["a0 = Add(x0, x1)", *(f"a{i} = Add(a{i - 1}, x{i + 1})" for i in range(1, 32)), "y = Relu(a31)"]
  with raises(ProgramError, "33 parameters; the limit is 32"):
    parse(body(*sums, parameters=", ".join(f"float {name}" for name in names)))
  chain = ["a0 = Relu(x)", *(f"a{i} = Relu(a{i - 1})" for i in range(1, 256)), "y = Relu(a255)"]
  with raises(ProgramError, "257 statements; the limit is 256"):
    parse(body(*chain))
  many = [f"r{i} = Relu(x)" for i in range(17)]
  with raises(ProgramError, "17 results; the limit is 16"):
    parse(body(*many, results=", ".join(f"float r{i}" for i in range(17))))
  with raises(ProgramError, "the limit is 65536"):
    parse(EXAMPLE + " " * 65536)


def test_a_producer_takes_a_parameters_place():
  program = parse(body("n = RMSNormalization(x)", "y = Mul(n, gamma)", parameters="float x, float gamma"))
  value = program.renamed({"x": "v"})
  merged = value.with_producer("v", [Statement("t", "Add", ("x", "gamma"))], [Parameter("float", "x")])
  assert str(merged.readable()) == (
    "(float gamma, float x) => (float y) {\n  s = Add(x, gamma)\n  n = RMSNormalization(s)\n  y = Mul(n, gamma)\n}"
  )
  assert [each.name for each in merged.with_result("v").readable().results] == ["y", "s"]


def test_statements_are_appended_and_results_replaced():
  program = parse(body("y = RMSNormalization(x)"))
  longer = program.with_statements([Statement("z", "Mul", ("y", 2.0))], [Parameter("float", "z")])
  assert str(longer.readable()) == "(float x) => (float y) {\n  n = RMSNormalization(x)\n  y = Mul(n, 2)\n}"


def test_what_no_result_needs_is_dropped():
  program = parse(body("y = Relu(x)", "z = Add(x, w)", parameters="float x, float w", results="float y, float z"))
  first = program.results[:1]
  from ortplugin.program import drop_unused

  assert str(drop_unused(program.parameters, first, program.statements)) == "(float x) => (float y) {\n  y = Relu(x)\n}"


def test_equal_parameters_are_merged():
  program = parse(body("y = Add(x, z)", parameters="float x, float z"))
  assert str(program.merged("x", "z")) == "(float x) => (float y) {\n  y = Add(x, x)\n}"


def test_names_are_fresh_and_legal():
  program = parse(EXAMPLE)
  assert program.fresh("bias") == "bias"
  assert program.fresh("gamma") == "gamma2"
  assert program.fresh("/model/layer.0") == "_model_layer_0"
  assert program.fresh("0") == "_0"
  assert program.fresh("float") == "float2"
  assert len(program.fresh("a" * 200)) <= 64


CASTS = {
  # a widening Cast before another Cast changes no bit
  "v = Cast<to=double>(x) y = Cast<to=float16>(v)": ("float", "float16", ["y = Cast<to=float16>(x)"]),
  "v = Cast<to=float>(x) y = Cast<to=double>(v)": ("float16", "double", ["y = Cast<to=double>(x)"]),
  # a Cast to the same dtype is nothing
  "v = Cast<to=float>(x) y = Relu(v)": ("float", "float", ["y = Relu(x)"]),
  # one that rounds stays
  "v = Cast<to=float16>(x) y = Cast<to=float>(v)": (
      "float", "float", ["v = Cast<to=float16>(x)", "y = Cast<to=float>(v)"]),
  "v = Cast<to=float>(x) y = Cast<to=float16>(v)": (
      "double", "float16", ["v = Cast<to=float>(x)", "y = Cast<to=float16>(v)"]),
  "w = Relu(x) v = Cast<to=float16>(w) y = Relu(v)": (
      "float16", "float16", ["w = Relu(x)", "v = Cast<to=float16>(w)", "y = Relu(v)"]),
  # through bool is a comparison with 0
  "v = Cast<to=int32>(x) y = Cast<to=int64>(v)": ("int8", "int64", ["y = Cast<to=int64>(x)"]),
  "v = Cast<to=float>(x) y = Cast<to=int64>(v)": ("bool", "int64", ["y = Cast<to=int64>(x)"]),
  "v = Cast<to=double>(x) y = Cast<to=float>(v)": ("int32", "float", ["y = Cast<to=float>(x)"]),
  # float to integer saturates, integer to integer wraps
  "v = Cast<to=float>(x) y = Cast<to=int8>(v)": (
      "int16", "int8", ["v = Cast<to=float>(x)", "y = Cast<to=int8>(v)"]),
  "v = Cast<to=uint32>(x) y = Cast<to=int64>(v)": (
      "int8", "int64", ["v = Cast<to=uint32>(x)", "y = Cast<to=int64>(v)"]),
  "f = Cast<to=float>(x) y = Cast<to=double>(f)": (
      "int32", "double", ["f = Cast<to=float>(x)", "y = Cast<to=double>(f)"]),
  "v = Cast<to=bool>(x) y = Cast<to=float>(v)": ("float", "float", ["v = Cast<to=bool>(x)", "y = Cast<to=float>(v)"]),
}  # fmt: skip


@parametrize("text", CASTS)
def test_redundant_casts(text):
  given, result, expected = CASTS[text]
  program = parse(body(text, parameters=f"{given} x", results=f"{result} y"))
  assert [line.strip() for line in str(program.without_redundant_casts()).splitlines()[1:-1]] == expected
