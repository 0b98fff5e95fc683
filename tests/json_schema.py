"""Whether JSON data fit the report's schema: the keywords that it uses, and an error for any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

SCHEMA: dict[str, Any] = json.loads(files("ortplugin.report").joinpath("schema.json").read_text())
_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_IGNORED = {"$schema", "title", "$defs"}


def faults(data: Any, schema: dict[str, Any] = SCHEMA, path: str = "report") -> Iterator[str]:
    """What does not fit, each with its place."""
    for keyword, value in schema.items():
        if keyword == "$ref":
            yield from faults(data, SCHEMA["$defs"][value.removeprefix("#/$defs/")], path)
        elif keyword == "anyOf":
            found = [list(faults(data, each, path)) for each in value]
            if all(found):
                yield from min(found, key=len)
        elif keyword == "enum":
            if data not in value:
                yield f"{path}: {data!r} is none of {value}"
        elif keyword == "type":
            number = isinstance(data, (int, float)) and not isinstance(data, bool)
            integer = number and float(data).is_integer()
            if not ({"number": number, "integer": integer}.get(value) or isinstance(data, _TYPES.get(value, ()))):
                yield f"{path}: {data!r} is no {value}"
        elif keyword == "items":
            for index, each in enumerate(data if isinstance(data, list) else []):
                yield from faults(each, value, f"{path}[{index}]")
        elif keyword == "required":
            yield from (f"{path} lacks {name}" for name in value if isinstance(data, dict) and name not in data)
        elif keyword == "properties":
            for name in value.keys() & (data.keys() if isinstance(data, dict) else ()):
                yield from faults(data[name], value[name], f"{path}.{name}")
        elif keyword == "additionalProperties":
            for name in data.keys() - schema.get("properties", {}).keys() if isinstance(data, dict) else ():
                if value is False:
                    yield f"{path} has {name}"
                else:
                    yield from faults(data[name], value, f"{path}.{name}")
        elif keyword not in _IGNORED:
            raise NotImplementedError(f"{path}: the keyword {keyword}")
