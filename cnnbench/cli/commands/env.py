"""``cnnbench env``: show the machine and software facts that records contain."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cnnbench.base.document import Content, Paragraph, Section, make_table
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.escapes import dump_json
from cnnbench.base.terminal import print_result
from cnnbench.base.text import count_text, format_bytes
from cnnbench.cli.commands.command_lines import refuse_flags_of_command
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import flag, parse_command, specs_of, split_at_double_dash
from cnnbench.machine import facts as environment
from cnnbench.machine.checks import ConditionCheckFlags, parse_silenced
from cnnbench.machine.cpu import ONEDNN, Host, convolution_kernels
from cnnbench.records.codec import ABSENT, encode, json_document
from cnnbench.run.runtime.loading import load_tensorflow
from cnnbench.run.runtime.native_log import without_info_lines
from cnnbench.run.runtime.supervisor import fork_supervised

if TYPE_CHECKING:
    from cnnbench.records.run import ConditionNote


@dataclass(frozen=True, kw_only=True)
class EnvFlags:
    """Flags of `cnnbench env`."""

    json: bool = flag(
        False, 'Print one JSON document: {"facts": {...}}. With --check, it has "conditions", too.'
    )
    tensorflow: bool = flag(
        False,
        "Also load TensorFlow, which takes a few seconds, to show properties of its build and of "
        "the GPU libraries that it loads.",
    )
    check: bool = flag(
        False,
        "Watch the machine, and print what would disturb a measurement now and how to avoid the "
        "disturbance. Give the flags of the run after --. cnnbench docs conditions explains the "
        "checks.",
    )
    seconds: float = flag(
        1.0,
        "With --check: number of seconds for which the machine is watched.",
        minimum=0.2,
        maximum=600,
    )
    quiet_conditions: str = flag(
        "", "With --check: conditions that are not reported, such as load,steal, or all."
    )


@dataclass(frozen=True, kw_only=True)
class FoundCondition:
    """A condition of the machine that may distort results.

    Attributes:
      id: one of `CONDITIONS`. In --quiet_conditions, it silences the condition.
      text: what was found, with its numbers.
      advice: what to do about it, given the flags of the run.
      silenced: whether --quiet_conditions silences its warning.
    """

    id: str
    text: str
    advice: str
    silenced: bool


@dataclass(frozen=True, kw_only=True)
class FoundConditions:
    """Result of ``cnnbench env --check``.

    Attributes:
      measured: quantities measured during the check, by name, as in `conditions` of a record.
      found: conditions that the checks reported.
    """

    measured: Mapping[str, Any]
    found: tuple[FoundCondition, ...]


@json_document("cnnbench env --json", name="env")
@dataclass(frozen=True, kw_only=True)
class EnvDocument:
    """Output of ``cnnbench env --json``.

    Attributes:
      facts: properties of machine and software, as in the environment of a record.
      advice: settings that may make training faster on this machine; absent without any.
      conditions: result of --check; absent without it.
    """

    facts: Mapping[str, Any]
    advice: tuple[str, ...] | None = field(default=None, metadata=ABSENT)
    conditions: FoundConditions | None = field(default=None, metadata=ABSENT)


_SPECS = specs_of(EnvFlags)

_ABOUT = """\
Usage: cnnbench env [--json] [--tensorflow]
       cnnbench env --check [--seconds=X] [--quiet_conditions=NAME,...] [-- FLAGS OF A RUN]

Prints the properties of machine and software that run records contain, with their names in records.
Unknown properties are left out.
"""

_EXIT_CODES = """\
Exit codes: 0 nothing found; 3 with --check, conditions that would distort a measurement now;
2 wrong use.
"""


HELP = (_ABOUT, [("Flags", _SPECS)], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Prints recorded properties of this machine, or checks it for disturbances."""
    words, behind = split_at_double_dash(argv)
    values, strays = parse_command(words, _SPECS)
    refuse_flags_of_command(behind, _SPECS, "env")
    run_flags = (*strays, *behind)
    flags = EnvFlags(**values)
    quiet = parse_silenced(flags.quiet_conditions)
    if not flags.check:
        for name in (name for name in ("seconds", "quiet_conditions") if name in values):
            raise UsageError(f"--{name} needs --check")
        if run_flags:
            stray = f"stray argument {run_flags[0]!r}"
            raise UsageError(f"{stray}: put flags of a run after --, and give --check")
    if flags.tensorflow:
        _start_tensorflow()
    if flags.check:
        return _check_conditions(flags, quiet, run_flags)
    sections = environment.collect_facts_by_section()
    advice = _advice(Host())
    if flags.json:
        facts = {name: fact for section in sections.values() for name, fact in section.items()}
        print_result(dump_json(encode(EnvDocument(facts=facts, advice=advice or None)), indent=2))
    else:
        print_result(sections_to_text(_section_blocks(sections, advice)))
    return ExitCode.OK


