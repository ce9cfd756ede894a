"""The profile method: every token's lift with an interval, rounds that narrow the upper tail."""
