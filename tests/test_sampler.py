import itertools
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import PowerSource
from harness.errors import ConfigError, RecordError
from harness.power import __main__ as command
from harness.power import sampler
from harness.power.none import NoneSource
from harness.power.reading import Reading, null_sample
from harness.power.sampler import FAULT_REPEAT_S, FaultLog, open_source, sample
from harness.record.run_dir import EventWriter, JsonlWriter, RunDir
from harness.samples import HostSample, PowerKind, PowerScope


class Clock:
    """Time that passes only while somebody waits, or works."""

    def __init__(self, num_ticks):
        self.now_s = 1000.0
        self.left = num_ticks
        self.waits = []

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += seconds
        self.left -= 1
        return None if self.left > 0 else "SIGTERM"


class Scripted:
    """A source that takes its time and shows a fault when told to."""

    source = PowerSource.REPLAY

    def __init__(self, clock, durations_s=(), faults=()):
        self.clock = clock
        self.durations_s = iter(durations_s)
        self.faults = faults
        self.at_s = []

    def read(self):
        self.at_s.append(self.clock.now_s)
        self.clock.now_s += next(self.durations_s, 0.0)
        row = null_sample(
            t_unix_s=1.0,
            host="h",
            gpu=0,
            gpu_uuid="GPU-0",
            power_kind=PowerKind.AVERAGE,
            power_scope=PowerScope.GPU,
            reason="r",
        )
        return Reading(samples=(row,), faults=self.faults, reason=None)

    def close(self):
        pass


class FixedMeter:
    def read(self, power_reason):
        return HostSample(
            t_unix_s=1.0,
            host="h",
            host_cpu_pct=None,
            disk_read_bytes=None,
            net_rx_bytes=None,
            reason=power_reason,
        )


class Sink:
    """Takes records where a test needs no disk."""

    def __init__(self):
        self.records = []

    def append(self, record):
        self.records.append(record)

    def write(self, kind, **detail):
        self.records.append((kind, detail))


def run(clock, source, interval_s=1.0):
    telemetry, events = Sink(), Sink()
    counts = sample(
        source,
        FixedMeter(),
        telemetry,
        events,
        interval_s=interval_s,
        wait=clock.wait,
        monotonic=clock,
        cpu_time=clock,
    )
    return counts, telemetry.records, events.records


def test_each_tick_gives_the_rows_of_the_gpus_and_one_of_the_host():
    clock = Clock(num_ticks=3)
    counts, records, _ = run(clock, Scripted(clock))
    assert [type(r).__name__ for r in records] == ["GpuSample", "HostSample"] * 3
    assert (counts.num_ticks, counts.num_gpu_rows, counts.num_null_power_rows) == (3, 3, 3)
    assert (counts.num_missed_ticks, counts.longest_gap_s) == (0, 1.0)
    assert (counts.stopped_by, counts.cpu_s) == ("SIGTERM", 3.0)


def test_a_slow_reading_shifts_no_later_tick():
    clock = Clock(num_ticks=4)
    source = Scripted(clock, durations_s=[0.25, 0.5, 0.25])
    counts, _, _ = run(clock, source)
    assert [at - 1000.0 for at in source.at_s] == [0.0, 1.0, 2.0, 3.0]
    assert counts.num_missed_ticks == 0


def test_ticks_that_passed_during_a_stall_are_counted_and_not_made_up():
    clock = Clock(num_ticks=3)
    source = Scripted(clock, durations_s=[0.0, 3.5])
    counts, _, _ = run(clock, source)
    assert [at - 1000.0 for at in source.at_s] == [0.0, 1.0, 5.0]
    assert (counts.num_ticks, counts.num_missed_ticks, counts.longest_gap_s) == (3, 3, 4.5)


@given(
    durations_s=st.lists(st.floats(0, 5), max_size=30),
    interval_s=st.sampled_from([0.05, 0.1, 0.3, 1.0]),
)
def test_every_tick_starts_on_a_multiple_of_the_interval(durations_s, interval_s):
    clock = Clock(num_ticks=len(durations_s) + 2)
    source = Scripted(clock, durations_s)
    counts, _, _ = run(clock, source, interval_s)
    indices = [(at - 1000.0) / interval_s for at in source.at_s]
    assert all(abs(index - round(index)) < 1e-6 for index in indices)
    assert all(b > a for a, b in itertools.pairwise(indices))
    assert all(wait >= 0 for wait in clock.waits)
    assert counts.num_ticks == len(source.at_s)


