"""Helpers of tests that start ranks: a tiny block store, a run folder, a node's command."""

import os
import subprocess
import sys
import time
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import harness
from harness.checks import check
from harness.config import RunConfig
from harness.data.build import StoreInfo, prepare_store
from harness.parse import parse, to_plain
from harness.record.read import read_steps
from harness.record.run_dir import RunDir, write_json
from harness.record.schema import (
    SCHEMA_VERSION,
    CodeState,
    DataState,
    Label,
    Manifest,
    Status,
    StepRecord,
    Trial,
)

PROJECT = Path(harness.__file__).parents[1]
VOCAB_SIZE = 512
TOY = (
    "size=ci",
    "corpus=folder",
    f"corpus.bpe_vocab_size={VOCAB_SIZE}",
    "model=qwen3_tiny",
    "model.num_layers=2",
    "model.hidden_size=64",
    "model.intermediate_size=96",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "model.head_dim=16",
    f"model.vocab_size={VOCAB_SIZE}",
    "train.precision=fp32",
    "train.sequence_length=64",
    "train.global_batch_size=8",
    "train.num_steps=5",
    "train.warmup_steps=2",
    "train.learning_rate=1e-3",
    "train.cpu_threads_per_rank=1",
    "train.collective_timeout_s=60",
    "data.eval_num_blocks=5",
)


def read_config(world_size: int, overrides: tuple[str, ...], on: str = "laptop") -> RunConfig:
    """The toy experiment with ``overrides`` of its settings."""
    words = ["experiment=smoke", f"on={on}", *TOY, f"gpus={world_size}", *overrides]
    with initialize_config_dir(str(PROJECT / "experiments"), version_base="1.3"):
        plain = OmegaConf.to_container(compose("config", words), resolve=True)
    config = parse(RunConfig, plain)
    check(config)
    return config


def make_store(folder: Path, overrides: tuple[str, ...] = ()) -> StoreInfo:
    """Build a block store from the documentation of the harness's own modules."""
    corpus_dir = folder / "corpus"
    corpus_dir.mkdir(parents=True)
    for source in sorted((PROJECT / "harness").glob("*.py")):
        (corpus_dir / f"{source.stem}.txt").write_text(source.read_text())
    config = read_config(1, (f"corpus.path={corpus_dir}", *overrides))
    return prepare_store(
        config.corpus,
        sequence_length=config.train.sequence_length,
        vocab_size=config.model.vocab_size,
        cache_dir=folder / "cache",
    )


def make_run(
    root: Path,
    store: StoreInfo,
    *,
    world_size: int,
    gradient_accumulation_steps: int = 1,
    overrides: tuple[str, ...] = (),
    on: str = "laptop",
) -> RunDir:
    """Write the folder and manifest of one trial; the micro batch follows from the rest."""
    config = read_config(world_size, overrides, on)
    micro = config.train.global_batch_size // (world_size * gradient_accumulation_steps)
    plain = to_plain(config)
    plain["train"]["micro_batch_size"] = micro
    run_dir = RunDir(root)
    run_dir.create()
    write_json(run_dir.manifest, _manifest(plain, store, world_size, gradient_accumulation_steps))
    return run_dir


def start(run_dir: RunDir, world_size: int) -> "subprocess.Popen[str]":
    """Start the launcher of one node, as the node process does."""
    command = [sys.executable, "-m", "harness.train.torchrun", "--run-dir", str(run_dir.root)]
    command += ["--node-rank", "0", "--", "--nnodes=1", f"--nproc-per-node={world_size}"]
    command += ["--max-restarts=0", "-m", "harness.train", "--run-dir", str(run_dir.root)]
    with run_dir.log("torchrun000.err").open("w") as log:
        return subprocess.Popen(
            command, cwd=PROJECT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=log, text=True
        )


def run(run_dir: RunDir, world_size: int, timeout_s: float = 150) -> int:
    """Run the ranks to their end and give the launcher's exit code."""
    process = start(run_dir, world_size)
    try:
        return process.wait(timeout_s)
    finally:
        process.kill()
        process.wait()


def steps(run_dir: RunDir, rank: int = 0) -> tuple[StepRecord, ...]:
    """The step records of one rank."""
    return read_steps(run_dir.steps(rank)).records


def wait_until(predicate, timeout_s: float = 60) -> None:
    """Poll ``predicate`` until it holds."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _manifest(plain: dict, store: StoreInfo, world_size: int, accumulation: int) -> Manifest:
    trial = Trial(
        run_id="toy",
        experiment="smoke",
        arm=f"gpus={world_size}",
        index=0,
        block=0,
        repeat=0,
        world_size=world_size,
        num_nodes=1,
        gradient_accumulation_steps=accumulation,
        levels={"gpus": world_size},
        spec_hash="toy",
        expected_status=Status.FINISHED,
    )
    nothing = {"commit": None, "dirty": None, "diff_hash": None, "lock_hash": None}
    return Manifest(
        schema_version=SCHEMA_VERSION,
        t_unix_s=time.time(),
        trial=trial,
        config=plain,
        comparability={},
        label=Label.REAL,
        argv=(),
        code=CodeState(**nothing, source_hash="toy", reason="a test"),
        packages={},
        environment={},
        hosts=(),
        data=DataState(
            store_path=str(store.path),
            store_hash=store.store_hash,
            corpus_hash=store.corpus_hash,
            tokenizer_hash=store.tokenizer_hash,
            num_blocks=store.num_blocks,
            num_tokens=store.num_tokens,
        ),
    )
