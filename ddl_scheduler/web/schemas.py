# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
COUNT = {"type": "integer", "minimum": 0}
MAYBE_TEXT = {"type": ["string", "null"]}
MAYBE_NUMBER = {"type": ["number", "null"]}
MAYBE_COUNT = {"type": ["integer", "null"]}


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(of: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}}


_ERROR = object_schema(code=TEXT, message=TEXT)
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Error": object_schema(
        error={
            **_ERROR,
            "properties": {**_ERROR["properties"], "field": TEXT, "given": TEXT, "allowed": TEXT},
        }
    ),
    "Job": object_schema(
        id=COUNT,
        tenant=TEXT,
        name=TEXT,
        state=TEXT,
        tier=COUNT,
        min=COUNT,
        max=MAYBE_COUNT,
        slots={"type": "array", "items": TEXT},
        reason={**MAYBE_TEXT, "description": "why it has no slots, or has failed"},
        warning={**MAYBE_TEXT, "description": "warning about a deadline that will be missed"},
        arrival={**NUMBER, "description": "seconds since 1970"},
        changed={**MAYBE_NUMBER, "description": "when its slots last changed"},
        epoch={**COUNT, "description": "how often its slots changed"},
        slot_seconds={**NUMBER, "description": "slot-seconds used up to the last plan"},
        waited={**NUMBER, "description": "seconds without slots, up to the last plan"},
        step=MAYBE_COUNT,
        steps_total=MAYBE_COUNT,
        loss=MAYBE_NUMBER,
        seconds_per_step=MAYBE_NUMBER,
        spec={"type": "object"},
    ),
    "Jobs": object_schema(
        jobs=_list("Job"),
        next={**MAYBE_COUNT, "description": "value of `before` for the next page"},
    ),
    "Slot": object_schema(id=TEXT, host=TEXT, state=TEXT, job=MAYBE_COUNT),
    "Slots": object_schema(slots=_list("Slot")),
    "Tenant": object_schema(
        name=TEXT,
        cap=MAYBE_COUNT,
        guarantee=COUNT,
        weight=NUMBER,
        slots={**COUNT, "description": "slots that its jobs have now"},
        jobs={"type": "object", "additionalProperties": COUNT, "description": "number by state"},
        slot_hours=NUMBER,
        idle_share={
            **MAYBE_NUMBER,
            "description": "share of its slot time in which no worker took part in a step",
        },
    ),
    "Tenants": object_schema(tenants=_list("Tenant")),
    "Token": object_schema(token=TEXT),
    "Event": object_schema(id=COUNT, time=NUMBER, job=MAYBE_COUNT, text=TEXT),
    "Events": object_schema(events=_list("Event")),
    "Point": object_schema(
        time=NUMBER,
        step=MAYBE_COUNT,
        loss=MAYBE_NUMBER,
        workers=COUNT,
        seconds_per_step=MAYBE_NUMBER,
    ),
    "Report": object_schema(
        job={"$ref": "#/components/schemas/Job"},
        live={"type": ["object", "null"], "description": "the job's own report"},
        history=_list("Point"),
        events=_list("Event"),
    ),
    "Logs": object_schema(logs={"type": "array", "items": TEXT}),
    "Log": object_schema(
        text=TEXT, next={**COUNT, "description": "value of `offset` for the next part"}
    ),
    "Suspect": object_schema(
        host=TEXT,
        time={**NUMBER, "description": "of the last finding, in seconds since 1970"},
        job={**MAYBE_COUNT, "description": "whose audit has found a wrong worker there"},
        text=MAYBE_TEXT,
    ),
    "Overview": object_schema(
        slots=_list("Slot"),
        jobs=_list("Job"),
        tenants=_list("Tenant"),
        suspects={**_list("Suspect"), "description": "hosts that have computed wrongly"},
        problem={**MAYBE_TEXT, "description": "problem that prevents writing, such as a full disk"},
    ),
    "Anything": {"type": "object"},
}
