"""`cnnbench roofline`: time of a step by layer, compared with the machine's limits.

Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52 (4), 2009.
"""
