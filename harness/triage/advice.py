"""What to do next, by verdict: short, in the order in which to try it."""

from __future__ import annotations

from collections.abc import Mapping

from harness.triage.result import JobResult
from harness.triage.stalls import Outcome
from harness.triage.states import State, Verdict

_SAVES = "waits with one odd GPU are saves: save less often, sharded or asynchronously"
_COLLECTIVES = "waits of all GPUs are collectives: look at the network, and for a slow rank"
_THROTTLED = "look at cooling and power supply of the throttled GPUs"
_STEPS: Mapping[Verdict, tuple[str, ...]] = {
    Verdict.HEALTHY: ("nothing",),
    Verdict.IDLE: ("nothing, or free the GPUs: they are held and not used",),
    Verdict.SLOW: (),
    Verdict.STARVING: (
        "raise the number of loader workers, or tokenise beforehand to local storage",
        "then look at the host's CPU, disk and network at the same times",
    ),
    Verdict.STALLED_SAVE: (
        "look at the checkpoint folder's storage at that time: bandwidth, locks, free space",
        "set the collective timeout well above such a save, or save asynchronously",
    ),
    Verdict.DEADLOCK: (
        "before killing it, take a py-spy dump of every rank, first of the odd one",
        "make sure that it is no endless save: do bytes in the checkpoint folder still grow?",
        "compare the ranks' step counts: unequal ones hang at the end of an epoch",
    ),
    Verdict.CRASHED_RANK: (
        "read the odd rank's stderr and the kernel's messages (Xid, out of memory) at that time",
        "end the other ranks: they wait for a process that is gone",
    ),
    Verdict.WEDGED: (
        "no process is left to kill: drain the node, then reset the GPU or reboot",
        "start nothing on these GPUs until nvidia-smi shows 0 % utilization",
    ),
    Verdict.UNKNOWN: (
        "record for longer, every second, with utilization, memory and the enforced limit",
        "give --limit or a --table",
    ),
}
_WORTH_A_STEP = 0.05


def next_steps(job: JobResult) -> tuple[str, ...]:
    """What to do about a job."""
    steps = list(_STEPS[job.verdict])
    if job.verdict is Verdict.SLOW:
        slowing = (
            (State.THROTTLED, _THROTTLED),
            (State.CHECKPOINT, _SAVES),
            (State.COMMUNICATION, _COLLECTIVES),
        )
        steps += [step for state, step in slowing if job.shares.get(state, 0.0) > _WORTH_A_STEP]
    last = job.stalls[-1] if job.stalls else None
    waits = last is not None and last.outcome is Outcome.OPEN
    if last is not None and waits and last.state is State.CHECKPOINT_OR_DEADLOCK:
        steps = [step for step in steps if step != "nothing"]
        steps.insert(
            0,
            f"it waited at the end, for {last.observed_s:.0f} s so far: a save, or a hang when it"
            f" passes {last.needed_s:.0f} s; look again",
        )
    if job.deciding is not None and job.deciding.outcome is Outcome.ENDED:
        steps = [
            step.replace("before killing it", "next time, before killing it") for step in steps
        ]
    if job.verdict is Verdict.DEADLOCK and not job.odd_gpus:
        steps.insert(0, "no GPU seen here is odd: add the files of the job's other hosts")
    return tuple(steps)
