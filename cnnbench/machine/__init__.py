"""Reads properties of the machine and software, measures load and energy, and checks the measuring
conditions.
"""
