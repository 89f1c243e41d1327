from pathlib import Path

import pytest

from analysis.frames import runs_frame, steps_frame
from analysis.load import load_results
from harness.errors import MissingExtraError

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"


def test_every_run_is_a_row_and_failed_ones_keep_their_status():
    frame = runs_frame(GOLDEN)
    runs = load_results(GOLDEN).runs
    assert len(frame) == len(runs)
    assert set(frame.status) > {"finished"}
    assert frame[frame.status != "finished"].is_clean.sum() == 0


def test_throughput_of_a_run_follows_from_its_steady_steps():
    runs = runs_frame(GOLDEN)
    steps = steps_frame(GOLDEN)
    clean = runs[runs.is_clean].iloc[0]
    own = steps[(steps.run_id == clean.run_id) & (steps.machine == clean.machine)]
    steady = own[~own.is_warmup]
    assert steady.tokens.sum() / steady.duration_s.sum() == pytest.approx(clean.tokens_per_second)


def test_without_pandas_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"wattline\[analysis\]"):
        runs_frame(GOLDEN)


def test_an_empty_results_folder_is_an_empty_frame(tmp_path):
    assert steps_frame(tmp_path).empty
