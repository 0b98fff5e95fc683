"""Whether JSON data fit the report's schema: the keywords that it uses, and an error for any other."""

from ortplugin.report.schema import SCHEMA

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def faults(data, schema=SCHEMA, path="report"):
  unknown = schema.keys() - {"$schema", "title", "anyOf", "enum", "type", "items", "required", "properties"}
  assert unknown <= {"additionalProperties"}
  if "anyOf" in schema:
    yield from min((list(faults(data, each, path)) for each in schema["anyOf"]), key=len)
  if data not in schema.get("enum", [data]):
    yield f"{path}: {data!r} is none of {schema['enum']}"
  kind = schema.get("type")
  number = isinstance(data, (int, float)) and not isinstance(data, bool)
  is_kind = {"number": number, "integer": number and data == int(data)} if number else {}
  if kind and not is_kind.get(kind, isinstance(data, _TYPES.get(kind, ()))):
    yield f"{path}: {data!r} is no {kind}"
  elif kind == "array":
    for index, each in enumerate(data):
      yield from faults(each, schema["items"], f"{path}[{index}]")
  elif kind == "object":
    keys, more = schema.get("properties", {}), schema["additionalProperties"]
    yield from (f"{path} lacks {name}" for name in schema.get("required", ()) if name not in data)
    for name, value in data.items():
      if name in keys or more:
        yield from faults(value, keys.get(name) or more, f"{path}.{name}")
      else:
        yield f"{path} has {name}"
