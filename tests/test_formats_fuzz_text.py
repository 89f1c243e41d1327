"""Damaged files: whatever was done to one, it is refused in words or its numbers are true.

What only cuts, repeats or recodes a file must leave samples that are all in the sound one. What
overwrites bytes with what is no digit may lose a GPU's name, but never give another number. (A
blank over the first digit of a number leaves a sound number: that cannot be seen.)
"""

import gzip
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.formats import ticks
from harness.formats.sniff import format_names, open_stream

T0 = 1773114080
NUM_TICKS = 6
NUM_GPUS = 3


def watts(gpu, tick):
    """Every reading is a number of its own, and no part of another."""
    return round(100.0 + 100 * gpu + 10 * tick + 0.123 + gpu / 1000, 3)


GRID = [(gpu, tick) for tick in range(NUM_TICKS) for gpu in range(NUM_GPUS)]


def dcgm_labels(gpu):
    return f'gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100",Hostname="node"'


def prometheus_text():
    lines = []
    for tick in range(NUM_TICKS):
        time_ms = (T0 + 15 * tick) * 1000
        lines += ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge"]
        lines += [
            f"DCGM_FI_DEV_POWER_USAGE{{{dcgm_labels(gpu)}}} {watts(gpu, tick)} {time_ms}"
            for gpu in range(NUM_GPUS)
        ]
    return "\n".join(lines) + "\n"


def prometheus_json():
    def one(gpu):
        labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": str(gpu), "Hostname": "node"}
        values = [[T0 + 15 * tick, str(watts(gpu, tick))] for tick in range(NUM_TICKS)]
        return {"metric": labels, "values": values}

    result = [one(gpu) for gpu in range(NUM_GPUS)]
    data = {"resultType": "matrix", "result": result}
    return json.dumps({"status": "success", "data": data}, indent=1) + "\n"


def wandb_jsonl():
    def one(tick):
        keys = {f"gpu.{gpu}.powerWatts": watts(gpu, tick) for gpu in range(NUM_GPUS)}
        return json.dumps({**keys, "_timestamp": T0 + 15 * tick})

    return "\n".join(one(tick) for tick in range(NUM_TICKS)) + "\n"


def nvitop_csv():
    names = [f"daemon/gpu:{gpu}/power_usage (W)/last" for gpu in range(NUM_GPUS)]
    lines = [",".join(["daemon/timestamp", *names])]
    for tick in range(NUM_TICKS):
        cells = [str(watts(gpu, tick)) for gpu in range(NUM_GPUS)]
        lines.append(",".join([f"{T0 + 15 * tick}.0", *cells]))
    return "\n".join(lines) + "\n"


def amd_smi_csv():
    lines = ["timestamp,gpu,current_socket_power,average_socket_power,gfx_activity"]
    lines += [f"{T0 + 15 * tick},{gpu},{watts(gpu, tick)},N/A,97" for gpu, tick in GRID]
    return "\n".join(lines) + "\n"


def rocm_smi_text():
    lines = []
    for tick in range(NUM_TICKS):
        moment = datetime.fromtimestamp(T0 + 15 * tick, UTC)
        lines += [moment.isoformat(), "===== ROCm System Management Interface ====="]
        lines += [
            f"GPU[{gpu}] : Average Graphics Package Power (W): {watts(gpu, tick)}"
            for gpu in range(NUM_GPUS)
        ]
    return "\n".join(lines) + "\n"


def mlperf_log():
    def one(tick):
        event = {"time_ms": (T0 + 15 * tick) * 1000, "key": "power_reading"}
        return f":::MLLOG {json.dumps({**event, 'value': watts(0, tick)})}"

    return "\n".join(one(tick) for tick in range(NUM_TICKS)) + "\n"


def trainer_json():
    entries = [
        {"timestamp": T0 + 15 * tick, "power_avg": watts(0, tick), "power_min": 1, "power_max": 999}
        for tick in range(NUM_TICKS)
    ]
    return json.dumps(entries, indent=2) + "\n"


MAKERS = {
    "prometheus text": prometheus_text,
    "prometheus api json": prometheus_json,
    "wandb jsonl": wandb_jsonl,
    "nvitop csv": nvitop_csv,
    "amd-smi csv": amd_smi_csv,
    "rocm-smi text": rocm_smi_text,
    "mlperf mllog": mlperf_log,
    "trainer json": trainer_json,
}
ONE_GPU = ("mlperf mllog", "trainer json")
# A GPU's name can be cut out of these, so that a reading is another's; its number stays true.
LINES_OF_GPUS = ("rocm-smi text",)


def truth(name):
    gpus = range(1) if name in ONE_GPU else range(NUM_GPUS)
    return {(T0 + 15.0 * tick, watts(gpu, tick)) for gpu in gpus for tick in range(NUM_TICKS)}


