"""Real files of other people, in the folder that the variable WATTLINE_SAMPLES names."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.recipe import RECIPE
from harness.formats.sniff import open_stream
from harness.samples import Account, GpuId

FOLDER = os.environ.get("WATTLINE_SAMPLES", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="WATTLINE_SAMPLES names no folder")


def find(number: str) -> Path:
    return next(Path(FOLDER).glob(f"{number}*"))


def read(number: str, **options: object) -> tuple[np.ndarray, np.ndarray, Account, list[GpuId]]:
    """Power and GPU of every sample, the account, the GPUs."""
    stream = open_stream(find(number), **options)  # type: ignore[arg-type]
    batches = list(stream.batches())
    power_w = np.concatenate([batch.power_w for batch in batches])
    gpu = np.concatenate([batch.gpu for batch in batches])
    return power_w, gpu, stream.account(), list(stream.gpus)


@pytest.mark.parametrize("number", ["16", "19"])
def test_files_without_power_are_refused_with_the_recipe(number: str) -> None:
    with pytest.raises(FormatError, match="no power column") as caught:
        read(number)
    assert RECIPE in str(caught.value)


def test_a_nodes_meter_is_refused() -> None:
    with pytest.raises(FormatError, match="only a node's meter"):
        read("10")


@pytest.mark.parametrize("number", ["18", "21"])
def test_files_without_times_need_a_period(number: str) -> None:
    with pytest.raises(FormatError, match="--period"):
        read(number)
    power_w, _, account, _ = read(number, period_s=1.0)
    assert power_w.size == account.rows_read
    assert account.is_relative


def test_two_writers_in_one_file_are_said() -> None:
    _, _, account, _ = read("18", period_s=1.0)
    assert any("two writers" in note for note in account.notes)
    assert "runs of NUL bytes: 1" in account.notes


def test_eight_gpus_from_the_place_in_the_tick() -> None:
    power_w, gpu, account, gpus = read("01")
    assert [g.index for g in gpus] == list(range(8))
    assert set(np.bincount(gpu)) == {account.num_ticks}
    assert account.rows_read >= 0.99 * 3774
    assert 117.0 < power_w.min() < power_w.max() < 700.0
    assert account.gaps


def test_the_cut_row_is_dropped_and_the_end_is_bare_idle() -> None:
    power_w, gpu, account, _ = read("02")
    assert account.rows_dropped["row cut short (no line end, or NUL bytes inside)"] == 1
    for index in range(8):
        assert 65.0 < power_w[gpu == index][-20:].mean() < 80.0


def test_cells_without_units_and_na_are_read_right() -> None:
    power_w, _, account, gpus = read("03")
    assert (power_w[:2].tolist(), len(gpus)) == ([17.55, 16.19], 2)
    assert account.rows_read == 3464
    stream = open_stream(find("22"))
    batches = list(stream.batches())
    assert all(np.isnan(batch.limit_w).all() for batch in batches)
    assert {w for batch in batches for w in batch.power_w} == {22.0, 23.0}


def test_iso_times_and_indices() -> None:
    power_w, gpu, account, gpus = read("05")
    assert len(gpus) == 8
    assert account.rows_dropped == {}
    assert np.median(power_w[gpu == 1]) > np.median(power_w[gpu == 0])


@pytest.mark.parametrize("number", ["06", "07", "08"])
def test_labels_are_kept_apart_from_readings(number: str) -> None:
    stream = open_stream(find(number))
    batches = list(stream.batches())
    assert stream.account().format == "dcgm csv"
    assert all(batch.label is not None for batch in batches)
    assert all((batch.throttled >= 0).all() for batch in batches)
    assert {gpu.name for gpu in stream.gpus} == {"NVIDIA H100 80GB HBM3"}


def test_two_gpus_from_wide_columns_without_utilization() -> None:
    power_w, _, account, gpus = read("14")
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert power_w[:2].tolist() == [199.975, 256.513]
    assert "the file has no utilization" in account.notes
    assert account.gaps


def traces() -> Iterator[Path]:
    yield from sorted((Path(FOLDER) / "traces").glob("*.csv.gz"))


def test_the_traces_are_read_nearly_whole_with_their_gaps() -> None:
    for path in traces():
        stream = open_stream(path)
        rows = sum(batch.t_s.size for batch in stream.batches())
        account = stream.account()
        lost = sum(account.rows_dropped.values())
        assert lost < 0.002 * rows
        assert len(stream.gpus) == 8
        assert account.period_s == pytest.approx(0.1, abs=0.002)
        assert max(gap.end_s - gap.start_s for gap in account.gaps) > 0.9
