"""Paths of files as they stand in a repository."""

from stickytoken.findings import repository_path, repository_root


def test_the_root_is_the_nearest_folder_with_git(tmp_path):
    inner = tmp_path / "project" / "docs" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    assert repository_root(inner) == tmp_path / "project"


def test_a_work_tree_has_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / ".git").write_text("gitdir: elsewhere")
    assert repository_root(tmp_path) == tmp_path


def test_a_path_is_relative_with_slashes_or_none_outside(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    assert repository_path(root / "docs" / ".." / "runs" / "a.txt", root) == "runs/a.txt"
    assert repository_path(tmp_path / "other.txt", root) is None
    assert repository_path(root, root) is None


def test_a_link_out_of_the_repository_is_outside(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    assert repository_path(root / "link" / "a.txt", root) is None
