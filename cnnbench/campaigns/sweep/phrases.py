"""The sentences of `cnnbench sweep` about its processes, its bounds and what it can detect:
templates with named values.
"""

from __future__ import annotations

# Processes that a sweep runs, and how long they take.

DONE = "{done} of {runs} done already"
COUNTS = "{processes} of {configurations}"
AUTOMATIC_COUNTS = "{processes} of {configurations}, {repeats} of each (repeats: auto)"
UNKNOWN_DURATION = "{counts}; their duration is known after the first"
AS_BEFORE = "{counts}: about {duration}, as before"
FIRST_GUESS = "{counts}: about {duration}, a first guess"

# Bounds and failures.

BELOW = "{metric} {value} below {limit}"
ABOVE = "{metric} {value} above {limit}"
WITHIN = "{metric} {value} {word}"
WITHOUT_VALUE = "{metric} {word}"
VIOLATES = "{count} of {configurations} violates a bound"
VIOLATE = "{count} of {configurations} violate a bound"
UNKNOWN_VALUES = "Values for bounds are unknown"
ALL_HOLD = "All bounds of {configurations} hold"
MEASURED = "{configurations} measured"

# Whether `cnnbench compare` could detect a large change.

DETECTABLE = (
    "equal processes differ by at most {scatter} ({name}): {processes} processes of BASE and of "
    "NEW find a change of {change} in every configuration"
)
TOO_NOISY = (
    "equal processes differ by at most {scatter} ({name}): a change of {change} in every "
    "configuration is found on a quieter machine, not by more processes"
)
MORE_PROCESSES = (
    "equal processes differ by at most {scatter} ({name}): to find a change of {change} in every "
    "configuration, a comparison needs about {processes} processes of BASE and of NEW, {more} in "
    "all; a quieter machine, or {command}"
)
