"""Run a function again in backward instead of keeping what its operations saved."""
