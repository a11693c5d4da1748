"""Shipped configurations: ``node/``, ``verifier/`` and ``calibration/``, one YAML file each."""
