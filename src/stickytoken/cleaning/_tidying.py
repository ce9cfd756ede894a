"""What is removed along with copies: one space, and the punctuation that joined them."""

from __future__ import annotations

import re

from stickytoken.cleaning._edits import Edit

_SIGNS = ",;:.!?…/|_~·-–—"
_JOINING = re.compile(f"[{re.escape(_SIGNS)}]+")
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u2060\ufeff"


def tidied(text: str, edit: Edit) -> Edit:
    """Widen a removal so that the rest reads as if nothing had been there."""
    start, end, replacement = edit
    joints = set("".join(_JOINING.findall(text[start:end])))
    if len(joints) > 1:
        joints.update(_SIGNS)
    while end < len(text) and (text[end] in joints or text[end] in _INVISIBLE):
        end += 1
    end = _behind_loose_joint(text, end, joints)
    while start > 0 and text[start - 1] in _INVISIBLE:
        start -= 1
    if replacement:
        return Edit(start, end, replacement)
    open_before = start == 0 or text[start - 1].isspace()
    open_behind = end == len(text) or text[end].isspace()
    if open_before and open_behind:
        if end < len(text):
            end += 1
        elif start > 0:
            start -= 1
    return Edit(start, end, replacement)


def _behind_loose_joint(text: str, end: int, joints: set[str]) -> int:
    """Return the end of a removal with the joint behind it that a space separates from the last copy."""
    if not joints:
        return end
    last = end
    while last < len(text) and (text[last] in joints or text[last] == " "):
        last += 1
    stands_alone = last == len(text) or text[last].isspace() or text[last - 1].isspace()
    return end + len(text[end:last].rstrip()) if stands_alone else end
