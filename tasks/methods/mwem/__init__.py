"""MWEM: multiplicative weights with queries chosen by the exponential mechanism.

Source: Hardt, Ligett and McSherry 2012, "A simple and practical algorithm for differentially
private data release", NIPS 25, Figure 1 and the section on scaling.
"""
