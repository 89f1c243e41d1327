"""How long a person waits for an answer that needs no run: fresh processes, page cache warm."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.perf, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[2]
GOLDEN = PROJECT / "tests" / "data" / "golden" / "results"
NUM_TIMES = 5
HELP = ("harness", "--help")
PLAN = ("harness", "experiment=scaling", "gpus=16", "plan=true")
TABLES = ("analysis.tables", "--results", str(GOLDEN), "--no-figures")
FIGURES = ("analysis.tables", "--results", str(GOLDEN))


def run(words):
    """Run one fresh process; gives its output, wall seconds and CPU seconds."""
    before = os.times()
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    wall_s = time.monotonic() - start_s
    after = os.times()
    cpu_s = after.children_user + after.children_system
    return done.stdout, wall_s, cpu_s - before.children_user - before.children_system


@pytest.mark.parametrize(
    ("words", "bar_s", "shows"),
    [
        pytest.param(HELP, 1.0, "usage: python -m harness", id="help"),
        pytest.param(PLAN, 1.0, "scaling-g16-", id="plan"),
        pytest.param(TABLES, 4.0, "golden-laptop", id="tables"),
        pytest.param(FIGURES, 10.0, "golden-laptop", id="tables and figures"),
    ],
)
def test_a_front_door_answers(words, bar_s, shows, tmp_path, say_load):
    if words[0] == "analysis.tables":
        words = (*words, "--out", str(tmp_path))
    output, first_s, _ = run(words)
    assert shows in output
    assert any(tmp_path.rglob("*.svg")) is (words[:-2] == FIGURES)
    runs = [run(words) for _ in range(NUM_TIMES)]
    walls = sorted(wall_s for _, wall_s, _ in runs)
    cpu_s = statistics.median(cpu_s for _, _, cpu_s in runs)
    assert all(shown == output for shown, _, _ in runs)
    asked = " ".join(word for word in words if not Path(word).is_absolute())
    print(
        f"\npython -m {asked}: median {statistics.median(walls):.2f} s of {NUM_TIMES}"
        f" ({walls[0]:.2f} to {walls[-1]:.2f}; the first of all {first_s:.2f}),"
        f" {cpu_s:.2f} CPU s; bar {bar_s:.0f} s"
    )
    say_load()
