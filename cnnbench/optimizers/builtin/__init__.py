"""Optimizers of cnnbench, one module each, which declares it as `OPTIMIZER`."""
