"""DeepSpeech2: published sizes, no heed of filling, the CTC loss by enumeration, made-up speech and WAV files."""

import itertools
import math
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, deepspeech2
from tracekit.capture.workloads.data import speech as speech_data
from tracekit.errors import UsageError


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return deepspeech2.build(WorkloadOptions(device=torch.device("cpu"), tiny=True, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "parameters", "gflop"), [("lstm1024", 86_618_400, 194), ("gru800", 41_187_968, 103)]
)
def test_parameters_and_flops(variant, parameters, gflop):
    """On the meta device torch takes a recurrent layer apart into products, so that they are counted.

    That takes long for 10 s of speech; but the count is proportional to the length, as every output frame costs
    the same.
    """
    counts = []
    for frames in (20, 40):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = deepspeech2.build_model(variant)
            model(torch.zeros(2, 161, frames), torch.ones(2, dtype=torch.int64))
        counts.append(counter.get_total_flops())
    assert counts[1] == 2 * counts[0]
    assert counts[1] * 1_000 / 40 / 1e9 == pytest.approx(gflop, abs=0.6)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def filled_up(longest: int, frames: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    spectrograms = torch.randn(len(frames), 161, longest)
    for spectrogram, count in zip(spectrograms, frames, strict=True):
        spectrogram[:, count:] = 0
    return spectrograms, torch.tensor(frames)


def test_a_score_does_not_depend_on_what_else_is_in_the_batch():
    torch.manual_seed(0)
    for variant in deepspeech2.VARIANTS:
        model = deepspeech2.build_model(variant, tiny=True).eval()
        spectrograms, frames = filled_up(31, [31, 24, 9])
        scores, lengths = model(spectrograms, frames)
        assert lengths.tolist() == [16, 12, 5]
        assert scores.shape == (16, 3, 29)
        for place, (count, length) in enumerate(zip(frames, lengths, strict=True)):
            alone, _ = model(spectrograms[place : place + 1, :, :count], frames[place : place + 1])
            torch.testing.assert_close(scores[:length, place], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_filling_does_not_count_in_the_normalisation_between_layers():
    torch.manual_seed(0)
    model = deepspeech2.build_model("gru800", tiny=True)
    model.convolutions.eval()
    spectrograms, frames = filled_up(30, [30, 12])
    scores, _ = model(spectrograms, frames)
    wider = torch.nn.functional.pad(spectrograms, (0, 8))
    again, _ = model(wider, frames)
    torch.testing.assert_close(again[:15], scores, rtol=1e-4, atol=1e-5)


def test_a_layer_adds_its_directions():
    torch.manual_seed(0)
    layer = deepspeech2.TwoWayLayer(torch.nn.LSTM, 6, 4, normalise=False)
    features = torch.randn(5, 1, 6)
    packed = torch.nn.utils.rnn.pack_padded_sequence(features, torch.tensor([5]))
    both, _ = layer.rnn(features)
    torch.testing.assert_close(layer(packed).data, both[:, 0, :4] + both[:, 0, 4:])
    normalising = deepspeech2.TwoWayLayer(torch.nn.LSTM, 6, 4, normalise=True)
    assert normalising.norm.num_features == 6


def spelled(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(letter for letter, _ in itertools.groupby(path) if letter)


def test_the_loss_is_that_of_all_ways_to_spell():
    torch.manual_seed(0)
    scores = torch.randn(4, 2, 3)
    labels, counts, lengths = torch.tensor([[1, 1], [2, 0]]), torch.tensor([2, 1]), torch.tensor([4, 3])
    expected = 0.0
    for row, wanted in enumerate([(1, 1), (2,)]):
        chances = scores[:, row].softmax(dim=1)
        ways = (
            path for path in itertools.product(range(3), repeat=int(lengths[row])) if spelled(path) == wanted
        )
        chance = sum(
            math.prod(chances[time, letter].item() for time, letter in enumerate(path)) for path in ways
        )
        expected -= math.log(chance)
    loss = tiny().loss((scores, lengths), (None, None, labels, counts))
    assert loss.item() == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.slow
def test_made_up_speech_is_as_long_as_stated():
    data = speech_data.SyntheticSpeech(10_000, 0)
    frames, letters = np.array([(data[i][0].shape[1], len(data[i][1])) for i in range(400)]).T
    assert frames.min() >= 100
    assert frames.max() <= 3_500
    assert frames.mean() == pytest.approx(1_220, abs=80)
    assert np.all(np.abs(letters / (frames / 100) - 14.5) < 0.5 + 0.5 / (frames / 100))
    labels = data[0][1]
    assert labels.min() >= 1
    assert labels.max() <= 28


def test_samples_depend_on_seed_and_index_alone():
    recipe = tiny()
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.skipped()) == (2, 100, True, 0)
    first, again, other, seeded = (
        recipe.dataset[4],
        tiny().dataset[4],
        recipe.dataset[5],
        tiny(seed=1).dataset[4],
    )
    assert first[0].shape == (161, 100)
    assert all(torch.equal(part, same) for part, same in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], seeded[0])
    assert tiny(size=40).dataset[0][0].shape == (161, 40)
    example = deepspeech2.example_batch("")
    assert [part.shape for part in example] == [(1, 161, 1_600), (1,), (1, 1), (1,)]
    assert example[1].item() == 1_600


def test_a_batch_is_filled_up_and_the_longest_comes_first():
    short = (torch.full((161, 3), 7.0), torch.tensor([5, 6]))
    long = (torch.full((161, 4), 8.0), torch.tensor([9]))
    spectrograms, frames, labels, counts = speech_data.collate_speech([short, long])
    assert spectrograms[:, 160].tolist() == [[8] * 4, [7, 7, 7, 0]]
    assert (frames.tolist(), labels.tolist(), counts.tolist()) == ([4, 3], [[9, 0], [5, 6]], [1, 2])


def record(
    path: Path, text: str | None, *, seconds: float = 1, rate: int = 16_000, channels: int = 1
) -> None:
    places = np.arange(int(seconds * rate)) / rate
    tone = (10_000 * np.sin(2 * np.pi * 1_000 * places)).astype("<i2")
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(np.repeat(tone, channels).tobytes())
    if text is not None:
        path.with_suffix(".txt").write_text(text)


def test_a_recorded_tone(tmp_path):
    (tmp_path / "reader").mkdir()
    record(tmp_path / "reader" / "a.wav", "It's  a1\nb.\n")
    recipe = tiny(data=tmp_path, size=120)
    assert (recipe.synthetic, len(recipe.dataset), recipe.skipped()) == (False, 1, 0)
    spectrogram, letters = recipe.dataset[0]
    assert "".join(speech_data.ALPHABET[letter] for letter in letters) == "IT'S A B"
    assert spectrogram.shape == (161, 101)
    assert set(spectrogram[:, 5:-5].argmax(dim=0).tolist()) == {20}  # 1 kHz of 50 Hz a bin
    assert spectrogram.mean().item() == pytest.approx(0, abs=1e-5)
    assert spectrogram.std().item() == pytest.approx(1, abs=1e-4)
    batch = recipe.collate([recipe.dataset[0]])
    assert torch.isfinite(recipe.loss(recipe.forward(recipe.model, batch), batch))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_unusable_utterances_are_replaced_by_the_next_and_counted(tmp_path):
    record(tmp_path / "a.wav", "a")
    record(tmp_path / "b.wav", None)
    record(tmp_path / "c.wav", "123")
    record(tmp_path / "d.wav", "d", rate=8_000)
    record(tmp_path / "e.wav", "e", channels=2)
    record(tmp_path / "f.wav", "f", seconds=1.5)
    record(tmp_path / "g.wav", "ab" * 26)
    record(tmp_path / "h.wav", "a" * 26)
    record(tmp_path / "i.wav", "i", seconds=0.01)
    (tmp_path / "j.wav").write_bytes(b"RIFF")
    (tmp_path / "j.txt").write_text("j")
    record(tmp_path / "k.wav", "k")
    recipe = tiny(data=tmp_path, size=120)
    loader = DataLoader(recipe.dataset, 1, num_workers=2, multiprocessing_context="fork")
    letters = [speech_data.ALPHABET[labels[0, 0]] for _, labels in loader]
    assert letters == ["A", *["K"] * 10]
    assert recipe.skipped() == 9
    assert recipe.dataset[-1][1].tolist() == [speech_data.ALPHABET.index("K")]
    for name in ("a", "k"):
        (tmp_path / f"{name}.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"no usable utterance from 'b.wav' on; give one channel"):
        recipe.dataset[1]


def test_as_many_letters_as_the_model_can_spell_are_usable(tmp_path):
    record(tmp_path / "a.wav", "ab" * 25)  # 50 letters in 101 frames, two of which give one score
    assert len(tiny(data=tmp_path, size=101).dataset[0][1]) == 50


def test_folders_without_sound(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError) as caught:
            tiny(data=path)
        assert (
            str(caught.value) == f"{path}: no WAV files in a folder; name a folder of NAME.wav and NAME.txt"
        )
