"""``cnnbench allreduce``: measurement and check of reductions alone."""
