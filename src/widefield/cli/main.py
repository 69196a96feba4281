# SPDX-License-Identifier: Apache-2.0
"""`widefield COMMAND`: one dataclass a command; every error is one line and exit status 2."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from widefield.core.extras import require

INTERRUPTED = 130


def _show_warning(message: Any, *rest: Any) -> None:
    print(f"widefield: warning: {message}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, 2 for bad input, 130 after Ctrl-C."""
    # Torch warns here when CUDA_HOME is set on a machine without a GPU; nobody asked for its compiler.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    try:
        tyro = require("tyro", "lab")
        require("rich", "lab")
    except ImportError as error:
        print(f"widefield: {error}", file=sys.stderr)
        return 2
    from widefield.cli.capacity import Capacity
    from widefield.cli.catalogue import Cost, Describe, List
    from widefield.cli.compare import Compare
    from widefield.cli.flow import GradientFlow
    from widefield.cli.imaging import Reconstruct, Simulate
    from widefield.cli.train import Evaluate, Train

    def named(kind: Any, name: str) -> Any:
        return Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]

    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        from widefield._version import __version__

        print(f"widefield {__version__}")
        return 0
    commands = named(List, "list") | named(Describe, "describe") | named(Cost, "cost") | named(Compare, "compare")
    commands |= named(Train, "train") | named(Evaluate, "evaluate")
    commands |= named(Capacity, "capacity") | named(GradientFlow, "gradient-flow")
    commands |= named(Simulate, "simulate") | named(Reconstruct, "reconstruct")
    try:
        command = tyro.cli(
            commands,
            prog="widefield",
            args=words,
            description="Which way to look at the whole image? Context modules, measured and compared.",
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return command.run()
    except KeyboardInterrupt:
        again = command.resume() if hasattr(command, "resume") else None
        print(f"\nstopped.{f' Resume with: {again}' if again else ''}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get("WIDEFIELD_TRACEBACK"):
            raise
        print(f"widefield: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if os.environ.get("WIDEFIELD_TRACEBACK"):
            raise
        print(
            f"widefield: {type(error).__name__}: {error}\nNot foreseen; WIDEFIELD_TRACEBACK=1 shows where.",
            file=sys.stderr,
        )
        return 2
