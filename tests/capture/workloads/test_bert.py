"""`bert`: its size and work, its masking, its pairs of text, and what it does with real files."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, bert
from tracekit.capture.workloads.data import tokens as token_data
from tracekit.errors import UsageError

CPU = torch.device("cpu")
TEXT = "\n".join(f"Line {n} says word{n} and sign{n * n}; nothing else." for n in range(2000)) + "\n"


def build(**options: object) -> Recipe:
    torch.manual_seed(0)
    return bert.build(WorkloadOptions(device=CPU, **{"tiny": True, **options}))


def original(sample: dict[str, torch.Tensor]) -> list[int]:
    """The tokens before masking, without padding."""
    tokens = torch.where(sample["labels"] == token_data.IGNORED, sample["input_ids"], sample["labels"])
    return tokens[sample["attention_mask"].bool()].tolist()


@pytest.mark.slow
def test_the_loss_is_the_one_transformers_computes() -> None:
    recipe = build(batch=4)
    batch = default_collate([recipe.dataset[index] for index in range(4)])
    model = recipe.model.eval()
    with torch.no_grad():
        ours = recipe.loss(recipe.forward(model, batch), batch)
        theirs = model(**batch).loss
    torch.testing.assert_close(ours, theirs)


def test_masking_takes_15_percent_of_which_80_10_10() -> None:
    words = token_data.ZipfWords(104, 30_000)
    random = torch.Generator().manual_seed(3)
    counts = torch.zeros(4)
    for _ in range(200):
        tokens = words.draw(500, random)
        maskable = torch.rand(500, generator=random) < 0.9
        inputs, labels = token_data.mask_tokens(tokens, maskable, words, 103, random)
        chosen = labels != token_data.IGNORED
        assert not (chosen & ~maskable).any()
        assert int(chosen.sum()) == round(0.15 * int(maskable.sum()))
        assert torch.equal(labels[chosen], tokens[chosen])
        assert torch.equal(inputs[~chosen], tokens[~chosen])
        became = inputs[chosen]
        mask, same = became == 103, became == tokens[chosen]
        counts += torch.tensor([mask.sum(), (~mask & ~same).sum(), same.sum(), chosen.sum()])
    shares = counts[:3] / counts[3]
    assert shares.tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_words_are_distributed_as_in_text() -> None:
    drawn = token_data.ZipfWords(10, 1010).draw(200_000, torch.Generator().manual_seed(0))
    assert (int(drawn.min()), int(drawn.max())) == (10, 1009)
    shares = torch.bincount(drawn - 10, minlength=1000) / len(drawn)
    norm = sum(rank**-1.05 for rank in range(1, 1001))
    for rank in (1, 2, 10, 100):
        assert shares[rank - 1].item() == pytest.approx(rank**-1.05 / norm, rel=0.1)


@pytest.mark.slow
def test_a_sample_has_bert_s_layout_and_depends_on_seed_and_index_alone() -> None:
    dataset = build(size=64).dataset
    lengths = []
    for index in range(150):
        sample = dataset[index]
        assert all(value.shape == (64,) for key, value in sample.items() if key != "next_sentence_label")
        tokens, real = original(sample), int(sample["attention_mask"].sum())
        lengths.append(real)
        assert tokens[0] == 101
        assert tokens[-1] == 102
        first_end = tokens.index(102)
        kinds = sample["token_type_ids"]
        assert kinds.tolist() == [0] * (first_end + 1) + [1] * (real - first_end - 1) + [0] * (64 - real)
        assert sample["attention_mask"].tolist() == [1] * real + [0] * (64 - real)
        assert (sample["labels"][real:] == token_data.IGNORED).all()
        assert sample["labels"][[0, first_end, real - 1]].tolist() == [token_data.IGNORED] * 3
    assert 0.84 < lengths.count(64) / 150 < 0.96
    assert min(lengths) < 40
    again, other = build(size=64).dataset[7], build(size=64, seed=1).dataset[7]
    assert all(torch.equal(value, again[key]) for key, value in dataset[7].items())
    assert not torch.equal(dataset[7]["input_ids"], other["input_ids"])


@pytest.mark.slow
def test_pairs_of_real_text_follow_each_other_or_do_not(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    recipe = build(data=file, size=64, variant="base", tiny=False, batch=1)
    assert not recipe.synthetic
    assert recipe.config["tokenizer"] == "hashed words"
    lines = [recipe.dataset.tokenizer.encode(line) for line in TEXT.splitlines()]
    whole = [token for line in lines for token in line] * 2
    runs: dict[int, list[int]] = {}
    for place, token in enumerate(whole):
        runs.setdefault(token, []).append(place)

    def is_run(part: list[int]) -> bool:
        return any(whole[place : place + len(part)] == part for place in runs[part[0]])

    follow = 0
    for index in range(60):
        sample = recipe.dataset[index]
        tokens = original(sample)
        end = tokens.index(102)
        first, second = tokens[1:end], tokens[end + 1 : -1]
        assert is_run(first)
        assert is_run(second)
        follows = int(sample["next_sentence_label"]) == 0
        if len(first) + len(second) > 20:  # short pieces may follow each other by chance
            assert is_run(first + second) == follows
        follow += follows
    assert 15 <= follow <= 45


@pytest.mark.parametrize("text", ["a\nbb\n\nccc\n", "a\nbb\nccc", "\n\n  \nx\n", "one line"])
def test_lines_are_found_from_any_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("tail\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "other.md").write_text("not this\n")
    lines = token_data.TextLines(tmp_path)
    assert lines.size == len(text) + 5
    starts, at = [], 0
    for part, base in ((text, 0), ("tail\n", len(text))):
        at = base
        for line in part.splitlines(keepends=True):
            starts.append((at, line.strip()))
            at += len(line)
    for place in range(lines.size):
        expected = [line for start, line in starts if start >= place] + [
            line for start, line in starts if start < place
        ]
        assert list(lines.lines_from(place)) == [line for line in expected if line], place


def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    text = "".join(f"größe{n}€ " for n in range(40_000))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    lines = token_data.TextLines(tmp_path / "a.txt")
    pieces = list(lines.lines_from(0))
    assert len(pieces) > 5
    assert all(len(piece.encode()) <= 1 << 16 for piece in pieces)
    joined = "".join("".join(piece.split()) for piece in pieces)
    # At each cut, the character that the cut divides may be lost, and nothing else.
    assert len("".join(text.split())) - len(joined) < len(pieces)
    assert lines.skipped() == 0
    assert len(list(lines.lines_from(100_000))) > 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_lines_that_are_no_utf8_are_counted_over_all_loader_processes(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    bad = b"caf\xe9 \xff\n"
    file.write_bytes(b"".join(b"a good line of text number %d\n" % n + bad for n in range(50)))
    recipe = build(data=file, size=16)
    before = recipe.skipped()
    loader = DataLoader(recipe.dataset, batch_size=2, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    after = recipe.skipped()
    assert after > before
    expected = [default_collate([recipe.dataset[n] for n in (2 * i, 2 * i + 1)]) for i in range(2)]
    for batch, wanted in zip(batches, expected, strict=False):
        assert all(torch.equal(batch[key], wanted[key]) for key in wanted)
    assert recipe.skipped() > after
    counted = token_data.TextLines(file)
    assert len(list(counted.lines_from(0))) == 50
    assert counted.skipped() == 50


def save_tokenizer(path: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


SPECIAL = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]


def test_a_tokenizer_beside_the_text_is_used(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("red green blue\n" * 40)
    save_tokenizer(tmp_path / "tokenizer.json", [*SPECIAL, "red", "green", "blue"])
    for data in (tmp_path, tmp_path / "text.txt"):
        recipe = build(data=data, size=32)
        assert recipe.config["tokenizer"] == "tokenizer.json"
        tokens = original(recipe.dataset[0])
        assert tokens[0] == 3
        assert tokens[-1] == 4
        first = tokens[1 : tokens.index(4)]
        assert first[0] == 5
        assert all((b - a) % 3 == 1 for a, b in pairwise(first))


def test_without_the_package_tokenizers_words_are_hashed(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "text.txt").write_text("red green blue\n")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json: it is not a tokenizer"):
        build(data=tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = token_data.find_tokenizer(tmp_path, 104, 512)
    assert tokenizer.name == "hashed words"
    assert tokenizer.encode("Red, red!") == [tokenizer.encode(word)[0] for word in ("red", ",", "red", "!")]
    assert all(104 <= token < 512 for token in tokenizer.encode(TEXT))


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("red green blue\n")
    save_tokenizer(tmp_path / "tokenizer.json", ["[UNK]", "red"])
    with pytest.raises(UsageError, match=r"tokenizer\.json: the tokenizer has no token \[CLS\]"):
        build(data=tmp_path)
    save_tokenizer(tmp_path / "tokenizer.json", [*SPECIAL, *(f"w{n}" for n in range(600))])
    with pytest.raises(UsageError, match="the tokenizer has 605 tokens, the model 512"):
        build(data=tmp_path)


def test_data_that_hold_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.txt: it cannot be read: No such file"):
        build(data=tmp_path / "missing.txt")
    with pytest.raises(UsageError, match="there is no text in it"):
        build(data=tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\n" * 30)
    with pytest.raises(UsageError, match="there is no text in it"):
        build(data=tmp_path)
    (tmp_path / "a.txt").write_text("word")
    assert all(len(original(build(data=tmp_path, seed=seed).dataset[0])) in (4, 5) for seed in range(6))
