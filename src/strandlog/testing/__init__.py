"""For tests, ours and yours: a clock that stands still and a disk that fails on command."""
