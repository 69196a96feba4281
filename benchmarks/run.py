# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.run`: the modules against their matrix products, against plain versions, and against n.

Every figure is a ratio of medians measured in alternation in one run, so the machine's mood divides out. Seconds
stand beside for orientation. `--quick` measures small maps only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import widefield
from benchmarks.plain import plain_versions
from benchmarks.plain.reconstruction import NETWORKS
from benchmarks.products import clustering_products, nmf_products
from widefield.core import Context
from widefield.core.files import write_json
from widefield.core.registry import entry
from widefield.imaging import dispersed_mask
from widefield.measure import LiveBytes, count
from widefield.models.spectral import create_network

Call = Callable[[], object]
Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Result:
    """One comparison.

    Attributes:
        ours, theirs: medians, with the distance between their quartiles.
        ratio: ours over theirs; for times the median over pairs of neighbouring calls.
        low: lower quartile of those pairs, below which the ratio may well be.
        limit: what the project promises (None: for information); broken where even `low` is above.
    """

    name: str
    against: str
    quantity: str
    ours: float
    ours_iqr: float
    theirs: float
    theirs_iqr: float
    ratio: float
    low: float
    limit: float | None

    @property
    def kept(self) -> bool:
        return self.limit is None or self.low <= self.limit


def alternate(ours: Call, theirs: Call, *, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Times of single calls of both, in alternation, after one call each to warm up."""
    for call in (ours, theirs):
        call()
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(times[0]) < 3 or (len(times[0]) < rounds and time.perf_counter() - begun < seconds):
        for call, found in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return times


def timed(
    name: str,
    against: str,
    ours: Call,
    theirs: Call,
    limit: float | None,
    *,
    rounds: int = 30,
    seconds: float = 20,
) -> Result:
    """A comparison of times."""
    first, second = alternate(ours, theirs, rounds=rounds, seconds=seconds)
    a, b = statistics.median(first), statistics.median(second)
    pairs = [x / y for x, y in zip(first, second, strict=True)]
    low, ratio, _ = statistics.quantiles(pairs, n=4, method="inclusive")
    return Result(name, against, "seconds", a, _iqr(first), b, _iqr(second), ratio, low, limit)


def _iqr(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low


def keep_memory() -> None:
    """Has glibc keep what is freed: fresh pages for every large tensor would be charged to large maps alone."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD, never


def gemm_rate() -> float:
    """Multiply-adds a second of a 1024 cubed product."""
    a, b, c = torch.rand(1024, 1024), torch.rand(1024, 1024), torch.empty(1024, 1024)
    torch.mm(a, b, out=c)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        times.append(time.perf_counter() - start)
    return 1024**3 / statistics.median(times)


def decompositions(size: int) -> Iterator[Result]:
    """Hams of rank 64 on 1x512 maps, forward, against their own matrix products."""
    x = torch.rand(1, 512, size, size)
    flat = x.flatten(2)
    cases = [
        ("ham-nmf", {"steps": 6}, nmf_products(flat, 64, 6), 1.2),
        ("ham-cd", {"steps": 6}, clustering_products(flat, 64, 6, closing=1), 1.3),
        ("ham-vq", {"steps": 6}, clustering_products(flat, 64, 6, closing=1), 1.3),
        ("em-attention", {"steps": 3}, clustering_products(flat, 64, 3, closing=0), 1.3),
    ]
    for name, options, products, limit in cases:
        module = widefield.create(name, 512, rank=64, **options).eval()
        title = f"{name} forward 1x512x{size}x{size}"
        with torch.no_grad():
            yield timed(title, "its matrix products", partial(module, x), products, limit)


def whole_modules(size: int) -> Iterator[Result]:
    """Modules with their projections, forward, against their multiply-adds at the rate of a 1024 cubed product."""
    x = torch.rand(1, 512, size, size)
    for name in ("hamburger-nmf", "hamburger-cd", "hamburger-vq", "emau"):
        module = widefield.create(name, 512).eval()
        assert isinstance(module, Context)
        bound = module.cost(tuple(x.shape)).multiply_adds / gemm_rate()
        with torch.no_grad():
            module(x)
            times = []
            for _ in range(7):
                start = time.perf_counter()
                module(x)
                times.append(time.perf_counter() - start)
        a = statistics.median(times)
        yield Result(
            f"{name} forward 1x512x{size}x{size}", "multiply-adds at the rate of a 1024^3 product", "seconds",
            a, _iqr(times), bound, 0.0, a / bound, a / bound, None,
        )  # fmt: skip


def networks(size: int) -> Iterator[Result]:
    """Reconstruction networks on a snapshot of `size` x `size` pixels and 28 bands, forward."""
    phi = dispersed_mask(torch.rand(size, size).round(), 28, 2)
    y = torch.rand(1, *phi.shape[1:])
    for name, written_out in NETWORKS.items():
        network = create_network(name).eval()
        title = f"{name} forward 1x28x{size}x{size}"
        bound = count(network, (tuple(y.shape), tuple(phi.shape))).multiply_adds / gemm_rate()
        with torch.no_grad():
            ours, theirs = partial(network, y, phi), partial(written_out, network, y, phi)
            found = timed(title, "written out", ours, theirs, 1 / 1.5, rounds=9, seconds=60)
        yield found
        ratio = found.ours / bound
        yield Result(
            title, "multiply-adds at the rate of a 1024^3 product", "seconds",
            found.ours, found.ours_iqr, bound, 0.0, ratio, ratio, 2.7,
        )  # fmt: skip


def step(module: torch.nn.Module, forward: Forward, x: torch.Tensor) -> Call:
    """Forward and backward, with respect to the input and all parameters."""

    def run() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        forward(x).sum().backward()

    return run


def against_plain(name: str, size: int, *, rounds: int = 7, seconds: float = 12) -> Iterator[Result]:
    """A module, forward and backward on a 1x512 map, against the same equation written out."""
    x = torch.randn(1, 512, size, size, requires_grad=True)
    module = widefield.create(name, 512, **entry(name).tied_to((size, size)))
    assert isinstance(module, Context)
    module.open_gate_(1.0)
    ours, theirs = (step(module, forward, x) for forward in (module, partial(plain_versions()[name], module)))
    title, against = f"{name} fwd+bwd 1x512x{size}x{size}", "written out"
    peaks = []
    for call in (ours, theirs):
        module.zero_grad(set_to_none=True)
        x.grad = None
        with LiveBytes() as live:
            call()
        peaks.append(float(live.peak))
    quadratic = widefield.describe(name).facts.complexity == "n^2"
    # Backward holds three maps written out: weights, their slopes, those of the logits. Blocks or a smaller map
    # hold less, and then the features are most of what there is to hold.
    whole = peaks[1] >= 3 * x.element_size() * size**4
    ratio = peaks[0] / peaks[1]
    yield Result(
        title, against, "bytes at the peak", peaks[0], 0, peaks[1], 0, ratio, ratio,
        0.25 if quadratic and whole and size >= 64 else None,
    )  # fmt: skip
    yield timed(title, against, ours, theirs, 1.0, rounds=rounds, seconds=seconds)


# Exponent in n of the time: writing the output alone is one power.
GROWTH = {"1": 1.0, "n": 1.0, "n log n": 1.0, "n^1.5": 1.5, "n^2": 2.0}


@dataclass(frozen=True)
class Growth:
    """How the time of an inference grows with the number n of positions.

    Attributes:
        name: of the module.
        claimed: its complexity in the registry.
        positions: n of each measurement; seconds, the median times.
        exponent: slope of log time against log n, least squares.
    """

    name: str
    claimed: str
    positions: list[int]
    seconds: list[float]
    exponent: float

    @property
    def kept(self) -> bool:
        return abs(self.exponent - GROWTH[self.claimed]) <= 0.15


# Options with which the term that grows fastest leads on these maps. ISA's blocks make its quadratic term
# n^2 / blocks^2, which for the published 8 x 8 leads from 256 x 256 on only; OCNet's ASP runs wide convolutions
# beside its attention; PSANet halves the map, and predicts a logit for each of its many offsets, which is linear
# in n; what PPM does after pooling is the same for every map.
LEADING: dict[str, dict[str, Any]] = {
    "isa": {"blocks": [1]},
    "ocnet-asp": {"out_channels": 16, "reduce": 1, "rates": (12,)},
    "ppm": {"bins": (1, 2)},
    "psanet": {"shrink": 1, "mask": 5, "inner": 32},
}
WORK = 3e-3  # seconds that the smallest map takes at least,
DOUBLE = 1.85  # and how many times as long two batches take where the cost of the calls themselves does not count


def growth(name: str, sides: Sequence[int] = (32, 64, 128, 256)) -> Growth:
    """Inference from 32x32 to 256x256, at 32 channels, on as many samples as make the smallest map work enough."""
    claimed = widefield.describe(name).facts.complexity
    module = widefield.create(name, 32, **LEADING.get(name, {})).eval()
    batch = 1
    # What only writes its output must leave the cache on the smallest map too.
    most = {"1": 128, "n": 64, "n^1.5": 8}.get(claimed, 1)
    once = inference_seconds(module, batch, sides[0])
    while batch < most:
        twice = inference_seconds(module, 2 * batch, sides[0])
        if once >= WORK and twice >= DOUBLE * once:
            break
        batch, once = 2 * batch, twice
    seconds = [inference_seconds(module, batch, side) for side in sides]
    positions = [side * side for side in sides]
    slope = statistics.linear_regression([math.log(n) for n in positions], [math.log(t) for t in seconds]).slope
    return Growth(name, claimed, positions, seconds, slope)


def inference_seconds(module: torch.nn.Module, batch: int, side: int) -> float:
    """Median of several calls, or one that is long."""
    x = torch.rand(batch, 32, side, side)
    times: list[float] = []
    with torch.no_grad():
        start = time.perf_counter()
        module(x)
        # The first call also asks the system for its pages; one that takes longer is measured as it is.
        if (first := time.perf_counter() - start) > 5:
            return first
        while not times or (sum(times) < 0.5 and len(times) < 50):
            start = time.perf_counter()
            module(x)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    """Prints the table; status 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="maps of 32x32 only, no growth")
    parser.add_argument("--modules", default="*", help="glob of the modules to hold against their plain versions")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    words = parser.parse_args()
    # Torch warns here when CUDA_HOME is set on a machine without a GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    torch.set_num_threads(words.threads)
    keep_memory()
    sizes = (32,) if words.quick else (64, 128)
    results: list[Result] = []
    grown: list[Growth] = []

    def note(found: Iterable[Result]) -> None:
        for result in found:
            show(result)
            results.append(result)

    if words.modules == "*":
        for size in sizes:
            note(decompositions(size))
            note(whole_modules(size))
        note(against_plain("nonlocal", sizes[-1], rounds=5, seconds=120))
        note(networks(64 if words.quick else 256))
    names = widefield.list_modules(words.modules)
    for name in names:
        note(against_plain(name, sizes[0]))
    for name in names if not words.quick else ():
        facts = widefield.describe(name).facts
        if facts.fixed_size or name == "none":  # which computes nothing
            continue
        grown.append(growth(name))
        show_growth(grown[-1])
    report = {
        "schema": 1, "widefield": widefield.__version__, "torch": torch.__version__, "machine": platform.machine(),
        "system": platform.system(), "threads": words.threads, "gemm_multiply_adds_per_second": gemm_rate(),
        "results": [asdict(r) for r in results], "growth": [asdict(g) for g in grown],
    }  # fmt: skip
    path = words.out / f"{'quick' if words.quick else 'full'}-{platform.machine()}-{words.threads}threads.json"
    write_json(path, json.loads(json.dumps(report)))
    outcomes = [r.kept for r in (*results, *grown)]
    broken = outcomes.count(False)
    print(f"\n{path}\n{len(outcomes) - broken} kept, {broken} broken")
    return 1 if broken else 0


def show_growth(g: Growth) -> None:
    """One line."""
    times = ", ".join(f"{1e3 * t:.3g}" for t in g.seconds)
    print(
        f"{g.name:32s} time grows as n^{g.exponent:.2f} ({times} ms)  claimed {g.claimed}: "
        f"{'kept' if g.kept else 'BROKEN'}",
        flush=True,
    )


def show(r: Result) -> None:
    """One line."""
    said = "" if r.limit is None else f"  promised {r.limit:g}: {'kept' if r.kept else 'BROKEN'}"
    unit, scale = ("ms", 1e3) if r.quantity == "seconds" else ("MiB", 2**-20)
    print(
        f"{r.name:48s} {r.ratio:6.3f} x {r.against} "
        f"({scale * r.ours:.4g} against {scale * r.theirs:.4g} {unit}){said}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
