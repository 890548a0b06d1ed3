# SPDX-License-Identifier: Apache-2.0
"""The pages for a browser. They fetch their data from the REST interface, with the session's
cookie."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jinja2
import plotly
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ddl_scheduler.base.text import printable_line
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.service import AppContext
from ddl_scheduler.web.sessions import Caller

_HERE = Path(__file__).parent
_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_CACHED = {"cache-control": "max-age=86400"}


def routes(service: AppContext) -> list[BaseRoute]:
    """Return the routes of the pages and of the files that they load."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True
    )

    def page(file: str, status: int = 200, **values: object) -> Response:
        text = templates.get_template(file).render(plotly=plotly.__version__, **values)
        return HTMLResponse(text, status)

    async def caller_of(request: Request) -> Caller | None:
        try:
            return await service.sessions.find(request)
        except HttpError as error:
            if error.status == 401:  # the session's token was revoked
                return None
            raise

    async def overview(request: Request) -> Response:
        caller = await caller_of(request)
        return page("overview.html", caller=caller) if caller else RedirectResponse("/login", 303)

    async def job(request: Request) -> Response:
        caller = await caller_of(request)
        if caller is None:
            return RedirectResponse("/login", 303)
        record = await service.job(min(request.path_params["job"], 1 << 53), caller.sees)
        name = printable_line(str(record.spec.get("name") or f"job-{record.id}"))
        return page("job.html", caller=caller, job=record, name=name)

    async def login(request: Request) -> Response:
        if request.method != "POST":
            return page("login.html")
        _check_origin(request)
        fields = parse_qs((await request.body()).decode(errors="replace"))
        token = fields.get("token", [""])[0].strip()
        if not await service.sessions.look_up(token):
            return page("login.html", 401, error="This token is unknown or was revoked.")
        response = RedirectResponse("/", 303)
        service.sessions.begin(token, response)
        return response

    async def logout(request: Request) -> Response:
        _check_origin(request)
        response = RedirectResponse("/login", 303)
        service.sessions.end(request, response)
        return response

    async def plots(_: Request) -> Response:
        return FileResponse(_PLOTLY, media_type="text/javascript", headers=_CACHED)

    return [
        Route("/", overview),
        Route("/jobs/{job:int}", job),
        Route("/login", login, methods=["GET", "POST"]),
        Route("/logout", logout, methods=["POST"]),
        Route("/static/plotly-{version}.js", plots),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]


def _check_origin(request: Request) -> None:
    """Check that this site's own page sent the form. Raises HttpError."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin is not None and urlsplit(origin).netloc != request.headers["host"]:
        raise HttpError(403, message=f"the form was sent by {origin[:100]}, not by this site")
    if site not in ("same-origin", "none"):
        raise HttpError(403, message=f"the form was sent {site}")
