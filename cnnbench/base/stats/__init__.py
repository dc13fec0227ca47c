"""Statistics of plain numbers: no records, no TensorFlow."""
