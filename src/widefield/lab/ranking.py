# SPDX-License-Identifier: Apache-2.0
"""The order of reconstruction methods by PSNR, and whether it is the published one.

A method that trains has one score a seed, one that does not a single exact score. Differences are paired over
seeds; one that its interval covers is called none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from widefield.lab.statistics import Estimate, estimate, verdict

# PSNR in dB, mean of the ten simulated KAIST scenes, 256x256, 28 bands: the table of the toolbox
# caiyuanhao1998/MST. The scores of its older rows are the original authors' weights.
PUBLISHED_PSNR = {
    "twist": 23.12, "gap-tv": 24.36, "lambda-net": 28.53, "tsa-net": 31.46, "dgsmp": 32.63, "gap-net": 33.26,
    "admm-net": 33.58, "hdnet": 34.97, "birnat": 37.58, "mst-s": 34.26, "mst-m": 34.94, "mst-l": 35.18,
    "mst++": 35.99, "cst-s": 34.71, "cst-m": 35.31, "cst-l": 35.85, "cst-l-plus": 36.12, "dauhst-2stg": 36.34,
    "dauhst-3stg": 37.21, "dauhst-5stg": 37.75, "dauhst-9stg": 38.36, "bisrnet": 29.76,
}  # fmt: skip


def compare_scores(ours: Mapping[int, float], theirs: Mapping[int, float], exact: bool) -> Estimate:
    """Mean and interval of `ours - theirs` over seeds; what has one score for every seed is repeated.

    Args:
        ours, theirs: seed to score.
        exact: neither depends on a seed, so that one difference is all there is.
    """
    if exact:
        return Estimate(next(iter(ours.values())) - next(iter(theirs.values())), 0.0, 1)
    seeds = range(max(len(ours), len(theirs)))
    return estimate([ours[min(s, max(ours))] - theirs[min(s, max(theirs))] for s in seeds])


def ranking(rows: Sequence[Mapping[str, Any]]) -> str:
    """The order found, and every pair of the published order that it contradicts or cannot tell.

    Args:
        rows: finished ones, of `compare_methods`: method, trains, psnr with its values by seed.
    """
    found = sorted(rows, key=lambda row: -row["psnr"]["mean"])
    if len(found) < 2:
        return ""
    text = found[0]["method"]
    for higher, lower in pairwise(found):
        text += f" {_SIGN[_difference(higher, lower)]} {lower['method']}"
    said = [f"order here: {text}"]
    known = [row for row in rows if row["method"] in PUBLISHED_PSNR]
    if len(known) > 1:
        known.sort(key=lambda row: -PUBLISHED_PSNR[row["method"]])
        said.append("published (KAIST): " + " > ".join(row["method"] for row in known))
        said.append(_agreement(known))
    return "; ".join(said)


_SIGN = {"better": ">", "no difference": "=", "cannot tell": "?", "worse": "<"}


def _agreement(published: Sequence[Mapping[str, Any]]) -> str:
    pairs = [(a, b, _difference(a, b)) for a, b in combinations(published, 2)]
    holds = sum(sign == "better" for *_, sign in pairs)
    if holds == len(pairs):
        return "the published order appears here"
    parts = [f"the published order does not appear here: {holds} of {len(pairs)} pairs stand as published"]
    for sign, words in (("worse", "reversed"), ("no difference", "no difference"), ("cannot tell", "cannot tell")):
        named = [f"{a['method']} over {b['method']}" for a, b, found in pairs if found == sign]
        parts += [f"{words}: {', '.join(named)}"] if named else []
    return "; ".join(parts)


def _difference(higher: Mapping[str, Any], lower: Mapping[str, Any]) -> str:
    ours, theirs = (dict(enumerate(row["psnr"]["values"])) for row in (higher, lower))
    return verdict(compare_scores(ours, theirs, exact=not (higher["trains"] or lower["trains"])))
