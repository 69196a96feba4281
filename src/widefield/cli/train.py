# SPDX-License-Identifier: Apache-2.0
"""The commands `train` and `evaluate`."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from widefield.cli import tables
from widefield.cli.words import Flag, integers, set_threads

Task = Literal[
    "reconstruction", "classification", "copy", "repeat-copy", "associative-recall", "adding", "digits", "text",
    "music",
]  # fmt: skip
METHODS, CUBES = "first-estimate,gap-tv,gap-net,mst-s,dauhst-2stg", "indian_pines"
# The options that not every task takes.
OPTIONS = {
    "reconstruction": ("mask", "bands", "size", "crop", "step", "noise", "random_mask", "loss"),
    "classification": ("size", "augment", "optimizer", "target"),
    "tasks over sequences": ("length", "curriculum", "pretrain"),
}


@dataclass(frozen=True)
class Train:
    """Train networks on a task, several seeds each, and compare them on held-out data."""

    task: Task = "reconstruction"
    """what is learnt: cubes from snapshots, classes, or a task over sequences"""
    model: str | None = None
    """names with commas between, options as name+option=value (lists as 1/2/3); methods without training run once.
    The first is what the others are held against. Classes: mlp, cnn, resnet, efficientnet, vit (+mixer=...), a
    published token network, or timm:NAME. (default: some of every kind)"""
    data: str | None = None
    """reconstruction: 'indian_pines' (embedded, default), or a directory of cubes: CAVE, KAIST, TSA, or any folder
    of .mat, .npz, ENVI. Classes: 'digits' (embedded, default), 'iris', 'wine', 'breast-cancer', a table, or a
    directory: MNIST, CIFAR binary, folders of pictures. text: a text file; music: a .mat of piano rolls or a
    folder of pieces"""
    mask: str = "random"
    """file of the aperture, 'data' for the one the data set brings, or 'random'"""
    seeds: int = 1
    """runs of each model"""
    steps: int | None = None
    """updates of each run (default: 400; over sequences 2000)"""
    batch_size: int | None = None
    """samples a step (default: 5 scenes, 64 samples, 16 sequences)"""
    length: int | None = None
    """sequences: the longest in training (copy 20, repeat-copy 10, associative-recall 6), or steps (adding, text:
    100)"""
    curriculum: float = 0.0
    """copy, repeat-copy, associative-recall: share of the run over which the longest rises to --length"""
    pretrain: Literal["none", "greedy", "joint"] = "none"
    """sequences, model mlp: auto-encoders as a start, or write mlp+pretrain=greedy"""
    bands: int | None = None
    """bring the cubes to so many bands"""
    size: str | None = None
    """height,width: bring every scene or picture to one size"""
    augment: Literal["none", "plain", "timm"] | None = None
    """classes: shift and flip (plain, the default for pictures), or timm's RandAugment, erasing, mixup, cutmix"""
    optimizer: Literal["adam", "adamw", "sgd", "lamb"] | None = None
    """classes: (default: adamw)"""
    target: str | None = None
    """classes: column of a table, name or number (default: the last)"""
    crop: str | None = None
    """height,width of training samples (default: what fits, at most 256)"""
    step: int = 2
    """columns between neighbouring bands on the sensor"""
    noise: Literal["none", "shot"] = "none"
    """of the measurements"""
    random_mask: Flag = False
    """code every sample by another part of the mask, as for real data"""
    loss: Literal["rmse", "l1", "mse"] = "rmse"
    """rmse as in simulation, l1 as for real data"""
    lr: float | None = None
    """learning rate (default: the paper's)"""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """arithmetic"""
    device: str = "auto"
    """cpu, cuda or auto"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    out: Path | None = None
    """folder of the results (default: runs/train-<data or task>-<hash of the settings>)"""
    json: Flag = False
    """print the table as JSON"""

    def run(self) -> int:
        from rich.console import Console

        from widefield.cli.progress import Bars
        from widefield.data.cube_sets import load_cubes
        from widefield.lab.methods import MethodComparison, compare_methods
        from widefield.lab.report.methods import write_methods_report

        set_threads(self.threads)
        self._refuse()
        if self.kind == "classification":
            from widefield.cli.classification import train_classifiers

            return train_classifiers(self)
        if self.kind != "reconstruction":
            from widefield.cli.sequences import train_sequences

            return train_sequences(self)
        console = Console(stderr=True)
        data = load_cubes(self.data or CUBES, **self._data_options())
        console.print(data.summary(), highlight=False)
        methods = tuple(m.strip() for m in (METHODS if self.model is None else self.model).split(",") if m.strip())
        comparison = MethodComparison(methods, self.seeds, self._plan(data, methods))
        runs = sum(plan.trains for _, plan in comparison.plans())
        out = self.folder
        with Bars(console, runs, comparison.base.steps) as bars:
            summary = compare_methods(
                comparison, data, out, command=self.resume(), watch=bars.watch,
                told=lambda line: console.print(line, highlight=False),
            )  # fmt: skip
        page = write_methods_report(summary, out)
        if self.json:
            tables.print_json(summary)
        else:
            print_methods(summary)
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if any(row["status"] != "finished" for row in summary["rows"]):
            raise RuntimeError("not every run finished; the reasons are above and in the report")
        return 0

    @property
    def kind(self) -> str:
        """What `OPTIONS` calls the task."""
        return self.task if self.task in OPTIONS else "tasks over sequences"

    def _refuse(self) -> None:
        """Says which option belongs to other tasks, before it is passed over."""
        for kind, words in OPTIONS.items():
            for name in words:
                given = getattr(self, name) != type(self).__dataclass_fields__[name].default
                if given and name not in OPTIONS[self.kind]:
                    raise ValueError(
                        f"--{name.replace('_', '-')} belongs to {kind}, not to the task {self.task}; leave it out"
                    )

    def _data_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"bands": self.bands, "size": _pair(self.size, "--size")}
        return {k: v for k, v in options.items() if v is not None}

    def _plan(self, data: Any, methods: tuple[str, ...]) -> Any:
        from widefield.lab.methods import parse_method
        from widefield.lab.reconstruction import ReconstructionPlan

        if not methods:
            raise ValueError("no model given; `widefield train --help` shows an example")
        name, options = parse_method(methods[0])
        steps = 400 if self.steps is None else self.steps
        return ReconstructionPlan(
            method=name, options=options, data=self.data or CUBES, data_options=self._data_options(),
            data_state=data.fingerprint(), mask=self.mask, dispersion=self.step, crop=_pair(self.crop, "--crop"),
            noise=self.noise, random_mask=self.random_mask, loss=self.loss,
            batch_size=5 if self.batch_size is None else self.batch_size, steps=steps,
            evaluate_every=max(1, steps // 4), lr=self.lr, precision=self.precision,
            device=self.device,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Where the results go: the same for the same settings, so that the same command resumes."""
        if self.out is not None:
            return self.out
        settings = {k: str(v) for k, v in asdict(self).items() if k not in ("out", "json", "threads")}
        default = CUBES if self.task == "reconstruction" else self.task
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
        return Path("runs") / f"train-{Path(self.data or default).name}-{digest}"

    def resume(self) -> str:
        """The command that goes on where this one stopped."""
        words = ["widefield", "train"]
        for name, value in asdict(self).items():
            if name in ("json", "out") or value == type(self).__dataclass_fields__[name].default:
                continue
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        return shlex.join([*words, "--out", str(self.folder)])


