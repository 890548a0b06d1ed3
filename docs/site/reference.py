# SPDX-License-Identifier: Apache-2.0
"""Write the reference pages of the packages whose import needs a framework, from their sources.

Nothing is imported: a package's public names are those of its `__all__`, each is looked up in the
modules of the package, and its signature and docstring are read from there. An adapter's name may
be a method of its world (`init = _world.init`); then it is looked up in the classes of worlds.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGES = {
    "ddl_torch": ("PyTorch", "adapters/ddl_torch"),
    "ddl_tensorflow": ("TensorFlow", "adapters/ddl_tensorflow"),
    "ddl_keras": ("Keras", "adapters/ddl_keras"),
    "ddl_jax": ("JAX", "adapters/ddl_jax"),
    "ddl_chainer": ("Chainer", "adapters/ddl_chainer"),
    "ddl_pytensor": ("PyTensor, Aesara, Theano", "adapters/ddl_pytensor"),
    "ddl_caffe": ("Caffe", "adapters/ddl_caffe"),
    "ddl_mlx": ("MLX", "adapters/ddl_mlx"),
    "ddl_mxnet": ("MXNet", "adapters/ddl_mxnet"),
    "ddl_paddle": ("PaddlePaddle", "adapters/ddl_paddle"),
    "ddl_tinygrad": ("tinygrad", "adapters/ddl_tinygrad"),
    "ddl_horovod.torch": ("Horovod's API", "adapters/ddl_horovod/torch"),
    "ddl_horovod.tensorflow": ("Horovod's API", "adapters/ddl_horovod/tensorflow"),
    "ddl_horovod.tensorflow.keras": ("Horovod's API", "adapters/ddl_horovod/tensorflow/keras"),
    "ddl_elastic": ("Elastic training", "ddl_elastic"),
}
SHARED = ("ddl_core/adapter.py", "ddl_core/adapter_arrays.py")  # what adapters build on
WORLDS = ("World", "ArrayWorld")

Definition = ast.FunctionDef | ast.ClassDef


def paragraphs(text: str) -> list[str]:
    """A docstring's lines. Docstrings are plain text: an aligned or indented paragraph stays as it
    is."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        if re.search(r"^ |\S {3,}\S", paragraph, re.MULTILINE):
            paragraph = "::\n\n" + re.sub(r"^", "    ", paragraph, flags=re.MULTILINE)
        out += [*paragraph.split("\n"), ""]
    return out


def write(root: Path, folder: Path) -> None:
    """Write FOLDER/PACKAGE.rst for each package."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, path) in PACKAGES.items():
        _write_if_new(folder / f"{name}.rst", page(name, title, root, root / path))


def page(name: str, title: str, root: Path, folder: Path) -> str:
    """One package's page."""
    package = ast.parse((folder / "__init__.py").read_text())
    shared = {
        node.name: node
        for path in SHARED
        for node in ast.parse((root / path).read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    found = {**of_worlds(shared, folder), **definitions(folder)}
    for node in found.values():
        inherit_init(node, shared)
    heading = f"{title}: {name}"
    out = [heading, "=" * len(heading), "", f".. py:module:: {name}", ""]
    out += paragraphs(ast.get_docstring(package) or "")
    absent = []
    for public in public_names(package):
        if public in found:
            out += entry(found[public])
        else:
            absent.append(public)
    if absent:
        out += ["Also: " + ", ".join(f"``{n}``" for n in absent) + ".", ""]
    return "\n".join(out) + "\n"


def public_names(package: ast.Module) -> list[str]:
    """The names in `__all__`."""
    for node in package.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def definitions(folder: Path) -> dict[str, Definition]:
    """The functions and classes at the top of the folder's modules, those with words first."""
    found: dict[str, Definition] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
                node.name not in found or not ast.get_docstring(found[node.name])
            ):
                found[node.name] = node
    return found


def of_worlds(shared: dict[str, ast.ClassDef], folder: Path) -> dict[str, Definition]:
    """What the folder's modules assign from a world, as the functions that its methods become."""
    methods: dict[str, Definition] = {}
    for world in WORLDS:
        for method in shared[world].body:
            if isinstance(method, ast.FunctionDef):
                method.args.args = method.args.args[1:]  # self
                methods[method.name] = method
    assigned = {
        target.id
        for path in sorted(folder.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and "world." in ast.unparse(node.value)
        for target in ast.walk(node.targets[0])
        if isinstance(target, ast.Name)
    }
    return {name: methods[name] for name in assigned & methods.keys()}


def inherit_init(node: Definition, shared: dict[str, ast.ClassDef]) -> None:
    """Give a class without `__init__` that of a shared class on which it is built."""
    if isinstance(node, ast.ClassDef) and not _method(node, "__init__"):
        for base in node.bases:
            parent = shared.get(ast.unparse(base).rpartition(".")[2])
            inherited = _method(parent, "__init__") if parent else None
            node.body += [inherited] if inherited else []


def entry(node: Definition, inside: str = "") -> list[str]:
    """The directive of a function, or of a class with its public methods."""
    out: list[str]
    if isinstance(node, ast.FunctionDef):
        method = bool(inside)
        kind = "method" if method else "function"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        out = [f".. py:{kind}:: {node.name}({_signature(node.args, method)}){returns}", ""]
        body = [*parameters(node.args), *paragraphs(ast.get_docstring(node) or "")]
    else:
        first = _method(node, "__init__")
        signature = f"({_signature(first.args, True)})" if first else ""
        out = [f".. py:class:: {node.name}{signature}", ""]
        body = paragraphs(ast.get_docstring(node) or "")
        body += parameters(first.args) if first else []
        for part in node.body:
            overload = isinstance(part, ast.FunctionDef) and any(
                ast.unparse(each) == "overload" for each in part.decorator_list
            )  # the last one has the docstring
            if isinstance(part, ast.FunctionDef) and part.name[0] != "_" and not overload:
                body += entry(part, node.name)
    return [*out, *("    " + line if line else "" for line in body), ""]


def parameters(arguments: ast.arguments) -> list[str]:
    """A table of the parameters, with types and defaults; nothing if there are none."""
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


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[0] if found else None


def _write_if_new(path: Path, text: str) -> None:
    """Sphinx reads again what is newer than its last reading."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
