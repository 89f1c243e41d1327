"""Shared by the benchmarks: a helper that makes toy runs, a recording of GPUs, the load."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
TICK_S = 0.1
NUM_GPUS = 8


@pytest.fixture(scope="session")
def train_run():
    """The helper module of tests that start ranks."""
    path = PROJECT / "tests" / "data" / "train_run.py"
    spec = importlib.util.spec_from_file_location("train_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_recording(tmp_path_factory):
    """Write telemetry of 8 GPUs at 10 Hz, ``duration_s`` long, for the replay source."""

    def make(duration_s):
        row = {
            "host": "recorded",
            "power_w": 651.234,
            "power_kind": "average",
            "power_scope": "gpu",
            "enforced_limit_w": 700.0,
            "energy_j": 123456789.123,
            "utilization_pct": 100.0,
            "memory_used_bytes": 123_456_789_012,
            "sm_clock_mhz": 1980,
            "temperature_c": 60.0,
            "clock_event_reasons": ["sw_power_cap"],
            "gpm": {"sm": 0.91, "tensor": 0.52, "dram": 0.33, "nvlink_bytes_per_s": 1.5e11},
            "reason": None,
        }
        path = tmp_path_factory.mktemp("recording") / "node000.jsonl"
        with path.open("w") as file:
            for tick in range(round(duration_s / TICK_S)):
                for gpu in range(NUM_GPUS):
                    stamp = {"t_unix_s": 1000.0 + tick * TICK_S, "gpu": gpu}
                    file.write(json.dumps(row | stamp | {"gpu_uuid": f"GPU-{gpu}"}) + "\n")
        return path

    return make


@pytest.fixture(scope="session")
def say_load():
    """Print how busy the machine is, beside the figures that depend on it."""

    def say():
        loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"machine: {os.cpu_count()} CPUs, load averages (1, 5, 15 min) {loads}")

    return say
