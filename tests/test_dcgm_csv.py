from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

HEAD = (
    "timestamp,phase,gpu,gpu_model,power_w,mem_used_mib,gpu_util_pct,"
    "sm_active,tensor_active,throttle_reasons\n"
)


def log(ticks: int) -> str:
    rows = [
        f"{1775016316.071 + 0.1 * t:.3f},{'load' if t < 5 else 'steady'},{g},Made Up 9000,"
        f"{120 + g}.4,530,{t % 100},0.5,5e-06,{8 if t == 3 else 1}\n"
        for t in range(ticks)
        for g in range(4)
    ]
    return HEAD + "".join(rows)


def test_power_label_and_throttling_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(log(20))
    stream = open_stream(path)
    (batch,) = stream.batches()
    account = stream.account()
    assert account.format == "dcgm csv"
    assert batch.label is not None
    assert batch.label.tolist() == ["load"] * 20 + ["steady"] * 60
    assert batch.throttled.tolist() == [int(i // 4 == 3) for i in range(80)]
    assert set(batch.power_w[batch.gpu == 3]) == {123.4}
    assert {gpu.name for gpu in stream.gpus} == {"Made Up 9000"}
    assert account.period_s == pytest.approx(0.1)
    assert account.notes == ()


def test_fields_by_their_dcgm_names_are_known(tmp_path: Path) -> None:
    names = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
    head = f"timestamp,Hostname,gpu,UUID,{','.join(names)}\n"
    rows = [
        f"{1775016316 + t},n{h},0,GPU-a{h}000000,{100 + h},9,5\n" for t in range(4) for h in (1, 2)
    ]
    path = tmp_path / "d.csv"
    path.write_text(head + "".join(rows))
    stream = open_stream(path)
    (batch,) = stream.batches()
    assert [gpu.label for gpu in stream.gpus] == ["n1:0", "n2:0"]
    assert set(batch.power_w[batch.gpu == 1]) == {102.0}
    assert not np.isnan(batch.memory_used_bytes).any()


def test_activity_without_power_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("timestamp,gpu,sm_active,tensor_active\n1775016316.0,0,0.5,0.1\n")
    with pytest.raises(FormatError, match=r"no power column"):
        open_stream(path)
