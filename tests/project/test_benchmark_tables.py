"""The figures in the documentation are those of the result files."""

import fill_tables


def test_the_tables_are_those_of_the_results():
    page = fill_tables.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= 10
    assert fill_tables.filled(page) == page


def test_a_result_may_be_a_table_itself(tmp_path, monkeypatch):
    (tmp_path / "methods.json").write_text('{"columns": ["method", "fall"], "rows": [["a", "1"]]}')
    monkeypatch.setattr(fill_tables, "RESULTS", tmp_path)
    assert fill_tables.table("methods") == "| method | fall |\n| --- | --- |\n| a | 1 |"


def test_a_table_is_filled_from_its_file_and_what_stands_around_it_is_left(tmp_path, monkeypatch):
    (tmp_path / "speed.json").write_text(
        '{"checks": [{"name": "a|b", "bar": "2", "ours": "1", "passed": false, "detail": {}}]}'
    )
    monkeypatch.setattr(fill_tables, "RESULTS", tmp_path)
    page = fill_tables.filled("before\n<!-- speed -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- speed -->\n\n| check |")
    assert "| a\\|b | 2 | 1 | missed |" in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert fill_tables.filled(page) == page
