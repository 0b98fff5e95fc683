"""Where every operator of pointwise programs must be, beside its line in ortplugin/program/operators.def.

`missing()` names each operator and place that a line lacks. Run as a script it prints them, which is how the test sees
what a new line asks for. A new part of the language that must know every operator gets an entry here. The evaluator,
which needs the library, is asked in ort/test_program_operators.py.
"""

import re
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx_models import built
from pointwise_cases import CASES

from ortplugin.errors import ModelError
from ortplugin.ops.decompose import MINIMUM_OPSET, to_onnx
from ortplugin.ops.pointwise_reference import values
from ortplugin.passes.pointwise.cost import WORK
from ortplugin.program import (
  ATTRIBUTES,
  DTYPES,
  FLOATING,
  INTEGERS,
  NUMBERS,
  NUMPY_DTYPES,
  OPERATORS,
  SUMS,
  UNSIGNED,
  OperatorSpec,
  Parameter,
  Program,
  Statement,
)

ROOT = Path(__file__).resolve().parents[1]
OPSETS = (MINIMUM_OPSET, 13, 17, 18, 20, onnx.defs.onnx_opset_version())


def example(spec, dtype):
  given = {"fmod": 1.0} if spec.name == "Mod" and dtype in FLOATING else {}
  for name, default in spec.attributes:
    if default is None:
      given[name] = {"TargetDType": "double", "Axes": "0"}.get(ATTRIBUTES[name].kind) or ATTRIBUTES[name].given[0]
  parameters = tuple(Parameter("bool" if x == "B" else dtype, f"p{i}") for i, x in enumerate(spec.operands))
  result = Parameter({"T": dtype, "B": "bool", "C": str(given.get("to"))}[spec.result], "y")
  names = tuple(each.name for each in parameters)
  return Program(parameters, (result,), (Statement("y", spec.name, names, tuple(given.items())),))


def dtypes_of(spec):
  return spec.types if "T" in spec.operands else ("bool",)


def has_reference(spec):
  for dtype in dtypes_of(spec):
    program = example(spec, dtype)
    inputs = [np.ones(2, NUMPY_DTYPES[each.dtype]) for each in program.parameters]
    try:
      values(program, inputs)
    except KeyError:
      return False
  return True


def has_decomposition(spec):
  """Whether it becomes operators that the standard has, in every dtype; of integers, at the latest opset at least."""
  for dtype in dtypes_of(spec):
    program = example(spec, dtype)
    for opset in OPSETS:
      if dtype == "bfloat16" and opset < 13:  # the first that can cast it
        continue
      try:
        check_decomposition(program, opset)
      except ModelError:
        if dtype not in INTEGERS or opset == OPSETS[-1]:
          return False
      except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
  return True


def check_decomposition(program, opset):
  """Raises what ONNX's checkers raise of a node that the standard lacks, or has in other dtypes."""
  names = [each.name for each in program.parameters]
  inputs = {each.name: (each.dtype, [3]) for each in program.parameters}
  model = built(to_onnx(program, names, ["y"], opset, "t"), inputs, {"y": (program.results[0].dtype, [3])}, opset, 10)
  onnx.checker.check_model(model)
  onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def text_of(path):
  """A file of the checkout: an installed package has no C++."""
  return (ROOT / path).read_text(encoding="utf-8")


def has_cuda(spec):
  name = f"{spec.name}Float" if spec.result == "C" else spec.name
  definition = rf"DEVICE \w+ op_{name}\(|^OP_\w+\({name}, "
  return re.search(definition, text_of("ortplugin/device/pointwise.cuh"), re.MULTILINE) is not None


def has_case(path):
  return lambda spec: f"case Op::k{spec.name}:" in text_of(path)


def has_native_case(spec):
  """Whether the evaluator's native tests, which count units in the last place, name it."""
  tests = text_of("tests/native/test_evaluator.cc") + text_of("tests/native/test_evaluator_integers.cc")
  return re.search(rf"[\" ]{spec.name}[<(]", tests) is not None


