"""Horovod's API over libddl: what docs/horovod.md says of the names in Horovod's documentation,
which horovod_names.txt lists. Their values: programs/horovod_*.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent.parent / "docs" / "horovod.md"
MODULES = ("torch", "tensorflow", "tensorflow.keras", "keras")
ROW = re.compile(
    r"^\| `([\w.]+)(\([^)]*\))?` \| ([\w., ]+) \| (served|differs|not served) \|", re.M
)
EXTRA = {"is_homogeneous", "get_process_set_ids_and_ranks"}
SIGNATURES = """
import importlib, inspect, json, sys
module = importlib.import_module(f"ddl_horovod.{sys.argv[1]}")
try:
    module.elastic.run
except NotImplementedError as error:
    assert "Use ddl_elastic" in str(error)
else:
    raise AssertionError("elastic is not served")
values = {name: getattr(module, name) for name in module.__all__}
del values["elastic"]
callbacks = values.pop("callbacks", None)
for name in getattr(callbacks, "__all__", ()):
    values[f"callbacks.{name}"] = getattr(callbacks, name)
stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
def arguments(value):
    if not callable(value) or isinstance(value, type) and issubclass(value, BaseException):
        return []
    return [stars.get(p.kind, "") + p.name for p in inspect.signature(value).parameters.values()]
print(json.dumps({name: arguments(value) for name, value in values.items()}))
"""


def documented() -> set[tuple[str, str, str]]:
    """Each module, name and arguments that Horovod's documentation has."""
    lines = (FOLDER / "horovod_names.txt").read_text().splitlines()[1:]
    names = [re.fullmatch(r"(\S+) ([\w.]+)(.*)", line) for line in lines]
    return {(each[1], each[2], each[3]) for each in names if each}


def page() -> dict[tuple[str, str, str], str]:
    """The state of each module, name and arguments in the page."""
    return {
        (module, name, arguments): state
        for name, arguments, modules, state in ROW.findall(PAGE.read_text())
        for module in (MODULES if modules == "all" else modules.split(", "))
    }


def test_page_lists_what_horovod_documents() -> None:
    states = page()
    assert set(states) == documented()
    counts = {state: list(states.values()).count(state) for state in set(states.values())}
    said = re.search(
        r"the (\d+) names .*: (\d+) are served, (\d+) differ and (\d+) are not",
        PAGE.read_text(),
        re.S,
    )
    assert said is not None
    assert [int(each) for each in said.groups()] == [
        *(len(states), counts["served"], counts["differs"], counts["not served"])
    ]
    assert counts["served"] >= 0.92 * len(states)


@pytest.mark.usefixtures("torch_native", "tensorflow_native")
@pytest.mark.parametrize("module", MODULES)
def test_modules_have_what_the_page_says(run_program: Run, tmp_path: Path, module: str) -> None:
    """In a process of its own, since frameworks start threads."""
    ended = run_program([sys.executable, "-c", SIGNATURES, module], cwd=tmp_path).expect_success()
    has: dict[str, list[str]] = json.loads(ended.out)
    served = {n: a for (m, n, a), s in page().items() if m == module and s != "not served"}
    assert set(served) <= set(has) <= {*served, *EXTRA}
    for name, arguments in served.items():
        listed = [each for each in arguments.strip("()").split(", ") if each]
        assert has[name][: len(listed)] == listed, name


@pytest.mark.usefixtures("torch_native", "tensorflow_native")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("program", "parts"), [("torch", 14), ("tensorflow", 15), ("keras", 9)])
def test_values(ddlrun: Run, program: str, parts: int, size: int) -> None:
    path = FOLDER / "programs" / f"horovod_{program}.py"
    ended = ddlrun(size, path, env={"TF_CPP_MIN_LOG_LEVEL": "2"}, limit=300).expect_success()
    assert ended.out.count("done ") == parts * size, ended.out
