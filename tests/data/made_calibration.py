"""Calibration runs without ranks, a GPU or waiting: the real plan and meter under a made-up clock.

Events and telemetry are what real processes write; only the time is not.
"""

from dataclasses import replace

from harness.power.phase_replay import PhaseFollower, PhaseReplaySource, read_phase_recording
from harness.record.run_dir import JsonlWriter, RunDir, write_json
from harness.record.schema import Event, EventKind
from harness.train.phase_plan import plan_windows, role_of

T0 = 1_796_000_000.0
HOST, GPU_NAME = "node-a", "NVIDIA H100 80GB HBM3"
PERIOD_S = 0.1


class Run:
    """One run being made: its clock, its writers and its meter."""

    def __init__(self, root, config, *, world_size, is_real, start_unix_s):
        self.run_dir = RunDir(root)
        self.run_dir.create()
        self.config = config
        self.now_s = start_unix_s
        self.is_real = is_real
        self.events = {
            rank: JsonlWriter(self.run_dir.events(f"rank{rank:05d}")) for rank in range(world_size)
        }
        self.telemetry = JsonlWriter(self.run_dir.telemetry(0))
        recording = read_phase_recording("synthetic_phases")
        follower = PhaseFollower(self.run_dir, HOST)
        self.source = PhaseReplaySource(
            recording, follower.playing, host=HOST, wall=lambda: self.now_s
        )
        about = {"name": recording.name, "device": recording.device, "is_synthetic": True}
        about["provenance"] = recording.provenance
        with JsonlWriter(self.run_dir.events("sampler000")) as sampler:
            detail = {"recording": None if is_real else about}
            sampler.append(self._event(EventKind.SAMPLER_STARTED, None, detail))

    def say(self, kind, rank, **detail):
        self.events[rank].append(self._event(kind, rank, detail))

    def wait(self, seconds):
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s = min(end_s, self.now_s + PERIOD_S)
            for row in self.source.read().samples:
                self.telemetry.append(self._as_nvml(row) if self.is_real else row)

    def close(self):
        for writer in (*self.events.values(), self.telemetry):
            writer.close()

    def _event(self, kind, rank, detail):
        return Event(t_unix_s=self.now_s, kind=kind, rank=rank, detail=detail)

    @staticmethod
    def _as_nvml(row):
        """As from a real meter: a uuid, and an index that is not the local rank."""
        return replace(row, gpu=row.gpu + 4, gpu_uuid=f"GPU-{row.gpu}", reason=None)


def make_run(root, manifest, config, *, repeat=0, is_real=False, leave_out=()):
    """Write a whole run: manifest, events, telemetry.

    Args:
        root: Its folder.
        manifest: Of a calibration; world size and label are taken from it.
        config: The settings in it.
        repeat: Its repeat, for the order of the phases.
        is_real: The meter shows uuids and no recording, as NVML does.
        leave_out: (rank, window) pairs whose end is never written.
    """
    world_size = manifest.trial.world_size
    start_unix_s = T0 + 1003.7 * repeat
    run = Run(root, config, world_size=world_size, is_real=is_real, start_unix_s=start_unix_s)
    write_json(run.run_dir.manifest, manifest)
    for rank in range(world_size):
        run.say(EventKind.RANK_STARTED, rank, host=HOST, local_rank=rank, pid=1)
    calibration = config.calibration
    seed = f"{config.experiment.design.seed}-{repeat}"
    is_ready = False
    for window in plan_windows(calibration, world_size=world_size, seed=seed):
        if window.phase != "bare_idle" and not is_ready:
            is_ready = True
            for rank in range(world_size):
                uuid = f"GPU-{rank}" if is_real else None
                run.say(EventKind.RANK_READY, rank, gpu_uuid=uuid)
            run.wait(1.0)
        details = [_detail(run, window, rank, world_size) for rank in range(world_size)]
        for rank, detail in enumerate(details):
            run.say(EventKind.PHASE_BEGIN, rank, **detail)
        run.wait(calibration.settle_s + calibration.window_s)
        for rank, detail in enumerate(details):
            if (rank, window.index) not in leave_out:
                run.say(EventKind.PHASE_END, rank, **detail)
    for rank in range(world_size):
        run.say(EventKind.RANK_FINISHED, rank, last_step=window.index)
    run.close()
    return run.run_dir


def _detail(run, window, rank, world_size):
    alone = world_size == 1 and window.phase == "collective_wait"
    real = "emulated" if alone else "real"
    return {
        "phase": window.phase.value,
        "window": window.index,
        "round": window.round,
        "role": role_of(window, rank=rank, world_size=world_size).value,
        "load": real if run.is_real else "slept",
        "settle_s": run.config.calibration.settle_s,
        "window_s": run.config.calibration.window_s,
    }
