"""Triage of a day of sixteen GPUs at 10 Hz, from CSV, in a process of its own; and of a 3 MB log.

Prints seconds, samples per second and peak memory, never judges them.
"""

import json
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

pytestmark = pytest.mark.perf

GPUS = 16
PERIOD_S = 0.1


def write_log(path, hours):
    """A log of nvidia-smi: training with a save of 20 s every 15 minutes; made, not recorded."""
    rng = np.random.default_rng(2608)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = int(hours * 3600 / PERIOD_S)
    with path.open("w") as file:
        file.write("timestamp, index, power.draw [W], utilization.gpu [%], memory.used [MiB]\n")
        for first in range(0, ticks, 600):
            rows = []
            for tick in range(first, min(first + 600, ticks)):
                stamp = start + timedelta(seconds=tick * PERIOD_S)
                text = stamp.strftime("%Y/%m/%d %H:%M:%S.") + f"{stamp.microsecond // 1000:03d}"
                is_save = (tick * PERIOD_S) % 900 < 20
                watts = rng.normal(150 if is_save else 620, 4 if is_save else 30, GPUS)
                rows += [
                    f"{text}, {gpu}, {watts[gpu]:.2f} W,"
                    f" {0 if is_save and gpu == 0 else 100} %, 71000 MiB\n"
                    for gpu in range(GPUS)
                ]
            file.writelines(rows)
    return ticks * GPUS


def triage(path):
    """Seconds, peak bytes and the JSON of one run of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "harness.triage", str(path), "--limit", "700", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start_s
    assert done.returncode in {0, 1}, done.stderr
    peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024
    return seconds, peak, json.loads(done.stdout)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("hours", "what"), [(0.08, "a 3 MB log"), (24.0, "24 h x 16 GPUs")])
def test_triage_from_csv(tmp_path, hours, what):
    path = tmp_path / "nvidia-smi.csv"
    samples = write_log(path, hours)
    size = path.stat().st_size
    seconds, peak, found = triage(path)
    path.unlink()
    rows = found["account"]["rows_read"]
    assert rows == samples
    print(
        f"\n{what}: {samples:,} samples, {size / 1e6:.0f} MB: {seconds:.2f} s,"
        f" {samples / seconds / 1e6:.2f} M samples/s, peak at most {peak / 1e6:.0f} MB"
    )