def test_a_fault_is_an_event_when_it_begins_and_once_a_minute_while_it_lasts():
    clock = Clock(num_ticks=0)
    events = Sink()
    log = FaultLog(events, clock)
    for _ in range(int(2 * FAULT_REPEAT_S) + 1):
        log.note(("GPU 1: GPU is lost",))
        clock.now_s += 1.0
    details = [detail for _, detail in events.records]
    assert {kind for kind, _ in events.records} == {"sampler_fault"}
    assert [detail["num_ticks"] for detail in details] == [1, FAULT_REPEAT_S, FAULT_REPEAT_S]
    log.note(("GPU 2: GPU is lost",))
    assert events.records[-1][1] == {"fault": "GPU 2: GPU is lost", "num_ticks": 1}


def test_faults_of_a_source_reach_the_events():
    clock = Clock(num_ticks=2)
    _, _, events = run(clock, Scripted(clock, faults=("recording ended",)))
    assert [detail["fault"] for _, detail in events] == ["recording ended"]


def test_a_machine_without_gpus_invents_no_rows_and_says_why_at_every_tick():
    clock = Clock(num_ticks=2)
    source = NoneSource("no NVIDIA driver: X")
    counts, records, events = run(clock, source)
    source.close()
    assert [r.reason for r in records] == ["no NVIDIA driver: X"] * 2
    assert (counts.num_gpu_rows, events) == (0, [])


def test_a_full_disk_ends_the_sampler_with_the_file_named(tmp_path):
    clock = Clock(num_ticks=5)
    run_dir = RunDir(tmp_path)
    run_dir.telemetry(0).parent.mkdir()
    run_dir.telemetry(0).symlink_to("/dev/full")
    with (
        JsonlWriter(run_dir.telemetry(0)) as telemetry,
        pytest.raises(RecordError, match=r"node000\.jsonl: the disk is full"),
    ):
        sample(
            Scripted(clock),
            FixedMeter(),
            telemetry,
            EventWriter(run_dir, "sampler000"),
            interval_s=1.0,
            wait=clock.wait,
            monotonic=clock,
        )


class FakeNvmlSource:
    source = PowerSource.NVML
    reason = None

    def __init__(self, host):
        self.host = host

    def read(self):
        return Reading(samples=(), faults=(), reason=self.reason)

    def close(self):
        pass


class FakeAmdSmiSource(FakeNvmlSource):
    source = PowerSource.AMD_SMI


def open_nvml(monkeypatch, wanted, reason=None, interval_s=1.0, amd_reason="no AMD driver: Y"):
    monkeypatch.setattr(sampler, "NvmlSource", FakeNvmlSource)
    monkeypatch.setattr(sampler, "AmdSmiSource", FakeAmdSmiSource)
    monkeypatch.setattr(FakeNvmlSource, "reason", reason)
    monkeypatch.setattr(FakeAmdSmiSource, "reason", amd_reason)
    return open_source(wanted, host="h", interval_s=interval_s, replay_path=None)


def test_auto_is_nvml_where_a_driver_answers(monkeypatch):
    opened = open_nvml(monkeypatch, PowerSource.AUTO)
    assert (opened.source.source, opened.reason) == (PowerSource.NVML, None)
    opened.source.close()


def test_auto_is_none_with_the_reason_where_no_driver_answers(monkeypatch):
    opened = open_nvml(monkeypatch, PowerSource.AUTO, reason="no NVIDIA driver: X")
    reasons = "no NVIDIA driver: X; no AMD driver: Y"
    assert (opened.source.source, opened.reason) == (PowerSource.NONE, reasons)
    assert opened.source.read().reason == reasons


def test_auto_is_amd_smi_where_only_its_driver_answers(monkeypatch):
    opened = open_nvml(monkeypatch, PowerSource.AUTO, "no NVIDIA driver: X", amd_reason=None)
    assert (opened.source.source, opened.reason) == (PowerSource.AMD_SMI, None)
    opened.source.close()


