# SPDX-License-Identifier: Apache-2.0
"""The command `compare`: the main job."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from widefield.cli import tables
from widefield.cli.words import Flag, integers, set_threads
from widefield.core.registry import list_modules


@dataclass(frozen=True)
class Compare:
    """Train the same network with each context module, and report quality, cost and what each does."""

    data: str = "scenes"
    """'scenes' (embedded), or a directory: CamVid, PASCAL VOC, or images/ and masks/"""
    modules: str = "default"
    """names with commas between, options as name+option=value; 'default', or 'all'"""
    seeds: int = 3
    """runs of each module"""
    steps: int = 360
    """updates of each run"""
    batch_size: int | None = None
    """pictures a step (default: 32 on the embedded scenes, else 16)"""
    backbone: str = "plain"
    """'plain' (from scratch), or any convolutional network of timm, e.g. efficientnet_lite0"""
    pretrained: str = "auto"
    """auto, none, or a file of weights"""
    freeze_backbone: bool | None = None
    """compute the backbone's features once and train what follows (default: yes for a backbone of timm on
    pictures of one size)"""
    output_stride: int | None = None
    """of the backbone"""
    width: int | None = None
    """channels that the context sees"""
    rank: int | None = None
    """of decompositions (default: half of the width, at most 64)"""
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

    def run(self) -> int:
        from rich.console import Console

        from widefield.cli.progress import Bars
        from widefield.data import load_segmentation
        from widefield.lab.comparison import compare
        from widefield.lab.report import write_report

        set_threads(self.threads)
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
        from widefield.lab.features import one_size

        batch = self.batch_size if self.batch_size is not None else 16 if data.natural else 32
        usual = self.backbone != "plain" and one_size(data)
        freeze = usual if self.freeze_backbone is None else self.freeze_backbone
        base = Experiment(
            module="none", data=self.data, data_options=self._data_options(), data_state=data.fingerprint(),
            backbone=self.backbone, pretrained=self.pretrained, output_stride=self.output_stride, width=self.width,
            freeze_backbone=freeze, batch_size=batch, steps=self.steps, lr=self.lr,
            evaluate_every=max(1, self.steps // 4), gate=None if self.closed_gates else 1.0,
            precision=self.precision, device=self.device,
        )  # fmt: skip
        if self.crop is not None:
            crop = integers(self.crop, "--crop")
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
            if name in ("json", "out") or value == default:
                continue
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True and name in ("binary", "closed_gates") else [flag, str(value)]
        return shlex.join([*words, "--out", str(self.folder)])


def _print_comparison(summary: dict[str, Any]) -> None:
    rows = []
    for r in summary["rows"]:
        if r["status"] == "failed":
            rows.append([r["module"], "failed", *[""] * 7])
            continue
        d = r["difference"]
        rows.append([
            r["module"],
            tables.score(r["mean"], r["half_width"]),
            f"{tables.signed(d['mean'], d['half_width'])} {d['verdict']}" if d else "baseline",
            tables.score(r["accuracy_mean"], r["accuracy_half_width"]),
            tables.million(r["parameters"]),
            ("≥ " if r["lower_bound"] else "") + tables.giga(r["multiply_adds"]),
            tables.mega_bytes(r["activation_memory_training"]),
            tables.duration(r["latency_training"]),
            f"{r['seconds']:.0f} s",
        ])  # fmt: skip
    s = summary["setting"]
    seeds = tables.counted(len(s["seeds"]), "seed")
    tables.print_table(
        ("module", "mIoU", f"against {summary['baseline']}", "accuracy", "parameters", "multiply-adds",
         "memory fwd+bwd", "time fwd+bwd", "training"),
        rows,
        caption=f"{summary['data']['name']}, {s['steps']} steps, {seeds}, ± 95% interval; cost of "
        f"the module alone at {'x'.join(map(str, s['feature_shape']))}",
    )  # fmt: skip
    print(summary["verdict"])
