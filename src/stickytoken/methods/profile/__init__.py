"""The profile method: every token's lift with an interval, rounds that narrow the upper tail."""

from stickytoken.methods.profile._entry import ENTRY

__all__ = ["ENTRY"]
