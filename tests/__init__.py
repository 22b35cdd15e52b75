"""Only a power cut shows what fsync does: in a process of tests, and in those that it forks, it does nothing."""

import fcntl
import os

FSYNC = os.fsync
os.fsync = lambda fd: None
vars(fcntl).pop("F_FULLFSYNC", None)  # on macOS it takes the place of fsync
