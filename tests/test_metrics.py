from importlib import resources

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.config import ModelConfig
from harness.errors import MetricError, RecordError
from harness.hardware import find_device, peak_flops
from harness.metrics import (
    MfuConvention,
    energy_from_counter,
    energy_j,
    energy_over_gaps,
    flops_per_token,
    gpu_hours_per_epoch,
    joules_per_token,
    mfu,
    num_parameters,
    scaling_efficiency,
    throughput_identity_error,
    tokens_per_second,
)
from harness.parse import parse

QWEN3_32B = 32_762_123_264


def load_model(name):
    text = (resources.files("experiments") / "model" / f"{name}.yaml").read_text()
    return parse(ModelConfig, yaml.safe_load(text))


def count_on_meta(model):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        tie_word_embeddings=model.tie_word_embeddings,
    )
    with torch.device("meta"):
        module = transformers.Qwen3ForCausalLM(config)
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", ["qwen3_tiny", "qwen3_0_6b", "qwen3_32b"])
def test_closed_form_of_parameters_equals_the_real_model_on_the_meta_device(name):
    model = load_model(name)
    assert num_parameters(model, embeddings=True) == count_on_meta(model)


def test_qwen3_32b_has_the_parameters_of_the_report():
    model = load_model("qwen3_32b")
    assert num_parameters(model, embeddings=True) == QWEN3_32B
    assert num_parameters(model, embeddings=False) == QWEN3_32B - 151_936 * 5_120


def test_a_tied_matrix_counts_once_and_stays_as_the_output_projection():
    model = load_model("qwen3_0_6b")
    assert model.tie_word_embeddings
    assert num_parameters(model, embeddings=True) == 596_049_920
    assert num_parameters(model, embeddings=False) == 596_049_920


def test_palm_adds_the_full_score_matrix_and_causal_half_of_it():
    model = load_model("qwen3_32b")
    attention = 12 * 64 * 64 * 128 * 2048
    palm = flops_per_token(model, 2048, MfuConvention.PALM, embeddings=True)
    causal = flops_per_token(model, 2048, MfuConvention.CAUSAL, embeddings=True)
    assert palm == 6 * QWEN3_32B + attention
    assert causal == 6 * QWEN3_32B + attention / 2


def test_attention_grows_with_the_sequence_and_the_rest_does_not():
    model = load_model("qwen3_tiny")
    at = {
        t: flops_per_token(model, t, MfuConvention.PALM, embeddings=False) for t in (256, 512, 1024)
    }
    assert at[1024] - at[512] == pytest.approx(2 * (at[512] - at[256]))


def test_mfu_of_the_report_at_16_gpus_is_what_its_throughput_implies():
    facts = find_device("NVIDIA B300 SXM6 AC")
    assert facts is not None
    peak = peak_flops(facts, "bf16")
    assert peak is not None
    flops = flops_per_token(load_model("qwen3_32b"), 2048, MfuConvention.PALM, embeddings=True)
    assert mfu(53_000, flops, peak.flops_per_s, 16) == pytest.approx(0.3084, abs=5e-4)


def test_mfu_above_one_is_an_error_that_names_its_inputs():
    with pytest.raises(MetricError, match=r"MFU 2\.000 exceeds 1.*1000 tokens/s.*4 x 500"):
        mfu(1000, 4.0, 500.0, 4)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_mfu_of_an_impossible_input_is_an_error_that_names_it(bad):
    with pytest.raises(MetricError, match="peak_flops_per_s"):
        mfu(1000, 4.0, bad, 4)


def test_a_sequence_length_of_zero_is_refused():
    with pytest.raises(MetricError, match="sequence_length=0"):
        flops_per_token(load_model("qwen3_tiny"), 0, MfuConvention.PALM, embeddings=True)


def test_throughput_is_all_tokens_over_all_seconds_not_tokens_over_the_mean_step():
    """Symptom elsewhere: volume of all steps over the mean latency of one, 50 times too high."""
    steps_s = [2.0] * 50
    assert tokens_per_second(40 * len(steps_s), sum(steps_s)) == 20.0


