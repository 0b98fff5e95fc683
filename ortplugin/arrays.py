"""Types of NumPy's arrays, where more than one module names them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of any dtype
Wide = npt.NDArray[np.float64]
