"""How long all-reduces take on devices that are not there.

Formulas in the number of devices and the size of the tensors (`formulas` for networks,
`work` for machines whose devices share the cores), with parameters that are published
(`links`) or fitted to measured points (`fit`), and checked on points that were held out
(`validate`). No TensorFlow here.
"""
