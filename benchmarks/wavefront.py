# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.wavefront`: recurrence over images by diagonals against the loop over their cells.

The ratio of medians measured in alternation, forward and forward with backward; the outputs must agree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.plain.grids import grid_lstm, md_lstm, md_rnn
from benchmarks.run import Result, show, step, timed
from widefield.core.files import write_json
from widefield.sequence import MDLSTM, MDRNN, GridLSTM

FASTER, SAME = 5.0, 1e-6


def cases() -> list[tuple[str, torch.nn.Module, Callable[..., torch.Tensor]]]:
    torch.manual_seed(0)
    return [
        ("GridLSTM", GridLSTM(16, 32), grid_lstm),
        ("MDRNN one direction", MDRNN(16, 32, directions="one"), md_rnn),
        ("MDLSTM one direction", MDLSTM(16, 32, directions="one"), md_lstm),
    ]


def measured(size: int, batch: int, rounds: int) -> list[Result]:
    """Prints and returns the comparisons.

    Raises:
        RuntimeError: the outputs differ.
    """
    found = []
    x = torch.randn(batch, 16, size, size)
    for name, layer, written_out in cases():
        plain: Callable[[torch.Tensor], torch.Tensor] = partial(written_out, layer)
        with torch.no_grad():
            expected = plain(x)
            error = float((layer(x) - expected).abs().max() / expected.abs().max())
        if error > SAME:
            raise RuntimeError(f"{name}: the outputs differ by {error:.1e} of their scale")
        title = f"{name} {batch}x16x{size}x{size}"
        with torch.no_grad():
            found.append(
                timed(f"{title} forward", "cell by cell", partial(layer, x), partial(plain, x), 1 / FASTER,
                      rounds=rounds, seconds=60)
            )  # fmt: skip
        show(found[-1])
        leaf = x.clone().requires_grad_()
        ours, theirs = step(layer, layer, leaf), step(layer, plain, leaf)
        found.append(
            timed(f"{title} fwd+bwd", "cell by cell", ours, theirs, 1 / FASTER, rounds=rounds, seconds=60)
        )
        show(found[-1])
        print(f"{'':48s} {1 / found[-2].ratio:.1f} and {1 / found[-1].ratio:.1f} times as fast; "
              f"outputs equal to {error:.0e}")  # fmt: skip
    return found


def main() -> int:
    """Status 1 where it is not five times as fast."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wavefront", description=__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    results = measured(words.size, words.batch, words.rounds)
    report: dict[str, Any] = {"schema": 1, "torch": torch.__version__, "results": [asdict(r) for r in results]}
    write_json(words.out / f"wavefront-{words.size}-batch{words.batch}-{words.threads}threads.json", report)
    return 0 if all(r.kept for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
