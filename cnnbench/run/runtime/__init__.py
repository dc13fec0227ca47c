"""TensorFlow's runtime and its devices: threads, placement, memory, peak FLOP rate."""
