import json
import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream


def entry(minute, average, low=150.0, high=700.0, **more):
    return {
        "loss": 0.9,
        "step": 10 * minute,
        "timestamp": f"2025-12-29T15:{minute:02d}:31.732424",
        "power_avg": average,
        "power_min": low,
        "power_max": high,
        "temp": 55.0,
        "util": 47.4,
        **more,
    }


def read(tmp_path, document, **options):
    path = tmp_path / "history.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_rows_are_averages_over_a_step_and_say_so(tmp_path):
    stream, batch, account = read(tmp_path, [entry(10, 387.5), entry(25, 408.9), entry(40, 410.3)])
    assert batch.power_w.tolist() == [387.5, 408.9, 410.3]
    assert (batch.utilization_pct[0], batch.temperature_c[0]) == (47.4, 55.0)
    assert (account.is_aggregated, account.power_kind) == (True, "average")
    assert (account.period_s, account.num_ticks) == (900.0, 3)
    assert [gpu.label for gpu in stream.gpus] == [":0"]
    assert "times carry no zone and are read as UTC" in account.notes


def test_an_entry_that_is_0_throughout_was_never_read(tmp_path):
    final = entry(41, 0, 0, 0, temp=0, util=0)
    _, batch, account = read(tmp_path, [entry(10, 387.5), final])
    assert batch.power_w.tolist() == [387.5]
    assert account.rows_dropped == {"entry whose power is 0 throughout: nothing was read": 1}


def test_an_average_outside_its_bounds_is_dropped(tmp_path):
    bad = [entry(11, 800.0), entry(12, 100.0)]
    _, batch, account = read(tmp_path, [entry(10, 387.5), *bad])
    assert batch.power_w.tolist() == [387.5]
    assert account.rows_dropped == {"average not between minimum and maximum": 2}


@pytest.mark.parametrize("shape", ["log_history", "lines", "one"])
def test_other_ways_to_save_a_history(tmp_path, shape):
    entries = [entry(10, 387.5), entry(25, 408.9)]
    text = {
        "log_history": json.dumps({"best_metric": None, "log_history": entries}),
        "lines": "".join(json.dumps(e) + "\n" for e in entries),
        "one": json.dumps(entries[0]),
    }[shape]
    _, batch, _ = read(tmp_path, text)
    assert batch.power_w[0] == 387.5
    assert batch.power_w.size == (1 if shape == "one" else 2)


def test_entries_that_cannot_be_used_are_counted(tmp_path):
    strange = [7, {"loss": 1.0}, entry(12, "much"), entry(13, 400.0, timestamp="late")]
    _, batch, account = read(tmp_path, [entry(10, 387.5), *strange])
    assert batch.power_w.tolist() == [387.5]
    assert account.rows_dropped == {
        "entry is no JSON object": 1,
        "entry without power": 1,
        "entry with an unreadable power": 1,
        "entry without a readable time": 1,
    }


def test_an_unreadable_temperature_costs_only_itself(tmp_path):
    entries = [entry(10, 387.5, temp="hot"), entry(11, 387.5, temp=0), entry(12, 388.0)]
    _, batch, account = read(tmp_path, entries)
    assert batch.power_w.size == 3
    assert math.isnan(batch.temperature_c[0])
    assert math.isnan(batch.temperature_c[1])
    assert "unreadable temperature, left out: 1" in account.notes


def test_names_with_mean_and_without_bounds(tmp_path):
    _, batch, account = read(tmp_path, [{"_timestamp": 1767022051, "power_mean": 300}])
    assert batch.power_w.tolist() == [300.0]
    assert account.columns["power"] == "power_mean"


def test_no_times_need_a_period(tmp_path):
    entries = [{"power_avg": 300.0}, {"power_avg": 310.0}]
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, entries)
    _, batch, account = read(tmp_path, entries, period_s=60.0)
    assert batch.t_s.tolist() == [0.0, 60.0]
    assert account.is_relative


def test_a_document_that_is_cut_is_refused(tmp_path):
    text = json.dumps([entry(10, 387.5), entry(25, 408.9)], indent=2)
    with pytest.raises(FormatError, match="cut or damaged"):
        read(tmp_path, text[:-10])


def test_json_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('"power_avg"')
    with pytest.raises(FormatError, match="no list of logged steps"):
        open_stream(path, format="trainer json")


def test_a_nul_over_a_digit_never_leaves_a_smaller_number(tmp_path):
    """NULs were taken out of JSON documents, so 387.5 with one over its 8 read as 37.5."""
    text = json.dumps([entry(10, 387.5, 1.0, 900.0)]).replace("387.5", "3\x007.5")
    with pytest.raises(FormatError, match="cut or damaged"):
        read(tmp_path, text)
