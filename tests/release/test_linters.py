# SPDX-License-Identifier: Apache-2.0
"""The templates and the workflow pass the linters of their consumers. `make test-wheels`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
pytestmark = pytest.mark.slow


def run(*command: str | Path) -> None:
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_dockerfile() -> None:
    run(TOOLS / "hadolint", "packaging/Dockerfile")


def test_workflow() -> None:
    schema = "vendor.github-workflows"
    run(TOOLS / "check-jsonschema", "--builtin-schema", schema, ".github/workflows/ci.yml")


def test_jobset(tmp_path: Path) -> None:
    """Return the jobs of the JobSet, in the form that Kubernetes itself defines; JobSet is an
    extension."""
    import yaml

    document = yaml.safe_load((ROOT / "packaging" / "kubernetes" / "jobset.yaml").read_text())
    for number, replicated in enumerate(document["spec"]["replicatedJobs"]):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}}
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(job | replicated["template"]))
        run(TOOLS / "kubernetes-validate", "--strict", file)


def test_conda_recipe() -> None:
    """rattler-build reads the recipe, and renders it for each Python."""
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    recipe = Stage0Recipe.from_file(str(ROOT / "packaging" / "conda" / "recipe.yaml"))
    needed = {}
    for version in ("3.10", "3.12"):
        platform = PlatformConfig(target_platform="linux-64")
        chosen = {"python": [f"{version}.* *_cpython"], "c_stdlib": ["sysroot"]}  # conda-forge's
        variants = VariantConfig(chosen)
        (rendered,) = recipe.render(variants, RenderConfig(platform=platform))
        assert rendered.recipe.package.name == "libddl"
        needed[version] = [str(each) for each in rendered.recipe.requirements.run]
    assert len(needed["3.10"]) == len(needed["3.12"]) + 1, needed  # tomli
