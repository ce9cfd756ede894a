"""Every number in the README, the answers, the tutorial and the table of models is that of a record.

`CLAIMS` has, for each page, phrases that stand in it, each with the values of its numbers: from a result
file, a recorded output, the packaged run, the page of a model or a constant of the code. A number of a page
that stands in none of its phrases is an error.
"""

import json
import re
import tomllib

import pytest

import pages
import stickytoken
from build import ROOT
from stickytoken.cli.commands.shipping import CHECK_FAILED
from stickytoken.data.collection import bundled_collection
from stickytoken.search import TOP

RESULTS = ROOT / "benchmarks" / "results"
# A number, with the unit that decides how a value is written.
NUMBER = re.compile(r"(−?\d(?:[\d,.]*\d)?)(%?)")
# Blocks whose commands or code are recorded with what they print.
RECORDED_BLOCK = re.compile(r"^```(?:python|console)\n.*?^```$", re.DOTALL | re.MULTILINE)
# Names and years, and values that a reader may choose.
NO_MEASUREMENTS = (
    "all-MiniLM-L6-v2", "all-minilm-l6-v2", "all-mpnet-base-v2", "multilingual-e5-small", "4-bit", "4bit",
    "EmbeddingGemma-300M", "embeddinggemma-300m", "ACL 2025", "2025.acl-long.1391", "HF_HUB_OFFLINE=1",
    "`--sample 2000` measures only 2,000", "Gemma 3 270M", "gemma-3-270m", "--layer -1", "BM25",
)  # fmt: skip


def text_of(page):
    """A page as one line, without blocks whose content is recorded."""
    return " ".join(RECORDED_BLOCK.sub("", (ROOT / page).read_text("utf-8")).split())


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def numbers(text):
    """The numbers in a text, as they are written."""
    return re.findall(r"(?:(?<!\d)[−-])?\d(?:[\d,.]*\d)?", text)


def without_names(text):
    for name in NO_MEASUREMENTS:
        text = text.replace(name, "")
    return text


def measured(name, check):
    """The numbers that a benchmark measured in its only check with this beginning."""
    return [float(number.replace(",", "")) for number in numbers(said_by_check(name, check))]


def said_by_check(name, check):
    """What a benchmark measured in its only check with this beginning, as text."""
    (found,) = (entry["ours"] for entry in result(name)["checks"] if entry["name"].startswith(check))
    return found


def printed(command):
    """What the only recorded command with this beginning printed."""
    records = result("readme")["commands"].items()
    (record,) = (record for recorded_command, record in records if recorded_command.startswith(command))
    return "\n".join(record["stderr"] + record["stdout"])


class ModelPage:
    """The numbers of a page of a model, as it shows them."""

    def __init__(self, name):
        self.text = (ROOT / "docs" / "models" / f"{name}.md").read_text("utf-8")
        self.examined = self.number(r"among (\S+) examined tokens")
        self.sticky = self.number(r"The run found (\S+) sticky token").replace("no", "0")
        self.in_documents = self.number(r"(\S+) tokens were measured in the bundled documents")
        self.random = [self.number(r"Of (\S+) random ones"), self.number(r"random ones, (\S+) push")]
        self.at_most = self.number(r"So at most (\S+)% of all tokens")
        self.ordinary_push = self.number(r"ordinary token pushes (\S+)×")
        self.texts = self.number(r"The run encoded (\S+) texts")

    def number(self, pattern):
        (found,) = re.findall(pattern, self.text)
        return found

    def erased(self, token):
        """The erased share of a token, and the ends of its interval."""
        return numbers(self._cells(token)[0])

    def push(self, token):
        """The push of a token, and the ends of its interval."""
        return numbers(self._cells(token)[1])

    def _cells(self, token):
        (cells, *_) = re.findall(rf"^\| '{re.escape(token)}' \| (.*?) \| (.*?) \|", self.text, re.MULTILINE)
        return cells


MINILM = ModelPage("all-MiniLM-L6-v2")
MPNET = ModelPage("all-mpnet-base-v2")
GEMMA = ModelPage("embeddinggemma-300m")
E5 = ModelPage("multilingual-e5-small-4bit")
CLS, EOS, START, END = r"\[CLS\]", "&lt;eos&gt;", "&lt;s&gt;", "&lt;/s&gt;"
UNKNOWN = "&lt;unk&gt;"

