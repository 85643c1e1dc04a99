"""Failures of the policy: which are worth a look, why they happened, and what may be learnt from them."""
