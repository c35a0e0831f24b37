"""`spillgrad launch`: start a program, or a command of spillgrad, in several processes that work together."""