@given(tokens=st.integers(1, 10**9), step_s=st.floats(1e-3, 1e4))
def test_throughput_times_step_time_is_the_tokens_of_the_step(tokens, step_s):
    rate = tokens_per_second(tokens, step_s)
    assert throughput_identity_error(rate, step_s, tokens) < 1e-9
    assert throughput_identity_error(rate * 1.01, step_s, tokens) == pytest.approx(0.01)


def test_gpu_hours_of_the_report_follow_from_its_throughput():
    epoch = 3_854 * 262_144
    assert [round(gpu_hours_per_epoch(n, epoch, r), 1) for n, r in
            ((4, 13_400), (8, 26_700), (16, 53_000))] == [83.8, 84.1, 84.7]  # fmt: skip


def test_scaling_efficiency_is_one_on_the_ideal_line_and_at_the_base():
    assert scaling_efficiency(4000.0, 4, 1000.0, 1) == 1.0
    assert scaling_efficiency(13_400, 4, 13_400, 4) == 1.0
    assert scaling_efficiency(53_000, 16, 13_400, 4) == pytest.approx(0.98881, abs=1e-5)


def test_joules_per_token_divides_the_energy_of_all_gpus():
    assert joules_per_token(16 * 940.0, 53_000) == pytest.approx(0.28377, abs=1e-5)
    with pytest.raises(MetricError, match="tokens=0"):
        joules_per_token(1.0, 0)


@given(
    power=st.floats(0, 2000),
    steps=st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
)
def test_constant_power_integrates_to_power_times_time(power, steps):
    times = [0.0]
    for step in steps:
        times.append(times[-1] + step)
    assert energy_j(times, [power] * len(times)) == pytest.approx(power * times[-1])
    covered = energy_over_gaps(times, [power] * len(times), max_gap_s=1000.0)
    assert covered == (pytest.approx(power * times[-1]), pytest.approx(times[-1]))


def test_a_ramp_integrates_to_its_mean_times_time():
    assert energy_j([0.0, 1.0, 4.0], [0.0, 100.0, 400.0]) == 800.0


@pytest.mark.parametrize(
    ("times", "power", "message"),
    [
        ([0.0], [1.0], "1 samples"),
        ([], [], "0 samples"),
        ([0.0, 1.0], [1.0], "2 times and 1 values"),
        ([0.0, 0.0], [1.0, 1.0], "time 1"),
        ([1.0, 0.0], [1.0, 1.0], "time 1"),
        ([0.0, float("nan")], [1.0, 1.0], "time 1"),
        ([0.0, 1.0], [1.0, -1.0], "value 1"),
        ([0.0, 1.0], [float("inf"), 1.0], "value 0"),
    ],
)
def test_a_series_that_cannot_be_integrated_is_refused_with_the_place(times, power, message):
    with pytest.raises(RecordError, match=message):
        energy_j(times, power)


def test_a_gap_is_left_out_of_energy_and_of_time():
    energy = energy_over_gaps([0.0, 1.0, 11.0, 12.0], [100.0] * 4, max_gap_s=5.0)
    assert energy == (200.0, 2.0)


def test_a_missing_reading_is_bridged_only_within_the_longest_gap():
    times, power = [0.0, 1.0, 2.0], [100.0, None, 100.0]
    assert energy_over_gaps(times, power, max_gap_s=2.0) == (200.0, 2.0)
    assert energy_over_gaps(times, power, max_gap_s=1.5) == (0.0, 0.0)
    with pytest.raises(MetricError, match="max_gap_s"):
        energy_over_gaps(times, power, max_gap_s=0.0)


def test_a_counter_gives_its_rise_even_over_missing_readings():
    assert energy_from_counter([0.0, 1.0, 2.0], [500.0, None, 900.0]) == (400.0, 2.0)


def test_a_counter_that_falls_loses_only_that_interval():
    energy = energy_from_counter([0.0, 1.0, 2.0, 3.0], [500.0, 600.0, 10.0, 60.0])
    assert energy == (150.0, 2.0)


def test_a_counter_that_was_never_read_covers_nothing():
    assert energy_from_counter([0.0, 1.0], [None, None]) == (0.0, 0.0)
