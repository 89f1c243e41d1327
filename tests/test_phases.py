"""Phases of a calibration: their order, who does what, and the loads, on fakes."""

import ctypes
import time
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.checks import check
from harness.config import CalibrationPhase
from harness.errors import ConfigError, LaunchError, RecordError
from harness.parse import to_plain
from harness.record.read import read_events
from harness.record.run_dir import RunDir, read_heartbeat, write_json
from harness.record.schema import EventKind, Phase
from harness.train import calibrate_worker, gpu_load, phases, spin
from harness.train.gpu_load import GpuLoad, burn, matmul_side
from harness.train.phase_plan import PlannedWindow, Role, plan_windows, role_of
from harness.train.phases import LoadKind, Saver, SleptLoad, perform
from harness.train.records import RankRecords
from harness.train.topology import Topology

ODD = (CalibrationPhase.COLLECTIVE_WAIT, CalibrationPhase.BLOCKING_SAVE)


@pytest.fixture(scope="session")
def calibration(compose_config):
    return compose_config("experiment=calibration").calibration


def test_bare_idle_comes_first_because_a_context_cannot_be_taken_back(calibration):
    windows = plan_windows(calibration, world_size=2, seed="1")
    is_bare = [window.phase is CalibrationPhase.BARE_IDLE for window in windows]
    assert is_bare == sorted(is_bare, reverse=True)
    assert sum(is_bare) == calibration.windows_per_phase
    assert [window.index for window in windows] == list(range(1, calibration.num_windows + 1))


def test_the_rest_is_in_complete_blocks_of_different_order(calibration):
    windows = plan_windows(calibration, world_size=2, seed="1")
    blocks = {}
    for window in windows:
        if window.phase is not CalibrationPhase.BARE_IDLE:
            blocks.setdefault(window.round, []).append(window.phase)
    others = set(calibration.phases) - {CalibrationPhase.BARE_IDLE}
    assert all(set(block) == others and len(block) == 6 for block in blocks.values())
    assert len({tuple(block) for block in blocks.values()}) > 1


def test_the_order_follows_from_the_seed_alone(calibration):
    one, again = (plan_windows(calibration, world_size=2, seed="1") for _ in range(2))
    other = plan_windows(calibration, world_size=2, seed="2")
    assert one == again
    assert one != other
    assert Counter(w.phase for w in one) == Counter(w.phase for w in other)


@given(world_size=st.integers(1, 8), number=st.integers(0, 20), phase=st.sampled_from(ODD))
def test_one_rank_at_most_is_odd_and_each_is_in_its_turn(world_size, number, phase):
    window = PlannedWindow(index=1, round=number, phase=phase, odd_rank=number % world_size)
    roles = [role_of(window, rank=rank, world_size=world_size) for rank in range(world_size)]
    odd = {Role.LATE, Role.WRITES} & set(roles)
    if world_size == 1 and phase is CalibrationPhase.COLLECTIVE_WAIT:
        assert roles == [Role.WAITS]
    else:
        assert roles.count(Role.WAITS) == world_size - 1
        assert len(odd) == 1
        assert roles[number % world_size] in odd


def test_without_an_odd_rank_all_do_the_same():
    window = PlannedWindow(index=1, round=0, phase=CalibrationPhase.COMPUTE_BURN, odd_rank=None)
    assert {role_of(window, rank=r, world_size=4) for r in range(4)} == {Role.ALL}


