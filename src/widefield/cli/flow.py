# SPDX-License-Identifier: Apache-2.0
"""The command `gradient-flow`."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from widefield.cli import tables
from widefield.cli.words import Flag, set_threads


@dataclass(frozen=True)
class GradientFlow:
    """How much of a gradient is left so many steps back: new networks, and trained ones."""

    model: str = "rnn,rnn-orthogonal,irnn,lstm-forget-0,lstm,gru"
    """names with commas between, options as name+option=value: networks over sequences, or ham-nmf, ham-cd,
    ham-vq, whose steps are their iterations. The first is what the factors are of"""
    lag: int = 50
    """steps back"""
    seeds: int = 3
    """networks of each kind"""
    steps: int = 0
    """updates of a training on the adding problem, after which all is measured again; 0: new networks alone"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    out: Path | None = None
    """folder of the results (default: runs/gradient-flow-<hash of the settings>)"""
    json: Flag = False
    """print the figures as JSON"""

    def run(self) -> int:
        from rich.console import Console

        from widefield.cli.progress import Bars
        from widefield.lab.flow import HAMS, FlowStudy, study_flow
        from widefield.lab.report.flow import flow_row, write_flow_report

        set_threads(self.threads)
        console = Console(stderr=True)
        models = tuple(m.strip() for m in self.model.split(",") if m.strip())
        study = FlowStudy(models, self.lag, self.seeds, self.steps)
        trained = sum(m.partition("+")[0] not in HAMS for m in models) * self.seeds if self.steps else 0
        with Bars(console, max(1, trained), max(1, self.steps)) as bars:
            summary = study_flow(
                study, self.folder, command=self.resume(), watch=bars.watch,
                told=lambda line: console.print(line, highlight=False),
            )  # fmt: skip
        page = write_flow_report(summary, self.folder)
        if self.json:
            tables.print_json(summary)
        else:
            columns = ["model", "left", "a step", f"times {study.models[0]}"]
            keys = ["new", "new_rate", "new_factor"]
            if self.steps:
                columns += ["trained: left", "a step", f"times {study.models[0]}", "from orthogonality"]
                keys += ["trained", "trained_rate", "trained_factor", "distance"]
            rows = []
            for row in map(flow_row, summary["rows"]):
                rows.append([row["model"], *(["failed"] + [""] * (len(keys) - 1) if row["failed"] else
                                             [row[key] for key in keys])])  # fmt: skip
            tables.print_table(
                columns, rows,
                caption=f"gradient {self.lag} steps back over that in the last state, "
                f"{tables.counted(self.seeds, 'seed')}, 95% interval in brackets",
            )  # fmt: skip
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if any(row["status"] != "finished" for row in summary["rows"]):
            raise RuntimeError("not every model could be measured; the reasons are above and in the report")
        return 0

    @property
    def folder(self) -> Path:
        """Where the results go: the same for the same settings, so that the same command resumes."""
        if self.out is not None:
            return self.out
        settings = {k: str(v) for k, v in asdict(self).items() if k not in ("out", "json", "threads")}
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
        return Path("runs") / f"gradient-flow-{digest}"

    def resume(self) -> str:
        """The command that goes on where this one stopped."""
        words = ["widefield", "gradient-flow"]
        for name, value in asdict(self).items():
            if name in ("json", "out") or value == type(self).__dataclass_fields__[name].default:
                continue
            words += [f"--{name}", str(value)]
        return shlex.join([*words, "--out", str(self.folder)])
