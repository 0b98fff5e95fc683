"""Pointwise programs (docs/programs.md): the text in a fused node's `program` attribute, parsed, checked and composed.

    program = parse('''(float x, float gamma) => (float y) {
      n = LayerNormalization<axis=-1, epsilon=1e-05>(x)
      y = Mul(n, gamma)
    }''')
    print(program)                                   # the canonical text
    program = program.with_producer("x", ...)        # composition: what the fusing passes do

A Program is immutable and valid: one that breaks a rule of the language cannot be constructed (ProgramError).

operators  the table of operators; dtypes, limits, attributes: what it and the rules are made of
statement  the parts of a program; types: the dtype of every value, and the rules
program    the whole and its composition; parser and printing: from and to text
"""

from .attributes import sum_axes
from .dtypes import (
  DTYPE_NAMES,
  DTYPES,
  FLOATING,
  INTEGERS,
  NUMBERS,
  NUMPY_DTYPES,
  ONNX_DTYPES,
  SIGNED,
  SUMS,
  UNSIGNED,
  integer_range,
)
from .errors import ProgramError
from .limits import MAX_CHARACTERS, MAX_NAME, MAX_PARAMETERS, MAX_RESULTS, MAX_STATEMENTS, MAX_SUM_AXIS
from .operators import ATTRIBUTES, COMPARISONS, OPERATORS, AttributeSpec, AttributeValue, OperatorSpec
from .parser import parse
from .printing import Operand, number_text, operand_text
from .program import Program, drop_unused, fresh_name
from .statement import Parameter, Statement

__all__ = [
  "ATTRIBUTES",
  "COMPARISONS",
  "DTYPES",
  "DTYPE_NAMES",
  "FLOATING",
  "INTEGERS",
  "MAX_CHARACTERS",
  "MAX_NAME",
  "MAX_PARAMETERS",
  "MAX_RESULTS",
  "MAX_STATEMENTS",
  "MAX_SUM_AXIS",
  "NUMBERS",
  "NUMPY_DTYPES",
  "ONNX_DTYPES",
  "OPERATORS",
  "SIGNED",
  "SUMS",
  "UNSIGNED",
  "AttributeSpec",
  "AttributeValue",
  "Operand",
  "OperatorSpec",
  "Parameter",
  "Program",
  "ProgramError",
  "Statement",
  "drop_unused",
  "fresh_name",
  "integer_range",
  "number_text",
  "operand_text",
  "parse",
  "sum_axes",
]
