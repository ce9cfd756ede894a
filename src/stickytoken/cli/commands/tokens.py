"""stickytoken tokens: the vocabulary of a model, by what text can produce."""

from __future__ import annotations

from typing import Annotated

from stickytoken.cli._loading import command, silence_transformers
from stickytoken.cli.options.model import Model, Revision, TrustRemoteCode
from stickytoken.cli.options.output import Format, OutputFormat, VerbosityOptions, output_option
from stickytoken.cli.options.texts import InCategory
from stickytoken.cli.output.console import print_json, print_line, print_table, status

_MEANING = {
    "OK": "text can produce it",
    "OK_SPECIAL": "special, and text can produce it",
    "MEANINGLESS": "decodes to white space",
    "UNREACHABLE_SPECIAL": "special, and text cannot produce it",
    "UNDECODEABLE": "not valid UTF-8 by itself",
    "UNREACHABLE_SINGLE_TOKEN": "its text encodes to another token",
    "UNREACHABLE_MULTI_TOKEN": "its text encodes to several tokens",
}


@command
def tokens(
    model: Model,
    category: InCategory = None,
    limit: Annotated[int, output_option(min=1, help="Maximum number of tokens to list.")] = 50,
    *,
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """List the vocabulary entries that can appear in real text. Needs only the tokenizer, also tiktoken:NAME.

    Example: stickytoken tokens all-MiniLM-L6-v2 --category UNREACHABLE_MULTI_TOKEN
    """
    from stickytoken.encoders.endpoint.vocabulary import load_vocabulary
    from stickytoken.vocabulary import categorize

    silence_transformers()
    with status(f"reading the tokenizer of {model}"):
        tokenizer = load_vocabulary(model, revision=revision, trust_remote_code=trust_remote_code)
        vocabulary = categorize(tokenizer)
    counts, size, available = vocabulary.counts(), len(vocabulary), len(vocabulary.available)
    entries = vocabulary.frame().filter(category=category).head(limit).to_dicts() if category else []
    if output_format is Format.JSON:
        document = {"model": model, "vocab_size": size, "available": available, "categories": counts}
        print_json(document | ({"entries": entries} if category else {}))
        return
    rows = [(name, count, f"{count / max(1, size):.1%}", _MEANING[name]) for name, count in counts.items()]
    print_table(f"Vocabulary of {model}", ("category", "tokens", "share", "meaning"), rows)
    print_line(f"{available:,} of {size:,} tokens can appear in text.")
    if category:
        columns = ("token_id", "token", "decoded")
        title = f"First {len(entries):,} of {counts[category]:,} {category} tokens"
        print_table(title, ("id", *columns[1:]), [[entry[column] for column in columns] for entry in entries])
