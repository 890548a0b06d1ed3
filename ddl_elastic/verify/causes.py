# SPDX-License-Identifier: Apache-2.0
"""The likely causes of a difference: the hidden state that differed before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddl_elastic.hidden.checks import advise
from ddl_elastic.verify.compare import BATCH, GRADIENT, Difference
from ddl_elastic.verify.records import RunRecords

# For each kind of difference, the places of hidden state that may cause it, likeliest first.
_ROOMS = {
    BATCH: ("data", "program", "model", "callbacks"),
    GRADIENT: ("model", "program", "callbacks", "data"),
}
_OTHER_ROOMS = ("program", "callbacks", "model", "data")
_KINDS = ("generator", "stateful", "tensor", "position", "container", "number", "text")
_MOST = 3  # maximum number of causes in a message


@dataclass(frozen=True)
class Cause:
    """The likely cause of a difference, and advice on how to remove it.

    where  the line of the program, or "" if it was not found
    """

    text: str
    advice: str
    where: str = ""

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        return f"{self.text}{at}. {self.advice}."


def find_hidden(difference: Difference) -> list[Cause]:
    """Return the hidden state that differed when the difference began, the likeliest first."""
    key = difference.key
    before = _at(difference.reference.hidden, key), _at(difference.other.hidden, key)
    places = {**difference.other.places, **difference.reference.places}
    names = [each for each in places if before[0].get(each) != before[1].get(each)]
    rooms = _ROOMS.get(difference.what, _OTHER_ROOMS)
    names.sort(key=lambda each: _rank(each, places[each], rooms))
    return [_hidden_cause(each, places[each]) for each in names[:_MOST]]


def _at(hidden: Mapping[tuple[int, ...], dict[str, str]], key: tuple[int, ...]) -> dict[str, str]:
    return hidden.get(key, {})


def _rank(name: str, place: Mapping[str, str], rooms: tuple[str, ...]) -> tuple[int, int, int]:
    room = name.split(":", 1)[0]
    # A value that the program itself never changes has no line.
    return rooms.index(room), _KINDS.index(place["kind"]), not place["where"]


def _hidden_cause(full: str, place: Mapping[str, str]) -> Cause:
    room, name = full.split(":", 1)
    kind, owner, where = place["kind"], place["owner"], place["where"]
    short = place["class"].split(".")[-1]
    field = name.rsplit(".", 1)[-1]
    if kind == "generator":
        text = f"a private generator: {name}, a {place['class']}"
    elif room == "model":
        text = f"{name}, a {short}, is an attribute of {owner} that is not a buffer"
    elif room == "data":
        text = (
            f"{name}, a {short}, is an attribute of {owner} that depends on which samples this"
            " process has read before"
        )
    elif room == "callbacks":
        text = f"{name} is a state of a callback, and not part of the job's state"
    else:
        what = f"an object of class {short}" if kind == "stateful" else f"a {short}"
        text = f"{name}, {what} of {owner}, is a state that is not in also="
    return Cause(text, advise(room, kind, field), where)


def find_irreproducible(run: RunRecords, again: RunRecords) -> list[Cause]:
    """Return the reasons why two equal runs of one worker differ, such as the clock."""
    found = list(_clock_causes(run))
    one, two = run.workers[0], again.workers[0]
    first, second = (next(iter(each.hidden.values()), {}) for each in (one, two))
    for name, place in {**one.places, **two.places}.items():
        if place["kind"] == "generator" and first.get(name) != second.get(name):
            cause = _hidden_cause(name, place)
            text = f"{cause.text}, which starts with another seed in each run"
            found.insert(0, Cause(text, cause.advice, cause.where))
    seeds = (each.seeds[0] if each.seeds else {} for each in (one, two))
    if not found:
        found += map(_unseeded_cause, _differing(*seeds))
    return found or [
        Cause(
            "two equal runs differ: something depends on the time, on the process, or on random"
            " numbers of the system",
            "Look for the clock, for os.getpid, and for generators without a seed",
        )
    ]


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [name for name in one if one[name] != other.get(name)]


def _unseeded_cause(name: str) -> Cause:
    return Cause(
        f"the generator of {name} is not seeded when the job begins",
        "Seed it at the start of the program",
    )


def _clock_causes(run: RunRecords) -> Iterator[Cause]:
    calls = sorted(
        (each for worker in run.workers for each in worker.clocks),
        key=lambda each: not each["in_share"],
    )
    for each in calls[:1]:
        what = {
            "os.getpid": "the process id",
            "os.urandom": "random numbers of the system",
        }.get(each["clock"], "the time")
        yield Cause(
            f"a result depends on {what}: the program calls {each['clock']}",
            "Draw from the generators, which are seeded for each sample, share and step",
            each["where"],
        )


def threads_cause(threads: tuple[str, str]) -> Cause:
    """Return the cause for runs that differed in the number of threads."""
    return Cause(
        f"the number of threads: it was {threads[0]} in one run and {threads[1]} in another",
        "Give the number as threads= to the job, and do not set it by the number of cores",
    )


def set_cause(lines: list[str]) -> Cause:
    """Return the cause for a result that depends on PYTHONHASHSEED."""
    return Cause(
        "the order of a set, or hash() of a text, which PYTHONHASHSEED changes (`ddl elastic run`"
        " sets it to 0, other ways to start the workers do not)",
        "Sort what comes from a set; use hashlib or zlib.crc32 instead of hash()",
        ", ".join(lines),
    )


def unknown_cause() -> Cause:
    """Return the cause to report if no hidden state differed."""
    return Cause(
        "unknown: no attribute, generator or variable of the program differs",
        "Look for state in libraries, in files, and in global objects",
    )
