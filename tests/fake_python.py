"""Stands in for a Python that runs cnnbench: writes records; standard library only.

Started, or forked (helpers/forked.py), as ``fake_python -c CODE ROOT run FLAG...`` or, for a job,
as ``fake_python -c CODE ROOT launch FLAG... -- FLAG...``; template.json beside it is the record to
fill in. Variables of the environment: SPEED in images/sec, and FAKE, a JSON object; where it is not
set, the file fake.json of the working directory, such as a worktree, is taken. It holds

  speed: where SPEED is not set.
  by_flag: factors of the speed, by flags as they are written.
  scatter, salt: how far speeds lie apart, and what they are drawn with besides the name.
  facts: put into the environment of the record.
  model: put into the model of the record.
  measured: put into the measured values of the record.
  wait: seconds before anything is written.
  die: last words of processes that write no record.
  fail, crash: names of records whose process fails, and whether by a signal.
  message: of the error, [no good].
  interrupt, parent: names of records, or batch sizes, that a process interrupts its parent for.
  once: file that is removed for it, and without which it does not.
  kill, kills: how often which processes are ended by SIGKILL, by the names of their records, and
    the folder that counts that.
  trace: file to append the name of the record to, and once more before the steps in turn.
  turns, launches: it can step in turn with others, and run jobs.
  profile: a file to write as the profile of the process, which can then be profiled.
  onednn: what it prints where ONEDNN_VERBOSE is set.
  busy: other programs use that many CPUs.
  by_threads: a list of more of these keys, by --num_intra_threads; records then have the batch size
    of the flags.
  capacity, kind: the largest batch size that does not fail, and the type of that error. Where the
    message is of memory, --find_batch_size halves the batch size until it fits.
  pause, cut: seconds in the middle of the record, and bytes that it lacks in the end.
  cpu, cpu_scatter: CPU seconds of a step, and how far they lie apart [0.002].
"""

import json
import os
import random
import signal
import socket
import sys
import time
import uuid
from pathlib import Path


def trace(say, name):
    if "trace" in say:
        with open(say["trace"], "a", encoding="ascii") as file:
            file.write(f"{name}\n")


def turns():
    """What says that it waits for its turn, and does."""
    link = socket.socket(fileno=int(os.environ["CNNBENCH_TURNS"].partition(":")[0]))

    def wait(word):
        link.sendall(word)
        link.recv(1)

    return wait


def values_of(flags):
    return dict(flag.lstrip("-").partition("=")[::2] for flag in flags)


def job_of(words):
    """What the chief of a job gets besides the flags of every process, and its command line."""
    if words[0] != "launch":
        return {}, words
    at = words.index("--")
    layout = values_of(words[1:at])
    hosts = {
        name: ",".join(f"localhost:{random.randint(1024, 65535)}" for _ in range(int(many)))
        for name, many in (("worker", layout["workers"]), ("ps", layout.get("ps", 0)))
    }
    job = {f"{name}_hosts": text for name, text in hosts.items() if text}
    return {**job, "job_name": "worker"}, ["run", *words[at + 1 :]]


def die_if_told(say, name):
    count = Path(say.get("kills", "."), name)
    done = len(count.read_text()) if count.exists() else 0
    if done < say.get("kill", {}).get(name, 0):
        count.write_text("x" * (done + 1))
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    code, _root, *rest = sys.argv[2:]
    file = Path("fake.json")
    say = json.loads(os.environ.get("FAKE") or (file.read_text() if file.exists() else "{}"))
    if rest[0].endswith(".py"):  # asked for the module that profiles, or steps in turn
        known = {"profiles": "profile", "launch": "launches"}
        sys.exit(not say.get(next((known[n] for n in known if n in rest[0]), "turns")))
    job, rest = job_of(rest)
    command, *flags = rest
    assert "cnnbench" in code
    assert command == "run"
    values = {**values_of(flags), **job}
    if "by_threads" in say:
        say |= say["by_threads"][int(values["num_intra_threads"])]
    target = Path(values.pop("result_json"))
    if "profile" in say and "profile_json" in values:
        Path(values["profile_json"]).write_bytes(Path(say["profile"]).read_bytes())
    print("about to measure", flush=True)
    if "ONEDNN_VERBOSE" in os.environ:
        print(say.get("onednn", ""), flush=True)
    trace(say, target.stem)
    wait = turns() if "CNNBENCH_TURNS" in os.environ else lambda word: None
    wait(b"w")
    once = Path(say.get("once", __file__))
    known = {target.stem, values.get("batch_size")}
    if known & {*say.get("interrupt", ())} and once.exists():
        if "once" in say:
            once.unlink()
        os.kill(say["parent"], signal.SIGINT)
        time.sleep(60)
    time.sleep(say.get("wait", 0))
    die_if_told(say, target.stem)
    wait(b"w")
    if "CNNBENCH_TURNS" in os.environ:
        trace(say, target.stem)
    wait(b"a")
    if "die" in say:
        sys.exit(say["die"])
    document = record_of(say, target.stem, flags, values)
    text = json.dumps(document)[: -say.get("cut", 0) or None]
    with open(target, "w", encoding="ascii") as file:
        file.write(text[:1000])
        file.flush()
        time.sleep(say.get("pause", 0))
        file.write(text[1000:])
    sys.exit(4 if document["status"] == "failed" else 0)


def record_of(say, name, flags, values):
    """What a process with these flags has measured, as it was told."""
    document = json.loads(Path(__file__).with_name("template.json").read_text())
    draw = random.Random(f"{name} {say.get('salt', '')}").random()
    speed = float(os.environ.get("SPEED") or say.get("speed", 100))
    speed *= 1 + draw * say.get("scatter", 0.003)
    for flag in flags:
        speed *= say.get("by_flag", {}).get(flag, 1)
    for name, value in say.get("by_variable", {}).items():
        if name in os.environ:
            speed *= value
            document["environment"][f"env_{name}"] = os.environ[name]
    document["run_id"] = uuid.uuid4().hex
    document["command"] = ["cnnbench", "run", *flags]
    for key, value in values.items():
        kind = type(document["config"].get(key))
        document["config"][key] = kind(value) if kind in (int, float) else value
    document["step_seconds"] = [document["batch"]["global"] / speed] * 3
    if "busy" in say:
        note = {"id": "load", "when": "during", "text": "others", "advice": "end them"}
        during = {"other_cpus": say["busy"]}
        document["conditions"] = {"before": {}, "during": during, "notes": [note]}
    if "cpu" in say:
        document["step_cpu_seconds"] = [say["cpu"] * (1 + say.get("cpu_scatter", 0.002) * draw)] * 3
    document["environment"].update(folder=os.getcwd(), **say.get("facts", {}))
    document["model"].update(say.get("model", {}))
    document["measured"].update(say.get("measured", {}))
    batch = asked = int(values.get("batch_size", 0))
    if "find_batch_size" in values and "memory" in say.get("message", ""):
        while 1 < batch > say["capacity"]:
            batch //= 2
        document["config"].update(batch_size=batch, find_batch_size=False)
    if "by_threads" in say:
        document["batch"] = {"per_device": batch, "global": batch}
        if batch < asked:
            document["batch"]["requested_per_device"] = asked
    if name in say.get("fail", ()) or batch > say.get("capacity", batch):
        if say.get("crash"):
            print("segmentation violation", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGSEGV)
        message = say.get("message", "no good")
        error = {"type": say.get("kind", "BenchmarkError"), "message": message}
        document.update(status="failed", error=error)
    return document


main()
