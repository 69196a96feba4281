# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a call.

On CUDA the allocator keeps the peak. Elsewhere `LiveBytes` follows every storage that an operator returns from
its birth to its release, which is exact for all that the program holds (activations, what autograd saved,
gradients) and works on fake tensors too. It does not see scratch space that a kernel takes and returns within
one call; the CUDA figure does, and is rounded up to the allocator's blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# The operator hands over a tensor that was made outside of dispatch (`torch.tensor([...])`).
ADOPTING = frozenset(("lift", "lift_fresh"))
# Only the kernel knows the size of the workspace it returns; a fake run would take it for empty.
WITH_WORKSPACE = frozenset(("mkldnn_rnn_layer",))


class LiveBytes(TorchDispatchMode):
    """Follows the bytes that come to life inside `with LiveBytes() as memory:`.

    Tensors that existed before, parameters and inputs, count nothing.

    Attributes:
        live: bytes alive now.
        peak: the most that were alive at once.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        # Storage id -> (its weak reference, bytes counted for it). Ids are safe: an entry leaves with its storage.
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(getattr(func, "_overloadpacket", func), "__name__", "")
        if name not in ADOPTING:
            for tensor in tensors_in((args, kwargs)):
                self._meet(tensor, ours=False)
        out = func(*args, **kwargs)
        born = tensors_in(out)
        if name in WITH_WORKSPACE and any(isinstance(tensor, FakeTensor) for tensor in born):
            raise RuntimeError(f"the workspace of {name} has no size without running it")
        for tensor in born:
            self._meet(tensor, ours=True)
        return out

    def _meet(self, tensor: Tensor, ours: bool) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # sparse and opaque tensors: their parts are storages of their own
            return
        key = id(storage)
        if key in self._known:
            reference, counted = self._known[key]
            size = storage.nbytes()
            if counted and size != counted:  # resized in place
                self._known[key] = (reference, size)
                self._grow(size - counted)
            return
        size = storage.nbytes() if ours else 0
        self._known[key] = (weakref.ref(storage, lambda _: self._release(key)), size)
        self._grow(size)

    def _grow(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def _release(self, key: int) -> None:
        _, size = self._known.pop(key, (None, 0))
        self.live -= size


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """Most bytes alive at once during `call` beyond those alive before it; its result is held until the end."""
    if device.type != "cuda":
        with LiveBytes() as memory:
            call()
        return memory.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
