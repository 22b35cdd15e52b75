"""Rows that no backbone of the store made: vectors of other tools, and exports of stores, as files or in memory."""
