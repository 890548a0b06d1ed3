# SPDX-License-Identifier: Apache-2.0
"""Pictures of the documents are legible on light and dark pages, and on a phone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ddl_launch.base.pictures import PALETTE, SERIES, in_both_modes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))
import drawings  # noqa: E402

pytestmark = pytest.mark.pure

PLOTS = sorted((ROOT / "docs").glob("*.svg")) + sorted((ROOT / "docs" / "lab").glob("*.svg"))
PHONE = 358  # pixels: the width of a picture on a phone with 390
LEGIBLE = 4.5  # the contrast of text that WCAG asks for


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast of two colors such as "#1a2b3c"."""

    def luminance(color: str) -> float:
        parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda path: path.name)
def test_plot_has_a_dark_color_for_each_light_one(plot: Path) -> None:
    svg = plot.read_text()
    dark = re.search(r"@media \(prefers-color-scheme:dark\)\{\n(.*?)\n\}", svg, re.DOTALL)
    assert dark
    for what, color in set(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", svg)):
        assert f'[style*="{what}: {color}"]' in dark[1]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda path: path.name)
def test_text_of_a_plot_is_legible_on_a_phone(plot: Path) -> None:
    svg = plot.read_text()
    (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    assert min(sizes) * PHONE / float(width) > 9


def test_every_picture_of_a_page_is_tested() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    }
    assert shown == set(PLOTS)


def test_drawings_have_the_color_of_the_page(tmp_path: Path) -> None:
    drawings.write(tmp_path)
    for drawing in tmp_path.iterdir():
        svg = drawing.read_text()
        assert "currentColor" in svg
        assert set(re.findall(r"#[0-9a-f]{3,6}\b", svg)) <= {"#fff", *SERIES}


def test_palette_has_contrast_in_both_modes() -> None:
    pages = PALETTE["page"]
    for name, colors in PALETTE.items():
        if name not in ("page", "grid"):
            assert all(contrast(*pair) > LEGIBLE for pair in zip(colors, pages, strict=True)), name
    assert all(contrast(color, "#ffffff") > LEGIBLE for color in SERIES)


def test_unknown_color_has_no_dark_one() -> None:
    svg = '<svg>\n <defs></defs><path style="fill: #123456; stroke: #1d5fd1"/></svg>'
    made = in_both_modes(svg)
    assert '[style*="stroke: #1d5fd1"]{stroke:#7fb0ff!important}' in made
    assert "#123456" not in made.partition("</style>")[0]