RUN = stickytoken.open_run(pages.PACKAGED / "all-MiniLM-L6-v2")
FOUND = {row["token"]: row["found"] for row in RUN.tokens.iter_rows(named=True)}
SETTINGS = stickytoken.ProfileSettings()
HIDES, PUSHES, LEVEL = SETTINGS.smallest_erased, SETTINGS.smallest_push, SETTINGS.confidence
# An unusual vector halves the distance to a threshold.
HIDES_UNUSUAL, PUSHES_UNUSUAL = HIDES / 2, 1 + (PUSHES - 1) / 2
PYTHON = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
SAMPLE = int(next(model for model in pages.MODELS if model.name == "all-mpnet-base-v2").options[-1])
SENTENCES = stickytoken.load_sentences()

TYPED = result("typed_copies")["models"]
QUERIES, GEMMA_QUERIES = (model["queries"] for model in TYPED.values())
TYPED_MINILM, TYPED_GEMMA = ({row["label"]: row for row in model["rows"]} for model in TYPED.values())
(TYPED_E5,) = (
    {row["label"]: row for row in model["rows"]} for model in result("typed_copies_e5")["models"].values()
)
(TYPED_MPNET,) = (
    {row["label"]: row for row in model["rows"]} for model in result("typed_copies_mpnet")["models"].values()
)
IN_FRONT = ("without copies", "[CLS] before", "ذ before", "ب before", "an ordinary word before")
AT_THE_END = ("without copies", "[CLS] after", "ذ after", "ب after", "an ordinary word after")

BOTH_RUNS, EITHER_RUN = measured("documents_again", "two runs")[1:]
ESTIMATE = result("endpoint_estimate")
TOKENS_AGAIN = result("documents_again")["tokens"]
HALVES = measured("documents_halves", "flagged by the first")
AGAIN = [BOTH_RUNS, MINILM.sticky, EITHER_RUN - int(MINILM.sticky)]
CANDIDATES = measured("parity", "candidates")[0]
PUBLISHED = measured("parity", "sticky tokens")[0]
SCORE_WITH_TP, *_ = measured("token_prepending_gemma", "prompt + TP")
GAIN = measured("token_prepending_gemma", "prompt + TP")[3:]
PAIRS_OF_STSB = numbers(result("token_prepending_gemma")["checks"][0]["bar"])[0]
HIDING = len(result("documents_correlation")["checks"][-1]["detail"]["recall"])
# What whitening does to a search: the share of queries that find a document, and its wrong results.
STORED, _, WHITENED = (check["detail"] for check in result("whitening")["checks"])
# Texts without inserted copies, none of which `clean` changes by default.
TEXTS_LEFT_ALONE = sum(
    int(texts.replace(",", ""))
    for check in result("cleaning_shares")["checks"]
    for texts in re.findall(r", ([\d,]+) texts$", check["name"])
    if "0 changed" in check["ours"]
)
# Tokens of the even set, and those of them that aren't flagged because they hide.
EVEN_SET, NOT_HIDING = (
    int(count)
    for count in re.findall(
        r"cranfield, (\d+) tokens drawn evenly[^:]*: Spearman",
        " ".join(check["name"] for check in result("documents_correlation")["checks"]),
    )[:2]
)
HIDING_IN_EVEN_SET = abs(EVEN_SET - NOT_HIDING)
# Megabytes of the core with torch's build for CPUs, and of the two extras.
INSTALLED = sum(
    measured("first_answer", check)[0] for check in ("the core", "extra `offline`", "extra `report`")
)
TUTORIAL = result("tutorial")["commands"]
GIGABYTES = (INSTALLED + result("tutorial")["megabytes"]) / 1000
DETECTION = TUTORIAL["stickytoken detect all-MiniLM-L6-v2 --out run"]
# Measures outside the interval of benign tokens, and all measures: of [CLS], then of an ordinary word.
OUTSIDE = re.findall(r"(\d+) of (\d+) measures", printed("stickytoken explain"))
(DAMAGED, _) = numbers(TUTORIAL["stickytoken scan run documents.txt"]["stdout"][0])[:2]


