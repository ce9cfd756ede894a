"""Words that are common in ordinary text."""

from __future__ import annotations

# Words and signs that are common in ordinary text.
_BY_LANGUAGE = (
    "“ ” ‘ ’ – — … • ·",
    # English
    "the of and to a in is that it for on with as by at from this be are was were been being or an not "
    "no nor but if so than then too very can could will would shall should may must do does did have "
    "has had having i me my we us our you your he him his she her they them their its who which what "
    "when where why how all any both each few more most other some such only own same these those there "
    "here into onto over under about after before between through during above below up down out off "
    "again once also just because while within without per one two three",
    # French, German
    "le la les un une des de du et ou en au aux dans par pour sur avec sans est sont que qui ne pas "
    "ce se sa son ses il elle ils elles nous vous je",
    "der die das den dem des ein eine einer eines einem einen und oder in im zu zur zum von vom mit "
    "auf für an am bei aus nach ist sind nicht auch sich es er sie wir ich als wie dass",
    # Spanish, Italian, Portuguese
    "el la los las un una unos unas de del y o e en a al por para con sin es son que no se su sus lo "
    "le les como más pero",
    "il lo la i gli le un uno una di del della dei delle e o in a al alla da dal con per su è sono "
    "che non si come ma",
    "o a os as um uma de do da dos das e ou em no na nos nas por para com sem é são que não se mais",
    # Dutch; Swedish, Danish and Norwegian; Polish and Czech; Turkish
    "de het een en of in op van voor met te aan bij uit is zijn niet dat die er ook als om door",
    "en ett et den det och og att at som i på av af til till for för med är er inte",
    "i a w we z ze na do nie się że to o po od dla jest są v s k se je že si by",
    "ve bir bu da de için ile çok ne o",
    # Russian and Ukrainian; Greek; Arabic; Hebrew; Hindi; Chinese
    "и в во не на с со что а по от за из к у о до как это для но же бы та і й з що є",
    "και το η ο τα της του των σε με για από που να δεν",
    "في من على إلى و أن عن مع هذا هذه لا ما",
    "של את על לא זה עם הוא",
    "के का की में है और से को पर यह",
    "的 了 是 在 不 一 有 和 我 他 这 這 人 中 为 為 之 以 与 與 等 上 年 大 国 國 日 月",
)
COMMON = frozenset(" ".join(_BY_LANGUAGE).split())
