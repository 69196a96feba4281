# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.run`: how close the modules come to the matrix products they cannot do without.

Every figure is a ratio of medians measured in alternation in one run, so the machine's mood divides out. Seconds
stand beside for orientation. `--quick` measures small maps only.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

import widefield
from benchmarks.plain import plain_versions
from benchmarks.products import clustering_products, nmf_products
from widefield.core import Context
from widefield.core.files import write_json
from widefield.measure import LiveBytes

Call = Callable[[], object]


@dataclass(frozen=True)
class Result:
    """One comparison; `ratio` is ours over theirs, `limit` what the project promises (None: for information)."""

    name: str
    against: str
    quantity: str
    ours: float
    ours_iqr: float
    theirs: float
    theirs_iqr: float
    ratio: float
    limit: float | None

    @property
    def kept(self) -> bool:
        return self.limit is None or self.ratio <= self.limit


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
    return Result(name, against, "seconds", a, _iqr(first), b, _iqr(second), a / b, limit)


def _iqr(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low


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
            a, _iqr(times), bound, 0.0, a / bound, None,
        )  # fmt: skip


def attention(size: int, *, rounds: int) -> Iterator[Result]:
    """Non-local, forward and backward, against the version that writes the n x n map out."""
    x = torch.randn(1, 512, size, size, requires_grad=True)
    ours = widefield.create("nonlocal", 512, gate=1.0)
    plain = partial(plain_versions()["nonlocal"], ours)

    def step(forward: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        def run() -> None:
            ours.zero_grad(set_to_none=True)
            x.grad = None
            forward(x).sum().backward()

        return run

    name, against = f"nonlocal forward + backward 1x512x{size}x{size}", "the n x n map written out"
    peaks = []
    for forward in (ours, plain):
        ours.zero_grad(set_to_none=True)
        x.grad = None
        with LiveBytes() as live:
            forward(x).sum().backward()
        peaks.append(float(live.peak))
    yield Result(name, against, "bytes at the peak", peaks[0], 0, peaks[1], 0, peaks[0] / peaks[1], 0.25)
    yield timed(name, against, step(ours), step(plain), 1.0, rounds=rounds, seconds=120)


def main() -> int:
    """Prints the table; status 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="maps of 32x32 only")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    words = parser.parse_args()
    # Torch warns here when CUDA_HOME is set on a machine without a GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    torch.set_num_threads(words.threads)
    sizes = (32,) if words.quick else (64, 128)
    results: list[Result] = []
    for size in sizes:
        for result in (*decompositions(size), *whole_modules(size)):
            show(result)
            results.append(result)
    for result in attention(64 if words.quick else 128, rounds=5):
        show(result)
        results.append(result)
    report = {
        "schema": 1, "widefield": widefield.__version__, "torch": torch.__version__, "machine": platform.machine(),
        "system": platform.system(), "threads": words.threads, "gemm_multiply_adds_per_second": gemm_rate(),
        "results": [asdict(r) for r in results],
    }  # fmt: skip
    path = words.out / f"{'quick' if words.quick else 'full'}-{platform.machine()}-{words.threads}threads.json"
    write_json(path, json.loads(json.dumps(report)))
    broken = [r for r in results if not r.kept]
    print(f"\n{path}\n{len(results) - len(broken)} kept, {len(broken)} broken")
    return 1 if broken else 0


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
