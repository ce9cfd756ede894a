"""What an audit says: its answer, its conclusions, its limits and what to do."""

import json
import shutil

import polars as pl

import planted
import scanned
from audited import SMALL, with_verdicts, without_copies
from naming import says
from stickytoken.audits import audit, open_audit, wording


def test_places_are_counted_by_source_of_the_document(judged):
    assert set(judged.documents["source"]) == {"web", "manual"}
    assert (judged.documents["change"] > 0).any()
    (line,) = [
        line for line in wording.document_conclusions(judged) if line.startswith("By source of the document")
    ]
    for source, rows in judged.documents.group_by("source"):
        lost = rows["left"].list.len().sum()
        gained = rows["entered"].list.len().sum()
        assert says(line, f"{source[0]!r} {lost} lost, {gained} gained")


def with_changes(finished, **changes):
    """The audit with other changes in its documents, as `rank_documents` sorts them.

    A change is the number of top 10s that a document gains, or a pair: how many it enters, and how many it
    leaves.
    """
    changed = open_audit(finished.path)
    rows = changed.documents.to_dicts()
    for row, change in zip(rows, changes.values(), strict=True):
        entered, left = change if isinstance(change, tuple) else (max(change, 0), max(-change, 0))
        row["change"] = entered - left
        row["entered"] = [{"query": "in", "rank": 2, "rank_without": 30}] * entered
        row["left"] = [{"query": "out", "rank": 30, "rank_without": 2}] * left
    rows.sort(key=lambda row: (-abs(row["change"]), row["change"] > 0))
    changed.documents = pl.DataFrame(rows, changed.documents.schema)
    return changed


def test_losses_and_gains_are_counted_and_the_worst_is_named_first(finished):
    changed = with_changes(finished, first=2, second=-3, third=0, fourth=-1)
    (sentence,) = [line for line in wording.document_conclusions(changed) if line.startswith("In top 10s")]
    assert says(sentence, "2 lose 4", "1 gains 2")
    assert f": {changed.documents['id'][0]} (" in sentence
    assert changed.documents["change"].to_list() == [-3, 2, -1, 0]


def test_places_are_those_of_every_query_and_not_the_balance(finished):
    """The balance would contradict the counts by source, and leave out whoever wins as many."""
    changed = with_changes(finished, first=(1, 3), second=(2, 2), third=0, fourth=0)
    lines = wording.document_conclusions(changed)
    (sentence,) = [line for line in lines if line.startswith("In top 10s")]
    assert says(sentence, "2 lose 5", "2 gain 3")
    swapped = changed.documents["id"][1]
    assert swapped in sentence
    assert says(wording.answer(changed).sentence, "2 of")
    effects = [wording.effect(row) for row in changed.documents.to_dicts()]
    assert all(says(effect, "'out'", "2 more") for effect in effects[:2])
    assert all(says(effect, "same") for effect in effects[2:])


def test_the_largest_change_of_rank_is_named(finished):
    gaining = finished.documents.filter(pl.col("change") > 0).row(0, named=True)
    largest = gaining["entered"][0]
    sentence = " ".join(wording.document_conclusions(finished))
    assert says(sentence, largest["rank"], largest["rank_without"])
    assert largest["query"][:20] in sentence


def test_what_suspected_copies_change_is_said_too(finished):
    changed = with_changes(finished, first=2, second=0, third=0, fourth=0)
    changed.documents = changed.documents.with_columns(suspected_only=pl.lit(value=True))
    changed.result = changed.result.model_copy(update={"with_copies": 0, "suspected": 4})
    assert says(wording.document_conclusions(changed)[-1], "1 gains 2")


def test_documents_without_a_change_are_said_to_have_none(finished):
    unchanged = with_changes(finished, first=0, second=0, third=0, fourth=0)
    assert any(says(line, "None", "other queries") for line in wording.document_conclusions(unchanged))


def test_copies_that_are_not_read_are_named_as_harmless(finished):
    unread = open_audit(finished.path)
    is_first = pl.int_range(pl.len()) == 0
    unread.documents = unread.documents.with_columns(copies_read=~is_first)
    assert any(
        line.startswith("In 1 document (") and "change nothing" in line
        for line in wording.conclusions(unread)
    )


