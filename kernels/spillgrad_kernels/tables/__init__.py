"""What is computed: rows, formulas and scalar mathematics, which loops for the CPU and for a device are made of."""
