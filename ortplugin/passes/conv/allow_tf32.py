"""Convolutions of float32 may round their factors to TF32's 10 bits on a GPU: what `--precision tf32` asks for."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.domains import DOMAIN
from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.passes.driver import Applied, Outcome, RulePass

CONVOLUTIONS = ("FusedConv", "FusedConvTranspose", "ConvGrad")


def allow(scope: Scope, node: gs.Node) -> Outcome:
    """Sets one node's attribute."""
    if node.domain != DOMAIN or node.op not in CONVOLUTIONS or node.attrs.get("allow_tf32"):
        return None
    if any(tensor.dtype is not None and np.dtype(tensor.dtype) == np.float32 for tensor in node.inputs[:2]):
        node.attrs["allow_tf32"] = 1
        return Applied((label(node),), node)
    return None


ALLOW_TF32 = RulePass("allow-tf32", "convolutions of float32 may round to TF32", allow)
