from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.formats.positional import IRREGULAR, PositionalTicks, rows_per_tick
from harness.formats.ticks import GpuTable, Ledger, ReaderStream, Rows, select
from harness.samples import GpuId, SampleBatch


def ledger() -> Ledger:
    return Ledger(path=Path("x.csv"), format_name="test", why="made")


def batch(times: list[float], gpus: list[int] | None = None) -> SampleBatch:
    rows = Rows()
    for i, t_s in enumerate(times):
        rows.add(t_s, gpus[i] if gpus else 0, float(i), label=None)
    return rows.take()


def ticks(num: int, gpus: int, period_s: float = 0.1) -> list[float]:
    return [k * period_s + 0.001 * g for k in range(num) for g in range(gpus)]


def assign(
    times: list[float], holes: list[int], chunk: int = 10**9
) -> tuple[list[SampleBatch], Ledger]:
    book = ledger()
    positional = PositionalTicks(GpuTable(), book, None)
    hole = np.zeros(len(times), dtype=np.bool_)
    hole[holes] = True
    found: list[SampleBatch] = []
    whole = batch(times)
    for start in range(0, len(times), chunk):
        rows = np.arange(start, min(start + chunk, len(times)))
        found.extend(positional.push(select(whole, rows), hole[rows]))
    found.extend(positional.finish())
    return found, book


def owners(found: list[SampleBatch]) -> dict[int, int]:
    """Row number (kept in power_w) -> GPU."""
    return {int(p): int(g) for b in found for p, g in zip(b.power_w, b.gpu, strict=True)}


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16])
def test_the_number_of_gpus_is_the_repetition(gpus: int) -> None:
    times = np.array(ticks(200, gpus))
    size, pause_s, share = rows_per_tick(times, np.zeros(times.size, dtype=np.bool_))
    assert size == gpus
    assert share == 1.0
    assert gpus == 1 or 0.001 < pause_s < 0.1


