"""Which arrays are in RAM within the budget, and which are needed next."""
