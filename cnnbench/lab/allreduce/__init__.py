"""``cnnbench allreduce``: measures and checks reductions between devices by themselves."""