def test_a_restart_every_hundred_rows_is_no_tick_of_hundred_gpus() -> None:
    times = np.array([k * 1.0 + (k // 100) * 20.0 for k in range(1000)])
    assert rows_per_tick(times, np.zeros(1000, dtype=np.bool_))[0] == 1


@pytest.mark.parametrize("chunk", [10**9, 4096, 5000])
def test_rows_get_their_gpu_by_place(chunk: int) -> None:
    found, book = assign(ticks(2000, 8), [], chunk)
    assert owners(found) == {i: i % 8 for i in range(16000)}
    assert book.account().rows_dropped == {}


def test_a_cut_last_tick_is_dropped_and_counted() -> None:
    found, book = assign(ticks(50, 8)[:-5], [])
    assert owners(found) == {i: i % 8 for i in range(392)}
    assert book.account().rows_dropped == {IRREGULAR: 3}


def test_a_tick_beside_an_unreadable_row_is_dropped() -> None:
    times = ticks(50, 8)
    del times[83]
    found, book = assign(times, [83])
    assert sum(b.t_s.size for b in found) == 49 * 8
    assert book.account().rows_dropped == {IRREGULAR: 7}


def test_an_unreadable_row_and_a_lone_row_do_not_make_a_tick() -> None:
    """Seven rows of one tick and the first of the next were joined to a tick of eight."""
    times = ticks(50, 8)
    del times[83]
    times = [*times[:87], times[-1] + 0.1, *[times[-1] + 0.2 + 0.001 * g for g in range(8)]]
    found, book = assign(times, [83])
    assert book.account().rows_dropped[IRREGULAR] == 8
    assert all(gpu == row % 8 for row, gpu in owners(found).items() if row < 80)


def test_a_pause_inside_a_tick_is_no_new_tick() -> None:
    times = np.array(ticks(50, 8))
    times[83:] += 2.5
    found, book = assign(times.tolist(), [])
    assert owners(found) == {i: i % 8 for i in range(400)}
    assert any("pause of the sampler inside" in note for note in book.account().notes)


def test_half_of_the_gpus_for_some_ticks_are_not_joined() -> None:
    times = ticks(20, 8) + [2.0 + t for t in ticks(6, 4)] + [2.6 + t for t in ticks(20, 8)]
    found, book = assign(times, [])
    assert book.account().rows_dropped == {IRREGULAR: 24}
    assert sum(b.t_s.size for b in found) == 320


def test_rows_in_another_order_are_dropped_not_mixed() -> None:
    times = ticks(50, 4)
    times[41], times[42] = times[42], times[41]
    found, book = assign(times, [])
    assert book.account().rows_dropped == {IRREGULAR: 4}
    assert 41 not in owners(found)


def test_rows_without_pattern_are_refused() -> None:
    rng = np.random.default_rng(1)
    times = np.sort(np.concatenate([rng.uniform(0, 1000, 200) + 0.001 * g for g in range(3)]))
    sizes = rng.integers(1, 9, 200)
    bunched = [k + 0.001 * g for k, size in enumerate(sizes.tolist()) for g in range(size)]
    assert times.size
    with pytest.raises(FormatError, match="no regular ticks"):
        assign(bunched, [])


def test_one_tick_is_as_many_gpus_as_rows() -> None:
    found, _ = assign([0.0, 0.001, 0.001, 0.002], [])
    assert owners(found) == {0: 0, 1: 1, 2: 2, 3: 3}


def stream(batches: list[SampleBatch]) -> ReaderStream:
    table = GpuTable()
    for index in range(3):
        table.position(GpuId(host="", index=index, uuid=None, name=None))
    return ReaderStream(table, ledger(), iter(batches))


def drain(reader: ReaderStream) -> Iterator[float]:
    for found in reader.batches():
        yield from found.t_s.tolist()


def test_the_account_has_period_ticks_and_gaps() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0]
    reader = stream([batch(times[:3]), batch(times[3:])])
    assert list(drain(reader)) == times
    account = reader.account()
    assert account.period_s == 1.0
    assert account.num_ticks == 7
    assert [(gap.start_s, gap.end_s) for gap in account.gaps] == [(3.0, 10.0)]


def test_a_gap_needs_all_gpus_to_be_silent() -> None:
    times = [float(k) for k in range(20)]
    reader = stream([batch([*times, 0.5, 19.5], [0] * 20 + [1, 1])])
    list(drain(reader))
    assert reader.account().gaps == ()


def test_a_single_tick_has_no_period() -> None:
    reader = stream([batch([5.0, 5.0, 5.0], [0, 1, 2])])
    list(drain(reader))
    assert reader.account().period_s is None
    assert reader.account().num_ticks == 1
    assert reader.account().gaps == ()


def test_rows_that_go_back_are_dropped_and_counted() -> None:
    reader = stream([batch([0.0, 1.0, 2.0, 1.5, 3.0]), batch([2.5, 4.0])])
    assert list(drain(reader)) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert reader.account().rows_dropped == {"time goes back": 2}


def test_one_leap_ahead_does_not_cost_the_rest_of_the_file() -> None:
    """One damaged year dropped every row after it."""
    reader = stream([batch([0.0, 1.0, 2e9, 2.0, 3.0, 4.0])])
    assert list(drain(reader)) == [0.0, 1.0, 2.0, 3.0, 4.0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1e4, width=32)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_what_is_delivered_is_in_order_per_gpu_and_all_is_counted(
    rows: list[tuple[int, float]], size: int
) -> None:
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    reader = stream([batch([t for _, t in part], [g for g, _ in part]) for part in parts])
    seen: dict[int, float] = {}
    total = 0
    for found in reader.batches():
        for gpu, t_s in zip(found.gpu.tolist(), found.t_s.tolist(), strict=True):
            assert t_s >= seen.get(gpu, -1.0)
            seen[gpu] = t_s
            total += 1
    assert total + sum(reader.account().rows_dropped.values()) == len(rows)
    assert total == reader.account().rows_read


def test_a_file_without_a_row_is_refused() -> None:
    with pytest.raises(FormatError, match="no usable row"):
        list(stream([]).batches())


def test_a_file_without_a_watt_is_refused() -> None:
    rows = Rows()
    rows.add(0.0, 0, float("nan"))
    with pytest.raises(FormatError, match="no row has a power reading"):
        list(stream([rows.take()]).batches())
