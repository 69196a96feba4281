# SPDX-License-Identifier: Apache-2.0
"""Many networks at once are trained as torch.optim trains each alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from widefield.measure.capacity import Convergence, Copies, Procedure, Samples, convergence
from widefield.measure.capacity.minimum import extreme_eigenvalues, loss_fall
from widefield.measure.capacity.train import Fit, Job, draw, missed, train


def samples(n, seed=0, classes=3):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    return Samples(x, torch.randint(classes, (n,), generator=g), classes)


def network():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def alone(procedure, data, job, steps):
    """A plain loop with torch.optim."""
    torch.manual_seed(job.seed)
    model = network().double()
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, lr=job.rate, momentum=procedure.momentum,
                                         weight_decay=procedure.weight_decay),
        "adam": lambda p: torch.optim.Adam(p, lr=job.rate, weight_decay=procedure.weight_decay),
        "adamw": lambda p: torch.optim.AdamW(p, lr=job.rate, weight_decay=procedure.weight_decay),
    }  # fmt: skip
    kinds["gd"] = kinds["sgd"]
    optimizer = kinds[procedure.optimizer](model.parameters())
    rows = draw(len(data), procedure.batch(len(data)), job.seed, 0, steps)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = job.rate * procedure.factor(step, procedure.steps(len(data)))
        optimizer.zero_grad()
        F.cross_entropy(model(data.inputs[rows[step]]), data.labels[rows[step]]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "gd", "adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_as_torch_optim_alone(optimizer, weight_decay):
    procedure = Procedure(optimizer=optimizer, updates=30, batch_size=6, check_every=7, dtype="float64",
                          weight_decay=weight_decay, hopeless=None)  # fmt: skip
    # Sets of different sizes, one smaller than a batch, and labels that thirty updates do not fit.
    jobs = [Job(samples(n, n), rate, n, i) for i, (n, rate) in enumerate(((20, 0.03), (31, 0.01), (5, 1e-3)))]
    fits = train(Copies(network, (4,), 3, dtype=torch.float64), procedure, jobs)
    for job, fit in zip(jobs, fits, strict=True):
        assert fit.steps == 30
        assert fit.ending == "budget spent"
        torch.testing.assert_close(fit.flat, alone(procedure, job.samples, job, 30), rtol=1e-9, atol=1e-11)


def test_shampoo_as_pytorch_optimizer_alone():
    shampoo = pytest.importorskip("pytorch_optimizer").Shampoo
    procedure = Procedure(optimizer="shampoo", updates=12, batch_size=64, check_every=5, schedule="constant",
                          hopeless=None)  # fmt: skip
    job = Job(samples(20), 0.05, 3, 0)
    (fit,) = train(Copies(network, (4,), 3), procedure, [job])
    torch.manual_seed(3)
    model = network()
    optimizer = shampoo(model.parameters(), lr=0.05, momentum=0.9, preconditioning_compute_steps=10)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(job.samples.inputs.float()), job.samples.labels).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(fit.flat, expected, rtol=1e-4, atol=1e-5)


def test_lbfgs_solves_least_squares():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, k, generator=g, dtype=torch.float64) for k in (6, 1))
    procedure = Procedure(optimizer="lbfgs", rates=(1.0,), updates=200, check_every=5, dtype="float64",
                          schedule="constant", hopeless=None)  # fmt: skip
    copies = Copies(lambda: nn.Linear(6, 1, bias=False), (6,), 1, dtype=torch.float64, together=False)
    (fit,) = train(copies, procedure, [Job(Samples(x, y), 1.0, 0, 0)])
    expected = torch.linalg.lstsq(x, y).solution[:, 0]
    torch.testing.assert_close(fit.flat, expected, rtol=1e-6, atol=1e-7)
    assert fit.ending == "converged"
    assert fit.steps < 200


def test_each_epoch_shows_every_sample_once():
    rows = draw(10, 4, 7, 0, 10)
    assert torch.equal(torch.cat([rows.flatten()[i : i + 10].sort().values for i in range(0, 40, 10)]),
                       torch.arange(10).repeat(4))  # fmt: skip
    assert torch.equal(draw(10, 4, 7, 3, 10), rows[3:])
    assert torch.equal(draw(5, 5, 7, 0, 2), torch.arange(5).expand(2, 5))


def test_a_tie_or_a_nan_is_not_right():
    y = torch.tensor([[0, 0, 1, 0]])
    out = torch.tensor([[[1.0, 1.0], [2.0, 1.0], [2.0, 1.0], [float("nan"), 1.0]]])
    assert missed(out, y, 2, torch.zeros(1)).tolist() == [[True, False, True, True]]


def test_norms_are_looked_at_in_eval_mode_and_their_statistics_move():
    procedure = Procedure(updates=20, batch_size=8, check_every=10, hopeless=None, rates=(1e-3,))
    copies = Copies(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (4,), 3)
    job = Job(samples(30), 1e-3, 1, 0)
    (fit,) = train(copies, procedure, [job])
    assert int(fit.buffers["1.num_batches_tracked"]) == 20
    assert fit.buffers["1.running_mean"].abs().max() > 1e-3
    output = copies.one(fit.flat, fit.buffers, job.samples.inputs.float())
    assert float(F.cross_entropy(output, job.samples.labels)) == pytest.approx(fit.losses[-1], rel=1e-5)


def test_lanczos_against_the_whole_matrix():
    g = torch.Generator().manual_seed(0)
    for order in (10, 150):
        a = torch.randn(order, order, generator=g, dtype=torch.float64)
        a = a + a.T
        low, large = extreme_eigenvalues(lambda v, a=a: a @ v, order)
        values = torch.linalg.eigvalsh(a)
        assert low == pytest.approx(float(values[0]), rel=1e-2)
        assert large == pytest.approx(float(values[values.abs().argmax()]), rel=1e-2)


def fit_at(flat, losses, start_norm=1.0):
    return Fit(loss=losses[-1], losses=losses, flat=flat, start_norm=start_norm)


def test_a_minimum_and_a_saddle_are_told_apart():
    """Least squares through a product of two weights, y = a b x: the origin is a saddle, a b = 1 a minimum."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x * self.a * self.b

    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    copies, data = (
        Copies(Product, (1,), 1, dtype=torch.float64),
        Samples(x, x + 0.1 * torch.tensor([[2.0], [-1.0]])),
    )
    procedure, still = Procedure(dtype="float64"), [0.5] * 10
    saddle = convergence(copies, procedure, data, fit_at(torch.zeros(2, dtype=torch.float64), still))
    # Loss = mean((ab - 1) x + noise)^2 with noise orthogonal to x: Hessian at 0 is -2 mean(x^2) [[0, 1], [1, 0]].
    assert saddle.verdict == "saddle"
    assert saddle.lowest == pytest.approx(-5)
    minimum = convergence(copies, procedure, data, fit_at(torch.ones(2, dtype=torch.float64), still))
    assert minimum.verdict == "minimum"
    assert minimum.gradient == pytest.approx(0, abs=1e-9)
    assert minimum.largest == pytest.approx(10)
    falling = convergence(copies, procedure, data, fit_at(torch.ones(2, dtype=torch.float64), [5.0, 4, 3, 2, 1]))
    assert falling.verdict == "still falling"
    assert convergence(copies, procedure, data, fit_at(None, [1.0])) == Convergence(None, None, None, None,
                                                                                    "cannot tell")  # fmt: skip


def test_how_much_a_loss_fell():
    assert loss_fall([9.0, 8, 7, 6, 5, 4, 3, 2, 1.0, 0.5]) == pytest.approx(0.5)
    assert loss_fall([1.0]) is None
    assert loss_fall([2.0, float("nan")]) is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": "adamm"}, "adam"),
        ({"budget": "epochs"}, "passes"),
        ({"rates": ()}, "at least one"),
        ({"rates": (0.1, 0.1)}, "once"),
        ({"rates": (-1.0,)}, "positive"),
        ({"updates": 0}, "updates"),
        ({"momentum": 1.0}, "momentum"),
        ({"hopeless": 2.0}, "hopeless"),
        ({"dtype": "float16"}, "float32"),
    ],
)
def test_procedures_that_make_no_sense(options, match):
    with pytest.raises(ValueError, match=match):
        Procedure(**options)


def test_equal_passes_and_equal_updates():
    assert Procedure(updates=10, budget="passes", batch_size=32).steps(100) == 32  # 10 * 100 / 32, rounded up
    assert Procedure(updates=10, budget="passes", optimizer="gd").steps(100) == 10
    assert Procedure(updates=10).steps(100) == 10
