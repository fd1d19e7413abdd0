"""DPGM: private clusters, and a generative neural network trained on each.

Source: Acs, Melis, Castelluccia and De Cristofaro, "Differentially private mixture of generative
neural networks", IEEE TKDE 31(6), 2019.
"""
