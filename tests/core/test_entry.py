# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends ddlrun and ddl without a traceback while they import their modules."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
import ddl_launch.entry

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                print("importing", flush=True)
                time.sleep(60)
            except BaseException as error:  # as classes and enums do that are made meanwhile
                raise RuntimeError("not imported") from error

sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(ddl_launch.entry.{command}())
"""


@pytest.mark.parametrize(
    ("command", "module"), [("ddlrun", "ddl_launch.arguments"), ("ddl", "ddl_core.endpoint")]
)
def test_interrupted_import_has_no_traceback(command: str, module: str) -> None:
    text = PROGRAM.format(module=module, command=command)
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, f"{command}: interrupted\n")
