"""Errors for people."""

from harness.errors import HarnessError, MissingExtraError


def test_a_missing_extra_is_one_line_that_says_what_to_install():
    error = MissingExtraError("torch", "train")
    assert isinstance(error, HarnessError)
    assert str(error) == "torch is not installed; pip install 'wattline[train]'"
    assert (error.package, error.extra) == ("torch", "train")
