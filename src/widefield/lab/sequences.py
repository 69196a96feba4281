# SPDX-License-Identifier: Apache-2.0
"""From a plan to its record: one network trained on a task over sequences, from one seed."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from widefield.core.errors import UnknownOption, unknown
from widefield.core.files import write_bytes, write_json
from widefield.data.sequences import MusicData, TextData, read_music, read_text
from widefield.lab.experiment import Plan
from widefield.lab.loop import Progress, Watcher, Work, make_fabric, train
from widefield.lab.pretraining import MODES, pretrain
from widefield.lab.record import Record
from widefield.measure.flow import distance_from_orthogonality, recurrent_matrices
from widefield.models.sequences import DeepNetwork, create_sequence_network, hidden_layers
from widefield.sequence import NTM
from widefield.tasks.sequences import AssociativeRecall, BitTask, Copy, RepeatCopy, SequenceBatch, SequenceTask
from widefield.tasks.sequences_adding import Adding, Digits
from widefield.tasks.sequences_text import CharacterModel, Music

TASKS: dict[str, Callable[..., SequenceTask]] = {
    "copy": Copy, "repeat-copy": RepeatCopy, "associative-recall": AssociativeRecall, "adding": Adding,
    "digits": Digits, "text": CharacterModel, "music": Music,
}  # fmt: skip
READERS: dict[str, Callable[[Path], TextData | MusicData]] = {"text": read_text, "music": read_music}


@dataclass(frozen=True)
class SequencePlan(Plan):
    """Train one network on one task.

    Attributes:
        task: one of `TASKS`.
        method, options: the network, as for `create_sequence_network`.
        task_options: of the task.
        data, data_state: file of a text or of music, and its fingerprint.
        pretrain: "none", "greedy" or "joint": auto-encoders before the training.
        pretrain_steps: of every layer.
    """

    task: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    data_state: str = ""
    pretrain: str = "none"
    pretrain_steps: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        if self.pretrain not in MODES:
            raise unknown("pre-training", self.pretrain, MODES)

    @property
    def label(self) -> str:
        return self.method

    @property
    def title(self) -> str:
        start = "" if self.pretrain == "none" else f" after {self.pretrain} auto-encoders"
        return f"{self.method}{start} seed {self.seed}"

    def check_result(self, result: Any) -> None:
        super().check_result(result)
        _ = result["baselines"], result["key"], result["score"][result["key"]]


Data = TextData | MusicData | None


def read_data(task: str, path: str) -> Data:
    """What a task is about, if it is about anything.

    Raises:
        ValueError: a file where none is needed, or none where one is.
    """
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if task not in READERS:
        if path:
            raise ValueError(f"the task {task} makes its own sequences; leave --data out")
        return None
    if not path:
        wanted = "any text file" if task == "text" else "a .mat of piano rolls, or a folder of pieces"
        raise ValueError(f"the task {task} needs --data: {wanted}")
    return READERS[task](Path(path))


def build_task(plan: SequencePlan, data: Data) -> SequenceTask:
    """The task of a plan.

    Raises:
        UnknownOption: an option that the task does not have.
    """
    kind: Any = TASKS[plan.task]
    given: dict[str, Any] = dict(plan.task_options)
    accepted = set(inspect.signature(kind).parameters) | (
        set(inspect.signature(BitTask).parameters) if issubclass(kind, BitTask) else set()
    )
    accepted -= {"batch_size", "seed", "data", "steps", "settings"}
    for option in given:
        if option not in accepted:
            raise UnknownOption(str(unknown(f"option of the task {plan.task}", option, accepted)))
    if issubclass(kind, BitTask):
        given["steps"] = plan.steps
    if data is not None:
        given["data"] = data
    return kind(batch_size=plan.batch_size, seed=plan.seed, **given)


def build_network(plan: SequencePlan, task: SequenceTask) -> nn.Module:
    """The network of a plan, from its seed; the global generator is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        return create_sequence_network(
            plan.method, task.input_size, task.output_size, plan.options, fixed_steps=task.fixed_steps
        )