def test_suggested_commands_name_the_column(finished):
    named = open_audit(finished.path)
    named.record = named.record.model_copy(update={"column": "body"})
    commands = [step.command for step in wording.next_steps(named) if "repair" not in step.command]
    assert all("--column body" in command for command in commands)


def test_what_to_do_names_the_commands_with_this_audit(finished):
    repair, clean, check = [step.command for step in wording.next_steps(finished)]
    assert repair.startswith("stickytoken repair ")
    assert f"--audit {finished.path}" in clean
    assert clean.endswith("--rules-out rules.json")
    assert check.startswith("stickytoken check rules.json --documents ")


def test_without_copies_now_the_rules_are_saved_all_the_same(finished):
    unstuffed = open_audit(finished.path)
    unstuffed.result = unstuffed.result.model_copy(update={"with_copies": 0})
    _, clean, check = [step.command for step in wording.next_steps(unstuffed)]
    assert clean.split()[1:3] == ["clean", unstuffed.record.run]
    assert "--out " not in clean
    assert check.startswith("stickytoken check rules.json --documents ")


def test_without_a_sticky_token_the_largest_numbers_are_said(finished):
    benign = with_verdicts(finished)
    finding, pushing, hiding, rule = wording.token_conclusions(benign)
    assert says(finding, "No token", "sticky")
    assert f"{benign.tokens['push'].max():.2f}× (" in pushing
    assert f"{benign.tokens['found'].min():.0%} (" in hiding
    assert "1.5 times" in rule


def test_no_token_hides_most_where_all_hide_alike(finished):
    benign = with_verdicts(finished, found=pl.lit(1.0), found_low=pl.lit(0.9), found_high=pl.lit(1.0))
    _, _, hiding, _ = wording.token_conclusions(benign)
    assert says(hiding, "more than another", "100%")
    assert not any(repr(token) in hiding for token in benign.tokens["token"])


def test_the_answer_is_yes_for_copies_that_move_documents_whatever_the_token(finished):
    moved = finished.documents.filter(pl.col("change") != 0)
    assert len(moved) > 0
    for changed in (finished, with_verdicts(finished)):
        answer = wording.answer(changed)
        assert answer.word == "Yes"
        assert says(answer.sentence, len(moved), 80)


def test_the_answer_for_a_sticky_token_without_copies_is_its_harm(finished):
    answer = wording.answer(without_copies(open_audit(finished.path)))
    assert says(answer.word, "can be")
    assert answer.sentence == wording.conclusions(finished)[0]


def test_the_answer_is_no_with_the_largest_push(finished):
    benign = without_copies(with_verdicts(finished))
    answer = wording.answer(benign)
    assert (answer.word, answer.tone) == ("No", "clean")
    assert f"{benign.tokens['push'].max():.2f}× (" in answer.sentence


def test_the_answer_is_perhaps_if_a_token_may_hide_or_push(finished):
    uncertain = without_copies(with_verdicts(finished))
    uncertain.tokens = uncertain.tokens.with_columns(undecided=pl.int_range(pl.len()) == 0)
    answer = wording.answer(uncertain)
    assert answer.word == "Perhaps"
    documents = uncertain.tokens["documents"][0]
    assert documents > SMALL.stuffed  # it may push, so that it was measured in more
    assert says(answer.sentence, "hide", "push", f"stuffed={4 * documents}")


def test_what_random_tokens_do_is_said_only_if_one_was_measured(finished):
    unmeasured = with_verdicts(finished)
    assert says(wording.setup(unmeasured), "without copies", "with copies of a random token")
    unmeasured.result = unmeasured.result.model_copy(update={"ordinary_found": None})
    assert says(wording.setup(unmeasured), "without copies")
    assert not says(wording.setup(unmeasured), "with copies of a random token")


def test_first_sentences_as_queries_are_a_limit(tampered_run, texts, finished, tmp_path):
    measured = audit(tampered_run, texts, settings=SMALL, out=tmp_path / "audit")
    assert says(wording.limits(measured)[-1], "--queries")
    assert not any("--queries" in limit for limit in wording.limits(finished))


