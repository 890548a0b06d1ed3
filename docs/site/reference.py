# SPDX-License-Identifier: Apache-2.0
"""Write the reference pages of the packages whose import needs a framework, from their sources.

Nothing is imported: a package's public names are those of its `__all__`, each is found by names.py,
and its signature and docstring are read from there.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import names

sys.path.append(str(names.ROOT / "tests"))
import adapter_list

PACKAGES = {
    name: title
    for adapter in adapter_list.ADAPTERS.values()
    for name, title in adapter.pages().items()
} | {"ddl_elastic": "Elastic training"}


def paragraphs(text: str) -> list[str]:
    """Return a docstring's lines. Docstrings are plain text: an aligned or indented paragraph stays
    as it is."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        if re.search(r"^ |\S {3,}\S", paragraph, re.MULTILINE):
            paragraph = "::\n\n" + re.sub(r"^", "    ", paragraph, flags=re.MULTILINE)
        out += [*paragraph.split("\n"), ""]
    return out


def write(folder: Path) -> None:
    """Write FOLDER/PACKAGE.rst for each package."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in PACKAGES.items():
        _write_if_new(folder / f"{name}.rst", page(name, title))


def page(name: str, title: str) -> str:
    """Return one package's page."""
    heading = f"{title}: {name}"
    return "\n".join([heading, "=" * len(heading), "", *module(name)]) + "\n"


def module(name: str) -> list[str]:
    """Return a module's docstring, and an entry for each of its public names; modules come last."""
    out = [f".. py:module:: {name}", "", *paragraphs(ast.get_docstring(names.tree(name)) or "")]
    if any(chooser.startswith(f"{name}.") for chooser, _ in names.CHOSEN):
        out += ["What is the backend's is shown as TensorFlow's adapter has it.", ""]
    inner = []
    for public in names.public(name):
        found = names.find(name, public)
        assert found, f"{name}.{public} is not found in the sources"
        if isinstance(found, names.Named):
            out += entry(found, public)
        elif isinstance(found, names.Value):
            out += value(public, found)
        else:
            inner.append(found.name)
    for each in inner:
        out += [each, "-" * len(each), "", *module(each)]
    return out


def value(name: str, found: names.Value) -> list[str]:
    """Return the entry of a constant, or of a name that another package explains."""
    says = f"That of {found.of}: ``{found.text}``." if found.of else f"``{found.text}``"
    return [f".. py:data:: {name}", "", f"    {says}", ""]


def entry(found: names.Named, name: str, inside: bool = False) -> list[str]:
    """Return the directive of a function, or of a class with its public methods and those of its
    bases."""
    node = found.node
    out: list[str]
    if isinstance(node, ast.FunctionDef):
        kind = "method" if inside else "function"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        out = [f".. py:{kind}:: {name}({_signature(node.args, inside)}){returns}", ""]
        body = [*parameters(node.args), *paragraphs(ast.get_docstring(node) or "")]
    else:
        first = names.method(found, "__init__")
        made = first.node.args if first and isinstance(first.node, ast.FunctionDef) else None
        signature = f"({_signature(made, True)})" if made else ""
        out = [f".. py:class:: {name}{signature}", ""]
        body = paragraphs(ast.get_docstring(node) or "")
        body += parameters(made) if made else []
        methods = [
            part.name
            for each in (found, *names.bases(found))
            for part in each.node.body
            if isinstance(part, ast.FunctionDef) and part.name[0] != "_"
        ]
        for part in dict.fromkeys(methods):
            method = names.method(found, part)
            assert method
            body += entry(method, part, True)
    return [*out, *("    " + line if line else "" for line in body), ""]


def parameters(arguments: ast.arguments) -> list[str]:
    """Return a table of the parameters, with types and defaults; nothing if there are none."""
    rows = []
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in pairs:
        if argument.arg in ("self", "cls"):
            continue
        kind = f"``{ast.unparse(argument.annotation)}``" if argument.annotation else ""
        value = f"``{ast.unparse(default)}``" if default else "required"
        rows += [f"    * - ``{argument.arg}``", f"      - {kind}", f"      - {value}"]
    if not rows:
        return []
    head = [".. list-table::", "    :header-rows: 1", ""]
    return [*head, "    * - parameter", "      - type", "      - default", *rows, ""]


def _signature(arguments: ast.arguments, method: bool) -> str:
    text = ast.unparse(arguments)
    return re.sub(r"^(self|cls)(, )?", "", text) if method else text


def _write_if_new(path: Path, text: str) -> None:
    """Sphinx reads files again that are newer than its last reading."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
