"""The step loop on one rank in this process: what it measures and tells, and when it stops."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from harness.config import Strategy
from harness.data.loader import IGNORED_LABEL, MicroBatch
from harness.record.schema import EventKind, Phase
from harness.train import loop
from harness.train.loop import Clock, Hooks, Job, is_save_due, train
from harness.train.optimizer import build_optimizer, set_learning_rate
from harness.train.topology import Topology

VOCAB_SIZE = 11
FETCH_S = 0.05
TRAIN = SimpleNamespace(
    strategy=Strategy.DDP,
    precision="fp32",
    learning_rate=0.1,
    min_learning_rate_ratio=0.1,
    warmup_steps=1,
    weight_decay=0.5,
    adam_beta1=0.9,
    adam_beta2=0.95,
    adam_eps=1e-8,
    max_grad_norm=1.0,
    reduce_every_micro_batch=False,
    eval_every_steps=None,
    save_every_steps=None,
    save_at_end=False,
    checkpoint_dir=None,
)


class FakeTime:
    """A clock that only moves when somebody spends time."""

    def __init__(self):
        self.now_s = 100.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now_s, unix=lambda: 1e9 + self.now_s)


class SlowLoader:
    """Every fetch takes 50 ms of fake time; the last micro-batch has a single target."""

    steps_per_epoch = 2
    num_eval_micro_batches = 2

    def __init__(self, fake_time: FakeTime):
        self.fake_time = fake_time

    def fetch(self, step: int, micro_batch: int) -> MicroBatch:
        self.fake_time.now_s += FETCH_S
        ids = np.arange(8, dtype=np.int64).reshape(2, 4) % VOCAB_SIZE + micro_batch
        labels = (ids + 1) % VOCAB_SIZE
        if micro_batch == 1:
            labels = np.where(np.arange(8).reshape(2, 4) == 0, labels, IGNORED_LABEL)
        return MicroBatch(
            input_ids=ids,
            labels=labels,
            position_ids=None,
            tokens=7,
            padded_tokens=1,
            target_tokens=int((labels != IGNORED_LABEL).sum()),
            bytes_read=32 * step,
        )

    def fetch_eval(self, micro_batch: int) -> MicroBatch:
        return self.fetch(1, micro_batch)


class ToyModel(nn.Module):
    """A bigram table behind a norm, with the call that ``compute_logits`` makes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB_SIZE + 1, VOCAB_SIZE)
        self.norm = nn.LayerNorm(VOCAB_SIZE)

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.norm(self.table(input_ids)))


@pytest.fixture(scope="module")
def topology():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield Topology(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), mesh=mesh)
    dist.destroy_process_group()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def make_job(topology, fake_time):
    def make(accumulation: int = 1, num_steps: int = 4, **settings) -> Job:
        config = SimpleNamespace(**(vars(TRAIN) | settings))
        module = nn.parallel.DistributedDataParallel(ToyModel())
        return Job(
            module=module,
            optimizer=build_optimizer(module, config),
            loader=SlowLoader(fake_time),
            topology=topology,
            train=config,
            gradient_accumulation_steps=accumulation,
            num_steps=num_steps,
            checkpoint_extra={"world_size": 1},
        )

    return make


@pytest.fixture
def told():
    return []


@pytest.fixture
def hooks(told) -> Hooks:
    return Hooks(
        on_step=lambda record: told.append(("step", record)),
        on_phase=lambda step, phase: told.append((phase, step)),
        on_event=lambda kind, /, **detail: told.append((kind, detail)),
    )


def records(told):
    return [what for kind, what in told if kind == "step"]


def events(told, wanted: EventKind):
    return [what for kind, what in told if kind is wanted]


def test_a_slow_fetch_shows_in_the_data_wait_and_in_the_step(make_job, hooks, told, fake_time):
    """A timer that starts after the fetch calls every data path fast."""
    train(make_job(accumulation=2), range(1, 2), hooks, fake_time.clock())
    (record,) = records(told)
    assert record.data_wait_s == pytest.approx(2 * FETCH_S)
    assert record.duration_s >= record.data_wait_s


def test_a_step_record_counts_what_this_rank_was_given(make_job, hooks, told, fake_time):
    train(make_job(accumulation=2), range(3, 4), hooks, fake_time.clock())
    (record,) = records(told)
    assert (record.step, record.num_micro_batches) == (3, 2)
    assert (record.tokens, record.padded_tokens, record.data_bytes_read) == (14, 2, 192)
    assert record.t_end_unix_s == pytest.approx(1e9 + 100 + 2 * FETCH_S)
    assert record.peak_memory_bytes > 0
    assert record.alloc_retries is None


def test_the_loss_is_the_mean_over_all_targets_of_the_step(make_job, fake_time):
    """The mean of the micro-batches' means weighs the single target of the second like eight."""
    job = make_job(accumulation=2)
    with torch.no_grad():
        logits = [
            job.module(torch.from_numpy(job.loader.fetch(1, index).input_ids)).logits
            for index in range(2)
        ]
    labels = torch.cat([torch.from_numpy(job.loader.fetch(1, i).labels) for i in range(2)])
    expected = nn.functional.cross_entropy(torch.cat(logits).flatten(0, 1), labels.flatten())
    assert loop.run_step(job, 1, fake_time.clock()).loss == pytest.approx(expected.item(), rel=1e-6)


def test_records_and_events_come_after_the_timer_has_stopped(make_job, told, fake_time):
    def slow(*_args, **_detail):
        fake_time.now_s += 1000
        told.append("slow")

    hooks = Hooks(on_step=slow, on_phase=slow, on_event=slow)
    outcome = train(make_job(), range(1, 5), hooks, fake_time.clock())
    assert max(outcome.durations_s) < 1
    assert len(told) == 4 + 4 + 2  # steps, phases, ends of epochs


