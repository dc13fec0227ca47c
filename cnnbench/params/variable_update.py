"""Where variables live and how gradients come together."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.params.declaration import flag


@dataclass(frozen=True, kw_only=True)
class VariableUpdateParams:
    """Where variables live and how gradients come together."""

    variable_update: str = flag(
        "parameter_server",
        "parameter_server keeps one copy of every variable, replicated a copy per device with "
        "reduced gradients, independent a copy per device and no reduction at all.",
        choices=(
            "parameter_server",
            "replicated",
            "independent",
            "distributed_replicated",
            "distributed_all_reduce",
            "collective_all_reduce",
            "mirrored_strategy",
            "multi_worker_mirrored_strategy",
            "central_storage_strategy",
            "parameter_server_strategy",
        ),
    )
    local_parameter_device: str = flag(
        "gpu",
        "Where parameter_server keeps the variables and replicated reduces the gradients: "
        "on the compute devices (gpu, whatever --device is) or on the host (cpu).",
        choices=("cpu", "gpu"),
        lower=True,
    )
    gradient_reduction: str = flag(
        "mean",
        "How gradients of several devices become one, in every mode.",
        choices=("mean", "sum"),
    )
    bn_stats: str = flag(
        "first",
        "Moving moments of batch norm: from the first device, the mean of all devices, or "
        "moments synchronised within the step.",
        choices=("first", "mean", "sync"),
    )
    variable_consistency: str = flag(
        "strong",
        "relaxed applies the gradients one step late.",
        choices=("strong", "relaxed"),
    )
    staged_vars: bool = flag(False, "Read parameter-server variables one step ahead.")
    all_reduce_spec: str | None = flag(
        None, "All-reduce algorithms by tensor size, as in pscpu:32k:xring."
    )
    hierarchical_copy: bool = flag(
        False, "Reduce within two halves of the devices first, then between the halves."
    )
    network_topology: str = flag(
        "dgx1", "Wiring that --hierarchical_copy is laid out for.", choices=("dgx1", "gcp_v100")
    )
    gradient_repacking: int = flag(
        0,
        "Join all gradients and split them into so many equal packs; 0 for no packing.",
        minimum=0,
    )
    compact_gradient_transfer: bool = flag(
        True,
        "With fp16: send gradients between devices as fp16. For now they always travel as fp32.",
    )
    agg_small_grads_max_bytes: int = flag(
        0, "Join gradients of up to so many bytes before reducing them; 0 for none.", minimum=0
    )
    agg_small_grads_max_group: int = flag(10, "Most small gradients to join into one.", minimum=1)
    allreduce_merge_scope: int = flag(
        1, "Gradients that share one name scope, which lets TensorFlow merge them.", minimum=1
    )
    sparse_to_dense_grads: bool = flag(
        False, "Turn sparse gradients into dense ones before the update."
    )
    iters_per_step: int = flag(
        5, "All-reduce benchmark only: reductions chained in one step.", minimum=1
    )
