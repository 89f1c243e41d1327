"""What a person sees while a campaign runs: bars on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.record.run_dir import RunDir, read_heartbeat
from harness.record.schema import Manifest, Status, Summary, Trial
from harness.record.summary import num_steps_planned

_COLOURS = {Status.FINISHED: "green", Status.INTERRUPTED: "yellow", Status.PREEMPTED: "yellow"}


class View:
    """Shows a campaign on ``console``; on anything but a terminal it draws no bars."""

    def __init__(self, console: Console, num_trials: int) -> None:
        """Show ``num_trials`` trials on ``console``."""
        self._console = console
        self._num_trials = num_trials
        self._progress: Progress | None = None
        self._tokens_per_step = 0
        self._seen: tuple[int, float] | None = None
        self._durations_s: list[float] = []
        self._num_ended = 0

    @contextlib.contextmanager
    def working(self, what: str) -> Generator[None]:
        """Show that ``what`` is under way, before the trials."""
        if self._console.is_terminal:
            with self._console.status(what):
                yield
        else:
            yield

    def set_aside(self, folder: Path | None) -> None:
        """Say where the old campaign went."""
        if folder is not None:
            self._line(f"the old campaign is kept in {folder}")

    def drift(self, drift: Sequence[str]) -> None:
        """Print what differs from when the campaign began."""
        for item in drift:
            self._line(("drift accepted", "yellow"), f": {item}")

    def notes(self, notes: Sequence[str]) -> None:
        """Print what came of the campaign beyond its records, one line each."""
        for note in notes:
            self._line(note)

    def store(self, path: Path, num_blocks: int, num_tokens: int, *, built: bool) -> None:
        """Say which block store the trials read."""
        verb = "built" if built else "found"
        self._line(f"block store {verb}: {num_blocks:,} blocks, {num_tokens:,} tokens in {path}")

    def trial_starts(self, trial: Trial, manifest: Manifest) -> None:
        """Begin the bar of one trial."""
        train = manifest.config["train"]
        trains = manifest.data is not None  # the windows of a calibration hold no tokens
        self._tokens_per_step = (
            train["global_batch_size"] * train["sequence_length"] if trains else 0
        )
        self._seen = None
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=2,
        )
        self._progress.add_task(
            f"{self._where(trial)} {trial.run_id}", total=num_steps_planned(manifest), rate=""
        )
        self._progress.start()

    def poll(self, run_dir: RunDir) -> None:
        """Move the bar to where rank 0's heartbeat is."""
        beat = read_heartbeat(run_dir.heartbeat(0)) if self._progress is not None else None
        if self._progress is None or beat is None:
            return
        task = self._progress.tasks[0]
        rate = f"{beat.phase.value}"
        if self._seen is None and beat.step > 0:
            self._seen = (beat.step, beat.t_unix_s)
        elif self._seen is not None and beat.step > self._seen[0]:
            per_step_s = (beat.t_unix_s - self._seen[1]) / (beat.step - self._seen[0])
            left_s = per_step_s * max(0, int(task.total or 0) - beat.step)
            speed = self._tokens_per_step / per_step_s if per_step_s > 0 else 0.0
            rate = f"{left_s:.0f} s left{self._campaign_left()}"
            if self._tokens_per_step:
                rate = f"{speed:,.0f} tokens/s, {rate}"
        self._progress.update(task.id, completed=beat.step, rate=rate)

    def trial_over(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def ended(self, trial: Trial, summary: Summary) -> None:
        """Print how one trial ended."""
        colour = _COLOURS.get(summary.status, "red")
        seconds = summary.t_end_unix_s - summary.t_start_unix_s
        self._durations_s.append(seconds)
        self._num_ended += 1
        good = summary.status is summary.expected_status
        why = "" if good else f": {summary.detail}"
        reached = f"step {summary.last_step or 0}/{summary.num_steps_planned}"
        self._line(
            f"{self._where(trial)} {trial.run_id} ",
            (summary.status.value, colour),
            f" {reached} in {seconds:.1f} s{why}",
        )

    def skipped(self, trial: Trial, summary: Summary) -> None:
        """Say that a trial stands from an earlier start."""
        self._num_ended += 1
        good = summary.status is summary.expected_status
        again = "" if good else "; retry_failed=true runs it again"
        self._line(
            f"{self._where(trial)} {trial.run_id} stands from before: {summary.status}{again}"
        )

    def finish(self, folder: Path, planned: int, summaries: Sequence[Summary]) -> None:
        """Count how the trials ended and say where the records are."""
        table = Table(box=None, show_header=False, pad_edge=False)
        for status in Status:
            count = sum(summary.status is status for summary in summaries)
            if count:
                table.add_row(status.value, str(count))
        if planned > len(summaries):
            table.add_row("not run", str(planned - len(summaries)))
        self._console.print(table)
        self._line(f"records: {folder}")
        if any(s.status in {Status.INTERRUPTED, Status.PREEMPTED} for s in summaries) or (
            planned > len(summaries)
        ):
            self._line("run the same command again to go on (without fresh=true)")

    def _campaign_left(self) -> str:
        """What the trials after this one will take, going by those that have ended here."""
        after = self._num_trials - self._num_ended - 1
        if not self._durations_s or after <= 0:
            return ""
        minutes = after * sum(self._durations_s) / len(self._durations_s) / 60
        return f", then {after} trials of about {minutes:.0f} min"

    def _where(self, trial: Trial) -> str:
        return f"{time.strftime('%H:%M:%S')} {trial.index + 1}/{self._num_trials}"

    def _line(self, *parts: str | tuple[str, str]) -> None:
        # Assembled, never marked up: messages and paths may hold brackets.
        self._console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)
