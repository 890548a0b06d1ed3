# SPDX-License-Identifier: Apache-2.0
"""The operations of the REST interface. Their declarations define the checks, the routes and the
OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ddl_scheduler.base.requests import RequestError, Schema, check
from ddl_scheduler.web.errors import HttpError, refused_by
from ddl_scheduler.web.service import AppContext
from ddl_scheduler.web.sessions import Caller, no_token

LARGEST = (1 << 53) - 1  # the largest integer that JavaScript reads exactly


@dataclass(frozen=True)
class CheckedRequest:
    """A request that has passed all checks."""

    service: AppContext
    caller: Caller
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Any
    request: Request


Handler = Callable[[CheckedRequest], Awaitable[Response]]


@dataclass(frozen=True)
class RestOperation:
    """The declaration of an operation: its request, the role that it needs, and its answers."""

    method: str
    path: str
    role: str | None  # the role that it needs; None means that no token is needed
    summary: str
    run: Handler
    parameters: Mapping[str, Schema]  # path parameters
    query: Mapping[str, Schema]
    body: Schema | None
    answers: Mapping[int, str]  # by status: the name of the answer's schema; "" means text
    kind: str  # media type of the answers
    headers: Mapping[str, Schema]


OPERATIONS: list[RestOperation] = []
_PARAMETERS: Mapping[str, Schema] = {
    "job": {"type": "integer", "minimum": 1, "maximum": LARGEST, "description": "a job's number"},
    "tenant": {
        "type": "string",
        "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        "description": "a tenant's name",
    },
    "log": {
        "type": "string",
        "pattern": "^(job|worker[0-9]{1,6})$",
        "description": "job, or workerN with a worker's number",
    },
}


@dataclass(frozen=True)
class operation:
    """A decorator that declares an operation."""

    method: str
    path: str
    answers: Mapping[int, str]
    role: str | None = "viewer"
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    kind: str = "application/json"
    headers: Mapping[str, Schema] = field(default_factory=dict)

    def __call__(self, run: Handler) -> Handler:
        summary = " ".join((run.__doc__ or "").split())
        names = re.findall(r"{(\w+)}", self.path)
        parameters = {name: _PARAMETERS[name] for name in names}
        OPERATIONS.append(
            RestOperation(
                *(self.method, self.path, self.role, summary, run, parameters),
                *(self.query, self.body, self.answers, self.kind, self.headers),
            )
        )
        return run


async def serve(operation: RestOperation, service: AppContext, request: Request) -> Response:
    """Check the request, and run the operation. Raises HttpError."""
    caller = await service.sessions.find(request)
    if operation.role is not None:
        if caller is None:
            raise no_token("the request has no token")
        if not caller.may(operation.role):
            raise HttpError(
                403,
                message=f"this needs the role {operation.role}; the token's is {caller.role}",
            )
    try:
        path = {
            name: check(schema, _parsed(schema, request.path_params[name]), name)
            for name, schema in operation.parameters.items()
        }
        query = _query(operation, request)
        for name, schema in operation.headers.items():
            if name in request.headers:
                check(schema, request.headers[name], name)
        body = None
        if operation.body is not None:
            body = check(operation.body, await _json(request))
        nobody = Caller("", "viewer", "")
        return await operation.run(
            CheckedRequest(service, caller or nobody, path, query, body, request)
        )
    except RequestError as error:
        raise refused_by(error) from None


def _query(operation: RestOperation, request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        there = ", ".join(operation.query) or "none"
        if name not in operation.query:
            raise RequestError(f"parameter {name[:100]}", text, f"only the parameters {there}")
        if name in found:
            raise RequestError(f"parameter {name}", text, "one value")
        schema = operation.query[name]
        found[name] = check(schema, _parsed(schema, text), f"parameter {name}")
    return found


def _parsed(schema: Schema, text: str) -> object:
    """Convert a parameter to the schema's type, or return it unchanged if that fails."""
    if schema["type"] == "integer" and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return text


async def _json(request: Request) -> object:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "the content-type header", kind, "application/json")
    try:
        return json.loads(await request.body(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, message=f"the body is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return JSONResponse(value, status, headers)
