"""The built documentation, once for all tests of it."""

import pytest


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built strictly in a folder of its own."""
    pytest.importorskip("zensical", reason="zensical is not installed")
    import build

    folder = tmp_path_factory.mktemp("site")
    assert build.build(folder) == 0
    return folder / "docs"
