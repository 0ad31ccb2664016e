"""openloop against real engines. Each script starts one, drives it, and prints, draws and writes down what it found."""