def test_a_bare_run_takes_the_same_steps(make_job, hooks, told, fake_time):
    seen, bare = make_job(), make_job()
    train(seen, range(1, 5), hooks, fake_time.clock())
    outcome = train(bare, range(1, 5), Hooks(), fake_time.clock())
    assert (outcome.is_valid, outcome.last_step, len(outcome.durations_s)) == (True, 4, 4)
    for one, other in zip(seen.module.parameters(), bare.module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(records(told)) == 4


def test_learning_rate_follows_the_schedule(make_job, fake_time):
    job = make_job(num_steps=4)
    train(job, range(1, 5), Hooks(), fake_time.clock())
    assert [g["lr"] for g in job.optimizer.param_groups] == pytest.approx([0.01, 0.01])


def test_ends_of_epochs_are_events(make_job, hooks, told, fake_time):
    train(make_job(), range(1, 5), hooks, fake_time.clock())
    assert events(told, EventKind.EPOCH_END) == [{"step": 2, "epoch": 1}, {"step": 4, "epoch": 2}]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_non_finite_step_stops_the_run_and_changes_no_weight(
    make_job, hooks, told, fake_time, poison
):
    job = make_job()
    with torch.no_grad():
        job.module.module.table.weight[0, 0] = poison
    before = [p.clone() for p in job.module.parameters()]
    outcome = train(job, range(1, 5), hooks, fake_time.clock())
    assert (outcome.is_valid, outcome.last_step) == (False, 1)
    assert (records(told)[0].loss, records(told)[0].grad_norm) == (None, None)
    (detail,) = events(told, EventKind.NON_FINITE_LOSS)
    assert (detail["step"], detail["loss"]) == (1, "nan")
    for old, new in zip(before, job.module.parameters(), strict=True):
        assert torch.equal(old, new) or old.isnan().any() or old.isinf().any()


def test_evaluation_trains_nothing_and_has_its_own_phase(make_job, hooks, told, fake_time):
    job = make_job(eval_every_steps=2)
    before = [p.clone() for p in job.module.parameters()]
    loss, targets = loop.evaluate(job)
    assert (targets, job.module.training) == (9, True)
    assert all(map(torch.equal, before, job.module.parameters()))
    train(job, range(1, 4), hooks, fake_time.clock())
    (detail,) = events(told, EventKind.EVAL)
    assert (detail["step"], detail["target_tokens"]) == (2, 9)
    assert detail["duration_s"] == pytest.approx(2 * FETCH_S)
    assert 0 < detail["loss"] < loss
    assert (Phase.EVAL, 2) in told


def test_a_save_is_told_before_and_after_with_its_bytes(
    make_job, hooks, told, tmp_path, monkeypatch
):
    job = make_job(save_every_steps=4, checkpoint_dir=str(tmp_path))
    fake_time = job.loader.fake_time

    def save(folder, *, step, module, optimizer, extra):
        assert (module, optimizer) == (job.module, job.optimizer)
        fake_time.now_s += 3
        (folder / "one").mkdir()
        (folder / "one" / "shard").write_bytes(bytes(100))
        assert (step, extra) == (4, {"world_size": 1})
        return folder / "one"

    monkeypatch.setattr(loop.checkpoint, "save", save, raising=False)
    train(job, range(1, 5), hooks, fake_time.clock())
    kinds = [kind for kind, _ in told]
    assert kinds.index(EventKind.SAVE_BEGIN) < kinds.index(EventKind.SAVE_END)
    (detail,) = events(told, EventKind.SAVE_END)
    assert (detail["bytes"], detail["path"]) == (100, str(tmp_path / "one"))
    assert detail["duration_s"] == pytest.approx(3)
    assert (Phase.SAVE, 4) in told


@pytest.mark.parametrize(
    ("every", "at_end", "expected"),
    [
        (None, False, []),
        (3, False, [3, 6]),
        (None, True, [5, 7]),
        (3, True, [3, 5, 6, 7]),
    ],
)
def test_saves_fall_on_every_nth_step_and_on_the_ends(every, at_end, expected):
    config = SimpleNamespace(save_every_steps=every, save_at_end=at_end)
    due = [s for s in range(1, 8) if is_save_due(config, step=s, num_steps=7, steps_per_epoch=5)]
    assert due == expected


def test_weight_decay_spares_norms():
    module = ToyModel()
    decayed, spared = build_optimizer(module, TRAIN).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(module.table.weight)]
    assert {id(p) for p in spared["params"]} == {id(module.norm.weight), id(module.norm.bias)}


def test_frozen_parameters_are_left_out_of_the_optimizer():
    module = ToyModel()
    module.norm.requires_grad_(requires_grad=False)
    (group,) = build_optimizer(module, TRAIN).param_groups
    assert [id(p) for p in group["params"]] == [id(module.table.weight)]


def test_every_group_gets_the_learning_rate():
    optimizer = build_optimizer(ToyModel(), TRAIN)
    set_learning_rate(optimizer, 0.25)
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.25]


def test_a_step_result_with_an_infinite_gradient_is_not_finite():
    result = loop.StepResult(
        step=1,
        t_end_unix_s=0.0,
        duration_s=1.0,
        data_wait_s=0.0,
        tokens=1,
        padded_tokens=0,
        bytes_read=0,
        loss=1.0,
        grad_norm=2.0,
    )
    assert result.is_finite
    assert not dataclasses.replace(result, grad_norm=math.inf).is_finite
    assert not dataclasses.replace(result, loss=math.nan).is_finite