def top_tens(typed, *labels):
    return [typed[label]["top_tens"] for label in labels]


def ratios(typed, *labels):
    """In how many times as many searches a document is."""
    return [typed[label]["ratio"] for label in labels]


def counts(*labels):
    """The number of copies in front, and in how many times as many searches a document then is."""
    ratio_of = {row["label"]: row["ratio"] for row in result("typed_counts")["rows"]}
    return [int(labels[0].split()[0]), *(ratio_of[label] for label in labels)]


def tried_on_gemma(layer, **prepending):
    """The score on development pairs with one of the settings tried."""
    tried = result("token_prepending_gemma")["tried"]
    settings = {"layer": layer, **prepending}
    (score,) = [row["spearman"] for row in tried if row.items() >= settings.items()]
    return score


SIZES = result("typed_sizes")["collections"]["program documentation"]["rows"]
LARGEST = SIZES[-1]["documents"]


def of_size(documents):
    """A number of documents, and in how many times as many searches a document with copies is among them."""
    ratio_of = {row["label"]: row["ratio"] for row in SIZES if row["documents"] == documents}
    return [documents, *(ratio_of[label] for label in ("[CLS]", "ذ", "an ordinary word"))]


KEYWORDS = "the 8 most frequent words of the queries"


def counted(label):
    """In how many top 10s an abstract is."""
    return [row["top_tens"] for row in result("typed_counts")["rows"] if row["label"] == label]


def ratio_of_keywords():
    """In how many times as many top 10s keywords put an abstract, and the interval."""
    (row,) = [row for row in result("typed_counts")["rows"] if row["label"] == KEYWORDS]
    return [row["ratio"], LEVEL, *row["ratio_interval"]]


def found(*labels):
    return [TYPED_MINILM[label]["found"] for label in labels]


def correlation_file(collection):
    return "documents_correlation_questions" if collection == "questions" else "documents_correlation"


def correlations(measure, tokens):
    """The rank correlations of a measure with harm, in each collection."""
    return [
        measured(correlation_file(collection), f"{collection}, {tokens}: Spearman of {measure}")[0]
        for collection in ("cranfield", "documentation", "questions")
    ]


def in_more_documents(part):
    """The rank correlations of the push of random tokens in more packaged documents with wrong results."""
    found = []
    for collection in ("cranfield", "documentation"):
        title = f"{collection}, 128 random tokens: Spearman of the run's push"
        ours = said_by_check(correlation_file(collection), title)
        found.append(float(re.search(r"([\d.]+) " + re.escape(part), ours)[1]))
    return found


def agreement_of_collections():
    """The rank correlation between the wrong results of random tokens in two collections."""
    return measured(correlation_file("cranfield"), "cranfield and documentation: Spearman of wrong")[:1]


def reliability():
    """The reliability of the wrong results of random tokens in the packaged documents."""
    return measured(correlation_file("cranfield"), "two halves of the documents: reliability")[0]


def with_missed(tokens):
    """The rank correlations of the erased share with the share of queries that miss their document."""
    return [-value for value in correlations("the erased share", tokens)]


def ends_of_correlations():
    """The lowest and the highest rank correlation of a measure with harm, over random tokens."""
    # The erased share is compared with the recall, which falls as harm grows.
    of_both = with_missed("128 random tokens") + correlations("the run's push", "128 random tokens")
    return [min(of_both), max(of_both)]


def recall(collection):
    """The recall with tokens that hide, with random ones and without copies."""
    shares = measured(correlation_file(collection), f"{collection}: median recall")
    return [share / 100 for share in shares]


def hiding_everywhere():
    """How many of the tokens that hide do so more than the median random token in each collection."""
    recall = [
        {
            check["name"].split(":")[0]: check["detail"]["recall"]
            for check in result(name)["checks"]
            if "recall" in check.get("detail", {})
        }
        for name in ("documents_correlation", "documents_correlation_questions")
    ]
    by_collection = recall[0] | recall[1]
    ordinary = {
        name: measured(correlation_file(name), f"{name}: median recall")[1] / 100 for name in by_collection
    }
    return sum(
        all(shares[token] < ordinary[name] for name, shares in by_collection.items())
        for token in by_collection["questions"]
    )


