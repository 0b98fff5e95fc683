"""The JSON schema of the report (draft 2020-12); `ortplugin.report` says what the keys mean."""

from typing import Any

Schema = dict[str, Any]


def _list(items: Schema) -> Schema:
  return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
  return {"type": "object", "additionalProperties": values}


def _object(**keys: Schema) -> Schema:
  return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def _or_null(*schemas: Schema) -> Schema:
  return {"anyOf": [*schemas, {"type": "null"}]}


_S, _N, _I, _B = ({"type": name} for name in ("string", "number", "integer", "boolean"))
_NUMBER = _or_null(_N, {"enum": ["inf", "-inf", "nan"]})  # what JSON lacks is a string
_COUNTS, _NAMES = _by_name(_I), _list(_S)
_CHANGE = _object(rewrite=_S, nodes=_NAMES, result=_S)
_OUTPUT = _object(name=_S, passed=_B, max_abs_error=_NUMBER, max_rel_error=_NUMBER, message=_S)
_CASE = _object(name=_S, outputs=_list(_OUTPUT), mode={"enum": ["plain", "TF32", "graph", "graph, TF32"]})
_TIMINGS = _list(_object(mode={"enum": ["plain", "graph"]}, original_ms=_N, optimized_ms=_N, loses=_B))
_PROVIDER = _object(
  provider=_S,
  inputs=_list(_CASE),
  timings=_TIMINGS,
  skipped=_S,
  original_ms=_or_null(_N),
  optimized_ms=_or_null(_N),
  replays=_I,
  graph_skipped=_S,
  notes=_NAMES,
  passed=_B,
)
_LARGEST = _list(_object(name=_S, dtype=_S, shape=_list(_I), bytes=_I))
_WEIGHTS = _or_null(_object(weights=_I, bytes=_I, dtypes=_COUNTS, largest=_LARGEST))
_NODE = _object(node=_S, operator=_S, ms=_N, share=_N, bytes=_I, taken_by=_or_null(_S))
_TIMELINE = _or_null(
    _object(run_ms=_N, runs=_I, nodes_ms=_N, taken_share=_N, nodes=_list(_NODE),
            operators=_list(_object(operator=_S, count=_I, ms=_N, share=_N, taken_share=_N)))
)  # fmt: skip
_REGION = _object(kind={"enum": ["fused", "replaced", "removed"]}, result=_S, nodes=_NAMES, rewrites=_COUNTS)

SCHEMA: Schema = {
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "The report of optimize-model",
  **_object(
    version=_S,
    action={"enum": ["optimize", "restore", "profile"]},
    input=_or_null(_S),
    output=_or_null(_S),
    operators=_object(before=_COUNTS, after=_COUNTS),
    opset=_or_null(_list(_I)),
    functions=_COUNTS,
    precision=_or_null(_object(name=_S, converted=_I, kept=_I)),
    rewrites=_COUNTS,
    changes=_list(_CHANGE),
    near_misses=_list(_object(rewrite=_S, node=_S, reason=_S)),
    fused=_I,
    seconds=_by_name(_N),
    verification=_list(_PROVIDER),
    tuning=_list(_object(node=_S, choice=_S, microseconds=_by_name(_NUMBER), wrong=_NAMES)),
    guilty=_or_null(_CHANGE),
    dropped=_list(_object(rewrite=_S, nodes=_NAMES, reason=_S)),
    taken_back=_list(_object(rewrites=_NAMES, provider=_S, timings=_TIMINGS)),
    regions=_list(_REGION),
    memory=_object(before=_WEIGHTS, after=_WEIGHTS, written_before=_or_null(_I), written_after=_or_null(_I)),
    profile=_or_null(_object(provider=_S, inputs=_S, skipped=_S, original=_TIMELINE, optimized=_TIMELINE)),
    next=_list(_object(option=_S, why=_S)),
  ),
}
