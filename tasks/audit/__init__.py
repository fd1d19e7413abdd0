"""Audits: attacks on the real code path, and lower bounds on epsilon from how well they do.

A lower bound can show a flaw. It can never prove the absence of one.
"""
