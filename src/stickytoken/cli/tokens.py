"""stickytoken tokens: what the vocabulary entries of a model are."""

from __future__ import annotations

from typing import Annotated

import typer

from stickytoken.cli.categories import known_category
from stickytoken.cli.errors import reported
from stickytoken.cli.options import Format, Model, OutputFormat, Revision, TrustRemoteCode
from stickytoken.cli.output import print_json, print_table, say, status
from stickytoken.cli.quiet import quiet_libraries


@reported
def tokens(
    model: Model,
    category: Annotated[
        str | None, typer.Option(help="List the entries of one category.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries to list.")] = 50,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Say which vocabulary entries text can reach. A tokenizer without weights is enough.

    Example: stickytoken tokens all-MiniLM-L6-v2 --category UNREACHABLE_MULTI_TOKEN
    """
    from stickytoken.encoders import analyze_vocabulary, load_tokenizer
    from stickytoken.vocabulary.categories import Category

    category = known_category(category)
    quiet_libraries()
    with status(f"reading the tokenizer of {model}"):
        vocabulary = analyze_vocabulary(
            load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
        )
    counts = vocabulary.counts()
    entries = vocabulary.frame().filter(category=category).head(limit).to_dicts() if category else []
    if output_format is Format.JSON:
        document = {
            "model": model,
            "vocab_size": len(vocabulary),
            "available": len(vocabulary.available),
            "categories": counts,
        }
        print_json(document | ({"entries": entries} if category else {}))
        return
    size = len(vocabulary)
    print_table(
        f"Vocabulary of {model}",
        ("category", "entries", "share", "meaning"),
        [
            (each.value, counts[each.value], f"{counts[each.value] / size:.1%}", _MEANING[each.value])
            for each in Category
        ],
    )
    say(f"{len(vocabulary.available):,} of {size:,} entries can occur in text.")
    if category:
        columns = ("token_id", "token", "decoded")
        print_table(
            f"First {len(entries)} of {counts[category]} {category}",
            columns,
            [[entry[column] for column in columns] for entry in entries],
        )


_MEANING = {
    "OK": "text can produce it",
    "OK_SPECIAL": "a special token that text can produce",
    "MEANINGLESS": "decodes to white space",
    "UNREACHABLE_SPECIAL": "looks special, text does not produce it",
    "UNDECODEABLE": "not valid UTF-8 by itself",
    "UNREACHABLE_SINGLE_TOKEN": "its text encodes to another entry",
    "UNREACHABLE_MULTI_TOKEN": "its text encodes to several entries",
}
