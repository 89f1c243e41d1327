"""The calibration on a real GPU, short: what NVML shows of each phase, and that the spin ends."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.calibration import TABLE_FILE
from harness.phase_windows import read_phase_run
from harness.train.spin import SpinKernel
from harness.triage.bands import TableLabel, load_table
from harness.triage.states import State

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Three short windows a phase on one GPU, through the front door."""
    results = tmp_path_factory.mktemp("calibration") / "results"
    command = [sys.executable, "-m", "harness", "experiment=calibration", "gpus=1"]
    command += ["calibration.windows_per_phase=3", "calibration.window_s=3"]
    command += ["calibration.settle_s=2", "experiment.design.repeats=1"]
    command += [f"results_dir={results}", f"cache_dir={results.parent / 'cache'}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return results / "calibration"


@pytest.fixture(scope="module")
def windows(campaign):
    (root,) = [path.parent for path in campaign.glob("*/manifest.json")]
    return read_phase_run(root).windows


def mean_of(windows, phase, column):
    own = [getattr(window, column) for window in windows if window.phase == phase]
    assert own
    return float(np.nanmean(np.concatenate(own)))


def test_the_table_is_real_and_says_that_its_collective_is_emulated(campaign):
    table = load_table(str(campaign / TABLE_FILE))
    assert table.label is TableLabel.REAL
    assert table.provenance.emulated_collective
    labels = {band.state: band.label for band in table.bands}
    assert labels[State.COMMUNICATION] is TableLabel.EMULATED
    assert table.device_names == (torch.cuda.get_device_name(0),)


def test_a_burn_draws_most_and_bare_idle_least(windows):
    watts = {w.phase: mean_of(windows, w.phase, "power_w") for w in windows}
    assert max(watts, key=watts.get) in {"compute_burn", "memory_burn"}
    assert min(watts, key=watts.get) == "bare_idle"
    assert watts["bare_idle"] < watts["context_idle"] < watts["compute_burn"]


def test_the_spin_is_full_utilization_at_a_fraction_of_the_watts_of_a_burn(windows):
    assert mean_of(windows, "collective_wait", "utilization_pct") >= 95
    spin_w = mean_of(windows, "collective_wait", "power_w")
    assert spin_w < 0.6 * mean_of(windows, "compute_burn", "power_w")


def test_idle_is_idle_and_a_starved_gpu_is_partly_busy(windows):
    assert mean_of(windows, "bare_idle", "utilization_pct") <= 5
    assert mean_of(windows, "context_idle", "utilization_pct") <= 5
    assert 5 < mean_of(windows, "starved_loader", "utilization_pct") < 80


def test_the_spin_lasts_as_long_as_asked_and_leaves_the_gpu_free():
    kernel = SpinKernel(torch.device("cuda", 0))
    for _ in range(2):
        start_s = time.monotonic()
        kernel.hold(start_s + 0.5)
        assert 0.5 <= time.monotonic() - start_s < 1.0
    assert torch.ones(4, device="cuda").sum().item() == 4
