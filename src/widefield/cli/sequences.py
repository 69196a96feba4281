# SPDX-License-Identifier: Apache-2.0
"""`train` on tasks over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from widefield.cli import tables

if TYPE_CHECKING:
    from widefield.cli.train import Train

STEPS, BATCH = 2000, 16
NETWORKS = "lstm,gru,rnn-orthogonal,rnn"


def train_sequences(words: Train) -> int:
    """Runs what the command asks for."""
    from rich.console import Console

    from widefield.cli.progress import Bars
    from widefield.lab.report.sequences import write_sequence_report
    from widefield.lab.sequence_comparison import SequenceComparison, compare_networks, parse_network
    from widefield.lab.sequences import SequencePlan, build_task, read_data

    console = Console(stderr=True)
    text = NETWORKS if words.model is None else words.model
    networks = tuple(n.strip() for n in text.split(",") if n.strip())
    if not networks:
        raise ValueError("no model given; `widefield train --help` shows an example")
    for network in networks:
        parse_network(network)
    data = read_data(words.task, words.data or "")
    steps = STEPS if words.steps is None else words.steps
    base = SequencePlan(
        task=words.task, method=parse_network(networks[0])[0], task_options=_task_options(words),
        data=words.data or "", data_state=data.fingerprint() if data is not None else "", pretrain=words.pretrain,
        batch_size=BATCH if words.batch_size is None else words.batch_size, steps=steps,
        evaluate_every=max(1, steps // 10), lr=words.lr, precision=words.precision, device=words.device,
    )  # fmt: skip
    comparison = SequenceComparison(networks, words.seeds, base)
    task = build_task(base, data)
    console.print(
        f"{words.task}: {task.input_size} numbers a step in, {task.output_size} out; scored by {task.measure}",
        highlight=False,
    )
    out = words.folder
    with Bars(console, len(comparison.plans()), steps) as bars:
        summary = compare_networks(
            comparison, data, out, command=words.resume(), watch=bars.watch,
            told=lambda line: console.print(line, highlight=False),
        )  # fmt: skip
    page = write_sequence_report(summary, out)
    if words.json:
        tables.print_json(summary)
    else:
        print_networks(summary)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    if any(row["status"] != "finished" for row in summary["rows"]):
        raise RuntimeError("not every run finished; the reasons are above and in the report")
    return 0


def _task_options(words: Train) -> dict[str, Any]:
    options: dict[str, Any] = {}
    bits = words.task in ("copy", "repeat-copy", "associative-recall")
    if words.length is not None:
        if not bits and words.task not in ("adding", "text"):
            raise ValueError(f"the task {words.task} has no length to choose; leave --length out")
        options["longest" if bits else "length"] = words.length
    if words.curriculum:
        if not bits:
            raise ValueError(f"the task {words.task} has no curriculum; leave --curriculum out")
        options["curriculum"] = words.curriculum
    return options


def print_networks(summary: dict[str, Any]) -> None:
    """The table of a comparison of networks over sequences."""
    from widefield.lab.report.sequences import interval

    finished = [row for row in summary["rows"] if row["status"] == "finished"]
    others = list(dict.fromkeys(n for row in finished for n in row["scores"] if n != summary["key"]))
    rows = []
    for row in summary["rows"]:
        if row["status"] == "failed":
            rows.append([row["network"], "failed", *[""] * (len(others) + 3)])
            continue
        d = row.get("difference")
        rows.append([
            row["network"], interval(row["score"]),
            f"{interval(d, sign=True)} {d['verdict']}" if d else "baseline",
            *(interval(row["scores"][name]) if name in row["scores"] else "-" for name in others),
            tables.million(row["parameters"]), f"{row['seconds']:.0f} s",
        ])  # fmt: skip
    s = summary["setting"]
    without = ", ".join(f"{name} {value:.4g}" for name, value in summary["baselines"].items())
    tables.print_table(
        ("network", summary["measure"], f"against {summary['baseline']}", *(n.replace("_", " ") for n in others),
         "parameters", "training"),
        rows,
        caption=f"{summary['task']}{' of ' + summary['data'] if summary['data'] else ''}: {s['steps']} steps of "
        f"{s['batch_size']}, {tables.counted(s['seeds'], 'seed')}, ± 95% interval over seeds; "
        f"{'more' if summary['higher_is_better'] else 'less'} is better; without a network: {without}",
    )  # fmt: skip
    print(summary["verdict"])
