# SPDX-License-Identifier: Apache-2.0
"""Many copies of one network as one: all parameters of a copy in one row of a matrix.

`torch.func` (functorch) ensembles: one batched product a layer serves all copies, which is what makes dozens
of trainings of a small network cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .chain import chain_of, run_chain

Builder = Callable[[], nn.Module]


class Copies:
    """The shapes of a network, and its forward for rows of parameters.

    Args:
        build: makes a freshly initialised network from torch's global generator.
        shape: of one sample.
        outputs: how many numbers the network has to give for a sample.
        dtype, device: to work in.
        together: run all copies in one call; one after the other if the network cannot.

    Raises:
        ValueError: nothing to train, or an output of another width.
        TypeError: `build` does not return a module.
    """

    def __init__(
        self,
        build: Builder,
        shape: Sequence[int],
        outputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        together: bool = True,
    ) -> None:
        self.build, self.dtype, self.device = build, dtype, torch.device(device)
        model = self._fresh(0)
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        if not self.names:
            raise ValueError("the network has no parameter that requires a gradient; nothing can be trained")
        parameters = dict(model.named_parameters())
        self.shapes = [parameters[name].shape for name in self.names]
        self.sizes = [parameters[name].numel() for name in self.names]
        self.parameters = sum(self.sizes)
        self.base = model
        self.changes_in_training = any(
            isinstance(m, (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)) for m in model.modules()
        )
        self.chain = chain_of(model)
        self._check_output(shape, outputs)
        self.together = together and self._can_be_batched(shape)

    def fresh(self, seeds: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """New copies, each initialised from its own seed: `(e, p)` parameters, and what else they hold, stacked.

        The global generator is left as it was.
        """
        rows, others = [], []
        for seed in seeds:
            model = self._fresh(seed)
            parameters = dict(model.named_parameters())
            rows.append(torch.cat([parameters[name].detach().flatten() for name in self.names]))
            frozen = {name: p.detach() for name, p in parameters.items() if name not in self.names}
            others.append(frozen | {name: b.detach().clone() for name, b in model.named_buffers()})
        return torch.stack(rows), {name: torch.stack([o[name] for o in others]) for name in others[0]}

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """`(..., p)` to the parameters by name, as views `(..., *shape)`."""
        parts = flat.split(self.sizes, dim=-1)
        return {
            name: part.unflatten(-1, shape) if len(shape) else part.squeeze(-1)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def forward(self, flat: Tensor, buffers: dict[str, Tensor], x: Tensor, *, training: bool = False) -> Tensor:
        """`(e, p)` parameters and `(e, b, *shape)` inputs to `(e, b, outputs)`; training moves the buffers."""
        self.base.train(training)
        if self.together and self.chain is not None:
            return run_chain(self.chain, self.unflatten(flat), x).flatten(2)
        if self.together:
            run = vmap(self._one, randomness="different")
            # The fused kernels of attention have no batched form.
            with sdpa_kernel(SDPBackend.MATH):
                return run(self.unflatten(flat), buffers, x).flatten(2)
        found = []
        for i in range(len(flat)):
            mine = {name: value[i] for name, value in buffers.items()}
            found.append(self._one(self.unflatten(flat[i]), mine, x[i]))
        return torch.stack(found).flatten(2)

    def one(self, flat: Tensor, buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        """One copy in eval mode: `(p,)` and `(b, *shape)` to `(b, outputs)`."""
        self.base.eval()
        return self._one(self.unflatten(flat), buffers, x).flatten(1)

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        found = functional_call(self.base, (parameters, buffers), (x,))
        return found[:, None] if found.dim() == 1 else found

    def _fresh(self, seed: int) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            model = self.build()
        if not isinstance(model, nn.Module):
            raise TypeError(f"build_model returned a {type(model).__name__}; it must return a new torch.nn.Module")
        return model.to(self.device, self.dtype)

    def _check_output(self, shape: Sequence[int], outputs: int) -> None:
        x = torch.zeros(2, *shape, dtype=self.dtype, device=self.device)
        try:
            with torch.no_grad():
                found: Any = self.base.eval()(x)
        except RuntimeError as error:
            raise ValueError(
                f"the network cannot take inputs (b, {', '.join(map(str, shape))}): {str(error).splitlines()[0]}"
            ) from error
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        wide = found[:, None] if isinstance(found, Tensor) and found.dim() == 1 else found
        if not isinstance(wide, Tensor) or tuple(wide.shape) != (2, outputs):
            raise ValueError(
                f"the network gives {given} for a batch of 2; the labels need (2, {outputs}): build it with "
                f"{outputs} outputs"
            )

    def _can_be_batched(self, shape: Sequence[int]) -> bool:
        flat, buffers = self.fresh([0, 1])
        x = torch.zeros(2, 2, *shape, dtype=self.dtype, device=self.device)
        self.base.train(self.changes_in_training)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                vmap(self._one, randomness="different")(self.unflatten(flat), buffers, x)
        except (RuntimeError, ValueError, NotImplementedError):
            return False
        return True
