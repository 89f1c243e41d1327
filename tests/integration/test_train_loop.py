"""The training kernel in real process groups: equal losses however spread, and its ends."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from harness.data.blocks import BlockStore
from harness.data.loader import BlockLoader
from harness.record.read import read_events
from harness.record.run_dir import read_heartbeat
from harness.record.schema import EventKind, Phase
from harness.train import materialise
from harness.train.model import build_model, compute_logits
from harness.train.schedule import learning_rate_at

pytestmark = pytest.mark.integration

_SPEC = importlib.util.spec_from_file_location(
    "train_run", Path(__file__).parents[1] / "data" / "train_run.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
train_run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(train_run)

MASKED = ("data.mask_documents=true",)
TOLERANCE = 1e-5  # fp32 sums in another order


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return train_run.make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def finished(store, tmp_path_factory):
    """Give a finished run of these settings, made once a module."""
    runs = {}

    def get(world_size: int, accumulation: int = 1, overrides: tuple[str, ...] = ()):
        key = (world_size, accumulation, overrides)
        if key not in runs:
            run_dir = train_run.make_run(
                tmp_path_factory.mktemp("run"),
                store,
                world_size=world_size,
                gradient_accumulation_steps=accumulation,
                overrides=overrides,
            )
            assert train_run.run(run_dir, world_size) == 0, _logs(run_dir)
            runs[key] = run_dir
        return runs[key]

    return get


@pytest.fixture(scope="module")
def base(finished, tmp_path_factory):
    """A run of two fsdp2 ranks that saves after steps 2 and 4 and evaluates after step 5."""
    saves = tmp_path_factory.mktemp("saves")
    return finished(
        2,
        overrides=(
            "train.save_every_steps=2",
            f"train.checkpoint_dir={saves}",
            "train.eval_every_steps=5",
        ),
    )


def _logs(run_dir) -> str:
    return "\n".join(p.read_text()[-3000:] for p in sorted((run_dir.root / "logs").iterdir()))


def _losses(run_dir, rank: int = 0) -> list[float]:
    return [record.loss for record in train_run.steps(run_dir, rank)]


def _events(run_dir, kind: EventKind):
    return [event for event in read_events(run_dir.root).records if event.kind is kind]


def _start_run(store, root: Path, world_size: int, *overrides: str):
    run_dir = train_run.make_run(root, store, world_size=world_size, overrides=overrides)
    return run_dir, train_run.start(run_dir, world_size)


def _reference(store, overrides: tuple[str, ...] = ()) -> tuple[list[float], float]:
    """An ordinary loop in one process: the losses of its steps, and of the evaluation after."""
    torch.set_num_threads(1)
    config = train_run.read_config(1, overrides)
    train = config.train
    model = build_model(config.model)
    materialise.allocate(model, torch.device("cpu"))
    materialise.fill_random(model, seed=train.seed, std=config.model.initializer_range)
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    others = [p for n, p in model.named_parameters() if "norm" not in n]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=False,
        foreach=False,
    )
    loader = BlockLoader(
        BlockStore.open(store.path, vocab_size=config.model.vocab_size),
        global_batch_size=8,
        micro_batch_size=8,
        gradient_accumulation_steps=1,
        rank=0,
        world_size=1,
        shuffle_seed=config.data.shuffle_seed,
        eval_num_blocks=config.data.eval_num_blocks,
        mask_documents=config.data.mask_documents,
    )

    def mean_loss(batch, reduction="mean"):
        ids = torch.from_numpy(batch.input_ids)
        if batch.position_ids is None:
            logits = model(input_ids=ids).logits
        else:
            logits = compute_logits(model, ids, torch.from_numpy(batch.position_ids))
        labels = torch.from_numpy(batch.labels).flatten()
        return functional.cross_entropy(logits.flatten(0, 1), labels, reduction=reduction)

    losses = []
    for step in range(1, train.num_steps + 1):
        loss = mean_loss(loader.fetch(step, 0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(
                step, num_steps=train.num_steps, warmup_steps=2, peak=1e-3, min_ratio=0.1
            )
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        batches = [loader.fetch_eval(i) for i in range(loader.num_eval_micro_batches)]
        total = sum(mean_loss(batch, "sum").item() for batch in batches)
    return losses, total / sum(batch.target_tokens for batch in batches)


@pytest.fixture(scope="module")
def plain(store):
    return _reference(store)


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_losses_equal_a_plain_loop_on_any_number_of_ranks(finished, plain, strategy, world_size):
    run_dir = finished(world_size, overrides=(f"train.strategy={strategy}",))
    assert _losses(run_dir) == pytest.approx(plain[0], abs=TOLERANCE)
    assert plain[0][-1] < plain[0][0]


@pytest.mark.parametrize(("strategy", "accumulation"), [("fsdp2", 2), ("fsdp2", 4), ("ddp", 2)])
def test_gradient_accumulation_changes_no_loss(finished, plain, strategy, accumulation):
    run_dir = finished(2, accumulation, (f"train.strategy={strategy}",))
    assert _losses(run_dir) == pytest.approx(plain[0], abs=TOLERANCE)
    assert {r.num_micro_batches for r in train_run.steps(run_dir)} == {accumulation}


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_reducing_gradients_every_micro_batch_changes_no_loss(finished, plain, strategy):
    overrides = (f"train.strategy={strategy}", "train.reduce_every_micro_batch=true")
    run_dir = finished(2, 2, overrides)
    assert _losses(run_dir) == pytest.approx(plain[0], abs=TOLERANCE)


@pytest.mark.parametrize(("strategy", "accumulation"), [("fsdp2", 2), ("ddp", 1)])
def test_ranks_with_uneven_targets_still_give_the_token_mean(
    store, finished, strategy, accumulation
):
    """A mean of the ranks' means is another number wherever ranks hold unequal targets."""
    overrides = (*MASKED, f"train.strategy={strategy}")
    losses, _ = _reference(store, MASKED)
    assert _losses(finished(2, accumulation, overrides)) == pytest.approx(losses, abs=TOLERANCE)


