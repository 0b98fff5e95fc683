"""The evaluator has every operator of the table, in every dtype: each alone, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from operator_places import dtypes_of, example
from pointwise_cases import Case, check

from ort.host import make, run
from ortplugin.program import OPERATORS

PLACE = "ortplugin/runtime/program/evaluator.cc"


@pytest.mark.parametrize("name", [name for name, spec in OPERATORS.items() if not spec.core])
def test_the_evaluator_has_it(library: Path, name: str) -> None:
    for dtype in dtypes_of(OPERATORS[name]):
        program = example(OPERATORS[name], dtype)
        case = Case(f"{name} of {dtype}", str(program), ((33,),) * len(program.parameters), "special")
        try:
            check(case, run(make(case.model()), case))
        except Exception as error:
            raise AssertionError(f"{name} lacks its evaluation of {dtype} in {PLACE}, or it is wrong") from error
