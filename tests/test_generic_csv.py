from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(text)
    return path


def test_wide_columns_are_gpus(tmp_path: Path) -> None:
    rows = "".join(f"{1763638585.2 + 0.2 * i:.3f},{200 + i}.5,{250 + i}.25\n" for i in range(10))
    stream = open_stream(write(tmp_path, "timestamp,GPU0,GPU1\n" + rows))
    (batch,) = stream.batches()
    assert [gpu.index for gpu in stream.gpus] == [0, 1]
    assert batch.power_w[:4].tolist() == [200.5, 250.25, 201.5, 251.25]
    assert np.isnan(batch.utilization_pct).all()
    assert "the file has no utilization" in stream.account().notes
    assert stream.account().columns["power"] == "GPU0, GPU1"


def test_wide_columns_of_several_quantities_go_together(tmp_path: Path) -> None:
    head = "time,host,phase,gpu0_power_mw,gpu0_util_pct,gpu3_power_mw,gpu3_util_pct\n"
    rows = "".join(f"{1763638585 + i},n{i % 2},warm,1000,5,2000,6\n" for i in range(40))
    stream = open_stream(write(tmp_path, head + rows))
    (batch,) = stream.batches()
    assert [gpu.label for gpu in stream.gpus] == ["n0:0", "n0:3", "n1:0", "n1:3"]
    assert set(batch.power_w[batch.gpu == 3]) == {2.0}
    assert set(batch.utilization_pct[batch.gpu == 3]) == {6.0}
    assert batch.label is not None
    assert set(batch.label) == {"warm"}


def test_elapsed_seconds_are_relative(tmp_path: Path) -> None:
    rows = "".join(f"{i * 0.5},0,{100 + i}\n" for i in range(5))
    stream = open_stream(write(tmp_path, "elapsed_s,gpu,power\n" + rows))
    (batch,) = stream.batches()
    assert batch.t_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert stream.account().is_relative


def test_names_of_ones_own_are_mapped(tmp_path: Path) -> None:
    text = "note\nwhen;board;draw\n" + "".join(
        f"{1763638585 + i};{i % 2};17,5{i}\n" for i in range(6)
    )
    columns = {"time": "when", "power": "draw", "gpu": "board"}
    stream = open_stream(write(tmp_path, text), columns=columns)
    (batch,) = stream.batches()
    assert batch.power_w.tolist() == pytest.approx([17.5 + 0.01 * i for i in range(6)])
    assert stream.account().columns == {"time": "when", "gpu": "board", "power": "draw"}
    assert stream.account().rows_dropped == {"line before the header": 1}


def test_positions_are_mapped_where_there_is_no_header(tmp_path: Path) -> None:
    text = "".join(f"{1763638585 + i},{i},100,200\n" for i in range(6))
    columns = {"time": "0", "power.0": "2", "power.5": "3"}
    stream = open_stream(write(tmp_path, text), columns=columns)
    (batch,) = stream.batches()
    assert [gpu.index for gpu in stream.gpus] == [0, 5]
    assert batch.power_w[:2].tolist() == [100.0, 200.0]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"watts": "draw"}, "unknown name; one of time"),
        ({"time": "when", "power": "volts"}, "no column 'volts'"),
        ({"time": "when", "power": "draw", "power.0": "draw"}, "exclude each other"),
        ({"time": "when"}, "no power column"),
        ({"power": "draw", "gpu": "board"}, "--period"),
    ],
)
def test_a_wrong_mapping_says_what_is_there(
    tmp_path: Path, columns: dict[str, str], why: str
) -> None:
    text = "when,board,draw\n1763638585,0,100\n1763638586,0,100\n"
    with pytest.raises(FormatError, match=why):
        open_stream(write(tmp_path, text), columns=columns)


def test_a_nodes_meter_is_refused(tmp_path: Path) -> None:
    text = "timestamp,phase,sys_power_w,gpu0_bmc_temp_c\n1775286059.094,init,2100,29\n"
    with pytest.raises(FormatError, match=r"only a node's meter \(sys_power_w\)"):
        open_stream(write(tmp_path, text))


def test_a_label_alone_is_no_telemetry(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no known telemetry format"):
        open_stream(write(tmp_path, "file,notes\na,b\n"))


def test_quoted_cells_and_other_delimiters(tmp_path: Path) -> None:
    text = 'time\tgpu\tpower\n"1763638585"\t0\t"17,5"\n"1763638586"\t0\t"18,5"\n'
    (batch,) = open_stream(write(tmp_path, text)).batches()
    assert batch.power_w.tolist() == [17.5, 18.5]


def test_indices_as_other_tools_write_them(tmp_path: Path) -> None:
    text = "time,device,power\n" + "".join(
        f"{1763638585 + i},{name},10\n" for i in range(3) for name in ("cuda:0", "gpu1", "nvidia2")
    )
    stream = open_stream(write(tmp_path, text))
    list(stream.batches())
    assert [gpu.index for gpu in stream.gpus] == [0, 1, 2]