def test_a_rank_with_nothing_but_padding_keeps_step_and_the_token_mean(store, finished):
    """One block for two ranks: the second has no target, and its mean would be 0 / 0."""
    overrides = (f"data.eval_num_blocks={store.num_blocks - 1}", "train.num_steps=3")
    losses, _ = _reference(store, overrides)
    run_dir = finished(2, overrides=overrides)
    assert _losses(run_dir) == pytest.approx(losses, abs=TOLERANCE)
    assert {record.tokens for record in train_run.steps(run_dir, 1)} == {0}
    assert {record.padded_tokens for record in train_run.steps(run_dir, 1)} == {4 * 64}
    assert len(_events(run_dir, EventKind.EPOCH_END)) == 2 * 3


def test_without_a_number_of_steps_a_run_is_one_epoch_and_saves_at_its_end(
    store, finished, tmp_path
):
    overrides = (
        f"data.eval_num_blocks={store.num_blocks - 17}",
        "train.num_steps=null",
        "train.save_at_end=true",
        f"train.checkpoint_dir={tmp_path}",
    )
    run_dir = finished(1, overrides=overrides)
    assert [record.step for record in train_run.steps(run_dir)] == [1, 2, 3]
    assert [e.detail["step"] for e in _events(run_dir, EventKind.SAVE_END)] == [3]


def test_activation_checkpointing_and_deterministic_mode_change_no_loss(finished, plain):
    overrides = ("train.activation_checkpointing=true", "train.deterministic=true")
    run_dir = finished(2, overrides=overrides)
    assert _losses(run_dir) == pytest.approx(plain[0], abs=TOLERANCE)


def test_every_rank_records_every_step_and_the_tokens_add_up(base):
    config = train_run.read_config(2, ())
    ranks = [train_run.steps(base, rank) for rank in range(2)]
    assert [[r.step for r in records] for records in ranks] == [[1, 2, 3, 4, 5]] * 2
    assert _losses(base, 0) == _losses(base, 1)
    for pair in zip(*ranks, strict=True):
        assert sum(r.tokens for r in pair) == 8 * config.train.sequence_length
        for record in pair:
            assert 0 < record.data_wait_s < record.duration_s
            assert record.padded_tokens == 0
            assert record.grad_norm > 0
            assert record.peak_memory_bytes > 2**20
            assert record.alloc_retries is None
            assert record.data_bytes_read > 0


def test_a_good_run_says_so_on_every_rank(base):
    told = _events(base, EventKind.RANK_FINISHED)
    assert {(e.rank, e.detail["last_step"]) for e in told} == {(0, 5), (1, 5)}
    assert not _events(base, EventKind.RANK_ERROR)
    for rank in range(2):
        beat = read_heartbeat(base.heartbeat(rank))
        assert (beat.step, beat.phase) == (5, Phase.FINISH)


def test_evaluation_is_the_token_mean_over_the_held_out_blocks(base, plain):
    told = _events(base, EventKind.EVAL)
    assert {e.rank for e in told} == {0, 1}
    for event in told:
        assert event.detail["step"] == 5
        assert event.detail["loss"] == pytest.approx(plain[1], abs=TOLERANCE)