@dataclass(frozen=True)
class Evaluate:
    """Score one method on the held-out scenes of a data set, scene by scene."""

    model: str
    """a network (with --weights), 'gap-tv', 'admm-tv', 'twist' or 'first-estimate'; options: name+option=value"""
    task: Literal["reconstruction"] = "reconstruction"
    """what is scored: cubes from snapshots"""
    data: str = "indian_pines"
    """'indian_pines' (embedded), or a directory of cubes; with TSA_simu_data in it: the ten KAIST scenes"""
    mask: str | None = None
    """file of the aperture, 'data' or 'random' (default: what the data set brings, else random)"""
    weights: Path | None = None
    """.safetensors, or a .pth of the published toolbox"""
    beside: str = ""
    """methods without training, with commas between, scored on the same measurements: first-estimate,gap-tv"""
    protocol: Literal["published", "training_log", "float"] = "published"
    """how PSNR and SSIM are computed"""
    bands: int | None = None
    """bring the cubes to so many bands"""
    size: str | None = None
    """height,width: bring every scene to one size"""
    step: int = 2
    """columns between neighbouring bands on the sensor"""
    noise: Literal["none", "shot"] = "none"
    """of the measurements"""
    device: str = "auto"
    """cpu, cuda or auto"""
    threads: int | None = None
    """CPU threads (default: torch's)"""
    json: Flag = False
    """print the table as JSON"""

    def run(self) -> int:
        from rich.console import Console
        from rich.progress import track

        from widefield.data.cube_sets import load_cubes
        from widefield.lab.methods import load_estimator
        from widefield.lab.reconstruction import ReconstructionPlan, estimates, plan_mask
        from widefield.tasks.reconstruction import Reconstruction

        set_threads(self.threads)
        console = Console(stderr=True)
        options = {"bands": self.bands, "size": _pair(self.size, "--size")}
        data = load_cubes(self.data, **{k: v for k, v in options.items() if v is not None})
        console.print(data.summary(), highlight=False)
        mask = self.mask or ("data" if data.mask is not None else "random")
        plan = ReconstructionPlan(method="first-estimate", data=self.data, mask=mask, dispersion=self.step)
        task = Reconstruction(
            data.train, data.val, plan_mask(plan, data), step=self.step, noise=self.noise, protocol=self.protocol
        )
        texts = [self.model, *(m.strip() for m in self.beside.split(",") if m.strip())]
        if len(set(texts)) < len(texts):
            raise ValueError(f"a method stands twice in {', '.join(texts)}; name each once")
        estimators = {
            text: load_estimator(
                text,
                data.bands,
                self.step,
                weights=self.weights if text == self.model else None,
                device=self.device,
            )
            for text in texts
        }
        scores = {}
        for text, estimator in estimators.items():
            found = track(
                estimates(task, estimator), total=len(data.val), description=text, console=console,
                transient=True, disable=not console.is_terminal,
            )  # fmt: skip
            scores[text] = task.score((s.names[0], cube[0], s.truth[0]) for s, cube in found)
        remark = self._domain(data)
        if self.json:
            said: dict[str, Any] = {"model": self.model, "data": data.name, "mask": mask}
            said |= scores[self.model].as_dict()
            said["beside"] = {text: scores[text].as_dict() for text in texts[1:]}
            tables.print_json(said | ({"remark": remark} if remark else {}))
            return 0
        rows = []
        for text, score in scores.items():
            rows += [[text, s.name, f"{s.psnr:.2f}", f"{s.ssim:.3f}", f"{s.sam:.2f}"] for s in score.scenes]
            if len(score.scenes) > 1:
                rows.append([text, "mean", f"{score.psnr:.2f}", f"{score.ssim:.3f}", f"{score.sam:.2f}"])
        tables.print_table(
            ("method", "scene", "PSNR dB", "SSIM", "SAM degrees"), rows,
            caption=f"{data.name}; mask: {mask}; protocol: {self.protocol}",
        )  # fmt: skip
        if remark:
            print(remark)
        return 0

    def _domain(self, data: Any) -> str:
        """What a reader must know of published weights on data that they were not made for."""
        # The benchmark's own sets bring the mask that the published networks were trained with.
        if self.weights is None or self.weights.suffix == ".safetensors" or data.mask is not None:
            return ""
        return (
            f"outside its training domain: published weights of {self.model} were trained on natural scenes of 28 "
            f"bands from 450 to 650 nm (CAVE) behind the benchmark's mask; {data.name} is not of that kind"
        )


