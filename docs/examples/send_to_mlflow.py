"""Sends mlflow.json of ``cnnbench history --format=mlflow`` to a server of MLflow."""

import json
import urllib.request
from pathlib import Path
from typing import Any

SERVER, EXPERIMENT = "http://localhost:5000", "0"


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request of the REST API."""
    request = urllib.request.Request(
        f"{SERVER}/api/2.0/mlflow/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer: dict[str, Any] = json.load(urllib.request.urlopen(request))
    return answer


for run in json.loads(Path("mlflow.json").read_text())["runs"]:
    made = post("runs/create", {**run["create"], "experiment_id": EXPERIMENT})
    run_id = made["run"]["info"]["run_id"]
    for body in run["log_batch"]:
        post("runs/log-batch", {**body, "run_id": run_id})
    post("runs/update", {**run["update"], "run_id": run_id})
