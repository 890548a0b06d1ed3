# SPDX-License-Identifier: Apache-2.0
"""Requests to the scheduler: a job's specification, and the checks of each value. Pure.

A schema, a small part of JSON Schema, describes each value. The OpenAPI document publishes the same
schemas that check the requests, so that both always agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Schema = Mapping[str, object]

MOST = 4096  # the most slots of a job, and the most logical workers
TIERS = 9
SHOWN = 100  # characters of a wrong value that a message repeats
NAME = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    "description": "up to 64 letters, digits and _.-, the first one a letter or digit",
}
_TEXT = {"type": "string", "maxLength": 4096, "pattern": "^[^\\u0000]*$"}
_BYTES = {"type": "integer", "minimum": 0, "maximum": 1 << 50}
_OWN = ("DDL_SECRET", "DDL_ELASTIC_", "DDL_WITNESS")  # variables that only the service sets

SIZES: Mapping[str, Schema] = {
    "min": {
        "type": "integer",
        "minimum": 0,
        "maximum": MOST,
        "description": "slots that the job needs; 0 lets the service pause it for other jobs",
    },
    "max": {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST,
        "description": "slots that the job can use",
    },
}
JOB: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["command"],
    "properties": {
        "command": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1024,
            "items": _TEXT,
            "description": "the program and its arguments; no shell reads them",
        },
        **SIZES,
        "tier": {
            "type": "integer",
            "minimum": 0,
            "maximum": TIERS,
            "description": "higher tiers get slots first",
        },
        "weight": {
            "type": "number",
            "minimum": 0.001,
            "maximum": 1000,
            "description": "the job's share among its tenant's jobs",
        },
        "threads": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1024,
            "description": "threads of each worker's framework",
        },
        "memory": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "required": ["fixed", "gradient"],
            "properties": {"fixed": _BYTES, "gradient": _BYTES},
            "description": "bytes that a worker needs, and bytes of one gradient",
        },
        "logical": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MOST,
            "description": "logical workers, if known before the program starts",
        },
        "batch": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 1 << 40,
            "description": "samples in a step; a multiple of logical",
        },
        "deadline": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1e11,
            "description": "time by which the job should end, in seconds since 1970",
        },
        "environment": {
            "type": "object",
            "maxProperties": 256,
            "additionalProperties": _TEXT,
            "propertyNames": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"},
            "description": "variables for the program",
        },
        "folder": {
            "type": ["string", "null"],
            "maxLength": 4096,
            "pattern": "^/[^\\u0000]*$",
            "description": "absolute path of the folder in which the program runs",
        },
        "name": {**NAME, "type": ["string", "null"]},
    },
}


class RequestError(ValueError):
    """A wrong value in a request. The message names the field, the value and the allowed values."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field, self.allowed = field, allowed
        text = repr(given)
        self.given = text if len(text) <= SHOWN else text[:SHOWN] + "..."
        super().__init__(f"{field} is {self.given}; allowed: {allowed}")


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job: its program, and its claims on the cluster."""

    command: tuple[str, ...]
    least: int = 1  # slots; 0 means that the service may pause the job for other jobs
    most: int = MOST
    tier: int = 0
    weight: float = 1.0
    threads: int = 1
    # Bytes: "fixed" for a worker, "gradient" for one gradient.
    memory: Mapping[str, int] | None = None
    logical: int | None = None  # the number of logical workers, if known before the program starts
    batch: int | None = None
    deadline: float | None = None  # seconds since 1970
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  # None means the job's folder in the service
    name: str = ""

    def fields(self) -> dict[str, object]:
        """Return the fields in the form that requests and the store use. `spec_read` reads this
        form."""
        return {
            "command": list(self.command),
            "min": self.least,
            "max": self.most,
            "tier": self.tier,
            "weight": self.weight,
            "threads": self.threads,
            "memory": dict(self.memory) if self.memory else None,
            "logical": self.logical,
            "batch": self.batch,
            "deadline": self.deadline,
            "environment": dict(self.environment),
            "folder": self.folder,
            "name": self.name,
        }


def spec_read(fields: object) -> JobSpec:
    """Return the specification in the fields of a request or of the store. Raises RequestError."""
    if isinstance(fields, Mapping):
        fields = {name: value for name, value in fields.items() if name != ASKED}
    given = check(JOB, fields)
    assert isinstance(given, dict)
    command = tuple(given["command"])
    if not command[0]:
        raise RequestError("command[0]", "", "the program to run, as in ['python', 'train.py']")
    least, most = sizes_read({**given, "min": given.get("min", 1)}, MOST)
    logical, batch = given.get("logical"), given.get("batch")
    if logical and batch and batch % logical:
        raise RequestError("batch", batch, f"a multiple of logical={logical}")
    environment = given.get("environment", {})
    for variable in environment:
        if variable.startswith(_OWN):
            raise RequestError(
                f"environment.{variable}",
                "set",
                "only variables that the service does not set itself",
            )
    return JobSpec(
        command=command,
        least=least,
        most=most,
        tier=given.get("tier", 0),
        weight=given.get("weight", 1.0),
        threads=given.get("threads", 1),
        memory=given.get("memory"),
        logical=logical,
        batch=batch,
        deadline=given.get("deadline"),
        environment=environment,
        folder=given.get("folder"),
        name=given.get("name") or _name(command),
    )


ASKED = "asked"  # the key in a stored specification for the sizes that were submitted


def sizes_read(fields: Mapping[str, int], most: int) -> tuple[int, int]:
    """Return minimum and maximum. `most` is the default of the maximum. Raises RequestError."""
    least, high = fields["min"], fields.get("max", most)
    if least > high:
        raise RequestError("min", least, f"at most max={high}")
    return least, high


def _name(command: Sequence[str]) -> str:
    """Return the program's file name, without the characters that a name may not have."""
    program = next((part for part in command if part.endswith(".py")), command[0])
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", program.rpartition("/")[2])[:64].lstrip("_.-")
    return name or "job"


