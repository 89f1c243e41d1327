from pathlib import Path

import pytest

from harness.errors import FormatError
from harness.formats.sniff import READERS, format_names, open_stream

LONG = "timestamp,gpu_index,power_W\n" + "".join(
    f"2025-09-24T03:48:{i:02d}.000Z,0,{300 + i}.5\n" for i in range(5)
)


def test_every_reader_has_a_name_of_its_own() -> None:
    assert len(set(format_names())) == len(READERS)


def test_the_surest_reader_opens_the_file_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LONG)
    stream = open_stream(path)
    assert sum(batch.t_s.size for batch in stream.batches()) == 5
    assert stream.account().format == "generic csv"
    assert "power_W" in stream.account().why


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LONG)
    assert open_stream(path, format="dcgm csv").account().why == "named by --format"


def test_an_unknown_format_lists_the_known(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LONG)
    with pytest.raises(FormatError, match=r"one of .*generic csv"):
        open_stream(path, format="excel")


@pytest.mark.parametrize("period_s", [0.0, -1.0, 1e6, float("nan")])
def test_an_impossible_period_is_refused(tmp_path: Path, period_s: float) -> None:
    path = tmp_path / "log"
    path.write_text(LONG)
    with pytest.raises(FormatError, match=r"--period"):
        open_stream(path, period_s=period_s)


def test_what_nobody_claims_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("once upon a time\nthere was a log\n")
    with pytest.raises(FormatError, match=r"no known telemetry format.*nvidia-smi"):
        open_stream(path)


@pytest.mark.parametrize("name", format_names())
def test_every_reader_refuses_what_is_not_its_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_text("once upon a time\nthere was a log\n")
    with pytest.raises(FormatError):
        list(open_stream(path, format=name, period_s=1.0).batches())