def test_amd_smi_that_was_asked_for_goes_on_trying_and_asks_no_nvml(monkeypatch):
    opened = open_nvml(monkeypatch, PowerSource.AMD_SMI)
    assert (opened.source.source, opened.reason) == (PowerSource.AMD_SMI, "no AMD driver: Y")
    opened.source.close()


def test_nvml_that_was_asked_for_goes_on_trying_without_a_driver(monkeypatch):
    opened = open_nvml(monkeypatch, PowerSource.NVML, reason="no NVIDIA driver: X")
    assert (opened.source.source, opened.reason) == (PowerSource.NVML, "no NVIDIA driver: X")
    opened.source.close()


def test_a_period_that_the_sensors_do_not_bear_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"power\.interval_s=0\.01: .* use 0\.05 or more"):
        open_nvml(monkeypatch, PowerSource.NVML, interval_s=0.01)


def test_none_needs_no_driver():
    opened = open_source(PowerSource.NONE, host="h", interval_s=1.0, replay_path=None)
    assert opened.reason == "power.source=none"


def test_a_replay_without_a_file_is_refused():
    with pytest.raises(ConfigError, match=r"power\.replay_path=FILE"):
        open_source(PowerSource.REPLAY, host="h", interval_s=1.0, replay_path=None)


def arguments(tmp_path, *more):
    return ["--run-dir", str(tmp_path), "--node", "3", "--interval", "0.001", *more]


@pytest.fixture(name="in_process")
def _in_process(monkeypatch):
    """The command without a signal mask or a death signal for the process of the tests."""
    monkeypatch.setattr(command, "die_with_parent", lambda parent, _: os.getppid() == parent)
    monkeypatch.setattr(command.signal, "pthread_sigmask", lambda *_: None)


@pytest.mark.usefixtures("in_process")
def test_the_command_records_start_and_stop_and_exits_0(tmp_path, monkeypatch):
    stops = iter([None, "SIGTERM"])
    monkeypatch.setattr(command, "_wait", lambda *_: next(stops))
    assert command.main(arguments(tmp_path, "--source", "none")) == 0
    lines = (tmp_path / "events" / "sampler003.jsonl").read_text().splitlines()
    started, stopped = (json.loads(line) for line in lines)
    assert (started["kind"], stopped["kind"]) == ("sampler_started", "sampler_stopped")
    assert started["detail"]["source"] == "none"
    assert started["detail"]["reason"] == "power.source=none"
    assert (stopped["detail"]["num_ticks"], stopped["detail"]["stopped_by"]) == (2, "SIGTERM")
    rows = (tmp_path / "telemetry" / "node003.jsonl").read_text().splitlines()
    assert len(rows) == 2
    assert json.loads(rows[0])["reason"].startswith("power: power.source=none")


def test_a_wait_ends_early_when_the_parent_is_gone(monkeypatch):
    monkeypatch.setattr(command.signal, "sigtimedwait", lambda *_: None)
    assert command._wait(0.0, os.getppid()) is None
    assert command._wait(0.0, os.getppid() + 1) == "parent gone"


@pytest.mark.usefixtures("in_process")
def test_a_sampler_whose_parent_is_gone_already_does_not_start(tmp_path, capsys):
    code = command.main(arguments(tmp_path, "--source", "none", "--parent-pid", "999999999"))
    assert code == 2
    assert "the process 999999999 that started it is gone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_process")
def test_a_recording_that_is_missing_is_one_line_and_exit_2(tmp_path, capsys):
    path = str(tmp_path / "gone.jsonl")
    assert command.main(arguments(tmp_path, "--source", "replay", "--replay", path)) == 2
    assert "cannot read the recording" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_recording_for_another_source_is_ignored_with_a_warning(tmp_path, capsys):
    parsed = command._arguments(arguments(tmp_path, "--source", "none", "--replay", "x.jsonl"))
    assert parsed.replay is None
    assert "--replay x.jsonl is ignored with --source none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ("--source", "none", "--interval", "0"),
        ("--source", "none", "--interval", "inf"),
        ("--source", "none", "--interval", "nan"),
        ("--source", "none", "--node", "-1"),
        ("--source", "amd"),
    ],
)
def test_wrong_usage_is_exit_2(tmp_path, more):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments(tmp_path, *more))
    assert ended.value.code == 2
