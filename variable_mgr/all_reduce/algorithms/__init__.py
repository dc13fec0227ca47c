"""All-reduce algorithms, one per module. --all_reduce_spec uses the names of the modules."""
