"""A process of a job without TensorFlow: meets the others, listens on its port, and ends.

The variable FAKE_DO says what this task does: a comma-separated list of TASK=DEED, such as
ps:0=kill,worker:0=ignore. Without any it prints, and ends when the chief has ended. Number, port,
words and GPUs of each go to the folder FAKE_FOLDER.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

FLAGS = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
TASK = f"{FLAGS['job_name']}:{FLAGS['task_index']}"
CHIEF = "controller:0" if "controller_host" in FLAGS else "worker:0"
DEEDS = dict(part.split("=") for part in os.environ["FAKE_DO"].split(",") if part)
FOLDER = os.environ["FAKE_FOLDER"]
ADDRESSES = {
    f"{job}:{index}": address
    for job in ("worker", "ps", "controller")
    for index, address in enumerate(
        FLAGS.get(f"{job}_host{'' if job == 'controller' else 's'}", "").split(",")
    )
    if address
}


def port(task):
    return int(ADDRESSES[task].split(":")[1])


def is_there(task):
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port(task)), 5):
        return True
    return False


def met_all(task):
    """The file that says that a task has met all others; one for each job."""
    return f"{FOLDER}/met-{port(task)}"


def wait(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(4)
        time.sleep(0.02)


def leave(*_):
    print("interrupted", file=sys.stderr, flush=True)
    sys.exit(130)


def announce(*_):
    """As a supervised run in a long step; the time is enough for `slow`, not for `endless`."""
    line = "cnnbench: interrupted; waiting up to 2 s for the running step to end"
    print(line, file=sys.stderr, flush=True)
    time.sleep(1.5 if deed == "slow" else 60)
    leave()


deed = DEEDS.get(TASK, "")
handlers = {"ignore": signal.SIG_IGN, "slow": announce, "endless": announce}
signal.signal(signal.SIGTERM, handlers.get(deed, leave))
with open(f"{FOLDER}/{TASK}", "w") as file:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    told = {"process": os.getpid(), "port": port(TASK), "words": sys.argv[1:], "gpus": gpus}
    json.dump(told, file)
with socket.create_server(("", port(TASK))):
    wait(lambda: all(map(is_there, ADDRESSES)))
    print("to stderr", "\x1b[31mred\x1b[0m", file=sys.stderr, flush=True)
    if TASK == CHIEF:
        sys.stdout.buffer.write(b"chief\xff\r 1\n\n 2 no end")
    else:
        print("to stdout", sorted(os.sched_getaffinity(0)), flush=True)
    open(met_all(TASK), "w").close()
    wait(lambda: all(map(os.path.exists, map(met_all, ADDRESSES))))
    if deed == "interrupt":
        os.kill(int(os.environ["FAKE_LAUNCH"]), signal.SIGQUIT)
        deed = "sleep"
    while deed in ("sleep", "ignore", "slow", "endless"):
        time.sleep(0.1)  # not longer: a signal just before it would be heard after it
    if deed == "abort":
        print("F0000 00:00:1.2 7 x.cc:228] Check failed: a == b", file=sys.stderr, flush=True)
        os.abort()
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed.isdigit():
        sys.exit(int(deed))
    if TASK == CHIEF:
        time.sleep(0.2)
    else:
        wait(lambda: not is_there(CHIEF))
