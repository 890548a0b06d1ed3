# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, generated from the operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from ddl_scheduler.base.requests import Schema
from ddl_scheduler.web.operations import (
    OPERATIONS,
    CheckedRequest,
    RestOperation,
    answer,
    operation,
)
from ddl_scheduler.web.schemas import SCHEMAS

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


@operation("GET", "/v1/openapi.json", {200: "Anything"}, role=None)
async def openapi_get(_: CheckedRequest) -> Response:
    """Return this document."""
    return answer(document(OPERATIONS))


def document(operations: Iterable[RestOperation]) -> dict[str, Any]:
    """Return the OpenAPI document for these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ddl serve",
            "version": "1",
            "description": "Elastic jobs on one cluster. Times are in seconds since 1970.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(each: RestOperation) -> dict[str, Any]:
    role = f" Needs the role {each.role}." if each.role else ""
    found: dict[str, Any] = {
        "operationId": each.run.__name__,
        "summary": each.summary,
        "description": each.summary + role,
        "parameters": [
            *_parameters("path", each.parameters),
            *_parameters("query", each.query),
            *_parameters("header", each.headers),
        ],
        "responses": {
            **{str(status): _answer(each, name) for status, name in each.answers.items()},
            "4XX": {"description": "what to change", "content": _ERROR},
        },
    }
    if each.body is not None:
        content = {"application/json": {"schema": each.body}}
        found["requestBody"] = {"required": True, "content": content}
    if each.role is None:
        found["security"] = []
    return found


def _parameters(where: str, schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": where, "required": where == "path", "schema": schema}
        for name, schema in schemas.items()
    ]


def _answer(each: RestOperation, name: str) -> dict[str, Any]:
    if name:
        content = {each.kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        return {"description": name, "content": content}
    if 204 in each.answers:
        return {"description": "done"}
    return {"description": each.kind, "content": {each.kind: {}}}