def hiding_most():
    """The fewest and the most tokens that hide more than 95% of the random ones, over the collections."""
    counts_of_tokens = [
        measured(correlation_file(name), f"{name}: tokens that hide (of {HIDING})")[1]
        for name in ("cranfield", "documentation", "questions")
    ]
    return [min(counts_of_tokens), max(counts_of_tokens)]


def found_by_first_sentences():
    """The share of first sentences that find their document, without copies and with eight ذ, as recorded."""
    pattern = r"With 8 copies of 'ذ', (\d+)% .*\((\d+)% without copies"
    ((with_copies, without),) = re.findall(pattern, printed("stickytoken audit"))
    return [int(without) / 100, int(with_copies) / 100]


def published_in_documents(check):
    """A number of the paper's tokens by their push, and the same by their erased shares."""
    measures = ("push", "erased")
    return [measured("parity-documents", f"{measure}: {check}")[0] for measure in measures]


CLAIMS = {
    "README.md": [
        ("Python 3.11+", numbers(PYTHON)),
        (
            "ذ 0.03, repaired 0.99; [CLS] 2.7, repaired 1.0",
            ratios(
                TYPED_MINILM,
                *("ذ before", "ذ before, repaired"),
                *("[CLS] before", "[CLS] before, repaired"),
            ),
        ),
        (
            "<eos> 1.8, repaired 0.94",
            ratios(TYPED_GEMMA, "<eos> before", "<eos> before, repaired"),
        ),
        (
            "in the top 10 of 4.46 of 225 queries, not 1.66.",
            [
                TOP,
                *top_tens(TYPED_MINILM, "[CLS] before"),
                QUERIES,
                *top_tens(TYPED_MINILM, "without copies"),
            ],
        ),
        ("take 97% of its searches away", [1 - counts("3 × ذ")[1]]),
        ("and eight ذ take 42%", [1 - ratios(TYPED_MINILM, "ذ after")[0]]),
        ("leave 51% less of a short text's meaning", MINILM.erased("ذ")[:1]),
        ("a wrong top-three result 2.3 times as often", MINILM.push(CLS)[:1]),
        ("with eight ذ, 72% of easy queries", [FOUND["ذ"]]),
        ("with random tokens, 88%", [RUN.result.ordinary_found]),
        ("| all-MiniLM-L6-v2 | 18 of 23,699 |", [MINILM.sticky, MINILM.examined]),
        ("ذ: erased 51% (47 to 55)", MINILM.erased("ذ")),
        ("`[CLS]`: push 2.3 (2.0 to 2.8) |", MINILM.push(CLS)),
        ("| multilingual-e5-small, 4-bit | 7 of 5,004 sampled |", [E5.sticky, E5.examined]),
        ("| `<s>`: push 9.6 (8.1 to 11.8) |", E5.push(START)),
        ("| all-mpnet-base-v2 | 1 of 5,006 sampled |", [MPNET.sticky, MPNET.examined]),
        ("`<unk>`: erased 28% (24 to 33)", MPNET.erased(UNKNOWN)),
        ("| EmbeddingGemma-300M | 1 of 5,009 sampled |", [GEMMA.sticky, GEMMA.examined]),
        ("| `<eos>`: push 2.1 (1.8 to 2.5) |", GEMMA.push(EOS)),
        (
            "12 of 1,398 Cranfield abstracts",
            numbers(
                re.findall(r"(\S+ of \S+) documents have copies already", printed("stickytoken audit"))[0]
            ),
        ),
        ("it changes none of 6,850 unaltered abstracts", [TEXTS_LEFT_ALONE]),
        ("with 90% intervals:", [LEVEL]),
        ("If its whole 90% interval is at least 40% *erased* or 1.5 *push*", [LEVEL, HIDES, PUSHES]),
        ("(with an unusual vector, 20% or 1.25)", [HIDES_UNUSUAL, PUSHES_UNUSUAL]),
        ("16 of these 18 and 34 more are sticky", AGAIN),
        ("only 87 to 333 tokens each", [E5.in_documents, MINILM.in_documents]),
        ("(rank correlations −0.09 to 0.20)", ends_of_correlations()),
        (
            "But of the 17 flagged for *erased*, 13 to 16 hide more than 95% of",
            [HIDING, *hiding_most(), 0.95],
        ),
        ("| one of the 17 |", [HIDING]),
        ("Measured among at most 5,522 documents", [LARGEST]),
        ("their document in the top 10", [TOP]),
        ("| Cranfield | 27% | 20% | 0% |", recall("cranfield")[::-1]),
        ("| program documentation | 96% | 92% | 79% |", recall("documentation")[::-1]),
        ("| XQuAD | 100% | 99% | 94% |", recall("questions")[::-1]),
        # `evaluate` computes intervals of 95%.
        (
            "Gemma 3 270M loses 11 points by default and gains 1.8 (95% interval: 0.9 to 2.6) when tuned",
            [tried_on_gemma(18, start=None) - tried_on_gemma(15, start=1, exit=4), GAIN[0], 0.95, *GAIN[1:]],
        ),
        ("lists-21-tokens", [PUBLISHED]),
        ("finds all 21 they list", [PUBLISHED]),
    ],
    "docs/faq.md": [
        (
            "2.3 times as many results of queries that it doesn't answer (90% interval 2.0 to 2.8, in",
            [MINILM.push(CLS)[0], LEVEL, *MINILM.push(CLS)[1:]],
        ),
        ("Of the 23,699 tokens that can occur in text, 18 are sticky", [MINILM.examined, MINILM.sticky]),
        ("The 17 others (", [int(MINILM.sticky) - 1]),
        ("`<eos>` pushes 2.1 times (1.8 to 2.5)", GEMMA.push(EOS)),
        ("and none of 5,000 random tokens", [SAMPLE]),
        (
            "(of 120 queries, in a smaller part of Cranfield) | 3.8 | 7.0 | 3.1 |",
            [
                GEMMA_QUERIES,
                *top_tens(TYPED_GEMMA, "without copies", "<eos> before", "an ordinary word before"),
            ],
        ),
        (
            "`<s>` (of 225 queries) | 1.6 | 10.9 | 0.56 |",
            [QUERIES, *top_tens(TYPED_E5, "without copies", "<s> before", "an ordinary word before")],
        ),
        ("erases 28% (24% to 33%)", MPNET.erased(UNKNOWN)),
        ("None of 5,000 random tokens is flagged, but", [SAMPLE]),
        ("only 157 of the 5,006 were measured in documents", [MPNET.in_documents, MPNET.examined]),
        ("`<s>` pushes 9.6 times (8.1 to 11.8)", E5.push(START)),
        ("`</s>` 6.8 times", E5.push(END)[:1]),
        ("Of 5,000 random tokens, five", [SAMPLE]),
        ("that push 2.0 to 2.4 times", [E5.push("▁Osallistu")[0], E5.push("▁εγκληματικ")[0]]),
        ("(the median random token: 1.3 times)", [E5.ordinary_push]),
        ("only 87 of the 5,004 were measured in documents", [E5.in_documents, E5.examined]),
        ("3 of 128 further random ones push", E5.random[::-1]),
        ("only 90 of the 5,009 were measured in documents", [GEMMA.in_documents, GEMMA.examined]),
        ("Of 128 others, from the whole vocabulary, 1 pushes", GEMMA.random),
        (
            "18% of the queries of 64 Cranfield abstracts find theirs instead of 30%",
            [WHITENED["without"][0], result("whitening")["documents"], STORED["without"][0]],
        ),
        ("into 29 wrong results instead of 3.9", [WHITENED["[CLS]"][1], STORED["[CLS]"][1]]),
        ("We did so in 120 abstracts", [TYPED["all-MiniLM-L6-v2"]["sample"]]),
        ("Top 10s with the abstract, with eight", [TOP]),
        ("top 10s with the abstract (of 225 queries)", [TOP, QUERIES]),
        ("copies in front | 1.66 | 4.46 | 0.04 | 1.34 | 0.85 |", top_tens(TYPED_MINILM, *IN_FRONT)),
        ("copies at the end | 1.66 | 3.70 | 0.97 | 1.52 | 1.42 |", top_tens(TYPED_MINILM, *AT_THE_END)),
        ("copies in front | 37% | 46% | 2% | 28% | 22% |", found(*IN_FRONT)),
        ("copies at the end | 37% | 42% | 25% | 36% | 34% |", found(*AT_THE_END)),
        ("take 87% of an abstract's searches away", [1 - counts("2 × ذ")[1]]),
        ("One `[CLS]` adds 57%", [counts("1 × [CLS]")[1] - 1]),
        *(
            (f"| {row} |", counts(*labels))
            for row, *labels in (
                ("1 | 1.57 | 0.76 | 0.87", "1 × [CLS]", "1 × ذ", "1 × an ordinary word"),
                ("2 | 1.94 | 0.13 | 0.63", "2 × [CLS]", "2 × ذ", "2 × an ordinary word"),
                ("3 | 2.26 | 0.03 | 0.59", "3 × [CLS]", "3 × ذ", "3 × an ordinary word"),
                ("4 | 2.48 | 0.01 | 0.59", "4 × [CLS]", "4 × ذ", "4 × an ordinary word"),
                ("8 | 2.69 | 0.03 | 0.51", "8 × [CLS]", "8 × ذ", "8 × an ordinary word"),
                (
                    "2, each followed by an everyday word | 1.41 | 0.18 |",
                    "2 × [CLS], each before an ordinary word",
                    "2 × ذ, each before an ordinary word",
                ),
                (
                    "3, each followed by an everyday word | 1.59 | 0.11 |",
                    "3 × [CLS], each before an ordinary word",
                    "3 × ذ, each before an ordinary word",
                ),
                (
                    "8, each followed by an everyday word | 1.79 | 0.03 |",
                    "8 × [CLS], each before an ordinary word",
                    "8 × ذ, each before an ordinary word",
                ),
            )
        ),
        ("up to 5,522 documents, the most", [LARGEST]),
        ("| 350 | 2.30 | 0.38 | 0.95 |", of_size(350)),
        ("| 1,400 | 2.95 | 0.29 | 0.87 |", of_size(1400)),
        ("| 5,522 | 3.39 | 0.17 | 0.77 |", of_size(LARGEST)),
        (
            "from 1.66 top 10s to 1.45 (0.87 times; 90% interval 0.71 to 1.06)",
            [*counted("without copies"), TOP, *counted(KEYWORDS), *ratio_of_keywords()],
        ),
        ('eight copies of "flow" to 1.57', counted("8 × flow, the most frequent word of the queries")),
        ("it is in 5.41", counted("8 × [CLS], then these words")),
        ("The paper lists 21 tokens", [PUBLISHED]),
        ("None of the other 20 reaches", [PUBLISHED - 1]),
        ("finds the same 21", [PUBLISHED]),
        ("in the top 10 of 1.72 queries", [TOP, *top_tens(TYPED_MINILM, "[CLS] before, repaired")]),
        ("instead of 4.46 (without copies: 1.66)", top_tens(TYPED_MINILM, "[CLS] before", "without copies")),
        ("We measured 155 tokens", [TOKENS_AGAIN]),
        ("16 of its 18 sticky ones were sticky again, and so were 34 others", AGAIN),
        ("At 2 cents per million", [100 * ESTIMATE["price"]]),
        ("over a vocabulary of 23,699 cost", [MINILM.examined]),
        ("the total is 82 cents at most", [100 * ESTIMATE["most_cost"]]),
        ("12 minutes of processor time", [DETECTION["processor_seconds"] / 60]),
    ],
    "docs/tutorial.md": [
        *((f"## {number}. ", [number]) for number in range(1, 6)),
        ("about 1.8 GB", [GIGABYTES]),
        ("840 pairs of sentences on 64 topics", [len(SENTENCES) / 2, len(set(SENTENCES.topics))]),
        ("measured all 23,699 tokens", [MINILM.examined]),
        ("leave 51% less of a text's meaning", MINILM.erased("ذ")[:1]),
        ("From 40% on", [HIDES]),
        ("its *push* reaches 1.5", [PUSHES]),
        ("in 1.5 times as many wrong results", [PUSHES]),
        ("the whole 90% interval", [LEVEL]),
        ("all 18 sticky tokens", [MINILM.sticky]),
        (
            "only the 84 damaged documents",
            [DAMAGED],
        ),
        ("exits with status 10", [CHECK_FAILED]),
    ],
    "docs/models/README.md": [
        # Printed by `card --table`.
        *((row, numbers(without_names(row))) for row in pages.record()["rows"].values()),
        ("at most 2.3% in the first row (333 measured)", [MINILM.at_most, MINILM.in_documents]),
        ("the second (157)", [MPNET.in_documents]),
        (
            "3.7% in the third (90, and 1 of 128 random ones)",
            [GEMMA.at_most, GEMMA.in_documents, *GEMMA.random[::-1]],
        ),
        ("5.9% in the fourth (87, and 3 of 128)", [E5.at_most, E5.in_documents, *E5.random[::-1]]),
        ("first three results of 240", [len(bundled_collection().documents)]),
        ("90% intervals are in parentheses", [LEVEL]),
    ],
}


