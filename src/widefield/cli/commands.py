# SPDX-License-Identifier: Apache-2.0
"""The commands `list`, `describe`, `cost` and `compare`."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from widefield.cli import tables
from widefield.core.registry import create, describe, entry, list_modules

Names = Annotated[tuple[str, ...], tyro.conf.Positional]
Name = Annotated[str, tyro.conf.Positional]
Flag = tyro.conf.FlagCreatePairsOff[bool]


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
        elif self.markdown:
            print("| name | family | paper | parameters at 64 channels | iterates | rank bound |")
            print("|---|---|---|---:|---|---|")
            for row in rows:
                print(
                    f"| `{row['name']}` | {row['family']} | {row['title']} ({row['paper']}) | "
                    f"{row['parameters_64']:,} | {'yes' if row['iterative'] else ''} | {row['max_rank'] or ''} |"
                )
        else:
            tables.print_table(
                ("name", "family", "paper", "year", "parameters at 64 channels"),
                [
                    (r["name"], r["family"], f"{r['title']} ({r['paper']})", str(r["year"] or ""),
                     f"{r['parameters_64']:,}")
                    for r in rows
                ],
            )  # fmt: skip
        return 0


def _listed(name: str) -> dict[str, Any]:
    found = entry(name)
    parameters = sum(p.numel() for p in create(name, 64).parameters())
    return {
        "name": name, "family": found.family, "title": found.title, "paper": found.paper, "year": found.year,
        "parameters_64": parameters, **asdict(found.facts),
    }  # fmt: skip


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

        shape = _integers(self.shape, "--shape")
        if len(shape) < 3 or min(shape) < 1:
            raise ValueError(f"--shape takes b,c,h,w (or b,c,n), all at least 1, got {self.shape!r}")
        if not self.names:
            raise ValueError("name at least one module; `widefield list` shows them")
        _set_threads(self.threads)
        found = []
        for text in self.names:
            name, options = parse_module(text)
            module = create(name, shape[1], **options)
            report = cost(module, shape, device=torch.device(self.device), backward=self.backward, latency=self.latency)
            found.append({"name": text, **report.as_dict()})
        if self.json:
            tables.print_json(found)
            return 0
        columns = ["module", "parameters", "multiply-adds", "memory forward", "time forward"]
        columns += ["multiply-adds fwd+bwd", "memory fwd+bwd", "time fwd+bwd"] if self.backward else []
        rows = []
        for r in found:
            bound = "≥ " if r["lower_bound"] else ""
            row = [r["name"], tables.million(r["parameters"]), bound + tables.giga(r["multiply_adds"]),
                   tables.mega_bytes(r["activation_memory_forward"]), tables.milliseconds(r["latency_forward_s"])]
            if self.backward:
                row += [tables.giga(r["multiply_adds_training"]), tables.mega_bytes(r["activation_memory_training"]),
                        tables.milliseconds(r["latency_training_s"])]  # fmt: skip
            rows.append(row)
        notes = [f"input {'x'.join(map(str, shape))}, float32, {self.device}, {torch.get_num_threads()} threads. "
                 "Multiply-adds of matrix products and convolutions; memory is the peak beyond parameters and input."]
        notes += [f"≥: no formula for {', '.join(r['uncounted'])} in {r['name']}" for r in found if r["lower_bound"]]
        tables.print_table(columns, rows, caption="\n".join(notes))
        return 0


def _integers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers with commas between, got {text!r}") from None


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Compare:
    """Train the same network with each context module, and report quality, cost and what each does."""

    data: str = "scenes"
    """'scenes' (embedded), or a directory: CamVid, PASCAL VOC, or images/ and masks/"""
    modules: str = "default"
    """names with commas between, options as name+option=value; 'default', or 'all'"""
    seeds: int = 2
    """runs of each module"""
    steps: int = 400
    """updates of each run"""
    batch_size: int | None = None
    """pictures a step (16)"""
    backbone: str = "plain"
    """'plain' (from scratch), or any convolutional network of timm, e.g. efficientnet_lite0"""
    pretrained: str = "auto"
    """auto, none, or a file of weights"""
    freeze_backbone: bool | None = None
    """compute the backbone's features once and train what follows (default: yes for a backbone of timm)"""
    output_stride: int | None = None
    """of the backbone"""
    width: int | None = None
    """channels that the context sees"""
    rank: int | None = None
    """of decompositions (default: a quarter of the width, at most 64)"""
    gradient: str | None = None
    """of iterative modules: one_step, codes_only, unrolled, neumann, implicit"""
    crop: str | None = None
    """height,width of training pictures"""
    classes: str | None = None
    """names of the classes with commas between, where the folder has no classes.txt"""
    num_classes: int | None = None
    """how many classes, where there are no names"""
    binary: Flag = False
    """masks tell object from background only: every value but 0 is the object"""
    ignore_index: int | None = None
    """label value that is not counted (default 255)"""
    lr: float | None = None
    """learning rate (default: the recipe's)"""
    closed_gates: Flag = False
    """leave gates at their published zero at the start"""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """arithmetic"""
    device: str = "auto"
    """cpu, cuda or auto"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    out: Path | None = None
    """folder of the results (default: runs/compare-<data>-<hash of the settings>)"""
    json: Flag = False
    """print the table as JSON"""
    words: tyro.conf.Suppress[tuple[str, ...]] = field(default=())

    def run(self) -> int:
        from rich.console import Console

        from widefield.cli.progress import Bars
        from widefield.data import load_segmentation
        from widefield.lab.comparison import compare
        from widefield.lab.report import write_report

        _set_threads(self.threads)
        # Progress goes to standard error, so that standard output holds the table alone.
        console = Console(stderr=True)
        data = load_segmentation(self.data, **self._data_options())
        console.print(data.summary(), highlight=False)
        comparison = self._comparison(data)
        out = self.folder
        with Bars(console, len(comparison.modules) * comparison.seeds, comparison.base.steps) as bars:
            summary = compare(
                comparison, data, out, command=self.resume(), watch=bars.watch,
                told=lambda line: console.print(line, highlight=False),
            )  # fmt: skip
        page = write_report(summary, out)
        if self.json:
            tables.print_json(summary)
        else:
            _print_comparison(summary)
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if any(row["status"] != "finished" for row in summary["rows"]):
            raise RuntimeError("not every run finished; the reasons are above and in the report")
        return 0

    def _data_options(self) -> dict[str, Any]:
        options = {
            "classes": self.classes.split(",") if self.classes else None,
            "num_classes": self.num_classes,
            "ignore_index": self.ignore_index,
            "binary": self.binary or None,
        }
        return {k: v for k, v in options.items() if v is not None}

    def _comparison(self, data: Any) -> Any:
        from widefield.lab.comparison import DEFAULT_MODULES, Comparison
        from widefield.lab.experiment import Experiment

        freeze = self.freeze_backbone if self.freeze_backbone is not None else self.backbone != "plain"
        base = Experiment(
            module="none", data=self.data, data_options=self._data_options(), data_state=fingerprint(data),
            backbone=self.backbone, pretrained=self.pretrained, output_stride=self.output_stride, width=self.width,
            freeze_backbone=freeze, batch_size=self.batch_size or 16, steps=self.steps, lr=self.lr,
            evaluate_every=max(1, self.steps // 4), gate=None if self.closed_gates else 1.0,
            precision=self.precision, device=self.device,
        )  # fmt: skip
        if self.crop is not None:
            crop = _integers(self.crop, "--crop")
            if len(crop) != 2:
                raise ValueError(f"--crop takes height,width, got {self.crop!r}")
            base = replace(base, crop=(crop[0], crop[1]))
        lists = {"default": DEFAULT_MODULES, "all": tuple(sorted(list_modules(), key=lambda n: n != "none"))}
        modules = lists.get(self.modules, tuple(m.strip() for m in self.modules.split(",") if m.strip()))
        return Comparison(modules, self.seeds, base, rank=self.rank, gradient=self.gradient)

    @property
    def folder(self) -> Path:
        """Where the results go: the same for the same settings, so that the same command resumes."""
        if self.out is not None:
            return self.out
        settings = {k: str(v) for k, v in asdict(self).items() if k not in ("out", "json", "threads")}
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
        return Path("runs") / f"compare-{Path(self.data).name}-{digest}"

    def resume(self) -> str:
        """The command that goes on where this one stopped."""
        words = ["widefield", "compare"]
        for name, value in asdict(self).items():
            default = type(self).__dataclass_fields__[name].default
            if name in ("words", "json", "out") or value == default:
                continue
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True and name in ("binary", "closed_gates") else [flag, str(value)]
        return shlex.join([*words, "--out", str(self.folder)])


def fingerprint(data: Any) -> str:
    """Changes when a data set does: sizes, counts, classes and files left out."""
    facts = (data.name, data.classes, data.train.sizes, data.val.sizes, data.problems)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]


def _print_comparison(summary: dict[str, Any]) -> None:
    rows = []
    for r in summary["rows"]:
        if r["status"] == "failed":
            rows.append([r["module"], "failed", *[""] * 7])
            continue
        d = r["difference"]
        rows.append([
            r["module"],
            tables.percent(r["mean"], r["half_width"]),
            f"{tables.percent(d['mean'], d['half_width'])} {d['verdict']}" if d else "baseline",
            tables.percent(r["accuracy_mean"], r["accuracy_half_width"]),
            tables.million(r["parameters"]),
            ("≥ " if r["lower_bound"] else "") + tables.giga(r["multiply_adds"]),
            tables.mega_bytes(r["activation_memory_training"]),
            tables.milliseconds(r["latency_training"]),
            f"{r['seconds']:.0f} s",
        ])  # fmt: skip
    s = summary["setting"]
    tables.print_table(
        ("module", "mIoU %", f"against {summary['baseline']}", "accuracy %", "parameters", "multiply-adds",
         "memory fwd+bwd", "time fwd+bwd", "training"),
        rows,
        caption=f"{summary['data']['name']}, {s['steps']} steps, {len(s['seeds'])} seeds, ± 95% interval; cost of "
        f"the module alone at {'x'.join(map(str, s['feature_shape']))}",
    )  # fmt: skip
    print(summary["verdict"])
