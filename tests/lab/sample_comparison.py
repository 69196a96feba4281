# SPDX-License-Identifier: Apache-2.0
"""A made-up comparison with the form of a real one, for looking at the report and for its tests.

Qualities are drawn from a fixed seed; the pictures are scenes of digits, or streets of coloured shapes in several
sizes. Nothing here was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from widefield.data import Scenes

HAMBURGER, NON_LOCAL = "Is Attention Better Than Matrix Decomposition?", "Non-local Neural Networks"
EMANET = "Expectation-Maximization Attention Networks"
# name, family, title, paper, year, mIoU, parameters, multiply-adds
MODULES = (
    ("none", "none", "No context", "baseline", 0, 0.452, 0, 0),
    ("nonlocal", "attention", NON_LOCAL, "arXiv:1711.07971", 2018, 0.761, 16640, 30.1e6),
    ("hamburger-nmf", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.712, 12400, 9.2e6),
    ("hamburger-cd", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.769, 12400, 11.0e6),
    ("hamburger-vq", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.748, 12400, 10.4e6),
    ("emau", "decomposition", EMANET, "arXiv:1907.13426", 2019, 0.58, 12288, 8.1e6),
    ("global-average", "pooling", "ParseNet", "arXiv:1506.04579", 2015, 0.503, 8320, 2.4e6),
    ("ppm", "pooling", "Pyramid Scene Parsing Network", "arXiv:1612.01105", 2017, 0.512, 41000, 24.0e6),
    ("aspp", "pooling", "Rethinking Atrous Convolution", "arXiv:1706.05587", 2017, 0.447, 152000, 340e6),
    ("danet", "attention", "Dual Attention Network", "arXiv:1809.02983", 2019, 0.742, 60200, 96e6),
    ("danet-pam", "attention", "Dual Attention Network", "arXiv:1809.02983", 2019, 0.739, 5200, 31e6),
    ("danet-cam", "attention", "Dual Attention Network", "arXiv:1809.02983", 2019, 0.49, 1, 4.7e6),
    ("em-attention", "decomposition", EMANET, "arXiv:1907.13426", 2019, 0.60, 12288, 8.3e6),
    ("nonlocal-dot", "attention", NON_LOCAL, "arXiv:1711.07971", 2018, 0.69, 16640, 30.0e6),
    ("nonlocal-gaussian", "attention", NON_LOCAL, "arXiv:1711.07971", 2018, 0.73, 8320, 27.0e6),
    ("nonlocal-concat", "attention", NON_LOCAL, "arXiv:1711.07971", 2018, 0.66, 16704, 33.0e6),
    ("nonlocal-bare", "attention", NON_LOCAL, "arXiv:1711.07971", 2018, 0.55, 0, 20.0e6),
    ("hamburger-v2-nmf", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.72, 16500, 11.4e6),
    ("hamburger-v2-cd", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.765, 16500, 13.1e6),
    ("hamburger-v2-vq", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.751, 16500, 12.5e6),
    ("hamburger-v2plus-nmf", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.731, 33000, 25.0e6),
    ("hamburger-minus-nmf", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.705, 12400, 9.3e6),
    ("ham-nmf", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.61, 0, 5.2e6),
    ("ham-cd", "decomposition", HAMBURGER, "arXiv:2109.04553", 2021, 0.64, 0, 6.9e6),
    ("image-pool", "pooling", "Rethinking Atrous Convolution", "arXiv:1706.05587", 2017, 0.498, 8300, 2.3e6),
    ("ccnet", "attention", "Criss-Cross Attention", "arXiv:1811.11721", 2019, 0.71, 5200, 12.4e6),
    ("gcnet", "attention", "GCNet", "arXiv:1904.11492", 2019, 0.53, 2180, 0.21e6),
    ("glore", "graph", "Graph-Based Global Reasoning Networks", "arXiv:1811.12814", 2019, 0.62, 9800, 7.7e6),
    ("mlp-mixer", "mixing", "MLP-Mixer", "arXiv:2105.01601", 2021, 0.68, 40600, 16.3e6),
    ("lstm-2d", "sequence", "Grid Long Short-Term Memory", "arXiv:1507.01526", 2015, 0.59, 99000, 81e6),
)  # fmt: skip
STREET = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist"
)  # fmt: skip
STREET_PALETTE = (
    (128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0), (192, 128, 128),
    (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192),
)  # fmt: skip
STEPS = 600
# Student's t at 97.5 % for 1, 2, 3, 4 degrees of freedom.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def sample_comparison(
    out: Path, *, modules: int = 9, seeds: int = 3, street: bool = False, examples: int = 3
) -> dict[str, Any]:
    """The summary of a comparison; evidence files are written below `out`.

    Args:
        modules: how many, up to 30. The last but one failed where there are more than five.
        street: photographs of eleven classes in mixed sizes, instead of scenes of digits with two.
        examples: pictures in each evidence file.
    """
    rng = default_rng(7)
    classes, palette = (STREET, STREET_PALETTE) if street else (("other", "same"), ((0, 0, 0), (128, 0, 0)))
    pictures = [_street(rng, k) for k in range(examples)] if street else _scenes(examples)
    rows = []
    for index, facts in enumerate(MODULES[:modules]):
        row = _row(facts, rng, seeds, classes)
        if modules > 5 and index == modules - 2:
            row |= {"status": "failed", "error": "RuntimeError: the loss is not finite at step 212", "values": []}
            row |= {"mean": None, "half_width": None, "accuracy_mean": None, "curves": []}
        else:
            row["evidence"] = f"{facts[0]}/evidence.npz"
            _evidence(out / row["evidence"], facts, pictures, len(classes), rng, street)
        rows.append(row)
    reference = rows[0]["values"]
    for row in rows[1:]:
        row["difference"] = _difference(row["values"], reference)
    best = max((row for row in rows if row["mean"] is not None), key=lambda row: row["mean"])
    name = "a street of shapes" if street else "same-as-cue scenes"
    return {
        "title": f"Context modules on {name}", "created": "2031-05-06T10:11:12+00:00", "version": "0.1.0",
        "command": f"widefield compare --modules {','.join(row['module'] for row in rows)} --seeds {seeds}",
        "data": {
            "name": name, "classes": list(classes), "palette": [list(colour) for colour in palette],
            "summary": f"{name}: 4000 training and 400 validation pictures, {len(classes)} classes",
            "problems": ["0016E5_08640.png: broken picture (image file is truncated)"] if street else [],
        },
        "setting": {
            "backbone": "plain", "weights_note": "trained from scratch", "width": 64, "steps": STEPS,
            "batch_size": 32,
            "seeds": list(range(seeds)), "frozen_backbone": False, "input_size": [48, 48],
            "feature_shape": [1, 64, 24, 24], "gates": "open at the start",
            "recipe": {"optimizer": "adamw", "lr": 0.003},
            "machine": "a made-up machine with two cores", "threads": 2,
        },
        "baseline": "none", "rows": rows, "gradients": _gradients(rng),
        "verdict": f"Context helps here: {best['module']} reaches {best['mean']:.3f} mIoU, "
        f"{best['mean'] - rows[0]['mean']:.3f} above none. Pooling to a single vector is not enough.",
    }  # fmt: skip


def interval(values: list[float]) -> float | None:
    """Half the width of the 95 % interval of a mean."""
    return _T[len(values)] * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else None


def _difference(values: list[float], reference: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    pairs = [a - b for a, b in zip(values, reference, strict=True)]
    mean, half = float(np.mean(pairs)), interval(pairs)
    verdict = "cannot tell"
    if half is not None:
        verdict = "no difference" if abs(mean) <= half else "better" if mean > 0 else "worse"
    return {"mean": mean, "half_width": half, "verdict": verdict}


def _row(facts: tuple, rng: Generator, seeds: int, classes: tuple[str, ...]) -> dict[str, Any]:
    module, family, title, paper, year, level, parameters, multiply_adds = facts
    values = (level + rng.normal(0, 0.006, seeds)).tolist()
    accuracy = [0.4 + 0.55 * value for value in values]
    iterative = module.startswith(("ham", "em"))
    difficulty = np.linspace(0.2, -0.3, len(classes))
    score = np.clip(level + difficulty + rng.normal(0, 0.03, len(classes)), 0, 1)
    memory = 1.2e5 + multiply_adds * 0.03
    return {
        "module": module, "family": family, "title": title, "paper": paper, "year": year, "status": "finished",
        "gradient": "one_step" if iterative else None, "options": {"rank": 32, "steps": 6} if iterative else {},
        "error": None, "values": values, "mean": float(np.mean(values)), "half_width": interval(values),
        "accuracy_mean": float(np.mean(accuracy)), "accuracy_half_width": interval(accuracy),
        "per_class": {name: float(v) for name, v in zip(classes, score, strict=True)},
        "difference": None, "parameters": parameters, "parameters_total": parameters + 61_000,
        "multiply_adds": int(multiply_adds), "lower_bound": module == "lstm-2d",
        "activation_memory_forward": int(memory), "activation_memory_training": int(3.1 * memory),
        "latency_forward": 2e-4 + multiply_adds * 4e-11, "latency_training": 7e-4 + multiply_adds * 1.3e-10,
        "seconds": 31 + multiply_adds * 3e-7,
        "curves": [_curve(seed, value, rng) for seed, value in enumerate(values)],
        "evidence": None,
    }  # fmt: skip


def _curve(seed: int, level: float, rng: Generator) -> dict[str, Any]:
    steps, evaluations = np.arange(1, STEPS + 1), np.arange(50, STEPS + 1, 50)
    rise = 1 / (1 + np.exp(-(evaluations - 230) / 70))
    loss = (1.1 - level) * (0.25 + np.exp(-steps / 160)) * np.exp(rng.normal(0, 0.08, STEPS))
    return {
        "seed": seed, "steps": steps.tolist(), "loss": loss.tolist(), "eval_steps": evaluations.tolist(),
        "eval_miou": (0.3 + (level - 0.3) * rise + rng.normal(0, 0.006, len(rise))).tolist(),
    }  # fmt: skip


def _gradients(rng: Generator) -> list[dict[str, Any]]:
    levels = {"codes_only": (0.54, 0.31, 0.62), "one_step": (0.75, 0.93, 0.88), "unrolled": (0.72, 1.0, 1.0)}
    rows = []
    for policy, (level, cosine, ratio) in levels.items():
        values = (level + rng.normal(0, 0.006, 2)).tolist()
        rows.append({
            "module": "hamburger-vq", "policy": policy, "norm_ratio": ratio, "cosine": cosine, "values": values,
            "mean": float(np.mean(values)), "half_width": interval(values),
        })  # fmt: skip
    return rows


def _scenes(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    data = Scenes("val", count)
    return [(data[k][0].numpy(), data[k][1].numpy().astype(np.uint8)) for k in range(count)]


def _street(rng: Generator, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sky, buildings, a road and things on it; every second picture is of another size."""
    height, width = (180, 240) if k % 2 == 0 else (192, 208)
    y, x = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    label = np.where(y < 0.45 + 0.05 * np.sin(9 * x + k), 0, 3)
    for left in rng.uniform(0, 0.9, 6):
        label[(y > rng.uniform(0.12, 0.4)) & (y < 0.55) & (abs(x - left) < 0.08)] = 1
    label[(y > 0.5) & (y < 0.62) & (abs(x - 0.5) > 0.55 - 0.4 * y)] = 4
    for kind, size in ((5, 0.11), (8, 0.08), (8, 0.06), (9, 0.03), (10, 0.04), (2, 0.012)):
        cx, cy = rng.uniform(0.05, 0.95), rng.uniform(0.45, 0.75)
        label[(x - cx) ** 2 + ((y - cy) / (3 if kind == 2 else 1)) ** 2 < size**2] = kind
    label[(y > 0.96) | ((x < 0.1) & (y > 0.8))] = 255
    tints = np.array([*STREET_PALETTE, *[(90, 90, 90)] * 245])[label] * 0.6 + 70 + 40 * (1 - y[..., None])
    image = (tints + rng.normal(0, 9, (height, width, 1))).clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(image.transpose(2, 0, 1)), label.astype(np.uint8)


