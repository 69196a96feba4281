# SPDX-License-Identifier: Apache-2.0
"""The commands `list`, `describe` and `cost`: what there is, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from widefield.cli import tables
from widefield.cli.figures import SHAPE, figures
from widefield.cli.words import Flag, Name, Names, integers, set_threads
from widefield.core.registry import create, describe, entry, list_modules


@dataclass(frozen=True)
class List:
    """List the registered modules."""

    pattern: Name = "*"
    """glob, for instance 'hamburger-*'"""
    family: str | None = None
    """attention, decomposition, pooling, ..."""
    markdown: Flag = False
    """as a Markdown table, for documents"""
    json: Flag = False
    """as JSON"""

    def run(self) -> int:
        names = list_modules(self.pattern, family=self.family)
        if not names:
            raise ValueError(f"no module matches {self.pattern!r}; `widefield list` shows all")
        rows = [_listed(name) for name in names]
        if self.json:
            tables.print_json(rows)
            return 0
        columns = (
            "name",
            "family",
            "paper",
            "parameters",
            "multiply-adds",
            "memory",
            "training memory",
            "grows as",
        )
        cells = [_cells(row, "paper" if not self.markdown else "title") for row in rows]
        if self.markdown:
            print(f"| {' | '.join(columns)} |")
            print("|---|---|---|---:|---:|---:|---:|---|")
            for row, (name, *others) in zip(rows, cells, strict=True):
                others[1] += f" ({row['paper']})"
                print(f"| `{name}` | {' | '.join(others)} |")
        else:
            tables.print_table(
                columns,
                cells,
                caption=f"at {'x'.join(map(str, SHAPE))}, float32, default options; memory: the peak beyond "
                "parameters and input, of an inference and of a training step; grows as: multiply-adds against "
                "the number n of positions. `widefield describe NAME` tells the rest.",
            )
        return 0


def _listed(name: str) -> dict[str, Any]:
    found = entry(name)
    return {
        "name": name, "family": found.family, "title": found.title, "paper": found.paper, "year": found.year,
        "shape": list(SHAPE), **figures(name), **asdict(found.facts),
    }  # fmt: skip


def _cells(row: dict[str, Any], paper: str) -> list[str]:
    return [
        row["name"],
        row["family"],
        f"{row[paper]}, {row['year']}" if row["year"] else "",
        tables.million(row["parameters"]),
        tables.giga(row["multiply_adds"]),
        tables.mega_bytes(row["memory_forward"]),
        tables.mega_bytes(row["memory_training"]),
        row["complexity"],
    ]


@dataclass(frozen=True)
class Describe:
    """Everything known of one module: paper, options, facts."""

    name: Name
    """registered name"""
    json: Flag = False
    """as JSON"""

    def run(self) -> int:
        found = describe(self.name)
        if self.json:
            options = {k: v if _plain(v) else repr(v) for k, v in found.options.items()}
            tables.print_json({**asdict(found), "options": options})
        else:
            print(found)
        return 0


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


@dataclass(frozen=True)
class Cost:
    """What modules cost at an input shape: parameters, multiply-adds, memory, time."""

    names: Names
    """registered names, or name+option=value"""
    shape: str = "1,512,64,64"
    """batch, channels and size of the map"""
    backward: Flag = False
    """a training step as well"""
    latency: bool = True
    """time it; without, nothing is run"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    device: str = "cpu"
    """cpu or cuda"""
    json: Flag = False
    """as JSON"""

    def run(self) -> int:
        import torch

        from widefield.lab.comparison import parse_module
        from widefield.measure import cost

        shape = integers(self.shape, "--shape")
        if len(shape) < 3 or min(shape) < 1:
            raise ValueError(f"--shape takes b,c,h,w (or b,c,n), all at least 1, got {self.shape!r}")
        if not self.names:
            raise ValueError("name at least one module; `widefield list` shows them")
        set_threads(self.threads)
        found = []
        for text in self.names:
            name, options = parse_module(text)
            module = create(name, shape[1], **options)
            report = cost(
                module, shape, device=torch.device(self.device), backward=self.backward, latency=self.latency
            )
            found.append({"name": text, **report.as_dict()})
        if self.json:
            tables.print_json(found)
            return 0
        columns = ["module", "parameters", "multiply-adds", "memory forward", "time forward"]
        columns += ["multiply-adds fwd+bwd", "memory fwd+bwd", "time fwd+bwd"] if self.backward else []
        rows = []
        for r in found:
            bound = "≥ " if r["lower_bound"] else ""
            row = [
                r["name"],
                tables.million(r["parameters"]),
                bound + tables.giga(r["multiply_adds"]),
                tables.mega_bytes(r["activation_memory_forward"]),
                tables.duration(r["latency_forward_s"]),
            ]
            if self.backward:
                row += [
                    tables.giga(r["multiply_adds_training"]),
                    tables.mega_bytes(r["activation_memory_training"]),
                    tables.duration(r["latency_training_s"]),
                ]
            rows.append(row)
        threads = tables.counted(torch.get_num_threads(), "thread")
        notes = [
            f"input {'x'.join(map(str, shape))}, float32, {self.device}, {threads}. "
            "Multiply-adds: matrix products and convolutions; memory: the peak beyond parameters and input."
        ]
        notes += [
            f"≥: no formula for {', '.join(r['uncounted'])} in {r['name']}" for r in found if r["lower_bound"]
        ]
        tables.print_table(columns, rows, caption="\n".join(notes))
        return 0
