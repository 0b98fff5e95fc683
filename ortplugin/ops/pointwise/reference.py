"""FusedPointwise in NumPy, in float64: what the kernels, the decomposition and the rewrites are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortplugin.ops.decompose import NUMPY_DTYPES
from ortplugin.ops.pointwise_reference import evaluate
from ortplugin.program import FLOATING, Program, Statement

Array = npt.NDArray[Any]
Step = Callable[[Statement, Sequence[Array]], Array]


def pointwise(
    program: Program, inputs: Sequence[Array], rounded: bool = True, step: Step = evaluate
) -> list[np.ndarray[Any, Any]]:
    """The outputs of a FusedPointwise with this program: one array of the shape S for each result.

    Floating values are float64 throughout; a Cast to float16, bfloat16 or float rounds. Integers and bools have their
    own dtype. `rounded`: each output has its result's dtype; otherwise floating outputs are float64 before that last
    rounding, which is what a tolerance is measured from. `step` computes one statement. Raises ValueError if the inputs
    are not as many as the parameters or do not broadcast.
    """
    if len(inputs) != len(program.parameters):
        raise ValueError(f"the program has {len(program.parameters)} parameters, {len(inputs)} inputs are given")
    shape = np.broadcast_shapes(*(np.shape(array) for array in inputs))
    values: dict[str, Array] = {}
    for parameter, array in zip(program.parameters, inputs, strict=True):
        values[parameter.name] = np.asarray(array).astype(computed_in(parameter.dtype))
    with np.errstate(all="ignore"):
        for statement in program.statements:
            literal = _literal_dtype(program, statement)
            operands = [values[x] if isinstance(x, str) else np.asarray(x, literal) for x in statement.operands]
            values[statement.name] = step(statement, operands)
    outputs = []
    for result in program.results:
        value = np.broadcast_to(values[result.name], shape)
        with np.errstate(all="ignore"):
            outputs.append(value.astype(NUMPY_DTYPES[result.dtype]) if rounded else np.array(value))
    return outputs


def computed_in(dtype: str) -> np.dtype[Any]:
    """What a value of the programs' `dtype` is here: float64 for a floating one."""
    return np.dtype(np.float64) if dtype in FLOATING else NUMPY_DTYPES[dtype]


def _literal_dtype(program: Program, statement: Statement) -> np.dtype[Any]:
    """The dtype of the statement's literals: that of the operands they agree with."""
    letters = zip(statement.operands, statement.spec.operands, strict=True)
    agreed = [program.dtypes[operand] for operand, letter in letters if isinstance(operand, str) and letter == "T"]
    return computed_in(agreed[0] if agreed else "bool")
