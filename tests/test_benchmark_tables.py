"""The figures in the documentation are those of the result files."""

import tables


def test_the_tables_are_those_of_the_results():
    page = tables.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= 10
    assert tables.filled(page) == page


def test_a_table_is_filled_from_its_file_and_what_stands_around_it_is_left(tmp_path, monkeypatch):
    (tmp_path / "speed.json").write_text(
        '{"checks": [{"name": "a|b", "bar": "2", "ours": "1", "passed": false, "detail": {}}]}'
    )
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = tables.filled("before\n<!-- speed -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- speed -->\n\n| check |")
    assert "| a\\|b | 2 | 1 | missed |" in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert tables.filled(page) == page
