# SPDX-License-Identifier: Apache-2.0
"""Error responses, always as JSON that states what to change."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from ddl_scheduler.base.requests import RequestError

_NAMES = {
    400: "bad request",
    401: "no valid token",
    403: "not permitted",
    404: "not found",
    405: "method not allowed",
    408: "too slow",
    409: "conflict",
    413: "too large",
    415: "not JSON",
    429: "too many requests",
    507: "no room",
}


class HttpError(Exception):
    """An error response to a request.

    status   400 and above
    field    the wrong field; "" if the error is not about a field
    given    the value of the wrong field
    allowed  the allowed values of the field
    message  the message, if there is no field
    """

    def __init__(
        self,
        status: int,
        field: str = "",
        given: object = None,
        allowed: str = "",
        *,
        message: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.headers = status, dict(headers or {})
        self.fields: dict[str, str] = {}
        if field:
            error = RequestError(field, given, allowed)
            self.fields = {"field": error.field, "given": error.given, "allowed": error.allowed}
            message = str(error)
        super().__init__(message)


def refused_by(error: RequestError, status: int = 400) -> HttpError:
    """Return the error response for a wrong value."""
    refused = HttpError(status, message=str(error))
    refused.fields = {"field": error.field, "given": error.given, "allowed": error.allowed}
    return refused


def refusal(refused: HttpError) -> Response:
    """Return the response for an error."""
    error = {"code": _NAMES[refused.status], "message": str(refused), **refused.fields}
    return JSONResponse({"error": error}, refused.status, refused.headers)
