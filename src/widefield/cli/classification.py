# SPDX-License-Identifier: Apache-2.0
"""`widefield train --task classification`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from widefield.cli import tables
from widefield.cli.words import integers

if TYPE_CHECKING:
    from widefield.cli.train import Train

_MODELS = "cnn,vit,vit+mixer=ff-only,vit+mixer=mlp-mixer"
_STEPS, _BATCH = 400, 64


def train_classifiers(words: Train) -> int:
    """Trains the networks that the words of the command name, and prints their table."""
    from rich.console import Console

    from widefield.cli.progress import Bars
    from widefield.data.classification import load_classification
    from widefield.lab.classification import ClassificationPlan, ClassifierComparison, compare_classifiers
    from widefield.lab.report.classifiers import write_classifiers_report

    console = Console(stderr=True)
    name = words.data or "digits"
    options: dict[str, Any] = {} if words.target is None else {"target": words.target}
    data = load_classification(name, **options)
    console.print(data.summary(), highlight=False)
    size = None if words.size is None else integers(words.size, "--size")
    if size is not None and len(size) != 2:
        raise ValueError(f"--size takes height,width, got {words.size!r}")
    steps = _STEPS if words.steps is None else words.steps
    base = ClassificationPlan(
        model="cnn", data=name, data_options=options, data_state=data.fingerprint(),
        crop=None if size is None else (size[0], size[1]), augment=words.augment, optimizer=words.optimizer,
        batch_size=_BATCH if words.batch_size is None else words.batch_size, steps=steps,
        evaluate_every=max(1, steps // 8), lr=words.lr, precision=words.precision, device=words.device,
    )  # fmt: skip
    usual = "mlp" if data.is_table else _MODELS
    models = tuple(m.strip() for m in (words.model or usual).split(",") if m.strip())
    comparison = ClassifierComparison(models, words.seeds, base)
    with Bars(console, len(models) * words.seeds, steps) as bars:
        summary = compare_classifiers(
            comparison, data, words.folder, command=words.resume(), watch=bars.watch,
            told=lambda line: console.print(line, highlight=False),
        )  # fmt: skip
    page = write_classifiers_report(summary, words.folder)
    if words.json:
        tables.print_json(summary)
    else:
        print_classifiers(summary)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    if any(row["status"] != "finished" for row in summary["rows"]):
        raise RuntimeError("not every run finished; the reasons are above and in the report")
    return 0


def print_classifiers(summary: dict[str, Any]) -> None:
    """The table of a comparison of classifiers."""
    rows = []
    for r in summary["rows"]:
        if r["status"] == "failed":
            rows.append([r["model"], "failed", *[""] * 5])
            continue
        d = r.get("difference")
        rows.append([
            r["model"],
            tables.score(r["accuracy"]["mean"], r["accuracy"]["half_width"]),
            f"{tables.signed(d['mean'], d['half_width'])} {d['verdict']}" if d else "baseline",
            tables.score(r["balanced"]["mean"], r["balanced"]["half_width"]),
            tables.million(r["parameters"]), tables.giga(r["multiply_adds"]), f"{r['seconds']:.0f} s",
        ])  # fmt: skip
    s, data = summary["setting"], summary["data"]
    tables.print_table(
        ("network", "accuracy", f"against {summary['baseline']}", "balanced", "parameters", "multiply-adds",
         "training"),
        rows,
        caption=f"{data['name']}: {data['train']} training, {data['val']} validation samples of "
        f"{'x'.join(map(str, s['shape']))}, {s['steps']} steps of {s['batch_size']} ({s['epochs']:g} epochs), "
        f"{tables.counted(s['seeds'], 'seed')}, ± 95% interval; augmentation {s['augment']}",
    )  # fmt: skip
    print(summary["verdict"])
