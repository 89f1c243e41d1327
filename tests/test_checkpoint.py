import dataclasses
import json
import resource

import pytest
import torch
import torch.distributed as dist

from harness.errors import ConfigError, RecordError
from harness.train import checkpoint
from harness.train.checkpoint import latest, load, save
from harness.train.materialise import allocate, fill_random
from harness.train.model import build_model, compute_logits

# torch.distributed.checkpoint says on one rank that it takes the process group that there is.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed")


@pytest.fixture(autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def small_config(smoke_config):
    return dataclasses.replace(
        smoke_config.model, num_layers=1, hidden_size=16, intermediate_size=24, vocab_size=50
    )


def prepare(config, *, seed=1):
    module = build_model(config)
    allocate(module, torch.device("cpu"))
    fill_random(module, seed=seed, std=0.02)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.1)


def take_step(module, optimizer):
    ids = torch.arange(40).remainder(50).view(2, 20)
    logits = compute_logits(module, ids, None)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def trained(small_config):
    module, optimizer = prepare(small_config)
    take_step(module, optimizer)
    take_step(module, optimizer)
    return module, optimizer


def flat_state(module, optimizer):
    tensors = [p.detach() for p in module.parameters()]
    for parameter in module.parameters():
        state = optimizer.state[parameter]
        tensors += [torch.as_tensor(state[key]) for key in sorted(state)]
    return [t.clone() for t in tensors]


def is_equal(ours, theirs):
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def test_model_and_optimizer_come_back_bit_for_bit(tmp_path, small_config, trained):
    module, optimizer = trained
    optimizer.param_groups[0]["lr"] = 3e-4
    path = save(tmp_path, step=2, module=module, optimizer=optimizer, extra={"epoch": [1, 0.5]})
    assert path == tmp_path / "step-00000002"
    other, other_optimizer = prepare(small_config, seed=9)
    facts = load(path, module=other, optimizer=other_optimizer)
    assert facts == {"epoch": [1, 0.5], "step": 2}
    assert is_equal(flat_state(other, other_optimizer), flat_state(module, optimizer))
    assert other_optimizer.param_groups[0]["lr"] == 3e-4
    take_step(module, optimizer)
    take_step(other, other_optimizer)
    assert is_equal(flat_state(other, other_optimizer), flat_state(module, optimizer))


def test_saving_changes_neither_model_nor_optimizer(tmp_path, trained):
    before = flat_state(*trained)
    save(tmp_path, step=2, module=trained[0], optimizer=trained[1], extra={})
    assert is_equal(flat_state(*trained), before)


def test_the_latest_save_is_the_highest_step_not_the_last_name(tmp_path, trained):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    for step in (9, 10, 123_456_789):
        save(tmp_path, step=step, module=trained[0], optimizer=trained[1], extra={})
    assert latest(tmp_path) == tmp_path / "step-123456789"


def test_a_half_written_save_is_never_the_latest(tmp_path, trained, monkeypatch):
    module, optimizer = trained
    whole = save(tmp_path, step=1, module=module, optimizer=optimizer, extra={})

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_publish", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, step=2, module=module, optimizer=optimizer, extra={})
    partial = tmp_path / "step-00000002.partial"
    assert list(partial.glob("*.distcp"))
    assert latest(tmp_path) == whole
    with pytest.raises(ConfigError, match="half-written"):
        load(partial, module=module, optimizer=optimizer)
    again = save(tmp_path, step=2, module=module, optimizer=optimizer, extra={})
    assert not partial.exists()
    assert latest(tmp_path) == again


def test_a_save_of_the_same_step_replaces_the_old_one(tmp_path, trained):
    module, optimizer = trained
    save(tmp_path, step=2, module=module, optimizer=optimizer, extra={"run": 1})
    path = save(tmp_path, step=2, module=module, optimizer=optimizer, extra={"run": 2})
    assert load(path, module=module, optimizer=optimizer)["run"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_another_world_size_is_refused_with_the_remedy(tmp_path, trained):
    path = save(tmp_path, step=2, module=trained[0], optimizer=trained[1], extra={})
    facts = json.loads((path / checkpoint.FACTS_FILE).read_text())
    (path / checkpoint.FACTS_FILE).write_text(json.dumps({**facts, "world_size": 4}))
    before = flat_state(*trained)
    with pytest.raises(ConfigError, match=r"saved by 4 rank.*has 1.*continue with gpus=4"):
        load(path, module=trained[0], optimizer=trained[1])
    assert is_equal(flat_state(*trained), before)


def test_another_format_version_is_refused(tmp_path, trained):
    path = save(tmp_path, step=2, module=trained[0], optimizer=trained[1], extra={})
    (path / checkpoint.FACTS_FILE).write_text(json.dumps({"format_version": 99}))
    with pytest.raises(ConfigError, match="format version 99, this harness reads 1"):
        load(path, module=trained[0], optimizer=trained[1])


def test_another_model_is_refused_by_parameter_name(tmp_path, small_config, trained):
    path = save(tmp_path, step=2, module=trained[0], optimizer=trained[1], extra={})
    module, optimizer = prepare(dataclasses.replace(small_config, intermediate_size=32))
    with pytest.raises(ConfigError, match=r"mlp\.\w+\.weight has the shape .*24.* and .*32"):
        load(path, module=module, optimizer=optimizer)
    assert not optimizer.state


@pytest.mark.parametrize("content", [None, "not json"])
def test_a_folder_that_is_no_save_is_refused(tmp_path, trained, content):
    if content is not None:
        (tmp_path / checkpoint.FACTS_FILE).write_text(content)
    with pytest.raises(ConfigError, match="not a save of this harness"):
        load(tmp_path, module=trained[0], optimizer=trained[1])


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path, trained):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"save .*step-00000002.*train.checkpoint_dir"):
        save(tmp_path / "file", step=2, module=trained[0], optimizer=trained[1], extra={})


def test_running_out_of_space_leaves_the_older_save_the_latest(tmp_path, trained):
    """A file size limit stands in for a full disk: writing fails half-way through a shard."""
    module, optimizer = trained
    whole = save(tmp_path, step=1, module=module, optimizer=optimizer, extra={})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(RecordError, match=r"save .*step-00000002"):
            save(tmp_path, step=2, module=module, optimizer=optimizer, extra={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert latest(tmp_path) == whole
