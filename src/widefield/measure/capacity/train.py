# SPDX-License-Identifier: Apache-2.0
"""Many networks trained at once, on sets of different sizes, until each has fitted or spent its budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from .network import Copies
from .optimizers import make_optimizer
from .procedure import Procedure
from .samples import Samples

# Samples of all networks that a look at the whole sets takes at once.
_CHUNK = 1 << 16
# Checks without any change after which L-BFGS has come to its end.
_STILL = 4


@dataclass(frozen=True)
class Job:
    """One training: which set, which initialisation, which rate.

    Attributes:
        samples: to be fitted.
        rate: learning rate.
        seed: of the initialisation and of the order of the batches.
        probe: jobs of one probe end together, as soon as one of them has fitted its set.
        patient: never given up before its budget is spent.
        limit: updates after which one that is not patient is given up; None: its budget.
    """

    samples: Samples
    rate: float
    seed: int
    probe: int
    patient: bool = False
    limit: int | None = None


@dataclass
class Fit:
    """What became of a training.

    Attributes:
        fitted: every sample was right at a check.
        wrong: the smallest share of wrong samples seen.
        loss: mean loss at the last check.
        losses: at every check.
        steps: updates done.
        ending: "fitted", "budget spent", "converged", "given up", "not finite", or "another one fitted".
        seed, rate: of the training.
        flat, buffers: the network at the end.
        start_norm: of the gradient over the whole set, before the first update.
    """

    fitted: bool = False
    wrong: float = 1.0
    loss: float = float("inf")
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    ending: str = ""
    flat: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    start_norm: float = 0.0
    seed: int = 0
    rate: float = 0.0


def sample_losses(output: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """`(..., outputs)` and labels to the loss of each sample `(...)`: cross-entropy, or mean squared error."""
    if not num_classes:
        return (output - labels).square().mean(-1)
    flat = F.cross_entropy(output.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def missed(output: Tensor, labels: Tensor, num_classes: int, tolerance: Tensor) -> Tensor:
    """Which samples are wrong: another class is as high, or the target is missed by more than the tolerance."""
    if not num_classes:
        return ((output - labels).abs() > tolerance[..., None, None]).any(-1) | ~output.isfinite().all(-1)
    right = output.gather(-1, labels[..., None])
    best_other = output.scatter(-1, labels[..., None], -torch.inf).amax(-1)
    return ~(right[..., 0] > best_other)  # also where the output is not a number


def draw(size: int, batch: int, seed: int, start: int, stop: int) -> Tensor:
    """`(stop - start, batch)`: the samples of a range of updates; orders of epochs are strung together."""
    if batch == size:
        return torch.arange(size).expand(stop - start, size)
    first, last = start * batch // size, (stop * batch - 1) // size
    orders = [
        torch.randperm(size, generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch + 1) % 2**63))
        for epoch in range(first, last + 1)
    ]
    places = torch.cat(orders)[start * batch - first * size :]
    return places[: (stop - start) * batch].view(stop - start, batch)


class Ensemble:
    """The jobs that still run, as tensors with one row each.

    Args:
        copies: the network.
        procedure: of the training.
        jobs: what to train; jobs of one probe end together, as soon as one of them has fitted its set.
        watch: told after every check how many updates of how many are done.
    """

    def __init__(
        self,
        copies: Copies,
        procedure: Procedure,
        jobs: Sequence[Job],
        watch: Callable[[int, int], None] | None = None,
    ) -> None:
        self.copies, self.procedure, self.jobs, self.watch = copies, procedure, list(jobs), watch
        device, dtype = copies.device, copies.dtype
        self.fits = [Fit(seed=job.seed, rate=job.rate) for job in jobs]
        self.alive = list(range(len(jobs)))
        self.sizes = [len(job.samples) for job in jobs]
        self.batches = [procedure.batch(n) for n in self.sizes]
        self.budgets = [procedure.steps(n) for n in self.sizes]
        # Jobs on one set share its rows: each set stands in the pool once.
        places: dict[int, int] = {}
        inputs, labels, filled = [], [], 0
        for job in jobs:
            if id(job.samples) not in places:
                places[id(job.samples)] = filled
                filled += len(job.samples)
                inputs.append(job.samples.inputs.to(device, dtype))
                y = job.samples.labels.to(device)
                labels.append(y if job.samples.num_classes else y.to(dtype))
        self.inputs, self.labels = torch.cat(inputs), torch.cat(labels)
        self.offsets = [places[id(job.samples)] for job in jobs]
        self.num_classes = jobs[0].samples.num_classes
        self.tolerances = [
            0.0 if self.num_classes else procedure.tolerance * float(_spread(job.samples.labels)) for job in jobs
        ]
        self.flat, self.buffers = copies.fresh([job.seed for job in jobs])
        rates = torch.tensor([job.rate for job in jobs], dtype=dtype, device=device)
        self.optimizer = make_optimizer(procedure, self.flat, rates, copies.shapes)
        self.step = 0

    def run(self) -> list[Fit]:
        """Trains to the end."""
        norms = self.gradient_norms()
        for i, norm in zip(self.alive, norms.tolist(), strict=True):
            self.fits[i].start_norm = norm
        self._check()
        longest = max(self.budgets)
        while self.alive:
            stop = min(self.step + self.procedure.check_every, min(self.budgets[i] for i in self.alive))
            self._train(stop)
            self._check()
            if self.watch:
                self.watch(self.step if self.alive else longest, longest)
        return self.fits

    def gradient_norms(self) -> Tensor:
        """`(e,)`: of the mean loss over each whole set, in eval mode."""
        flat = self.flat.detach().requires_grad_()
        total = torch.zeros_like(flat)
        for rows, mask in self._whole_sets():
            with torch.enable_grad():
                losses, _ = self._look(flat, rows, mask)
                total += torch.autograd.grad(losses.sum(), flat)[0]
        return total.norm(dim=1) / self._counts()

    def _train(self, stop: int) -> None:
        rows, mask = self._drawn(self.step, stop)
        share = mask.to(self.flat.dtype) / mask.sum(-1, keepdim=True)
        for k in range(stop - self.step):
            x, y, weight = self.inputs[rows[k]], self.labels[rows[k]], share

            def losses(
                flat: Tensor, only: int | None = None, x: Tensor = x, y: Tensor = y, weight: Tensor = weight
            ) -> Tensor:
                buffers, part = self.buffers, slice(None) if only is None else slice(only, only + 1)
                if only is not None:
                    buffers = {name: value[part] for name, value in buffers.items()}
                output = self.copies.forward(flat, buffers, x[part], training=self.copies.changes_in_training)
                return (sample_losses(output, y[part], self.num_classes) * weight[part]).sum(-1)

            factors = [self.procedure.factor(self.step, self.budgets[i]) for i in self.alive]
            self.optimizer.step(self.flat, losses, torch.tensor(factors, dtype=torch.float64).to(self.flat))
            self.step += 1

    def _drawn(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """`(steps, e, b)` rows of the pool and `(e, b)` which of them count."""
        widest = max(self.batches[i] for i in self.alive)
        rows = torch.zeros(stop - start, len(self.alive), widest, dtype=torch.int64)
        mask = torch.zeros(len(self.alive), widest, dtype=torch.bool)
        for e, i in enumerate(self.alive):
            b = self.batches[i]
            rows[:, e, :b] = draw(self.sizes[i], b, self.jobs[i].seed, start, stop) + self.offsets[i]
            # A batch that is filled up with samples of its own keeps the statistics of norms within the set.
            rows[:, e, b:] = rows[:, e, :b].repeat(1, -(-widest // b))[:, b:widest]
            mask[e, :b] = True
        return rows.to(self.flat.device), mask.to(self.flat.device)

    def _whole_sets(self) -> list[tuple[Tensor, Tensor]]:
        """`(e, c)` rows and which of them count, chunk by chunk."""
        widest, chunk = max(self.sizes[i] for i in self.alive), max(1, _CHUNK // len(self.alive))
        found = []
        sizes = torch.tensor([self.sizes[i] for i in self.alive])[:, None]
        offsets = torch.tensor([self.offsets[i] for i in self.alive])[:, None]
        for start in range(0, widest, chunk):
            places = torch.arange(start, min(start + chunk, widest))[None]
            rows = (offsets + torch.minimum(places, sizes - 1)).to(self.flat.device)
            found.append((rows, (places < sizes).to(self.flat.device)))
        return found

    def _look(self, flat: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`(e,)` summed losses and numbers of wrong samples."""
        x, y = self.inputs[rows], self.labels[rows]
        output = self.copies.forward(flat, self.buffers, x)
        tolerance = torch.tensor([self.tolerances[i] for i in self.alive]).to(flat)
        wrong = missed(output.detach(), y, self.num_classes, tolerance)
        losses = torch.where(mask, sample_losses(output, y, self.num_classes), 0)
        return losses.sum(1), (wrong & mask).sum(1)

    def _counts(self) -> Tensor:
        return torch.tensor([self.sizes[i] for i in self.alive]).to(self.flat)

    @torch.no_grad()
    def _check(self) -> None:
        """Looks at the whole sets; what is decided leaves."""
        looks = [self._look(self.flat, rows, mask) for rows, mask in self._whole_sets()]
        losses = (torch.stack([loss for loss, _ in looks]).sum(0) / self._counts()).tolist()
        wrong = torch.stack([w for _, w in looks]).sum(0).tolist()
        endings: dict[int, str] = {}
        for e, i in enumerate(self.alive):
            fit, share = self.fits[i], wrong[e] / self.sizes[i]
            fit.steps, fit.loss, fit.wrong = self.step, losses[e], min(fit.wrong, share)
            fit.losses.append(losses[e])
            if wrong[e] == 0:
                endings[e], fit.fitted = "fitted", True
            elif losses[e] != losses[e] or losses[e] == float("inf"):
                endings[e] = "not finite"
            elif self.step >= self.budgets[i]:
                endings[e] = "budget spent"
            elif not self.jobs[i].patient and self._hopeless(i, wrong[e]):
                endings[e] = "given up"
            elif self._converged(fit.losses):
                endings[e] = "converged"
        done = {self.jobs[self.alive[e]].probe for e, ending in endings.items() if ending == "fitted"}
        for e, i in enumerate(self.alive):
            if self.jobs[i].probe in done:
                endings.setdefault(e, "another one fitted")
        for e, ending in endings.items():
            fit = self.fits[self.alive[e]]
            fit.ending, fit.flat = ending, self.flat[e].clone()
            fit.buffers = {name: value[e].clone() for name, value in self.buffers.items()}
        if endings:
            rest = [e for e in range(len(self.alive)) if e not in endings]
            rows = torch.tensor(rest, dtype=torch.int64, device=self.flat.device)
            self.alive = [self.alive[e] for e in rest]
            self.flat = self.flat[rows]
            self.buffers = {name: value[rows] for name, value in self.buffers.items()}
            self.optimizer.keep(rows)

    def _hopeless(self, i: int, wrong: int) -> bool:
        limit = self.jobs[i].limit
        late = limit is not None and self.step >= limit
        return late or wrong > self.procedure.allowed(self.step, self.budgets[i], self.sizes[i])

    def _converged(self, losses: list[float]) -> bool:
        """L-BFGS ends by itself: what no longer moves stays as it is."""
        last = losses[-_STILL:]
        return (
            self.procedure.optimizer == "lbfgs" and len(last) == _STILL and max(last) - min(last) <= 1e-9 * last[0]
        )


def _spread(targets: Tensor) -> Tensor:
    spread = targets.double().std() if targets.numel() > 1 else torch.ones((), dtype=torch.float64)
    return spread if float(spread) > 0 else torch.ones_like(spread)


def train(
    copies: Copies,
    procedure: Procedure,
    jobs: Sequence[Job],
    *,
    members: int = 256,
    watch: Callable[[int, int], None] | None = None,
) -> list[Fit]:
    """Trains all jobs, so many at once; jobs of one probe stay together."""
    found: dict[int, Fit] = {}
    probes: dict[int, list[int]] = {}
    for place, job in enumerate(jobs):
        probes.setdefault(job.probe, []).append(place)
    group: list[int] = []
    groups = [group]
    for places in probes.values():
        if group and len(group) + len(places) > members:
            group = []
            groups.append(group)
        group += places
    for group in groups:
        chosen = [jobs[place] for place in group]
        for place, fit in zip(group, Ensemble(copies, procedure, chosen, watch).run(), strict=True):
            found[place] = fit
    return [found[place] for place in range(len(jobs))]
