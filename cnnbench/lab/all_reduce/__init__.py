"""``cnnbench allreduce``: measures and checks all-reduces without a training step."""
