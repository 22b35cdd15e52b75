"""What people see: bars while something runs, tables when it is done. One module for each module of ``cli``."""