def run_sequence(plan: SequencePlan, root: Path, *, watch: Watcher | None = None, data: Data = None) -> Record:
    """Runs a plan below `root`, or what is left of it, or nothing if its record is finished.

    Raises:
        Diverged: the loss is not finite. And whatever building the network or reading the data raises.
    """
    record = Record.open(root, plan)
    if record.finished:
        return record
    fabric = make_fabric(plan)
    task = build_task(plan, data if data is not None else read_data(plan.task, plan.data))
    network = build_network(plan, task).to(fabric.device)
    recipe = task.recipe if plan.lr is None else replace(task.recipe, lr=plan.lr)
    begun: dict[str, Any] = {}
    if plan.pretrain != "none":
        begun["reconstruction_error"] = start_from_auto_encoders(plan, task, network, fabric.device, watch)

    def loss(step: int) -> tuple[Tensor, dict[str, Any]]:
        batch = task.batch(step).to(fabric.device)
        return task.loss(network(batch.x, None, batch.lengths)[0], batch), {}

    def validate() -> dict[str, float | None]:
        found = task.score(outputs(network, task, fabric.device))
        scores: dict[str, float | None] = {
            name: value for name, value in found.items() if isinstance(value, (int, float))
        }
        matrices = recurrent_matrices(network)
        if matrices:  # whether a start survives the training
            scores["orthogonality"] = sum(map(distance_from_orthogonality, matrices.values())) / len(matrices)
        return scores

    work = Work(loss, validate, measure=task.measure, key=task.key)
    seconds = train(record, plan, network, recipe, work, fabric, watch=watch)
    said = outputs(network, task, fabric.device)
    save_example(record.folder / "evidence.npz", network, task, said, fabric.device)
    write_json(record.folder / "timing.json", {"seconds": round(seconds, 3)})
    parameters = sum(p.numel() for p in network.parameters())
    result = {
        "score": task.score(said), "key": task.key, "baselines": dict(task.baselines()),
        "parameters": {"total": parameters, "trained": parameters}, "recipe": dict(recipe.as_dict()), **begun,
    }  # fmt: skip
    record.finish(result, network)
    return record


def start_from_auto_encoders(
    plan: SequencePlan, task: SequenceTask, network: nn.Module, device: torch.device, watch: Watcher | None
) -> list[float]:
    """Pre-trains the layers on the inputs of the task; repeats to the same weights where a run resumes."""
    layers, whole = hidden_layers(network), cast(DeepNetwork, network)
    total = plan.pretrain_steps * len(layers)
    done = [0]

    def told(step: int, error: float) -> None:
        done[0] += 1
        if watch:
            watch(Progress(plan, done[0], total, error, measure=task.measure, stage="pretraining"))

    def batch(step: int) -> Tensor:
        return whole.flat(task.batch(step).x.to(device))

    torch.manual_seed(plan.seed)
    return pretrain(layers, batch, mode=plan.pretrain, steps=plan.pretrain_steps, told=told)


@torch.no_grad()
def outputs(network: nn.Module, task: SequenceTask, device: torch.device) -> list[tuple[Tensor, SequenceBatch]]:
    """What a network says on what is scored, on the CPU; it is left in eval mode."""
    network.eval()
    said, state = [], None
    for batch in task.batches():
        there = batch.to(device)
        output, after = network(there.x, state, there.lengths)
        state = after if task.carried else None
        said.append((output.float().cpu(), batch))
    return said


@torch.no_grad()
def save_example(
    path: Path,
    network: nn.Module,
    task: SequenceTask,
    said: list[tuple[Tensor, SequenceBatch]],
    device: torch.device,
) -> None:
    """One scored sequence; of a Turing machine also its weights at every step and the memory it leaves."""
    index = len(said) - (2 if isinstance(task, BitTask) and len(said) > 1 else 1)
    output, batch = said[index]
    found = {"x": batch.x[0].numpy(), "y": np.atleast_1d(batch.y[0].numpy()), "output": output[0].numpy()}
    if batch.counts is not None:
        found["counts"] = batch.counts[0].numpy()
    layer = getattr(network, "layer", None)
    if isinstance(layer, NTM):
        trace = layer.trace(batch.x[:1].to(device))
        weights = trace.weights[0].cpu().numpy()
        found |= {"read": weights[:, 0], "write": weights[:, 1], "memory": trace.state[0][0].cpu().numpy()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{k: v.astype(np.float32) for k, v in found.items()})  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())
