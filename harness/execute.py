"""From a plan to records on disk: per trial skip if ended, manifest, launch, wait, summarise.

Everything that decides is elsewhere (plan, campaign, summary); this module puts the steps in order
and sees to it that an interruption leaves a record and no process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import harness
from harness import plan as planning
from harness.campaign import (
    check_campaign,
    ended,
    num_tries,
    open_campaign,
    results_lock,
    set_aside,
)
from harness.config import Device, PowerSource, RunConfig
from harness.data.build import StoreInfo, prepare_store
from harness.errors import LaunchError, MissingExtraError
from harness.launch.local import start_node
from harness.node import STOP_GRACE_S
from harness.parse import to_plain
from harness.processes import stop_marked
from harness.progress import View
from harness.provenance import (
    collect_code_state,
    collect_environment,
    collect_host,
    collect_packages,
)
from harness.record.run_dir import EventWriter, RunDir, write_json
from harness.record.schema import (
    SCHEMA_VERSION,
    Campaign,
    CodeState,
    DataState,
    EventKind,
    HostInfo,
    Label,
    Manifest,
    Summary,
    Trial,
)
from harness.record.summary import summarise

POLL_S = 0.5
_LIMIT_MARGIN_S = 60.0  # the node keeps the trial's time limit; this is for a node that cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a campaign runs with on this machine."""

    config: RunConfig
    argv: tuple[str, ...]
    experiment_dir: Path
    cache_dir: Path
    host: HostInfo
    code: CodeState
    store: StoreInfo | None  # null when every trial stands from before
    drift: tuple[str, ...]


def run_campaign(config: RunConfig, plan: planning.Plan, argv: Sequence[str], view: View) -> int:
    """Run every trial of ``plan`` that has not ended yet.

    Returns:
        0 when every trial ended as declared, 1 when one did not or the campaign was interrupted.

    Raises:
        HarnessError: something that the user can mend, before anything has started.
    """
    results_dir = Path(config.results_dir).absolute()
    experiment_dir = results_dir / config.experiment.name
    cache_dir = planning.cache_folder(config, os.environ)
    check_extras()
    host = collect_host((results_dir, cache_dir))
    check_devices(config, plan, host)
    with results_lock(results_dir), _terminate_as_interrupt():
        stop_marked(experiment_dir, grace_s=STOP_GRACE_S)
        code = collect_code_state(Path(harness.__file__).parents[1])
        campaign = _campaign(config, plan, host, code)
        if not config.fresh:
            check_campaign(experiment_dir, campaign, accept_drift=config.accept_drift)
        pending = config.fresh or any(
            ended(experiment_dir / trial.run_id, retry_failed=config.retry_failed) is None
            for trial in plan.trials
        )
        store = _prepare_store(config, cache_dir, view) if pending else None
        if config.fresh:
            view.set_aside(set_aside(experiment_dir, "old"))
        drift = open_campaign(experiment_dir, campaign, accept_drift=config.accept_drift)
        view.drift(drift)
        site = Site(
            config=config,
            argv=tuple(argv),
            experiment_dir=experiment_dir,
            cache_dir=cache_dir,
            host=host,
            code=code,
            store=store,
            drift=drift,
        )
        return _run_trials(site, plan.trials, view)