def _evidence(
    path: Path,
    facts: tuple,
    pictures: list[tuple[np.ndarray, np.ndarray]],
    classes: int,
    rng: Generator,
    mixed: bool,
) -> None:
    module, family, level = facts[0], facts[1], facts[5]
    singular = np.sort(rng.gamma(0.35, 1.0, 64))[::-1].copy() + 1e-3
    arrays: dict[str, np.ndarray] = {"spectrum_before": singular}
    falling = 12 if family == "decomposition" else 60
    arrays["spectrum_after"] = singular * np.exp(-np.arange(64) / falling)
    found: dict[str, list[np.ndarray]] = {"images": [], "labels": [], "predictions": [], "pixel": [], "sees": []}
    if family == "attention":
        found["attention"] = []
    if family == "decomposition":
        found["codes"] = []
    for image, label in pictures:
        wrong = rng.random(label.shape) > level
        guess = rng.integers(0, classes, label.shape).astype(np.uint8)
        prediction = np.where(wrong | (label == 255), guess, label).astype(np.uint8)
        h, w = (label.shape[0] // 8, label.shape[1] // 8) if mixed else (24, 24)
        small = np.asarray(image.mean(0))[:: label.shape[0] // h, :: label.shape[1] // w][:h, :w] / 255
        pixel = np.array([h // 2, w // 3])
        sees = np.zeros((h, w)) if module == "none" else 0.3 * small * rng.random((h, w))
        sees[tuple(pixel)] = 1
        weights = small * rng.random((h, w)) - (0.2 if module == "nonlocal-dot" else 0)
        codes = np.stack([np.roll(small, 3 * r, axis=1) * rng.random() for r in range(8)])
        values = {"images": image, "labels": label, "predictions": prediction, "pixel": pixel, "sees": sees,
                  "attention": weights / weights.sum(), "codes": codes}  # fmt: skip
        for name, entries in found.items():
            value = values[name]
            entries.append(value.astype(np.float32) if value.dtype == np.float64 else value)
    for name, entries in found.items():
        if mixed:
            arrays |= {f"{name}_{k}": entry for k, entry in enumerate(entries)}
        else:
            arrays[name] = np.stack(entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
