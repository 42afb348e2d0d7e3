"""DLRM: published sizes, the interaction by hand, made-up clicks, Criteo files written by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, dlrm
from tracekit.capture.workloads.data import criteo as criteo_data
from tracekit.errors import UsageError

CPU = torch.device("cpu")


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return dlrm.build(WorkloadOptions(device=CPU, tiny=True, **options))


def batch_of(recipe: Recipe, count: int, start: int = 0):
    return recipe.collate([recipe.dataset[index] for index in range(start, start + count)])


@pytest.mark.parametrize(
    ("variant", "max_rows", "all_parameters", "perceptrons"),
    [
        ("kaggle", None, 540_677_217, 475_985),
        ("terabyte", None, 24_036_595_969, 2_368_897),
        ("kaggle", 10_000, 2_394_209, 475_985),
    ],
)
def test_parameters(variant, max_rows, all_parameters, perceptrons):
    with torch.device("meta"):
        model = dlrm.build_model(variant, max_rows=max_rows)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(counts.values()) == all_parameters
    assert sum(count for name, count in counts.items() if not name.startswith("tables.")) == perceptrons


def test_flops_are_those_of_the_perceptrons_and_the_interaction():
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        dense, ids, _ = dlrm.example_batch("kaggle")
        dlrm.build_model("kaggle")(dense, ids)
    widths = [(13, 512), (512, 256), (256, 64), (64, 16), (367, 512), (512, 256), (256, 1)]
    assert counter.get_total_flops() == 2 * sum(a * b for a, b in widths) + 2 * 27 * 27 * 16


def test_forward_is_dot_products_of_all_pairs():
    torch.manual_seed(1)
    model = dlrm.Dlrm((5, 3, 4), (6, 2), (7, 1))
    dense, ids = torch.rand(4, 13), torch.tensor([[4, 0, 3], [0, 2, 1], [1, 1, 1], [2, 0, 0]])
    bottom, top = (
        [layer for layer in part if hasattr(layer, "weight")] for part in (model.bottom, model.top)
    )
    expected = []
    for numbers, row in zip(dense, ids, strict=True):
        first = numbers
        for layer in bottom:
            first = (layer.weight @ first + layer.bias).clamp(min=0)
        vectors = [first, *(table.weight[i] for table, i in zip(model.tables, row, strict=True))]
        pairs = [vectors[i] @ vectors[j] for i in range(4) for j in range(i)]
        hidden = (top[0].weight @ torch.cat([first, torch.stack(pairs)]) + top[0].bias).clamp(min=0)
        expected.append(top[1].weight @ hidden + top[1].bias)
    torch.testing.assert_close(model(dense, ids), torch.cat(expected))


def test_initial_weights():
    torch.manual_seed(2)
    model = dlrm.build_model("kaggle", max_rows=2_000)
    table = model.tables[0].weight.detach()
    assert table.shape == (1_460, 16)
    assert 0.99 < table.abs().max() * math.sqrt(1_460) <= 1
    assert table.std() * math.sqrt(1_460) == pytest.approx(1 / math.sqrt(3), rel=0.03)
    linear = model.top[0].requires_grad_(False)
    assert linear.weight.std() == pytest.approx(math.sqrt(2 / (367 + 512)), rel=0.02)
    assert linear.bias.std() == pytest.approx(math.sqrt(1 / 512), rel=0.1)


def test_tables_get_sparse_gradients():
    recipe = tiny()
    batch = batch_of(recipe, 32)
    recipe.loss(recipe.forward(recipe.model, batch), batch).backward()
    assert all(table.weight.grad.is_sparse for table in recipe.model.tables)


def test_the_loss_is_the_cross_entropy_of_the_sigmoid():
    logits, labels = torch.tensor([0.3, -2.0, 1.0]), torch.tensor([1.0, 0.0, 0.0])
    click = 1 / (1 + torch.exp(-logits))
    expected = -(torch.log(click[0]) + torch.log(1 - click[1]) + torch.log(1 - click[2])) / 3
    torch.testing.assert_close(tiny().loss(logits, (None, None, labels)), expected)


def test_what_a_recipe_says_of_itself():
    recipe = tiny(max_rows=50)
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.skipped()) == (32, 39, True, 0)
    assert recipe.config["largest_table"] == 50
    assert max(table.num_embeddings for table in recipe.model.tables) == 50
    assert dlrm.build(WorkloadOptions(device=CPU, max_rows=9, batch=7)).batch == 7
    assert dlrm.build(WorkloadOptions(device=CPU, max_rows=9)).batch == 128
    assert dlrm.build(WorkloadOptions(device=CPU, max_rows=9, variant="terabyte")).batch == 2048


def test_a_row_depends_on_seed_and_index_alone():
    data = tiny().dataset
    many = data.__getitems__([5, 900_000, 0, 5])
    for index, row in zip([5, 900_000, 0, 5], many, strict=True):
        for part, same in zip(row, data[index], strict=True):
            np.testing.assert_array_equal(part, same)
    others = [tiny(seed=seed).dataset[5] for seed in (1, -1, 2**63)]
    for other in [*others, data[6]]:
        assert not np.array_equal(other[0], many[0][0])
    assert (len(data), [part.dtype for part in many[0]]) == (1_000_000, [np.float32, np.int64, np.float32])


def test_made_up_clicks_are_distributed_as_stated():
    full = criteo_data.SyntheticClicks(dlrm.KAGGLE_ROWS, dlrm.KAGGLE_ROWS, 3)
    dense, ids, labels = criteo_data.collate_clicks(full.__getitems__(list(range(20_000))))
    assert (dense.shape, ids.shape, labels.shape) == ((20_000, 13), (20_000, 26), (20_000,))
    assert labels.mean().item() == pytest.approx(0.256, abs=0.01)
    log_normal = torch.log(torch.expm1(dense.double()))
    assert log_normal.mean().item() == pytest.approx(1, abs=0.03)
    assert log_normal.std().item() == pytest.approx(2, rel=0.02)
    assert np.abs(np.corrcoef(dense.T.numpy()) - np.eye(13)).max() < 0.04
    # The distribution function of rank r in a table of n rows, at exponent 1.1.
    for table in (2, 8, 19, 0):
        rows = dlrm.KAGGLE_ROWS[table]
        assert ids[:, table].min() >= 0
        assert ids[:, table].max() < rows
        for rank in {1, 2, min(10, rows), min(100, rows)}:
            share = (1 - (rank + 1) ** -0.1) / (1 - (rows + 1) ** -0.1)
            assert (ids[:, table] < rank).double().mean().item() == pytest.approx(share, abs=0.012)


def test_capped_ids_are_the_same_ids_modulo_the_rows():
    full = criteo_data.SyntheticClicks(dlrm.KAGGLE_ROWS, dlrm.KAGGLE_ROWS, 3)
    rows = np.minimum(dlrm.KAGGLE_ROWS, 1_000)
    capped = criteo_data.SyntheticClicks(dlrm.KAGGLE_ROWS, rows, 3)
    np.testing.assert_array_equal(capped[77][1], full[77][1] % rows)


GOOD = "1\t1\t\t-3" + "\t0" * 10 + "\tff\t\t68fd1e64" + "\t0" * 23


def numbered(row: int) -> str:
    return "\t".join(["0", str(row), *["0"] * 12, *["a"] * 26])


def criteo(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes((end.join(lines) + end).encode())
    return path


def test_a_row_written_by_hand(tmp_path):
    recipe = tiny(data=criteo(tmp_path / "train.txt", [GOOD]), max_rows=1_000)
    dense, ids, labels = batch_of(recipe, 1)
    torch.testing.assert_close(dense[0], torch.tensor([math.log(2)] + [0.0] * 12))
    # 0x68fd1e64 = 1,761,418,852; tables 0, 1 and 2 have 1,000, 583 and 1,000 rows.
    assert ids[0].tolist() == [255, 0, 852] + [0] * 23
    assert labels.tolist() == [1.0]
    assert (recipe.synthetic, recipe.skipped(), len(recipe.dataset)) == (False, 0, 1)
    assert tiny(data=tmp_path, max_rows=1_000).dataset[0][1].tolist() == ids[0].tolist()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last_newline", [True, False])
@pytest.mark.parametrize("chunk", [1, 37, 1 << 22])
def test_every_row_is_found_wherever_the_reading_chunks_end(tmp_path, monkeypatch, end, last_newline, chunk):
    monkeypatch.setattr(criteo_data, "CHUNK_BYTES", chunk)
    path = criteo(tmp_path / "rows", [numbered(row) for row in range(130)], end)
    if not last_newline:
        path.write_bytes(path.read_bytes()[: -len(end)])
    data = criteo_data.CriteoFile(path, [1_000] * 26)
    assert len(data) == 130
    order = [129, 0, 63, 64, 65, 127, 128, 1, -1]
    for index, row in zip(order, data.__getitems__(order), strict=True):
        assert row[0][0] == np.float32(np.log1p(index % 130))
    with pytest.raises(IndexError):
        data[130]


@pytest.mark.parametrize("rows", [64, 128])
def test_a_file_that_ends_with_a_full_block(tmp_path, rows):
    data = criteo_data.CriteoFile(criteo(tmp_path / "rows", [numbered(row) for row in range(rows)]), [9] * 26)
    assert len(data) == rows
    assert data[rows - 1][0][0] == np.float32(np.log1p(rows - 1))


@pytest.mark.parametrize(
    "bad",
    [
        "",
        GOOD + "\t0",
        GOOD.rpartition("\t")[0],
        "2" + GOOD[1:],
        GOOD[1:],
        GOOD.replace("-3", "3.5"),
        GOOD.replace("ff", "fg"),
        GOOD.replace("-3", "9" * 400),
    ],
)
def test_malformed_rows_are_replaced_by_the_next_and_counted(tmp_path, bad):
    path = criteo(tmp_path / "rows", [numbered(0), bad, bad, numbered(3), bad])
    data = criteo_data.CriteoFile(path, [1_000] * 26)
    assert data.skipped() == 0
    assert [round(float(np.expm1(data[index][0][0]))) for index in range(5)] == [0, 3, 3, 3, 0]
    assert data.skipped() == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_skipped_rows_are_counted_over_loader_processes(tmp_path):
    lines = [numbered(row) if row % 3 else "broken" for row in range(60)]
    recipe = tiny(data=criteo(tmp_path / "rows", lines), max_rows=100)
    loader = DataLoader(
        recipe.dataset, 6, num_workers=2, collate_fn=recipe.collate, multiprocessing_context="fork"
    )
    assert sum(len(labels) for _, _, labels in loader) == 60
    assert recipe.skipped() == 20


def test_unusable_files(tmp_path, monkeypatch):
    def message(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            tiny(data=path)
        return str(caught.value).removeprefix(f"{path}: ")

    assert message(tmp_path / "none") == "cannot be read: No such file or directory; name a Criteo train.txt"
    (tmp_path / "empty").touch()
    assert message(tmp_path / "empty") == "the file is empty; name a Criteo train.txt"
    packed = tmp_path / "train.txt.gz"
    packed.touch()
    assert message(packed) == "a compressed file does not allow access to single rows; gunzip train.txt.gz"
    prose = criteo(tmp_path / "prose", ["no rows here"] * 3)
    assert message(prose).startswith("no row of 40 tab-separated fields from row 1 on; ")
    monkeypatch.setattr(criteo_data, "LONGEST_BLOCK", 100)
    assert "too long" in message(criteo(tmp_path / "binary", ["0" * 150]))