def test_continuing_from_a_save_gives_identical_losses(base, finished):
    ends = {e.detail["step"]: e.detail for e in _events(base, EventKind.SAVE_END)}
    assert sorted(ends) == [2, 4]
    assert ends[2]["bytes"] > 2**16
    resumed = finished(2, overrides=(f"train.resume_from={ends[2]['path']}",))
    assert _losses(resumed) == _losses(base)[2:]
    assert [e.detail["step"] for e in _events(resumed, EventKind.RESUMED)] == [2, 2]


def test_continuing_from_a_folder_of_saves_takes_the_latest(base, finished):
    saves = Path(_events(base, EventKind.SAVE_END)[0].detail["path"]).parent
    resumed = finished(2, overrides=(f"train.resume_from={saves}",))
    assert _losses(resumed) == _losses(base)[4:]


def test_a_diverging_run_is_invalid_on_every_rank_in_the_same_step(store, tmp_path):
    run_dir = train_run.make_run(
        tmp_path, store, world_size=2, overrides=("train.learning_rate=1e38",)
    )
    assert train_run.run(run_dir, 2) == 1
    (step,) = {e.detail["step"] for e in _events(run_dir, EventKind.NON_FINITE_LOSS)}
    assert {e.rank for e in _events(run_dir, EventKind.NON_FINITE_LOSS)} == {0, 1}
    for rank in range(2):
        last = train_run.steps(run_dir, rank)[-1]
        assert last.step == step
        assert last.loss is None or last.grad_norm is None
    exits = _events(run_dir, EventKind.RANK_EXIT)
    assert {(e.rank, e.detail["exitcode"]) for e in exits} == {(0, 3), (1, 3)}
    assert not _events(run_dir, EventKind.RANK_FINISHED)


def _pids(run_dir) -> dict[int, int]:
    return {e.rank: e.detail["pid"] for e in _events(run_dir, EventKind.RANK_STARTED)}


def test_a_killed_rank_ends_the_run_and_is_named(store, tmp_path):
    run_dir, launcher = _start_run(store, tmp_path, 2, "train.num_steps=1000000")
    train_run.wait_until(lambda: len(train_run.steps(run_dir, 1)) >= 2)
    pids = _pids(run_dir)
    os.kill(pids[1], signal.SIGKILL)
    assert launcher.wait(60) == 1
    exits = {e.rank: e.detail for e in _events(run_dir, EventKind.RANK_EXIT)}
    assert (exits[1]["exitcode"], exits[1]["signal"]) == (-9, "SIGKILL")
    assert exits[0]["exitcode"] in {1, -15}  # noticed by itself, or stopped by the launcher
    assert not any(train_run.is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_launcher_leaves_no_rank(store, tmp_path, number, code):
    """A launcher killed by -9 cannot stop its ranks; the kernel does."""
    run_dir, launcher = _start_run(store, tmp_path, 2, "train.num_steps=1000000")
    train_run.wait_until(lambda: len(train_run.steps(run_dir, 1)) >= 2)
    pids = _pids(run_dir)
    launcher.send_signal(number)
    assert launcher.wait(60) == code
    train_run.wait_until(lambda: not any(train_run.is_alive(pid) for pid in pids.values()), 10)
    assert sorted(pids) == [0, 1]


def test_a_rank_that_cannot_start_says_why(store, tmp_path):
    run_dir = train_run.make_run(
        tmp_path, store, world_size=1, overrides=("train.resume_from=/nowhere",)
    )
    assert train_run.run(run_dir, 1) == 1
    (event,) = _events(run_dir, EventKind.RANK_ERROR)
    assert event.detail["type"] == "ConfigError"
    assert "train.resume_from=/nowhere: no such folder" in event.detail["message"]


@pytest.mark.slow
def test_a_compiled_run_equals_the_plain_one_and_tells_its_compile_time(store, finished):
    losses, _ = _reference(store, ("train.num_steps=3",))
    run_dir = finished(2, overrides=("train.compile=true", "train.num_steps=3"))
    assert _losses(run_dir) == pytest.approx(losses, abs=1e-4)  # fused kernels round otherwise
    told = _events(run_dir, EventKind.COMPILE)
    first, *later = (r.duration_s for r in train_run.steps(run_dir))
    assert {e.rank for e in told} == {0, 1}
    assert 0 < told[0].detail["compile_time_s"] < first
    assert max(later) < first
