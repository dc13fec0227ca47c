"""The optimizers of cnnbench. Each module declares one optimizer, `OPTIMIZER`."""
