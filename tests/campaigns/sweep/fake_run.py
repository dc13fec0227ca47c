"""Stands in for ``cnnbench run``: behaves as --tf_random_seed says; standard library only.

Called as ``fake_run.py TEMPLATE run FLAG...``; TEMPLATE is a record to fill in.
"""

import json
import os
import re
import signal
import sys
import time
import uuid

OK, EXIT_3, HANG, CORRUPT, KILLED, DEAF, OOM, BUG, SILENT, FAILED_RECORD, SLOW = range(11)
CAPACITY = 23  # images that "fit" where the behaviour is OOM


def flag(name, default=None):
    found = [word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")]
    return found[-1] if found else default


def write(data, pause=0.0):
    with open(flag("result_json"), "w", encoding="ascii") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(pause)
        file.write(data[len(data) // 2 :])


def record(**changes):
    with open(sys.argv[1], encoding="ascii") as file:
        document = json.load(file)
    batch = int(flag("batch_size", 4))
    document["run_id"] = uuid.uuid4().hex
    document["command"] = ["cnnbench", *sys.argv[2:]]
    document["config"]["batch_size"] = batch
    document["batch"] = {"per_device": batch, "global": batch}
    return json.dumps({**document, **changes})


def fail(kind, message):
    write(record(status="failed", error={"type": kind, "message": message}))
    sys.exit(4)


def main():
    behaviour = int(flag("tf_random_seed", OK))
    batch = int(flag("batch_size", 4))
    print(f"batch size {batch}")
    print("a word on stderr", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if behaviour == EXIT_3:
        sys.exit(3)
    if behaviour in (HANG, DEAF):
        if behaviour == DEAF:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if behaviour == CORRUPT:
        write(record()[:-20])
        return
    if behaviour == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == SILENT:
        return
    if behaviour == FAILED_RECORD:
        fail("BenchmarkError", "no good")
    if behaviour == OOM and batch > CAPACITY:
        fail("BenchmarkError", f"out of memory: lower --batch_size; tried {batch}")
    if behaviour == BUG and batch > CAPACITY:
        fail("InvalidArgumentError", re.sub("N", str(batch), "shapes [N,3] and [7] do not fit"))
    write(record(), pause=0.05 if behaviour == SLOW else 0.0)


if __name__ == "__main__":
    main()