def test_a_token_that_may_push_is_named_with_what_to_do(finished):
    uncertain = with_verdicts(finished)
    is_first = pl.int_range(pl.len()) == 0
    uncertain.tokens = uncertain.tokens.with_columns(undecided=is_first)
    named = wording.token_conclusions(uncertain)[0]
    assert repr(scanned.STICKY) in named
    assert f"--set stuffed={4 * uncertain.tokens['documents'][0]}" in named


def test_where_no_document_is_left_others_are_asked_for(finished):
    uncertain = with_verdicts(finished)
    all_documents = finished.record.index.documents
    is_first = pl.int_range(pl.len()) == 0
    uncertain.tokens = uncertain.tokens.with_columns(undecided=is_first, documents=pl.lit(all_documents))
    named = wording.token_conclusions(uncertain)[0]
    assert "--set" not in named
    assert says(named, "documents", "queries")


def test_a_model_without_flagged_tokens_need_not_be_repaired(finished):
    clean = with_verdicts(finished, group=pl.lit("random"))
    assert "repair" not in [step.command.split()[1] for step in wording.next_steps(clean)]


def test_flagged_tokens_that_are_benign_here_may_still_be_repaired(finished):
    clean = with_verdicts(finished, group=pl.lit("flagged"))
    assert wording.next_steps(clean)[-1].command.startswith("stickytoken repair ")


def test_a_model_that_cannot_be_repaired_is_not_to_be_repaired(tampered_run, texts, queries, tmp_path):
    path = shutil.copytree(tampered_run, tmp_path / "run")
    model = json.loads((path / "run.json").read_text("utf-8"))["model"]
    planted.edit_record(path, model=model | {"loading": {"endpoint": {}}})
    encoder = tampered_run.parent / "model"
    measured = audit(path, texts, queries=queries, encoder=encoder, settings=SMALL, out=tmp_path / "audit")
    assert not measured.sticky.is_empty()
    assert [step.command.split()[1] for step in wording.next_steps(measured)] == ["clean", "check"]


def test_what_a_sample_lacks_is_not_counted_in_the_whole_collection(finished):
    """More documents of the collection have copies than the sample of it has documents."""
    uncertain = with_verdicts(finished)
    is_first = pl.int_range(pl.len()) == 0
    index = uncertain.record.index.model_copy(update={"read": 9000})
    uncertain.record = uncertain.record.model_copy(update={"index": index})
    uncertain.result = uncertain.result.model_copy(update={"with_copies": 900})

    def advise(documents):
        uncertain.tokens = uncertain.tokens.with_columns(undecided=is_first, documents=pl.lit(documents))
        return wording.token_conclusions(uncertain)[0]

    stuffed = SMALL.stuffed
    for documents in (stuffed, 4 * stuffed):
        assert f"--set stuffed={4 * documents}" in advise(documents)
    for documents in (stuffed - 1, 4 * stuffed - 1):  # all that the sample has
        assert "--set" not in advise(documents)


def test_duplicates_are_not_counted_as_documents_that_are_left(finished):
    uncertain = with_verdicts(finished)
    is_first = pl.int_range(pl.len()) == 0
    for documents, are_left in ((SMALL.stuffed - 1, False), (SMALL.stuffed, True)):
        assert documents < finished.record.index.documents
        uncertain.tokens = uncertain.tokens.with_columns(undecided=is_first, documents=pl.lit(documents))
        assert ("--set" in wording.token_conclusions(uncertain)[0]) is are_left


def test_documents_that_were_not_ranked_are_counted(finished):
    changed = with_changes(finished, first=0, second=0, third=0, fourth=0)
    assert not any("ranked" in line for line in wording.document_conclusions(changed))
    change = pl.when(pl.int_range(pl.len()) == 0).then("change")
    changed.documents = changed.documents.with_columns(change=change)
    lines = wording.document_conclusions(changed)
    assert any(says(line, "None of the 1 that") for line in lines)
    assert says(lines[-1], "3 documents were not ranked")
    assert wording.answer(changed).word == "Perhaps now, and it can be"
    benign = changed.tokens.with_columns(verdict=pl.lit("benign"), undecided=pl.lit(value=False))
    changed.tokens = benign
    assert wording.answer(changed) == ("Perhaps", lines[-1], "mild")
    changed.documents = pl.concat([changed.documents] * 200)
    assert says(wording.document_conclusions(changed)[-1], "600 documents were not ranked", "500")
