"""Write the golden results tree and the tables expected of it: python tests/data/make_golden.py.

The records are made up, with a fixed seed, and shaped as harness.record writes them. They hold one
of everything that the analysis must survive: failed, interrupted, incomplete, marked and planned
trials, a second group, earlier tries, a torn line, a record of another schema version, a renamed
campaign.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.tables import analyse, write_tables
from harness.record.run_dir import JsonlWriter, RunDir, write_json, write_text
from harness.record.schema import (
    SCHEMA_VERSION,
    Campaign,
    CodeState,
    DataState,
    Event,
    EventKind,
    GpuInfo,
    HostInfo,
    Label,
    Manifest,
    Status,
    StepRecord,
    Summary,
    Trial,
)
from harness.samples import GpuSample, HostSample, PowerKind, PowerScope

GOLDEN = Path(__file__).parent / "golden"
T0 = 1_796_000_000.0
NUM_WARMUP = 2
SAMPLE_INTERVAL_S = 20.0
QUESTION = "How do throughput and GPU-hours scale with the number of GPUs at a fixed global batch?"
CODE = CodeState(
    commit="0123456789abcdef0123456789abcdef01234567",
    dirty=False,
    diff_hash=None,
    lock_hash="lock",
    source_hash="source",
    reason=None,
)
TINY = {
    "name": "qwen3_tiny", "hidden_size": 256, "intermediate_size": 768, "num_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 4096,
    "max_position_embeddings": 4096, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "initializer_range": 0.02, "weights": None,
}  # fmt: skip
BIG = TINY | {
    "name": "qwen3_32b", "hidden_size": 5120, "intermediate_size": 25600, "num_layers": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip


class Machine:
    """Everything that runs of one campaign share."""

    def __init__(
        self,
        folder: Path,
        host: HostInfo,
        model: dict[str, Any],
        train: dict[str, Any],
        rate: float,
    ) -> None:
        self.folder = folder
        self.num_steps: int = train["num_steps"]
        self.host = host
        self.rate = rate  # tokens per second and rank, before what scaling costs
        self.device = host.gpus[0].name if host.gpus else f"cpu: {host.cpu_model}"
        self.config = {
            "experiment": {"name": "scaling"},
            "on": {
                "name": "gpus" if host.gpus else "laptop",
                "device": "cuda" if host.gpus else "cpu",
            },
            "model": model,
            "data": {"dealing": "global", "eval_num_blocks": 16},
            "train": train,
            "power": {"source": "auto", "interval_s": SAMPLE_INTERVAL_S},
        }

    @property
    def tokens_per_step(self) -> int:
        train: dict[str, Any] = self.config["train"]
        return train["global_batch_size"] * train["sequence_length"]


def trial(machine: Machine, world_size: int, repeat: int, spec: str = "5ca1ab1e") -> Trial:
    train: dict[str, Any] = machine.config["train"]
    return Trial(
        run_id=f"scaling-g{world_size}-{spec}-r{repeat}",
        experiment="scaling",
        arm=f"gpus={world_size}",
        index=repeat,
        block=repeat,
        repeat=repeat,
        world_size=world_size,
        num_nodes=1,
        gradient_accumulation_steps=train["global_batch_size"]
        // (train["micro_batch_size"] * world_size),
        levels={"gpus": world_size},
        spec_hash=spec,
        expected_status=Status.FINISHED,
    )


def campaign(machine: Machine, trials: list[Trial]) -> None:
    record = Campaign(
        schema_version=SCHEMA_VERSION,
        t_unix_s=T0,
        experiment="scaling",
        question=QUESTION,
        response="tokens_per_second",
        factors={"gpus": ()},
        trials=tuple(trials),
        code=CODE,
        devices={f"{machine.host.host} device": machine.device or ""},
    )
    write_json(machine.folder / "campaign.json", record)


def manifest(machine: Machine, item: Trial, config: dict[str, Any]) -> Manifest:
    train: dict[str, Any] = config["train"]
    key = {
        "model.name": config["model"]["name"],
        **{f"train.{name}": train[name] for name in train if name != "num_steps"},
        "world_size": item.world_size,
        "num_nodes": item.num_nodes,
        "gradient_accumulation_steps": item.gradient_accumulation_steps,
        "device_model": machine.device,
        "enforced_limit_w": machine.host.gpus[0].enforced_limit_w if machine.host.gpus else None,
        "driver": machine.host.driver,
        "commit": CODE.commit,
        "packages.torch": "2.13.0",
    }
    return Manifest(
        schema_version=SCHEMA_VERSION,
        t_unix_s=T0,
        trial=item,
        config=config,
        comparability=key,
        label=Label.REAL,
        argv=("python", "-m", "harness", "experiment=scaling"),
        code=CODE,
        packages={"torch": "2.13.0"},
        environment={},
        hosts=(machine.host,),
        data=DataState(
            store_path="/store",
            store_hash="s",
            corpus_hash="c",
            tokenizer_hash="t",
            num_blocks=4016,
            num_tokens=4016 * train["sequence_length"],
        ),
    )


def run(
    machine: Machine,
    item: Trial,
    *,
    status: Status = Status.FINISHED,
    detail: str = "",
    steps: int | None = None,
    retries: int = 0,
    has_summary: bool = True,
    tries: int = 1,
    aborts: int = 0,
    overrides: dict[str, Any] | None = None,
) -> RunDir:
    run_dir = RunDir(machine.folder / item.run_id)
    run_dir.create()
    steps = machine.num_steps if steps is None else steps
    config = machine.config | {"train": machine.config["train"] | (overrides or {})}
    write_json(run_dir.manifest, manifest(machine, item, config))
    rng = random.Random(f"{item.run_id}-{item.world_size}-{machine.host.host}")
    durations = durations_s(machine, item.world_size, steps, rng)
    for rank in range(item.world_size):
        write_steps(
            machine, run_dir, item, rank=rank, durations=durations, rng=rng, retries=retries
        )
    if status is Status.FINISHED:
        write_events(run_dir, item, T0 + sum(durations) + 1, aborts)
    if machine.host.gpus:
        write_telemetry(machine, run_dir, item.world_size, sum(durations), rng)
    if has_summary:
        write_json(
            run_dir.summary,
            Summary(
                schema_version=SCHEMA_VERSION,
                run_id=item.run_id,
                status=status,
                expected_status=item.expected_status,
                detail=detail or "every rank finished",
                t_start_unix_s=T0,
                t_end_unix_s=T0 + sum(durations) + 2,
                num_steps_planned=machine.num_steps,
                last_step=steps or None,
                num_ranks_finished=item.world_size if status is Status.FINISHED else 0,
                teardown_aborts=aborts,
                compile_time_s=None,
                peak_memory_bytes=peak_memory(machine),
                torn_lines=0,
                tries=tries,
                drift=(),
            ),
        )
    return run_dir


def durations_s(machine: Machine, world_size: int, steps: int, rng: random.Random) -> list[float]:
    """A slow start, then steady; doubling the ranks costs 3 %, each run has its own luck."""
    efficiency = 0.97 ** (world_size.bit_length() - 1)
    luck = 1 + 0.006 * rng.gauss(0, 1)
    steady = machine.tokens_per_step / (machine.rate * world_size * efficiency) * luck
    return [
        round(steady * (2.5 if step < NUM_WARMUP else 1) * (1 + 0.004 * rng.random()), 6)
        for step in range(steps)
    ]


def peak_memory(machine: Machine) -> int:
    return 82_000_000_000 if machine.host.gpus else 310_000_000


def write_steps(
    machine: Machine,
    run_dir: RunDir,
    item: Trial,
    *,
    rank: int,
    durations: list[float],
    rng: random.Random,
    retries: int,
) -> None:
    with JsonlWriter(run_dir.steps(rank)) as writer:
        end = T0
        for number, duration in enumerate(durations, start=1):
            end += duration
            own = round(duration * (1 - 0.002 * rank), 6)
            record = StepRecord(
                step=number,
                t_end_unix_s=round(end, 6),
                duration_s=own,
                data_wait_s=round(own * 0.01 * (1 + rng.random()), 6),
                tokens=machine.tokens_per_step // item.world_size,
                padded_tokens=0,
                num_micro_batches=item.gradient_accumulation_steps,
                loss=round(9.0 - 0.1 * number, 4),
                grad_norm=1.0,
                peak_memory_bytes=peak_memory(machine),
                alloc_retries=retries if machine.host.gpus else None,
                data_bytes_read=machine.tokens_per_step * 4 // item.world_size,
            )
            writer.append(record)


def write_events(run_dir: RunDir, item: Trial, t_s: float, aborts: int) -> None:
    for rank in range(item.world_size):
        with JsonlWriter(run_dir.events(f"rank{rank:05d}")) as writer:
            writer.append(Event(t_unix_s=t_s, kind=EventKind.RANK_FINISHED, rank=rank, detail={}))
    if aborts:
        with JsonlWriter(run_dir.events("torchrun000")) as writer:
            event = Event(
                t_unix_s=t_s + 1, kind=EventKind.TEARDOWN_ABORT, rank=0, detail={"exit_code": -6}
            )
            writer.append(event)


def write_telemetry(
    machine: Machine, run_dir: RunDir, world_size: int, duration_s: float, rng: random.Random
) -> None:
    host = machine.host.host
    with JsonlWriter(run_dir.telemetry(0)) as writer:
        energy = [1000.0 * gpu for gpu in range(world_size)]
        for tick in range(int(duration_s / SAMPLE_INTERVAL_S) + 1):
            now = T0 + tick * SAMPLE_INTERVAL_S
            writer.append(
                HostSample(
                    t_unix_s=now,
                    host=host,
                    host_cpu_pct=9.0,
                    disk_read_bytes=0,
                    net_rx_bytes=0,
                    reason=None,
                )
            )
            for gpu in range(world_size):
                power = round(640 + 10 * rng.random(), 1)
                writer.append(gpu_sample(host, gpu, now, power, round(energy[gpu], 1)))
                energy[gpu] += power * SAMPLE_INTERVAL_S


def gpu_sample(host: str, gpu: int, now: float, power_w: float, energy_j: float) -> GpuSample:
    return GpuSample(
        t_unix_s=now,
        host=host,
        gpu=gpu,
        gpu_uuid=f"GPU-{gpu}",
        power_w=power_w,
        power_kind=PowerKind.AVERAGE,
        power_scope=PowerScope.GPU,
        enforced_limit_w=700.0,
        energy_j=energy_j,
        utilization_pct=100.0,
        memory_used_bytes=82_000_000_000,
        sm_clock_mhz=1980,
        temperature_c=60.0,
        clock_event_reasons=(),
        gpm=None,
        reason=None,
    )


def laptop_machine(folder: Path) -> Machine:
    host = HostInfo(
        host="golden-host", cpu_model="Golden CPU", num_cpus=2, affinity_cpus=2,
        memory_total_bytes=8_000_000_000, governor=None, numa_nodes=1, kernel="6.0", driver=None,
        gpus=(), mounts={},
    )  # fmt: skip
    train = {
        "strategy": "fsdp2", "precision": "fp32", "sequence_length": 256, "global_batch_size": 8,
        "micro_batch_size": 4, "activation_checkpointing": False, "compile": False,
        "num_steps": 14,
    }  # fmt: skip
    return Machine(folder, host, TINY, train, 1500.0)


def laptop(root: Path) -> None:
    machine = laptop_machine(root / "measured" / "golden-laptop" / "scaling")
    planned = [trial(machine, size, repeat) for repeat in range(4) for size in (1, 2)]
    campaign(machine, planned)
    for repeat in range(3):
        run(machine, trial(machine, 1, repeat))
    run(machine, trial(machine, 1, 3), status=Status.INTERRUPTED, steps=6, has_summary=False)
    run(machine, trial(machine, 2, 0), tries=2)
    run(machine, replace(trial(machine, 2, 0), run_id="scaling-g2-5ca1ab1e-r0.try1"), steps=3)
    torn = run(machine, trial(machine, 2, 1), aborts=1)
    with torn.steps(1).open("ab") as file:
        file.write(b'{"step":15,"t_end_un')
    run(
        machine,
        trial(machine, 2, 2),
        status=Status.OOM,
        steps=5,
        detail="rank 1: rank oom (message out of memory)",
    )
    run(machine, trial(machine, 1, 0, "b1f60000"), overrides={"precision": "bf16"})
    stranger = run(machine, trial(machine, 1, 9))
    value = json.loads(stranger.manifest.read_text()) | {"schema_version": 0}
    write_text(stranger.manifest, json.dumps(value) + "\n")


def endings(root: Path) -> None:
    """One run of each status, and a world size at which none is clean."""
    machine = laptop_machine(root / "measured" / "golden-endings" / "scaling")
    ends = {
        Status.FINISHED: ("every rank finished", 14),
        Status.INVALID: ("rank 0: non finite loss (step 9)", 8),
        Status.REFUSED: ("preflight: unequal step counts", 0),
        Status.OOM: ("rank 0: rank oom (message out of memory)", 1),
        Status.CRASH: ("rank 0: rank exit (exitcode -9, signal SIGKILL)", 4),
        Status.HANG: ("rank 0: hang confirmed", 13),
        Status.TIMEOUT: ("trial timeout (trial_timeout_s 60.0)", 11),
        Status.INTERRUPTED: ("stop requested (signal SIGINT)", 6),
        Status.PREEMPTED: ("stop requested (signal SIGTERM)", 7),
    }
    trials = [trial(machine, 1, repeat) for repeat in range(len(ends))]
    trials.append(replace(trial(machine, 2, 0), expected_status=Status.HANG))
    campaign(machine, trials)
    for item, (status, (detail, steps)) in zip(trials, ends.items(), strict=False):
        run(machine, item, status=status, detail=detail, steps=steps)
    run(machine, trials[-1], status=Status.HANG, detail="rank 1: hang confirmed", steps=13)


def node(root: Path) -> None:
    gpus = tuple(
        GpuInfo(
            index=i, name="NVIDIA H200", uuid=f"GPU-{i}", pci_bus_id=f"00000000:0{i}:00.0",
            enforced_limit_w=700.0, default_limit_w=700.0, max_sm_clock_mhz=1980,
            memory_total_bytes=150_754_820_096, mig_enabled=False, ecc_enabled=True,
            power_smoothing=None, reason=None,
        )
        for i in range(4)
    )  # fmt: skip
    host = HostInfo(
        host="golden-node", cpu_model="Golden CPU", num_cpus=64, affinity_cpus=64,
        memory_total_bytes=10**12, governor="performance", numa_nodes=2, kernel="6.0",
        driver="580.0", gpus=gpus, mounts={},
    )  # fmt: skip
    train = {
        "strategy": "fsdp2", "precision": "bf16", "sequence_length": 2048,
        "global_batch_size": 128, "micro_batch_size": 1, "activation_checkpointing": True,
        "compile": False, "num_steps": 24,
    }  # fmt: skip
    machine = Machine(root / "scaling", host, BIG, train, 1900.0)
    campaign(machine, [trial(machine, size, repeat) for repeat in range(3) for size in (2, 4)])
    for repeat in range(2):
        for size in (2, 4):
            run(machine, trial(machine, size, repeat))
    run(machine, trial(machine, 2, 2), retries=2)
    run(machine, trial(machine, 4, 2), steps=9)
    machine.folder = root / "scaling.old1"
    campaign(machine, [])


def make_tree(root: Path) -> None:
    """Write the golden results below ``root``."""
    laptop(root)
    endings(root)
    node(root)
    for folder in sorted(root.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # git holds no empty folder


def main() -> int:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    make_tree(GOLDEN / "results")
    write_tables(analyse(GOLDEN / "results").tables, GOLDEN / "expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
