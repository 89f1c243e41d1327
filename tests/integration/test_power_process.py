import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.record.read import read_jsonl
from harness.record.schema import Event, EventKind

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def command(run_dir, *more):
    base = [sys.executable, "-m", "harness.power", "--run-dir", str(run_dir), "--node", "0"]
    return [*base, *more]


def recording(path, num_ticks=40, period_s=0.05):
    row = {
        "host": "h",
        "power_w": 650.0,
        "power_kind": "average",
        "power_scope": "gpu",
        "enforced_limit_w": 700.0,
        "energy_j": None,
        "utilization_pct": 100.0,
        "memory_used_bytes": 1,
        "sm_clock_mhz": 1980,
        "temperature_c": 60.0,
        "clock_event_reasons": [],
        "gpm": None,
        "reason": "energy: not supported; gpm: not supported",
    }
    rows = [
        row | {"t_unix_s": 1000.0 + tick * period_s, "gpu": gpu, "gpu_uuid": f"GPU-{gpu}"}
        for tick in range(num_ticks)
        for gpu in range(8)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def num_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def events(run_dir):
    return read_jsonl(run_dir / "events" / "sampler000.jsonl", Event).records


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_replay_between_two_lines_with_the_counts(tmp_path, number):
    run_dir, replay = tmp_path / "run", recording(tmp_path / "rec.jsonl")
    telemetry = run_dir / "telemetry" / "node000.jsonl"
    arguments = ["--source", "replay", "--replay", str(replay), "--interval", "0.05"]
    with subprocess.Popen(command(run_dir, *arguments)) as process:
        wait_for(lambda: num_lines(telemetry) >= 50)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    started, *_, stopped = events(run_dir)
    assert (started.kind, started.detail["source"]) == (EventKind.SAMPLER_STARTED, "replay")
    assert stopped.kind is EventKind.SAMPLER_STOPPED
    assert stopped.detail["stopped_by"] == number.name
    rows = [json.loads(line) for line in telemetry.read_text().splitlines()]
    gpu_rows = [r for r in rows if "gpu" in r]
    assert len(gpu_rows) == stopped.detail["num_gpu_rows"]
    assert len(rows) - len(gpu_rows) == stopped.detail["num_ticks"]
    assert telemetry.read_bytes().endswith(b"\n")
    assert abs(rows[-1]["t_unix_s"] - time.time()) < DEADLINE_S


def test_a_machine_without_a_driver_records_its_cpu_and_the_reason(tmp_path):
    telemetry = tmp_path / "telemetry" / "node000.jsonl"
    with subprocess.Popen(command(tmp_path, "--source", "none", "--interval", "0.1")) as process:
        wait_for(lambda: num_lines(telemetry) >= 4)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    rows = [json.loads(line) for line in telemetry.read_text().splitlines()]
    assert all(row["reason"].startswith("power: power.source=none") for row in rows)
    assert any(row["host_cpu_pct"] is not None for row in rows)
    assert events(tmp_path)[0].detail["reason"] == "power.source=none"


def test_a_sampler_ends_when_its_parent_is_killed(tmp_path):
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    arguments = command(tmp_path, "--source", "none", "--interval", "30")
    parent = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(parent, stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        telemetry = tmp_path / "telemetry" / "node000.jsonl"
        wait_for(lambda: num_lines(telemetry) >= 1)
        process.kill()
        process.wait(DEADLINE_S)
        wait_for(lambda: not is_alive(pid))
    assert events(tmp_path)[-1].detail["stopped_by"] == "parent gone"


def test_a_full_disk_is_told_on_stderr_and_by_the_exit_code(tmp_path):
    telemetry = tmp_path / "telemetry" / "node000.jsonl"
    telemetry.parent.mkdir()
    telemetry.symlink_to("/dev/full")
    done = subprocess.run(
        command(tmp_path, "--source", "none", "--interval", "0.1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_neither_torch_nor_nvml_is_loaded_by_importing_the_sampler():
    code = (
        "import sys, harness.power.__main__, harness.provenance;"
        "print([m for m in ('torch', 'transformers', 'pynvml', 'numpy') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"