def has_parity_case(spec):
  """Whether a case on which every provider must equal the reference has it, in every dtype that it takes."""
  return {*dtypes_of(spec)} <= _PARITY.get(spec.name, set())


_PARITY = {}
for _case in CASES:
  for _statement in _case.program.statements:
    _PARITY.setdefault(_statement.op, set()).add(_case.program.operand_dtype(_statement))


DOCS = "docs/programs.md"
_DOCS_TYPES = {
  "F": FLOATING,
  "I": INTEGERS,
  "U": UNSIGNED,
  "N": NUMBERS,
  "A": DTYPES,
  "": FLOATING,
  "F, int32, int64, uint32, uint64": SUMS,
}
_DOCS_LETTERS = {"T": "T", "bool": "B", "attribute's": "C"}


def docs_rows():
  """The operators as the table of docs/programs.md has them, each with the text of its attributes."""
  table = text_of(DOCS).split("## Operators\n", 1)[1].split("|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
  for line in table.splitlines():
    types, signature, operators = (cell.strip() for cell in line.strip("|").split("|"))
    signature = signature.removesuffix(" with attributes")
    core = signature.endswith(", core")
    letters = [_DOCS_LETTERS[each] for each in re.split(", | → ", signature.removesuffix(", core"))]
    for name, attributes in re.findall(r"(\w+)(?:<([^>]*)>)?", re.sub(r"\([^)]*\)", "", operators)):
      yield OperatorSpec(name, "".join(letters), (), _DOCS_TYPES[types], core), attributes


def is_in_docs(spec):
  """Whether the table of docs/programs.md says the same; a default may be cut short by an ellipsis."""
  bare = OperatorSpec(spec.name, spec.signature, (), spec.types, spec.core)
  said = [text for row, text in docs_rows() if row == bare]
  if len(said) != 1:
    return False
  given = [each.split("=", 1) for each in said[0].split(", ") if each]
  return [name for name, _ in given] == [name for name, _ in spec.attributes] and all(
    default is None or (text == f'"{default}"' if isinstance(default, str) else _is_number(text, default))
    for (_, text), (_, default) in zip(given, spec.attributes, strict=True)
  )


def _is_number(text, number):
  return repr(number).startswith(text[:-1]) if text.endswith("…") else float(text) == number


POINTWISE_PLACES = {
  "the reference: POINTWISE in ortplugin/ops/pointwise_reference.py": has_reference,
  "the decomposition: _REWRITTEN in ortplugin/ops/decompose.py, where the standard lacks it": has_decomposition,
  "the CUDA function: op_<name> in ortplugin/device/pointwise.cuh": has_cuda,
  "the instructions of a GPU: Weight in ortplugin/ops/pointwise/pointwise_cuda.cc": has_case(
    "ortplugin/ops/pointwise/pointwise_cuda.cc"
  ),
  "the parity case: tests/pointwise_cases.py, with every dtype": has_parity_case,
  "the evaluator's accuracy: tests/native/test_evaluator.cc": has_native_case,
}
PLACES = {
  "cuDNN's yes or no: DirectMode in ortplugin/runtime/cudnn/pointwise.cc": has_case(
    "ortplugin/runtime/cudnn/pointwise.cc"
  ),
  "the cost: WORK in ortplugin/passes/pointwise/cost.py": lambda spec: spec.name in WORK,
  f"the table of {DOCS}": is_in_docs,
}


def missing():
  """What the operators lack: "Mish lacks the cost: ...". The places of POINTWISE_PLACES are no core operator's."""
  return [
    f"{spec.name} lacks {place}"
    for spec in OPERATORS.values()
    for place, has in {**({} if spec.core else POINTWISE_PLACES), **PLACES}.items()
    if not has(spec)
  ]


if __name__ == "__main__":
  sys.stdout.write("".join(f"{line}\n" for line in missing()))
