"""Record fields are frozen and change only together with SCHEMA_VERSION; settings are listed.

Records of another schema version are not read, so after a wanted change of a record raise
SCHEMA_VERSION in harness/record/schema.py. A new setting leaves old records readable: it only needs
its line in the changelog. In both cases write the lists anew:
``python tests/test_schema_frozen.py > tests/data/schema_v<SCHEMA_VERSION>.json``.
"""

import dataclasses
import json
import typing
from pathlib import Path

from harness import samples
from harness.config import RunConfig
from harness.record import schema

FROZEN = Path(__file__).parent / "data" / f"schema_v{schema.SCHEMA_VERSION}.json"


def record_fields():
    """The fields of every record class with their types as written."""
    recorded = [samples.Gpm, samples.GpuSample, samples.HostSample]
    recorded += [
        cls
        for cls in vars(schema).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == schema.__name__
    ]
    return {
        cls.__name__: {field.name: str(field.type) for field in dataclasses.fields(cls)}
        for cls in recorded
    }


def config_keys(cls, prefix=""):
    """Every dotted setting with its type as written."""
    hints = typing.get_type_hints(cls)
    keys = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            keys |= config_keys(hints[field.name], f"{prefix}{field.name}.")
        else:
            keys[prefix + field.name] = str(field.type)
    return keys


def current():
    return {"records": record_fields(), "config": config_keys(RunConfig)}


def test_record_fields_change_only_with_the_schema_version():
    assert json.loads(FROZEN.read_text())["records"] == record_fields(), __doc__


def test_settings_change_only_on_purpose():
    assert json.loads(FROZEN.read_text())["config"] == config_keys(RunConfig), __doc__


if __name__ == "__main__":
    print(json.dumps(current(), indent=1))
