"""Where bytes lie: a folder of this machine, or a prefix of a bucket."""
