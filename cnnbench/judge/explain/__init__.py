"""Why one side takes longer: profiled steps of two sides compared, without TensorFlow.

`sides` adds their times up and tells what stands out of the noise, `causes` recognises what sets
them apart, `facts` lists what differs in their records, `explain` makes the document, `text` and
`chart` show it.
"""

from cnnbench.judge.explain.explain import explain

__all__ = ["explain"]
