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
    """JobSet is an extension of Kubernetes, so its jobs are checked as jobs of Kubernetes."""
    import yaml

    text = (ROOT / "packaging" / "kubernetes" / "jobset.yaml").read_text()
    job_set, *others = yaml.safe_load_all(text)
    for replicated in job_set["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}}
        others.append(job | replicated["template"])
    for number, each in enumerate(others):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(each))
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
