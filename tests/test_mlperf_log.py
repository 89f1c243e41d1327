import json
import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

T0 = 1715257320207


def line(key, value, t=T0):
    event = {"namespace": "", "time_ms": t, "event_type": "POINT_IN_TIME", "key": key}
    return f":::MLLOG {json.dumps({**event, 'value': value, 'metadata': ''})}\n"


def read(tmp_path, text, **options):
    path = tmp_path / "node_0.txt"
    path.write_text(text)
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_readings_are_one_pseudo_gpu_of_the_node(tmp_path):
    times = [0, 2000, 4010, 6000, 8000, 17000, 19000]
    body = "".join(line("power_reading", 2795 + i, T0 + t) for i, t in enumerate(times))
    start = line("power_measurement_start", "null")
    # The end carries the time of the start; it is no reading.
    stream, batch, account = read(tmp_path, start + body + line("power_measurement_stop", "null"))
    assert batch.power_w.tolist() == [2795.0 + i for i in range(7)]
    assert batch.t_s[0] == T0 / 1000
    assert [gpu.label for gpu in stream.gpus] == [":node"]
    assert (account.power_scope, account.format) == ("node", "mlperf mllog")
    assert account.rows_dropped == {}
    assert [round(gap.end_s - gap.start_s, 3) for gap in account.gaps] == [9.0]


def test_a_log_without_readings_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no power_reading event"):
        read(tmp_path, line("run_start", None) + line("epoch_start", 1))


def test_what_cannot_be_read_is_counted(tmp_path):
    text = line("power_reading", 2800)
    text += line("power_reading", "many", T0 + 1000) + line("power_reading", 2801, "never")
    text += "stray\n" + ":::MLLOG {broken\n" + line("power_reading", 2802, T0 + 2000)[:-20]
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [2800.0]
    assert account.rows_dropped == {
        "unreadable value": 1,
        "reading without a readable time_ms": 1,
        "line is no MLLOG line": 1,
        "MLLOG line without a JSON object": 1,
        "row cut short (no line end, or NUL bytes inside)": 1,
    }


def test_a_null_reading_is_missing_and_not_zero(tmp_path):
    _, batch, _ = read(tmp_path, line("power_reading", 2800) + line("power_reading", None, T0 + 1))
    assert batch.power_w[0] == 2800.0
    assert math.isnan(batch.power_w[1])


def test_a_period_is_ignored_with_a_note(tmp_path):
    _, _, account = read(tmp_path, line("power_reading", 2800), period_s=2.0)
    assert "--period is ignored: the readings carry times" in account.notes
