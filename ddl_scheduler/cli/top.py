# SPDX-License-Identifier: Apache-2.0
"""`ddl top`: shows the cluster in a terminal. Uses rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddl_scheduler.base.text import printable_line, sizes_text

_COLORS = ("green", "magenta", "cyan", "yellow", "blue", "red")
_MARKS = {"free": ("·", "bright_black"), "lost": ("x", "bold red"), "draining": ("~", "yellow")}
_STATES = {"running": "green", "waiting": "yellow", "failed": "red"}
_JOBS = ("job", "name", "tenant", "state", "tier", "slots", "step", "loss", "reason")


def print_once(overview: Any) -> None:
    """Print the overview to stdout."""
    Console().print(_shown(overview))


def watch(overviews: Iterable[Any]) -> None:
    """Show each overview when it is received, until there are no more."""
    with Live(auto_refresh=False, screen=True) as live:
        for overview in overviews:
            live.update(_shown(overview), refresh=True)


def _shown(overview: Any) -> Group:
    problem = overview.get("problem")
    text = f"the service cannot write: {printable_line(problem)}" if problem else ""
    return Group(
        *([Text(text, "bold red")] if problem else []),
        _slots(overview["slots"], {each["host"] for each in overview["suspects"]}),
        Text(),
        _jobs(overview["jobs"]),
        Text(),
        *_tenants(overview),
    )


def _slots(slots: list[Any], suspects: set[str]) -> Text:
    """Return a line for each host, with a mark for each slot."""
    hosts: dict[str, list[Any]] = {}
    for slot in slots:
        hosts.setdefault(slot["host"], []).append(slot)
    width = max(map(len, hosts), default=0)
    text = Text(no_wrap=True)
    for host, own in hosts.items():
        text.append(f"{printable_line(host):{width}} ")
        for slot in own:
            job = slot["job"]
            mark, color = _MARKS.get(slot["state"], ("#", "white"))
            text.append(mark if job is None else "#", color if job is None else _color(job))
        if host in suspects:
            text.append("  computes wrongly, as an audit has found", "bold red")
        text.append("\n")
    for host in sorted(suspects - hosts.keys()):
        name = printable_line(host)
        text.append(f"{name}  computes wrongly, as an audit has found\n", "bold red")
    used = sum(slot["state"] not in ("free", "lost") for slot in slots)
    text.append(f"{used} of {len(slots)} slots in use")
    return text


def _jobs(jobs: list[Any]) -> Table:
    table = Table(*_JOBS, box=None, pad_edge=False)
    for job in jobs:
        why = "; ".join(filter(None, (job["reason"], job["warning"])))
        step = "" if job["step"] is None else str(job["step"])
        loss = "" if job["loss"] is None else f"{job['loss']:.4g}"
        number = Text(str(job["id"]), _color(job["id"]) if job["slots"] else "")
        state = Text(job["state"], _STATES.get(job["state"], ""))
        table.add_row(
            *(number, _text(job["name"]), _text(job["tenant"]), state),
            *(
                str(job["tier"]),
                sizes_text(len(job["slots"]), job["min"], job["max"]),
                step,
                loss,
                _text(why),
            ),
        )
    return table


def _tenants(overview: Any) -> Iterator[Text]:
    for tenant in overview["tenants"]:
        idle = tenant["idle_share"]
        share = "" if idle is None else f", {100 * idle:.0f} % of it idle"
        cap = "" if tenant["cap"] is None else f" of {tenant['cap']}"
        name = printable_line(tenant["name"])
        yield Text(f"{name}: {tenant['slots']}{cap} slots; {tenant['slot_hours']:.2f} h{share}")


def _text(text: str) -> Text:
    """Return the text as rich's Text, in which markup has no effect."""
    return Text(printable_line(text))


def _color(job: int) -> str:
    return _COLORS[job % len(_COLORS)]
