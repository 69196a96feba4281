# SPDX-License-Identifier: Apache-2.0
"""Two processes with gloo between them, started once and asked many times."""

from __future__ import annotations

import atexit
import pickle
import tempfile
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

PATIENCE = 120.0  # seconds


def gradients_on_two_ranks(module: bytes, x: Tensor, cotangent: Tensor) -> list[dict[str, Tensor]]:
    """Gradients of the parameters of a pickled module under DistributedDataParallel, as each process holds them.

    Args:
        module: pickled; each process unpickles its own.
        x: `(4, c, *space)`; two samples go to each process.
        cotangent: of the output, `(4, ...)`.

    Raises:
        RuntimeError: what went wrong in a process, in its words; or no answer within two minutes.
    """
    pipes = _workers()
    for pipe in pipes:
        pipe.send((module, x.numpy(), cotangent.contiguous().numpy()))
    answers = []
    for rank, pipe in enumerate(pipes):
        answer = _answer(pipe)
        if isinstance(answer, str):
            _stop()
            raise RuntimeError(f"process {rank}: {answer}")
        answers.append({name: None if g is None else torch.from_numpy(g) for name, g in answer.items()})
    return answers


def _answer(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(PATIENCE) else f"no answer within {PATIENCE:g} s"
    except (EOFError, OSError):
        return "ended without an answer"


@cache
def _workers() -> list[Connection]:
    context = mp.get_context("spawn")
    folder = tempfile.TemporaryDirectory(prefix="widefield-ranks-")
    ends = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=_serve, args=(rank, folder.name, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    _RUNNING.append((folder, processes))
    atexit.register(_stop)
    return [ours for ours, _ in ends]


_RUNNING: list[tuple[tempfile.TemporaryDirectory[str], list[Any]]] = []


def _stop() -> None:
    _workers.cache_clear()
    while _RUNNING:
        folder, processes = _RUNNING.pop()
        for process in processes:
            process.kill()
            process.join()
        folder.cleanup()


def _serve(rank: int, folder: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    while True:
        try:
            module, x, cotangent = pipe.recv()
        except EOFError:  # whoever asked has ended
            return
        mine = slice(2 * rank, 2 * rank + 2)
        try:
            wrapped = DistributedDataParallel(pickle.loads(module))
            y = wrapped(torch.from_numpy(x)[mine])
            (y * torch.from_numpy(cotangent)[mine]).sum().backward()
            answer: Any = {
                name: None if p.grad is None else p.grad.numpy()
                for name, p in wrapped.module.named_parameters()
                if p.requires_grad
            }
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        pipe.send(answer)