def _advice(host: Host) -> tuple[str, ...]:
    """Returns texts about settings that may make training faster on this machine."""
    kernels = convolution_kernels(host)
    if not kernels.startswith("eigen") or host.environ.get(ONEDNN):
        return ()
    return (
        "TensorFlow does not use oneDNN's convolutions on this CPU by default. To measure the "
        f"speed with them: cnnbench ab --b_env={ONEDNN}=1 -- --model=resnet50 --batch_size=8",
    )


def _start_tensorflow() -> None:
    fork_supervised()
    # `cnnbench run` sets the same log level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_info_lines():
        tf = load_tensorflow()
        tf.config.list_physical_devices("GPU")


def _check_conditions(flags: EnvFlags, quiet: frozenset[str], run_flags: Sequence[str]) -> int:
    # These imports are late, because only --check plans a run.
    from cnnbench.machine.watch import ConditionMonitor
    from cnnbench.plan import card_numbers, parse_run, resolve
    from cnnbench.run.driver.estimates import computes_on_cpu

    plan = resolve(parse_run(run_flags))  # Invalid flags are refused as in `cnnbench run`.
    host = Host()
    on_gpu = not computes_on_cpu(plan)
    facts = environment.collect(host)
    watch = ConditionMonitor(host).start(gpus=on_gpu)
    time.sleep(flags.seconds)
    checked = ConditionCheckFlags(
        on_gpu=on_gpu,
        cards=card_numbers(plan.params),
        intra_threads=plan.params.num_intra_threads or 0,
        intra_threads_given=bool(plan.params.num_intra_threads),
        batch_size=plan.params.batch_size,
        gpu_indices_given=bool(plan.params.gpu_indices),
    )
    conditions_found = watch.check_before_run(facts, checked)
    bad = [condition for condition in conditions_found if condition.id not in quiet]
    if flags.json:
        record = watch.observed_conditions()
        seen = {} if record is None else record.before
        found = tuple(
            FoundCondition(id=c.id, text=c.text, advice=c.advice, silenced=c.id in quiet)
            for c in conditions_found
        )
        conditions = FoundConditions(measured=seen, found=found)
        print_result(dump_json(encode(EnvDocument(facts=facts, conditions=conditions)), indent=2))
    else:
        silenced = len(conditions_found) - len(bad)
        print_result(sections_to_text([_condition_blocks(bad, silenced)]))
    return ExitCode.INCONCLUSIVE if bad else ExitCode.OK


def _section_blocks(
    sections: Mapping[str, Mapping[str, Any]], advice: Sequence[str]
) -> Iterator[Section | Iterable[Content]]:
    """The recorded properties by section, and advice below them."""
    for title, facts in sections.items():
        rows = ({"name": name, "value": _fact_text(name, facts[name])} for name in sorted(facts))
        table = make_table(rows, whole=True, has_head=False, indent=2)
        yield Section.of([table], title=title)
    yield from ([Paragraph(text, whole=True)] for text in advice)


def _condition_blocks(conditions: Sequence[ConditionNote], silenced: int) -> Iterator[Content]:
    """The conditions that would distort a measurement, and their number."""
    for condition in conditions:
        yield Paragraph(f"{condition.id}: {condition}", whole=True)
    number = count_text(conditions, "condition", "conditions")
    text = f"{number} that would distort a measurement" if conditions else "nothing found"
    yield f"{text} ({silenced} silenced)" if silenced else text


def _fact_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_bytes(value)
    return str(value)