def check_extras() -> None:
    """Refuse before anything starts when the ranks could not import what they need.

    Raises:
        MissingExtraError: names the package and the extra.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")


def check_devices(config: RunConfig, plan: planning.Plan, host: HostInfo) -> None:
    """Refuse a plan that this machine has no devices for.

    Raises:
        LaunchError: says what there is and what would do it.
    """
    if config.on.device is Device.CPU:
        return
    wanted = max(trial.world_size for trial in plan.trials)
    there = len(host.gpus)
    if wanted <= there:
        return
    found = f"{there} GPUs" if there else f"no GPU ({host.driver or 'no NVIDIA driver'})"
    raise LaunchError(
        f"gpus={wanted}: this machine has {found}, and launcher=local starts ranks on this machine"
        f" only; run it where {wanted} GPUs are (several nodes need a launcher that starts the node"
        " command on each: slurm or external, not in this version), ask for fewer with gpus=N,"
        " see the plan with plan=true, or run it on CPU ranks with on=laptop gpus=2"
    )


def _run_trials(site: Site, trials: Sequence[Trial], view: View) -> int:
    summaries: list[Summary] = []
    try:
        for trial in trials:
            run_root = site.experiment_dir / trial.run_id
            done = ended(run_root, retry_failed=site.config.retry_failed)
            if done is None:
                done, interrupted = _run_trial(site, trial, view)
                view.ended(trial, done)
            else:
                interrupted = False
                view.skipped(trial, done)
            summaries.append(done)
            if interrupted:
                break
    except KeyboardInterrupt:
        view.finish(site.experiment_dir, len(trials), summaries)
        return 1
    view.finish(site.experiment_dir, len(trials), summaries)
    good = len(summaries) == len(trials) and all(s.status is s.expected_status for s in summaries)
    return 0 if good else 1


def _prepare_store(config: RunConfig, cache_dir: Path, view: View) -> StoreInfo:
    with view.working("reading the corpus and its block store"):
        store = prepare_store(
            config.corpus,
            sequence_length=config.train.sequence_length,
            vocab_size=config.model.vocab_size,
            cache_dir=cache_dir,
        )
    view.store(store.path, store.num_blocks, store.num_tokens, built=store.built)
    return store


def _run_trial(site: Site, trial: Trial, view: View) -> tuple[Summary, bool]:
    """Run one trial to its end; gives its summary, and whether we were told to stop."""
    run_root = site.experiment_dir / trial.run_id
    set_aside(run_root, "try")
    run_dir = RunDir(run_root)
    run_dir.create()
    manifest = _manifest(site, trial)
    write_json(run_dir.manifest, manifest)
    events = EventWriter(run_dir, "launcher")
    interrupted = False
    node: subprocess.Popen[bytes] | None = None
    try:
        view.trial_starts(trial, manifest)
        node = start_node(run_dir)
        if not _wait(node, site.config.trial_timeout_s, run_dir, view):
            limit_s = site.config.trial_timeout_s
            events.write(EventKind.TRIAL_TIMEOUT, trial_timeout_s=limit_s, node="did not end")
    except KeyboardInterrupt as interrupt:
        interrupted = True
        name = str(interrupt.args[0]) if interrupt.args else signal.SIGINT.name
        events.write(EventKind.STOP_REQUESTED, signal=name, to="the campaign")
    finally:
        view.trial_over()
        if node is not None:
            _stop(node)
            events.write(EventKind.CHILD_EXIT, child="node000", exitcode=node.returncode)
        stop_marked(run_root, grace_s=1.0)
        events.close()
    summary = summarise(run_root, tries=num_tries(run_root) + 1, drift=site.drift)
    write_json(run_dir.summary, summary)
    return summary, interrupted


def _wait(
    node: subprocess.Popen[bytes],
    limit_s: float,
    run_dir: RunDir,
    view: View,
) -> bool:
    """Wait for the node process; false when its time and the margin are over."""
    deadline = time.monotonic() + limit_s + _LIMIT_MARGIN_S
    while time.monotonic() < deadline:
        try:
            node.wait(POLL_S)
        except subprocess.TimeoutExpired:
            view.poll(run_dir)
        else:
            return True
    return False


def _stop(node: subprocess.Popen[bytes]) -> None:
    """End the node process; it stops its children in turn, for which it gets its time."""
    if node.poll() is None:
        node.terminate()
        try:
            node.wait(3 * STOP_GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            node.kill()
            node.wait()
    if node.stdin is not None:
        node.stdin.close()


def _manifest(site: Site, trial: Trial) -> Manifest:
    config = _resolve(site, trial)
    store = cast("StoreInfo", site.store)
    data = DataState(
        store_path=str(store.path),
        store_hash=store.store_hash,
        corpus_hash=store.corpus_hash,
        tokenizer_hash=store.tokenizer_hash,
        num_blocks=store.num_blocks,
        num_tokens=store.num_tokens,
    )
    packages = collect_packages()
    replayed = config.power.source is PowerSource.REPLAY
    return Manifest(
        schema_version=SCHEMA_VERSION,
        t_unix_s=time.time(),
        trial=trial,
        config=cast("dict[str, Any]", to_plain(config)),
        comparability=_comparability(site, trial, config, data, packages),
        label=Label.REPLAY if replayed else Label.REAL,
        argv=site.argv,
        code=site.code,
        packages=packages,
        environment=collect_environment(dict(os.environ)),
        hosts=(site.host,),
        data=data,
    )


def _resolve(site: Site, trial: Trial) -> RunConfig:
    """The settings of one trial with nothing left open: steps, folders."""
    config = planning.trial_config(site.config, trial.levels)
    store = cast("StoreInfo", site.store)
    num_steps = config.train.num_steps or planning.steps_per_epoch(config, store.num_blocks)
    folder = config.train.checkpoint_dir or str(site.cache_dir / "checkpoints")
    tries = num_tries(site.experiment_dir / trial.run_id) + 1
    checkpoint_dir = str(Path(folder).absolute() / f"{trial.run_id}.try{tries}")
    train = replace(config.train, num_steps=num_steps, checkpoint_dir=checkpoint_dir)
    return replace(config, train=train, cache_dir=str(site.cache_dir))


def _comparability(
    site: Site, trial: Trial, config: RunConfig, data: DataState, packages: dict[str, str]
) -> dict[str, Any]:
    gpus = site.host.gpus if config.on.device is Device.CUDA else ()
    device = gpus[0].name if gpus else f"cpu: {site.host.cpu_model}"
    names = ("torch", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
    return {
        **planning.speed_settings(config),
        "world_size": trial.world_size,
        "num_nodes": trial.num_nodes,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "device_model": device,
        "enforced_limit_w": gpus[0].enforced_limit_w if gpus else None,
        "driver": site.host.driver if gpus else None,
        "corpus_hash": data.corpus_hash,
        "tokenizer_hash": data.tokenizer_hash,
        "commit": site.code.commit or site.code.source_hash,
        "diff_hash": site.code.diff_hash,
        **{f"packages.{name}": packages[name] for name in names if name in packages},
    }


def _campaign(config: RunConfig, plan: planning.Plan, host: HostInfo, code: CodeState) -> Campaign:
    names = sorted({gpu.name or "unknown GPU" for gpu in host.gpus})
    devices = ", ".join(names) if config.on.device is Device.CUDA else f"cpu: {host.cpu_model}"
    return Campaign(
        schema_version=SCHEMA_VERSION,
        t_unix_s=time.time(),
        experiment=config.experiment.name,
        question=config.experiment.question,
        response=config.experiment.response,
        factors=config.experiment.factors,
        trials=plan.trials,
        code=code,
        devices={f"{host.host} device": devices, f"{host.host} driver": host.driver or "none"},
    )


@contextlib.contextmanager
def _terminate_as_interrupt() -> Generator[None]:
    """Let SIGTERM and SIGHUP end a campaign as Ctrl-C does: recorded, with nothing left running."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    previous = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
