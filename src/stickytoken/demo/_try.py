"""The tab that shows what copies of a token do to two sentences, compared with benign tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from string import ascii_uppercase
from typing import Any

import gradio as gr
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from stickytoken.demo import _components as ui, context as shared
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.insertion import Placement, Token, TokenizedText, copies_as_ids, draw_path
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import Band, DataTable, ReportFigure
from stickytoken.reports.templating import cosine
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import visible
from stickytoken.words import counted

Matrix = NDArray[np.float64]
Ids = tuple[int, ...]

_SEED = 42
# Combined with the seed to draw random places for the copies.
_PLACES_KEY = 0
# Numbers of copies in the curve, in addition to 0 and to the number that the visitor asked for.
_CURVE_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Number of benign tokens to compare a token with.
_BENIGN = 4
_PLACEMENTS = {
    Placement.PREFIX: "before sentence B",
    Placement.SUFFIX: "after sentence B",
    Placement.RANDOM: "between the words of sentence B",
}
_PLACEMENT_CHOICES = [
    ("before (prefix)", "prefix"),
    ("after (suffix)", "suffix"),
    ("between words (random)", "random"),
]
_SENTENCES = ("Sentence A, which stays as it is", "Sentence B, which gets the copies")
_NAMING = "as in the vocabulary, or # and its id"
_LISTED = "flagged tokens, then the strongest others"
_LOADING = "{model} is being loaded; a worked example follows in a few seconds. Explore is ready."


def try_tab(startup: shared.Startup, page: gr.Blocks) -> None:
    """Add the components and events of the tab where a visitor tries a token on two sentences.

    When the model has been loaded, the form is unlocked and filled in with the worked example, and the answer
    for the example is shown. The answer is computed once for all visitors.
    """
    sentence_fields = ui.text_fields(*_SENTENCES)
    with gr.Row():
        token_field = gr.Textbox(
            label="Token", info=_NAMING, elem_id="try-token", min_width=180, interactive=False
        )
        listed_token_field = gr.Dropdown(
            [], value=None, label="From the run", info=_LISTED, min_width=180, interactive=False
        )
        placement_field = gr.Radio(
            _PLACEMENT_CHOICES, value="suffix", label="Where the copies go", min_width=220, interactive=False
        )
        # Not a slider, because Gradio's sliders silently change a number outside their range.
        copies_field = gr.Number(
            minimum=1, maximum=shared.COPIES, step=1, label="Copies", info=f"1 to {shared.COPIES}",
            min_width=150, interactive=False,
        )  # fmt: skip
    button = gr.Button("Show what happens", variant="primary", interactive=False)
    answer = gr.HTML(ui.message(_LOADING.format(model=visible(startup.model_name))), elem_id="try-answer")
    inputs = [*sentence_fields, token_field, placement_field, copies_field]
    outputs = [answer, *ui.add_figure_slots(2), gr.HTML("", elem_id="try-sentences")]

    def respond(
        anchor: object, carrier: object, token_name: object, placement: object, copies: object
    ) -> list[Any]:
        context = startup.context()
        question = _check_question(context, anchor, carrier, token_name, placement, copies)
        return _answer(context, question)

    answer_or_error = ui.show_errors(respond, _replace_answer)

    def respond_to_listed(
        anchor: object, carrier: object, token_id: object, placement: object, copies: object
    ) -> list[Any]:
        """Return the name of the chosen token for `token_field`, and the answer for it."""
        if token_id is None:  # the visitor has cleared the field
            return [gr.skip()] * (1 + len(outputs))
        token_name = startup.context().model.name_of(shared.check_token_id(token_id))
        return [token_name, *answer_or_error(anchor, carrier, token_name, placement, copies)]

    # Every visitor sees the same example first, so it is computed once, when the model has loaded.
    first_example = ui.Once()
    form = [*inputs, listed_token_field, button]

    def show_first_example() -> list[Any]:
        return first_example.get(lambda: _fill_form(startup.context()))

    def leave_locked(error: str) -> list[Any]:
        unchanged_form = [gr.skip()] * len(form)
        return [*unchanged_form, *_replace_answer(error)]

    example_or_error = ui.show_errors(show_first_example, leave_locked)
    page.load(example_or_error, None, [*form, *outputs], **ui.STARTUP_QUEUE)
    submits = [token_field.submit, *(field.submit for field in sentence_fields), copies_field.submit]
    triggers = [button.click, *submits, placement_field.input]
    gr.on(triggers, answer_or_error, inputs, outputs, **ui.MODEL_QUEUE)
    listed_inputs = [*sentence_fields, listed_token_field, placement_field, copies_field]
    listed_answer_or_error = ui.show_errors(
        respond_to_listed, lambda error: [gr.skip(), *_replace_answer(error)]
    )
    listed_token_field.input(listed_answer_or_error, listed_inputs, [token_field, *outputs], **ui.MODEL_QUEUE)


def _replace_answer(error: str) -> list[Any]:
    no_figures = [None, None]
    return [error, *ui.fill_slots(no_figures), ""]


def _fill_form(context: shared.AppContext) -> list[Any]:
    """Return values for the components of ``form`` and ``outputs`` in `try_tab`.

    The values of ``form`` unlock it and fill in the example; those of ``outputs`` show the answer for the
    example.
    """
    example = shared.make_worked_example(context)
    token_name = context.model.name_of(example.token_id)
    values = (example.anchor, example.carrier, token_name, Placement.SUFFIX.value, example.copies)
    try:
        outputs = _answer(context, _check_question(context, *values), example.why)
    except StickyTokenError as error:
        outputs = _replace_answer(ui.message(str(error)))
    choices = [
        (f"{context.model.shown_name(token_id)}: {verdict}", token_id)
        for token_id, verdict in shared.list_tokens(context.content)
    ]
    info = _LISTED if choices else "no run of this model is open"
    filled_fields = [gr.update(value=value, interactive=True) for value in values]
    listed_tokens = gr.update(choices=choices, info=info, interactive=bool(choices))
    unlocked_button = gr.update(interactive=True)
    return [*filled_fields, listed_tokens, unlocked_button, *outputs]


@dataclass(frozen=True)
class _Question:
    """What a visitor asks about a token.

    Attributes:
        anchor: Sentence A, which stays as it is.
        carrier: Sentence B, which gets the copies.
        token: The token to insert.
        placement: Where the copies are inserted.
        copies: Number of copies to insert.
    """

    anchor: str
    carrier: str
    token: Token
    placement: Placement
    copies: int


def _check_question(
    context: shared.AppContext,
    anchor: object,
    carrier: object,
    token_name: object,
    placement: object,
    copies: object,
) -> _Question:
    return _Question(
        anchor=shared.check_text("sentence A", anchor),
        carrier=shared.check_text("sentence B", carrier),
        placement=shared.check_placement(placement),
        copies=shared.check_count("the number of copies", copies, 1, shared.COPIES),
        token=shared.named_token(context.model.vocabulary, token_name),
    )


@dataclass(frozen=True)
class Trial:
    """How similar sentences are after copies of a token, or of benign tokens, are inserted into them.

    Attributes:
        token: The visitor's token.
        placement: Where the copies were inserted.
        copies: Number of copies that the visitor asked for, at least 1.
        benign: Benign tokens for comparison. The heat map shows only the first benign token.
        counts: Numbers of copies on the curves, in ascending order. The first number is 0.
        curves: Similarity of sentences A and B, shape (tokens, counts). The first row belongs to the
            visitor's token, and each further row to a benign token.
        names: Letters that name the sentences of the heat map. A and B are the visitor's sentences. Sentences
            that are too long for the model once the copies are inserted are left out.
        texts: The sentences of the heat map, in the order of ``names``.
        heat: Matrices of similarities, each of shape (sentences, sentences). A column belongs to a sentence
            without copies. A row belongs to a sentence without copies in the first matrix, with copies of the
            token in the second, and with copies of the first benign token in the third. The third matrix is
            left out if there are no benign tokens.
    """

    token: Token
    placement: Placement
    copies: int
    benign: tuple[Token, ...]
    counts: list[int]
    curves: Matrix
    names: list[str]
    texts: list[str]
    heat: list[Matrix]

    def similarities(self, copies: int) -> list[float]:
        """Return, for each token, the similarity of the two sentences with the given number of copies."""
        return [float(value) for value in self.curves[:, self.counts.index(copies)]]


def _answer(context: shared.AppContext, question: _Question, why: str = "") -> list[Any]:
    """Measure what a visitor asks about, and return the outputs that show the answer."""
    token = question.token
    benign = context.model.choose_benign(token.id, context.run, _BENIGN)
    sentences = [question.anchor, question.carrier]
    # The heat map shows further sentences.
    sentences += [text for text in shared.other_sentences(context) if text not in sentences]
    with context.model.encoder() as encoder:
        trial = try_token(encoder, sentences, token, benign, question.placement, question.copies)
    name = context.model.shown_name(token.id)
    benign_names = [context.model.shown_name(benign_token.id) for benign_token in benign]
    answer = ui.render(
        "answer.html.j2",
        said=describe_trial(trial, name),
        name=name,
        token_id=token.id,
        verdict=context.verdict_of(token.id),
        copies=question.copies,
        where=_PLACEMENTS[question.placement],
        benign=benign_names,
        why=why,
    )
    curve = similarity_curve(trial, name, benign_names)
    heatmap = pair_heatmap(trial, name, benign_names[0] if benign_names else "")
    rows = list(zip(trial.names, trial.texts, strict=True))
    sentence_table = ui.table("Sentences of the heat-map", DataTable(("sentence", "text"), rows))
    return [answer, *ui.fill_slots((curve, heatmap)), sentence_table]


def try_token(
    encoder: IdReader,
    texts: list[str],
    token: Token,
    benign: tuple[Token, ...],
    placement: Placement,
    copies: int,
) -> Trial:
    """Measure how similar sentences are after copies of a token are inserted.

    For comparison, copies of benign tokens are inserted at the same places.

    Args:
        encoder: The model.
        texts: Sentence A, sentence B, and further sentences for the heat map.
        token: The visitor's token.
        benign: Benign tokens to compare the token with.
        placement: Where the copies are inserted.
        copies: Number of copies to insert into each sentence of the heat map. The curves also show other
            numbers of copies.

    Returns:
        The similarities for the curves and for the heat map.

    Raises:
        InputError: Sentence A or B has no tokens, or is too long for the model.
    """
    tokenized = encoder.tokenize(texts)
    anchor = tokenized[0]
    carrier = tokenized[1]

    def fits(text: TokenizedText, count: int) -> bool:
        # Where the copies are makes no difference, and copies of benign tokens take the same room.
        return encoder.fits((*text.ids, *(token.id,) * count))

    _require_fitting(encoder, anchor, carrier, copies, fits)
    wanted_counts = sorted({0, copies, *_CURVE_COPIES})
    # Up to `copies`, all numbers fit.
    counts = [count for count in wanted_counts if count <= copies or fits(carrier, count)]
    # Indices of the sentences in the heat map.
    fitting = [index for index, text in enumerate(tokenized) if text.words and fits(text, copies)]
    # With random places, a path lists the gap between two words into which each copy goes. Fewer copies go
    # into the first gaps of the path, so one for the largest number of copies serves every number.
    path_length = max(copies, _CURVE_COPIES[-1])

    def with_copies(inserted: Token, count: int, sentence: int) -> Ids:
        """Return the ids of the sentence with the index ``sentence``, after copies are inserted."""
        text = tokenized[sentence]
        if count == 0:
            return text.ids
        path: tuple[int, ...] = ()
        if placement is Placement.RANDOM:
            # The places depend on the sentence and not on the token, so all tokens are inserted in the same
            # places.
            generator = np.random.default_rng([_SEED, _PLACES_KEY, sentence, 0])
            path = draw_path(partial(generator.integers, endpoint=True), len(text.words), path_length)
        return copies_as_ids(inserted, text, placement, count, path)

    def all_with_copies(inserted: Token) -> list[Ids]:
        return [with_copies(inserted, copies, sentence) for sentence in fitting]

    sentence_b = 1
    curve_inputs: list[Ids] = []
    for inserted in (token, *benign):
        curve_inputs += [with_copies(inserted, count, sentence_b) for count in counts]
    plain_inputs = [tokenized[sentence].ids for sentence in fitting]
    heat_inputs = [all_with_copies(inserted) for inserted in (token, *benign[:1])]
    anchor_units, curve_units, plain_units, *heat_units = _encode_in_one_call(
        encoder, [[anchor.ids], curve_inputs, plain_inputs, *heat_inputs]
    )
    return Trial(
        token=token,
        placement=placement,
        copies=copies,
        benign=benign,
        counts=counts,
        curves=(curve_units @ anchor_units[0]).reshape(1 + len(benign), len(counts)),
        names=[ascii_uppercase[sentence] for sentence in fitting],
        texts=[texts[sentence] for sentence in fitting],
        heat=[row_units @ plain_units.T for row_units in (plain_units, *heat_units)],
    )


def _encode_in_one_call(encoder: IdReader, groups: Sequence[Sequence[Ids]]) -> list[Matrix]:
    """Return the unit vectors of each group of inputs, shape (inputs, D). The model is called only once."""
    units = exact_unit_vectors(encoder.encode_ids(list(chain.from_iterable(groups))))
    group_ends = np.cumsum([len(inputs) for inputs in groups])
    return np.split(units, group_ends[:-1])


def _require_fitting(
    encoder: IdReader,
    anchor: TokenizedText,
    carrier: TokenizedText,
    copies: int,
    fits: Callable[[TokenizedText, int], bool],
) -> None:
    """Raise an InputError unless the model can read sentence A, and sentence B with the copies.

    ``fits`` returns whether the model can read a text with a number of copies.
    """
    for name, text in (("sentence A", anchor), ("sentence B", carrier)):
        if not text.words:
            raise InputError(f"{name} has no tokens that {encoder.name} knows: write a text with words")
    for name, text in (("sentence B", carrier), ("sentence A", anchor)):
        if not fits(text, 0):
            raise InputError(
                f"{name} has {len(text.ids)} tokens, more than {encoder.name} can read "
                f"({encoder.max_length} including special tokens): shorten it"
            )
    if not fits(carrier, copies):
        raise InputError(
            f"sentence B with {copies} copies of the token has {len(carrier.ids) + copies} tokens, more than "
            f"{encoder.name} can read ({encoder.max_length} including special tokens): shorten it or use "
            "fewer copies"
        )


def describe_trial(trial: Trial, token_name: str) -> str:
    """Describe how copies change the similarity of the two sentences, compared with benign tokens."""
    copies = trial.copies
    after, *benign_similarities = trial.similarities(copies)
    change = counted(copies, f"copy of {token_name} changes", f"copies of {token_name} change")
    before = trial.similarities(0)[0]  # the same for all tokens
    text = f"{change} the similarity of the two sentences from {cosine(before, 3)} to {cosine(after, 3)}"
    if not benign_similarities:
        return f"{text}."
    benign_mean = cosine(float(np.mean(benign_similarities)), 3)
    low = min(benign_similarities)
    high = max(benign_similarities)
    text += f"; the same number of copies of {len(benign_similarities)} matched benign"
    if len(benign_similarities) == 1:
        return f"{text} token to {benign_mean}."
    where = "within" if low <= after <= high else "outside"
    return (
        f"{text} tokens to {benign_mean} on average ({cosine(low, 3)} to {cosine(high, 3)}): it is {where} "
        "their range."
    )


# Numbers of copies that label the axis of the curve, in addition to the number that the visitor asked for.
_TICKS = (0, 1, 2, 4, 8, 16, 32)


def similarity_curve(trial: Trial, token_name: str, benign_names: list[str]) -> ReportFigure:
    """Draw the similarity of the two sentences as a function of the number of copies.

    Args:
        trial: The result of `try_token`.
        token_name: Name of the token.
        benign_names: Names of the benign tokens.
    """
    names = (token_name, *(f"{name} (benign)" for name in benign_names))
    return ReportFigure(
        "similarity-curve",
        "Similarity of the two sentences",
        _draw_curve(trial, token_name),
        describe_trial(trial, token_name),
        "The similarity of the two sentences as copies of the token are added to sentence B; the thin line "
        "marks the number chosen. Green: the mean and the range of matched benign tokens. "
        "Copies of any token make sentences that say the same less similar; those of a token that hides "
        "documents do so more. Other sentences may become more or less similar. One pair proves nothing.",
        DataTable(
            ("token", *(f"{count} copies" for count in trial.counts)),
            [(name, *line) for name, line in zip(names, trial.curves.tolist(), strict=True)],
        ),
    )


def _draw_curve(trial: Trial, token_name: str) -> go.Figure:
    """Draw the token's curve and the benign tokens' band."""
    counts = trial.counts
    positions = np.log2(np.array(counts) + 1.0).tolist()  # a logarithm that is defined for no copies, too
    figure = fig.new_figure(height=380)
    benign_curves = trial.curves[1:]
    if len(benign_curves):
        fig.draw_ordinary(
            figure,
            positions,
            Band.of(benign_curves),
            customdata=counts,
            name=f"{len(benign_curves)} benign tokens: mean and range",
            hovertemplate="benign tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
        )
    sizes = [11 if count == trial.copies else 6 for count in counts]  # larger at the number chosen
    curve: dict[str, Any] = {
        "type": "scatter",
        "x": positions,
        "y": np.round(trial.curves[0], 5).tolist(),
        "customdata": counts,
        "mode": "lines+markers",
        "line": {"color": fig.STICKY, "width": 2.5},
        "marker": {"size": sizes, "symbol": "diamond"},
        "name": fig.label(token_name),
        "hovertemplate": f"{fig.label(token_name)}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
    }
    figure.add_trace(curve)
    figure.add_vline(x=positions[counts.index(trial.copies)], line=fig.THIN_LINE)
    ticks = [str(count) if count in (*_TICKS, trial.copies) else "" for count in counts]
    figure.update_xaxes(title_text="copies in sentence B", tickvals=positions, ticktext=ticks, zeroline=False)
    figure.update_yaxes(title_text="cosine similarity to sentence A", zeroline=False)
    figure.update_layout(legend={"y": -0.22, "yanchor": "top"}, margin={"t": 12}, hovermode="closest")
    return figure


def pair_heatmap(trial: Trial, token_name: str, benign_name: str = "") -> ReportFigure:
    """Draw a heat map of the similarities between all sentences.

    There is a panel without copies, one with copies of the token, and one with copies of a benign token.

    Args:
        trial: The result of `try_token`.
        token_name: Name of the token.
        benign_name: Name of the benign token; empty if there is none.
    """
    headings = ["mean similarity to the other sentences, without copies"]
    headings += [f"with {trial.copies} × {name}" for name in (token_name, benign_name)]
    off_diagonals = [_drop_diagonal(matrix) for matrix in trial.heat]
    rows = []
    for row, (name, text) in enumerate(zip(trial.names, trial.texts, strict=True)):
        # With a single sentence, which has no other sentence to be similar to, the matrices are empty.
        averages = [float(matrix[row].mean()) if matrix.size else None for matrix in off_diagonals]
        rows.append((name, text, *averages))
    plot = _draw_heatmap(trial, off_diagonals, token_name, benign_name)
    # A narrow screen has no room for the colour scale, and every cell shows its number anyway.
    narrow = fig.stack_panels(plot, panels=len(trial.heat), height=350 * len(trial.heat)) | {
        "coloraxis.showscale": False
    }
    return ReportFigure(
        "pair-heatmap",
        "All pairs",
        plot,
        _describe_heatmap(trial, off_diagonals),
        "Rows are sentences with the copies, columns are sentences without. Copies of a sticky token make "
        "all rows similar: unrelated pairs become brighter, and a sentence becomes less similar to its own "
        "original (the diagonal).",
        DataTable(("sentence", "text", *headings[: len(trial.heat)]), rows),  # a benign token may be missing
        narrow,
    )


def _drop_diagonal(matrix: Matrix) -> Matrix:
    # The result has the shape (n, n - 1): each row without the similarity of its sentence to itself.
    size = len(matrix)
    is_other_sentence = ~np.eye(size, dtype=bool)
    return matrix[is_other_sentence].reshape(size, size - 1)


def _describe_heatmap(trial: Trial, off_diagonals: Sequence[Matrix]) -> str:
    """Describe the matrices of a trial, of which ``off_diagonals`` has the rows without the diagonal."""
    text = ""
    if len(trial.names) > 1:
        names = ("without copies", "with copies of the token", "with copies of the benign token")
        # Without benign tokens, there are only two matrices.
        means = [f"{name} {matrix.mean():.3f}" for name, matrix in zip(names, off_diagonals, strict=False)]
        text = f"Mean similarity of different sentences: {', '.join(means)}. "
    with_copies = trial.heat[1:]  # their diagonals compare each sentence with its original
    to_originals = ", ".join(f"{np.diag(matrix).mean():.3f}" for matrix in with_copies)
    return f"{text}Mean similarity of a sentence with copies to its original: {to_originals}."


def _draw_heatmap(
    trial: Trial, off_diagonals: Sequence[Matrix], token_name: str, benign_name: str
) -> go.Figure:
    """Draw a panel for each matrix of the trial, with the number in every cell."""
    titles = [
        "without copies",
        f"{trial.copies} × {fig.label(token_name)}",
        f"{trial.copies} × {fig.label(benign_name)} (benign)",
    ]
    plot = fig.new_panels(titles[: len(trial.heat)], height=410, spacing=0.03, same_scale=True)
    for panel, matrix in enumerate(trial.heat, start=1):
        heatmap: dict[str, Any] = {
            "type": "heatmap",
            "z": np.round(matrix, 3).tolist(),
            "x": trial.names,
            "y": trial.names,
            "coloraxis": "coloraxis",
            "texttemplate": "%{z:.2f}",
            "textfont": {"size": 11},
            "hovertemplate": "copies in %{y}, compared with %{x}: %{z:.3f}<extra></extra>",
        }
        plot.add_trace(heatmap, row=1, col=panel)
    plot.update_yaxes(autorange="reversed", showgrid=False)
    plot.update_xaxes(showgrid=False)
    plot.update_yaxes(title_text="sentence with the copies", col=1)
    # The colour scale ignores the similarity of a sentence to itself, which is always the highest.
    filled = [matrix for matrix in off_diagonals if matrix.size]  # none if there is a single sentence
    low = min((float(matrix.min()) for matrix in filled), default=0.0)
    high = max((float(matrix.max()) for matrix in filled), default=1.0)
    color_axis = {
        "colorscale": "Cividis",
        "cmin": min(0.0, low),
        "cmax": high,
        "colorbar": {"title": {"text": "cosine"}, "thickness": 12, "len": 0.9},
    }
    plot.update_layout(coloraxis=color_axis, margin={"t": 40})
    return plot
