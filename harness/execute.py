"""From a plan to records on disk: per trial skip if ended, manifest, launch, wait, summarise.

Everything that decides is elsewhere (plan, campaign, summary); this module puts the steps in order
and sees to it that an interruption leaves a record and no process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import harness
from harness import plan as planning
from harness.calibration import write_table
from harness.campaign import (
    check_campaign,
    ended,
    num_tries,
    open_campaign,
    results_lock,
    set_aside,
)
from harness.config import RunConfig, Task
from harness.data.build import StoreInfo, prepare_store
from harness.launch.local import start_node
from harness.manifest import (
    Site,
    campaign_record,
    check_data,
    check_devices,
    check_extras,
    check_folders,
    check_power,
    trial_manifest,
    visible_gpus,
)
from harness.node import STOP_GRACE_S
from harness.processes import stop_marked
from harness.progress import View
from harness.provenance import collect_code_state, collect_host
from harness.record.run_dir import EventWriter, RunDir, write_json
from harness.record.schema import EventKind, Summary, Trial
from harness.record.summary import summarise

POLL_S = 0.5
_LIMIT_MARGIN_S = 60.0  # the node keeps the trial's time limit; this is for a node that cannot


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
    host = replace(host, gpus=visible_gpus(host.gpus, os.environ))
    check_devices(config, plan, host)
    check_power(config)
    check_folders(config)
    with results_lock(results_dir), _terminate_as_interrupt():
        stop_marked(experiment_dir, grace_s=STOP_GRACE_S)
        code = collect_code_state(Path(harness.__file__).parents[1])
        campaign = campaign_record(config, plan, host, code)
        if not config.fresh:
            check_campaign(experiment_dir, campaign, accept_drift=config.accept_drift)
        pending = config.fresh or any(
            ended(experiment_dir / trial.run_id, retry_failed=config.retry_failed) is None
            for trial in plan.trials
        )
        reads_data = config.task is Task.TRAIN
        store = _prepare_store(config, cache_dir, view) if pending and reads_data else None
        if store is not None:
            check_data(config, plan, store.num_blocks)
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
        exit_code = _run_trials(site, plan.trials, view)
        if config.task is Task.CALIBRATE:
            view.notes(write_table(experiment_dir))
        return exit_code


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
    manifest = trial_manifest(site, trial)
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
    pidfd = os.pidfd_open(node.pid)
    try:
        while time.monotonic() < deadline:
            if select.select([pidfd], [], [], POLL_S)[0]:
                node.wait()
                return True
            view.poll(run_dir)
    finally:
        os.close(pidfd)
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


@contextlib.contextmanager
def _terminate_as_interrupt() -> Generator[None]:
    """Let SIGTERM and SIGHUP end a campaign as Ctrl-C does: recorded, with nothing left running."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    # A signal that is ignored already (nohup) stays ignored.
    numbers = [
        n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN
    ]
    previous = {n: signal.signal(n, interrupt) for n in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
