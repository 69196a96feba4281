# SPDX-License-Identifier: Apache-2.0
"""CST: hashing against the formula written out, windows, determinism, the error map."""

from __future__ import annotations

import pytest
import torch

from widefield.models.spectral import create_network
from widefield.models.spectral.cst import HashAttention, HashBlock, spheric


def test_spheric_tokens_have_one_length_and_their_inner_products():
    x = torch.randn(3, 10, 4, dtype=torch.float64)
    wide = spheric(x)
    lengths = wide.norm(dim=-1)
    torch.testing.assert_close(lengths, x.norm(dim=-1).amax(-1, keepdim=True).expand_as(lengths))
    assert wide.shape == (3, 10, 6)
    torch.testing.assert_close(wide[..., :4], x)


def written_out(module, x):
    """Sample by sample, head by head, round by round, bucket by bucket."""
    b, n, c = x.shape
    h, bucket = module.heads, module.bucket
    q, k, v = (layer(x) for layer in (module.query, module.key, module.value))
    out = torch.zeros(b, n, 3 * c, dtype=x.dtype)
    for i in range(b):
        for head in range(h):
            part = slice(head * c // h, (head + 1) * c // h)
            wide = slice(head * 3 * c // h, (head + 1) * 3 * c // h)
            hashes = spheric(x[i, :, part]) @ module.directions + module.offsets
            values, norms = [], []
            for r in range(module.rounds):
                order = hashes[:, r].argsort()
                y, z = torch.zeros(n, 3 * c // h, dtype=x.dtype), torch.zeros(n, dtype=x.dtype)
                for places in order.split(bucket):
                    logits = q[i, places, wide] @ k[i, places, wide].T
                    y[places], z[places] = logits.softmax(-1) @ v[i, places, wide], logits.exp().sum(-1)
                values.append(y)
                norms.append(z)
            share = torch.stack(norms) / sum(norms)
            out[i, :, wide] = (torch.stack(values) * share[..., None]).sum(0)
    return module.project(out)


def test_hash_attention_is_the_formula():
    torch.manual_seed(0)
    module = HashAttention(12, 3, bucket=8, rounds=3).double().eval()
    x = torch.randn(2, 32, 12, dtype=torch.float64)
    torch.testing.assert_close(module(x), written_out(module, x))


def test_one_bucket_is_plain_attention():
    module = HashAttention(6, 1, bucket=16).double().eval()
    x = torch.randn(2, 16, 6, dtype=torch.float64)
    q, k, v = (layer(x) for layer in (module.query, module.key, module.value))
    expected = module.project((q @ k.mT).softmax(-1) @ v)
    torch.testing.assert_close(module(x), expected)


def test_cut_and_joined_are_inverse():
    block = HashBlock(3, 1, patch=(2, 4))
    x = torch.rand(2, 3, 8, 24)
    windows = block.cut(x)
    assert windows.shape == (2, 6, 32, 3)
    torch.testing.assert_close(windows[1, 4], x[1, :, 4:8, 8:16].flatten(1).T)
    assert torch.equal(block.joined(windows, (8, 24)), x)


def test_only_the_hard_half_is_attended():
    torch.manual_seed(0)
    block = HashBlock(4, 1, patch=(4, 4)).eval()
    torch.nn.init.zeros_(block.feed_forward.narrow.weight)
    x = torch.rand(1, 4, 16, 16)
    error = torch.zeros(1, 1, 16, 16)
    error[..., :8, 8:] = 1.0
    error[..., 8:, :8] = 0.5
    changed = (block(x, error) - x).abs().amax(1)[0] > 0
    assert not changed[:8, :8].any()
    assert not changed[8:, 8:].any()
    assert changed[:8, 8:].float().mean() > 0.9
    assert changed[8:, :8].float().mean() > 0.9
    dense = HashBlock(4, 1, patch=(4, 4), sparse=False).eval()
    assert ((dense(x) - x).abs().amax(1) > 0).float().mean() > 0.9


def test_evaluation_repeats_across_networks_and_training_hashes_anew():
    def build(seed=0):
        torch.manual_seed(0)
        return create_network("cst-s", bands=4, seed=seed)

    y, phi = torch.rand(1, 64, 70), torch.rand(4, 64, 70)
    with torch.no_grad():
        first, second, other = (build(seed).eval()(y, phi) for seed in (0, 0, 1))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)
        network = build().train()
        for part in network.modules():
            if isinstance(part, torch.nn.Dropout):
                part.eval()
        assert not torch.equal(network(y, phi), network(y, phi))
    assert not any("directions" in name for name in network.state_dict())


def test_the_error_map_learns_from_its_own_loss_alone():
    torch.manual_seed(0)
    network = create_network("cst-m", bands=4).eval()
    y, phi, truth = torch.rand(1, 20, 26), torch.rand(4, 20, 26), torch.rand(1, 4, 20, 20)
    cube, error = network.with_error(y, phi)
    assert error.shape == (1, 1, 20, 20)
    last = network.estimators[-1].leave.weight
    (gradient,) = torch.autograd.grad(cube.sum(), last)
    assert float(gradient[-1].abs().max()) == 0  # its last channel is the map
    loss = network.training_loss(y, phi, truth, torch.nn.functional.mse_loss)
    (gradient,) = torch.autograd.grad(loss, last)
    assert float(gradient[-1].abs().max()) > 0
    assert create_network("cst-l-plus", bands=4).with_error(y, phi)[1] is None


def test_compiles_without_breaks():
    network = create_network("cst-s", bands=4).eval()
    y, phi = torch.rand(1, 64, 70), torch.rand(4, 64, 70)
    program = torch.export.export(network, (y, phi))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(y, phi), network(y, phi), rtol=1e-4, atol=1e-5)


def test_bad_options():
    with pytest.raises(ValueError, match="3 heads do not divide 8 channels"):
        HashAttention(8, 3)
    with pytest.raises(ValueError, match="blocks"):
        create_network("cst-s", blocks=(1,))
    with pytest.raises(ValueError, match="estimators"):
        create_network("cst-s", estimators=0)
