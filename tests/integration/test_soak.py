"""The 2-rank smoke twenty times: every one must be recorded as finished, aborts at teardown too."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.record.read import read_summary

ROOT = Path(__file__).parents[2]
RUNS = 20


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_good_runs_give_twenty_times_finished(tmp_path):
    overrides = ["experiment=smoke", "size=ci", "points=[2]", f"experiment.design.repeats={RUNS}"]
    folders = [f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *overrides, *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    summaries = [read_summary(p) for p in sorted(tmp_path.glob("results/smoke/*/summary.json"))]
    print(f"\nstatuses: {dict(Counter(s.status.value for s in summaries))}")
    print(f"runs with an abort at teardown: {sum(s.teardown_aborts > 0 for s in summaries)}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [s.status.value for s in summaries] == ["finished"] * RUNS