def _pair(text: str | None, option: str) -> tuple[int, int] | None:
    if text is None:
        return None
    found = integers(text, option)
    if len(found) != 2 or min(found) < 1:
        raise ValueError(f"{option} takes height,width, got {text!r}")
    return found[0], found[1]


def print_methods(summary: dict[str, Any]) -> None:
    """The table of a comparison of methods."""
    rows = []
    for r in summary["rows"]:
        if r["status"] == "failed":
            rows.append([r["method"], "failed", *[""] * 6])
            continue
        d = r.get("difference")
        rows.append([
            r["method"],
            _score(r["psnr"], 2),
            f"{'+' if d['mean'] > 0 else ''}{_score(d, 2)} {d['verdict']}" if d else "baseline",
            _score(r["ssim"], 3),
            _score(r["sam"], 2),
            tables.million(r["parameters"]) if r["trains"] else "-",
            tables.giga(r.get("multiply_adds")) if r["trains"] else "-",
            f"{r['seconds']:.0f} s" if r.get("seconds") is not None else "-",
        ])  # fmt: skip
    s, data = summary["setting"], summary["data"]
    tables.print_table(
        ("method", "PSNR dB", f"against {summary['baseline']}", "SSIM", "SAM degrees", "parameters",
         "multiply-adds", "training"),
        rows,
        caption=f"{data['name']}: {len(data['train'])} training, {len(data['val'])} held-out scenes, {s['steps']} "
        f"steps, {tables.counted(s['seeds'], 'seed')}, ± 95% interval over seeds; mask {s['mask']}, "
        f"scores as {s['protocol']}",
    )  # fmt: skip
    print(summary["verdict"])


def _score(found: dict[str, Any], digits: int) -> str:
    half = found.get("half_width")
    return f"{found['mean']:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")
