# SPDX-License-Identifier: Apache-2.0
"""Words of the command line that several commands share."""

from __future__ import annotations

from typing import Annotated

import tyro

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
Name = Annotated[str, tyro.conf.Positional]
Flag = tyro.conf.FlagCreatePairsOff[bool]


def integers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers with commas between, got {text!r}") from None


def set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
