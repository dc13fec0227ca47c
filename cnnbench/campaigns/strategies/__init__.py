"""`cnnbench strategies`: compares all modes of --variable_update."""
