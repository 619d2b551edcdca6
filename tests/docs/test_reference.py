"""docs/reference.md says what the docstrings say."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dragoman import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The script. It is loaded by its path: some distributions install a package `docs`."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date(reference: ModuleType) -> None:
    assert reference.PAGE.read_text() == reference.page(), "run python docs/reference.py"


def test_the_page_of_settings_is_up_to_date(reference: ModuleType) -> None:
    page = reference.SETTINGS.read_text()
    assert page == reference.settings(), "run python docs/reference.py"
    assert all(f"| `{name}` | " in page for name in Settings.__struct_fields__)


def test_every_public_name_has_an_entry_and_a_docstring(reference: ModuleType) -> None:
    page = reference.PAGE.read_text()
    for package in reference.PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if not name.startswith("__"):
                assert f"\n### {package}.{name}\n" in page
                node = reference.definition(getattr(module, name))
                assert node is None or reference.doc(node), f"{package}.{name}"