def samples(raw, name=None):
    """What a file of these bytes gives, as (time, watts); None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(raw)
        try:
            stream = open_stream(path, format=name)
            batches = list(stream.batches())
        except FormatError:
            return None
        account = stream.account()
    t_s = np.concatenate([batch.t_s for batch in batches])
    power_w = np.concatenate([batch.power_w for batch in batches])
    assert account.rows_read == t_s.size
    assert all(0 <= gpu < len(stream.gpus) for batch in batches for gpu in batch.gpu)
    known = ~np.isnan(power_w)
    return set(zip(t_s[known].tolist(), power_w[known].tolist(), strict=True))


def test_every_maker_is_of_a_format_that_is_listed():
    assert set(MAKERS) <= set(format_names())


@pytest.mark.parametrize("name", MAKERS)
def test_a_sound_file_gives_the_truth(name):
    assert samples(MAKERS[name]().encode()) == truth(name)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_of_many_batches_gives_the_truth(name, monkeypatch):
    monkeypatch.setattr(ticks, "BATCH_ROWS", 2)
    assert samples(MAKERS[name]().encode()) == truth(name)


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=40)
def test_a_file_cut_anywhere_gives_a_part_of_the_truth(name, data):
    raw = MAKERS[name]().encode()
    start = data.draw(st.integers(0, len(raw) // 4))
    end = data.draw(st.integers(start, len(raw)))
    for forced in (None, name):
        found = samples(raw[start:end], forced)
        if found is not None:
            _check(name, found, is_cut_in_front=start > 0)


def _check(name, found, *, is_cut_in_front):
    """Within the truth; a first line without its front may have lost digits of what stood there."""
    if not is_cut_in_front:
        assert found <= truth(name)
        return
    strange = found - truth(name)
    assert len({t_s for t_s, _ in strange}) <= 1
    assert {power_w for _, power_w in strange} <= {power_w for _, power_w in truth(name)}


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=30)
def test_a_file_cut_and_then_written_anew_gives_the_truth(name, data):
    raw = MAKERS[name]().encode()
    cut = data.draw(st.integers(0, len(raw)))
    found = samples(raw[:cut] + raw)
    assert found is None or found <= truth(name)


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=40)
def test_lines_in_another_order_give_a_part_of_the_truth(name, data):
    lines = MAKERS[name]().splitlines(keepends=True)
    shuffled = data.draw(st.permutations(lines))
    found = samples("".join(shuffled).encode())
    if found is None:
        return
    if name in LINES_OF_GPUS:
        found, expected = {w for _, w in found}, {w for _, w in truth(name)}
        assert found <= expected
    elif name.endswith("json"):
        # A document whose lines still make one has other numbers in other places.
        assert {w for _, w in found} <= {w for _, w in truth(name)}
    else:
        assert found <= truth(name)


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=60)
def test_garbled_bytes_never_make_another_number(name, data):
    raw = bytearray(MAKERS[name]().encode())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from(b'\x00\xff\xc3x#"{}[]:;=_?'))
    for forced in (None, name):
        found = samples(bytes(raw), forced)
        if found is not None:
            assert {w for _, w in found} <= {w for _, w in truth(name)}


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=25)
def test_any_bytes_are_survived(name, data):
    raw = data.draw(st.binary(max_size=400))
    head = MAKERS[name]().encode()[: data.draw(st.integers(0, 300))]
    samples(raw, name)
    samples(head + raw, name)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: gzip.compress(text.encode()),
        lambda text: b"\0" * 512 + text.encode() + b"\0" * 512,
    ],
)
def test_every_encoding_gives_the_truth(name, encode):
    assert samples(encode(MAKERS[name]())) == truth(name)


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=30)
def test_a_damaged_archive_and_mixed_encodings_give_a_part_of_the_truth(name, data):
    text = MAKERS[name]()
    packed = gzip.compress(text.encode())
    found = samples(packed[: data.draw(st.integers(0, len(packed)))])
    assert found is None or found <= truth(name)
    cut = data.draw(st.integers(0, len(text)))
    encodings = data.draw(st.permutations(["utf-8", "utf-16-le", "latin-1"]))
    found = samples(text[:cut].encode(encodings[0]) + text[cut:].encode(encodings[1]))
    assert found is None or {w for _, w in found} <= {w for _, w in truth(name)}


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
@settings(max_examples=30)
def test_runs_of_nuls_give_a_part_of_the_truth(name, data):
    raw = MAKERS[name]().encode()
    at = data.draw(st.integers(0, len(raw)))
    found = samples(raw[:at] + b"\0" * data.draw(st.integers(1, 4096)) + raw[at:])
    assert found is None or {w for _, w in found} <= {w for _, w in truth(name)}
