"""Records to verdicts, pages and trends; needs no TensorFlow."""