# ---- values by schemas ----

_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def check(schema: Schema, value: object, where: str = "") -> object:
    """Return the value if it matches the schema. Raises RequestError, which names the value
    `where`."""
    kinds = schema["type"]
    kinds = [kinds] if isinstance(kinds, str) else list(_list(kinds))
    if isinstance(value, float) and value.is_integer() and "integer" in kinds:
        value = int(value)
    kind = next((each for each in kinds if _is(str(each), value)), None)
    if kind is None or ("enum" in schema and value not in _list(schema["enum"])):
        raise RequestError(where or "body", value, allowed(schema))
    if isinstance(value, str):
        _check_text(schema, value, where)
    elif kind in ("integer", "number"):
        assert isinstance(value, int | float)
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        above = schema.get("exclusiveMinimum", -math.inf)
        assert isinstance(low, int | float) and isinstance(high, int | float)
        assert isinstance(above, int | float)
        if not low <= value <= high or value <= above:
            raise RequestError(where, value, allowed(schema))
    elif isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        assert isinstance(least, int) and isinstance(most, int | float)
        if not least <= len(value) <= most:
            raise RequestError(where, f"{len(value)} items", allowed(schema))
        items = _schema(schema["items"])
        return [check(items, each, f"{where}[{number}]") for number, each in enumerate(value)]
    elif isinstance(value, dict):
        return _check_object(schema, value, where)
    return value


def _check_text(schema: Schema, value: str, where: str) -> None:
    longest, pattern = schema.get("maxLength", math.inf), schema.get("pattern", "")
    assert isinstance(longest, int | float) and isinstance(pattern, str)
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise RequestError(where, value, "text of whole characters, without lone surrogates")
    if len(value) > longest or (pattern and not re.fullmatch(pattern, value)):
        raise RequestError(where, value, allowed(schema))


def _check_object(schema: Schema, value: dict[str, object], where: str) -> dict[str, object]:
    properties, others = _schema(schema.get("properties", {})), schema["additionalProperties"]
    most = schema.get("maxProperties", math.inf)
    assert isinstance(most, int | float)
    if len(value) > most:
        raise RequestError(where, f"{len(value)} entries", allowed(schema))
    for name in _list(schema.get("required", [])):
        if name not in value:
            raise RequestError(str(name), "missing", allowed(_schema(properties[str(name)])))
    checked: dict[str, object] = {}
    for name, each in value.items():
        inner = f"{where}.{name}" if where else name
        if name in properties:
            checked[name] = check(_schema(properties[name]), each, inner)
        elif others is False:
            raise RequestError(name[:SHOWN], each, f"only the fields {', '.join(properties)}")
        else:
            check(_schema(schema["propertyNames"]), name, f"a name in {where}")
            checked[name] = check(_schema(others), each, inner)
    return checked


def allowed(schema: Schema) -> str:
    """Describe in words the values that a schema allows."""
    kinds = schema["type"]
    parts = [" or ".join(map(str, [kinds] if isinstance(kinds, str) else _list(kinds)))]
    if "enum" in schema:
        parts = [" or ".join(map(str, _list(schema["enum"])))]
    if "minimum" in schema or "maximum" in schema:
        parts.append(f"from {schema.get('minimum')} to {schema.get('maximum')}")
    if "exclusiveMinimum" in schema:
        parts.append(f"above {schema['exclusiveMinimum']}")
    if "maxLength" in schema:
        parts.append(f"up to {schema['maxLength']} characters")
    if "minItems" in schema:
        parts.append(f"{schema['minItems']} to {schema['maxItems']} items")
    if "maxProperties" in schema:
        parts.append(f"up to {schema['maxProperties']} entries")
    text = " ".join(parts)
    return f"{text}: {schema['description']}" if "description" in schema else text


def _is(kind: str, value: object) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES[kind])  # type: ignore[arg-type]


def _list(value: object) -> Sequence[object]:
    assert isinstance(value, Sequence)
    return value


def _schema(value: object) -> Schema:
    assert isinstance(value, Mapping)
    return value