def written(value, number, unit):
    """A value with the digits and the unit of a number on a page."""
    if isinstance(value, str):
        return value
    digits = len(number.partition(".")[2])
    return f"{value * (100 if unit else 1):,.{digits}f}".replace("-", "−")


# Phrases of other pages, whose other numbers are not compared here.
FURTHER_CLAIMS = {
    "docs/method.md": [
        ("They leave at least 40% less of a short text's meaning", [HIDES]),
        ("at least 1.5 times as many wrong results", [PUSHES]),
        ("20% or 1.25 times is enough", [HIDES_UNUSUAL, PUSHES_UNUSUAL]),
        ("The low end of the 90% interval", [LEVEL]),
        (
            "with eight copies of it, 90% of queries still find their packaged document; with eight of an "
            "ordinary token, 88%",
            [FOUND["ツ"], RUN.result.ordinary_found],
        ),
        ("An ordinary token pushes 0.7 times in", [MINILM.ordinary_push]),
        (
            "1.07 times as many top 10s. It doesn't",
            [*ratios(TYPED_MPNET, "an ordinary word before"), TOP],
        ),
        ("it pushes packaged documents 1.3 times (1.2 to 1.6)", MPNET.push(START)),
        (
            "into 1.6 times as many (1.4 to 2.0)",
            [*ratios(TYPED_MPNET, "<s> before"), *TYPED_MPNET["<s> before"]["ratio_interval"]],
        ),
        ("measured 155 tokens again", [TOKENS_AGAIN]),
        ("18 sticky ones, 16 are flagged again, and so are 34 others", [AGAIN[1], AGAIN[0], AGAIN[2]]),
        ("agree on only 31% of those that either flags", [BOTH_RUNS / EITHER_RUN]),
        (
            "of the 155 correlate at 0.68, their pushes at 0.52",
            [
                TOKENS_AGAIN,
                *measured("documents_again", "Spearman of erased"),
                *measured("documents_again", "Spearman of push"),
            ],
        ),
        (
            "with one, 13 of the 155 are sticky; with the other, these and 6 more",
            [HALVES[0], TOKENS_AGAIN, HALVES[1] - HALVES[0]],
        ),
        (
            "| random tokens | 0.19 | −0.09 | 0.18 |",
            with_missed("128 random tokens"),
        ),
        (
            "| even set | 0.83 | 0.61 | 0.75 |",
            with_missed("150 tokens drawn evenly"),
        ),
        (
            "| even set without the 15 | 0.79 | 0.46 | 0.68 |",
            [HIDING_IN_EVEN_SET, *with_missed(f"{NOT_HIDING} tokens drawn evenly that are not flagged")],
        ),
        ("| random tokens | 0.14 | 0.19 | 0.20 |", correlations("the run's push", "128 random tokens")),
        ("| even set | 0.49 | 0.64 | 0.58 |", correlations("the run's push", "150 tokens drawn evenly")),
        ("(0.24 in Cranfield, 0.25 in program documentation)", in_more_documents("(64)")),
        ("in these collections, it is 0.24 and 0.30", in_more_documents("(32 in front)")),
        ("Cranfield and in program documentation correlate at only 0.45", agreement_of_collections()),
        ("(reliability 0.92, by Spearman and Brown 1910)", [reliability(), "1910"]),
        # All but one.
        ("Of the 17 that the run flags for their erased shares, all but", [hiding_everywhere() + 1]),
        ("| one of the 17 |", [HIDING]),
        ("| Cranfield | 27% | 20% | 0% |", recall("cranfield")[::-1]),
        ("| program documentation | 96% | 92% | 79% |", recall("documentation")[::-1]),
        ("| XQuAD | 100% | 99% | 94% |", recall("questions")[::-1]),
        (
            "2.7 times as many top 10s in front, 2.2 at the end",
            [ratios(TYPED_MINILM, "[CLS] before")[0], TOP, *ratios(TYPED_MINILM, "[CLS] after")],
        ),
        (
            "everyday words, into 0.5 and 0.9",
            ratios(TYPED_MINILM, "an ordinary word before", "an ordinary word after"),
        ),
        (
            "3.8 top 10s to 7.0 (in front) or 7.4 (at the end), words to 3.1 or 3.6",
            [
                *top_tens(TYPED_GEMMA, "without copies"),
                TOP,
                *top_tens(TYPED_GEMMA, "<eos> before", "<eos> after"),
                *top_tens(TYPED_GEMMA, "an ordinary word before", "an ordinary word after"),
            ],
        ),
    ],
    "docs/explain.md": [
        (
            'in how many of 19 measures a token lies outside: `[CLS]` in 17, "river" in 2.',
            [*OUTSIDE[0][::-1], OUTSIDE[1][0]],
        ),
    ],
    "docs/audit.md": [
        ("98% without copies, 48% with eight ذ", found_by_first_sentences()),
        ("88% find theirs even with an ordinary token", [RUN.result.ordinary_found]),
    ],
    "docs/language_models.md": [
        (
            "on 300 development pairs of STS-B, `prompteol` scores 57.9 with TP after layer 15, but 60.6 "
            "without TP after this layer, and 69.3 after the last, 18.",
            [
                result("token_prepending_gemma")["dev_pairs"],
                tried_on_gemma(15, start=1, exit=4),
                15,
                tried_on_gemma(15, start=None),
                tried_on_gemma(18, start=None),
                18,
            ],
        ),
        ("TP scores 66.4 on the 1,379 test pairs,", [SCORE_WITH_TP, PAIRS_OF_STSB]),
        (
            "1.8 points more than the prompt alone after the last layer (95% interval: 0.9 to 2.6;",
            [GAIN[0], 0.95, *GAIN[1:]],
        ),
    ],
    "docs/paper.md": [
        ("which pushes 1.00 times", measured("parity-documents", "push of an ordinary token")),
        ("10 of the 21 were measured in", [*measured("parity-documents", "tokens measured in"), PUBLISHED]),
        ("| tokens above an ordinary one | 13 | 12 |", published_in_documents("tokens above")),
        (
            "| with the whole 90% interval above it | 2 | 7 |",
            [LEVEL, *published_in_documents("whole interval above")],
        ),
        (
            "| with the whole 90% interval below it | 0 | 4 |",
            [LEVEL, *published_in_documents("whole interval below")],
        ),
    ],
    "docs/repair.md": [
        ("the vectors of 20 tokens", measured("repair", "erased share against")[3:]),
        (
            "For only 4 of them, the erased share was then within 5 points",
            [measured("repair", "erased share against")[2], "5"],
        ),
    ],
}


@pytest.mark.parametrize(("page", "claims"), [*CLAIMS.items(), *FURTHER_CLAIMS.items()])
def test_a_phrase_has_the_numbers_of_its_record(page, claims):
    text = text_of(page)
    for claim, values in claims:
        assert claim in text
        numbers_of_claim = NUMBER.findall(without_names(claim))
        of_record = [
            written(value, number, unit)
            for value, (number, unit) in zip(values, numbers_of_claim, strict=True)
        ]
        assert [number for number, _ in numbers_of_claim] == of_record, claim


@pytest.mark.parametrize("page", CLAIMS)
def test_every_number_stands_in_a_phrase(page):
    rest = without_names(text_of(page))
    for phrase, _ in CLAIMS[page]:
        assert without_names(phrase) in rest, phrase
        rest = rest.replace(without_names(phrase), "|")
    assert re.findall(r".{,40}\d.{,20}", rest) == []
