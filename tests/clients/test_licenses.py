"""The license in the packages of the clients."""

from __future__ import annotations

import pytest

from tests.snippets import ROOT


@pytest.mark.parametrize("language", ["typescript", "go", "rust"])
def test_packages_hold_the_license_of_the_repository(language: str) -> None:
    # Packages hold files of their own folder alone; the one of Java takes the repository's.
    assert (ROOT / "clients" / language / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
