# SPDX-License-Identifier: Apache-2.0
"""The command `capacity`."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from widefield.cli import tables
from widefield.cli.words import Flag, set_threads


@dataclass(frozen=True)
class Capacity:
    """How many samples networks can fit perfectly, with true labels and without (Effective Model Complexity)."""

    model: str = "mlp+width=4,mlp+width=6,mlp+width=8,cnn+width=1"
    """networks with commas between, options as name+option=value: mlp, cnn, resnet, efficientnet, vit (+width,
    +depth, +activation=relu/tanh/identity, +mixer), a published token network, or timm:NAME"""
    data: str = "digits"
    """'digits', 'iris', 'wine', 'breast-cancer', a file with a table, or a directory: MNIST, CIFAR binary, folders
    of pictures"""
    target: str | None = None
    """column of a table that is to be told from the others: name or number (default: the last)"""
    variants: str = "semantic,random"
    """of the data: semantic, random (labels), gaussian (inputs), permuted (pixels)"""
    optimizer: str = "adam"
    """sgd, gd (full batch), adam, adamw, shampoo, lbfgs; several with commas between"""
    rates: str | None = None
    """learning rates, each tried (default: two usual ones of the optimiser)"""
    updates: int = 2000
    """budget of a training: updates, or passes over its set"""
    budget: Literal["updates", "passes"] = "updates"
    """equal updates or equal passes for sets of all sizes"""
    restarts: int = 1
    """fresh initialisations of each rate"""
    batch_size: int = 64
    """samples an update"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """of the learning rate"""
    weight_decay: float = 0.0
    """none in the published protocol"""
    seeds: int = 5
    """orders of the samples, with all that is random"""
    tolerance: float = 0.05
    """sizes are found to this share; 0 finds them exactly"""
    start: int = 8
    """first size tried"""
    repeats: int = 1
    """how often the smallest failed size is tried again"""
    step_by_step: int | None = None
    """the published protocol instead of the search: add so many samples until the first failure"""
    fresh_sets: Flag = False
    """draw every set anew instead of enlarging the last one"""
    conflicts: Literal["bound", "remove"] = "bound"
    """equal inputs with different labels bound the answer, or are removed first"""
    components: int | None = None
    """fit so many principal components instead of the samples themselves"""
    classes: int | None = None
    """merge classes at random into so many"""
    samples: int | None = None
    """use so many training samples at most"""
    gap: Flag = False
    """also measure the generalisation gap of each network"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where networks are trained"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    out: Path | None = None
    """folder of the results (default: runs/capacity-<data>-<hash of the settings>)"""
    json: Flag = False
    """print the table as JSON"""

    def run(self) -> int:
        from rich.console import Console

        from widefield.cli.capacity_progress import CapacityBars
        from widefield.data.classification import load_classification
        from widefield.lab.capacity import measure_capacities
        from widefield.lab.report.capacity import write_capacity_report

        set_threads(self.threads)
        console = Console(stderr=True)
        data = load_classification(self.data, target=self.target)
        console.print(data.summary(), highlight=False)
        comparison, out = self._comparison(), self.folder
        with CapacityBars(console, len(comparison.measurements())) as bars:
            summary = measure_capacities(
                comparison, data, out, command=self.resume(), watch=bars.watch,
                told=lambda line: console.print(line, highlight=False),
            )  # fmt: skip
        page = write_capacity_report(summary, out)
        if self.json:
            tables.print_json(summary)
        else:
            print_capacities(summary)
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if any(row["status"] != "finished" for row in summary["rows"]):
            raise RuntimeError("not every measurement finished; the reasons are above and in the report")
        return 0

    def _comparison(self) -> Any:
        import torch

        from widefield.lab.capacity import CapacityComparison
        from widefield.measure.capacity import Gallop, Procedure, StepByStep

        procedure = Procedure(
            restarts=self.restarts, updates=self.updates, budget=self.budget, batch_size=self.batch_size,
            schedule=self.schedule, weight_decay=self.weight_decay,
        )  # fmt: skip
        search = Gallop(start=self.start, tolerance=self.tolerance, repeats=self.repeats)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return CapacityComparison(
            models=_listed(self.model), variants=_listed(self.variants), optimizers=_listed(self.optimizer),
            procedure=procedure, seeds=self.seeds, rates=_numbers(self.rates),
            search=search if self.step_by_step is None else StepByStep(start=self.start, step=self.step_by_step),
            components=self.components, classes=self.classes, samples=self.samples, nested=not self.fresh_sets,
            conflicts=self.conflicts, gap=self.gap, device=device if self.device == "auto" else self.device,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Where the results go: the same for the same settings, so that the same command resumes."""
        if self.out is not None:
            return self.out
        settings = {k: str(v) for k, v in asdict(self).items() if k not in ("out", "json", "threads")}
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
        return Path("runs") / f"capacity-{Path(self.data).stem}-{digest}"

    def resume(self) -> str:
        """The command that goes on where this one stopped."""
        words = ["widefield", "capacity"]
        for name, value in asdict(self).items():
            if name in ("json", "out") or value == type(self).__dataclass_fields__[name].default:
                continue
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        return shlex.join([*words, "--out", str(self.folder)])


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in _listed(text))
    except ValueError:
        raise ValueError(f"--rates takes numbers with commas between, got {text!r}") from None


def print_capacities(summary: dict[str, Any]) -> None:
    """The table of a comparison of capacities, what it says about the published findings, and the notes."""
    several = len(summary["setting"]["optimizers"]) > 1
    rows, notes = [], []
    for r in summary["rows"]:
        name = f"{r['model']} {r['optimizer']}" if several else r["model"]
        if r["status"] != "finished":
            rows.append([name, r["variant"], "failed", *[""] * 6])
            continue
        c = r["capacity"]
        gap = r.get("gap")
        rows.append([
            name, r["variant"], f"{r['parameters']:,}", ("≥ " if c["censored"] else "") + f"{c['mean']:.0f}",
            f"{c['interval'][0]:.0f} to {c['interval'][1]:.0f}" if c["interval"] else "-", f"{c['median']:.0f}",
            f"{c['per_parameter']:.2f}", f"{c['bits_per_parameter']:.2f}" if c["bits_per_parameter"] else "-",
            tables.score(gap["mean"], gap["half_width"]) if gap else "-",
        ])  # fmt: skip
        notes += [f"{name} {r['variant']}: {note}" for note in r["notes"]]
    s, data = summary["setting"], summary["data"]
    budget = f"{s['updates']} {s['budget']}"
    tables.print_table(
        ("network", "data", "parameters", "capacity", "95% interval", "median", "per parameter",
         "bits / parameter", "gap"),
        rows,
        caption=f"{data['name']}: {data['samples']} samples, {data['num_classes']} classes, "
        f"{data['preparation']}; "
        f"{tables.counted(s['seeds'], 'seed')}, budget {budget}, batch {s['batch_size']}; geometric means",
    )  # fmt: skip
    for item in summary["inequalities"]:
        span = item["interval"]
        figure = (
            ""
            if item["ratio"] is None
            else f" ({item['ratio']:.2f}" + (f", {span[0]:.2f} to {span[1]:.2f})" if span else ")")
        )
        print(f"{item['verdict']}: {item['statement']}{figure}")
    for note in notes:
        print(f"note: {note}")
