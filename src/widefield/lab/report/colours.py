# SPDX-License-Identifier: Apache-2.0
"""A colour for every module: the hue tells its family, the shade the module; one set for each colour scheme.

Colours are chosen in OKLCH (Ottosson, 2020), where equal steps look equal, so that every shade keeps a contrast
of at least 3:1 against the page in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FAMILIES = ("none", "attention", "decomposition", "pooling", "graph", "mixing", "sequence", "imaging")
_HUES = {
    "attention": 262.0, "decomposition": 42.0, "pooling": 152.0, "graph": 325.0,
    "mixing": 100.0, "sequence": 205.0, "imaging": 10.0,
}  # fmt: skip
_LIGHT, _DARK = (0.44, 0.64), (0.66, 0.83)
_HUE_SPREAD = 30.0


def oklch_to_hex(lightness: float, chroma: float, hue: float) -> str:
    """`#rrggbb` of an OKLCH colour; chroma is lowered as far as sRGB demands."""
    radians = math.radians(hue)
    for step in range(21):
        reduced = chroma * (1 - step / 20)
        linear = _oklab_to_linear(lightness, reduced * math.cos(radians), reduced * math.sin(radians))
        if all(-1e-4 <= value <= 1 + 1e-4 for value in linear):
            break
    return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _oklab_to_linear(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


def module_colours(families: Sequence[str]) -> tuple[list[str], list[str]]:
    """Colours of modules, given the family of each: for the light and for the dark scheme."""
    light, dark = [], []
    for index, family in enumerate(families):
        place = families[:index].count(family)
        of = families.count(family)
        # 0 .. 1 within the family; a lone member stands in the middle.
        position = 0.5 if of == 1 else place / (of - 1)
        hue = _hue(family) + _HUE_SPREAD * (position - 0.5)
        chroma = 0.0 if family == "none" else 0.14
        light.append(oklch_to_hex(_LIGHT[0] + position * (_LIGHT[1] - _LIGHT[0]), chroma, hue))
        dark.append(oklch_to_hex(_DARK[1] + position * (_DARK[0] - _DARK[1]), chroma, hue))
    return light, dark


def family_colours(families: Sequence[str]) -> list[tuple[str, str, str]]:
    """(family, colour in light, colour in dark) of each family that occurs, in the usual order."""
    known = [family for family in FAMILIES if family in families]
    ordered = known + sorted(set(families) - set(known))
    light, dark = module_colours(ordered)
    return list(zip(ordered, light, dark, strict=True))


def _hue(family: str) -> float:
    # A family that somebody else registered gets a hue of its own that stays the same.
    return _HUES.get(family, float(sum(family.encode()) * 47 % 360))
