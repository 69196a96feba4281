# SPDX-License-Identifier: Apache-2.0
"""Tasks over sequences: what is asked and answered, worked out by hand; scores of answers that are known."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import scipy.io
import torch

from widefield.data import DataError
from widefield.data.sequences import read_music, read_text
from widefield.tasks.sequences import AssociativeRecall, BitTask, Copy, RepeatCopy
from widefield.tasks.sequences_adding import Adding, Digits
from widefield.tasks.sequences_text import CharacterModel, Music

TEXT = "the cat sat on the mat; the dog did not. " * 40


@pytest.fixture
def text(tmp_path):
    (tmp_path / "words.txt").write_text(TEXT, encoding="utf-8")
    return read_text(tmp_path / "words.txt")


def pieces(count=4, keys=5, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 2, (int(n), keys)) for n in generator.integers(4, 9, count)]


@pytest.fixture
def music(tmp_path):
    both = {}
    for name, seed in (("traindata", 0), ("validdata", 1)):
        both[name] = np.empty((1, 4), dtype=object)
        for i, piece in enumerate(pieces(seed=seed)):
            both[name][0, i] = piece.astype(np.float64)
    scipy.io.savemat(tmp_path / "chorales.mat", both)
    return read_music(tmp_path / "chorales.mat")


# --- what is asked


def test_copy_asks_for_the_sequence_after_the_delimiter():
    batch = Copy(width=3).draw(np.random.default_rng(0), 4, 5)
    assert batch.x.shape == (4, 11, 4)
    assert batch.counts is not None
    assert torch.equal(batch.y[:, 6:], batch.x[:, :5, :3])
    assert torch.equal(batch.counts[0], torch.arange(11) > 5)
    assert torch.equal(batch.x[:, 5], torch.tensor([0.0, 0, 0, 1]).expand(4, 4))
    assert not batch.x[:, 6:].any()


def test_repeat_copy_asks_so_often_and_for_the_end():
    task = RepeatCopy(width=3, longest=10)
    batch = task.draw(np.random.default_rng(0), 2, 4, 3)
    assert batch.x.shape == (2, 4 + 1 + 12 + 1, 5)
    for repeat in range(3):
        assert torch.equal(batch.y[:, 5 + 4 * repeat : 9 + 4 * repeat, :3], batch.x[:, :4, :3])
    assert torch.equal(batch.y[:, :, 3].argmax(1), torch.tensor([17, 17]))
    counts = np.array([task.normalised(n) for n in range(1, 11)])
    assert counts.mean() == pytest.approx(0)
    assert counts.std() == pytest.approx(1)


def test_associative_recall_asks_for_the_next_item():
    batch = AssociativeRecall(width=6, item=3).draw(np.random.default_rng(3), 30, 4)
    assert batch.x.shape == (30, 4 * 4 + 5 + 3, 8)
    items = batch.x[:, :16].reshape(30, 4, 4, 8)[:, :, 1:, :6]
    for row in range(30):
        shown = batch.x[row, 17:20, :6]
        (place,) = [i for i in range(3) if torch.equal(items[row, i], shown)][:1]
        assert torch.equal(batch.y[row, -3:], items[row, place + 1])


def test_adding_asks_for_the_sum_of_one_mark_in_each_half():
    batch = Adding(length=30).draw(np.random.default_rng(0), 50)
    marks = batch.x[..., 1]
    assert torch.equal(marks[:, :15].sum(1), torch.ones(50))
    assert torch.equal(marks[:, 15:].sum(1), torch.ones(50))
    torch.testing.assert_close(batch.y[:, 0], (batch.x[..., 0] * marks).sum(1))


def test_digits_are_split_and_may_be_permuted():
    plain, permuted = Digits(), Digits(permuted=True)
    (a,), (b,) = list(plain.batches()), list(permuted.batches())
    assert a.x.shape == (360, 64, 1)
    assert torch.equal(a.y, b.y)
    assert torch.equal(a.x.sort(1).values, b.x.sort(1).values)
    assert not torch.equal(a.x, b.x)


def test_a_text_asks_for_the_next_character_and_is_read_once(text):
    task = CharacterModel(text, length=20, batch_size=3)
    batch = task.batch(0)
    assert torch.equal(batch.x.argmax(-1)[:, 1:], batch.y[:, :-1])
    said = torch.cat([b.y for b in task.batches()], 1).flatten()
    whole = torch.from_numpy(text.val[1 : len(said) + 1])
    assert torch.equal(said, whole)
    assert len(text.val) - 1 - len(said) < task.streams


def test_music_asks_for_the_next_step_of_pieces_of_several_lengths(music):
    task = Music(music, batch_size=4)
    (batch,) = list(task.batches())
    assert batch.lengths is not None
    assert batch.lengths.tolist() == sorted(len(p) - 1 for p in music.val)
    piece = sorted(music.val, key=len)[0]
    n = len(piece) - 1
    assert torch.equal(batch.x[0, :n], torch.from_numpy(piece[:-1]).float())
    assert torch.equal(batch.y[0, :n], torch.from_numpy(piece[1:]).float())


@pytest.mark.parametrize("task", [Copy(seed=3), Adding(length=9, seed=3), Digits(seed=3)])
def test_a_batch_is_a_function_of_seed_and_step(task):
    again = type(task)(seed=3, **({"length": 9} if isinstance(task, Adding) else {}))
    other = type(task)(seed=4, **({"length": 9} if isinstance(task, Adding) else {}))
    assert torch.equal(task.batch(5).x, again.batch(5).x)
    assert task.batch(5).x.shape != task.batch(6).x.shape or not torch.equal(task.batch(5).x, task.batch(6).x)
    ours, theirs = ([b.x for b in t.batches()] for t in (task, other))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), "what is scored depends on the seed"


def test_the_curriculum_rises_to_the_longest():
    task = Copy(longest=20, curriculum=0.5, steps=100)
    assert [task.reach(step) for step in (0, 25, 50, 99)] == [1, 10, 20, 20]
    assert Copy(longest=20).reach(0) == 20
    assert Copy(longest=20).lengths == (5, 10, 20, 40)


# --- scores


def test_wrong_bits_and_sequences_are_counted_by_length():
    task = Copy(width=8, longest=4)
    said = [(torch.where(batch.y > 0.5, 9.0, -9.0), batch) for batch in task.batches()]
    perfect = task.score(said)
    assert perfect["bit_error"] == perfect["longer_sequence_error"] == 0
    output, batch = said[-1]  # length 8: beyond the training
    output[:5, -1, 0] *= -1
    found = task.score(said)
    assert found["bit_error"] == 0
    assert found["longer_bit_error"] == pytest.approx(5 / (50 * 8 * 8))
    assert found["longer_sequence_error"] == pytest.approx(0.1)
    silent = task.score([(torch.zeros_like(batch.y), batch)])
    assert silent["by_length"][0]["bits_per_sequence"] == pytest.approx(64)


def test_the_constant_answer_to_adding_is_the_baseline():
    task = Adding(length=30)
    (batch,) = list(task.batches())
    found = task.score([(torch.ones(500, 30, 1), batch)])
    assert found["mse"] == pytest.approx(task.baselines()["always 1"], rel=0.1)


def test_the_frequencies_of_the_text_score_as_the_unigram(text):
    task = CharacterModel(text)
    counts = torch.from_numpy(np.bincount(text.train, minlength=task.input_size) + 1.0)
    said = [((counts / counts.sum()).log().expand(*batch.y.shape, -1), batch) for batch in task.batches()]
    found = task.score(said)
    baselines = task.baselines()
    assert found["bits_per_character"] == pytest.approx(baselines["unigram"], rel=0.02)
    assert baselines["bigram"] < baselines["unigram"]
    packed = len(zlib.compress(TEXT.encode(), 9)) - len(zlib.compress(text.texts[0].encode(), 9))
    assert baselines["zlib"] == pytest.approx(8 * packed / (len(text.val) - 1), abs=0.05)
    assert task.loss(said[0][0], said[0][1]) == pytest.approx(found["bits_per_character"] * math.log(2), rel=0.05)


def test_the_frequencies_of_the_keys_score_as_the_baseline(music):
    task = Music(music)
    heard = np.concatenate([p[1:] for p in music.train])
    p = torch.from_numpy((heard.sum(0) + 1) / (len(heard) + 2))
    said = [(p.logit().expand(*batch.y.shape), batch) for batch in task.batches()]
    assert task.score(said)["nll"] == pytest.approx(task.baselines()["frequency of keys"], rel=1e-6)
    output, batch = said[0]
    assert float(task.loss(output, batch)) == pytest.approx(task.score(said)["nll"], rel=1e-5)


# --- files


def test_a_folder_of_pieces_is_split_over_files(tmp_path):
    for i, piece in enumerate(pieces(10)):
        np.save(tmp_path / f"piece{i}.npy", piece)
    found = read_music(tmp_path)
    assert len(found.train) == 9
    assert np.array_equal(found.val[0], pieces(10)[9])


@pytest.mark.parametrize(
    ("make", "read", "words"),
    [
        (lambda p: p.write_bytes(b"\xff\xfe\x00x"), read_text, "UTF-8"),
        (lambda p: p.write_text("short"), read_text, "needed"),
        (lambda p: None, read_text, "no text file"),
        (lambda p: None, read_music, "no file of piano rolls"),
        (lambda p: p.write_bytes(b"no mat"), read_music, "cannot be read"),
        (lambda p: p.mkdir(), read_music, "at least 2"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, make, read, words):
    path = tmp_path / "given.mat"
    make(path)
    with pytest.raises(DataError, match=words):
        read(path)


def test_rare_characters_share_one_place(tmp_path):
    (tmp_path / "t.txt").write_text(
        "".join(chr(0x4E00 + i) for i in range(400)) * 2 + "ab" * 200, encoding="utf-8"
    )
    assert len(read_text(tmp_path / "t.txt").characters) == 256


def test_wrong_settings():
    with pytest.raises(ValueError, match="longest"):
        AssociativeRecall(longest=1)
    with pytest.raises(ValueError, match="share"):
        Copy(curriculum=2)
    with pytest.raises(ValueError, match="batch_size"):
        Copy(batch_size=0)
    assert issubclass(RepeatCopy, BitTask)
