"""`cnnbench roofline`: where the time of a step goes, against what the machine can do.

Source: Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52 (4), 2009.
"""
