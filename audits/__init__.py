"""Audits: attacks on the real code path, and lower bounds on epsilon from their success.

A lower bound can show a flaw. It can never prove the absence of one. The room is in the repository
and not in the wheel: ``clustmix audit`` runs from a checkout, with the extra ``audit``.
"""
