"""Only a power cut shows what fsync does: in a process of tests, and in those that it forks, it does nothing."""

import os

FSYNC = os.fsync
os.fsync = lambda fd: None
