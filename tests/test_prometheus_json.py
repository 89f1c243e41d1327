import json
import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

T0 = 1773114089.943


def series(host, gpu, values, metric="DCGM_FI_DEV_POWER_USAGE", **more):
    """One series; ``values`` is one pair for a vector and a list of pairs for a matrix."""
    labels = {
        "__name__": metric,
        "Hostname": host,
        "UUID": f"GPU-{host}-{gpu}",
        "gpu": str(gpu),
        "instance": "10.0.0.1:9400",
        "modelName": "NVIDIA H100 80GB HBM3",
        "pod": "exporter-x",
        **more,
    }
    key = "value" if isinstance(values, tuple) else "values"
    return {"metric": labels, key: values}


def answer(result, kind="vector"):
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def read(tmp_path, document, **options):
    path = tmp_path / "query.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_a_vector_is_one_tick_and_indices_repeat_across_hosts(tmp_path):
    result = [series(h, g, (T0, f"{60 + g}.5")) for h in ("node-1", "node-2") for g in range(8)]
    stream, batch, account = read(tmp_path, answer(result))
    assert len(stream.gpus) == 16
    assert {gpu.host for gpu in stream.gpus} == {"node-1", "node-2"}
    assert batch.power_w.tolist() == [60.5 + g for g in range(8)] * 2
    assert (account.num_ticks, account.period_s, account.is_relative) == (1, None, False)
    assert account.format == "prometheus api json"


def test_a_matrix_is_sorted_by_time(tmp_path):
    one = series("n", 0, [[T0 + 30, "300"], [T0, "100"], [T0 + 15, "200"]])
    two = series("n", 1, [[T0, "101"], [T0 + 15, "201"], [T0 + 30, "301"]])
    _, batch, account = read(tmp_path, answer([one, two], "matrix"))
    assert batch.power_w.tolist() == [100.0, 101.0, 200.0, 201.0, 300.0, 301.0]
    assert account.period_s == 15.0
    assert account.num_ticks == 3


@pytest.mark.parametrize("join", ["list", "lines", "documents"])
def test_answers_of_several_metrics_are_joined_on_gpu_and_time(tmp_path, join):
    watts = answer(
        [series("n", g, [[T0, f"{300 + g}"], [T0 + 15, "310"]]) for g in (0, 1)], "matrix"
    )
    util = answer([series("n", 0, [[T0, "97"]], metric="DCGM_FI_DEV_GPU_UTIL")], "matrix")
    text = {
        "list": json.dumps([watts, util]),
        "lines": f"{json.dumps(watts)}\n{json.dumps(util)}\n",
        "documents": json.dumps(watts, indent=1) + json.dumps(util, indent=1),
    }[join]
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [300.0, 301.0, 310.0, 310.0]
    assert batch.utilization_pct[0] == 97.0
    assert all(math.isnan(value) for value in batch.utilization_pct[1:])
    assert account.columns["utilization"] == "DCGM_FI_DEV_GPU_UTIL"


def test_the_instance_is_the_host_where_nothing_else_names_one(tmp_path):
    labels = {"__name__": "nvidia_smi_power_draw_watts", "uuid": "u", "instance": "a:9835"}
    info = {"__name__": "nvidia_smi_gpu_info", "uuid": "u", "index": "2", "name": "NVIDIA L4"}
    result = [{"metric": labels, "value": [T0, "30.5"]}, {"metric": info, "value": [T0, "1"]}]
    stream, batch, _ = read(tmp_path, answer(result))
    gpu = stream.gpus[0]
    assert (gpu.host, gpu.index, gpu.name) == ("a:9835", 2, "NVIDIA L4")
    assert batch.power_w.tolist() == [30.5]


def test_an_error_is_refused_with_what_prometheus_said(tmp_path):
    said = {"status": "error", "errorType": "bad_data", "error": "parse error at char 7"}
    with pytest.raises(FormatError, match=r"bad_data: parse error at char 7; record a usable"):
        read(tmp_path, said)


def test_a_scalar_is_refused(tmp_path):
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [T0, "1"]}}
    with pytest.raises(FormatError, match="type scalar"):
        read(tmp_path, scalar)


def test_an_empty_answer_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no power metric"):
        read(tmp_path, answer([]))


def test_another_metric_is_refused_by_name(tmp_path):
    with pytest.raises(FormatError, match=r"no power metric .* among DCGM_FI_DEV_MEM_COPY_UTIL"):
        read(tmp_path, answer([series("n", 0, (T0, "5"), metric="DCGM_FI_DEV_MEM_COPY_UTIL")]))


def test_a_series_without_a_name_is_counted(tmp_path):
    nameless = series("n", 1, (T0, "5"))
    del nameless["metric"]["__name__"]
    _, batch, account = read(tmp_path, answer([series("n", 0, (T0, "100")), nameless]))
    assert batch.power_w.tolist() == [100.0]
    assert account.rows_dropped == {"series without __name__, so nobody knows of what": 1}


def test_a_document_that_is_cut_is_refused(tmp_path):
    text = json.dumps(answer([series("n", 0, (T0, "100"))]))
    with pytest.raises(FormatError, match="cut or damaged"):
        read(tmp_path, text[:-5])


def test_a_document_nested_too_deep_is_refused(tmp_path):
    with pytest.raises(FormatError, match=r"nested too deep|cut or damaged"):
        read(tmp_path, '{"resultType": ' + "[" * 200_000)


def test_answers_that_are_no_objects_are_refused(tmp_path):
    with pytest.raises(FormatError, match="no answer"):
        read(tmp_path, '[1, "resultType"]')


@pytest.mark.parametrize(
    "point",
    [None, [T0], [T0, 100], [True, "100"], ["x", "100"], [5e9, "100"], [T0, None], "100"],
)
def test_a_point_of_another_shape_is_dropped(tmp_path, point):
    good, bad = series("n", 0, [[T0, "100"]]), series("n", 1, [point])
    _, batch, account = read(tmp_path, answer([good, bad], "matrix"))
    assert batch.power_w.tolist() == [100.0]
    assert account.rows_dropped == {"point is no [time, value] pair": 1}


@pytest.mark.parametrize(
    "bad", [7, {"metric": 7}, {"metric": {"gpu": 0}}, {"metric": {}, "values": 3}]
)
def test_a_series_of_another_shape_is_dropped(tmp_path, bad):
    _, batch, account = read(tmp_path, answer([series("n", 0, (T0, "100")), bad]))
    assert batch.power_w.tolist() == [100.0]
    assert account.rows_dropped == {"series is not as the API writes it": 1}


def test_a_label_that_cannot_be_printed_is_made_printable(tmp_path):
    stream, _, _ = read(tmp_path, answer([series("n\ud800", 0, (T0, "100"))]))
    assert stream.gpus[0].host.encode() == b"n?"


def test_a_period_is_ignored_with_a_note(tmp_path):
    _, _, account = read(tmp_path, answer([series("n", 0, (T0, "100"))]), period_s=3.0)
    assert "--period is ignored: the points carry times" in account.notes
