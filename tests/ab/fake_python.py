"""Stands in for a side's interpreter: writes records as FAKE says; standard library only.

Started as ``fake_python -c CODE ROOT run FLAG...``. FAKE is a JSON object in the environment:
template (path of a record), speed, scatter, facts to put into the environment of the record,
fail (a list of names of records whose process fails), status, wait, crash.
"""

import json
import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path


def main():
    code, _root, command, *flags = sys.argv[2:]
    assert "cnnbench" in code
    assert command == "run"
    say = json.loads(os.environ["FAKE"])
    values = dict(flag.lstrip("-").partition("=")[::2] for flag in flags)
    target = Path(values.pop("result_json"))
    document = json.loads(Path(say["template"]).read_text())
    if "side_effect" in say:
        with open(say["side_effect"], "a", encoding="ascii") as file:
            file.write(f"{target.stem} {os.getcwd()} {_root}\n")
    if target.stem in say.get("interrupt", ()):
        os.kill(say["parent"], signal.SIGINT)
        time.sleep(60)
    time.sleep(say.get("wait", 0))
    noise = random.Random(f"{target.stem} {say.get('salt', '')}").gauss(
        0.0, say.get("scatter", 0.01)
    )
    speed = say.get("speed", 100.0) * (1 + noise)
    document["run_id"] = uuid.uuid4().hex
    document["command"] = ["cnnbench", "run", *flags]
    for name, value in values.items():
        kind = type(document["config"].get(name))
        document["config"][name] = kind(value) if kind in (int, float) else value
    document["step_seconds"] = [document["batch"]["global"] / speed] * 3
    document["environment"].update(say.get("facts", {}))
    if target.stem in say.get("fail", ()):
        if say.get("crash"):
            print("segmentation violation", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGSEGV)
        document.update(status="failed", error={"type": "BenchmarkError", "message": "no good"})
    target.write_text(json.dumps(document))
    sys.exit(4 if document["status"] == "failed" else 0)


main()