class Listed:
    """A load, and a saver, that list what is asked of them."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *_: self.asked.append(name)


@pytest.mark.parametrize(
    ("phase", "role", "world_size", "expected"),
    [
        ("compute_burn", "all", 2, ["compute"]),
        ("memory_burn", "all", 2, ["move_memory"]),
        ("starved_loader", "all", 2, ["starve"]),
        ("context_idle", "all", 2, []),
        ("collective_wait", "waits", 2, ["join"]),
        ("collective_wait", "late", 2, ["join"]),
        ("collective_wait", "waits", 1, ["spin"]),
        ("blocking_save", "waits", 2, ["join"]),
        ("blocking_save", "writes", 2, ["write", "join"]),
        ("blocking_save", "writes", 1, ["write"]),
    ],
)
def test_each_role_does_its_part_of_a_phase(phase, role, world_size, expected):
    load = Listed()
    perform(load, CalibrationPhase(phase), Role(role), 0.0, saver=load, world_size=world_size)
    assert load.asked == expected


def test_a_save_is_written_synced_and_gone_again(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(phases.os, "fsync", lambda fd: sizes.append(phases.os.fstat(fd).st_size))
    Saver(tmp_path / "saves", 10_000, once=False).write(time.monotonic() + 0.02)
    assert set(sizes[:-1]) <= {10_000}
    assert sizes
    assert list((tmp_path / "saves").iterdir()) == []


def test_once_means_one_file_and_then_sleep(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(phases.os, "fsync", calls.append)
    until_s = time.monotonic() + 0.02
    Saver(tmp_path, 100, once=True).write(until_s)
    assert len(calls) == 1
    assert time.monotonic() >= until_s


def test_a_folder_that_cannot_be_written_is_named_with_the_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"train.checkpoint_dir=DIR.*calibration.save_bytes"):
        Saver(tmp_path / "file", 100, once=True).write(time.monotonic() + 1)


def test_a_cpu_sleeps_through_what_a_gpu_would_burn():
    load = SleptLoad()
    until_s = time.monotonic() + 0.01
    for act in (load.compute, load.move_memory, load.starve, load.spin):
        act(until_s)
    assert time.monotonic() >= until_s
    assert {load.kind(phase) for phase in CalibrationPhase} == {LoadKind.SLEPT}


@pytest.mark.parametrize(
    ("wanted", "budget_bytes", "side"),
    [(8192, 10**9, 8192), (8192, 6 * 1000 * 1000, 768), (300, 10**9, 256)],
)
def test_matrices_shrink_to_what_is_free(wanted, budget_bytes, side):
    assert matmul_side(wanted, budget_bytes) == side
    assert 3 * 2 * side * side <= budget_bytes


def test_no_room_for_the_smallest_matrices_is_refused():
    with pytest.raises(LaunchError, match="free the GPU"):
        matmul_side(8192, 100_000)


class FakeCuda:
    """Stands in for torch.cuda: events that count who waits for whom."""

    def __init__(self):
        self.log = []

    def Event(self, *, blocking):  # noqa: N802
        assert blocking
        number = sum(entry[0] == "record" for entry in self.log)
        return SimpleNamespace(
            record=lambda: self.log.append(("record", number)),
            synchronize=lambda: self.log.append(("wait", number)),
        )

    def synchronize(self):
        self.log.append(("drain",))


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Event", fake.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", fake.synchronize)
    return fake


def ticking(monkeypatch, step_s):
    now = [0.0]

    def clock():
        now[0] += step_s
        return now[0]

    monkeypatch.setattr(gpu_load.time, "monotonic", clock)
    monkeypatch.setattr(gpu_load, "sleep_until", lambda until_s: now.__setitem__(0, until_s))
    return now


def test_a_burn_is_one_launch_ahead_and_drains_at_the_end(cuda, monkeypatch):
    ticking(monkeypatch, 1.0)
    launched = []
    burn(lambda: launched.append(1), 4.5)
    assert len(launched) == 4
    assert cuda.log[:4] == [("record", 0), ("record", 1), ("wait", 0), ("record", 2)]
    assert cuda.log[-1] == ("drain",)


def make_load(calibration, spin_kernel=None):
    calls = Counter()
    load = GpuLoad(
        calibration,
        matmul=lambda: calls.update(["matmul"]),
        matmul_once=lambda: calls.update(["matmul_once"]),
        copy=lambda: calls.update(["copy"]),
        payload=torch.zeros(1),
        spin_kernel=spin_kernel,
    )
    return load, calls


@pytest.mark.usefixtures("cuda")
def test_burns_launch_their_own_kernel(calibration, monkeypatch):
    load, calls = make_load(calibration)
    now = ticking(monkeypatch, 0.01)
    load.compute(0.1)
    now[0] = 0.0
    load.move_memory(0.1)
    assert calls["matmul"] > 3
    assert calls["copy"] > 3


@pytest.mark.usefixtures("cuda")
def test_a_starved_gpu_works_for_the_declared_share_of_the_time(calibration, monkeypatch):
    load, calls = make_load(calibration)
    ticking(monkeypatch, 0.01)
    load.starve(5.0)
    share = calls["matmul_once"] * 0.01 / 5.0
    declared = calibration.starved_burst_s / (
        calibration.starved_burst_s + calibration.starved_wait_s
    )
    assert share == pytest.approx(declared, abs=0.1)


def test_only_a_gpu_without_peers_emulates_its_collective(calibration):
    alone, _ = make_load(calibration, spin_kernel=Listed())
    together, _ = make_load(calibration)
    wait = CalibrationPhase.COLLECTIVE_WAIT
    assert alone.kind(wait) is LoadKind.EMULATED
    assert together.kind(wait) is LoadKind.REAL
    assert alone.kind(CalibrationPhase.COMPUTE_BURN) is LoadKind.REAL
    alone.spin(1.0)
    assert alone._spin_kernel.asked == ["hold"]


@pytest.mark.usefixtures("cuda")
def test_a_launch_is_repeated_until_it_fills_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gpu_load.time, "perf_counter", lambda: now[0])
    calls = []

    def one():
        calls.append(1)
        now[0] += 0.01

    launch = gpu_load._repeated(one)
    calls.clear()
    launch()
    assert len(calls) == 5


class FakeDriver:
    """libcuda, as far as the spin kernel calls it; ``codes`` are what its calls return."""

    def __init__(self, **codes):
        self.codes = codes
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            if name == "cuLaunchKernel":  # what it points at lives no longer than the call
                self.flag = ctypes.cast(arguments[9][0], ctypes.POINTER(ctypes.c_uint64))[0]
            if name == "cuGetErrorString":
                pointer = ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_char_p))
                pointer[0] = b"device kernel image is invalid"
            return self.codes.get(name, 0)

        return call


@pytest.fixture
def kernel(monkeypatch):
    """Make the spin kernel on a fake driver; gives kernel and driver."""
    real_ones = torch.ones

    def unpinned_ones(*sizes, pin_memory, dtype):
        assert pin_memory
        return real_ones(*sizes, dtype=dtype)

    monkeypatch.setattr(torch, "ones", unpinned_ones)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "side")
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

    def make(**codes):
        driver = FakeDriver(**codes)
        monkeypatch.setattr(spin.ctypes, "CDLL", lambda _name: driver)
        return spin.SpinKernel(torch.device("cpu")), driver

    return make


def test_the_spin_is_launched_with_its_flag_down_and_ended_by_raising_it(kernel):
    held, driver = kernel()
    held.hold(0.0)
    (arguments,) = [told for name, told in driver.calls if name == "cuLaunchKernel"]
    assert arguments[1:7] == (24, 1, 1, 512, 1, 1)
    assert arguments[8].value == 77
    assert driver.flag == held._flag.data_ptr()
    assert held._flag.item() == 1


def test_the_flag_is_raised_even_when_the_wait_is_cut_short(kernel, monkeypatch):
    """A kernel left spinning would hang the process at its next synchronisation."""
    held, _ = kernel()

    def interrupted(_until_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(spin, "sleep_until", interrupted)
    with pytest.raises(KeyboardInterrupt):
        held.hold(1.0)
    assert held._flag.item() == 1


def test_a_driver_that_refuses_the_kernel_is_a_sentence(kernel):
    with pytest.raises(
        LaunchError, match=r"200: device kernel image is invalid\); calibrate on two"
    ):
        kernel(cuModuleLoadData=200)
    held, _ = kernel(cuLaunchKernel=719)
    with pytest.raises(LaunchError, match="719"):
        held.hold(0.0)


def test_no_driver_library_is_a_sentence(monkeypatch):
    def missing(_name):
        raise OSError("libcuda.so.1: cannot open")

    monkeypatch.setattr(spin.ctypes, "CDLL", missing)
    with pytest.raises(LaunchError, match="no NVIDIA driver library"):
        spin.SpinKernel(torch.device("cpu"))


@pytest.fixture
def rank_alone(monkeypatch):
    """A worker without a process group: one rank of one."""
    topology = Topology(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), mesh=None)
    monkeypatch.setattr(calibrate_worker, "init_topology", lambda _config: topology)
    monkeypatch.setattr(calibrate_worker.dist, "barrier", lambda: None)
    monkeypatch.setattr(calibrate_worker.dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(calibrate_worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(calibrate_worker.torch, "set_num_threads", lambda _count: None)


@pytest.mark.usefixtures("rank_alone")
def test_a_worker_writes_begin_and_end_of_every_window(
    tmp_path, compose_config, make_manifest, make_trial
):
    config = compose_config(
        "experiment=calibration",
        "on=laptop",
        "gpus=1",
        "calibration.windows_per_phase=2",
        "calibration.window_s=0.004",
        "calibration.settle_s=0.002",
        f"train.checkpoint_dir={tmp_path / 'saves'}",
    )
    manifest = make_manifest(trial=make_trial(world_size=1), config=to_plain(config), data=None)
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    write_json(run_dir.manifest, manifest)
    records = RankRecords(run_dir, 0)
    assert calibrate_worker.main(run_dir, records) == 0
    records.close()
    events = read_events(run_dir.root).records
    begun = [e.detail for e in events if e.kind is EventKind.PHASE_BEGIN]
    ended = [e.detail for e in events if e.kind is EventKind.PHASE_END]
    assert begun == ended
    assert [d["window"] for d in begun] == list(range(1, 15))
    assert Counter(d["phase"] for d in begun) == dict.fromkeys(CalibrationPhase, 2)
    assert {d["load"] for d in begun} == {"slept"}
    kinds = [e.kind for e in events]
    assert kinds.index(EventKind.RANK_READY) > kinds.index(EventKind.PHASE_END)
    assert kinds[-1] is EventKind.RANK_FINISHED
    beat = read_heartbeat(run_dir.heartbeat(0))
    assert (beat.step, beat.phase) == (14, Phase.FINISH)


def test_a_gpu_rank_gets_the_real_load(monkeypatch, compose_config):
    config = compose_config("experiment=calibration")
    monkeypatch.setattr(calibrate_worker, "open_gpu_load", lambda c, t: (c, t))
    assert calibrate_worker.open_load(config, "topology") == (config.calibration, "topology")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("power=none",), "takes power.source=nvml"),
        (("power=synthetic",), "takes power.source=nvml"),
        (("on=laptop", "power=nvml"), "takes power.source=replay"),
        (("calibration.phases=[]",), "expected different ones of bare_idle"),
        (("calibration.phases=[bare_idle,bare_idle]",), "expected different ones"),
        (("calibration.window_s=600",), "longer than train.collective_timeout_s"),
        (("calibration.memory_fraction=1",), "expected a number below 1"),
        (("calibration.settle_s=-1",), "expected 0 or more"),
        (("calibration.windows_per_phase=0",), "expected a number above 0"),
    ],
)
def test_settings_that_make_no_calibration_are_refused(compose_config, words, message):
    config = compose_config("experiment=calibration", *words)
    with pytest.raises(ConfigError, match=message):
        check(config)
