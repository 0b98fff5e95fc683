"""Calls of a model's local functions replaced by the functions' bodies, in which the passes find their patterns.

ONNX Runtime does the same when it loads a model. The replacing is onnx.inliner's, on a skeleton without the large
weights; before it, what that loses or leaves is put right:

- it drops the defaults of a function's attributes: calls get them;
- it imports no domain that only a function imports: the model does;
- it leaves functions that import another version of the standard domain, though a valid model has only operators in
  them that are the same in both: they import the model's.

Functions that import another version of another domain stay calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from .errors import ModelError, one_line
from .modelcheck import check_structure, skeleton, walk_nodes
from .passes.base import NearMiss

NAME = "inline-functions"  # under which a report says what stays a call
MOST_DEPTH = 64  # of functions that call functions
MOST_NODES = 1 << 20  # afterwards
REMEDY = "export the model again without functions"


def inline_functions(model: ModelProto) -> tuple[ModelProto, dict[str, int], list[NearMiss]]:
    """(the model without calls of local functions, how many of each 'domain::name' it had, what stays and why).

    The model is not changed; it is the result itself where there is nothing to replace. Bodies of If, Loop and Scan are
    looked into. Raises ModelError where functions call themselves, or each other too deep or too often.
    """
    calls = _calls(model)
    if not calls:
        return model, {}, []
    check_size(model)  # outside of the next block: such a model would keep everything busy for ever
    try:
        light = inlined(skeleton(model))
        left = _calls(light)
        result = ModelProto()
        result.CopyFrom(model)
        for target, source in (
            (result.graph.node, light.graph.node),
            (result.functions, light.functions),
            (result.opset_import, light.opset_import),
        ):
            del target[:]
            target.extend(source)
        check_structure(result)
    except Exception as error:  # onnx raises its own and C++'s errors
        reason = f"onnx can't replace calls of local functions: {one_line(error)}"
        return model, {}, [NearMiss(NAME, name, reason) for name in calls]
    versions = {each.domain: each.version for each in model.opset_import}
    misses = [NearMiss(NAME, name, _reason(name, model, versions)) for name in left]
    gone = {name: count for name, count in calls.items() if name not in left}
    return (result if gone else model), gone, misses


def inlined(model: ModelProto) -> ModelProto:
    """A copy of the model with calls of local functions replaced by their bodies.

    Raises ModelError as check_size does, and onnx's and C++'s errors.
    """
    check_size(model)
    complete = ModelProto()
    complete.CopyFrom(model)
    functions = {_key(each): each for each in complete.functions}
    for node in walk_nodes(complete):
        called = functions.get((node.domain, node.op_type, node.overload))
        if called is not None:
            given = {each.name for each in node.attribute}
            node.attribute.extend(each for each in called.attribute_proto if each.name not in given)
    versions = {each.domain: each.version for each in complete.opset_import}
    for function in complete.functions:
        for each in function.opset_import:
            if each.domain not in versions:
                versions[each.domain] = each.version
                complete.opset_import.add(domain=each.domain, version=each.version)
            elif each.domain == "":
                each.version = versions[each.domain]
    result: ModelProto = onnx.inliner.inline_local_functions(complete)
    return result


def check_size(model: ModelProto) -> None:
    """Raises ModelError where functions call themselves, or each other too deep, or stand for too many nodes.

    A small file can stand for any number, if each function calls the one before twice.
    """
    functions = {_key(each): list(_nodes_of(each.node)) for each in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Iterable[NodeProto], path: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in sizes:
                if key in path:
                    raise ModelError(f"its local function '{node.domain}::{node.op_type}' calls itself: {REMEDY}")
                if len(path) == MOST_DEPTH:
                    raise ModelError(f"its local functions call each other more than {MOST_DEPTH} deep: {REMEDY}")
                sizes[key] = size(functions[key], (*path, key))
            total += sizes.get(key, 1)
        return total

    nodes = size(_nodes_of(model.graph.node), ())
    if nodes > MOST_NODES:
        raise ModelError(f"its local functions stand for {nodes} nodes, more than {MOST_NODES}: {REMEDY}")


def _key(function: FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _calls(model: ModelProto) -> Counter[str]:
    """How often the graph and its bodies call each local function, by 'domain::name'."""
    functions = {_key(each) for each in model.functions}
    return Counter(
        f"{node.domain or 'ai.onnx'}::{node.op_type}"
        for node in _nodes_of(model.graph.node)
        if (node.domain, node.op_type, node.overload) in functions
    )


def _nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of the bodies in them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_of(graph.node)


def _reason(name: str, model: ModelProto, versions: dict[str, int]) -> str:
    for function in model.functions:
        if f"{function.domain or 'ai.onnx'}::{function.name}" != name:
            continue
        for each in function.opset_import:
            if versions.get(each.domain, each.version) != each.version:
                return (
                    f"it imports version {each.version} of the domain '{each.domain}', "
                    f"the model version {versions[each.domain]}"
                )
    return "a function that it calls imports another version of a domain than the model"
