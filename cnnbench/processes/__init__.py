"""One run in a process of its own, whatever becomes of it; imports no TensorFlow.

``commands`` says beforehand what its flags come to, ``guard`` and ``process`` run it, ``outcome``
makes a record of how it ended, ``reporter`` tells the user.
"""
